"""Text as token ids, cut and padded to one length."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import whole
from dali_feed.columns.column import Column, Faults, texts
from dali_feed.errors import ConfigError

# Tokenizing: from texts to token ids, by a file or an object of the `tokenizers` library, or by any callable.
#
# The law: the ids of a text depend on the text alone, not on the texts that are tokenized with it; and a text that
# cannot be tokenized is a fault of its own record.


Ids = NDArray[np.int32]
Side = Literal["right", "left"]
Tokenize = Callable[[Sequence[str]], Sequence[Any]]  # texts -> each one's ids

MOST = int(np.iinfo(np.int32).max)  # of an id
_NONE = np.empty(0, np.int32)


def check_side(name: str, side: object) -> None:
    """Right or left; ConfigError otherwise."""
    if side not in ("right", "left"):
        raise ConfigError(f'{name} must be "right" or "left"; found {side!r}')


def _each(tokenize: Callable[[str], Any], texts: Sequence[str]) -> list[Any]:
    """A user's callable, called text by text."""
    return [tokenize(text) for text in texts]


@dataclass(frozen=True)
class _Batch:
    """An object of `tokenizers`, called for all texts at once: for a single one it keeps the interpreter's lock."""

    tokenizer: Any
    special: bool

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=self.special)
        return [each.ids for each in encoded]


def tokenizing(kind: str, tokenizer: Any, *, special: bool, length: int | None = None, cut: Side = "right") -> Tokenize:
    """What makes ids of texts, `length` of each at most where that is given; ConfigError for what makes none.

    The tokenizer itself is not changed: truncation and padding are set in a copy.
    """
    if isinstance(tokenizer, str | os.PathLike):
        ours = _opened(kind, os.fspath(tokenizer))
    elif (inner := getattr(tokenizer, "backend_tokenizer", tokenizer)) and hasattr(inner, "encode_batch"):
        ours = _copied(kind, inner)
    elif callable(tokenizer):
        return functools.partial(_each, tokenizer)
    else:
        rule = "tokenizer must be a file, a Tokenizer of the tokenizers library or a function"
        raise ConfigError(f"{kind}: {rule}; found {tokenizer!r}")
    if getattr(ours.model, "dropout", None):
        rule = "tokenizer must give a text the same ids each time it is read"
        raise ConfigError(f"{kind}: {rule}; found BPE with dropout; set model.dropout = None")
    ours.no_padding()
    ours.no_truncation()
    if length is not None:
        own = ours.num_special_tokens_to_add(is_pair=False) if special else 0
        if length <= own:
            msg = f"{kind}: length must be more than the {own} special tokens that the tokenizer adds; found {length}"
            raise ConfigError(msg)
        ours.enable_truncation(length, direction=cut)
    return _Batch(ours, special)


def tokenized(tokenize: Tokenize, texts: Sequence[str], faults: Faults) -> list[Ids]:
    """The ids of each text, int32; none for rows with a fault, now or before."""
    rows = [row for row in range(len(texts)) if row not in faults]
    out = [_NONE] * len(texts)
    every: Sequence[Any] = [None] * len(rows)
    if isinstance(tokenize, _Batch):
        with contextlib.suppress(Exception):  # one of them is to blame: which, and why, is asked of each below
            every = tokenize([texts[row] for row in rows])
    for row, ids in zip(rows, every, strict=True):
        try:
            out[row] = _whole(tokenize([texts[row]])[0] if ids is None else ids)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is about this record
            faults[row] = f"tokenizer: {type(error).__name__}: {error}"
    return out


def _whole(ids: Any) -> Ids:
    """The ids, checked: a model's table is looked up by them, and on a GPU a wrong one ends the process."""
    values = np.asarray(ids["input_ids"] if isinstance(ids, Mapping) else ids)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(f"the ids must be a list of ints; found {values.dtype} of shape {values.shape}")
    if values.size and not (values.min() >= 0 and values.max() <= MOST):
        raise ValueError(f"ids must lie in 0..{MOST}; found {values.min()} to {values.max()}")
    return values.astype(np.int32)


def _opened(kind: str, path: str) -> Any:
    """The tokenizer of a file."""
    from dali_feed.packages import needed

    with needed():
        import tokenizers
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # what the library raises is of no class of its own
        msg = f"{kind}: tokenizer must be a file that the tokenizers library wrote; {path}: {error}"
        raise ConfigError(msg) from error


def _copied(kind: str, tokenizer: Any) -> Any:
    """A copy of a tokenizer, which its owner may go on changing."""
    try:
        return type(tokenizer).from_str(tokenizer.to_str())
    except Exception as error:  # as above: parts that are written in Python cannot be copied
        msg = f"{kind}: tokenizer cannot be copied: {error}. Give a function that encodes a text with it"
        raise ConfigError(msg) from error


class TokenBatch(NamedTuple):
    """Tokens of a batch.

    ids   int64 (n, length)
    mask  int64 (n, length): 1 where a token stands, 0 where it is filled
    """

    ids: Any
    mask: Any


@dataclass(frozen=True)
class Tokens(Column):
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
    default    the text of a record without one
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
        super().__post_init__()
        name = self.title
        whole(f"{name}: length", self.length, 1)
        whole(f"{name}: pad", self.pad, 0)
        check_side(f"{name}: truncation_side", self.truncation_side)
        check_side(f"{name}: padding_side", self.padding_side)
        tokenize = tokenizing(
            name, self.tokenizer, special=self.add_special_tokens, length=self.length, cut=self.truncation_side
        )
        object.__setattr__(self, "_tokenize", tokenize)

    def read(self, values: Sequence[Any], faults: Faults) -> list[NDArray[np.int32]]:
        """The ids of each, `length` at most."""
        ids = tokenized(self._tokenize, texts(values, faults), faults)
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
