"""How long a program takes to its first batch, beside one that uses torch's own DataLoader.

    python bench/bench_start.py [--repeats 5] [--batch 64] [--workers 2] [--imports 8]

Each start is a process of its own (`_start.py`), in turns: torch and torchvision are imported, then the loader's own
package; a loader over the same files in the page cache is made, with RandomResizedCrop(224), flip, float32, Normalize;
then come iter() and two batches. Columns, seconds, medians of the starts:

    frames   importing torch and torchvision, which both need
    import   importing the loader
    made     making dataset and loader
    iter     iter(loader)
    first    the first batch behind it
    whole    import + made + iter + first: what the choice of the loader costs
    most     the most of those
    cpu      CPU time of the same, without that of torch's workers
    modules  what they import beyond torch and torchvision

Below it whether the goal is met, a first batch within 1 s of iter(), and the imports behind torch that take longest,
from `python -X importtime`. Rows go to results/start.csv. Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _goals import within
from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread

START = Path(__file__).with_name("_start.py")
COUNTED = ("import", "made", "iter", "first")
Stages = dict[str, list[float]]


def start(who: str, folder: Path, args: argparse.Namespace) -> tuple[Stages, list[tuple[float, str]]]:
    """What each stage took, and the seconds of each module that was imported, those below it left out."""
    command = [sys.executable, "-X", "importtime", str(START), who, str(folder), str(args.batch), str(args.workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{who}: {done.stderr[-2000:]}")
    lines = [
        line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if line[:12] == "import time:"
    ]
    imports = [(int(own) / 1e6, name.strip()) for own, _, name in lines if own.strip().isdecimal()]
    stages: Stages = json.loads(done.stdout)
    return stages, imports


def main() -> None:
    """Measure, print, and add rows to results/start.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="of torch's loader (default %(default)s)")
    parser.add_argument(
        "--imports", type=int, default=8, help="how many of the longest are shown (default %(default)s)"
    )
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    starts: dict[str, list[Stages]] = {"ours": [], "torch": []}
    imports: dict[str, list[tuple[float, str]]] = {}
    for turn in range(args.repeats + 1):  # the first one brings files into the page cache
        for who, found in starts.items():
            stages, imports[who] = start(who, data.files, args)
            if turn:
                found.append(stages)
    rows: list[dict[str, object]] = []
    for who, found in starts.items():
        sums = spread(sum(each[stage][0] for stage in COUNTED) for each in found)
        cpu = spread(sum(each[stage][1] for stage in COUNTED) for each in found)
        seconds = {stage: f"{spread(each[stage][0] for each in found)[0]:.3f}" for stage in ("torch", *COUNTED)}
        shown = {"frames": seconds.pop("torch"), **seconds}  # `torch` is a version, in every row
        modules = sum(int(found[0][stage][2]) for stage in COUNTED)
        whole = {"whole": f"{sums[0]:.3f}", "most": f"{sums[2]:.3f}", "cpu": f"{cpu[0]:.3f}", "modules": modules}
        rows.append({"who": who, **shown, **whole})
    print(table(rows, list(rows[0])))
    firsts = spread(each["iter"][0] + each["first"][0] for each in starts["ours"])
    print(within("the first batch comes within 1 s of iter()", firsts[0], 1.0, worst=firsts[2], unit=" s"))
    others = {name for _, name in imports["torch"]}
    longest = sorted((each for each in imports["ours"] if each[1] not in others), reverse=True)[: args.imports]
    print(
        "\n"
        + table([{"s": f"{own:.3f}", "only ours imports": name} for own, name in longest], ["s", "only ours imports"])
    )
    made = facts() | {"images": data.count, "batch": args.batch, "workers": args.workers, "repeats": args.repeats}
    print(f"\nadded {len(rows)} rows to {append('start', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
