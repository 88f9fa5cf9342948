"""`dali-feed show`: one batch of a run as a model gets it, on a sheet: who they are and what was drawn for them.

Draws are pure, so they are not kept but made again, for the seed, the epoch and the sample's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.cli.judging import judged
from dali_feed.cli.sheet import Cell, Sheet
from dali_feed.cli.view import Report, plural, show
from dali_feed.columns.columns import Columns
from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.records.source import LABEL, Extents, Source, unpack_ids
from dali_feed.transforms.nest import Nest
from dali_feed.transforms.op import WINDOW, Arrays, Op, Place, Recipe, numbered
from dali_feed.transforms.program import Program

if TYPE_CHECKING:
    from PIL import Image

_UNDRAWN = ("scale", "draw")  # follow from the size; are no words


@dataclass(frozen=True, slots=True)
class Shown:
    """Which batch is shown: number `batch` of an epoch on one rank, as a run of that seed and shuffle has it."""

    batch: int = 0
    batch_size: int = 24
    epoch: int = 0
    seed: int = 0
    shuffle: bool = True


def show_batch(read: Callable[[], Source], transform: object, shown: Shown, out: Path) -> None:
    """Write the sheet of a batch of the source that `read` gives, once it is known that it can be written."""
    sheet = Sheet("--out", out)
    sheet.cells = cells_of(read(), transform, shown)
    sheet.write()
    count, replaced = len(sheet.cells), sum(bool(cell.mark) for cell in sheet.cells)
    more = f", {replaced} of them in place of another" if replaced else ""
    show(Report(notes=[(f"{out}: {count} record{plural(count)}{more}", "")]))


def cells_of(source: Source, transform: object, shown: Shown) -> list[Cell]:
    """A cell per slot, by the host engine; what comes before is not read. ConfigError: there is no such batch."""
    with Feed(
        source,
        shown.batch_size,
        shuffle=shown.shuffle,
        lanes=1,
        transform=transform,
        seed=shown.seed,
        decode=Decode(engine="host"),
        bad=BadRecords(limit=None),
    ) as feed:
        if not feed.program.outputs:
            raise ConfigError(f"{source!r}: must have images, which this command shows; found none")
        if len(feed.program.outputs) > 1:
            msg = f"--transform: must be one transform; found {len(feed.program.outputs)} views; show them one by one"
            raise ConfigError(msg)
        feed.set_epoch(shown.epoch)
        if shown.batch >= len(feed):
            raise ConfigError(f"--batch: must lie in 0..{len(feed) - 1}, the batches of an epoch; found {shown.batch}")
        first = shown.batch * shown.batch_size
        feed.load_state_dict({**feed.state_dict(), "epoch": shown.epoch, "consumed": first})
        wanted = feed.plan.ids(0, first, first + shown.batch_size) if hasattr(feed.plan, "ids") else None
        batch = next(iter(feed))
        reasons = dict(feed.stats().recent_bad)
        images = _images(batch, feed.program.recipe)
        draws = draws_in_words(feed.program, _sizes(source, feed, batch.ids), batch.ids, shown.seed, shown.epoch)
        return [
            Cell(
                feed.where(int(batch.ids[slot])),
                _label(batch, slot),
                image,
                tuple(draws[slot]),
                "" if batch.ok[slot] else _replaced(feed, wanted, slot, reasons),
            )
            for slot, image in enumerate(images)
        ]


def _label(batch: Batch, slot: int) -> str:
    values = batch.fields.get(LABEL)
    return "" if values is None else f"label {values[slot]}"


def _replaced(feed: Feed, wanted: NDArray[np.int64] | None, slot: int, reasons: dict[str, str]) -> str:
    if wanted is None:
        return "in place of another record"
    where = feed.where(int(wanted[slot]))
    return f"in place of {where}: {reasons.get(where, 'no record there')}"


def _sizes(source: Source, feed: Feed, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Height and width in the headers of these records, int64 (n, 2), which are read again."""
    unique = np.unique(ids)
    partition, position = unpack_ids(unique)
    sizes: dict[int, tuple[int, int]] = {}
    columns = Columns(source)
    for block in judged(source, columns, feed.snapshot, Extents(partition, position, position + 1)):
        images = block.values[str(columns.image)]
        sizes |= {sample: tuple(size) for sample, size in zip(block.ids.tolist(), images.sizes.tolist(), strict=True)}
    return np.array([sizes[sample] for sample in ids.tolist()], np.int64).reshape(-1, 2)


def _images(batch: Batch, recipe: Recipe) -> Sequence[Image.Image]:
    """The finished images with levels of 0..255 again: what Normalize and ToDtype did to values is undone."""
    import torch
    from PIL import Image

    place = reduce(lambda place, op: op.output_place(place), recipe.ops, Place())
    values: Any = torch.utils.dlpack.from_dlpack(batch).float().permute(0, 2, 3, 1)
    scale, bias = (torch.tensor(each, dtype=torch.float32) for each in (place.scale, place.bias))
    levels = ((values - bias) / scale).round().clamp(0, 255).byte().numpy()
    return [Image.fromarray(np.ascontiguousarray(each)) for each in levels]


def draws_in_words(
    program: Program, sizes: NDArray[Any], ids: NDArray[np.int64], seed: int, epoch: int
) -> list[list[str]]:
    """What was drawn for each sample, a line per transform that draws: a crop window, a flip, an angle.

    `sizes`: height and width in the header, int (n, 2).
    """
    arrays, _ = program.outputs[0].draw(sizes, ids, seed, epoch)
    ops = list(enumerate(program.recipe.ops))
    return [list(_lines(ops, arrays, row)) for row in range(len(ids))]


def _lines(ops: Sequence[tuple[int, Op]], arrays: Arrays, row: int) -> Iterator[str]:
    for n, op in ops:
        if isinstance(op, Nest):
            branches = op.within(n)
            for pick in np.atleast_1d(arrays[numbered("pick", n)][row]).tolist():
                if 0 <= pick < len(branches):
                    yield from _lines(branches[pick], arrays, row)
            continue
        for what, value in _draws(op, n, arrays, row):
            text = _text(what, value)
            if text:
                yield f"{op.title}: {text}"


def _draws(op: Op, n: int, arrays: Arrays, row: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of op number n: what each is, and its row."""
    if n == 0 and WINDOW in arrays:
        yield "crop", arrays[WINDOW][row]
    for key, rows in arrays.items():
        name = key.rstrip("0123456789")
        if (
            key == numbered(name, n)
            and name not in _UNDRAWN
            and (any(True for _ in op.drawn()) or name in ("crop", "margin"))
        ):
            yield "erased" if op.erases() is not None else name, np.asarray(rows[row])


def _text(what: str, value: NDArray[Any]) -> str:
    """One row in words; "" where nothing was done."""
    numbers = np.atleast_1d(value)
    if what in ("crop", "erased"):
        y, x, height, width = map(int, numbers[:4])
        return f"{width} x {height} at {x}, {y}" if (height and width) or what == "crop" else "no"
    if what == "margin":
        sides = list(map(int, numbers[:4]))
        return f"{', '.join(map(str, sides))} added" if any(sides) else ""
    if value.dtype == np.bool_ and numbers.size == 1:
        return "yes" if numbers[0] else "no"
    if what == "angle":
        return f"{float(numbers[0]):.1f} degrees"
    flat = numbers.ravel()[:8]
    return ", ".join(f"{float(each):.3g}" for each in flat) + (", ..." if numbers.size > len(flat) else "")
