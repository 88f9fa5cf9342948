"""Looks into sources: what each holds by its snapshot, and what a sample of it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dali_feed.cli.findings import Findings, look
from dali_feed.cli.imageless import imageless
from dali_feed.cli.inspect_view import show
from dali_feed.cli.members import VALUE, members_seen
from dali_feed.cli.members_view import show_members
from dali_feed.cli.sheet import Sheet
from dali_feed.cli.targets import options_of, sources, with_names
from dali_feed.cli.text import plural
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.formats.named import format_of

__all__ = ["inspect_all"]


def inspect_all(  # noqa: PLR0913  an option each
    targets: Sequence[str],
    *,
    sample: int,
    config: Sequence[str],
    timeout: float,
    form: str | None = None,
    sheet: Path | None = None,
    sheet_samples: int = 24,
    storage: Sequence[str] = (),
    rename: Sequence[str] = (),
) -> tuple[int, int]:
    """Print what each target holds; return how many bad records the samples had, and how many sources no good one.

    form   the format of topics' values; a record is good then whose value it fits
    sheet  a PNG to be written with `sheet_samples` images of each source
    rename OLD=NEW each: members are listed as `Renamed` calls them

    Raises:
        ConfigError: a target or an option that is not allowed, or the sheet cannot be written.
        SourceError: records cannot be read.
    """
    bad = hopeless = 0
    pictures = None if sheet is None else Sheet(sheet, sheet_samples)
    formats = {} if form is None else {VALUE: format_of(form)}
    found = sources(targets, config=options_of(config), timeout=timeout, storage=storage)
    if formats and not any(isinstance(source, KafkaTopic) for source in found):
        msg = f"--format: is only for the values of topics; found {form!r} and no topic; leave it out"
        raise ConfigError(msg)
    for source in found:
        snapshot = source.snapshot()
        topic = isinstance(source, KafkaTopic)
        bare = imageless(source)
        if (topic and formats) or bare is not None:
            findings = Findings()
            snapshot = snapshot if bare is None else bare.snapshot()
            seen = members_seen(with_names(source, rename), snapshot, sample, formats, findings)
        else:
            findings = look(source, snapshot, sample)
            seen = members_seen(with_names(source, rename), snapshot, sample, {})
        show(source, snapshot, findings)
        show_members(seen, topic=topic)
        bad += len(findings.bad)
        hopeless += bool(findings.bad) and not findings.good
        if pictures is not None and bare is None:
            pictures.add(source, snapshot)
    if pictures is not None:
        shown = pictures.write()
        print(f"{sheet}: {shown:,} record{plural(shown)}")
    return bad, hopeless
