"""What a test of a training pipeline needs: a broker, records to put in it, scripted faults, the test of resume.

Never: what a training run needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.testing.embedded import Broker, broker
    from dali_feed.testing.publisher import Message, publish
    from dali_feed.testing.resumes import assert_resumes_anywhere, assert_stream_resumes
    from dali_feed.testing.scripted import Abort, Corrupt, Gap, ScriptedSource, ScriptedStream, Stall

__all__ = [
    "Abort",
    "Broker",
    "Corrupt",
    "Gap",
    "Message",
    "ScriptedSource",
    "ScriptedStream",
    "Stall",
    "assert_resumes_anywhere",
    "assert_stream_resumes",
    "broker",
    "publish",
]

__getattr__ = lazily(
    __name__,
    {
        "Abort": "scripted",
        "Broker": "embedded",
        "Corrupt": "scripted",
        "Gap": "scripted",
        "Message": "publisher",
        "ScriptedSource": "scripted",
        "ScriptedStream": "scripted",
        "Stall": "scripted",
        "assert_resumes_anywhere": "resumes",
        "assert_stream_resumes": "resumes",
        "broker": "embedded",
        "publish": "publisher",
    },
)
