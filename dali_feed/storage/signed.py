"""Addresses with a query, as signed ones have: what stands behind `?` is used to ask, and shown nowhere.

The law: an object is called by its address without what signs it, so that messages, names, states and caches hold no
signature, and are the same when the address is signed anew.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qsl

__all__ = ["MASK", "called", "shown"]

MASK = "?***"
_QUERY = re.compile(r"(https?://[^\s'\"?]*)\?[^\s'\"]*")
_SIGNS = re.compile(
    r"x-(amz|goog|oss|cos|bce)-.*|awsaccesskeyid|googleaccessid|ossaccesskeyid|.*signature.*|expires|policy|key-pair-id"
    r"|s[eiprtv]|sig|spr|skoid|sktid|skt|ske|sks|skv|srt|.*(token|auth|secret|password|credential|key).*",
    re.IGNORECASE,
)


def called(address: str) -> str:
    """What an object is called: its address with *** for the query, and a hash of what in it signs nothing."""
    where, sign, query = address.partition("?")
    if not sign:
        return address
    rest = sorted((k, v) for k, v in parse_qsl(query, keep_blank_values=True) if not _SIGNS.fullmatch(k))
    return where + MASK + (hashlib.sha256(repr(rest).encode()).hexdigest()[:12] if rest else "")


def shown(text: str) -> str:
    """A text of others with *** in the place of each query."""
    return _QUERY.sub(lambda found: found[1] + MASK, text)
