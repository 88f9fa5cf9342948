"""Options of an engine that contradict the transform: refused when the feed is made."""

from __future__ import annotations

from typing import Any

import pytest
from kit.images import jpeg
from kit.inside import Feed
from torchvision.transforms import v2

from dali_feed.errors import ConfigError
from dali_feed.testing import ScriptedSource


def graph(images: Any, draws: Any) -> Any:
    """A user's own graph."""
    del draws
    return images


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": v2.Resize((8, 8)), "layout": "CHWN"}, 'layout: must be "NCHW" or "NHWC"; found \'CHWN\''),
        ({"transform": v2.Resize((8, 8)), "decode": "fast"}, 'decode: must be "exact", "reduced" or "region"'),
        ({"transform": v2.Resize((8, 8)), "exif": 1}, "exif: must be True or False; found 1"),
        ({"transform": graph, "layout": "NHWC"}, "layout: must be left out with a DALI graph, .*; found 'NHWC'"),
    ],
)
def test_an_option_that_the_engine_cannot_keep_is_refused(options: dict[str, Any], said: str) -> None:
    """With what it may be."""
    with pytest.raises(ConfigError, match=said):
        Feed(ScriptedSource([(jpeg(0), 1)]), 1, **options).close()
