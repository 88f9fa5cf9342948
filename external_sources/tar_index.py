"""Where the members of a tar file lie: built from its headers alone, kept beside the file.

The law: an index tells the truth about a whole archive, or there is none. One that does not
belong to the file's present size and mtime, that is older than the file's last change, or whose own digest is wrong,
is built anew. No file that is not an
index of ours is ever replaced: other tools keep theirs beside the shards too.

Samples follow the webdataset convention: members whose paths are equal up to the first dot of the
basename, and which are adjacent, are one sample. The index keeps all members of all samples, whatever
they hold, so that one index serves every choice of image and label.

`index_bytes` says what an index file holds. One that was written with its shard, by `dali-feed pack`, has checksums,
too, and is believed wherever both are copied to.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import (
    DataLostError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources.index_bytes import (
    MAGIC,
    SEALED_HEAD,
    Columns,
    Indexed,
    index_bytes,
    indexed,
    is_sealed,
)
from dali_feed.external_sources.index_homes import SUFFIX, homes_of, index_path, keep
from dali_feed.external_sources.tar_headers import DamageError, Pread, behind, has_end, is_header, is_header_of, members
from dali_feed.storage.local import LOCAL, LocalFile
from dali_feed.storage.sets import SetStore
from dali_feed.storage.store import Ahead, File, Stamp, Store, read_at

__all__ = ["SUFFIX", "TarIndex", "build", "index_path", "key_length", "load", "reads_of", "sealed"]

LOOKS = 8  # headers that are looked at where an index was made of another copy
TAR_BLOCK = 512
_META = re.compile(rb"__[^/]*__($|/)")
_PACKED = {  # how a compressed file begins, by what, and how it is unpacked
    b"\x1f\x8b": ("gzip", "gzip -dc"),
    b"BZh": ("bzip2", "bzip2 -dc"),
    b"\xfd7zXZ": ("xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc"),
    b"\x1f\x9d": ("compress", "gzip -dc"),
    b"PK\3\4": ("zip", "unzip -p"),
}
_ENDINGS = re.compile(r"\.(gz|bz2|xz|zst|zstd|lz4|Z|zip)$")
_SHORT = re.compile(r"\.(tgz|tbz2?|txz|tzst)$")
_log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The members of one tar file, sample by sample.

    stamp     what the tar file was when it was indexed, or when this index was found to fit
    behind    byte of what lies behind the archive's end and is not read; 0 where there is nothing
    first     int64 (samples + 1,): members first[k]..first[k+1]-1 are sample k
    offset    int64 (members,): where a member's data starts
    length    int64 (members,): bytes of data
    suffix    int32 (members,): which of `suffixes` (lower case, without the dot) the member has
    digest    SHA-256 of the size, the suffixes and the columns up to `suffix`, as hex
    crc       uint32 (members,): CRC-32 of each member's data; None where nobody has told
    """

    stamp: Stamp
    behind: int
    first: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    suffix: NDArray[np.int32]
    suffixes: tuple[bytes, ...]
    digest: str
    crc: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    def member(self, suffixes: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offset and length, int64 (samples,) each, of the member that has the foremost of `suffixes`.

        Offset 0 where a sample has none. Of two members with one name the later counts, as in any tar.
        """
        member = self.chosen(suffixes)
        has = member >= 0
        return np.where(has, self.offset[member], 0), np.where(has, self.length[member], 0)

    def chosen(self, suffixes: Sequence[bytes]) -> NDArray[np.int64]:
        """Which member has the foremost of `suffixes`, int64 (samples,); -1 where a sample has none."""
        found = np.full(len(self), -1, np.int64)
        sample = np.repeat(np.arange(len(self)), np.diff(self.first))
        for wanted in reversed(suffixes):
            if wanted in self.suffixes:
                has = np.flatnonzero(self.suffix == self.suffixes.index(wanted))
                found[sample[has]] = has
        return found


def key_length(path: bytes) -> int:
    """How many bytes of `path` are its sample's key; 0 where it belongs to none."""
    name = path.rfind(b"/") + 1
    dot = path.find(b".", name)
    return 0 if dot <= name or (path.startswith(b"__") and _META.match(path)) else dot


def build(path: str, store: Store = LOCAL) -> TarIndex:
    """Index a tar file by reading its headers.

    Raises:
        SourceNotFoundError, SourceDeniedError: the file cannot be opened.
        SourceError: it is no uncompressed tar file.
        DataLostError: it is cut off or damaged.
        SourceChangedError: it is being written.
    """
    first: list[int] = []
    offset: list[int] = []
    length: list[int] = []
    suffix: list[int] = []
    codes: dict[bytes, int] = {}
    last = b""
    end = 0
    file = store.open(path)
    pread = reads_of(file)
    try:
        before = file.stamp()
        if before.size == 0:
            msg = f"{path}: a shard must be a whole tar file; found an empty file; fetch or write it again"
            raise DataLostError(msg)
        for member, at, size in members(pread, before.size):
            end = at
            dot = key_length(member)
            if not dot:
                continue
            if member[:dot] != last:
                last = member[:dot]
                first.append(len(offset))
            offset.append(at)
            length.append(size)
            suffix.append(codes.setdefault(member[dot + 1 :].lower(), len(codes)))
        more = behind(pread, end, before.size)
        after = file.stamp()
    except DamageError as damage:
        raise _explained(pread, before.size, path, damage, len(first), last) from None
    except OSError as error:
        msg = f"{path}: its headers must be readable; found {error.strerror} after sample {len(first)}; check the disk"
        raise SourceError(msg) from error
    finally:
        file.close()
    if changed := before.change(after):
        msg = f"{path}: a shard must not be written while it is indexed; {changed}; try again later"
        raise SourceChangedError(msg)
    first.append(len(offset))
    columns = (np.array(first, "<i8"), np.array(offset, "<i8"), np.array(length, "<i8"), np.array(suffix, "<i4"))
    return _finished(before, more, columns, tuple(codes))


def reads_of(file: File) -> Pread:
    """A function of size and byte that reads a file."""
    return partial(os.pread, file.fds[0]) if type(file) is LocalFile else Ahead(file)


def _explained(pread: Pread, size: int, path: str, damage: DamageError, samples: int, last: bytes) -> SourceError:
    head = pread(512, 0)
    packed = next((how for magic, how in _PACKED.items() if head.startswith(magic)), None)
    no_tar = head.strip(b"\0") and not (len(head) == 512 and is_header(head))
    if damage.byte == 0 and no_tar and (packed is not None or len(head) == 512):
        found = "something else; repack it" if packed is None else _unpack(path, *packed)
        msg = f"{path}: a shard must be an uncompressed tar file, to be read by position; found {found}"
        return SourceError(msg)
    inside = samples > 0 and (not damage.member or damage.member[: key_length(damage.member)] == last)
    sample = samples - 1 if inside else samples
    msg = (
        f"{path}#{sample}: a shard must be whole; found at byte {damage.byte} of {size}: {damage.what}; "
        "fetch or write the shard again"
    )
    return DataLostError(msg)


def _unpack(path: str, by: str, command: str) -> str:
    """What a compressed file is, and the command that makes a shard of it."""
    plain = _SHORT.sub(".tar", _ENDINGS.sub("", path))
    target = plain if plain != path else f"{os.path.splitext(path)[0]}-plain.tar"
    return f"a file compressed by {by}; unpack it: {command} {shlex.quote(path)} > {shlex.quote(target)}"


def _finished(
    stamp: Stamp, more: int, columns: Columns, suffixes: tuple[bytes, ...], crc: NDArray[np.uint32] | None = None
) -> TarIndex:
    digest = hashlib.sha256(b"%d\n" % stamp.size + b"\0".join(suffixes))
    for column in columns:
        digest.update(column.data)
    return TarIndex(stamp, more, *columns, suffixes, digest.hexdigest(), crc)


def load(path: str, index_dir: str | os.PathLike[str] | None = None, store: Store = LOCAL) -> TarIndex:
    """The index of a tar file: the kept one where it still fits, else a new one, which is then kept.

    It is kept beside the file, in the user's cache where that folder cannot be written, or in `index_dir`. One that
    lies beside a remote shard is taken where it has the shard's size and finds headers where it says they are. A file
    of that name which is no index of ours stays as it is. Logs a warning where the archive ends before its file does.

    Raises:
        SourceDeniedError: `index_dir` is given and cannot be written.
        SourceError: as `build`.
    """
    index = _kept(path, index_dir, store)
    if index.behind:
        _log.warning(
            "%s: its archive ends before byte %d, and the %d bytes after that are not read (tar does not read "
            "them either); if it was made by `cat a.tar b.tar`, name both files instead, or join them by `tar "
            "--concatenate`",
            path,
            index.behind,
            index.stamp.size - index.behind,
        )
    if len(index.offset) and not has_end(int(index.offset[-1] + index.length[-1]), size := index.stamp.size):
        msg = "%s: there is no end-of-archive mark after its last sample: was the file cut at byte %d?"
        _log.warning(msg, path, size)
    return index


def _kept(path: str, index_dir: str | os.PathLike[str] | None, store: Store) -> TarIndex:
    homes = homes_of(path, index_dir, store)
    mounted = store is LOCAL or isinstance(store, SetStore)
    stamp = store.stamp(path)
    if not mounted and (kept := _fitting(homes, stamp)) is not None:  # a question less for the server
        return kept
    try:
        return sealed(path, stamp, store)
    except _UnfitError as error:
        if isinstance(store, SetStore) and store.index_sha256(path) is not None:
            raise _no_index(path, error) from error
        msg = "%s: the index with checksums beside it is %s: nothing is compared until `dali-feed index` has run"
        _log.warning(msg, path, error)
        homes = [home for home in homes if str(home) != path + SUFFIX] or homes  # what it says may still be wanted
    except (OSError, ValueError, SourceError) as error:
        if isinstance(store, SetStore) and store.index_sha256(path) is not None:  # a set is whole, or it is an error
            raise _no_index(path, error) from error
    if mounted and (kept := _fitting(homes, stamp)) is not None:
        return kept
    index = (None if mounted else _beside(path, store, stamp)) or build(path, store)
    keep(path, homes, lambda home: _write(home, index, _mode(path, store)), index_dir)
    return index


def _mode(path: str, store: Store) -> int:
    return os.stat(path).st_mode & 0o666 if store is LOCAL else 0o600


def _fitting(homes: Sequence[Path], stamp: Stamp) -> TarIndex | None:
    """The first index that is there, whole, and of the file as it is."""
    for home in homes:
        with contextlib.suppress(OSError, ValueError, SourceError):  # absent, unreadable or stale: built anew
            return _read(home, stamp)
    return None


def _no_index(path: str, error: Exception) -> SourceError:
    remote = "://" in path and isinstance(error, SourceDeniedError | SourceUnreachableError | SourceChangedError)
    if isinstance(error, DataLostError) or (remote and isinstance(error, SourceError)):  # which may pass, or be cured
        return error
    msg = (
        f"{path}{SUFFIX}: the index of a set's shard must be what the manifest says; found: {error}; "
        "`dali-feed index` writes it again"
    )
    return DataLostError(msg)


def _is_foreign(home: Path) -> bool:
    """Whether a file is there that does not begin as our indexes do."""
    try:
        with home.open("rb") as file:
            return file.read(len(MAGIC)) != MAGIC
    except FileNotFoundError:
        return False


def _write(home: Path, index: TarIndex, mode: int) -> None:
    """Write whole or not at all: others may read or write the same index at this moment. OSError where it cannot be."""
    if _is_foreign(home):
        raise FileExistsError(errno.EEXIST, "a file that is not an index of dali_feed; it is not replaced", str(home))
    stamp, columns = index.stamp, (index.first, index.offset, index.length, index.suffix)
    whole = index_bytes(Indexed(stamp.size, stamp.mtime_ns, index.behind, columns, index.suffixes))
    home.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=home.parent, prefix=f".{home.name[:100]}-")
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(whole)
        os.replace(temporary, home)
    except BaseException:
        os.unlink(temporary)
        raise


def _beside(path: str, store: Store, shard: Stamp) -> TarIndex | None:
    """The index beside a remote shard. It was made where the shard was, and the stamp that it holds is of that file:
    so a few of the headers that it speaks of are looked at.
    """
    try:
        file = store.open(path + SUFFIX)
    except (SourceNotFoundError, SourceDeniedError):  # S3 says so of what is not there, to who may not list
        return None
    try:
        index = _parsed(read_at(file, file.stamp().size, 0), shard)
    except (ValueError, SourceNotFoundError, SourceChangedError):  # or goes, or is written anew, as we look
        return None
    finally:
        file.close()
    some = np.unique(np.linspace(0, len(index.offset) - 1, min(LOOKS, len(index.offset)), dtype=np.int64))
    found = [bytearray(TAR_BLOCK) for _ in some]
    opened = store.open(path)
    at = [int(index.offset[k]) - TAR_BLOCK for k in some]
    if opened.stamp().change(shard) or min(at, default=0) < 0:
        return None
    got = store.fill(lambda _: opened, [0] * len(at), [memoryview(each) for each in found], at, threading.Event())
    sizes = index.length[some].tolist()
    good = all(n == TAR_BLOCK and is_header_of(bytes(b), size) for n, b, size in zip(got, found, sizes, strict=True))
    return index if good else None


def _read(home: Path, shard: Stamp) -> TarIndex:
    """The index at `home`; ValueError where it is stale or damaged."""
    with home.open("rb") as file:
        written = os.fstat(file.fileno()).st_mtime_ns
        whole = file.read()
    if written < shard.ctime_ns:
        msg = "stale"
        raise ValueError(msg)
    return _parsed(whole, shard, shard.mtime_ns)


def _parsed(whole: bytes, shard: Stamp, wanted: int | None = None) -> TarIndex:
    """The index in these bytes, of a shard of that size and, where `wanted` is given, that mtime. ValueError."""
    found = indexed(whole)
    if found.sealed or found.size != shard.size or wanted not in (None, found.mtime_ns):
        msg = "stale"
        raise ValueError(msg)
    return _finished(shard, found.behind, found.columns, found.suffixes)


class _UnfitError(ValueError):
    """Of an index with checksums that is there, and is not this shard's."""


def sealed(path: str, shard: Stamp, store: Store = LOCAL) -> TarIndex:
    """The index that was written with a shard and lies beside it, which belongs to any copy of both.

    It is believed by the shard's size: members are compared with their checksums when they are read. ValueError where
    there is none, or it is of a shard of another size; or what opening a file raises.
    """
    file = store.open(path + SUFFIX)
    try:
        if not is_sealed(read_at(file, SEALED_HEAD, 0)):
            msg = "not sealed"
            raise ValueError(msg)
        whole = read_at(file, file.stamp().size, 0)
        known = store.index_sha256(path) if isinstance(store, SetStore) else None
        if known not in (None, hashlib.sha256(whole).hexdigest()):
            msg = "other bytes than the manifest says"
            raise _UnfitError(msg)
        try:
            found = indexed(whole)
        except ValueError as error:
            msg = "damaged"
            raise _UnfitError(msg) from error
    finally:
        file.close()
    if found.size != shard.size:
        msg = f"of a shard of {found.size} bytes, and this shard has {shard.size}"
        raise _UnfitError(msg)
    return _finished(shard, found.behind, found.columns, found.suffixes, found.crc)
