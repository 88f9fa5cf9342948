"""Prints the members of a source's records, and the columns that could be made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.cli.member_kinds import Guess
from dali_feed.cli.members import VALUE, Seen
from dali_feed.cli.text import size_text

__all__ = ["columns_for", "show_members"]

MOST_COLUMNS = 12
MOST_INSIDE = 6  # columns out of one member; of more it is given whole
_KINDS = 3  # that are named of one member
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
    wrapped = [member.name for member in seen if member.guess.base64]
    if wrapped:
        listed = ", ".join(f'"{name.rpartition(":")[2]}"' for name in wrapped)
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
        if 0 < len(parts) <= MOST_INSIDE or (member.inside and _crowd(seen, member.inside) > MOST_INSIDE):
            continue  # its parts are columns, or it is part of what is given whole
        if member.guess.kind == "Bytes" and member.guess.text == "nothing":
            continue
        chosen.append((member.name, member.guess))
    chosen.sort(key=lambda each: each[1].kind != "Image")
    made: dict[str, str] = {}
    for member_name, kind in chosen[:MOST_COLUMNS]:
        made.setdefault(_called(member_name, kind, made), f'{kind.kind}("{member_name}"{kind.more})')
    return "{" + ", ".join(f'"{name}": {kind}' for name, kind in made.items()) + "}" if made else ""


def _crowd(seen: Sequence[Seen], inside: str) -> int:
    return sum(one.inside == inside and bool(one.guess.kind) and one.share > 0.5 for one in seen)


def _called(member: str, kind: Guess, taken: dict[str, str]) -> str:
    """A column's name: what people call it, else the last word of the member's."""
    if kind.kind == "Image" and "image" not in taken:
        return "image"
    last = re.split(r"[.:\[\];]", member.rstrip(']"'))[-1].strip('"') or member
    name = "label" if last in _LABELS else "text" if last == "txt" else last
    return name if name not in taken else member
