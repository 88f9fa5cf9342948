"""The label of a Kafka record: its header `label`, a decimal number."""

from __future__ import annotations

__all__ = ["integer", "missing_label", "odd_label"]


def odd_label(text: bytes | None) -> str | None:
    """Why a header is no label, or None."""
    return None if integer(text) is not None else f"header label: a decimal number is needed; found {text!r}"


def missing_label() -> str:
    """Why a record without a label is bad, in a topic that has labels."""
    return "header label: a decimal number is needed; the record has no such header"


def integer(text: bytes | None) -> int | None:
    """The number in a header, or None."""
    return int(text) if text is not None and text.removeprefix(b"-").isdigit() and len(text) <= 20 else None
