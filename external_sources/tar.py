"""The headers of a tar file: which regular files it holds, and where their bytes lie.

The law: every header's checksum is verified and every member must end inside the file;
what breaks that is a `DamageError` with its byte, never a guess.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from dali_feed.errors import (
    DataLostError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources.index import (
    SEALED_HEAD,
    SUFFIX,
    DamageError,
    ReadWindow,
    TarIndex,
    fitting,
    homes_of,
    is_sealed,
    keep,
    most_bytes,
    scanned,
)
from dali_feed.storage.sets import SetStore
from dali_feed.storage.store import LOCAL, FileReads, Stamp, Store, read_at, read_whole

BLOCK = 512
MAX_META = 1 << 24
PADDING = 1 << 24  # bytes of zeros that are looked through behind the end: tar pads by 10 KiB, or up to a tape's record
_NO_DATA = b"123456"  # links, devices, folders, pipes: their size field says nothing about data
_REGULAR = b"0\x007"
_META = b"xXgLK"
_LOCAL_META = b"xXLK"  # those that speak of the next member alone
_NO_SPARSE = "a sparse member (not supported: pack without --sparse)"


def members(piece: ReadWindow, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(path, data offset, data length) of every regular file in an archive of `end` bytes; last (b"", its end, 0).

    Reads ustar, GNU (long names, base-256 sizes) and pax (path, size). Stops at the end marker as tar does;
    an archive without one is whole if its last member is, with the zeros that fill up its block. DamageError where it
    is not, or holds a sparse member.
    """
    at = 0
    every: dict[bytes, bytes] = {}  # from a pax header for all members that follow
    local: dict[bytes, bytes] = {}  # from a pax header or long name for the next member
    while block := _header_at(piece, at, bool(local)):
        kind = block[156:157]
        size = _number(block[124:136], at)
        at += BLOCK
        if kind in _META:
            if size > min(MAX_META, end - at):
                raise DamageError(at, f"a {size} byte name, which is longer than the file or 16 MiB")
            known = _meta(kind, piece(at, size), at)
            if kind in _LOCAL_META:
                local |= known
            else:
                every |= known
        else:
            path = _path(block)
            if local or every:
                known, local = every | local, {}
                path = known.get(b"path", path).split(b"\0", 1)[0]
                size = _decimal(known.get(b"size"), size, at)
            if kind == b"S":
                raise DamageError(at, _NO_SPARSE, member=path)
            if kind in _NO_DATA:
                continue
            if at + size > end:
                raise DamageError(at, f"{end - at} of the {size} bytes of {path.decode(errors='replace')}", member=path)
            if kind in _REGULAR and not path.endswith(b"/"):
                yield path, at, size
        at += (size + BLOCK - 1) // BLOCK * BLOCK
        if at > end:
            raise DamageError(end, "the end of the file, inside the zeros that fill up a member's last block")
    yield b"", at, 0


def behind(piece: ReadWindow, at: int, end: int) -> int:
    """The first block from `at` on, where an archive ends, that is no padding of zeros; 0 where there is none."""
    stop = min(end, at + PADDING)
    while at < stop:
        some = piece(at, min(1 << 20, stop - at))
        zeros = len(some) - len(some.lstrip(b"\0"))
        if zeros < len(some):
            return at + zeros // BLOCK * BLOCK
        if not some:
            break
        at += len(some)
    return 0


def _header_at(piece: ReadWindow, at: int, pending: bool) -> bytes:
    """The header at `at`; empty at the end of the archive."""
    block = piece(at, BLOCK)
    if not block.strip(b"\0"):
        if pending:
            raise DamageError(at, "the end of the file, after a long name without its member")
        if len(block) == BLOCK and piece(at + BLOCK, BLOCK).strip(b"\0"):
            raise DamageError(at, "a single block of zeros between members")
        return b""
    if len(block) < BLOCK:
        raise DamageError(at, "an incomplete header at the end")
    if not is_header(block):
        raise DamageError(at, "no tar header (its checksum is wrong)")
    return block


def is_header(block: bytes) -> bool:
    """Whether 512 bytes carry the checksum of a tar header."""
    try:
        stored = _number(block[148:156], 0)
    except DamageError:
        return False
    if stored == sum(block) - sum(block[148:156]) + 256:
        return True
    signed = np.frombuffer(block, np.int8).astype(np.int64)  # some old writers summed signed bytes
    return stored == int(signed.sum() - signed[148:156].sum()) + 256


def is_header_of(block: bytes, size: int) -> bool:
    """Whether 512 bytes are the header of a regular file of so many bytes; where pax tells the size, of any."""
    return (
        len(block) == BLOCK
        and is_header(block)
        and block[156:157] in (b"0", b"\0", b"7")
        and (_number(block[124:136], 0) == size or size >= 8**11)
    )


def _number(field: bytes, byte: int) -> int:
    """A header's number: octal text, or base 256 where the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if not field[0] & 0x40:
            return value
    else:
        digits = field.split(b"\0", 1)[0].strip() or b"0"
        if not digits.strip(b"01234567"):
            return int(digits, 8)
    raise DamageError(byte, f"a header with the number {field!r}")


def _decimal(text: bytes | None, default: int, byte: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or len(text) > 20:
        raise DamageError(byte, f"a pax size of {text[:40]!r}")
    return int(text)


def _path(block: bytes) -> bytes:
    path = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:  # GNU keeps times in the place of the prefix
        path = block[345:500].split(b"\0", 1)[0] + b"/" + path
    return path


def _meta(kind: bytes, data: bytes, byte: int) -> dict[bytes, bytes]:
    """What a long name or a pax header says; never empty, so that its member is waited for."""
    if kind == b"L":
        return {b"path": data.split(b"\0", 1)[0]}
    return {b"": b""} if kind == b"K" else {b"": b""} | _pax(data, byte)


def _pax(data: bytes, byte: int) -> dict[bytes, bytes]:
    """What the records of a pax header (LENGTH, a blank, KEY=VALUE and a newline each) say of name and size.

    Nothing else is kept: one with a million keys for all members that follow would be gone over for each.
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + 20)
        digits = data[at:blank] if blank > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not blank + 1 < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise DamageError(byte, "a pax header that is not in pax format")
        if key.startswith(b"GNU.sparse."):
            raise DamageError(byte, _NO_SPARSE)
        if key in (b"path", b"size"):
            records[key] = value
        at = end
    return records


# The index of a tar file: built from its headers alone, or found beside it.
#
# Samples follow the webdataset convention: members whose paths are equal up to the first dot of the
# basename, and which are adjacent, are one sample. The index keeps all members of all samples, whatever
# they hold, so that one index serves every choice of image and label.
#
# One that was written with its shard, by `dali-feed pack`, has checksums too, and is believed wherever both are copied
# to.


LOOKS = 8  # headers that are looked at where an index was made of another copy
_INDEX_META = re.compile(rb"__[^/]*__($|/)")
_PACKED = {  # how a compressed file begins, and by what
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
    b"PK\3\4": "zip",
}
_log = logging.getLogger("dali_feed")


def key_length(path: bytes) -> int:
    """How many bytes of `path` are its sample's key; 0 where it belongs to none."""
    name = path.rfind(b"/") + 1
    dot = path.find(b".", name)
    return 0 if dot <= name or (path.startswith(b"__") and _INDEX_META.match(path)) else dot


def folded(suffix: str) -> str:
    """A suffix as an index has it: its ASCII letters are small, others are as they are."""
    return os.fsdecode(os.fsencode(suffix).lower())


def build(path: str, store: Store = LOCAL) -> TarIndex:
    """Index a tar file by reading its headers. SourceError where it is no whole, uncompressed tar file."""
    stamp, index = scanned(path, store, "shard", partial(_built, path))
    return replace(index, stamp=stamp)


def _built(path: str, piece: ReadWindow, end: int) -> TarIndex:
    """The index of a tar file of so many bytes."""
    if end == 0:
        msg = f"{path}: a shard must be a whole tar file; found an empty file; fetch or write it again"
        raise DataLostError(msg)
    first, offset, length, suffix = list[int](), list[int](), list[int](), list[int]()
    codes: dict[bytes, int] = {}
    last, behind_last = b"", 0
    try:
        for member, at, size in members(piece, end):
            behind_last = at
            dot = key_length(member)
            if not dot:
                continue
            if member[:dot] != last:
                last = member[:dot]
                first.append(len(offset))
            offset.append(at)
            length.append(size)
            suffix.append(codes.setdefault(member[dot + 1 :].lower(), len(codes)))
        more = behind(piece, behind_last, end)
    except DamageError as damage:
        raise _explained(piece, end, path, damage, len(first), last) from None
    first.append(len(offset))
    samples, offsets, lengths = (np.array(column, np.int64) for column in (first, offset, length))
    return TarIndex(Stamp(0, end, 0, 0), more, samples, offsets, lengths, np.array(suffix, np.int32), tuple(codes))


def _explained(piece: ReadWindow, size: int, path: str, damage: DamageError, samples: int, last: bytes) -> SourceError:
    head = piece(0, 512)
    packed = next((by for magic, by in _PACKED.items() if head.startswith(magic)), None)
    no_tar = head.strip(b"\0") and not (len(head) == 512 and is_header(head))
    if damage.byte == 0 and no_tar and (packed is not None or len(head) == 512):
        what = "something else; repack it" if packed is None else f"a file compressed by {packed}; unpack it"
        msg = f"{path}: a shard must be an uncompressed tar file, to be read by position; found {what}"
        return SourceError(msg)
    inside = samples > 0 and (not damage.member or damage.member[: key_length(damage.member)] == last)
    sample = samples - 1 if inside else samples
    msg = (
        f"{path}#{sample}: a shard must be whole; found at byte {damage.byte} of {size}: {damage.what}; "
        "fetch or write the shard again"
    )
    return DataLostError(msg)


def load(path: str, index_dir: str | os.PathLike[str] | None = None, store: Store = LOCAL) -> TarIndex:
    """The index of a tar file: the kept one where it still fits, else a new one, which is then kept.

    It is kept beside the file, in the user's cache where that folder cannot be written, or in `index_dir`. One that
    lies beside a remote shard is taken where it has the shard's size and finds headers where it says they are. A file
    of that name which is no index of ours stays as it is. Logs a warning where the archive ends before its file does.
    """
    index = _kept(path, index_dir, store)
    if index.unread:
        _log.warning(
            "%s: its archive ends before byte %d, and the %d bytes after that are not read (tar does not read "
            "them either); if it was made by `cat a.tar b.tar`, name both files instead, or join them by `tar "
            "--concatenate`",
            path,
            index.unread,
            index.stamp.size - index.unread,
        )
    end = int(index.offset[-1] + index.length[-1]) if len(index.offset) else -BLOCK
    if (size := index.stamp.size) < -(-end // BLOCK) * BLOCK + BLOCK:
        msg = "%s: there is no end-of-archive mark after its last sample: was the file cut at byte %d?"
        _log.warning(msg, path, size)
    return index


def _kept(path: str, index_dir: str | os.PathLike[str] | None, store: Store) -> TarIndex:
    homes, stamp = homes_of(path, index_dir, store), store.stamp(path)
    of_set = isinstance(store, SetStore) and store.index_sha256(path) is not None
    mounted = store is LOCAL or isinstance(store, SetStore)
    fits = partial(_parsed, shard=stamp, mtime_ns=stamp.mtime_ns)
    if not mounted and (kept := fitting(homes, stamp, fits)) is not None:  # a question less for the server
        return kept
    try:
        return sealed(path, stamp, store)
    except (OSError, ValueError, SourceError) as error:
        if of_set:  # it is whole, or it is an error
            raise _no_index(path, error) from error
        if isinstance(error, _UnfitError):
            msg = "%s: the index with checksums beside it is %s: nothing is compared until `dali-feed index` has run"
            _log.warning(msg, path, error)
            homes = [home for home in homes if str(home) != path + SUFFIX] or homes  # what it says may still be wanted
    if mounted and (kept := fitting(homes, stamp, fits)) is not None:
        return kept
    index = (None if mounted else _copied(path, store, stamp)) or build(path, store)
    keep(path, homes, index.to_bytes(), index_dir, store)
    return index


def _no_index(path: str, error: Exception) -> SourceError:
    remote = "://" in path and isinstance(error, SourceDeniedError | SourceUnreachableError | SourceChangedError)
    if isinstance(error, DataLostError) or (remote and isinstance(error, SourceError)):  # which may pass, or be cured
        return error
    msg = (
        f"{path}{SUFFIX}: the index of a set's shard must be what the manifest says; found: {error}; "
        "`dali-feed index` writes it again"
    )
    return DataLostError(msg)


def _copied(path: str, store: Store, shard: Stamp) -> TarIndex | None:
    """The index beside a remote shard. It was made where the shard was, and the stamp that it holds is of that file:
    so a few of the headers that it speaks of are looked at.
    """
    try:
        file = store.open(path + SUFFIX)
    except (SourceNotFoundError, SourceDeniedError):  # S3 says so of what is not there, to who may not list
        return None
    try:
        index = _parsed(read_whole(file, most_bytes(shard)), shard)
    except (ValueError, SourceNotFoundError, SourceChangedError):  # or goes, or is written anew, as we look
        return None
    finally:
        file.close()
    some = np.unique(np.linspace(0, len(index.offset) - 1, min(LOOKS, len(index.offset)), dtype=np.int64))
    headers = [bytearray(BLOCK) for _ in some]
    opened = store.open(path)
    at = [int(index.offset[k]) - BLOCK for k in some]
    if opened.stamp().change(shard) or min(at, default=0) < 0:
        return None
    views = [memoryview(each) for each in headers]
    got = store.fill(FileReads(lambda _: opened, [0] * len(at), views, at, threading.Event()))
    sizes = index.length[some].tolist()
    good = all(n == BLOCK and is_header_of(bytes(b), size) for n, b, size in zip(got, headers, sizes, strict=True))
    return index if good else None


def _parsed(whole: bytes, shard: Stamp, mtime_ns: int | None = None) -> TarIndex:
    """The index in these bytes, of a shard of that size and, where it is given, of that mtime. ValueError."""
    index = TarIndex.of(whole)
    if index.crc is not None or index.stamp.size != shard.size or mtime_ns not in (None, index.stamp.mtime_ns):
        msg = "stale"
        raise ValueError(msg)
    return replace(index, stamp=shard)


class _UnfitError(ValueError):
    """Of an index with checksums that is there, and is not this shard's."""


def sealed(path: str, shard: Stamp, store: Store = LOCAL) -> TarIndex:
    """The index that was written with a shard and lies beside it, which belongs to any copy of both.

    It is believed by the shard's size: members are compared with their checksums when they are read. ValueError where
    there is none, or it is of a shard of another size; or what opening a file raises.
    """
    with closing(store.open(path + SUFFIX)) as file:
        if not is_sealed(read_at(file, SEALED_HEAD, 0)):
            msg = "not sealed"
            raise ValueError(msg)
        whole = read_whole(file, most_bytes(shard))
        known = store.index_sha256(path) if isinstance(store, SetStore) else None
        if known not in (None, hashlib.sha256(whole).hexdigest()):
            msg = "other bytes than the manifest says"
            raise _UnfitError(msg)
        try:
            index = TarIndex.of(whole)
        except ValueError as error:
            msg = "damaged"
            raise _UnfitError(msg) from error
    if index.stamp.size != shard.size:
        msg = f"of a shard of {index.stamp.size} bytes, and this shard has {shard.size}"
        raise _UnfitError(msg)
    return replace(index, stamp=shard)


# The keys of a tar file's samples: what an index leaves out, since no training run needs them.


def tar_keys(path: str, most: int | None = None, store: Store = LOCAL) -> list[str]:
    """The key of each sample, in order; of the first `most` where that is given.

    Bytes that are no UTF-8 are kept as Python keeps those of file names. Raises what `build` raises.
    """
    keys: list[str] = []
    last = b""
    with closing(store.open(path)) as file:
        try:
            for member, _, _ in members(ReadWindow(file), file.stamp().size):
                length = key_length(member)
                if length and member[:length] != last:
                    if most is not None and len(keys) == most:
                        break
                    last = member[:length]
                    keys.append(os.fsdecode(last))
        except DamageError as damage:
            msg = f"{path}: a shard must be whole; found at byte {damage.byte}: {damage.what}; fetch or write it again"
            raise DataLostError(msg) from None
    return keys
