"""The command line, `dali-feed`: each command parses, makes a library call, and shows a `Report`.

Never: what a training run needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.cli.app import main

__all__ = ["main"]

__getattr__ = lazily(__name__, {"main": "app"})
