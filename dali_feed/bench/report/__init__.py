"""An outcome of the bench as one page of HTML that needs nothing else.

Never: a script, a font, an image or a style from anywhere else; what the outcome does not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.bench.report.document import compared, page, write

__all__ = ["compared", "page", "write"]

__getattr__ = lazily(__name__, dict.fromkeys(__all__, "document"))
