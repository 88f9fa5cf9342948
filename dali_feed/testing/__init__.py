"""What a test of a training pipeline needs: a broker in this process, records to put in it, scripted faults,
and the test of resume that every source must pass.

Importing this loads nothing heavy; each name loads what it needs when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dali_feed.packages import needed

if TYPE_CHECKING:
    from dali_feed.testing.embedded import Broker, broker
    from dali_feed.testing.publisher import Message, publish
    from dali_feed.testing.resumes import assert_resumes_anywhere
    from dali_feed.testing.scripted import ScriptedSource

__all__ = ["Broker", "Message", "ScriptedSource", "assert_resumes_anywhere", "broker", "publish"]

# A module must not be called what a name here is called: importing it would put the module in the name's place.
_HOME = {
    "Broker": "embedded",
    "Message": "publisher",
    "ScriptedSource": "scripted",
    "assert_resumes_anywhere": "resumes",
    "broker": "embedded",
    "publish": "publisher",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with needed():
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
