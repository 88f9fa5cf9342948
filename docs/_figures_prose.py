"""Sentences with figures in the pages of docs/: what they say of which rows; docs/_figures.py says how.

No figure stands here.
"""

from __future__ import annotations

from _figures import Results, bullets, number

__all__ = ["folder", "judged", "lock", "opened", "produced", "stream"]


def lock(results: Results) -> list[str]:
    """docs/engines.md: how long an image holds the interpreter's lock."""
    few, many = results.newest("lock", {"threads": 2}, {"threads": 16})
    return bullets(
        "The `host` engine's threads share one Python interpreter: an image holds its lock for "
        f"{number(few, 'lock us')} microseconds with 2 threads and {number(many, 'lock us')} with 16 "
        "(measured by a program of commit 4bf1ae6, [rows](../bench/results/lock.csv)). So one process gives at most "
        f"{number(many, 'bound img/s')} images per second, with however many threads.",
    )


def produced(results: Results) -> list[str]:
    """docs/kafka-produce.md: the speed of writing a topic."""
    ours, transactions = results.newest(
        "produce", *({"payload kb": 100, "who": who} for who in ("ours", "transactions"))
    )
    return bullets(
        f"Speed: at 100 KB {ours['of C']} of the MB/s of a C loop of librdkafka, with transactions "
        f"{transactions['of C']} (measured by a program of commit 4bf1ae6, "
        "[rows](../bench/results/produce.csv); the broker on "
        "the same cores).",
    )


def stream(results: Results) -> list[str]:
    """docs/kafka.md: how old a live record is when it comes, and a long run."""
    short = {"what": "latency", "batch": 1, "records": 1000}
    alone, loader = results.newest("stream", {"way": "reader", **short}, {"way": "loader", **short})
    (steady,) = results.newest("stream", {"way": "loader", "what": "steady", "batch": 32})
    return bullets(
        f"From `produce` to the tensor, batch 1: half of the records within {number(loader, 'p50 ms', 1)} ms, 99 of "
        f"100 within {number(loader, 'p99 ms', 1)} ms; the source alone {number(alone, 'p50 ms', 1)} and "
        f"{number(alone, 'p99 ms', 1)} ms.",
        f"For {number(steady, 'seconds')} seconds at {number(steady, 'records/s')} records a second, batches of 32: "
        f"half of the steps wait at most {number(steady, 'p50 ms')} ms for their batch, 99 of 100 at most "
        f"{number(steady, 'p99 ms')} ms. A record is {number(steady, 'lag ms')} ms old when it comes in the first "
        f"minute and {number(steady, 'lag ms at end')} in the last. The process holds {number(steady, 'rss MB')} MB "
        f"at first and {number(steady, 'rss MB at end')} MB at the end.",
    )


def opened(results: Results) -> list[str]:
    """docs/shards.md: how long it takes to open what is large."""
    of_set, array, table = results.newest("open", *({"step": step} for step in ("open", "array", "parquet")))
    return bullets(
        f"A set of {number(of_set, 'gigabytes')} GB, {number(of_set, 'records')} records of 100 KB, opens from its "
        f"indexes in {number(of_set, 'seconds', 2)} s and {number(of_set, 'peak_mb')} MB of memory.",
        f"An array file of {number(array, 'records')} rows of 2,048 float32 opens in {number(array, 'open s', 2)} s, "
        f"gives 128 neighbouring rows in {number(array, 'slice of 128 ms')} ms and {number(array, 'rows/s')} rows a "
        f"second at random, in {number(array, 'peak_mb')} MB ([formats.md](formats.md)).",
        f"A Parquet file of {number(table, 'records')} rows in {number(table, 'groups')} row groups gives "
        f"{number(table, 'rows/s')} rows a second, {number(table, 'of pyarrow', 2)} of pyarrow's own reading of it.",
    )


def judged(results: Results) -> list[str]:
    """docs/from-torch.md: what a network says of the same crops behind each loader."""
    who = ("host, tensors", "torch, PIL", "dali on the CPU", "torch, nearest")
    ours, pil, dali, nearest = results.newest("top1", *({"loader": each, "size": 224} for each in who))
    others = max(int(row["others than tensors"]) for row in (ours, dali))
    return bullets(
        f"**Top-1.** A ResNet-18 with ImageNet's validation transforms judges {others} of {number(ours, 'val')} crops "
        "of photographs differently with our loader, with either engine, than with torch's. "
        f"Resizing to nearest pixels changes {nearest['others than tensors']}. Beside torch's loader on tensors its "
        f"largest difference of a logit is {number(ours, 'logit from tensors', 3)} with the `host` engine, "
        f"{number(pil, 'logit from tensors', 3)} where torch's Pillow resizes, and "
        f"{number(dali, 'logit from tensors', 3)} with the `dali` engine on the CPU (measured by a "
        "program of commit 4bf1ae6, "
        "[rows](../bench/results/top1.csv)).",
    )


def folder(results: Results) -> list[str]:
    """docs/from-torch.md: a folder of images by our loader and by torch's."""
    ours, torch = results.newest(
        "loader",
        {"batch": 64, "engine": "host", "who": "folder"},
        {"batch": 64, "engine": "host", "who": "torch", "way": "uint8 x2"},
    )
    said = f"of {ours['image']} JPEGs gives {number(ours, 'img/s')} images per second where torch's loader at its best"
    return [
        f"On {ours['cpus']} CPU cores the same folder {said} gives {number(torch, 'img/s')}",
        "(`dali-feed bench loader`, batch 64, [rows](../bench/results/loader.csv)).",
    ]
