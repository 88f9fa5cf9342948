"""Mosaic Streaming's MDS shards as tar shards, which `ShardSet` reads: one .tar for each .mds, in the index's order.

    python examples/mds_to_tar.py MDS_FOLDER TAR_FOLDER [--image image] [--label label] [--more caption=txt ...]

MDS_FOLDER holds index.json and the .mds files: what MDSWriter wrote, or the `local` folder of a StreamingDataset after
a pass over it, which leaves downloaded and compressed shards there unpacked. Images are copied byte for byte, never
decoded; labels become `.cls` members, and the columns that --more names become members of the suffixes given there,
for `DataLoader(columns=...)`. Neither the streaming package nor its dependencies are needed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.testing.shards import write_shard

# What a column of each encoding becomes. Decoders look at the bytes, so a "bytes" column may hold any image format.
IMAGES = {"jpeg": "jpg", "png": "png", "bytes": "jpg"}
NUMBERS = {"int": "<i8"} | {f"{sign}int{8 * n}": f"<{sign or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)}
TEXT = "str_int"
FLOATS = {f"float{8 * n}": f"<f{n}" for n in (2, 4, 8)}
AS_STORED = ("str", "json", "bytes", "jpeg", "png", "str_int", "str_float")
ARRAY = re.compile(
    r"ndarray:[a-z0-9]+:[0-9,]+"
)  # of one dtype and shape, which are in its name: bytes without a header


def samples(path: Path, shard: dict[str, Any]) -> Iterator[dict[str, bytes]]:
    """The columns of each sample, as they are stored.

    A file is: uint32 the number of samples, uint32 where each begins and the last one ends, its configuration, and the
    samples. A sample is: uint32 the size of each column that has no fixed one, and the columns.
    """
    data = path.read_bytes()
    count = int.from_bytes(data[:4], "little")
    borders = np.frombuffer(data, "<u4", count + 1, 4).tolist() if len(data) >= 4 * count + 8 else [0]
    if count != shard["samples"] or borders[-1] != len(data):
        sys.exit(f"{path}: it is not as long, or does not hold as many samples, as index.json says; copy it again")
    fixed = shard["column_sizes"]
    for begin, end in itertools.pairwise(borders):
        at = begin + 4 * sum(not size for size in fixed)
        told = iter(np.frombuffer(data[begin:at], "<u4").tolist())
        columns = {}
        for name, size in zip(shard["column_names"], fixed, strict=True):
            start, at = at, at + (size or next(told))
            columns[name] = data[start:at]
        if at != end:
            sys.exit(f"{path}: a sample's columns must fill it; found {end - at} bytes left over; copy the file again")
        yield columns


def column(shard: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    """The encoding of a column, if it is one of `known`."""
    encodings: dict[str, str] = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    if name not in encodings:
        sys.exit(f"no column is called {name!r}; there are {', '.join(encodings)}; name one with --image or --label")
    if encodings[name] not in known:
        sys.exit(f"column {name!r}: its encoding must be one of {', '.join(known)}; found {encodings[name]!r}")
    return encodings[name]


def member(encoding: str, value: bytes) -> bytes:
    """A column's value as a file: numbers as decimal text, all others as they are stored."""
    if encoding in NUMBERS:
        return b"%d" % np.frombuffer(value, NUMBERS[encoding])[0]
    return repr(float(np.frombuffer(value, FLOATS[encoding])[0])).encode() if encoding in FLOATS else value


def records(
    path: Path, shard: dict[str, Any], image: str | None, label: str | None, more: dict[str, str]
) -> Iterator[dict[str, bytes]]:
    """The members of each sample, by suffix."""
    arrays = tuple(encoding for encoding in shard["column_encodings"] if ARRAY.fullmatch(encoding))
    suffixes = {} if image is None else {image: IMAGES[column(shard, image, tuple(IMAGES))]}
    kinds = {} if label is None else {label: column(shard, label, (*NUMBERS, TEXT))}
    kinds |= {name: column(shard, name, (*NUMBERS, *FLOATS, *AS_STORED, *arrays)) for name in more}
    suffixes |= ({} if label is None else {label: "cls"}) | more
    for columns in samples(path, shard):
        yield {suffix: member(kinds.get(name, ""), columns[name]) for name, suffix in suffixes.items()}


def main() -> None:
    """Convert all shards that index.json names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="MDS_FOLDER")
    parser.add_argument("target", type=Path, metavar="TAR_FOLDER")
    parser.add_argument("--image", default="image", help="its column; '' for none (default %(default)s)")
    parser.add_argument("--label", default="label", help="its column; '' for none (default %(default)s)")
    parser.add_argument("--more", nargs="*", default=[], metavar="COLUMN=SUFFIX", help="further ones")
    args = parser.parse_args()
    more = {name: suffix or name for name, _, suffix in (told.partition("=") for told in args.more)}
    index = args.source / "index.json"
    if not index.is_file():
        sys.exit(f"{index}: there is no such file; MDS_FOLDER must hold it and the .mds files that it names")
    shards = json.loads(index.read_text())["shards"]
    args.target.mkdir(parents=True, exist_ok=True)
    total = 0
    for number, shard in enumerate(shards):
        if (shard["format"], shard["version"]) != ("mds", 2):
            sys.exit(f"shard {number} must be mds, version 2; found {shard['format']}, version {shard['version']}")
        path = args.source / shard["raw_data"]["basename"]
        if not path.exists():
            sys.exit(f"{path}: not there; go over StreamingDataset(remote=..., local=...) once, and convert `local`")
        made = records(path, shard, args.image or None, args.label or None, more)
        total += write_shard(args.target / f"shard-{number:05d}.tar", made, first=total)
    left = sorted({name for shard in shards for name in shard["column_names"]} - {args.image, args.label, *more})
    print(f"{total} samples in {len(shards)} shards" + (f"; left out: {', '.join(left)}" if left else ""))


if __name__ == "__main__":
    main()
