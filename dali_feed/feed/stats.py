"""Stats: where the time of a run went, per stage, which stage waited for which, and what may help.

The law of the verdict: it says only what the numbers show. Advice never changes a batch without saying so, and none is
given where a stage has already what it would ask for: more threads only where cores are free for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dali_feed import sync
from dali_feed.records.gauges import CacheStats, KafkaStats, StorageStats
from dali_feed.records.metrics import PREFIX, counter, declarations, derived, gauge, key, metrics, nested, text


@dataclass(frozen=True, slots=True)
class StageStats:
    """What one stage between the source and the training loop did, in seconds of its threads."""

    name: str = key(
        '"read": readers of the source, with what they make of records; "screen": that part of it which makes columns'
        ' and checks headers; "deal": slots, random numbers, inputs of the engine; "engine": decode and transform;'
        ' "finish": batches of columns, and copies to a GPU; "handover": what makes tensors of a batch; "train": the'
        " training loop between two batches. deal and finish share the feed thread, handover and train the loop's",
        "stage",
    )
    threads: int = gauge("how many threads it has")
    samples: int = counter(
        "samples that it worked on; for an engine that does not report on its threads, those that the feed thread"
        " waited for"
    )
    waited: float = counter(
        "time that it waited for input: a reader for its disk, network or broker; deal for records, finish for the"
        " engine, train for batches",
        "waiting_seconds",
        default=0.0,
    )
    worked: float = counter(
        "time that it worked. A reader: its CPU time. An engine that does not report on its threads: seconds that it"
        " took as a whole",
        "working_seconds",
        default=0.0,
    )
    blocked: float = counter(
        "time that it waited for room: a reader without a request, finish until the loop takes a batch. The idle time"
        " of an engine's threads is divided between `waited` and `blocked` as the feed thread's own waits are",
        "blocked_seconds",
        default=0.0,
    )
    busy: float | None = counter("time of its threads that the samples took; None: as `worked`", "", default=None)

    @property
    @derived("ceiling_samples_per_second")
    def rate(self) -> float | None:
        """Samples/s that it could give alone with these threads; None if too little is known."""
        busy = self.worked if self.busy is None else self.busy
        return self.samples * self.threads / busy if self.samples > 0 and busy > 0 else None

    def __str__(self) -> str:
        alone = "" if self.rate is None else f"; alone {self.rate:,.0f} samples/s"
        spent = f"waited {self.waited:.1f} s, worked {self.worked:.1f} s, blocked {self.blocked:.1f} s"
        return f"{self.name:8} {self.threads} thread{'s' if self.threads > 1 else ''}: {spent}{alone}"


@dataclass(frozen=True, slots=True)
class CpuStats:
    """The process's CPU time while passes were under way."""

    cores: float = gauge(
        "cores that the process may use, by its affinity and the limit of its cgroup; such a limit need not be a whole"
        " number",
        default=0.0,
    )
    used: float = counter("CPU time of all its threads", "", default=0.0)
    seconds: float = counter("how long passes were under way", "measured_seconds", default=0.0)

    @property
    @derived("busy_cores")
    def busy(self) -> float:
        """How many cores worked, on average."""
        return self.used / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.busy:.1f} of {self.cores:g} cores busy"


@dataclass(frozen=True, slots=True)
class WaitCause:
    """One reason why the training loop waited, and for how many seconds."""

    cause: str = key(
        '"source", "engine", "feed" (the feed thread was at work), "dead letters", "repair" (of a bad record),'
        " \"hand-over\" (the batch was ready, and the loop's thread waited for a processor or for Python's lock),"
        ' "garbage" (Python\'s collector), "first batch" (of a pass, but for its source), "torch" (its own'
        ' DataLoader) or "unknown"'
    )
    seconds: float = counter("how long the training loop waited for this reason", default=0.0)

    def __str__(self) -> str:
        return f"{self.cause}: {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class Running:
    """Settings of the running loader that a user can change."""

    engine: str = text('which engine makes batches: "host", "dali" or "torch"')
    on_gpu: bool = gauge("whether batches are made on a GPU", default=False)
    prefetch: int = gauge("batches in flight in the engine, and as many finished ones", "prefetch_batches")
    memory: int = gauge("bytes that encoded images may take", "memory_limit_bytes")


@dataclass(frozen=True, slots=True)
class Stats:
    """What a loader has counted and measured since it was made. Times are in seconds, sizes in bytes."""

    samples: int = counter("samples handed to the training loop")
    batches: int = counter("batches handed to the training loop")
    absent: int = counter("records that were absent (an offset without a record) and were replaced", "absent_records")
    bad: int = counter("records found bad, once per epoch each", "bad_records")
    bytes_read: int = counter(
        "bytes of encoded images read, counted some time after they are used; 0 for a mapped table", "read_bytes"
    )
    slab_peak: int = gauge("most memory that encoded images took at once", "slab_peak_bytes")
    feed_cpu: float = counter(
        "CPU time of the feed thread: header checks, random numbers, hand-over to the engine",
        "feed_cpu_seconds",
        default=0.0,
    )
    read_wait: float = counter("time the feed thread waited for the source", "read_wait_seconds", default=0.0)
    engine_wait: float = counter(
        "time the feed thread waited for the engine; where torch's own DataLoader runs a dataset, the loop's time in"
        " next()",
        "engine_wait_seconds",
        default=0.0,
    )
    trainer_wait: float = counter(
        "time the feed thread waited for the training loop", "trainer_wait_seconds", default=0.0
    )
    letters_wait: float = counter(
        "time the feed thread waited until dead letters were written", "letters_wait_seconds", default=0.0
    )
    step_wait_p50: float = gauge(
        "what the training loop waits per step: half of the last steps waited at most this",
        "step_wait_p50_seconds",
        default=0.0,
    )
    step_wait_p99: float = gauge(
        "99 of 100 of the last steps waited at most this", "step_wait_p99_seconds", default=0.0
    )
    recent_bad: tuple[tuple[str, str], ...] = text("the last bad records, (where, reason)", "", default=())
    kafka: KafkaStats | None = nested(
        KafkaStats, "what the consumers of a Kafka source measure; None: another source, or nothing yet"
    )
    readers: int = gauge("threads that read the source now; 0 before the first batch")
    storage: tuple[StorageStats, ...] = nested(
        StorageStats,
        "what was measured of reading files, one for each store that was read; () if the source reads no files",
        default=(),
    )
    cache: CacheStats | None = nested(CacheStats, "of `Tuning(cache=...)`: hits and what is kept; None: there is none")
    stages: tuple[StageStats, ...] = nested(
        StageStats, "in order, from the source to the loop; () before the first batch", default=()
    )
    cpu: CpuStats | None = nested(CpuStats, "how busy the process's processors were while passes were under way")
    step_wait: float = counter(
        "how long the training loop waited for its batches, in all", "step_wait_seconds", default=0.0
    )
    wait_causes: tuple[WaitCause, ...] = nested(
        WaitCause, "why it waited, the longest first; their sum is `step_wait`", default=()
    )
    running: Running | None = nested(Running, "settings that are in use; None before the first batch")
    at: float = field(default_factory=sync.monotonic, compare=False)

    @property
    def verdict(self) -> str:
        """What the training loop waits for, in a sentence; the last line of the text too."""
        return verdict(self).sentence

    @property
    @derived(kind="text")
    def bottleneck(self) -> str:
        """What holds the loop up most: a cause of `WaitCause`, "collate" (making tensors of batches, as a collate_fn
        does), "trainer" where all these are almost nothing, or "".
        """
        return verdict(self).bottleneck

    def scalars(self, before: Stats | None = None) -> dict[str, float]:
        """Numbers by name, to go beside the loss into TensorBoard or wandb.

        Gauges as they are, counters as totals; with stats of before also as growth per second since then:
        `samples_per_second`. What has a label has it behind its name, `storage_read_p99_seconds/local`. Single
        partitions and brokers, which may be thousands, are left out.

        Args:
            before: of the same loader, taken earlier
        """
        flat: dict[str, float] = {}
        seconds = 0.0 if before is None else self.at - before.at
        for metric in metrics(Stats):
            labels = {*metric.labels}
            if metric.kind == "histogram" or metric.name.endswith("_info") or {"partition", "broker"} & labels:
                continue
            name = metric.name.removeprefix(PREFIX).removesuffix("_total" if metric.kind == "counter" else "")
            known = {} if before is None else {each.labels: each.value for each in metric.points(before)}
            for each in metric.points(self):
                flat["/".join((name, *each.labels))] = each.value
                if metric.kind == "counter" and seconds > 0:
                    grown = each.value - known.get(each.labels, 0.0)
                    flat["/".join((f"{name}_per_second", *each.labels))] = grown / seconds
        return flat

    def __str__(self) -> str:
        shown = [name for name, each in declarations(Stats).items() if each.kind in {"counter", "gauge"}]
        shown.insert(shown.index("readers"), "bottleneck")
        lines = [f"{name:14} {getattr(self, name)}" for name in shown]
        lines += [] if self.kafka is None else [f"{'kafka':14} {self.kafka}"]
        lines += [f"{'storage':14} {line}" for each in self.storage for line in str(each).splitlines()]
        lines += [] if self.cache is None else [f"{'cache':14} {self.cache}"]
        lines += [f"{'':14} {where}: {reason}" for where, reason in self.recent_bad[-5:]]
        lines += [f"{'stage':14} {each}" for each in self.stages]
        lines += [f"{'wait for':14} {each}" for each in self.wait_causes]
        lines += [] if self.cpu is None else [f"{'cpu':14} {self.cpu}"]
        return "\n".join([*lines, f"{'verdict':14} {self.verdict}"])


# The verdict: which stage the training loop waits for, in a sentence, and what may help. Pure.


LARGE = 1024  # samples of a batch: the fixed costs of one are little in it
LITTLE = 0.05  # share of the loop's time: who waits less is not held up by the loader
FREE = 0.9  # of the cores: above it none is free
TAKEN = 0.6  # of what busy threads could use: below it something else uses the cores
IDLE = 0.5  # of the readers' time without a request: more readers would have none either
LATENT = 0.7  # of a read's time off the processor: it waits for a disk, a network or a broker
FULL = 0.8  # of the memory: more reads have no room

_BOUND = {
    "source": ("source-bound", "reading"),
    "engine": ("decode-bound", "the decoder"),
    "feed": ("feed-bound", "the loader's own thread: header checks, random numbers, making batches"),
    "dead letters": ("dead-letter-bound", "writing dead letters"),
    "repair": ("repair-bound", "running batches with bad records again"),
    "garbage": ("garbage-bound", "Python's garbage collector"),
    "first batch": ("start-bound", "the first batches of passes"),
    "torch": ("torch-bound", "torch's own DataLoader, whose stages cannot be measured"),
    "hand-over": (
        "processor-bound",
        "taking batches that are ready: its thread waits for a processor or for Python's lock",
    ),
    "unknown": ("unclear", "nothing that was measured"),
}

_ALWAYS = {
    "feed": ("a larger batch_size: its fixed costs per sample are smaller", "fewer columns, if some are not used"),
    "dead letters": ("a dead-letter sink that is faster: a folder on a local disk",),
    "repair": ("leaving out the records in recent_bad: each one makes a batch run again",),
    "garbage": (
        "gc.freeze() after the model is made, so that a collection has fewer objects to check",
        "decode=bytes for columns of small Bytes: it checks every view in a batch, and no bytes",
    ),
    "first batch": ("longer passes: each begins with a wait for its first batch",),
    "torch": ("num_workers, or a source of ours in place of the dataset",),
}

_COLLATE = (
    "a transform= or columns= in place of collate_fn, or of functions at its end: the loader's threads do that work",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the training loop waits for, and what may help.

    bottleneck  a cause of `WaitCause`; "collate": making tensors of batches, as a collate_fn does, takes the loop most
                time; "trainer": the loop waits for almost nothing; "" before the first batch
    share       0..1: its part of the loop's wait; for "collate" of its time, for "trainer" of that without waits
    sentence    the whole verdict in words
    advice      what may help, the best first; () if the numbers do not show it
    """

    bottleneck: str
    share: float
    sentence: str
    advice: tuple[str, ...]


def verdict(stats: Stats) -> Verdict:
    """What the numbers say.

    Args:
        stats: of a loader or feed, `stats()`.
    """
    stages = {stage.name: stage for stage in stats.stages}
    train, handover = stages.get("train"), stages.get("handover")
    if not stats.batches or train is None:
        return Verdict("", 0.0, "nothing is known yet: no batch was taken", ())
    works = train.worked + (0.0 if handover is None else handover.worked)
    whole = works + stats.step_wait
    cores = "" if stats.cpu is None or stats.cpu.seconds <= 0 else f"; {stats.cpu}"
    waits = stats.step_wait / whole if whole > 0 else 0.0
    if handover is not None and handover.worked > max(train.worked, stats.step_wait):
        share = handover.worked / whole
        said = f"collate-bound: the loop spends {share:.0%} of its time making tensors of batches{cores}"
        return Verdict("collate", share, f"{said}{_could(train, whole)}; try {_COLLATE[0]}", _COLLATE)
    if waits < LITTLE or not stats.wait_causes:
        rate = _alone(stages)
        could = "" if rate is None else f"; the loader alone could give {rate:,.0f} samples/s"
        said = f"training-bound: the loop waits {waits:.0%} of its time for batches{cores}{could}"
        return Verdict("trainer", 1 - waits, said, ())
    most = max(stats.wait_causes, key=lambda each: each.seconds)
    share = min(1.0, most.seconds / stats.step_wait) if stats.step_wait > 0 else 0.0
    bound, who = _BOUND[most.cause]
    advice = _advice(most.cause, stats, stages)
    tried = f"; try {advice[0]}" if advice else ""
    said = f"{bound}: {share:.0%} of the step wait is {who}{cores}{_could(train, whole)}{tried}"
    return Verdict(most.cause, share, said, advice)


def _alone(stages: dict[str, StageStats]) -> float | None:
    """Samples/s of the slowest part of the loader, where all are known: readers, engine, feed thread, hand-over."""
    parts = [stages[name].rate for name in ("read", "engine") if name in stages]
    mine = [stages[name] for name in ("deal", "finish") if name in stages]
    spent = sum(1 / stage.rate for stage in mine if stage.rate)  # seconds a sample; 0: too little to say
    known = [rate for rate in parts if rate is not None] + ([1 / spent] if spent > 0 else [])
    if len(known) < len(parts) + 1:
        return None
    hands_over = stages["handover"].rate if "handover" in stages else None
    return min(known) if hands_over is None else min(*known, hands_over)


def _could(train: StageStats, whole: float) -> str:
    """How fast the loop is, and would be if batches cost it nothing."""
    alone = train.rate
    if alone is None or whole <= 0 or not train.samples:
        return ""
    return f"; the loop gets {train.samples / whole:,.0f} samples/s and could take {alone:,.0f}"


def _advice(cause: str, stats: Stats, stages: dict[str, StageStats]) -> tuple[str, ...]:
    if cause == "source" and "read" in stages:
        return tuple(_for_source(stats, stages["read"]))
    if cause == "engine" and "engine" in stages and stats.running is not None:
        return tuple(_for_engine(stats, stages["engine"], stats.running))
    large = cause == "feed" and stats.samples >= LARGE * stats.batches
    return _ALWAYS.get(cause, ())[large:]


def _for_source(stats: Stats, read: StageStats) -> Sequence[str]:
    spent = read.waited + read.worked + read.blocked
    reads = read.waited + read.worked
    if spent > 0 and read.blocked > IDLE * spent:
        full = stats.running is not None and stats.slab_peak > FULL * stats.running.memory > 0
        return ("Tuning(memory=...): readers have no room to read ahead",) if full else ()
    if reads > 0 and read.waited > LATENT * reads:
        more = f"Tuning(readers={2 * read.threads}): reads spend {read.waited / reads:.0%} of their time waiting"
        return (more, "Tuning(cache=...), for what is read again in later epochs")
    if _free(stats.cpu):
        return (f"Tuning(readers={read.threads + 1}): readers are at work all the time, and a core is free",)
    return ("fewer decoder threads, or more cores: readers want processor time",)


def _for_engine(stats: Stats, engine: StageStats, running: Running) -> Sequence[str]:
    advice, cpu = [], stats.cpu
    if cpu is not None and engine.threads < int(cpu.cores) and _free(cpu):
        advice.append(f"Tuning(threads={int(cpu.cores)}): it has {engine.threads} of {cpu.cores:g} cores")
    if running.on_gpu:
        advice.append("Decode(hardware=...): a share for the GPU's JPEG engine, which changes pixels")
        advice.append("Tuning(cache=Cache(device=...)): later epochs decode nothing, if only flips are random")
        return advice
    if running.engine == "host":
        spent = engine.waited + engine.worked + engine.blocked
        at_work = spent > 0 and engine.worked > FULL * spent
        if cpu is not None and cpu.busy < TAKEN * min(cpu.cores, engine.threads) and at_work:
            advice.append("freeing the cores: its threads have work, but something else uses the processors")
        advice.append("Tuning(cache=Cache(..., pixels=True)): later epochs decode nothing, where the images fit")
    return advice


def _free(cpu: CpuStats | None) -> bool:
    return cpu is not None and cpu.busy < FREE * cpu.cores
