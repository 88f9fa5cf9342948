"""What the rules of concurrency are for: each is taken out of a copy of the product, and schedules run until one fails.

    .venv/bin/python tests/kit/rules_out.py [schedules] [rule...]      # 10,000 and all rules, unless said

The table says which seed failed and by which law; a rule whose absence no schedule sees is named as such, and is either
not needed, or not looked at by the laws of tests/simulation. A patch that no longer applies is an error: who changes
the code says here what the rule has become.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "RULES", "Rule"]

ROOT = Path(__file__).resolve().parents[2]
FEED, GROUP = "test_simulated_feeds", "test_simulated_groups"
MOVES = f"{GROUP} moves"
BATCH = 250  # schedules of one process, whose end frees what failed ones leave
KAFKA = "external_sources/kafka/"


@dataclass(frozen=True)
class Rule:
    """One rule: its number and words, where it stands in the product, what is there without it, and who sees it.

    scenario  a module of tests/simulation and its function; without one `loops`
    """

    number: int
    name: str
    says: str
    file: str
    old: str
    new: str
    scenario: str = FEED

    def path(self, root: Path) -> Path:
        """Its file, in a copy of the product."""
        return root / ("" if self.file.startswith(KAFKA) else "dali_feed") / self.file

    def there(self, root: Path) -> bool:
        """Whether it can be taken out of that copy: it is there, and once."""
        return self.path(root).read_text().count(self.old) == 1

    def take_out(self, root: Path) -> None:
        """Take it out of that copy."""
        assert self.there(root), f"rule {self.number} ({self.name}): {self.file} must have it, and once"
        self.path(root).write_text(self.path(root).read_text().replace(self.old, self.new))


RULES = (
    Rule(
        *(1, "ticket", "a pass at its end discards every batch that it has submitted", "feed/run.py"),
        "                self.engine.discard(flight.work)",
        "                pass",
    ),
    Rule(
        *(2, "lease", "memory goes back when no job reads it any more", "engines/workers.py"),
        "    lingers = True  #",
        "    lingers = False  #",
    ),
    Rule(
        *(3, "waits", "close wakes whatever the feed thread waits for", "feed/run.py"),
        "            self.closed = True\n            self._changed.notify_all()",
        "            self.closed = True",
    ),
    Rule(
        *(4, "place", "an error belongs to the epoch of its batch", "feed/run.py"),
        "epoch = oldest.epoch if isinstance(oldest, Flight | EpochEnd | FailedTake) else supply.epoch",
        "epoch = supply.epoch",
    ),
    Rule(
        *(5, "adopt", "a thread ends quietly, or its pass goes on: one of both", "feed/run.py"),
        "        with self._changed:\n            quietly = epoch > self.requested\n",
        "        quietly = epoch > self.requested\n        sync.sleep(0.0)\n        with self._changed:\n",
        f"{FEED} goes_on",
    ),
    Rule(
        *(6, "dirty", "a batch that was taken out and not counted ends its pass", "feed/passes.py"),
        "            self._taking = token\n",
        "            self._taking = None\n",
        f"{FEED} interrupts",
    ),
    Rule(
        *(7, "token", "an older iterator ends nobody's pass", "feed/epochs.py"),
        "        if token is self._token and self.here:",
        "        if self.here:",
    ),
    Rule(
        *(7, "endmark", "the end of an epoch that was left at its last batch is skipped", "feed/run.py"),
        "while isinstance(item, EpochEnd) and item.epoch < self.gate.requested:",
        "while False:",
    ),
    Rule(
        *(8, "swap", "the position moves only for the newest iterator", "feed/epochs.py"),
        "            self.check(token)\n            self._position.took",
        "            self._position.took",
        f"{FEED} loads",
    ),
    Rule(
        *(9, "lives", "no pass begins once the feed is closed", "feed/passes.py"),
        "            self.check(token, begun=False)  # another thread may have closed the feed, or loaded a state\n",
        "",
        f"{GROUP} begins",
    ),
    Rule(
        *(10, "leaving", "no pass begins before the thread of the one before has ended", "feed/epochs.py"),
        "                self._wait()\n                run = self._begin",
        "                run = self._begin",
    ),
    Rule(
        *(11, "state", "a state reads the position, then waits for letters", "feed/feed.py"),
        "        at, outbox = positions.at(), positions.outbox\n        try:\n            outbox.drain()  #",
        "        outbox = positions.outbox\n        try:\n            outbox.drain()\n            at = positions.at()#",
        f"{FEED} saves",
    ),
    Rule(
        *(12, "ahead", "of an epoch not asked for only the first windows are read", "feed/epochs.py"),
        "narrow=epoch > self._gate.requested)",
        "narrow=False)",
        f"{FEED} rests",
    ),
    Rule(
        *(13, "config", "too little memory is judged by the windows of one batch", "feed/window.py"),
        "(held := sum(lease.size for lease in self._leases))",
        "(held := source.pool._slabs.leased)",
        f"{FEED} fills",
    ),
    Rule(
        *(14, "room", "a reader never waits for memory", "records/slabs.py"),
        "    def _take(self, size: int, *, lent: bool, huge: bool) -> memoryview:\n",
        "    def _take(self, size: int, *, lent: bool, huge: bool) -> memoryview:\n"
        "        while self.most is not None and self.leased + size > self.most:\n            sync.sleep(0.01)\n",
        f"{FEED} fills",
    ),
    Rule(
        *(15, "one", "a batch of a stream is of one generation", "feed/stream.py"),
        "            self._part.release()\n            self._part = Gathered(polled.generation)\n",
        "            self._part.generation = polled.generation\n",
        GROUP,
    ),
    Rule(
        *(16, "stamp", "a block's generation is that of when its records were queued", KAFKA + "live_reader.py"),
        "            return LiveBlock(taken.block(), position, generation)",
        "            return LiveBlock(taken.block(), position, self._progress.generation)",
        MOVES,
    ),
    Rule(
        *(17, "first", "what is fetched before partitions are sought again is dropped", KAFKA + "live_reader.py"),
        "            elif offset >= self._at[p] and p not in self._seeks:",
        "            elif offset >= self._at[p]:",
        MOVES,
    ),
    Rule(
        *(18, "none", "a batch without a good record is settled as all others are", "feed/stream.py"),
        "            self._note(row, window.bad_record(row))\n        window.release()",
        "            window.bad_record(row)\n        window.release()",
        GROUP,
    ),
    Rule(
        *(19, "after", "a batch is made, then taken: nothing behind that may fail", "feed/passes.py"),
        "            made = None if self._positions.void(batch) else make(batch)\n"
        "            count = 0 if counts is None else counts[n]\n"
        "            self._taken = n + 1\n"
        "            last = counts is not None and n + 1 == len(counts)\n"
        "            given = self._positions.took(self._token, batch, count, last=last)\n",
        "            void = self._positions.void(batch)\n"
        "            count = 0 if counts is None else counts[n]\n"
        "            self._taken = n + 1\n"
        "            last = counts is not None and n + 1 == len(counts)\n"
        "            given = self._positions.took(self._token, batch, count, last=last)\n"
        "            made = None if void else make(batch)\n",
    ),
    Rule(
        *(20, "durable", "what a partition's hand-over commits has its dead letters kept", "records/live.py"),
        "        return done if self._durable(max(LETTER_SECONDS, ends - sync.monotonic())) else {}",
        "        return done",
        MOVES,
    ),
    Rule(
        *(21, "levels", "a commit leaves out what is another's, or has gone on", KAFKA + "group.py"),
        "level = {p: n for p, n in position.items() if n > self._committed.get(p, n)}",
        "level = dict(position)",
        MOVES,
    ),
    Rule(
        *(22, "closing", "close does not wait for the batch that the loop has", "records/live.py"),
        "while not stopped() and any(",
        "while any(",
        MOVES,
    ),
    Rule(
        *(23, "begun", "a commit that waits goes on when partitions come or go", KAFKA + "group.py"),
        "            self._inside = True\n            self.progress.changed.notify_all()\n",
        "            self._inside = True\n",
        MOVES,
    ),
)


def _copied(folder: Path) -> None:
    """The product, with its links."""
    for name in ("dali_feed", "external_sources", "kernels"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


RUN = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
first, count = int(sys.argv[2]), int(sys.argv[3])
from kit.schedules import explore
seed = first
def seeds():
    global seed
    for seed in range(first, first + count):
        yield seed
with module.prepared():
    try:
        explore(getattr(module, sys.argv[4]), seeds(), modules=module.MODULES)
    except BaseException as error:
        print(f"SEED {seed} {type(error).__name__}: {error}")
sys.stdout.flush()
import os
os._exit(0)  # threads of a schedule that failed never end
"""


def _first(rule: Rule, count: int, folder: Path) -> str:
    """The first seed that fails, and how; empty where none does."""
    tests = ROOT / "tests"
    path = os.pathsep.join(map(str, (folder, tests, tests / "simulation")))
    for first in range(0, count, BATCH):
        module, _, scenario = rule.scenario.partition(" ")
        numbers = str(first), str(min(BATCH, count - first))
        command = [sys.executable, "-P", "-c", RUN, module, *numbers, scenario or "loops"]
        said = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, cwd=folder, capture_output=True, text=True, check=False
        )
        found = [line for line in said.stdout.splitlines() if line.startswith("SEED")]
        if found or said.returncode:
            return found[0] if found else f"the run ended: {said.stderr.strip().splitlines()[-1:]}"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Print the table; how many rules nobody sees."""
    count = int(arguments[0]) if arguments else 10_000
    unseen = 0
    for rule in RULES:
        if arguments[1:] and rule.name not in arguments[1:]:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _copied(folder)
            rule.take_out(folder)
            seen = _first(rule, count, folder)
        unseen += not seen
        line = f"{rule.number:2} {rule.name:8} {seen[:110] or f'no schedule of {count}'}   [{rule.says}]"
        print(line, flush=True)  # noqa: T201  the table
    return unseen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
