"""What the tables of figures in the pages of docs/ are made of; docs/_figures.py has the README's, and says how.

No figure stands here.
"""

from __future__ import annotations

from _figures import BATCHES, Results, Row, bullets, loader_rows, number, table

__all__ = ["borders", "columns", "engines", "formats", "packing", "small", "storage", "topics", "watched"]

WAYS = ("ahead", "plain")


def engines(results: Results) -> list[str]:
    """docs/engines.md: CPU time per image."""
    rows = loader_rows(results)
    lines = {"the engine, fed from memory": ("ceiling", "cpu us", 0)}
    lines |= {"the loader, from tar shards": ("tar", "cpu us", 0)}
    lines |= {"of it our feed thread": ("tar", "feed us", 1), "of that outside of DALI": ("tar", "own us", 1)}
    columns = [(engine, batch) for engine in ("host", "dali") for batch in BATCHES]
    return table(
        ["microseconds", *(f"`{engine}`, batch {batch}" for engine, batch in columns)],
        *(
            [says, *(number(rows[engine, who, batch], column, digits) for engine, batch in columns)]
            for says, (who, column, digits) in lines.items()
        ),
    )


def small(results: Results) -> list[str]:
    """docs/benchmarks.md: images of 43x32, each engine beside torch's loader in the same run."""
    lines = []
    for engine in ("dali", "host"):
        who = ("tar", "torch", "dali-reader")
        rows = results.newest("small", *({"engine": engine, "who": each} for each in who))
        ratios = dict(each.split("=") for each in rows[0]["beside"].split())
        for name, row in zip(
            (f'dali_feed, `engine="{engine}"`', "torch, the best of its ways", "DALI's reader"), rows, strict=True
        ):
            beside = f"{float(ratios[row['who']]):.2f}" if row["who"] in ratios else ""
            lines.append([name, number(row, "img/s"), number(row, "cpu us"), beside])
    return table(
        ["32x32 crops of 43x32 JPEGs, batch 256", "images/s", "CPU us an image", "dali_feed beside it"], *lines
    )


def topics(results: Results) -> list[str]:
    """docs/kafka.md: MB/s of a topic by the size of its records."""
    sizes = {4: "4 KB", 36: "36 KB", 100: "100 KB", 1024: "1 MB"}
    who = ("plain", "extents x1", "extents x2", "straight x2")
    rows: dict[tuple[int, str], Row] = {}
    for size in sizes:  # a line is of one run; small records are measured in smaller topics
        found = results.newest("kafka", *({"payload kb": size, "who": name} for name in who))
        rows |= {(size, name): row for name, row in zip(who, found, strict=True)}
    lines = [
        [
            says,
            number(rows[size, "plain"], "MB/s"),
            *(f"{number(rows[size, name], 'MB/s')} ({number(rows[size, name], 'of C', 2)})" for name in who[1:]),
            number(rows[size, "straight x2"], "records/s"),
        ]
        for size, says in sizes.items()
    ]
    head = ["records of", "`plain`: one consumer, librdkafka's defaults", "one reader, random runs of 32 MB"]
    return table([*head, "two readers, random runs", "two readers, in order", "records/s of the last"], *lines)


def storage(results: Results) -> list[str]:
    """docs/shards.md: MB/s of single records beside a plain read."""
    says = {"cached": "from the page cache, MB/s", "cold": "cold: pages dropped before each read, MB/s"}
    readers = ("ours", "plain", "webdataset")
    keys = [(pages, reader) for pages in says for reader in readers]
    wanted = [{"pages": pages, "reader": reader, "record": 100000, "files": 12} for pages, reader in keys]
    rows = dict(zip(keys, results.newest("io", *wanted), strict=True))
    head = "100 KB images in 12 tar shards, 1.5 GB, single records in a shuffled order, two readers"
    return table(
        [head, "ours", "a plain read, in order, one thread", "WebDataset's reader"],
        *([text, *(number(rows[pages, reader], "MB/s") for reader in readers)] for pages, text in says.items()),
    )


def packing(results: Results) -> list[str]:
    """docs/shards.md: seconds and memory of the steps of a set of a million records."""
    says = {
        "pack": "`pack`, two threads",
        "verify": "`verify`: every byte",
        "open": "open the set, with its indexes",
        "start": "the first batch of a shuffled epoch, torch and all",
        "read": "read all in order, comparing checksums",
        "read unchecked": "read all in order, comparing none",
    }
    rows = results.newest("pack", *({"step": step, "records": 1000000, "bytes": 2048} for step in says))
    lines = [
        [text, number(row, "seconds", 1 if float(row["seconds"]) >= 1 else 2), f"{number(row, 'peak_mb')} MB"]
        for text, row in zip(says.values(), rows, strict=True)
    ]
    return table(["1,000,000 records of 2 KB", "seconds", "most memory"], *lines)


def borders(results: Results) -> list[str]:
    """docs/benchmarks.md: the wait between epochs, and the time to a first batch."""
    keys = [(source, way) for source in ("tar", "folder") for way in WAYS]
    wanted = [{"source": source, "engine": "host", "who": way} for source, way in keys]
    rows = dict(zip(keys, results.newest("epochs", *wanted), strict=True))
    lines = []
    for source in ("tar", "folder"):
        ahead, plain = (rows[source, way] for way in WAYS)
        both = [
            f"{number(row, 'border', 1)} ({number(row, 'least', 1)} to {number(row, 'most', 1)})"
            for row in (ahead, plain)
        ]
        lines.append([source, *both, number(ahead, "p50 ms", 1), number(ahead, "p99 ms", 1)])
    head = ["milliseconds", "first batch of an epoch", "without `next_epoch`", "p50 of a step", "its p99"]
    ours, torch = results.newest("start", {"who": "ours"}, {"who": "torch"})
    first = [1000 * (float(row["iter"]) + float(row["first"])) for row in (ours, torch)]
    told = (
        f"Beside the import of torch and torchvision ({number(ours, 'frames', 1)} s) a program has its first batch "
        f"after {number(ours, 'whole', 2)} s, with torch's DataLoader after {number(torch, 'whole', 2)} s; from the "
        f"call of `iter()` on it takes {first[0]:,.0f} ms, and {first[1]:,.0f} "
        "([epochs.csv](../bench/results/epochs.csv), [start.csv](../bench/results/start.csv))."
    )
    return [*table(head, *lines), "", *bullets(told)]


def watched(results: Results) -> list[str]:
    """docs/benchmarks.md: the rate of a loader that is watched, over that of one that is not."""
    names = ("endpoint", "asked each 1 s", "asked each 0.1 s", "reports to a file")
    rows = results.newest("watch", *({"watched by": name} for name in names))
    whose = {"ratio": "rate"} | ({"cpu ratio": "CPU time of an image"} if "cpu ratio" in rows[0] else {})
    heads = [head for what in whose.values() for head in (f"{what} beside nobody's, median", "least to most")]
    lines = [
        [part for kind in whose for part in (row[kind], f"{row[f'{kind} low']} to {row[f'{kind} high']}")]
        for row in rows
    ]
    return table(["watched by", *heads], *([name, *line] for name, line in zip(names, lines, strict=True)))


def columns(results: Results) -> list[str]:
    """docs/columns.md: records without an image, and what stands beside one."""
    says = {
        "arrays, tar": ("32x32x3 arrays (3 KB) with a label, from tar shards", ARRAYS | OTHERS),
        "arrays, kafka": ("the same from Kafka, the broker on the same two cores", KAFKA),
        "features, tar": ("2048 floats (8 KB) from tar shards", ARRAYS),
        "features, kafka": ("2048 floats from Kafka", KAFKA),
        "pairs, tar": ("a 500x375 JPEG, from tar shards", PAIRS),
    }
    lines = []
    for case, (records, whose) in says.items():
        rows = results.newest("columns", *({"case": case, "who": who} for who in whose))
        for n, (row, name) in enumerate(zip(rows, whose.values(), strict=True)):
            first = "" if n else records
            lines.append([first, name, number(row, "samples/s"), number(row, "MB/s"), _ratio(row)])
    return table(["records", "who", "samples/s", "MB/s", "beside"], *lines)


def _ratio(row: Row) -> str:
    """Of whom it stands beside: the median of the rounds, with the least and the most."""
    if row["beside"] in {"", row["who"]}:
        return ""
    middle, least, most = (number(row, f"of it{end}", 2) for end in ("", ", least", ", most"))
    return f"{middle} ({least} to {most}) of {BESIDE[row['beside']]}"


ARRAYS = {
    "ours": "here, shuffled",
    "ours in order": "here, in order",
    "straight": "one thread that reads the files in order into one piece of memory",
}
OTHERS = {"torch": "torch's DataLoader at its best", "webdataset": "WebDataset", "mosaic": "Mosaic Streaming"}
KAFKA = {
    "ours": "here, with a label in a header",
    "ours, no label": "here, without labels",
    "straight": "our readers alone: two threads, values and labels, no tensors",
    "plain": "confluent_kafka's own consumer: values counted and dropped",
}
PAIRS = {
    "image alone": "the image alone",
    "image and text": "with a caption",
    "image and mask": "with a mask, moved by Pillow and torchvision, one by one",
    "image and boxes": "with boxes, moved the same way",
    "no columns": "image and label without `columns=`",
    "image and label": "image and label, `columns=`",
}
BESIDE = {"straight": "the straight read", "image alone": "the image alone", "no columns": "that without `columns=`"}


def formats(results: Results) -> list[str]:
    """docs/formats.md: microseconds of a record by its format."""
    says = {"json": "`Json`", "avro": "`Avro`", "msgpack": "`MsgPack`", "protobuf": "`Protobuf`"}
    keys = [(form, record) for form in says for record in ("image", "features", "fields")]
    keys += [("npy", "features")]
    all_of = {"fields": {"members": 20}}
    wanted = [{"format": form, "record": record} | all_of.get(record, {}) for form, record in keys]
    rows = dict(zip(keys, results.newest("formats", *wanted), strict=True))
    lines = [
        [text, *(number(rows[form, record], "us") for record in ("image", "features", "fields"))]
        for form, text in says.items()
    ]
    head = ["microseconds of one thread", "an image of 100 KB", "2048 float32", "20 fields"]
    return table(head, *lines, ["`Npy`", "", number(rows["npy", "features"], "us"), ""])
