"""Insides that contract/sources/test_members.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.images import QUICK
from kit.member_shards import shards

from dali_feed import DataLoader
from dali_feed.columns import Image, Number
from dali_feed.external_sources import tar as tar_index


def test_an_index_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the samples and for their members."""
    loads: list[str] = []
    load = tar_index.load
    source = shards(tmp_path, 4)

    def counted(path: str, *more: Any) -> Any:
        loads.append(path)
        return load(path, *more)

    monkeypatch.setattr(tar_index, "load", counted)
    with DataLoader(source, 4, columns={"image": Image("jpg"), "n": Number("cls")}, tuning=QUICK) as loader:
        assert loads == []  # what kind of source it is, is seen without it
        assert len(list(loader)) == 1
    assert len(loads) == len(source.paths)
