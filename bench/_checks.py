"""Runs commands that each may crash or hang, and keeps a line of each: what it was, how it ended, what it said.

The law: a check is a process of its own with a limit, so that none can take another along, and what was found out stays
when the rest is cut off. A check that was ok is not run again as long as the sources are the same; one that was cut off
by the caller's own time is run again, with all of its limit.
"""

from __future__ import annotations

import csv
import hashlib
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

__all__ = ["FAILED", "OK", "SKIPPED", "Check", "Line", "Summary", "run_checks", "sources_digest"]

SKIPPED = 77  # what a check ends with, where it cannot be made on this machine
OK, FAILED = "ok", "FAILED"
FOLDERS = ("dali_feed", "external_sources", "kernels", "tests", "bench")
SUFFIXES = (".py", ".cu", ".cuh", ".h", ".sh")
GRACE_S = 5.0
SAID = 160  # characters of a line


@dataclass(frozen=True, slots=True)
class Check:
    """A command, the seconds it may take at most, and those without which it is not begun."""

    part: str
    name: str
    command: tuple[str, ...]
    limit: float = 120
    needs: float = 20


@dataclass(frozen=True, slots=True)
class Line:
    """How a check ended, for people and for the next run."""

    part: str
    name: str
    verdict: str
    seconds: str
    said: str
    sources: str


class Summary:
    """The lines, in a file that is written line by line; of several of one check the last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[tuple[str, str], Line] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    line = Line(**row)
                    self.lines[line.part, line.name] = line

    def add(self, line: Line) -> None:
        """Keep it."""
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Line)])
            if new:
                writer.writeheader()
            writer.writerow(asdict(line))
        self.lines[line.part, line.name] = line

    def has(self, check: Check, sources: str) -> bool:
        """Whether it was ok with these sources."""
        line = self.lines.get((check.part, check.name))
        return line is not None and line.verdict == OK and line.sources == sources


def sources_digest(root: Path) -> str:
    """Of everything whose change may change what a check finds."""
    digest = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _ended(check: Check, log: Path, limit: float) -> int | None:
    """Its exit status; None where it was still running at the limit. All it started is ended with it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            check.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(GRACE_S)
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue


def _said(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:SAID] if lines else ""


def _verdict(status: int | None, *, cut: bool) -> str:
    match status:
        case 0:
            return OK
        case None:
            return "cut off" if cut else "TIMED OUT"
        case _ if status == SKIPPED:
            return "skipped"
        case _ if status < 0:
            return f"CRASHED ({signal.Signals(-status).name})"
    return FAILED


def run_checks(checks: Sequence[Check], out: Path, sources: str, seconds: float) -> tuple[int, int]:
    """Run what is not yet known, for so many seconds. Returns how many failed, and how many are left for another call.

    Logs go to `out`/logs, the lines to `out`/summary.csv, and all of `out` but tar files to `out`/results.tar.gz.
    """
    end = time.monotonic() + seconds
    summary, logs = Summary(out / "summary.csv"), out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    left = failed = 0
    for check in checks:
        if summary.has(check, sources):
            print(f"{'ok before':12} {check.part} {check.name}", flush=True)
            continue
        remaining = end - time.monotonic()
        if remaining < min(check.needs, check.limit):
            left += 1
            continue
        log = logs / f"{check.part}-{check.name.replace('/', '_').replace(' ', '_')}.log"
        begun = time.monotonic()
        status = _ended(check, log, min(check.limit, remaining))
        verdict = _verdict(status, cut=remaining < check.limit)
        took = f"{time.monotonic() - begun:.1f}"
        summary.add(Line(check.part, check.name, verdict, took, _said(log), sources))
        left += verdict == "cut off"
        failed += verdict not in (OK, "skipped", "cut off")
        print(f"{verdict:12} {check.part} {check.name} ({took} s): {_said(log)}", flush=True)
        _pack(out)
    _pack(out)
    return failed, left


def _files(out: Path) -> Iterable[Path]:
    return (path for path in sorted(out.rglob("*")) if path.is_file() and not path.name.endswith((".tar.gz", ".tmp")))


def _pack(out: Path) -> None:
    """One file to take along, whole at any moment."""
    made = out / "results.tar.gz.tmp"
    with tarfile.open(made, "w:gz") as tar:
        for path in _files(out):
            tar.add(path, path.relative_to(out))
    made.rename(out / "results.tar.gz")
