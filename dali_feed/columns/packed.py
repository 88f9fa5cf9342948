"""Documents of tokens, several to a row.

The law: what is packed together is a lane's part of a global batch, and nothing else. So the rows of a step are the
same at every world size, nothing is carried into the next step, and a state need not know of packing. The price is the
padding of each part's last row: about `length / 2` tokens, beside as many documents as a batch takes from a lane.

The other way is to carry the tokens that do not fill a row into the next step. Then a row depends on the lengths of all
documents before it in its lane. A state would have to name the documents that are carried, in every lane, and no rank
knows those of another rank's lanes: it could not be the same on all ranks. docs/columns.md says what that costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import whole
from dali_feed.columns.column import Column, Faults, texts
from dali_feed.columns.tokens import MOST, Tokenize, tokenized, tokenizing
from dali_feed.errors import ConfigError

Int64s = NDArray[np.int64]


class PackedBatch(NamedTuple):
    """Rows of tokens of a batch, each of one or more documents.

    ids       int64 (rows, length)
    mask      int64 (rows, length): 1 where a token stands, 0 where it is filled
    document  int64 (rows, length): 1 for tokens of the row's first document, 2 for the second; 0 where it is filled
    position  int64 (rows, length): the token's place in its document, from 0, and from 0 again where a document goes on
              in a new row; 0 where it is filled. So it is 0 wherever something begins
    cut       int64 (rows,): how many tokens were left out, of the row's documents, and in the last row of a lane's part
              of those for which there was no row; 0 unless `split` is False, or `rows` is given
    """

    ids: Any
    mask: Any
    document: Any
    position: Any
    cut: Any


@dataclass(frozen=True)
class Packed(Column):
    """UTF-8 text as token ids, documents end to end in rows of `length`. Gives a `PackedBatch` on the device.

    `batch_size` counts documents. Those that a batch takes from one lane are packed together, and fill as many rows as
    they need, one at least: ranks and batches have different numbers of rows, unless `rows` says one. A document
    without tokens fills nothing. Bad records are those of `Tokens`.

    member     the member that it is made from; for "a;b" the first of these that a record has
    tokenizer  as in `Tokens`
    length     tokens in a row
    end        an id that is put after each document that has tokens; None: only what the tokenizer gives
    pad        the id that fills the last row
    split      True: if a row is full, a document continues in the next row. False: a document stands in one row, and a
               longer one is cut after `length` tokens; rows are filled first fit, the longest document first
    rows       rows that each lane's part of a batch gives: missing rows are filled, and the tokens of further rows are
               cut and counted. A rank has one lane, unless `lanes` is above the world size. None: as many as are needed
    add_special_tokens, default  as in `Tokens`
    """

    member: str
    tokenizer: str | os.PathLike[str] | Callable[[str], Sequence[int]] | Any
    length: int
    end: int | None = None
    pad: int = 0
    split: bool = True
    rows: int | None = None
    add_special_tokens: bool = True
    _tokenize: Tokenize = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.title
        whole(f"{name}: length", self.length, 1)
        whole(f"{name}: pad", self.pad, 0)
        for option, least in (("end", 0), ("rows", 1)):
            if getattr(self, option) is not None:
                whole(f"{name}: {option}, where it is not None,", getattr(self, option), least)
        if self.end is not None and self.end > MOST:
            raise ConfigError(f"{name}: end must be an id in 0..{MOST}; found {self.end}")
        if not isinstance(self.split, bool):
            raise ConfigError(f"{name}: split must be True or False; found {self.split!r}")
        object.__setattr__(self, "_tokenize", tokenizing(name, self.tokenizer, special=self.add_special_tokens))

    def read(self, values: Sequence[Any], faults: Faults) -> list[NDArray[np.int32]]:
        """The ids of each, with `end`."""
        ids = tokenized(self._tokenize, texts(values, faults), faults)
        if self.end is None:
            return ids
        end = np.array([self.end], np.int32)
        return [np.concatenate([row, end]) if len(row) else row for row in ids]

    def batch(self, values: list[NDArray[np.int32]]) -> PackedBatch:
        """The rows of one lane."""
        return self.of_lanes(values, 1)

    def of_lanes(self, values: list[NDArray[np.int32]], lanes: int) -> PackedBatch:
        """Each lane's rows, one lane after the other."""
        each = len(values) // lanes
        parts = [self._part(values[lane * each : (lane + 1) * each]) for lane in range(lanes)]
        return PackedBatch(*map(np.concatenate, zip(*parts, strict=True)))

    def _part(self, documents: list[NDArray[np.int32]]) -> PackedBatch:
        """The rows of a lane's documents."""
        sizes = np.array([len(ids) for ids in documents], np.int64)
        pieces = (_split if self.split else _whole)(sizes, self.length)
        rows = self.rows or max(1, int(pieces.row.max(initial=0)) + 1)
        kept = pieces.of(pieces.row < rows)
        cut = np.zeros(rows, np.int64)
        np.add.at(cut, np.minimum(pieces.row, rows - 1), pieces.left)
        cut[-1] += pieces.size.sum() - kept.size.sum()

        position = kept.within
        to = kept.each(kept.row * self.length + kept.column) + position
        tokens = np.concatenate(documents)[kept.each(kept.begin) + position]

        def laid(values: Int64s | int, filled: int = 0) -> Int64s:
            out = np.full(rows * self.length, filled, np.int64)
            out[to] = values
            return out.reshape(rows, self.length)

        return PackedBatch(laid(tokens, self.pad), laid(1), laid(kept.each(kept.numbers)), laid(position), cut)


# Which tokens of some documents stand where in rows of one length: arithmetic on their lengths alone.


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


def _split(sizes: Int64s, length: int) -> Runs:
    """Documents of so many tokens end to end, cut where a row of `length` is full."""
    ends = np.cumsum(sizes)
    edges = np.unique(np.concatenate([[0], ends, np.arange(length, ends[-1], length)]))
    begin = edges[:-1]
    return Runs(begin, np.diff(edges), begin // length, begin % length, np.zeros_like(begin))


def _whole(sizes: Int64s, length: int) -> Runs:
    """Each document, cut to `length`, in the first row with room for it, the longest first: first fit decreasing.

    No more than 11/9 of the rows that the best packing needs, and one (Johnson, 1973).
    """
    fits = np.minimum(sizes, length)
    order = np.argsort(-fits, kind="stable")
    room = np.full(len(order), length, np.int64)
    row, column = np.zeros_like(order), np.zeros_like(order)
    for n, size in enumerate(fits[order].tolist()):
        row[n] = np.argmax(room[: n + 1] >= size)
        column[n] = length - room[row[n]]
        room[row[n]] -= size
    begin = np.cumsum(sizes) - sizes
    return Runs(begin[order], fits[order], row, column, (sizes - fits)[order]).of(np.argsort(row, kind="stable"))
