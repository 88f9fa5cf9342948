"""The text of `describe()`: what an epoch is made of."""

from __future__ import annotations

from dali_feed.feed.planning import Planning
from dali_feed.records.source import Snapshot
from dali_feed.transforms.op import Recipe


def running(engine: str, device: int | None, recipe: Recipe) -> str:
    """Which engine runs where, and which options change its pixels."""
    place = "the CPU" if device is None else f"cuda:{device}"
    pixels = f", hardware={recipe.hardware}" if recipe.hardware else ""
    pixels += ", exif=True" if recipe.exif else ""
    return f"{engine} on {place}{pixels}"


def described(planning: Planning, epoch: int, engine: str) -> str:
    """Six lines: records, order, extents, windows, batches, engine; one more on offsets without a record, if any.

    `engine`: what `running` says. Of several sources a line each says how many samples it has, and what its share is in
    the epoch.
    """
    snapshot, order, shares, window = planning.snapshot, planning.order, planning.shares, planning.window_samples
    batches, ranks = len(planning.counts(epoch)), _many(shares.world_size, "rank")
    samples, megabytes = len(snapshot), snapshot.record_bytes / 1e6
    if planning.sampled:
        how = "the sampler's"
    elif not order.shuffled:
        how = "the source's own, not shuffled"
    elif order.extent == 1:
        how = "shuffled uniformly: any sample may stand anywhere"
    else:
        how = f"shuffled by extents, and within windows: a window mixes {window:,} of {samples:,} samples"
    size = f"about {snapshot.record_bytes:,} bytes each"
    read = f"about {order.extent * megabytes:,.1f} MB a read"
    mine = len(shares.mine)
    kept = f"about {window * megabytes:,.1f} MB in memory per lane; {_many(shares.lanes, 'lane')}, {mine} on this rank"
    return "\n".join(
        (
            f"{snapshot.source}: {_many(samples, 'sample')} in {_many(len(snapshot.names), 'partition')}, {size}",
            *_parts(snapshot, epoch),
            *_holes(snapshot),
            f"order: {how}",
            f"extents: {-(-samples // order.extent):,} of up to {_many(order.extent, 'sample')}, {read}",
            f"windows: {_many(order.window, 'extent')}, {_many(window, 'sample')}, {kept}",
            f"batches: {batches:,} of {shares.batch_size} per rank, {ranks}",
            f"engine: {engine}",
        )
    )


def _many(count: int, name: str) -> str:
    """A count with its name: 1 lane, 8 lanes."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _parts(snapshot: Snapshot, epoch: int) -> list[str]:
    """What a source made of several is made of."""
    lines = [f"  {part.source}: {len(part):,} samples" for part in snapshot.parts]
    if snapshot.mix is None:
        return lines
    shares = snapshot.mix.shares(epoch)
    proportion = " : ".join(f"{share:,}" for share in shares)
    ends = (
        "when the first source would begin again"
        if snapshot.mix.stop == "first"
        else ("when all records of all sources have come")
    )
    ends = ends if snapshot.mix.samples is None else f"after {snapshot.mix.samples:,} samples"
    shown = [f"{line}, {share / sum(shares):.2%} of a batch" for line, share in zip(lines, shares, strict=True)]
    return [f"mixture: {proportion} in epoch {epoch}; an epoch ends {ends}", *shown]


def _holes(snapshot: Snapshot) -> list[str]:
    """A line where positions hold no record, as far as is known."""
    if not snapshot.absent:
        return []
    if snapshot.present is not None:
        share = f"{1 - len(snapshot) / snapshot.positions:.2%} of {snapshot.positions:,} positions hold no record"
        return [f"holes: {share}, and are skipped: {len(snapshot.present.start):,} runs of records"]
    return [
        (
            f"holes: about {snapshot.absent:.2%} of {snapshot.positions:,} positions hold no record; other records "
            "fill their slots"
        )
    ]
