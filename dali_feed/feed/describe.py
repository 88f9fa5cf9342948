"""What a feed's epoch is made of, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dali_feed.feed.core import Feed

__all__ = ["described"]


def described(feed: Feed) -> str:
    """Six lines: what is there, in which order, extents, windows, batches, engine."""
    snapshot, order = feed.snapshot, feed.order
    samples, window = len(snapshot), feed.window_samples
    megabytes = snapshot.record_bytes / 1e6
    if feed.has_sampler:
        how = "in the sampler's order"
    elif not order.shuffled:
        how = "in canonical order"
    elif order.extent == 1:
        how = "shuffled uniformly: any sample may stand anywhere"
    else:
        how = f"shuffled by extents, and within windows: a window mixes {window:,} of {samples:,} samples"
    mine = feed.lanes // feed.world_size
    device = "the CPU" if feed.device is None else f"cuda:{feed.device}"
    recipe = feed.program.recipe
    pixels = "" if recipe.decode == "exact" else f', decode="{recipe.decode}"'
    pixels += f", hw_decoder_load={recipe.hw_decoder_load}" if recipe.hw_decoder_load else ""
    size = f"about {snapshot.record_bytes:,} bytes each"
    read = f"about {order.extent * megabytes:,.1f} MB a read"
    held = f"about {window * megabytes:,.1f} MB in memory per lane; {feed.lanes} lanes, {mine} on this rank"
    return "\n".join(
        (
            f"{snapshot.source}: {samples:,} samples in {len(snapshot.names):,} partitions, {size}",
            f"order: {how}",
            f"extents: {-(-samples // order.extent):,} of up to {order.extent:,} samples, {read}",
            f"windows: {order.window:,} extents, {window:,} samples, {held}",
            f"batches: {len(feed):,} of {feed.batch_size} per rank, {feed.world_size} ranks",
            f"engine: {feed.engine_name} on {device}{pixels}",
        )
    )
