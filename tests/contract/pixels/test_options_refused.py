"""Options of an engine that contradict the transform: refused when the feed is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.images import jpeg
from kit.inside import Feed
from torchvision.transforms import v2

from dali_feed import Decode
from dali_feed.errors import ConfigError
from dali_feed.testing import ScriptedSource


def graph(images: Any, draws: Any) -> Any:
    """A user's own graph."""
    del draws
    return images


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": v2.Resize((8, 8)), "decode": "fast"}, "decode: must be a Decode"),
        (
            {"transform": graph, "decode": Decode(memory_format=torch.channels_last)},
            r"Decode\(memory_format=...\): must be left out with a DALI graph, .*; found torch.channels_last",
        ),
        ({"transform": graph, "decode": Decode(engine="host")}, r"Decode\(engine='host'\): .*found a DALI graph"),
    ],
)
def test_an_option_that_the_engine_cannot_keep_is_refused(options: dict[str, Any], said: str) -> None:
    """With what it may be."""
    with pytest.raises(ConfigError, match=said):
        Feed(ScriptedSource([(jpeg(0), 1)]), 1, **options).close()
