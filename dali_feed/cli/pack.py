"""`dali-feed pack`: the records of a source as a set of tar shards. What it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dali_feed.cli.arguments import Config, Quality, Resize, Timeout

if TYPE_CHECKING:
    from dali_feed.storage.striping import Layout

__all__ = ["members_of", "pack"]


def pack(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        list[str],
        typer.Argument(help="Tar shards ('train-*.tar'), an image folder, a set, or kafka://host:port/topic."),
    ],
    out: Annotated[str, typer.Argument(help="FOLDER/NAME.dfset, or a folder; its name is then the set's name.")],
    members: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="jpg,cls; or jpg=value,cls=label: suffixes, and the members that go into them."
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="About how large each shard becomes.")] = "256MB",
    keys: Annotated[str, typer.Option(help="Names of samples: auto, own or number.")] = "auto",
    resize: Resize = None,
    quality: Quality = None,
    tokens: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A tokenizer.json: each sample gets a tokens.npy.")
    ] = None,
    text: Annotated[str, typer.Option(metavar="SUFFIX", help="The member with the text for --tokens.")] = "txt",
    decoded: Annotated[
        bool, typer.Option("--decoded", help="Write images as pixels (.ppm), which need no decoder.")
    ] = False,
    targets: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Folders, one for each disk or mount, to spread the shards over."),
    ] = None,
    stripe_count: Annotated[
        int | None,
        typer.Option(min=1, help="Number of targets for each shard: folders, or Lustre's.", show_default="all"),
    ] = None,
    stripe_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of a stripe.", show_default="1MiB")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of threads; each writes a shard.", show_default="one per CPU, at most 8"),
    ] = None,
    engine: Annotated[str, typer.Option(help="threads, or ray: a task per shard, on a cluster.")] = "threads",
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole set again at the end.")] = False,
    config: Config = None,
    timeout: Timeout = 30.0,
) -> None:
    """Write the records of a source as tar shards, which webdataset reads too, with indexes, checksums and a manifest.

    The same source gives the same bytes. A run that was killed continues when you call it again. Exits with 1 if a
    record was not written.
    """
    from dali_feed import packing
    from dali_feed.cli.amounts import bytes_of
    from dali_feed.cli.pack_view import progress, show
    from dali_feed.cli.targets import one_source

    reads = one_source(source, config=config or [], timeout=timeout)
    with progress() as tell:
        done = packing.pack(
            reads,
            out,
            members=None if members is None else members_of(members),
            shard_bytes=bytes_of("--shard-size", shard_size),
            keys=keys,
            resize=resize,
            quality=quality,
            tokens=tokens,
            text=text,
            decoded=decoded,
            layout=_layout(
                out, targets, stripe_count, None if stripe_size is None else bytes_of("--stripe-size", stripe_size)
            ),
            workers=workers,
            engine=engine,
            tell=tell,
        )
    failed = show(done)
    if verify:
        from dali_feed.cli.verify import damaged

        failed += damaged(str(done.path))
    if failed:
        raise typer.Exit(1)


def _layout(out: str, targets: str | None, count: int | None, size: int | None) -> Layout | None:
    """The layout over folders. Without any, the layout is set for a folder on Lustre; its files stay whole."""
    from dali_feed.packing.place import place
    from dali_feed.packing.work import Work
    from dali_feed.storage.lustre import LustreLayout, set_layout
    from dali_feed.storage.striping import STRIPE_BYTES, Layout

    folder, name = place(out)
    if targets is not None:
        return Layout.over(str(folder), targets.split(","), count, STRIPE_BYTES if size is None else size)
    if count is not None or size is not None:
        asked = LustreLayout(-1 if count is None else count, STRIPE_BYTES if size is None else size)
        set_layout(str(folder), asked)  # before the folder of shards under way is made in it
        under_way = Work(folder, name).path
        if under_way.exists():
            set_layout(str(under_way), asked)
    return None


def members_of(text: str) -> dict[str, str] | list[str]:
    """Names, or suffixes and names."""
    from dali_feed.errors import ConfigError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    pairs = [part.partition("=") for part in parts]
    if not any(equals for _, equals, _ in pairs):
        return parts
    if not all(suffix and equals and name for suffix, equals, name in pairs):
        msg = f"--members: must be NAME,NAME or SUFFIX=NAME,SUFFIX=NAME; found {text!r}"
        raise ConfigError(msg)
    return {suffix: name for suffix, _, name in pairs}
