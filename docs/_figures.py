"""What the README's facts, and the tables of docs/benchmarks.md and resume.md, are made of: rows and words.

A function a table. It asks for rows (`results.newest`) and gives the lines of Markdown that stand in the page;
docs/_tables.py calls it and says which run counts. No figure stands here. docs/_figures_pages.py has the other pages'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Protocol

__all__ = [
    "BATCHES",
    "Results",
    "Row",
    "bullets",
    "costs",
    "facts",
    "loader_rows",
    "number",
    "span",
    "speeds",
    "survived",
    "table",
]

Row = Mapping[str, str]


class Results(Protocol):
    """The rows of all runs."""

    def newest(self, name: str, *wanted: Mapping[str, object]) -> list[Row]:
        """A row for each of `wanted`, all of one run."""


def number(row: Row, column: str, digits: int = 0) -> str:
    """A figure of a row, rounded, with commas; "" where the row has none."""
    return f"{float(row[column]):,.{digits}f}" if row[column] else ""


def span(rows: Sequence[Row], column: str, digits: int = 0) -> str:
    """The least and the most of a column: "35 to 57"."""
    found = sorted(float(row[column]) for row in rows)
    least, most = (f"{value:,.{digits}f}" for value in (found[0], found[-1]))
    return least if least == most else f"{least} to {most}"


def table(*lines: Sequence[str]) -> list[str]:
    """Lines of cells as Markdown, the first one above the others."""
    head, *body = lines
    return [
        f"| {' | '.join(head)} |".replace("|  |", "| |"),
        "|---" * len(head) + "|",
        *(f"| {' | '.join(line)} |" for line in body),
    ]


def bullets(*sentences: str) -> list[str]:
    """A list, in lines as long as the pages'."""
    return [
        line for text in sentences for line in wrap(f"- {text}", 130, subsequent_indent="  ", break_on_hyphens=False)
    ]


BATCHES = (64, 256)
SPEEDS = {  # what a line says -> whose rows
    "**dali_feed, tar shards in the page cache** (`host` engine: torchvision's pixels, bit for bit)": ("host", "tar"),
    "dali_feed, Kafka, the broker on the same 2 cores": ("host", "kafka"),
    "torch's DataLoader over the files, uint8 in workers, normalized on the batch in pooled memory": ("host", "torch"),
    "SPDL over the files": ("host", "spdl"),
    "DALI's own file reader": ("host", "dali-reader"),
    'dali_feed with `engine="dali"`, tar shards': ("dali", "tar"),
    'dali_feed with `engine="dali"`, Kafka': ("dali", "kafka"),
    "*ceiling: the `host` engine fed from memory*": ("host", "ceiling"),
    "*ceiling: a bare loop of decode, resize, normalize over bytes in memory*": ("host", "loop"),
    "*ceiling: the same loop, each image read from the tar shards*": ("host", "loop-read"),
    "*ceiling: the `dali` engine fed from memory*": ("dali", "ceiling"),
}
NEW = ("host", "loop-read")  # left out while no run has it


def loader_rows(results: Results) -> dict[tuple[str, str, int], Row]:
    """The rows of one run of the loader's bench, by engine, contestant and batch."""
    try:
        return _loader_rows(results, *SPEEDS.values())
    except LookupError:
        return _loader_rows(results, *(who for who in SPEEDS.values() if who != NEW))


def _loader_rows(results: Results, *contestants: tuple[str, str]) -> dict[tuple[str, str, int], Row]:
    keys = [(engine, who, batch) for engine, who in contestants for batch in BATCHES]
    wanted = [{"engine": engine, "who": who, "batch": batch, "device": "cpu"} for engine, who, batch in keys]
    return dict(zip(keys, results.newest("loader", *wanted), strict=True))


def speeds(results: Results) -> list[str]:
    """docs/benchmarks.md: images per second."""
    rows = loader_rows(results)
    lines = []
    for says, (engine, who) in SPEEDS.items():
        if (engine, who, BATCHES[0]) not in rows:
            continue
        cells = [number(rows[engine, who, batch], "img/s") for batch in BATCHES]
        lines.append([says, *(f"**{cell}**" if says.startswith("**") else cell for cell in cells)])
    return table(["images per second on the CPU", *(f"batch {batch}" for batch in BATCHES)], *lines)


def costs(results: Results) -> list[str]:
    """docs/benchmarks.md: what the loader costs, in sentences."""
    rows = loader_rows(results)
    of = {
        (engine, column): " and ".join(number(rows[engine, "tar", b], column, digits) for b in BATCHES)
        for engine in ("host", "dali")
        for column, digits in (("of ceiling", 2), ("own us", 1))
    }
    broker = span([row for (_, who, _), row in rows.items() if who == "kafka"], "broker us")
    lock, lock16 = results.newest("lock", {"threads": 2}, {"threads": 16})
    (memory,) = results.newest("memory", {"engine": "host", "memory MB": 168})
    random, plain = results.newest("kafka", *({"payload kb": 100, "who": who} for who in ("extents x2", "plain")))
    (live,) = results.newest("stream", {"way": "loader", "what": "latency", "batch": 1, "records": 1000})
    told = {"ours": of["host", "own us"], "dali": of["dali", "own us"], "lock": number(lock, "lock us")}
    return bullets(
        f"From tar shards the loader gives {of['host', 'of ceiling']} of the `host` engine's ceiling at batch 64 and "
        f"256, {of['dali', 'of ceiling']} of `dali`'s. The broker takes {broker} microseconds of CPU per image of the "
        "same two cores.",
        "Our Python (header check, random numbers, hand-over, metadata) takes "
        f"{told['ours']} microseconds per image at batch 64 and 256; with `dali` {told['dali']}. An image holds the "
        f"interpreter's lock for {told['lock']} microseconds, {number(lock16, 'lock us')} with 16 threads "
        "([lock.csv](../bench/results/lock.csv)).",
        f"You set a bound for the memory of payloads: {number(memory, 'read MB')} MB read under "
        f"`Tuning(memory=160 << 20)` held {number(memory, 'slabs MB')} MB of read buffers "
        "([memory.csv](../bench/results/memory.csv)).",
        "A topic of 100 KB records, read in random runs of 32 MB by two readers, gives "
        f"{number(random, 'MB/s')} MB/s on these cores, {number(random, 'of C', 2)} of the same reads by librdkafka "
        f"in C; one consumer with librdkafka's defaults gives {number(plain, 'MB/s')} "
        "([kafka.csv](../bench/results/kafka.csv)).",
        f"A live record is a tensor {number(live, 'p50 ms')} ms after it was produced, 99 of 100 within "
        f"{number(live, 'p99 ms')} ms: 64 KB photographs, batch 1, the broker on the same cores "
        "([stream.csv](../bench/results/stream.csv), `python bench/stream.py`).",
    )


def facts(results: Results) -> list[str]:
    """README: how fast, how exact, how calm, a sentence each."""
    rows = loader_rows(results)
    times = " and ".join(
        f"{float(rows['host', 'tar', b]['img/s']) / float(rows['host', 'torch', b]['img/s']):.1f}" for b in BATCHES
    )
    (folder,) = results.newest("peers", {"who": "folder"})
    torch, webdataset, dali, spdl, litdata = (
        f"{float(folder[f'of {who}']):.1f}" for who in ("torch", "webdataset", "dali", "spdl", "litdata")
    )
    process, broker, fuzzed = disturbed(results)
    lost, repeated, different = (number(process, column) for column in ("lost", "repeated", "different"))
    ended = " and ".join(f"{sum(int(row[what]) for row in fuzzed) or 'no'} {what}" for what in ("crashes", "hangs"))
    return bullets(
        f"**Fast.** {times} times the images per second of torch's own loader at its best settings, at batch "
        f"{BATCHES[0]} and {BATCHES[1]} on two cores, with the same pixels, bit for bit: `dali-feed bench loader`, "
        f"[loader.csv](bench/results/loader.csv), [benchmarks.md](docs/benchmarks.md). All in one run, on other cores: "
        f"{torch} times torch's, {webdataset} WebDataset's, {dali} DALI's reader's, {spdl} SPDL's, {litdata} LitData's "
        "([peers.csv](bench/results/peers.csv)).",
        f"**Exact.** A training process killed {number(process, 'faults')} times by `kill -9` and its broker "
        f"{number(broker, 'faults')} times, at random moments, each time resumed: {lost} records lost, {repeated} "
        f"repeated, {different} batches different, pixels compared: `python bench/chaos.py train broker`, "
        "[chaos.csv](bench/results/chaos.csv), [resume.md](docs/resume.md).",
        f"**Calm.** A broken image costs one place in one batch, which the next good one fills; it is counted and can "
        f"be kept. {number(fuzzed[0], 'records')} damaged images by each engine: {ended}: `python bench/fuzz.py`, "
        "[fuzz.csv](bench/results/fuzz.csv), [bad-records.md](docs/bad-records.md).",
    )


def disturbed(results: Results) -> tuple[Row, Row, list[Row]]:
    """The newest run with 200 kills of the process and 10 of the broker, and damaged images by each engine."""
    process, broker = results.newest(
        "chaos", {"fault": "kill -9 of the process", "faults": 200}, {"fault": "kill -9 of the broker", "faults": 10}
    )
    return process, broker, results.newest("fuzz", *({"engine": each, "records": 100000} for each in ("host", "dali")))


def survived(results: Results) -> list[str]:
    """docs/resume.md: kills and damaged images."""
    process, broker, fuzzed = disturbed(results)
    columns = ("faults", "recovered", "lost", "repeated", "different")
    crashes, hangs = (sum(int(row[column]) for row in fuzzed) for column in ("crashes", "hangs"))
    ended = f"all delivered, or counted as bad records; {crashes or 'no'} crash, {hangs or 'no'} hang"
    return table(
        ["fault", "injected", "recovered", "records lost", "repeated", "batches different"],
        [
            "`kill -9` of the training process, resumed from its last state",
            *(number(process, column) for column in columns),
        ],
        [
            "`kill -9` of the broker, restarted under the running loader",
            *(number(broker, column) for column in columns),
        ],
        [
            "damaged images (bit flips, cuts, splices, headers that lie), each engine",
            number(fuzzed[0], "records"),
            ended,
            "",
            "",
            "",
        ],
    )
