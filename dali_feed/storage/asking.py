"""How a range of an object is asked for, and what it is: by HTTP, of S3, and by what else fsspec knows.

The law: where a protocol can say which object its bytes are of (an ETag), each request asks for that one, and an answer
of another is a SourceChangedError. An answer of other bytes than were asked for is tried again, never used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from dali_feed.errors import SourceChangedError
from dali_feed.storage.faults import ShortBodyError
from dali_feed.storage.signed import called
from dali_feed.storage.stamp import Stamp

__all__ = ["S3", "Asking", "Asynchronous", "Http", "Plain", "asking", "stamp_of"]


def stamp_of(size: int, tag: str) -> Stamp:
    """Bytes and ETag (or what else tells one version from the next), as a stamp: its time is a hash of the tag."""
    return Stamp(0, size, int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") >> 1, 0)


class Asking(Protocol):
    """One way to ask. The methods give a coroutine where the file system is asynchronous, else the answer itself.

    checks  whether each answer is checked to be of the object that was asked for
    """

    checks: bool

    def about(self, path: str) -> Any:
        """(its stamp, its ETag or "")."""
        ...

    def range(self, path: str, start: int, stop: int, size: int, tag: str) -> Any:
        """The bytes, as a list of pieces, of an object of so many bytes with that ETag."""
        ...


def asking(fs: Any) -> Asking:
    """How this file system is asked."""
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    if protocol in ("http", "https") and hasattr(fs, "set_session"):
        return Http(fs)
    if hasattr(fs, "_call_s3"):
        return S3(fs)
    return Asynchronous(fs) if fs.async_impl else Plain(fs)


class Http:
    """HTTP itself: fsspec's own way hides an answer's status, range and ETag."""

    checks = True

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    async def about(self, path: str) -> tuple[Stamp, str]:
        """By HEAD, or the first byte where a server does not answer that."""
        async with await self._get(path, "head", {}) as answer:
            if answer.status not in (400, 403, 405, 501):  # so do presigned addresses answer a HEAD
                answer.raise_for_status()
                return _about(answer.headers, answer.headers.get("Content-Length", ""))
        async with await self._get(path, "get", {"Range": "bytes=0-0"}) as answer:
            if answer.status != 416:  # an empty file has no first byte
                answer.raise_for_status()
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return _about(answer.headers, total or answer.headers.get("Content-Length", ""))

    async def range(self, path: str, start: int, stop: int, size: int, tag: str) -> list[bytes]:
        """The pieces as they came."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if tag.startswith('"'):  # a weak one (W/"...") matches nothing here
            headers["If-Match"] = tag
        async with await self._get(path, "get", headers) as answer:
            answer.raise_for_status()
            now = _tag(answer.headers)
            if tag and now and now != tag:
                raise _changed(path, "it has another ETag or Last-Modified")
            found = answer.headers.get("Content-Range", "")
            if answer.status == 206 and found:
                total = found.rpartition("/")[2]
                if total.isdecimal() and int(total) != size:
                    raise _changed(path, f"it had {size} bytes and has {total} now")
                if not found.startswith(f"bytes {start}-{stop - 1}/"):
                    msg = f"bytes {start} to {stop - 1} were asked for, and the server gave {found!r}"
                    raise ShortBodyError(msg)
            elif (start, stop) != (0, size):
                msg = f"bytes {start} to {stop - 1} were asked for, and the server gave the whole file (status "
                raise ShortBodyError(msg + f"{answer.status}); it must serve ranges, as object stores and nginx do")
            pieces, got = [], 0
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                got += len(piece)
                if got > stop - start:
                    break
            return _exact(pieces, stop - start)

    async def _get(self, path: str, method: str, headers: dict[str, str]) -> Any:
        session = await self._fs.set_session()
        options = dict(self._fs.kwargs)
        given = {**options.pop("headers", {}), "Accept-Encoding": "identity", **headers}
        options.setdefault("allow_redirects", True)
        return getattr(session, method)(self._fs.encode_url(path), headers=given, **options)


class S3:
    """S3 by s3fs, with If-Match: its own way to read a range has none."""

    checks = True

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        fs.retries = 1  # we try again ourselves

    async def about(self, path: str) -> tuple[Stamp, str]:
        """By HeadObject."""
        answer = await self._ask("head_object", path)
        tag = str(answer.get("ETag", ""))
        return stamp_of(int(answer["ContentLength"]), tag or str(answer.get("LastModified", ""))), tag

    async def range(self, path: str, start: int, stop: int, size: int, tag: str) -> list[bytes]:
        """By GetObject."""
        match = {"IfMatch": tag} if tag else {}
        answer = await self._ask("get_object", path, Range=f"bytes={start}-{stop - 1}", **match)
        try:
            if tag and answer.get("ETag", tag) != tag:
                raise _changed(path, "it has another ETag")
            return _exact([await answer["Body"].read()], stop - start)
        finally:
            answer["Body"].close()

    async def _ask(self, method: str, path: str, **more: str) -> Any:
        bucket, key, version = self._fs.split_path(path)
        if version:
            more["VersionId"] = version
        return await self._fs._call_s3(method, Bucket=bucket, Key=key, **more)


class Asynchronous:
    """Any other asynchronous file system: what an object is, is asked before and after."""

    checks = False

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    async def about(self, path: str) -> tuple[Stamp, str]:
        """By what it says of the object."""
        self._fs.invalidate_cache()
        return _stamp_in(await self._fs._info(path))

    async def range(self, path: str, start: int, stop: int, size: int, tag: str) -> list[bytes]:
        """By `_cat_file`."""
        return _exact([await self._fs._cat_file(path, start=start, end=stop)], stop - start)


class Plain:
    """A synchronous file system."""

    checks = False

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def about(self, path: str) -> tuple[Stamp, str]:
        """By what it says of the object."""
        self._fs.invalidate_cache()
        return _stamp_in(self._fs.info(path))

    def range(self, path: str, start: int, stop: int, size: int, tag: str) -> list[bytes]:
        """By `cat_file`."""
        return _exact([self._fs.cat_file(path, start=start, end=stop)], stop - start)


def _stamp_in(info: dict[str, Any]) -> tuple[Stamp, str]:
    """Of what fsspec says; which name the version has differs from one store to the next."""
    names = ("ETag", "etag", "md5Hash", "checksum", "generation", "mtime", "LastModified", "last_modified", "updated")
    tag = next((str(info[name]) for name in (*names, "created") if info.get(name)), "")
    if info.get("type") == "directory" or info.get("size") is None:
        raise IsADirectoryError(str(info.get("name", "")))
    return stamp_of(int(info["size"]), tag), ""


def _about(headers: Any, size: str) -> tuple[Stamp, str]:
    if not size.isdecimal():
        msg = "the server does not say how long the file is (no Content-Length)"
        raise ShortBodyError(msg)
    tag = _tag(headers)
    return stamp_of(int(size), tag), tag


def _tag(headers: Any) -> str:
    """The ETag; where there is none the time of the last change."""
    return str(headers.get("ETag") or headers.get("Last-Modified", ""))


def _exact(pieces: Sequence[bytes], size: int) -> list[bytes]:
    got = sum(map(len, pieces))
    if got != size:
        msg = f"{size} bytes were asked for, and the answer held {'more' if got > size else got}"
        raise ShortBodyError(msg)
    return list(pieces)


def _changed(path: str, what: str) -> SourceChangedError:
    msg = (
        f"{called(path)}: a shard must not change after it was indexed; {what}; make a new ShardSet to read it as it is"
    )
    return SourceChangedError(msg)
