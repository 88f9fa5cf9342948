"""`dali-feed pack`, `merge`, `index` and `produce`: the records of a source into sets, files of others, and topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dali_feed.cli.options import Config, Names, Quality, Resize, Sources, Storage, Timeout, size
from dali_feed.cli.view import Report, progress, show, size_text
from dali_feed.errors import ConfigError

if TYPE_CHECKING:
    from dali_feed.cli.targets import Access
    from dali_feed.external_sources import Produced
    from dali_feed.formats import Format
    from dali_feed.packing import PackedSet
    from dali_feed.records.source import Source
    from dali_feed.storage.striping import Layout


def pack(  # noqa: PLR0913, PLR0917  an option each
    source: Sources,
    out: Annotated[str, typer.Argument(help="FOLDER/NAME.dfset, or a folder; its name is then the set's name.")],
    to: Annotated[
        Literal["tar", "tfrecord", "mds"], typer.Option(help="Tar shards, TFRecords, or Mosaic Streaming's MDS shards.")
    ] = "tar",
    part: Annotated[
        Names,
        typer.Option(
            metavar="NAME=SHARE",
            help="val=0.1; or a count, val=5000; and train=rest. OUT is then a folder, and each part NAME.dfset in it.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed that decides which record goes into which part.", show_default="0")
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="jpg,cls; or jpg=value,cls=label: suffixes, and the members that go into them."
        ),
    ] = None,
    shard_size: Annotated[int | None, size("About how large each shard becomes.", "256MB, MDS 64MiB")] = None,
    keys: Annotated[
        Literal["auto", "own", "number"] | None, typer.Option(help="Names of samples.", show_default="auto")
    ] = None,
    resize: Resize = None,
    quality: Quality = None,
    tokens: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A tokenizer.json: each sample gets a tokens.npy.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="SUFFIX", help="The member with the text for --tokens.", show_default="txt")
    ] = None,
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
    stripe_size: Annotated[int | None, size("Bytes of a stripe.", "1MiB")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of threads; each writes a shard.", show_default="one per CPU, at most 8"),
    ] = None,
    engine: Annotated[
        Literal["threads", "ray"] | None,
        typer.Option(help="Threads, or Ray: a task per shard, on a cluster.", show_default="threads"),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole set again at the end.")] = False,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 30.0,
) -> None:
    """Write the records of a source as tar shards, which webdataset reads too, with indexes, checksums and a manifest.

    The same source gives the same bytes. A run that was killed continues when you call it again. With --part it becomes
    several sets: the key of a record and the seed decide its part. With --to the records become TFRecords or MDS, in a
    folder that appears whole or not at all. Exits with 1 if a record was not written.
    """
    from dali_feed import packing
    from dali_feed.cli.targets import Access, source_of

    chosen = {"keys": keys, "resize": resize, "quality": quality, "tokens": tokens, "text": text}
    chosen |= {"decoded": decoded or None, "workers": workers, "engine": engine}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if seed is not None and not part:
        msg = f"--seed: decides which record goes into which --part; found {seed} without one; leave it out"
        raise ConfigError(msg)
    stripes = {"targets": targets, "stripe-count": stripe_count, "stripe-size": stripe_size}
    of_tar = {"part": part, **stripes, "verify": verify or None, **options}
    others = [name for name, value in of_tar.items() if value is not None]
    if to != "tar" and others:
        raise ConfigError(f"--{others[0]}: is of tar shards; found --to {to}; leave one of the two out")
    reads, parts = source_of(source, Access.of(config, timeout, storage_option)), _parts(part or [])
    options |= {"members": None if members is None else members_of(members), "shard_bytes": shard_size}
    if to == "tar":
        options["layout"] = _layout(out, list(parts), targets, stripe_count, stripe_size)
    with _progress(lambda done: (done.done, done.written, done.seconds)) as tell:
        if parts:
            done = list(packing.split(reads, out, parts, seed=seed or 0, tell=tell, **options).values())
        else:
            done = [packing.pack(reads, out, to=to, tell=tell, **options)]
    failed = 0
    for each in done:
        what, files = ("set", "shards") if to == "tar" else ("folder", "files")
        report = _report(f"{what} {each.path}", each, "", [(files, f"{each.shards:,}")])
        failed += report.fail(each.tally)
        show(report)
        if verify:
            from dali_feed.cli.verify import verify_set

            failed += verify_set(str(each.path))
    raise typer.Exit(1 if failed else 0)


def merge(
    sets: Annotated[list[str], typer.Argument(help="Two sets or more, and at the end the set to write.")],
) -> None:
    """Copy the shards of several sets into one, and compare them with their checksums."""
    from dali_feed import packing

    show(Report(notes=[(f"set {packing.merge(sets[:-1], sets[-1])}", "")]))


def index(
    shards: Annotated[list[str], typer.Argument(help="Tar shards ('train-*.tar'), or a set (NAME.dfset).")],
    workers: Annotated[int, typer.Option(min=1, help="Number of threads that read.")] = 4,
) -> None:
    """Write an index with checksums beside each shard. It reads all bytes for that."""
    from dali_feed import packing

    sets = [each for each in shards if each.endswith(".dfset")]
    others = [each for each in shards if each not in sets]
    count = sum(packing.index(each, workers=workers) for each in (*sets, *([others] if others else [])))
    show(Report(notes=[(f"{count:,} index{'' if count == 1 else 'es'} written", "")]))


def produce(  # noqa: PLR0913, PLR0917  an option each
    source: Sources,
    target: Annotated[str, typer.Argument(help="kafka://host:port/topic, which must exist.")],
    journal: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File that keeps the position: a killed run continues there.",
            show_default="TOPIC.produce",
        ),
    ] = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Write each record once, even if the run is killed.")
    ] = False,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="SUFFIX", help="Suffixes of the files in the shards that become values.", show_default="images"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="MEMBER", help="The member that becomes the record's key; or `where`, for its coordinates."
        ),
    ] = None,
    header: Annotated[
        Names, typer.Option(metavar="MEMBER", help="A member to write as a header; can be given several times.")
    ] = None,
    format: Annotated[  # noqa: A002  the option's name
        Literal["json", "msgpack", "npy", "avro"] | None,
        typer.Option(help="Values hold the members that --value names, in this format."),
    ] = None,
    value: Annotated[
        Names, typer.Option(metavar="NAME[=MEMBER]", help="A member of the value; can be given several times.")
    ] = None,
    schema: Annotated[Path | None, typer.Option(dir_okay=False, help="The .avsc file for --format avro.")] = None,
    resize: Resize = None,
    quality: Quality = None,
    claim: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for large values; the records say where they are.")
    ] = None,
    claim_above: Annotated[int, size("Bytes of the largest value that goes into the topic itself.", "8MB")] = 8_000_000,
    compression: Annotated[
        Literal["auto", "none", "lz4", "zstd", "snappy", "gzip"], typer.Option(help="Auto: none for compressed images.")
    ] = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Number of threads that read, resize and encode.")] = 2,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 30.0,
) -> None:
    """Write the records of a source into a topic, in the source's order: payloads, and labels as headers.

    A run that was killed continues where it was when you call it again: no record is lost, and with --transactional
    none is there twice. Exits with 1 if a record was not written.
    """
    from dali_feed.cli.targets import Access, topic_of
    from dali_feed.external_sources import Claim, KafkaTopic, Producer
    from dali_feed.external_sources.kafka.writes import WHERE

    topic, servers = topic_of(target)
    access = Access.of(config, timeout, storage_option)
    reads = _source(source, payload, access)
    if format is None and value:
        msg = f"--value: names members for --format, which must be given too; found {', '.join(value)} without it"
        raise ConfigError(msg)
    change = None
    if resize is not None or quality is not None:
        from dali_feed.packing.changes import Reencode

        change = Reencode(resize, 90 if quality is None else quality)
    kept = Path(f"{topic}.produce") if journal is None else journal
    form, headers = _format(format, schema), tuple(header or ())
    pairs = (text.partition("=") for text in value or [])
    producer = Producer(
        topic,
        servers,
        compression=compression,
        transactional_id="auto" if transactional else None,
        claim=None if claim is None else Claim(claim, claim_above),
        config=access.config,
        timeout=timeout,
    )
    first: list[int] = []

    def shown(done: Produced) -> tuple[int, int, float]:
        first[:] = first or [done.tally.size]  # what a run before wrote counts for the records and not for the rate
        return done.position, done.tally.size - first[0], done.seconds

    with _progress(shown) as tell:
        done = producer.run(
            reads,
            columns=None if form is None else {name: member or name for name, _, member in pairs},
            format=form,
            copy=isinstance(reads, KafkaTopic) and form is None and key is None and not headers,
            key=WHERE if key == "where" else key,
            headers=headers,
            map=change,
            readers=workers,
            journal=kept,
            tell=tell,
        )
    report = _report(f"kafka topic {topic} at {servers}", done, f", by {kept}", [])
    failed = report.fail(done.tally)
    show(report)
    raise typer.Exit(1 if failed else 0)


def members_of(text: str) -> dict[str, str] | list[str]:
    """Names, or suffixes and names."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    pairs = [word.partition("=") for word in words]
    if not any(equals for _, equals, _ in pairs):
        return words
    if not all(suffix and equals and name for suffix, equals, name in pairs):
        raise ConfigError(f"--members: must be NAME,NAME or SUFFIX=NAME,SUFFIX=NAME; found {text!r}")
    return {suffix: name for suffix, _, name in pairs}


def _parts(texts: list[str]) -> dict[str, float | int | None]:
    """Each part's share, count, or None for the rest."""
    parts: dict[str, float | int | None] = {}
    for text in texts:
        name, _, share = text.partition("=")
        if name in parts:
            raise ConfigError(f"--part: each part must have a name of its own; found {name!r} twice")
        try:
            if not name or "/" in name:
                raise ValueError
            parts[name] = None if share == "rest" else float(share) if "." in share else int(share)
        except ValueError as error:
            raise ConfigError(f"--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found {text!r}") from error
    return parts


def _layout(out: str, parts: list[str], targets: str | None, count: int | None, size: int | None) -> Layout | None:
    """The layout over folders. Without any, the layout is set for a folder on Lustre; its files stay whole."""
    from dali_feed.packing.work import WorkFolder, folder_at, place
    from dali_feed.storage.lustre import LustreLayout, set_layout
    from dali_feed.storage.striping import STRIPE_BYTES, Layout

    folder, name = (folder_at(out), "") if parts else place(out)
    if targets is not None:
        return Layout.over(str(folder), targets.split(","), count, size or STRIPE_BYTES)
    if count is not None or size is not None:
        wanted = LustreLayout(-1 if count is None else count, size or STRIPE_BYTES)
        set_layout(str(folder), wanted)  # before the folder of shards under way is made in it
        for each in parts or [name]:
            under_way = WorkFolder(folder, each).path
            if under_way.exists():
                set_layout(str(under_way), wanted)
    return None


def _source(targets: list[str], payload: str | None, access: Access) -> Source:
    """The one source that is named, with what becomes its values."""
    from dali_feed.cli.targets import source_of
    from dali_feed.external_sources import KafkaTopic, ShardSet

    source = source_of(targets, access, label=None, holes="replace")
    if payload is None:
        return source
    if isinstance(source, KafkaTopic):
        raise ConfigError(f"--payload: must be left out for a topic, whose values are the payloads; found {payload!r}")
    if not isinstance(source, ShardSet):
        msg = f"--payload: is for tar shards, whose files it names; found {payload!r} for {source!r}; leave it out"
        raise ConfigError(msg)
    return ShardSet(source.paths, image=tuple(payload.split(";")), storage_options=access.storage)


def _format(name: str | None, schema: Path | None) -> Format | str | None:
    from dali_feed.formats import Avro

    if (name == "avro") != (schema is not None):
        rule = "must be given with --format avro, and only then"
        raise ConfigError(f"--schema: {rule}; found --format {name} and --schema {schema}")
    return name if schema is None else Avro(schema)


@contextmanager
def _progress(of: Callable[[Any], tuple[int, int, float]]) -> Iterator[Callable[[Any], None]]:
    """A bar of a run: `of` gives records that are done, bytes that this process wrote, and its seconds."""
    with progress() as tell:

        def heard(so_far: Any) -> None:
            done, written, seconds = of(so_far)
            tell(done, so_far.total, f"{written / max(seconds, 0.1) / 1e6:,.1f} MB/s")

        yield heard


def _report(title: str, done: PackedSet | Produced, by: str, more: list[tuple[str, str]]) -> Report:
    report, tally = Report(title), done.tally
    if done.begun:
        whole = " (everything was written already)" if done.begun == done.total else ""
        report.facts.append(("continued", f"at record {done.begun:,} of {done.total:,}{by}{whole}"))
    report.facts += [("written", f"{tally.records:,} records, {size_text(tally.size)}"), *more]
    if tally.absent:
        report.facts.append(("absent", f"{tally.absent:,} offsets of the source hold no record"))
    report.facts += [("failed", f"{tally.failed:,}"), ("time", f"{done.seconds:,.1f} s")]
    return report
