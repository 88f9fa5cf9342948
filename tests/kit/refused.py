"""Refusals as a table: a row is what is called and a pattern of the error's text, and the error where it differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Row = tuple[Callable[..., object], str] | tuple[Callable[..., object], str, type[BaseException]]


def refusals(error: type[BaseException], *rows: Row) -> pytest.MarkDecorator:
    """A case a row, named by its pattern: `call`, which the test gives what rows share, `error` and `said`."""
    cases = [pytest.param(row[0], row[2] if len(row) > 2 else error, row[1], id=row[1][:70]) for row in rows]
    return pytest.mark.parametrize(("call", "error", "said"), cases)


def first(loader: Any) -> Any:
    """The first batch of a loader, which is closed then."""
    with loader:
        return next(iter(loader))


def drained(loader: Any) -> list[Any]:
    """An epoch of a loader, which is closed then."""
    with loader:
        return list(loader)
