"""Make the photographs of the benchmarks (`dali_feed/bench/photos.py`), so that no clock runs meanwhile.

python bench/_photos.py [--photos 3000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dali_feed.bench.photos import photos


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    args = parser.parse_args()
    made = photos(args.photos, cache=args.data)
    print(f"{made.count} photographs of {made.mean_bytes} bytes on average in {made.root}")


if __name__ == "__main__":
    main()
