"""Texts about labels. A Kafka record's label is its header `label`, a decimal number."""

from __future__ import annotations

from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.external_sources.record_files.source import RecordFiles
from dali_feed.records.source import Source

__all__ = ["integer", "missing_label", "no_labels", "odd_label"]


def odd_label(text: bytes | None) -> str | None:
    """Why a header is no label, or None."""
    return None if integer(text) is not None else f"header label: a decimal number is needed; found {text!r}"


def missing_label() -> str:
    """Why a record without a label is bad, in a topic that has labels."""
    return "header label: a decimal number is needed; the record has no such header"


def integer(text: bytes | None) -> int | None:
    """The number in a header, or None."""
    return int(text) if text is not None and text.removeprefix(b"-").isdigit() and len(text) <= 20 else None


def no_labels(source: Source) -> str:
    """Of a source whose records have none: where one would be."""
    if isinstance(source, KafkaTopic):
        return "no header `label`: read it with KafkaTopic(..., label=None), or name another header"
    if isinstance(source, RecordFiles):
        return "no label: name the member that holds it with label="
    if isinstance(source, ShardSet):
        return "no label: neither a .cls member nor a .json with the key label"
    return "no label: the images lie in one folder"
