"""A contact sheet: some of a source's images as one PNG, each with where it is and its label.

The law: the file is there whole or not at all, and no image comes before a decoder that a training run would not
decode: each passes the screen first, and one that does not is a frame with its reason.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dali_feed.cli.findings import blocks, fields_of, refused, spread
from dali_feed.errors import ConfigError
from dali_feed.packages import needed
from dali_feed.records.source import LABEL, Block, Snapshot, Source, unpack_ids
from dali_feed.storage.durable import write_whole

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["AMBER", "Cell", "Sheet", "drawn", "place_for", "put_whole"]

SIDE = 160  # pixels of an image's longer side
EDGE, GAP, CAPTION, LINE = 16, 12, 34, 13
COLUMNS = 6
SIZE = 11  # of letters
PAPER, INK, DIM, AMBER = "#ffffff", "#202020", "#707070", "#b45f06"
LETTERS = 26  # in a line


@dataclass(frozen=True, slots=True)
class Cell:
    """A record on a sheet.

    label  as it is written below it; "" for none
    image  made small where it is large, or why there is none
    notes  further lines below it
    mark   a line before those that warns
    """

    where: str
    label: str
    image: Image.Image | str
    notes: tuple[str, ...] = ()
    mark: str = ""


class Sheet:
    """Takes the images of sources, a sample of `count` each, and is then written to `path`.

    Raises ConfigError where no PNG can be written there, before anything is read.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._count = path, count
        self._cells: list[Cell] = []
        place_for("--sheet", path, ".png")

    def add(self, source: Source, snapshot: Snapshot) -> None:
        """Read a sample, spread over the source."""
        for block in blocks(source, snapshot, spread(snapshot, self._count)):
            self._cells += _cells(source, block)

    def write(self) -> int:
        """Draw and write it; how many records it shows. Raises ConfigError where it cannot be written."""
        put_whole("--sheet", self._path, drawn(self._cells))
        return len(self._cells)


def place_for(option: str, path: Path, *suffixes: str) -> None:
    """Raise ConfigError where no such file can be written there, before anything is read."""
    if path.suffix.lower() not in suffixes:
        kinds = " or ".join(f"a {each[1:].upper()} file, NAME{each}" for each in suffixes)
        msg = f"{option}: must be {kinds}; found {str(path)!r}"
        raise ConfigError(msg)
    if not path.parent.is_dir() or path.is_dir():
        found = "a folder of that name" if path.is_dir() else f"no folder {str(path.parent)!r}"
        msg = f"{option}: must be a file in a folder that exists; found {found}"
        raise ConfigError(msg)
    with needed():
        import PIL.Image  # noqa: F401  said now, not when everything has been read


def put_whole(option: str, path: Path, held: bytes) -> None:
    """Write a file, whole or not at all. Raises ConfigError where it cannot be written."""
    try:
        write_whole(path, held)
    except OSError as error:
        msg = f"{option}: {path} must be a file that can be written; found: {error.strerror}"
        raise ConfigError(msg) from error


def _cells(source: Source, block: Block) -> Iterator[Cell]:
    partitions, positions = unpack_ids(block.ids)
    for row, payload in enumerate(block.payloads):
        if payload is None:
            continue
        where = source.where(int(partitions[row]), int(positions[row]))
        label = None if row in block.faults else fields_of(block, row).get(LABEL)
        reason = block.faults.get(row) or refused(payload)
        told = "no label" if label is None else f"label {label}"
        yield Cell(where, told, _small(payload) if reason is None else reason)


def _small(payload: memoryview) -> Image.Image | str:
    """The image as it is stored, not turned, at most SIDE pixels long; or what Pillow says of it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(payload)) as found:
            found.draft("RGB", (SIDE, SIDE))  # a JPEG is decoded at an eighth, a quarter or half where that is enough
            image = found.convert("RGBA" if "transparency" in found.info else "RGB").convert("RGB")
    except UnidentifiedImageError:
        return "an image that Pillow cannot read"
    except Exception as error:  # noqa: BLE001  a decoder may raise anything for a broken image
        return f"Pillow: {error}"
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def drawn(cells: Sequence[Cell]) -> bytes:
    """All of them as one PNG."""
    out = io.BytesIO()
    _draw(cells).save(out, "PNG")
    return out.getvalue()


def _draw(cells: Sequence[Cell]) -> Image.Image:
    from PIL import Image, ImageDraw, ImageFont

    rows = -(-len(cells) // COLUMNS)
    width = 2 * EDGE + COLUMNS * (SIDE + GAP) - GAP
    caption = CAPTION + LINE * max((len(_notes(cell)) for cell in cells), default=0)
    sheet = Image.new("RGB", (width, 2 * EDGE + max(1, rows) * (SIDE + caption + GAP) - GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(SIZE)
    for n, cell in enumerate(cells):
        x = EDGE + n % COLUMNS * (SIDE + GAP)
        y = EDGE + n // COLUMNS * (SIDE + caption + GAP)
        if isinstance(cell.image, str):
            draw.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), outline=AMBER, width=2)
            lines = textwrap.wrap(cell.image, LETTERS, max_lines=10)
            draw.multiline_text((x + 8, y + 8), "\n".join(lines), AMBER, font)
        else:
            image = cell.image.copy()
            image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            sheet.paste(image, (x + (SIDE - image.width) // 2, y + (SIDE - image.height) // 2))
        draw.text((x, y + SIDE + 3), _end(cell.where), INK, font)
        draw.text((x, y + SIDE + 17), cell.label, DIM, font)
        for line, (text, colour) in enumerate(_notes(cell)):
            draw.text((x, y + SIDE + CAPTION + LINE * line - 3), text, colour, font)
    return sheet


def _notes(cell: Cell) -> list[tuple[str, str]]:
    """The lines below where and label, as wide as an image, each with its colour."""
    marked = [(line, AMBER) for line in textwrap.wrap(cell.mark, LETTERS, max_lines=3)]
    return marked + [(line, DIM) for note in cell.notes for line in textwrap.wrap(note, LETTERS, max_lines=2)]


def _end(where: str) -> str:
    """The end of a long place, which tells records apart."""
    return where if len(where) <= LETTERS else f"...{where[3 - LETTERS :]}"
