"""Text as token ids, cut and padded to one length."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import whole
from dali_feed.columns.kind import Faults, Kind, check_member
from dali_feed.columns.text import Text
from dali_feed.errors import ConfigError

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

    member     the member that it is made from; of "a;b" the foremost that a record has
    tokenizer  a `tokenizers` file (tokenizer.json), which is read and never fetched from anywhere, or a callable
               text -> ids, which several threads call at once
    length     tokens in a row; what is longer is cut, what is shorter is filled
    pad        the id that fills it
    """

    member: str
    tokenizer: str | os.PathLike[str] | Callable[[str], Sequence[int]]
    length: int
    pad: int = 0

    def __post_init__(self) -> None:
        check_member("Tokens", self.member)
        whole(f"Tokens({self.member!r}): length", self.length, 1)
        whole(f"Tokens({self.member!r}): pad", self.pad, 0)
        if not callable(self.tokenizer):
            _opened(os.fspath(self.tokenizer))

    def read(self, values: list[Any], faults: Faults) -> NDArray[np.int64]:
        """int64 (n, 1 + length): how many tokens there are, and those."""
        tokenize = self.tokenizer if callable(self.tokenizer) else _opened(os.fspath(self.tokenizer))
        out = np.full((len(values), 1 + self.length), self.pad, np.int64)
        for row, text in enumerate(Text(self.member).read(values, faults)):
            if row in faults:
                continue
            try:
                ids = np.asarray(tokenize(text), np.int64)[: self.length]
                out[row, 0], out[row, 1 : 1 + len(ids)] = len(ids), ids
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
                faults[row] = f"tokenizer: {type(error).__name__}: {error}"
        return out

    def batch(self, values: NDArray[np.int64]) -> TokenBatch:
        """Ids and mask."""
        mask = (np.arange(self.length) < values[:, :1]).astype(np.int64)
        return TokenBatch(np.ascontiguousarray(values[:, 1:]), mask)


@functools.cache
def _opened(path: str) -> Callable[[str], Sequence[int]]:
    """The tokenizer of a file."""
    from dali_feed.packages import needed

    with needed():
        import tokenizers
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # what the library raises is of no class of its own
        msg = f"Tokens: tokenizer must be a file that the tokenizers library wrote; {path}: {error}"
        raise ConfigError(msg) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text).ids
