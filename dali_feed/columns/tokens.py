"""Text as token ids, cut and padded to one length."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import whole
from dali_feed.columns.kind import Faults, Kind, check_member
from dali_feed.columns.text import Text
from dali_feed.columns.tokenizing import Side, Tokenize, check_side, tokenized, tokenizing

__all__ = ["TokenBatch", "Tokens"]


class TokenBatch(NamedTuple):
    """Tokens of a batch.

    ids   int64 (n, length)
    mask  int64 (n, length): 1 where a token stands, 0 where it is filled
    """

    ids: Any
    mask: Any


@dataclass(frozen=True)
class Tokens(Kind):
    """UTF-8 text as token ids. Gives a `TokenBatch` of int64 (n, length) on the device.

    A text that cannot be tokenized, and ids that are no whole numbers in 0..2**31-1, make a bad record.

    member     the member that it is made from; for "a;b" the first of these that a record has
    tokenizer  a `tokenizers` file (tokenizer.json), which is read from the disk and never downloaded; a `Tokenizer` of
               that library, or a fast one of transformers, of which a copy is taken; or a callable text -> ids, which
               several threads call at once
    length     tokens in a row; what is longer is cut, what is shorter is filled
    pad        the id that fills it
    add_special_tokens  whether the tokenizer adds what its post-processor says, such as [CLS] and [SEP]: they are kept
               where a text is cut, as Hugging Face does. A callable adds its own, and its ids are cut as they are
    truncation_side, padding_side  where a row is cut, and filled: "right" or "left"
    """

    member: str
    tokenizer: str | os.PathLike[str] | Callable[[str], Sequence[int]] | Any
    length: int
    pad: int = 0
    add_special_tokens: bool = True
    truncation_side: Side = "right"
    padding_side: Side = "right"
    _tokenize: Tokenize = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_member("Tokens", self.member)
        name = f"Tokens({self.member!r})"
        whole(f"{name}: length", self.length, 1)
        whole(f"{name}: pad", self.pad, 0)
        check_side(f"{name}: truncation_side", self.truncation_side)
        check_side(f"{name}: padding_side", self.padding_side)
        made = tokenizing(
            name, self.tokenizer, special=self.add_special_tokens, length=self.length, cut=self.truncation_side
        )
        object.__setattr__(self, "_tokenize", made)

    def read(self, values: Sequence[Any], faults: Faults) -> list[NDArray[np.int32]]:
        """The ids of each, `length` at most."""
        ids = tokenized(self._tokenize, Text(self.member).read(values, faults), faults)
        cut = slice(self.length) if self.truncation_side == "right" else slice(-self.length, None)
        return [row[cut] for row in ids]

    def batch(self, values: list[NDArray[np.int32]]) -> TokenBatch:
        """Ids and mask."""
        counts = np.array([len(ids) for ids in values])[:, None]
        place = np.arange(self.length)
        mask = place < counts if self.padding_side == "right" else place >= self.length - counts
        ids = np.full(mask.shape, self.pad, np.int64)
        ids[mask] = np.concatenate(values)
        return TokenBatch(ids, mask.astype(np.int64))
