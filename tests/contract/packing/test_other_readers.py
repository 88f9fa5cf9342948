"""Our shards in the hands of webdataset and DALI, and webdataset's in ours: the same samples, byte for byte."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.blocks import rows
from kit.member_shards import shards
from kit.properties import examples

from dali_feed.external_sources import ShardSet
from dali_feed.packing import pack

SUFFIXES = ("jpg", "txt", "json", "cls", "f32")
Sample = dict[str, bytes]


def ours(source: ShardSet, suffixes: tuple[str, ...] = SUFFIXES) -> list[Sample]:
    """The members of all samples, in order, as ShardSet gives them."""
    found = rows(source, *suffixes)
    assert not any("fault" in row for row in found)
    return [{name: data for name, data in row.items() if data is not None} for row in found]


def webdataset() -> Any:
    """The package; it warns of what others do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("webdataset")


@pytest.fixture
def packed(tmp_path: Path) -> list[str]:
    """A set of ours, of several shards, with short keys, and a long one in pax headers."""
    shards(tmp_path)
    with tarfile.open(tmp_path / "2.tar", "w") as tar:
        for suffix in SUFFIXES:
            info = tarfile.TarInfo(f"{'é' * 80}.{suffix}")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"123"))
    pack(ShardSet(str(tmp_path / "*.tar")), tmp_path / "set" / "x.dfset", shard_bytes=30_000)
    paths = sorted(map(str, (tmp_path / "set").glob("*.tar")))
    assert len(paths) > 1
    return paths


def test_webdataset_reads_ours(packed: list[str]) -> None:
    """Keys and all members of all samples, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(webdataset().WebDataset(packed, shardshuffle=False, empty_check=False))
    assert [{name: each[name] for name in SUFFIXES} for each in found] == ours(ShardSet(packed))
    assert len({each["__key__"] for each in found}) == 25


def test_dali_reads_ours_by_the_index_of_its_own_tool(packed: list[str], tmp_path: Path) -> None:
    """DALI's webdataset reader on its CPU backend gives all samples, in order."""
    from nvidia.dali import fn, pipeline_def

    indexes = [tmp_path / Path(path).with_suffix(".idx").name for path in packed]
    for path, index in zip(packed, indexes, strict=True):
        subprocess.run([sys.executable, "-m", "wds2idx", path, str(index)], check=True, capture_output=True)

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def graph() -> Any:
        return tuple(
            fn.readers.webdataset(
                paths=packed,
                index_paths=list(map(str, indexes)),
                ext=list(SUFFIXES),
                missing_component_behavior="error",
            )
        )

    wanted, pipe = ours(ShardSet(packed)), graph()
    found: list[Sample] = []
    pipe.build()
    while len(found) < len(wanted):
        columns = pipe.run()
        found += [
            {name: bytes(column.at(row)) for name, column in zip(SUFFIXES, columns, strict=True)} for row in range(5)
        ]
    assert found[: len(wanted)] == wanted


KEYS = st.text("abcXYZ09_- é", min_size=1, max_size=20).filter(str.strip)
MEMBERS = st.dictionaries(st.sampled_from(["jpg", "cls", "a.b", "JSON", "bin"]), st.binary(max_size=1500), min_size=1)


@settings(examples(times=0.5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, MEMBERS, min_size=1, max_size=5))
def test_what_webdatasets_writer_wrote_is_read(tmp_path: Path, samples: dict[str, Sample]) -> None:
    """Any keys, suffixes and bytes that TarWriter takes: the same members."""
    path = tmp_path / "w.tar"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with webdataset().TarWriter(str(path), encoder=False) as writer:
            for key, members in samples.items():
                writer.write({"__key__": key, **members})
    wanted = [{name.lower(): data for name, data in members.items()} for members in samples.values()]
    suffixes = tuple({name for members in wanted for name in members})
    assert ours(ShardSet(str(path), label=None, index_dir=tmp_path), suffixes) == wanted
