"""Goes over sources, record by record, and says what was found."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed import packing
from dali_feed.cli.imageless import imageless
from dali_feed.cli.set_view import reading, show_set
from dali_feed.cli.survey import verify
from dali_feed.cli.targets import letters_at, options_of, sources
from dali_feed.cli.verify_view import progress, show
from dali_feed.errors import ConfigError

__all__ = ["damaged", "verify_all"]


def damaged(target: str) -> int:
    """Read every byte of a set, print what is not as it was packed, and return how many files that are."""
    with reading(target) as advance:
        found = packing.verify(target, advance=advance)
    show_set(target, found)
    return len(found.damages)


def verify_all(
    targets: Sequence[str],
    *,
    decode: bool,
    dead_letter: str | None,
    readers: int,
    config: Sequence[str],
    timeout: float,
    storage: Sequence[str] = (),
) -> int:
    """Go over each target, print what was found, and return how many records are bad.

    Raises:
        ConfigError: a target or an option that is not allowed.
        SourceError: records cannot be read.
        DeadLetterError: a dead letter could not be written.
    """
    letters = None if dead_letter is None else letters_at(dead_letter, config=config, timeout=timeout)
    sets = [target for target in targets if target.endswith(".dfset")]
    bad = sum(map(damaged, sets))
    left = [target for target in targets if target not in sets or (decode and not bad)]
    for source in sources(left, config=options_of(config), timeout=timeout, check=True, storage=storage):
        bare = imageless(source)
        if bare is not None and decode:
            msg = f"{source!r}: --decode is for images; found none; leave it out, and records are read"
            raise ConfigError(msg)
        read, images = (source, True) if bare is None else (bare, False)
        snapshot = read.snapshot()
        with progress(snapshot) as advance:
            report = verify(
                read, snapshot, decode=decode, images=images, letters=letters, readers=readers, advance=advance
            )
        show(source, snapshot, report, decoded=decode, images=images)
        bad += report.bad
    return bad
