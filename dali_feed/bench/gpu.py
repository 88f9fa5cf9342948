"""`dali-feed bench gpu`: is our way right on this GPU, how fast is it, and so what; each part a process of its own.

The law: a part that crashes, hangs or is cut costs itself alone. Its line is written when it ends, and a later run does
not make again what was right or measured, as long as machine, versions and sizes are the same. Where something is wrong
nothing is timed.

`python -m dali_feed.bench.gpu PART JOB SECONDS` is what runs in each process; it prints the part's line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from dali_feed.bench.data import BenchJob, Data, Topic
from dali_feed.bench.runner import RIGHT, UNCHECKED, WRONG, Contestant, Race, Ratio, about_machine, race
from dali_feed.options import whole_cores

MARGIN = 15.0  # seconds of a part that its process needs to begin and to end
SHARES = (0.65, 1.0)  # of the JPEGs, for the JPEG engine; DALI's own default is the first
THREADS = 16, 20, 24  # of a GPU's decoder, beside the number that it has by itself
SANITIZED = 50.0  # seconds that each of the sanitizer's tools may take
ALL_SECONDS = 585.0  # of a run: under ten minutes


@dataclass(frozen=True, slots=True)
class GpuPart:
    """A check, or a race.

    Attributes:
        name: as a line says it.
        batch: images of one.
        limit: seconds after which its process is ended.
        races: it measures, which is done where all checks have gone well.
    """

    name: str
    batch: int
    limit: float = 60.0
    races: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything: on a GPU, or at toy size where the CPU rehearses it."""

    images: int
    batches: tuple[int, ...]  # of the loaders' races; of checks the first
    seconds: float
    rounds: int


ON_GPU = Sizes(512, (64, 256), 1.5, 3)
TOY = Sizes(24, (4,), 0.05, 1)


def sizes_of(device: str) -> Sizes:
    """Those of that device."""
    return TOY if device == "cpu" else ON_GPU


def parts(device: str) -> list[GpuPart]:
    """All of them, in their order."""
    batches, least = sizes_of(device).batches, min(sizes_of(device).batches)
    checks = ("set-up", "kernels", "sanitizer", "pixels", "batches", "torn", "reuse", "waits")
    chosen = [GpuPart(name, least, 120.0 if name == "sanitizer" else 60.0) for name in checks]
    chosen += [] if device == "cpu" else [GpuPart("bandwidth", 256, races=True)]
    chosen += [GpuPart(f"loader {batch}", batch, 130.0, races=True) for batch in batches]
    largest = max(batches)
    return [*chosen, GpuPart("train", largest, 90.0, races=True), GpuPart("settings", largest, 130.0, races=True)]


def _line(name: str, job: BenchJob, kind: str = "check", unit: str = "", shown: Sequence[str] = ()) -> Race:
    data = {"data": job.data.name, "images": job.data.count, "mean bytes": job.data.mean_bytes}
    how = {"device": job.device, "threads": job.threads, "batch": job.batch, "crop": job.crop}
    return Race(kind, unit, list(shown), about_machine() | data | how | {"part": name})


def same_run(one: Race, other: Race) -> bool:
    """Whether two lines are of one run: the same part, machine, versions and sizes."""
    any_end = {"date": "", "outcome": ""}
    return one.about | any_end == other.about | any_end


def _is_over(line: Race) -> bool:
    """Whether its part need not be made again. What crashed or was WRONG may be better on a machine less busy."""
    return bool(line.rows) or line.about.get("outcome") == RIGHT


# In a process of its own.


def _check(name: str, job: BenchJob, _: float) -> Race:
    from dali_feed.bench.right import CHECKS, outcome

    line = _line(name, job)
    line.about["outcome"], sentence = outcome({**CHECKS, "sanitizer": sanitizer}[name], job)
    line.findings.append(sentence)
    return line


def sanitizer(job: BenchJob) -> str:
    """Kernels touch their arrays alone, and no two threads the same: by `compute-sanitizer`, where it is installed."""
    from dali_feed.bench.right import NotCheckedError, WrongError, gpu_of

    gpu_of(job)
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise NotCheckedError("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    for tool, *options in (("memcheck", "--report-api-errors", "no"), ("racecheck",)):  # CuPy and torch ask and look
        line = [program, "--tool", tool, *options, *child("kernels", job)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=SANITIZED)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise NotCheckedError(f"compute-sanitizer's {tool} had no end after {SANITIZED:.0f} s") from error
        last = " ".join((done.stdout + done.stderr).split()[-40:])
        errors = re.search(r"SUMMARY: (\d+) (?:error|hazard)", done.stdout + done.stderr)
        if errors is None:
            raise NotCheckedError(f"compute-sanitizer's {tool} does not run here: {last}")
        if errors[1] != "0":
            raise WrongError(f"compute-sanitizer's {tool} found {errors[1]}: {last}")
    return "compute-sanitizer finds nothing in the kernels' launches"


def _bandwidth(name: str, job: BenchJob, until: float) -> Race:
    from dali_feed.bench import kernels

    result, rounds = _line(name, job, "kernels", kernels.UNIT, kernels.SHOWN), sizes_of(job.device).rounds
    for case, chosen in kernels.contestants(list(kernels.CASES), job.batch, job.device):
        race(result, chosen, case=case, rounds=rounds, seconds=0.01, until=until)
    return result


def _loader(name: str, job: BenchJob, until: float) -> Race:
    from dali_feed.bench import loading
    from dali_feed.bench.ours import ceiling, our_contestants
    from dali_feed.bench.peers import dali_peer, torch_peer

    sizes, chosen, without = sizes_of(job.device), list[Contestant](), _no_jpeg_engine(job)
    shares = [("dali", share) for share in (SHARES if job.batch == sizes.batches[-1] else ())]
    for engine, share in (("dali", 0.0), ("host", 0.0), *shares):
        ours = replace(job, engine=engine, hardware=share)
        label, why = f"{engine}, JPEG engine {share}" if share else engine, without if share else None
        (tar,), top = our_contestants(ours, "tar"), ceiling(ours)
        chosen += [
            replace(tar, name=label, beside=f"ceiling of {label}", unable=why),
            replace(top, name=f"ceiling of {label}", unable=why),
        ]
    torch, reader, whole = torch_peer(job), dali_peer(job), dali_peer(job, 1.0)
    chosen += [replace(torch, ways=torch.ways[:2]), replace(reader, name="DALI's reader", ways=reader.ways[:1])]
    if shares:
        why = whole.unable or without
        chosen.append(replace(whole, name="DALI's reader, JPEG engine 1.0", ways=whole.ways[:1], unable=why))
    shown = ["who", "way", "images/s", "least", "most", "of it", "of torch", "cpu us", "p99 ms", "peak MB", "busy"]
    result = _line(name, job, "loader", loading.UNIT, shown)
    race(result, chosen, rounds=sizes.rounds, seconds=sizes.seconds, until=until)
    return result


def _train(name: str, job: BenchJob, until: float) -> Race:
    from dali_feed.bench import training

    sizes = sizes_of(job.device)
    result = _line(name, job, "train", training.UNIT, training.SHOWN)
    chosen = [replace(each, ways=each.ways[:1]) for each in training.contestants(job, training.network(job.device))]
    race(result, chosen, rounds=sizes.rounds, seconds=2 * sizes.seconds, until=until)
    result.findings += training.findings(result)
    return result


def _no_jpeg_engine(job: BenchJob) -> str | None:
    from dali_feed.bench.ours import cuda_index
    from dali_feed.bench.right import jpeg_engine

    return None if jpeg_engine(cuda_index(job.device)) else "no JPEG engine here"


def _deep(**options: Any) -> Any:
    """DALI's pipeline with a queue of three, which is fed as ours with one is: a batch a run."""
    from nvidia.dali import Pipeline

    pipe = Pipeline(**options | {"prefetch_queue_depth": 3})
    pipe._first_iter = False  # else the first run would begin three, of which two have no batch
    return pipe


def _by_size(payload: Any, *, decode: Callable[..., Any], **options: Any) -> Any:
    """An image from the JPEG engine, or from the GPU's cores, as its size in bytes says: whatever stands beside it."""
    from nvidia.dali import fn

    options.pop("hw_decoder_load", None)
    engines = (payload.shape()[0] & 127) < round(128 * SHARES[0])
    mine, others = fn._conditional.split(payload, predicate=engines)
    done = [decode(each, hw_decoder_load=load, **options) for each, load in ((mine, 1.0), (others, 0.0))]
    return fn._conditional.merge(*done, predicate=engines)


def settings(job: BenchJob) -> list[Contestant]:
    """Our engine on DALI, fed from memory, and our loader, each as it is and with what a GPU may like better."""
    from unittest.mock import patch

    from nvidia.dali.fn import decoders

    from dali_feed.bench.data import payloads_of
    from dali_feed.bench.ours import ceiling, our_contestants
    from dali_feed.engines.dali import images
    from dali_feed.screen.screen import screen

    job, cores, decode = replace(job, engine="dali"), whole_cores(), decoders.image
    without = "needs a GPU" if job.device == "cpu" else None
    high, wide = screen([memoryview(each) for each in payloads_of(job.data)]).sizes.max(axis=0).tolist()
    hints = partial(decode, preallocate_height_hint=high, preallocate_width_hint=wide)
    by_size, pinned = partial(_by_size, decode=decode), partial(vars(images)["TensorCPU"], is_pinned=True)
    half, whole = replace(job, threads=max(1, job.threads // 2)), replace(job, hardware=1.0)
    no_engine, jpeg_engine = without or _no_jpeg_engine(job), "JPEG engine 1.0"
    affine = partial(patch.dict, images.PIPELINE_OPTIONS, set_affinity=True)
    chosen = list[Contestant]()

    def put(module: Any, name: str, new: Any) -> Callable[[], Any]:
        return lambda: patch.object(module, name, new)

    def trial(name: str, contestant: Contestant, unable: str | None = None, beside: str = "engine") -> None:
        chosen.append(replace(contestant, name=name, role="ours", beside=beside, unable=unable))

    trial("engine", ceiling(job))
    for threads in THREADS:
        unable = None if threads <= cores else f"needs {threads} CPUs; this process has {cores}"
        trial(f"{threads} threads", ceiling(replace(job, threads=threads)), unable)
    trial("affinity", ceiling(job, within=affine))
    trial("3 batches in flight", ceiling(job, prefetch=3))
    trial("queue of 3", ceiling(job, prefetch=3, within=put(images, "Pipeline", _deep)), beside="3 batches in flight")
    trial(jpeg_engine, ceiling(whole), no_engine)
    trial("its memory taken beforehand", ceiling(whole, within=put(decoders, "image", hints)), no_engine, jpeg_engine)
    # Each decoder has threads of its own.
    trial("both decoders, by size", ceiling(half, within=put(decoders, "image", by_size)), no_engine)
    trial("page-locked payloads", ceiling(job, pinned=True, within=put(images, "TensorCPU", pinned)), without)
    trial("two engines of half the threads", ceiling(half, engines=2))
    for prefetch in (2, 4, 8):
        (tar,) = our_contestants(job, "tar", prefetch=prefetch)
        chosen.append(replace(tar, name=f"loader, prefetch {prefetch}", beside="loader, prefetch 2"))
    return chosen


def _settings(name: str, job: BenchJob, until: float) -> Race:
    from dali_feed.bench import loading

    shown = ["who", "images/s", "least", "most", "of it", "cpu us", "peak MB", "busy"]
    result, sizes = _line(name, job, "settings", loading.UNIT, shown), sizes_of(job.device)
    race(result, settings(job), rounds=sizes.rounds, seconds=sizes.seconds, until=until)
    for row in result.rows:
        ratio = result.ratio(row, row.beside)
        if ratio is not None and ratio.least > 1.02 and len(row.rates) > 1:
            every = f"in each of {len(row.rates)} rounds"
            result.findings.append(f"{row.who} is {ratio.median:.2f} times {row.beside}, {every}")
    return result


def _run(name: str, job: BenchJob, seconds: float) -> Race:
    kinds = {"bandwidth": _bandwidth, "loader": _loader, "train": _train, "settings": _settings}
    return kinds.get(name.split(" ", 1)[0], _check)(name, job, time.perf_counter() + seconds - MARGIN)


def _job_of(text: str) -> BenchJob:
    values: dict[str, Any] = json.loads(text)
    data = values.pop("data")
    for name in ("shards", "linked"):
        data[name] = tuple(map(Path, data[name]))
    topic = None if data["topic"] is None else Topic(**data["topic"])
    return BenchJob(Data(**data | {"files": Path(data["files"]), "topic": topic}), **values)


# In the one that runs them.


def child(name: str, job: BenchJob, seconds: float = 60.0) -> list[str]:
    """The command that runs a part."""
    facts = json.dumps(dataclasses.asdict(job), default=str)
    return [sys.executable, "-P", "-m", "dali_feed.bench.gpu", name, facts, str(seconds)]


def ended(part: GpuPart, job: BenchJob, seconds: float) -> Race:
    """The line of a part, run in a process of its own, with at most so many seconds; of one that came to no end too."""
    reason, out = f"had no end after {seconds:.0f} s", ""
    line, pipe = child(part.name, job, seconds), subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(line, stdout=pipe, stderr=errors, text=True, process_group=0) as process:  # noqa: S603
            try:
                out, reason = process.communicate(timeout=seconds)[0], ""
            except subprocess.TimeoutExpired:
                pass
            finally:
                with suppress(ProcessLookupError):  # its workers too, where it has ended without them
                    os.killpg(process.pid, signal.SIGKILL)
        lines = [each for each in out.splitlines() if each.startswith("{")]
        if process.returncode == 0 and lines:
            return Race.from_json(lines[-1])
        errors.seek(0)
        last = " ".join([each for each in errors.read().splitlines() if each.strip()][-1:]) or "no message"
    code = process.returncode
    reason = reason or (f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}")
    result = _line(part.name, job)
    result.about["outcome"] = UNCHECKED if part.races else WRONG
    result.findings.append(f"the process {reason}; its last words: {last}")
    return result


def run(
    device: str,
    job: BenchJob,
    *,
    known: Sequence[Race] = (),
    seconds: float = ALL_SECONDS,
    begins: Callable[[GpuPart], None] = lambda _: None,
) -> Iterator[tuple[Race, bool]]:
    """Each part's line, when it has ended, with whether it is `known`, of an earlier run; until `seconds` are over.

    Of those known only lines that are right or have rows count: any other part is made again. Where a check was WRONG,
    no race begins.
    """
    until, wrong = time.monotonic() + seconds, False
    for part in parts(device):
        own = replace(job, batch=part.batch)
        blank = _line(part.name, own)
        line = next((each for each in known if _is_over(each) and same_run(blank, each)), None)
        left = until - time.monotonic()
        if line is not None:
            yield line, True
        elif (part.races and wrong) or left < 2 * MARGIN:
            continue
        else:
            begins(part)
            line = ended(part, own, min(part.limit, left))
            yield line, False
        wrong |= line.about.get("outcome") == WRONG
        if wrong and part.name == "set-up":  # nothing else could be right
            return


def so(lines: Sequence[Race], device: str) -> list[str]:
    """What it comes to, in three sentences: is it right, what is fastest, and what is gained beside torch."""
    checks = {line.about["part"]: line for line in lines if "outcome" in line.about and line.kind == "check"}
    wrong = [name for name, line in checks.items() if line.about["outcome"] == WRONG]
    good = sum(line.about["outcome"] == RIGHT for line in checks.values())
    if wrong:
        return [f"WRONG on {device}: {', '.join(wrong)}; nothing is timed before that is mended."]
    left = [part.name for part in parts(device) if part.name not in {line.about["part"] for line in lines}]
    start = f"Right on {device}: {good} of {len(checks)} checks, the others cannot be made here."
    if device == "cpu":
        start = (
            f"Rehearsed on the CPU: {good} of {len(checks)} checks went well, the others need a GPU; no figure counts."
        )
    if left:
        start += f" Not begun, as the time was over: {', '.join(left)}; the same call with the same --out goes on."
    says, races = [start], [line for line in lines if line.kind == "loader" and line.rows]
    fast = [(line, row) for line in races for row in line.rows if row.role == "ours"]
    if not fast:
        return says
    line, row = max(fast, key=lambda each: median(each[1].rates))
    engine, _, share = row.who.partition(", JPEG engine ")
    decode = f'Decode(engine="{engine}"{f", hardware={share}" if share else ""})'
    of = line.ratio(row, row.beside)
    ceiling = "" if of is None else f", {of.median:.2f} of its ceiling"
    rate = f"{median(row.rates):,.0f} images/s at batch {line.about['batch']}"
    says.append(f"{decode} is the fastest: {rate}{ceiling}.")
    return [*says, _gain(line.ratio(row, "torch"), len(row.rates))]


def _gain(ratio: Ratio | None, rounds: int) -> str:
    if ratio is None:
        return "torch's DataLoader was not measured beside it."
    if ratio.least > 1:
        every = f"{ratio.least:.1f} or more in each of {rounds} rounds" if rounds > 1 else "in a single round"
        return f"{ratio.median:.1f} times torch's DataLoader, {every}."
    return f"No gain here: {ratio.median:.2f} times torch's DataLoader, {ratio.least:.2f} to {ratio.most:.2f}."


if __name__ == "__main__":
    sys.stdout.write(_run(sys.argv[1], _job_of(sys.argv[2]), float(sys.argv[3])).to_json() + "\n")
