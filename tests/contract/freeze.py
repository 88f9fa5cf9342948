"""Writes the frozen digests by the code they are frozen of, and by no other.

    cd CHECKOUT-OF-4bf1ae6 && .venv/bin/python -I /path/to/tests/contract/freeze.py             # pixels of this machine
    ... freeze.py --all                                                                          # every digest anew

`dali_feed` must come from a clean checkout of the frozen commit, with an environment of its own; this file, the tables
and the JSON that is written may stand in another checkout. Pixels depend on the versions of what decodes and resizes,
and on the processor: their digests have a key, and a machine with a new one runs this script once. All else holds
everywhere and is written once, with `--all`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main() -> None:
    """Run every row, and write what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the digests that hold everywhere")
    parser.add_argument("--check", action="store_true", help="write nothing: compare with what is written")
    parser.add_argument("--row", help="only rows with this in their names, printed and not written")
    args = parser.parse_args()
    _import_kit()
    logging.disable()  # bad records are on purpose
    from kit import golden, golden_files
    from kit.shelf import Shelf

    if not (args.check or args.row):
        _refuse_other_code(golden.FROZEN)
    with tempfile.TemporaryDirectory() as folder, golden.Runner(Path(folder)) as runner:
        begin = time.perf_counter()
        results, failed = {}, []
        for name in golden.names():
            if not args.row or args.row in name:
                try:
                    results[name] = runner.run(name)
                except Exception as error:  # noqa: BLE001  each row that fails is named, not the first alone
                    failed.append(f"{name}: {type(error).__name__}: {error}")
        seconds = time.perf_counter() - begin
    if failed:
        print("\n".join(failed))
        sys.exit("freeze: a row that cannot be run is frozen by nobody")
    print(f"{len(results)} rows in {seconds:.1f} s; pixels' key {golden.key()}")
    if args.row:
        for name, result in results.items():
            print(name, result)
        return
    different, files = golden.compare(results), {}
    if args.all or args.check:  # files are no machine's own, and the kit that writes them speaks of today's arguments
        with tempfile.TemporaryDirectory() as folder, Shelf(Path(folder)) as shelf:
            files = {name: golden_files.bytes_of(name, shelf) for name in golden_files.places()}
    different += [f"{name}: other bytes" for name in files if golden_files.frozen().get(name) != files[name]]
    if args.check:
        print("\n".join(different) or "all as frozen")
        sys.exit(bool(different))
    if different and not args.all:
        print("\n".join(different))
        sys.exit("freeze: pixels are written where all else is as it was frozen")
    golden.write(results, everywhere=args.all)
    if args.all:
        golden_files.FILES.write_text(json.dumps(files, indent=1, ensure_ascii=False) + "\n")


def _import_kit() -> None:
    """`kit` alone: with its folder on the path, tests/kernels would hide a library."""
    at = TESTS / "kit" / "__init__.py"
    spec = importlib.util.spec_from_file_location("kit", at, submodule_search_locations=[str(at.parent)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["kit"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["kit"])


def _refuse_other_code(commit: str) -> None:
    import dali_feed

    root = Path(dali_feed.__file__).resolve().parents[1]
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    if not head.startswith(commit) or dirty:
        sys.exit(
            f"freeze: the product must be a clean checkout of {commit}; found {root} at {head[:7]}"
            f"{', with changes' if dirty else ''}; make a worktree of {commit} with an environment of its own"
        )


if __name__ == "__main__":
    main()
