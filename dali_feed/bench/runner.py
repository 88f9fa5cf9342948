"""How benches measure: contestants take turns, and every round of every contestant is kept.

The law: turns go a, b, c, a, b, c, each made afresh, and a turn's first steps are not counted. A ratio is taken within
a round, where the machine was as busy for both, and is the median of those. Who is missing is named with the reason.

No thread and no lock stands here: what a contestant starts, its context ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import functools
import gc
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.native.library import used
from dali_feed.options import whole_cores

WARM_STEPS = 6  # more than the batches that any contestant has in flight
WARM_SECONDS = 0.5
BUSY = 0.1  # share of the cores that other programs take, above which a row says "busy"
CHANCE = "may be chance"
LATE = "there was no time for its turn"
RIGHT, WRONG, UNCHECKED = "right", "WRONG", "not checked"  # how a check ends
TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}  # units of which less is better: the time of a step
TICKS = os.sysconf("SC_CLK_TCK")
FORM = 1  # of the line of JSON

Role = Literal["ours", "top", "peer"]


class Steps(Iterator[float]):
    """What a turn runs. Each step gives its units (images, records, MB); it never ends.

    Attributes:
        clock: the seconds that count; a GPU's own where the host's would be wrong.
        waits: seconds of each step that its user waits; None: the whole step is a wait.
        keeps: whether a step leaves its batch in `images`, which costs memory that is otherwise free by then.
        images: the last step's batch.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)
    waits: list[float] | None = None
    keeps = False
    images: Any = None

    def begins(self) -> None:
        """The warm-up is over: what it says of itself from here on is what counts."""

    def extras(self) -> dict[str, float | str]:
        """What it alone knows, by name; asked for once its context has ended."""
        return {}

    def step(self, images: Any) -> int:
        """What a step gives for a batch: the number of its images."""
        if self.keeps:
            self.images = images
        return len(images)


class Called(Steps):
    """Steps that are a call each, which gives the units, or units and what it alone knows."""

    def __init__(self, call: Callable[[], float | tuple[float, dict[str, float | str]]]) -> None:
        self._call, self._extras = call, dict[str, float | str]()

    def __next__(self) -> float:
        result = self._call()
        if isinstance(result, tuple):
            self._extras = result[1]
            return result[0]
        return result

    def extras(self) -> dict[str, float | str]:
        """Of the last call."""
        return self._extras


Opens = Callable[[str], AbstractContextManager[Steps]]


class Timed(Called):
    """Steps that are a call each, which gives units, the seconds of it that count, and what it alone knows."""

    def __init__(self, call: Callable[[], tuple[float, float, dict[str, float | str]]]) -> None:
        super().__init__(self._timed)
        self._timed_call, self._seconds = call, 0.0
        self.clock = lambda: self._seconds

    def _timed(self) -> tuple[float, dict[str, float | str]]:
        units, seconds, extras = self._timed_call()
        self._seconds += seconds
        return units, extras


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who does the job.

    Attributes:
        name: as a table says it.
        opens: makes it afresh in one of its ways; leaving the context ends its threads and processes.
        ways: its settings, of which the fastest counts: nobody knows it beforehand.
        role: "ours"; "top", who bounds ours; or "peer".
        beside: name of the contestant that the column "of it" compares it with.
        unable: why it cannot take part here, with the cure.
        version: of the package that it is.
    """

    name: str
    opens: Opens
    ways: tuple[str, ...] = ("",)
    role: Role = "peer"
    beside: str = ""
    unable: str | None = None
    version: str = ""


def opened(make: Callable[[], Steps], close: Callable[[], None] | None = None) -> Opens:
    """`Contestant.opens` of steps that need no context of their own, in an only way."""

    @contextlib.contextmanager
    def opens(_: str) -> Iterator[Steps]:
        steps = make()
        try:
            yield steps
        finally:
            if close is not None:
                close()

    return opens


class Ratio(NamedTuple):
    """Of two contestants within the same rounds; `chance`: a turn of the slower was as fast as one of the faster."""

    median: float
    least: float
    most: float
    chance: bool


@dataclass(slots=True)
class Turnout:
    """What came of one contestant at one case. Lists have a value for each round.

    Attributes:
        case: of a bench with several; else "".
        who, role, beside, version: of the contestant; `way`: the fastest of its ways.
        wait_ms: p50 and p99 of the waits of all its steps, in milliseconds.
        peak_mb: most memory held at once, its child processes included.
        rates: units per second.
        cpu_us: CPU time per unit, in microseconds, of this process and all its descendants.
        server_us: that of the server that all of them ask.
        others: share of the cores that other programs took meanwhile.
        extra: what it alone knows: numbers of each round, texts of the last.
    """

    case: str
    who: str
    role: str = "peer"
    way: str = ""
    beside: str = ""
    version: str = ""
    wait_ms: list[float] = field(default_factory=lambda: [0.0, 0.0])
    peak_mb: int = 0
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    extra: dict[str, list[float] | str] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether other programs took more of the cores than a bench can stand."""
        return bool(self.others) and median(self.others) > BUSY


@dataclass(slots=True)
class Race:
    """What one command measured; kept as one line of JSON.

    Attributes:
        kind: "loader", "kafka", ...: runs of one kind can be compared.
        unit: what is counted: "images" a second; or "s", "ms", "us", the time of a step.
        shown: the columns of its table, see `cell`.
        about: where and with what it was made: machine, versions, commit, data, batch.
        rows: by case and contestant.
        missing: who could not take part, and why.
        findings: what the figures say, the most useful sentence first.
    """

    kind: str
    unit: str
    shown: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Turnout] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    form: int = FORM

    @property
    def figure(self) -> str:
        """The column that it is about: "images/s", or "ms"."""
        return self.unit if self.unit in TIMES else f"{self.unit}/s"

    @property
    def less_is_better(self) -> bool:
        """Whether the figure is a time."""
        return self.unit in TIMES

    def row(self, who: str, case: str = "") -> Turnout | None:
        """The row of that contestant, if it has one."""
        return next((row for row in self.rows if (row.who, row.case) == (who, case)), None)

    def figures(self, row: Turnout) -> list[float]:
        """The figure of each of its rounds."""
        return [TIMES[self.unit] / rate for rate in row.rates] if self.less_is_better else row.rates

    def ratio(self, row: Turnout, who: str, what: str = "") -> Ratio | None:
        """A row over another contestant's of the same case, round by round; None where the two have no round in common.

        `what`: "", the figure; else "cpu_us", or a name in `extra`.
        """
        other = self.row(who, row.case)
        if other is None:
            return None
        mine, its = (self._values(each, what) for each in (row, other))
        pairs = [(a, b) for a, b in zip(mine, its, strict=False) if b]
        if not pairs:
            return None
        ratios = [a / b for a, b in pairs]
        chance = row is not other and min(mine) <= max(its) and min(its) <= max(mine)
        return Ratio(median(ratios), min(ratios), max(ratios), chance)

    def _values(self, row: Turnout, what: str) -> Sequence[float]:
        if not what:
            return self.figures(row)
        if what == "cpu_us":
            return row.cpu_us
        value = row.extra.get(what, ())
        return () if isinstance(value, str) else value

    def cell(self, row: Turnout, column: str) -> float | str | None:
        """What a column of a table or a CSV says of a row; None where it has nothing to say.

        The figure's own name, "least" and "most" of its rounds; "of NAME" and "cpu of NAME", ratios to another
        contestant, "of it" to the one in "beside"; "MB/s" where the size of a unit is known; what stands in a
        `Turnout`; and whatever stands in its `extra`.
        """
        start, _, name = column.partition("of ")
        if name and start in {"", "cpu "}:
            ratio = self.ratio(row, row.beside if name == "it" else name, "cpu_us" if start else "")
            return None if ratio is None else ratio.median
        figures = self.figures(row)
        if column == "MB/s" and "bytes" in row.extra and self.unit != "MB":
            return median(figures) * median(self._values(row, "bytes")) / 1e6
        plain: dict[str, float | str | None] = {
            "case": row.case,
            "who": row.who,
            "way": row.way,
            "beside": row.beside,
            "version": row.version,
            "least": min(figures),
            "most": max(figures),
            "peak MB": row.peak_mb or None,
            "p50 ms": row.wait_ms[0],
            "p99 ms": row.wait_ms[1],
            "cpu us": median(row.cpu_us),
            "server us": median(row.server_us) or None,
            "others": median(row.others),
            "busy": "busy" if row.busy else None,
            self.figure: median(figures),
        }
        if column in plain:
            return plain[column]
        value = row.extra.get(column)
        return median(value) if isinstance(value, list) else value

    def chance(self, row: Turnout, column: str) -> bool:
        """Whether a ratio's column is one of two contestants whose turns overlap."""
        if not column.startswith("of "):
            return False
        ratio = self.ratio(row, row.beside if column == "of it" else column[3:])
        return ratio is not None and ratio.chance

    def flat(self) -> list[dict[str, Any]]:
        """A dict for each row: all of `about`, then all columns, as a CSV has them."""
        names = [each.who for each in self.rows if each.role != "ours"]
        ratios = [f"of {name}" for name in dict.fromkeys(names)]
        columns = dict.fromkeys(["case", "who", "way", self.figure, "least", "most", *self.shown, *ratios])
        columns |= dict.fromkeys(["beside", "of it", "cpu us", "server us", "p50 ms", "p99 ms", "peak MB", "others"])
        columns |= dict.fromkeys(["version", *(name for row in self.rows for name in row.extra)])
        return [self.about | {each: _short(self.cell(row, each)) for each in columns} for row in self.rows]

    def to_json(self) -> str:
        """One line. What JSON does not know, such as a path, becomes text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str, name: str = "a run") -> Race:
        """What `to_json` wrote. Raises ConfigError where it is something else; the message calls it `name`."""
        try:
            values = json.loads(text)
            if values["form"] != FORM:
                raise ValueError(f"the form {values['form']!r}, not {FORM}")
            rows = [Turnout(**row) for row in values.pop("rows")]
            return cls(**values, rows=rows)
        except (ValueError, TypeError, KeyError) as error:
            msg = f"{name}: must be a line that `dali-feed bench ... --out FILE.json` wrote; found {error}"
            raise ConfigError(msg) from error


def _short(value: float | str | None) -> float | str | None:
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Listener:
    """Hears how a race goes on; does nothing with it."""

    def begins(self, who: str, way: str, done: int, total: int) -> None:
        """A turn, after `done` of about `total` turns."""

    def took(self, who: str, way: str, rate: float) -> None:
        """The turn is over, with so many units per second."""

    def failed(self, who: str, way: str, reason: str) -> None:
        """It has no turn."""


@dataclass(slots=True)
class _Turn:
    """One contestant's turn: units, seconds, and what was used meanwhile, in seconds and MB."""

    units: float
    seconds: float
    waits: list[float]
    cpu: float
    server: float
    others: float
    peak: int
    extras: dict[str, float | str]


def race(
    result: Race,
    contestants: Sequence[Contestant],
    *,
    case: str = "",
    rounds: int = 3,
    seconds: float = 0.0,
    server: int | None = None,
    heard: Listener | None = None,
    until: float = math.inf,
) -> None:
    """Let them take turns; `result` gets a row of each, turn by turn, so that an interrupted race keeps what it had.

    Who has several ways goes each of them once, which counts for nothing but the choice; then come the rounds. Whoever
    fails is out, and the others go on.

    Args:
        result: what is added to.
        contestants: in the order of their turns, each name once.
        case: what they do, where a bench has several.
        rounds: turns of each.
        seconds: of a turn, beside its warm-up; 0: a turn is one step without a warm-up.
        server: the process that all of them ask, whose CPU time is counted apart.
        heard: hears of each turn.
        until: on the clock of `time.perf_counter`, the time from which on no other turn begins.
    """
    listener, waits = heard or Listener(), dict[str, list[float]]()
    able = [each for each in contestants if each.unable is None]
    result.missing |= {_of_case(case, each.name): each.unable for each in contestants if each.unable is not None}
    best = {each.name: (0.0, each.ways[0]) for each in able if len(each.ways) == 1}  # rate and way
    plan: list[tuple[Contestant, str | None]]
    plan = [(each, way) for each in able if len(each.ways) > 1 for way in each.ways]
    plan += [(each, None) for _ in range(rounds) for each in able]
    for done, (who, trial) in enumerate(plan):
        key = _of_case(case, who.name)
        if key in result.missing:
            continue
        if time.perf_counter() >= until:
            for each in able:
                if result.row(each.name, case) is None:
                    result.missing.setdefault(_of_case(case, each.name), LATE)
            return
        way = best[who.name][1] if trial is None else trial
        listener.begins(who.name, way, done, len(plan))
        try:
            turn = _take(who, way, seconds, server)
        except Exception as error:  # noqa: BLE001  whatever it fails on, the others are measured
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            listener.failed(who.name, way, reason)
            if trial is None or (way == who.ways[-1] and who.name not in best):
                result.missing[key] = f"failed: {reason}"
                result.rows[:] = [row for row in result.rows if (row.case, row.who) != (case, who.name)]
            continue
        rate = turn.units / turn.seconds
        listener.took(who.name, way, rate)
        if trial is None:
            _keep(result, case, who, way, turn, waits)
        else:
            best[who.name] = max(best.get(who.name, (rate, way)), (rate, way), key=lambda pair: pair[0])


def _of_case(case: str, name: str) -> str:
    return f"{case}, {name}" if case else name


def _keep(result: Race, case: str, who: Contestant, way: str, turn: _Turn, waits: dict[str, list[float]]) -> None:
    row = result.row(who.name, case)
    if row is None:
        row = Turnout(case, who.name, who.role, way, who.beside, who.version)
        result.rows.append(row)
    waits.setdefault(who.name, []).extend(turn.waits)
    p50, p99 = np.quantile(waits[who.name], (0.5, 0.99)) * 1e3
    row.wait_ms, row.peak_mb = [round(float(p50), 3), round(float(p99), 3)], max(row.peak_mb, turn.peak)
    row.rates.append(turn.units / turn.seconds)
    row.cpu_us.append(1e6 * turn.cpu / turn.units)
    row.server_us.append(1e6 * turn.server / turn.units)
    row.others.append(round(turn.others, 3))
    for name, value in turn.extras.items():
        before = row.extra.get(name)
        row.extra[name] = value if isinstance(value, str) else [*(before if isinstance(before, list) else ()), value]


def _take(who: Contestant, way: str, seconds: float, server: int | None) -> _Turn:
    """Make it, let it warm up, and count what it does."""
    _reset_peak()
    with who.opens(way) as steps:
        warm, begun = WARM_STEPS if seconds else 0, time.perf_counter()
        while warm > 0 or time.perf_counter() - begun < min(WARM_SECONDS, seconds):
            next(steps)
            warm -= 1
        steps.begins()
        if steps.waits is not None:
            steps.waits.clear()
        units, waits, clock = 0.0, list[float](), steps.clock
        used_before, wall = _used(server), time.perf_counter()
        begun = now = clock()
        while True:
            before = now
            units += next(steps)
            now = clock()
            waits.append(now - before)
            if now - begun >= seconds:
                break
        ours, its, busy = (b - a for a, b in zip(used_before, _used(server), strict=True))
        wall, peak = time.perf_counter() - wall, _peak_rss(server)
    others = max(0.0, busy - ours - its) / wall / len(os.sched_getaffinity(0))
    waits = waits if steps.waits is None else steps.waits
    return _Turn(units, now - begun, waits, ours, its, others, round(peak / 1e6), steps.extras())


def _used(server: int | None) -> tuple[float, float, float]:
    """CPU seconds so far: of this process with its descendants, those of the past too; of the server; of the cores."""
    live = sum(cpu_seconds(pid) for pid in _descendants(server))
    ended = os.times()  # after those that live: whoever ends in between is counted here, once
    ours = time.process_time() + live + ended.children_user + ended.children_system
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name in cores:
                busy += sum(int(ticks[k]) for k in (0, 1, 2, 5, 6, 7))  # not idle, not waiting for a disk
    return ours, cpu_seconds(server) if server else 0.0, busy / TICKS


def _descendants(apart: int | None) -> list[int]:
    """Processes that this one started, and theirs; without `apart` and what it started."""
    tree, line = list[int](), [os.getpid()]
    while line:
        parent = line.pop()
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                children = [int(pid) for pid in path.read_text(encoding="ascii").split()]
                line += [pid for pid in children if pid != apart]
        tree.append(parent)
    return tree[1:]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended, to a hundredth of a second; 0 where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / TICKS


def _reset_peak() -> None:
    """Give back what nobody uses, and let the peak of this process begin anew at what it holds then."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # a sandbox may not have it: the peak is then that since the start
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_rss(server: int | None) -> int:
    """Most bytes that this process held since `_reset_peak`, and what its descendants hold now for themselves."""
    rollups = (f"/proc/{pid}/smaps_rollup" for pid in _descendants(server))
    return _bytes_in("/proc/self/status", "VmHWM") + sum(
        _bytes_in(path, "Private_Clean", "Private_Dirty") for path in rollups
    )


def rss() -> int:
    """Bytes of memory that this process holds now."""
    return _bytes_in("/proc/self/status", "VmRSS")


def _bytes_in(path: str, *names: str) -> int:
    try:
        lines = [line.split() for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:  # a process that has ended
        return 0
    return sum(int(line[1]) * 1024 for line in lines if line and line[0].rstrip(":") in names)


@functools.cache
def installed(*packages: str) -> str:
    """The version of the first of these packages that is installed; "" where none is."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return ""


def named(who: str, way: str) -> str:
    """A contestant in its way, as a line says it."""
    return f"{who} ({way})" if way else who


def about_machine() -> dict[str, Any]:
    """Where and with what a race was run."""
    import confluent_kafka

    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _cpu_name(),
        "cpus": whole_cores(),
        "python": platform.python_version(),
        "driver": _driver(),
        "dali": installed("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
        "nvimgcodec": installed("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        "cupy": installed("cupy-cuda12x", "cupy-cuda13x"),
        "torch": installed("torch"),
        "numpy": installed("numpy"),
        "librdkafka": confluent_kafka.libversion()[0],
        "native": used(),
    }


@functools.cache
def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


@functools.cache
def _commit() -> str:
    """Of the tree that this file is kept in, with a "+" where that has changes; else the version that is installed."""
    here, git = Path(__file__), shutil.which("git") or "false"
    for command in (("ls-files", "--error-unmatch", here.name), ("describe", "--always", "--exclude=*", "--dirty=+")):
        line = [git, "-C", str(here.parent), *command]
        done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603  nothing of a user's in it
        if done.returncode:
            return installed("dali-feed")
    return done.stdout.strip()
