"""What members a source's records have: how many have each, how large it is, what it seems to be; columns to paste.

A look at some records. A member whose format is known is looked into: JSON in a tar sample, what --format says of a
topic.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dali_feed.cli.view import Report, size_text, table
from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.format import Format
from dali_feed.formats.npy import MAGIC
from dali_feed.formats.npy import header_of as npy_header
from dali_feed.formats.paths import steps_of
from dali_feed.packing.plan import blocks
from dali_feed.records.source import Block, Extents, Source, alternatives
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of

LOOKED_AT = 64  # records
MOST = 100  # members that are listed
MOST_COLUMNS = 12
MOST_INSIDE = 6  # columns out of one member; of more it is taken whole
VALUE = "value"  # of a topic's record; what its format finds there is called by its path alone
_KINDS = 3  # that are named of one member
_SUFFIX = re.compile(r"jpe?g|png|webp|bmp|gif|tiff?|avif|jp2|txt|cls|json|npy|msgpack|mp|[fiu](8|16|32|64)")
_LABELS = ("cls", "label", "target")
_CLASSES = re.compile(r"mask|seg|classes", re.IGNORECASE)
_RAW = re.compile(r"(f|fp|float|i|int|u|uint)(16|32|64)")  # a suffix that says what raw bytes are
_HEAD = 4096  # bytes that are looked at where a text is long


@dataclass(frozen=True, slots=True)
class Guess:
    """What a member seems to be.

    text    for people: "jpeg image", "int, as text", "float32 (2048,)"
    kind    of `dali_feed.columns`; "" where none suggests itself
    more    of its arguments, behind the member
    base64  it is bytes in a text, which a format can unwrap
    """

    text: str
    kind: str
    more: str = ""
    base64: bool = False


@dataclass(slots=True)
class MemberStats:
    """A member.

    count   records that have it, of `of`
    size    bytes of all of them; single numbers count none
    kinds   what it seems to be -> records
    inside  the member that holds it, "" where it is one of the source's own
    """

    name: str
    inside: str = ""
    of: int = 0
    count: int = 0
    size: int = 0
    kinds: Counter[Guess] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of the records, 0..1."""
        return self.count / max(1, self.of)

    @property
    def guess(self) -> Guess:
        """What most of them are."""
        return self.kinds.most_common(1)[0][0]

    def take(self, value: Any) -> None:
        """Note a record's."""
        self.count += 1
        self.size += _size(value)
        self.kinds[guess(self.name, value)] += 1


@dataclass(slots=True)
class MembersSeen:
    """Members of some records, in the source's order, and behind each what a format finds in it.

    records  of each that is there: its id, bytes of its members, and why they cannot be read, or None
    absent   positions without a record
    """

    members: list[MemberStats] = field(default_factory=list)
    records: list[tuple[int, int, str | None]] = field(default_factory=list)
    absent: int = 0


def members_of(source: Source, extents: Extents, formats: Mapping[str, Format]) -> MembersSeen:
    """Read records, all in memory at a time, and look at their members; one that fits none of `formats` is bad."""
    names = tuple(member.name for member in source.members() if _askable(member.name))[:MOST]
    own = {name: MemberStats(_own_name(name, VALUE in formats)) for name in names}
    inside: dict[tuple[str, str], MemberStats] = {}  # a header may be called as what a format finds
    seen, readable = MembersSeen(), 0

    def look(name: str, value: Any) -> str | None:
        """Note a record's member, and what its format finds in it; why that does not fit, where the user says it."""
        own[name].take(value)
        form = formats.get(name) or source.format_of(name)
        try:
            for path, each in _inside(form, name, value):
                if len(inside) < 10 * MOST:
                    inside.setdefault((name, path), MemberStats(path, name)).take(each)
        except Exception as error:  # noqa: BLE001 - a format may raise anything
            return str(error) if name in formats else None
        return None

    for block in blocks(source, names, [extents]):
        absent = set(block.absent_rows())
        seen.absent += len(absent)
        for row in range(len(block.ids)):
            if row in absent:
                continue
            fault = block.faults.get(row)
            reason = None if fault is None else fault.reason
            if fault is None:
                readable += 1
                columns = ((name, values[row]) for name, values in block.values.items() if values[row] is not None)
                reason = next(filter(None, [look(name, value) for name, value in columns]), None)
            seen.records.append((int(block.ids[row]), size_of(block, row), reason))
    seen.members = [
        replace(stats, of=readable)
        for name, whole in own.items()
        for stats in (whole, *(each for (holder, _), each in inside.items() if holder == name))
        if whole.count
    ][:MOST]
    return seen


def size_of(block: Block, row: int) -> int:
    """Bytes of a record's members; single numbers count none."""
    return sum(_size(column[row]) for column in block.values.values())


def _size(value: Any) -> int:
    """Bytes of a member; single numbers count none."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, bytes | memoryview | str) else 0


def _askable(name: str) -> bool:
    """Whether a column may have it as its member: a ";" stands between several."""
    return alternatives(name) == (name,)


def _own_name(name: str, looked_into: bool) -> str:
    """Of a topic's member: a header gets its full name beside what a format finds in the value."""
    header = name not in (VALUE, "key", "timestamp") and not name.startswith("headers.")
    return f"headers.{name}" if header and looked_into else name


def _inside(form: Format | None, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a member's format finds in it, by the names that columns have for that."""
    if form is None or not isinstance(value, memoryview | bytes):
        return
    for part, each in form.members(value).items():
        if part != "$" and each is not None:
            own = part in (VALUE, "key", "timestamp") or part.startswith("headers.")  # of a topic's record
            path = part if name == VALUE and not own else f"{name}:{part}"
            if _askable(path):
                yield path, each


def guess(name: str, value: Any) -> Guess:
    """What one record's member is, bytes or a value."""
    if isinstance(value, bytes | memoryview):
        return _of_bytes(name, value)
    if isinstance(value, bool | np.bool_):
        return Guess("bool", "Number", ', "bool"')
    if isinstance(value, int | np.integer):
        return Guess("int", "Number")
    if isinstance(value, float | np.floating):
        return Guess("float", "Number", ', "float32"')
    if isinstance(value, str):
        return _of_base64(name, value) or Guess("text", "Text")
    if isinstance(value, np.ndarray | list):
        return _of_numbers(value)
    return Guess(type(value).__name__, "JsonValue" if isinstance(value, dict) else "")


def _of_bytes(name: str, value: bytes | memoryview) -> Guess:
    try:
        header = header_of(value)
    except UnusableError:
        pass
    else:
        classes = header.components == 1 and _CLASSES.search(name)
        return Guess(f"{header.format} image", "Mask" if classes else "Image")
    if value[: len(MAGIC)] == MAGIC:
        try:
            _, dtype, shape, _ = npy_header(value)
        except FormatError:
            return Guess("npy, cut off", "Bytes")
        return Guess(f"npy {dtype.name} {shape}", "Array", f', "{dtype.name}", {shape}')
    suffix = _RAW.fullmatch(name.rpartition(".")[2].lower())
    if suffix is not None:
        dtype = np.dtype(f"{suffix[1][0]}{int(suffix[2]) // 8}")
        if len(value) and len(value) % dtype.itemsize == 0:
            count = len(value) // dtype.itemsize
            return Guess(f"{dtype.name} ({count},)", "Array", f', "{dtype.name}", ({count},)')
    return _of_text(value)


def _of_text(value: bytes | memoryview) -> Guess:
    head = bytes(value[:_HEAD])
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < _HEAD - 4 or len(value) <= _HEAD:
            return Guess("bytes", "Bytes")
        text = head[: error.start].decode()
    if "\0" in text or not text:
        return Guess("bytes" if text else "nothing", "Bytes")
    if text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(bytes(value))
        except (ValueError, RecursionError):
            return Guess("text", "Text")
        return Guess("json", "JsonValue")
    if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        return Guess("int, as text", "Number")
    if re.fullmatch(r"\s*[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", text):
        return Guess("float, as text", "Number", ', "float32"')
    return Guess("text", "Text")


def _of_base64(name: str, text: str) -> Guess | None:
    """Of a text that is an image in base64."""
    body = text.partition(",")[2] if text.startswith("data:") else text
    if len(body) < 32:
        return None
    try:
        inside = _of_bytes(name, base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError):
        return None
    if inside.kind not in ("Image", "Mask", "Array"):
        return None
    return Guess(f"{inside.text}, in base64", inside.kind, inside.more, base64=True)


def _of_numbers(value: Any) -> Guess:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        return Guess("list", "JsonValue")
    if array.dtype.kind not in "biuf":
        return Guess("list", "JsonValue")
    dtype = array.dtype.name if isinstance(value, np.ndarray) or array.dtype.kind != "f" else "float32"
    if isinstance(value, list) and array.ndim == 2 and array.shape[1] == 4:
        return Guess("rows of 4", "Boxes")
    return Guess(f"{dtype} {array.shape}", "Array", f', "{dtype}", {array.shape}')


def members_report(seen: MembersSeen, *, topic: bool) -> Report:
    """A line per member, and columns to paste."""
    report, members = Report(), seen.members
    if not members:
        return report

    def kinds(member: MemberStats) -> str:
        texts = dict.fromkeys(kind.text for kind, _ in member.kinds.most_common(_KINDS))
        return ", ".join(texts) + (", ..." if len(member.kinds) > _KINDS else "")

    columns = {
        "member": lambda member: f"  {member.name}" if member.inside else member.name,
        "in": lambda member: f"{member.share:.0%}",
        "mean size": lambda member: size_text(member.size / member.count) if member.size else "-",
        "kind": kinds,
    }
    report.tables.append(table(members, columns, left=["member", "kind"], most=MOST))
    coded = [member.name.removeprefix(f"{member.inside}:") for member in members if member.guess.base64]
    if coded:
        names = ", ".join(map(_quoted, coded)) + ("," if len(coded) == 1 else "")
        report.note(f"  format=Json(base64=({names}))", "green")
    closed = not any(member.inside for member in members)
    if topic and closed and any(member.name == VALUE and member.guess.text == "json" for member in members):
        report.note("  the values are JSON: inspect --format json looks into them")
    if named := columns_for(members):
        report.note(f"  columns={named}", "green")
    return report


def columns_for(members: Sequence[MemberStats]) -> str:
    """`{"image": Image("jpg"), ...}`: a column per member that more than half of the records have; "" for none."""
    chosen: list[tuple[str, Guess]] = []
    images = [member for member in members if not member.inside and member.guess.kind == "Image"]
    if len(images) > 1 and sum(member.share for member in images) <= 1.01:  # a record has one of them
        chosen.append((";".join(member.name for member in images), images[0].guess))
        members = [member for member in members if member not in images]
    for member in members:
        if member.share <= 0.5 or not member.guess.kind or member.name in ("key", "timestamp"):
            continue
        crowded = bool(member.inside) and _parts(members, member.inside) > MOST_INSIDE
        if 0 < _parts(members, member.name) <= MOST_INSIDE or (crowded and not _foremost(member)):
            continue  # its parts are columns, or it is part of what is taken whole
        if member.guess.kind == "Bytes" and member.guess.text == "nothing":
            continue
        chosen.append((member.name, member.guess))
    chosen.sort(key=lambda each: each[1].kind != "Image")
    columns: dict[str, str] = {}
    for name, kind in chosen[:MOST_COLUMNS]:
        columns[_column(name, kind, columns)] = f"{kind.kind}({_quoted(name)}{kind.more})"
    return "{" + ", ".join(f"{_quoted(name)}: {kind}" for name, kind in columns.items()) + "}" if columns else ""


def _parts(members: Sequence[MemberStats], inside: str) -> int:
    """How many members in that one could be columns."""
    return sum(one.inside == inside and bool(one.guess.kind) and one.share > 0.5 for one in members)


def _foremost(member: MemberStats) -> bool:
    """Whether it is what most people want of a record."""
    return member.guess.kind == "Image" or _word_list(member.name)[-1] in _LABELS


def _column(member: str, kind: Guess, taken: Mapping[str, str]) -> str:
    """A column's name, an identifier: what people call it, else the last name in the member's path."""
    if kind.kind == "Image" and "image" not in taken:
        return "image"
    words = _word_list(member)
    last = "_".join(words[-2:]) if words[-1].isdigit() else words[-1]
    short, long = map(_identifier, ("label" if last in _LABELS else "text" if last == "txt" else last, "_".join(words)))
    return next(name for name in (short, long, *(f"{long}_{n}" for n in range(2, 1000))) if name not in taken)


def _word_list(member: str) -> list[str]:
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
    name = re.sub(r"\W", "_", name).strip("_") or "column"
    return name if name.isidentifier() else f"_{name}"


def _quoted(text: str) -> str:
    """As Python reads it."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
