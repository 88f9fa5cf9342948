"""Packing: which tokens of some documents stand where in rows of one length. Arithmetic on their lengths alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Runs", "split", "whole"]

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of tokens, each of one document in one row, in the order of the rows and of their places there; int64 (k,).

    begin   where in the documents laid end to end a run begins
    size    its tokens
    row, column  where it goes
    left    tokens of its document that are left out behind it
    """

    begin: Int64s
    size: Int64s
    row: Int64s
    column: Int64s
    left: Int64s

    def of(self, chosen: Int64s | NDArray[np.bool_]) -> Runs:
        """Some of them, or in another order."""
        return Runs(*(values[chosen] for values in (self.begin, self.size, self.row, self.column, self.left)))

    @property
    def within(self) -> Int64s:
        """Of each token, its place in its run."""
        return np.arange(self.size.sum(), dtype=np.int64) - np.repeat(np.cumsum(self.size) - self.size, self.size)

    def each(self, values: Int64s) -> Int64s:
        """A number of each run, for each of its tokens."""
        return np.repeat(values, self.size)

    @property
    def numbers(self) -> Int64s:
        """Which run of its row each is, from 1."""
        return np.arange(1, len(self.row) + 1, dtype=np.int64) - np.searchsorted(self.row, self.row)


def split(sizes: Int64s, length: int) -> Runs:
    """Documents of so many tokens end to end, cut where a row of `length` is full."""
    ends = np.cumsum(sizes)
    edges = np.unique(np.concatenate([[0], ends, np.arange(length, ends[-1], length)]))
    begin = edges[:-1]
    return Runs(begin, np.diff(edges), begin // length, begin % length, np.zeros_like(begin))


def whole(sizes: Int64s, length: int) -> Runs:
    """Each document, cut to `length`, in the first row with room for it, the longest first: first fit decreasing.

    No more than 11/9 of the rows that the best packing needs, and one (Johnson, 1973).
    """
    fits = np.minimum(sizes, length)
    order = np.argsort(-fits, kind="stable")
    order = order[fits[order] > 0]
    room = np.full(len(order), length, np.int64)
    row, column = np.zeros_like(order), np.zeros_like(order)
    for n, size in enumerate(fits[order].tolist()):
        row[n] = np.argmax(room[: n + 1] >= size)
        column[n] = length - room[row[n]]
        room[row[n]] -= size
    begin = np.cumsum(sizes) - sizes
    return Runs(begin[order], fits[order], row, column, (sizes - fits)[order]).of(np.argsort(row, kind="stable"))
