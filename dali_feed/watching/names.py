"""What the fields of Stats are to who watches: what only grows, what goes up and down, in which unit.

A field that has no line here is a gauge of its own name, so that a new one is seen before anybody thought of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["DERIVED", "SPREAD", "Form", "Sort", "form_of", "told"]

Sort = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a figure is.

    sort     "counter": it only grows while its loader lives; "gauge": it goes up and down
    name     of the metric without what stands before it: with its unit, and for a counter with _total
    about    one line of help
    """

    sort: Sort
    name: str
    about: str


def _grows(name: str, about: str) -> Form:
    return Form("counter", f"{name}_total", about)


def _is(name: str, about: str) -> Form:
    return Form("gauge", name, about)


_STATS = {
    "samples": _grows("samples", "Samples handed to the training loop."),
    "batches": _grows("batches", "Batches handed to the training loop."),
    "absent": _grows("absent_records", "Positions without a record, whose slot another record took."),
    "bad": _grows("bad_records", "Records found bad, once per epoch each."),
    "bytes_read": _grows("read_bytes", "Bytes of encoded images read."),
    "slab_peak": _is("slab_peak_bytes", "Most memory that encoded images took at once."),
    "feed_cpu": _grows("feed_cpu_seconds", "CPU time of the feed thread."),
    "read_wait": _grows("read_wait_seconds", "Time that the feed thread waited for the source."),
    "engine_wait": _grows("engine_wait_seconds", "Time that the feed thread waited for the engine."),
    "trainer_wait": _grows("trainer_wait_seconds", "Time that the feed thread waited for the training loop."),
    "letters_wait": _grows("letters_wait_seconds", "Time that the feed thread waited for dead letters to be taken."),
    "step_wait_p50": _is("step_wait_p50_seconds", "Half of the last steps waited at most this for their batch."),
    "step_wait_p99": _is("step_wait_p99_seconds", "99 of 100 of the last steps waited at most this for their batch."),
    "readers": _is("readers", "Threads that read the source now."),
    "fetch_times": _is("fetch_times", "How many times its usual amount a reader fetches at once."),
    "step_wait": _grows("step_wait_seconds", "Time that the training loop waited for its batches."),
    "bottleneck": _is("bottleneck_info", "1 for the stage that is the slowest of all."),
}
_KAFKA = {
    "topic": _is("topic_info", "1 for the topic that is read."),
    "readers": _is("consumers", "Consumers that have given statistics."),
    "queue_records": _is("queue_records", "Records in the queues of all consumers."),
    "queue_bytes": _is("queue_bytes", "Bytes of the payloads in these queues."),
    "rebalances": _grows("rebalances", "Times that a group's partitions were assigned again."),
    "at": _is("statistics_timestamp_seconds", "Unix time of the oldest of the consumers' figures."),
    "lag": _is("lag_records", "Offsets that are still to come."),
    "lag_seconds": _is("lag_seconds", "How long ago the last record was made that was read, of the worst partition."),
    "rate": _is("receive_bytes_per_second", "Bytes per second between the last two statistics."),
}
_PARTITION = {
    "position": _is("position", "Offset of the next record for the training loop."),
    "end": _is("end", "Offset where the partition ends."),
    "low": _is("low", "First offset that the broker keeps."),
    "records": _grows("received_records", "Records that the brokers sent."),
    "size": _grows("received_bytes", "Bytes of these records."),
    "rate": _is("receive_bytes_per_second", "Bytes per second between the last two statistics."),
    "leader": _is("leader", "Id of the broker that is asked."),
    "seconds": _is("lag_seconds", "How long ago the last record was made that was read."),
    "lag": _is("lag_records", "Offsets that are still to come."),
    "headroom": _is("headroom_records", "Offsets between the first that is kept and the position."),
}
_BROKER = {
    "state": _is("state_info", "1 for the state of the worst connection."),
    "latency": _is("latency_seconds", "Mean time from a request to its whole answer."),
    "latency_p99": _is("latency_p99_seconds", "99 of 100 answers came within it."),
    "throttle": _is("throttle_seconds", "Mean time that the broker held an answer back."),
    "fetches": _grows("fetches", "Fetch requests."),
    "disconnects": _grows("disconnects", "Connections that were lost or closed."),
}
_TARGET = {
    "reads": _grows("reads", "Reads that came to an end."),
    "bytes": _grows("read_bytes", "Bytes that they gave."),
    "seconds": _grows("read_seconds", "Sum of their times; two at once count twice."),
    "queued": _is("queued_reads", "Reads that wait or are under way."),
}
_STORAGE = {
    **_TARGET,
    "latency": _is("read_duration_seconds", "Reads by the time that they took."),
    "failures": _grows("failures", "Reads that ended in an error."),
    "hits": _grows("cache_hits", "Reads that the store's cache had."),
    "misses": _grows("cache_misses", "Reads that the store's cache had not."),
    "p50": _is("read_p50_seconds", "Half of the reads took at most this: a border of a class."),
    "p99": _is("read_p99_seconds", "99 of 100 reads took at most this: a border of a class."),
}
_CACHE = {
    "hits": _grows("hits", "Records that were given from memory or from the disk."),
    "misses": _grows("misses", "Records that were read from the source."),
    "records": _is("records", "Records that are kept now."),
    "held": _is("held_bytes", "Memory that they take."),
    "limit": _is("limit_bytes", "Memory that they may take."),
    "disk_records": _is("disk_records", "Records that are kept on the disk now."),
    "disk_held": _is("disk_held_bytes", "Disk that they take."),
    "disk_limit": _is("disk_limit_bytes", "Disk that records may take."),
    "damaged": _grows("damaged", "Records on the disk that were not what was kept."),
    "device_hits": _grows("device_hits", "Images that were on the device."),
    "device_misses": _grows("device_misses", "Images that the engine made, beside those on the device."),
    "device_records": _is("device_records", "Images that are kept on the device now."),
    "device_held": _is("device_held_bytes", "The device's memory that they take."),
    "device_limit": _is("device_limit_bytes", "The device's memory that they may take."),
}
_STAGE = {
    "threads": _is("threads", "Threads of the stage."),
    "samples": _grows("samples", "Samples that it worked on."),
    "waited": _grows("waiting_seconds", "Time that its threads waited for input."),
    "worked": _grows("working_seconds", "Time that its threads were at work."),
    "blocked": _grows("blocked_seconds", "Time that its threads waited for room."),
    "rate": _is("ceiling_samples_per_second", "Samples per second that it alone could give."),
}
_CPU = {
    "cores": _is("cores", "Cores that the process may use."),
    "busy": _is("busy_cores", "Cores that were busy on average while passes were under way."),
    "seconds": _grows("measured_seconds", "Time that passes were under way."),
}
_CAUSE = {"seconds": _grows("seconds", "Time that the training loop waited because of this.")}
_RUNNING = {
    "prefetch": _is("prefetch_batches", "Batches in flight in the engine, and as many finished ones."),
    "memory": _is("memory_limit_bytes", "Memory that encoded images may take."),
}
_GPU = {
    "busy": _is("busy_ratio", "Share of the last second or less in which a kernel ran."),
    "used": _is("memory_used_bytes", "Memory of the GPU that is in use, by any process."),
    "total": _is("memory_total_bytes", "Memory of the GPU."),
}
_FORMS: dict[str, Mapping[str, Form]] = {
    "Stats": _STATS,
    "KafkaStats": _KAFKA,
    "PartitionStats": _PARTITION,
    "BrokerStats": _BROKER,
    "StorageStats": _STORAGE,
    "TargetStats": _TARGET,
    "CacheStats": _CACHE,
    "GpuStats": _GPU,
    "StageStats": _STAGE,
    "CpuStats": _CPU,
    "WaitCause": _CAUSE,
    "Running": _RUNNING,
}
DERIVED = {  # properties that are told too: who watches could not work them out, or would have to
    "KafkaStats": ("lag", "lag_seconds", "rate"),
    "PartitionStats": ("lag", "headroom"),
    "StorageStats": ("p50", "p99"),
}
SPREAD = "latency"  # of a store: counts by class, told as a histogram
LETTERS = 48  # of a text that is a label's value: a sentence would be a new series each time


def form_of(kind: type, name: str) -> Form:
    """What field `name` of that dataclass is."""
    known = _FORMS.get(kind.__name__, {}).get(name)
    return known or _is(name, f"{name.replace('_', ' ').capitalize()}, of {kind.__name__}.")


def told(text: str) -> bool:
    """Whether a text is a state or a name, which can be a label's value, and not a sentence."""
    return bool(text) and len(text) <= LETTERS and " " not in text
