"""Records whose payloads lie in a folder, or whose headers say so."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dali_feed.testing import Message


def made(folder: Path) -> Path:
    """An empty folder beside the shard."""
    claims = folder / "claims"
    claims.mkdir()
    return claims


def claim_headers(payload: bytes, uri: str, **instead: bytes) -> tuple[tuple[str, bytes], ...]:
    """What a record says of its payload; `instead`: of the headers' texts, b"" leaves one out."""
    digest = hashlib.sha256(payload).hexdigest().encode()
    told = {"uri": uri.encode(), "size": b"%d" % len(payload), "sha256": digest} | instead
    return tuple((f"claim.{name}", text) for name, text in told.items() if text or name == "uri")


def claimed(folder: Path, payload: bytes, uri: str | None = None, **instead: bytes) -> Message:
    """A record whose payload is in the folder, or whose headers say so; `instead`: of the headers' texts."""
    digest = hashlib.sha256(payload).hexdigest()
    (folder / digest[:2]).mkdir(exist_ok=True)
    (folder / digest[:2] / digest).write_bytes(payload)
    headers = claim_headers(payload, f"{digest[:2]}/{digest}" if uri is None else uri, **instead)
    return Message(b"", None, (("label", b"7"), *headers), 0)
