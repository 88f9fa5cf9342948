"""Prints the members of a source's records, and the columns that could be made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.cli.member_kinds import Guess
from dali_feed.cli.members import VALUE, Seen
from dali_feed.cli.text import size_text
from dali_feed.errors import ConfigError
from dali_feed.formats.paths import steps_of

__all__ = ["columns_for", "show_members"]

MOST_COLUMNS = 12
MOST_INSIDE = 6  # columns out of one member; of more it is given whole
_KINDS = 3  # that are named of one member
_SUFFIX = re.compile(r"jpe?g|png|webp|bmp|gif|tiff?|avif|jp2|txt|cls|json|npy|msgpack|mp|[fiu](8|16|32|64)")
_LABELS = ("cls", "label", "target")


def show_members(seen: Sequence[Seen], *, topic: bool) -> None:
    """A line per member, and columns to paste."""
    if not seen:
        return
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("member", overflow="fold")
    table.add_column("in", justify="right", no_wrap=True)
    table.add_column("mean size", justify="right", no_wrap=True)
    table.add_column("kind", overflow="fold")
    for member in seen:
        size = size_text(member.size / member.count) if member.size else "-"
        kinds = ", ".join(dict.fromkeys(kind.text for kind, _ in member.kinds.most_common(_KINDS)))
        more = ", ..." if len(member.kinds) > _KINDS else ""
        name = Text(f"  {member.name}" if member.inside else member.name)
        table.add_row(name, f"{member.share:.0%}", size, Text(kinds + more))
    console.print(table)
    wrapped = [member.name.removeprefix(f"{member.inside}:") for member in seen if member.guess.base64]
    if wrapped:
        listed = ", ".join(_quoted(name) for name in wrapped)
        trailing = "," if len(wrapped) == 1 else ""
        console.print(Text(f"  format=Json(base64=({listed}{trailing}))", style="green"), soft_wrap=True)
    closed = not any(member.inside for member in seen)
    if topic and closed and any(member.name == VALUE and member.guess.text == "json" for member in seen):
        console.print("  the values are JSON: inspect --format json looks into them")
    if columns := columns_for(seen):
        console.print(Text(f"  columns={columns}", style="green"), soft_wrap=True)


def columns_for(seen: Sequence[Seen]) -> str:
    """`{"image": Image("jpg"), ...}`: a column per member that more than half of the records have; "" for none."""
    chosen: list[tuple[str, Guess]] = []
    images = [member for member in seen if not member.inside and member.guess.kind == "Image"]
    whole = sum(member.share for member in images)
    if len(images) > 1 and whole <= 1.01:  # a record has one of them
        chosen.append((";".join(member.name for member in images), images[0].guess))
        seen = [member for member in seen if member not in images]
    for member in seen:
        if member.share <= 0.5 or not member.guess.kind or member.name in ("key", "timestamp"):
            continue
        parts = [one for one in seen if one.inside == member.name and one.guess.kind and one.share > 0.5]
        crowded = bool(member.inside) and _crowd(seen, member.inside) > MOST_INSIDE
        if 0 < len(parts) <= MOST_INSIDE or (crowded and not _foremost(member)):
            continue  # its parts are columns, or it is part of what is given whole
        if member.guess.kind == "Bytes" and member.guess.text == "nothing":
            continue
        chosen.append((member.name, member.guess))
    chosen.sort(key=lambda each: each[1].kind != "Image")
    made: dict[str, str] = {}
    for member_name, kind in chosen[:MOST_COLUMNS]:
        made[_called(member_name, kind, made)] = f"{kind.kind}({_quoted(member_name)}{kind.more})"
    return "{" + ", ".join(f"{_quoted(name)}: {kind}" for name, kind in made.items()) + "}" if made else ""


def _foremost(member: Seen) -> bool:
    """Whether it is what most people want of a record."""
    return member.guess.kind == "Image" or _named(member.name)[-1] in _LABELS


def _crowd(seen: Sequence[Seen], inside: str) -> int:
    return sum(one.inside == inside and bool(one.guess.kind) and one.share > 0.5 for one in seen)


def _called(member: str, kind: Guess, taken: dict[str, str]) -> str:
    """A column's name, an identifier: what people call it, else the last name in the member's path."""
    if kind.kind == "Image" and "image" not in taken:
        return "image"
    words = _named(member)
    last = "_".join(words[-2:]) if words[-1].isdigit() else words[-1]
    several = ("label" if last in _LABELS else "text" if last == "txt" else last, "_".join(words))
    names = [_identifier(name) for name in several]
    return next(name for name in (*names, *(f"{names[1]}_{n}" for n in range(2, 1000))) if name not in taken)


def _named(member: str) -> list[str]:
    """The names in a member's path, or of a file's suffix such as `left.jpg`, with what it is called first of all."""
    if member.startswith("headers."):
        return ["headers", member.removeprefix("headers.")]
    of, colon, path = member.partition(";")[0].partition(":")
    words = [of] if colon else []
    try:
        steps = [str(step) for step in steps_of(path if colon else of)]
    except ConfigError:  # no path, but one name
        steps = [path if colon else of]
    if not colon and len(steps) > 1 and _SUFFIX.fullmatch(steps[-1]):
        return [*words, steps[-1], "_".join(steps[:-1])]
    return [*words, *steps] or [member]


def _identifier(name: str) -> str:
    made = re.sub(r"\W", "_", name).strip("_") or "column"
    return made if made.isidentifier() else f"_{made}"


def _quoted(text: str) -> str:
    """As Python reads it."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
