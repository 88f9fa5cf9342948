"""Whether the loader has become slower: its ratios to others of the same run, beside those of a committed baseline.

    python bench/bench_check.py [--repeats 5] [--seconds 1]       compare; exits with 1 where something is lost
    python bench/bench_check.py --write                           make the baseline anew, on a quiet machine
    python bench/bench_check.py --outcome FILE.json               compare what `dali-feed bench loader --json` gave

The law: compared are ratios, such as that of our loader over tar shards to its ceiling, to the bare loop, to torch's
loader. Each round of turns gives one; how fast the machine is falls out of it. A ratio is lost where

    every round of today lies below every round of the baseline, and
    its median lies more than 3 % below the baseline's.

The first is the noise as the turns themselves show it: of five rounds and five, chance alone puts all of one below all
of the others once in 252 times. The second leaves out what nobody would act on. A loss is measured a second time, and
counts where it is found again. A baseline is of one machine: on another, nothing is compared, and it ends with 2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BASELINE = Path(__file__).with_name("baseline.json")
OURS = ("tar", "folder")
BESIDE = ("ceiling", "loop", "torch")
SAME = ("machine", "cpus", "image", "images", "batch", "threads", "device", "engine")  # or ratios mean something else
LEAST_LOSS = 0.03
ENOUGH_ROUNDS = 3  # below it "every round" says little
IMAGES, BATCH = 512, 64
BAD_USE = 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of ours to somebody, over the rounds of a run."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Made:
    """The ratios of a run by name, such as "tar of ceiling", with how many rounds and where they were made."""

    about: dict[str, Any]
    rounds: int
    ratios: dict[str, Ratio]


def ratios_of(outcome: Mapping[str, Any]) -> Made:
    """What is compared of an outcome of `dali-feed bench loader`. ValueError: it has none of ours beside the others."""
    found = {}
    for row in outcome["rows"]:
        for other in BESIDE:
            if row["who"] in OURS and row.get(f"of {other}") is not None:
                ends = (row[f"of {other}{end}"] for end in ("", ", least", ", most"))
                found[f"{row['who']} of {other}"] = Ratio(*map(float, ends))
    if not found:
        missing = "; ".join(f"{who}: {why}" for who, why in outcome.get("missing", {}).items())
        msg = f"the outcome has no ratio of {' or '.join(OURS)} to {', '.join(BESIDE)}; not measured: {missing or '-'}"
        raise ValueError(msg)
    about = {key: outcome["about"].get(key) for key in (*SAME, "commit", "date")}
    return Made(about, int(outcome["about"]["repeats"]), found)


def read(path: Path) -> Made:
    """A baseline. ValueError: it is none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Made(told["about"], told["rounds"], {name: Ratio(**each) for name, each in told["ratios"].items()})
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); make it on a quiet machine: make bench-check WRITE=1"
        raise ValueError(msg) from None
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path}: is no baseline ({type(error).__name__}: {error}); make it again: make bench-check WRITE=1"
        raise ValueError(msg) from None


def differences(baseline: Made, today: Made) -> list[str]:
    """Why the two cannot be compared."""
    found = [
        f"{key}: {today.about.get(key)!r}, in the baseline {baseline.about.get(key)!r}"
        for key in SAME
        if today.about.get(key) != baseline.about.get(key)
    ]
    rounds = min(baseline.rounds, today.rounds)
    return found + ([f"rounds: {rounds}, and {ENOUGH_ROUNDS} are needed"] if rounds < ENOUGH_ROUNDS else [])


def lost(baseline: Made, today: Made) -> dict[str, str]:
    """What is lost beyond the noise, by the ratio's name; a ratio that today lacks is lost too."""
    found = {}
    for name, before in baseline.ratios.items():
        now = today.ratios.get(name)
        if now is None:
            found[name] = f"{before.median:.3f} in the baseline, not measured today"
        elif now.most < before.least and now.median < before.median * (1 - LEAST_LOSS):
            found[name] = (
                f"{now.median:.3f} ({now.least:.3f} to {now.most:.3f}), in the baseline {before.median:.3f} "
                f"({before.least:.3f} to {before.most:.3f}): {1 - now.median / before.median:.0%} lost"
            )
    return found


def measured(args: argparse.Namespace) -> Mapping[str, Any]:
    """An outcome, measured now."""
    command = [sys.executable, "-P", "-m", "dali_feed.cli", "bench", "loader", "--json", "--device", "cpu"]
    command += ["--images", str(IMAGES), "--batch", str(BATCH)]
    command += ["--repeats", str(args.repeats), "--seconds", str(args.seconds)]
    command += ["--data", str(args.data)] if args.data else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        msg = f"`{' '.join(command[4:])}` ended with {done.returncode}; what it said stands above"
        raise ValueError(msg)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def compare(baseline: Made, args: argparse.Namespace) -> int:
    """Measure, compare, say it; a loss is measured again."""
    losses: dict[str, str] = {}
    for time in ("first", "second"):
        outcome = json.loads(args.outcome.read_text(encoding="utf-8")) if args.outcome else measured(args)
        today = ratios_of(outcome)
        if different := differences(baseline, today):
            print("bench-check: nothing is compared, as the runs differ:", *different, sep="\n  ", file=sys.stderr)
            print("for a baseline of this machine: make bench-check WRITE=1 BASELINE=FILE", file=sys.stderr)
            return BAD_USE
        found = lost(baseline, today)
        losses = {name: why for name, why in found.items() if time == "first" or name in losses}
        for name, now in sorted(today.ratios.items()):
            before = baseline.ratios.get(name)
            beside = f", in the baseline {before.median:.3f}" if before else ", which the baseline does not have"
            print(f"{name}: {now.median:.3f}{beside}{'  LOST' if name in losses else ''}")
        if not losses or args.outcome:
            break
        print(f"lost at the {time} time; {'measuring again' if time == 'first' else 'so it is no chance'}", flush=True)
    if not losses:
        print("bench-check: nothing is lost beyond the noise")
        return 0
    print("bench-check: LOST beyond the noise", *(f"{n}: {why}" for n, why in losses.items()), sep="\n  ")
    print(
        "What to do: find the commit (git bisect run make bench-check), see where the time goes (dali-feed bench "
        "loader --report FILE.html), and mend it. Where the price is meant, say why in bench/LOG.md and make the "
        "baseline anew on a quiet machine: make bench-check WRITE=1"
    )
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare with the baseline, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of turns (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1, help="of a turn (default %(default)s)")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--write", action="store_true", help="write the baseline instead of comparing with it")
    parser.add_argument("--outcome", type=Path, default=None, metavar="FILE.json", help="measure nothing: use this")
    parser.add_argument("--data", type=Path, default=None, help="where images are made (default: the user's cache)")
    args = parser.parse_args(arguments)
    try:
        if not args.write:
            return compare(read(args.baseline), args)
        outcome = json.loads(args.outcome.read_text(encoding="utf-8")) if args.outcome else measured(args)
        made = ratios_of(outcome)
        if made.rounds < ENOUGH_ROUNDS:
            print(f"bench-check: --repeats must be {ENOUGH_ROUNDS} or more for a baseline", file=sys.stderr)
            return BAD_USE
        args.baseline.write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")
    except ValueError as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return BAD_USE
    print(f"bench-check: wrote {len(made.ratios)} ratios of {made.rounds} rounds to {args.baseline}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
