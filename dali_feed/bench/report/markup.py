"""HTML as strings: the one place where text becomes markup, so that no text of a user's is markup.

The law: whatever is not made by `tag` or `raw` is escaped.
"""

from __future__ import annotations

import html
from typing import NewType

__all__ = ["Markup", "join", "tag", "text"]

Markup = NewType("Markup", str)
_ALONE = {"meta", "line", "rect", "path", "circle", "col"}


def text(value: object) -> Markup:
    """Any value, escaped."""
    return Markup(html.escape(str(value), quote=True))


def join(*parts: Markup | str) -> Markup:
    """One after the other; what is no markup yet is escaped by `text` before."""
    return Markup("".join(parts))


def tag(name: str, /, *inside: Markup, **attributes: object) -> Markup:
    """An element; `class_` stands for class, and "_" in a name for "-". None leaves an attribute out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _ALONE and not inside:
        return Markup(f"<{name}{told}/>" if name != "meta" else f"<{name}{told}>")
    return Markup(f"<{name}{told}>{''.join(inside)}</{name}>")
