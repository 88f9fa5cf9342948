"""Digests of what loaders give, and the frozen ones that they are held against.

Of each row of `kit.ways` there are three: of ids and ok, of values (labels, columns), of pixels. Those of ids and
values hold everywhere, and so do pixels that are only moved. All other pixels, and what is computed beside them in
floats, depend on what decodes and resizes: their digests lie in a file of their own for each `key()`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.metadata
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kit import api
from kit.shelf import GOLDEN, Shelf
from kit.ways import COLUMNS, MIXING, PIPELINES, ROWS, SAMPLERS, STATES, TRANSFORMS, Way

__all__ = ["FROZEN", "Runner", "compare", "everywhere", "key", "names", "of_pixels", "versions", "write"]

FROZEN = "4bf1ae6"  # the commit by whose code digests are written
_ROWS = GOLDEN / "rows.json"
_MOVED = {"Image", "Mask", "Boxes", "Keypoints"}
_PACKAGES = ("torch", "torchvision", "nvidia-dali", "nvidia-nvimgcodec", "pillow", "timm")


class Runner(contextlib.ExitStack):
    """Runs rows; sources are made once, and an embedded broker stays until the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._shelf = self.enter_context(Shelf(folder))

    def run(self, name: str) -> dict[str, Any]:
        """The digests of a row, or of what follows a state."""
        row, where = STATES.get(name, (name, None))
        way = ROWS[row]
        seen = _Seen(way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's loader at work is one, and what no argument can do here
            if where is not None:
                self._after(way, where, seen)
            else:
                self._whole(way, seen)
        return seen.digests(exact=bool(way.get("exact")))

    def _whole(self, way: Way, seen: _Seen) -> None:
        """Whole epochs of each rank, and then the rest from the states that were saved on the way."""
        states: list[Any] = []
        for rank in range(way["ranks"]):
            with self._loader(way, rank, way["ranks"]) as loader:
                if way["first"]:
                    loader.set_epoch(way["first"])
                for epoch in range(way["epochs"]):
                    for number, batch in enumerate(_pass(loader, way), 1):
                        seen.take(batch)
                        if epoch == 0 and number == way["stop"] and (rank == 0 or way["by"] == "stream"):
                            states.append(_through_json(loader.state_dict()))
                    seen.border()
                if way.get("border") and rank == 0:
                    states.append(_through_json(loader.state_dict()))
        if way["again"] is None:
            return
        if way["by"] == "stream":
            states, ranks = [states if len(states) > 1 else states[0]], way["ranks"]
        else:
            ranks = way["again"]
        for state, rank in itertools.product(states, range(ranks)):
            self._rest(way, state, rank, ranks, seen)

    def _after(self, way: Way, where: Mapping[str, Any], seen: _Seen) -> None:
        ranks = way["again"] or way["ranks"]
        if way["by"] == "stream":
            ranks = 1
        with self._loader(way, 0, ranks) as fresh:
            if way["by"] == "stream":
                next(iter(fresh))  # before it, nobody knows where a stream stands
            state = api.position(_through_json(fresh.state_dict()), where)
        for rank in range(ranks):
            self._rest(way, _through_json(state), rank, ranks, seen)

    def _rest(self, way: Way, state: Any, rank: int, ranks: int, seen: _Seen) -> None:
        """What is left of the epoch, and the first batch of the next."""
        with self._loader(way, rank, ranks) as loader:
            loader.load_state_dict(copy.deepcopy(state))
            for batch in _pass(loader, way):
                seen.take(batch)
            seen.border()
            if way["by"] != "stream":
                for batch in itertools.islice(_pass(loader, way), 1):
                    seen.take(batch)
            seen.border()

    def _loader(self, way: Way, rank: int, ranks: int) -> Any:
        options = {name: value for name, value in way.items() if name not in _OURS}
        options |= {"bad": api.bad_records()} | ({} if way.get("alone") else {"rank": rank, "world_size": ranks})
        if way["by"] == "torch":
            source: Any = _Iterable() if way.get("iterable") else _Squares()
        else:
            source = self._shelf.source(way["source"], bad=way["bad"], payloads=way["payloads"])
        if sampler := way.get("sampler"):
            options |= {"sampler": SAMPLERS[sampler](), "shuffle": None}
        if way["by"] == "stream":
            options = {k: v for k, v in options.items() if k not in ("shuffle", "lanes")}
        if way["by"] == "dali":
            del options["batch"]
            return _iterator(way, source, way["batch"] // ranks, options)
        if way.get("iterable"):
            options = {k: v for k, v in options.items() if k not in ("lanes", "shuffle", "rank", "world_size")}
        if views := way.get("views"):
            options["transform"] = [TRANSFORMS[view]() for view in views]
        elif transform := way.get("transform"):
            options["transform"] = TRANSFORMS[transform]()
        if columns := way.get("columns"):
            options["columns"] = COLUMNS[columns]()
        if mixing := way.get("mixing"):
            options["collate_fn"] = MIXING[mixing]()
        return api.loader(source, options.pop("batch") // ranks, **options)


_OURS = {
    *("by", "source", "payloads", "bad", "ranks", "again", "stop", "epochs", "first", "exact", "plain", "views"),
    *("transform", "columns", "mixing", "sampler", "border", "iterable", "pipeline", "alone"),
}


def _iterator(way: Way, source: Any, batch_size: int, options: dict[str, Any]) -> Any:
    from nvidia.dali import pipeline_def

    pipeline = pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)(PIPELINES[way["pipeline"]])
    return api.iterator(pipeline, source, ["data", "label"], **options)


def _pass(loader: Any, way: Way) -> Iterator[Any]:
    """An epoch, or the rest of one; of a stream the batches that are full, from what its source holds."""
    if way["by"] != "stream":
        return iter(loader)
    return itertools.islice(iter(loader), way.get("take", 2))


class _Squares(torch.utils.data.Dataset[Any]):
    """A dataset that only torch can read."""

    def __len__(self) -> int:
        return 41

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index * index]), f"n{index}"


class _Iterable(torch.utils.data.IterableDataset[Any]):
    """Numbers in a row."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(21))


class _Seen:
    """Digests in the making."""

    def __init__(self, way: Way) -> None:
        self._way, self._batches, self._pixels = way, 0, False
        self._of = {part: hashlib.sha256() for part in ("ids", "values", "pixels")}
        kinds = COLUMNS[way["columns"]]() if way.get("columns") else None
        self._columns = dict(enumerate(kinds)) if isinstance(kinds, tuple) else kinds

    def take(self, batch: Any) -> None:
        """Count a batch in."""
        self._batches += 1
        if self._way["by"] == "dali":
            (values,), info = batch, None
        else:
            values, info = api.parts(batch)
        if info is not None:
            _add(self._of["ids"], info.ids)
            _add(self._of["ids"], info.ok)
        for name, value in values.items():
            part = "pixels" if self._is_pixels(name) else "values"
            self._pixels |= part == "pixels"
            _add(self._of[part], name)
            _add(self._of[part], value)

    def border(self) -> None:
        """An epoch ends, or another rank begins."""
        for each in self._of.values():
            each.update(b"|")

    def digests(self, *, exact: bool) -> dict[str, Any]:
        """What holds everywhere, and `pixels` where there are such that do not."""
        told: dict[str, Any] = {"batches": self._batches}
        told |= {part: self._of[part].hexdigest()[:16] for part in ("ids", "values")}
        if self._pixels:
            told["exact" if exact else "pixels"] = self._of["pixels"].hexdigest()[:16]
        return told

    def _is_pixels(self, name: str) -> bool:
        if self._way.get("mixing"):
            return True
        if self._way.get("plain"):
            return False
        if self._columns is not None:
            return type(self._columns[int(name) if name.isdecimal() else name]).__name__ in _MOVED
        return name in ("0", "image", "data")


def _add(to: Any, value: Any) -> None:
    """Feed a value of a batch, with its type, into a hash."""
    if isinstance(value, torch.Tensor):
        floats = value.dtype == torch.bfloat16  # of which NumPy has none
        array = (value.contiguous().view(torch.int16) if floats else value).numpy()
        to.update(f"{value.dtype}{tuple(value.shape)}".encode())
        to.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, np.ndarray):
        to.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes | bytearray | memoryview):
        to.update(b"b%d:" % len(value) + bytes(value))
    elif hasattr(value, "_asdict"):
        _add(to, value._asdict())
    elif isinstance(value, Mapping):
        for name, each in value.items():
            _add(to, name)
            _add(to, each)
    elif isinstance(value, list | tuple):
        to.update(b"[%d" % len(value))
        for each in value:
            _add(to, each)
    else:
        assert value is None or isinstance(value, str | int | float), type(value)
        to.update(f"{type(value).__name__}:{value!r};".encode())


def _through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def names() -> list[str]:
    """Of all rows and of all states."""
    return [*ROWS, *STATES]


@functools.cache
def versions() -> dict[str, str]:
    """What pixels depend on: packages, and the processor's instructions for vectors."""
    told = {}
    for package in importlib.metadata.distributions():
        name = re.sub(r"-cu(da)?\d+$", "", package.metadata["Name"].lower())
        if name in _PACKAGES:
            told[name] = package.version
    told = {name: told[name] for name in sorted(told)}
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    vectors = r"(sse|ssse|avx|fma|f16c|bmi|amx|popcnt|asimd|sve)\S*"
    told["processor"] = " ".join(
        sorted(flag for flag in (flags[1].split() if flags else ()) if re.fullmatch(vectors, flag))
    )
    return told


def key() -> str:
    """Of `versions()`, in eight letters."""
    return hashlib.sha256(json.dumps(versions()).encode()).hexdigest()[:8]


@functools.cache
def everywhere() -> Any:
    """Name -> the frozen digests that hold on every machine."""
    return json.loads(_ROWS.read_text()) if _ROWS.exists() else {}


@functools.cache
def of_pixels() -> Any:
    """Name -> the frozen digest of pixels on a machine as this one; None where nobody has frozen them."""
    path = GOLDEN / f"pixels-{key()}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else None


def compare(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each row that is not as it was frozen."""
    rows, pixels = everywhere(), of_pixels()
    lines = []
    for name, result in results.items():
        here = {part: value for part, value in result.items() if part != "pixels"}
        if rows.get(name) != here:
            lines.append(f"{name}: {rows.get(name)} is now {here}")
        if pixels is not None and pixels.get(name) != result.get("pixels"):
            lines.append(f"{name}: pixels {pixels.get(name)} are now {result.get('pixels')}")
    return lines


def write(results: Mapping[str, Mapping[str, Any]], *, everywhere: bool) -> None:
    """Write this machine's pixels, and with `everywhere` all that holds on every machine."""
    if everywhere:
        rows = {n: {part: v for part, v in result.items() if part != "pixels"} for n, result in results.items()}
        _ROWS.write_text(_a_line_each(rows))
    pixels = {name: result["pixels"] for name, result in results.items() if "pixels" in result}
    text = f'{{"versions": {json.dumps(versions(), indent=1)},\n"rows": {_a_line_each(pixels)}}}\n'
    (GOLDEN / f"pixels-{key()}.json").write_text(text)


def _a_line_each(rows: Mapping[str, Any]) -> str:
    lines: Iterable[str] = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in rows.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
