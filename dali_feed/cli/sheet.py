"""A contact sheet: records as one PNG, each image with where it is, its label, and what else is to be said of it.

The law: the file is there whole or not at all.
"""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dali_feed.errors import ConfigError
from dali_feed.packages import needed
from dali_feed.storage.durable import write_whole

if TYPE_CHECKING:
    from PIL import Image

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
    """Cells that are drawn as one PNG. ConfigError, before anything is read: none can be written to `path`."""

    def __init__(self, option: str, path: Path) -> None:
        self._option, self._path = option, path
        self.cells: list[Cell] = []
        if path.suffix.lower() != ".png":
            raise ConfigError(f"{option}: must be a PNG file, NAME.png; found {str(path)!r}")
        if not path.parent.is_dir() or path.is_dir():
            what = "a folder of that name" if path.is_dir() else f"no folder {str(path.parent)!r}"
            raise ConfigError(f"{option}: must be a file in a folder that exists; found {what}")
        with needed():
            import PIL.Image  # noqa: F401  said now, not when everything has been read

    def write(self) -> None:
        """Draw all cells. Raises ConfigError where the file cannot be written."""
        out = io.BytesIO()
        self._drawn().save(out, "PNG")
        try:
            write_whole(self._path, out.getvalue())
        except OSError as error:
            msg = f"{self._option}: {self._path} must be a file that can be written; found: {error.strerror}"
            raise ConfigError(msg) from error

    def _drawn(self) -> Image.Image:
        from PIL import Image, ImageDraw, ImageFont

        rows = -(-len(self.cells) // COLUMNS)
        width = 2 * EDGE + COLUMNS * (SIDE + GAP) - GAP
        caption = CAPTION + LINE * max((len(_notes(cell)) for cell in self.cells), default=0)
        sheet = Image.new("RGB", (width, 2 * EDGE + max(1, rows) * (SIDE + caption + GAP) - GAP), PAPER)
        draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(SIZE)
        for n, cell in enumerate(self.cells):
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
