"""The commands `dali-feed bench ...`: options, data, a table, and what is kept, also where it was interrupted.

What a command needs is imported when it runs. While a turn is counted nothing is drawn, since what draws takes CPU
time that is measured.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dali_feed.cli.options import Config, Names, Storage, Timeout, load_object, size_of
from dali_feed.cli.view import Report, show, table
from dali_feed.errors import ConfigError

if TYPE_CHECKING:
    from dali_feed.bench.data import BenchJob, Data, Topic
    from dali_feed.bench.runner import Contestant, Listener, Race

INTERRUPTED = 130  # exit code
QUICK_IMAGES, QUICK_BATCH, QUICK_SECONDS, QUICK_ROUNDS = 256, 32, 0.3, 2
QUICK_LIMIT = 40.0  # seconds after which no other turn begins: with the last one's end it is under a minute
LEFT = ("case", "who", "way", "beside", "busy")  # columns of text


def _of(kind: Any, default: Any, text: str, *names: str, **more: Any) -> tuple[Any, Any]:
    """An option: its type, its usual default and its help; a `shown` stands for a default of None."""
    more |= {"show_default": more.pop("shown")} if "shown" in more else {}
    return Annotated[kind, typer.Option(*names, help=text, **more)], default


def _argument(kind: Any, default: Any, text: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Argument(help=text, **more)], default


_TOPIC = "kafka://host:port/topic, only read; kafka://host:port: a topic of photos is made there and deleted."
_BESIDE = "Also measure your own loader: the function gets the job and gives an iterable of batches. Several times."
_OUT = "Keep the run: .json (a line is added), .csv (rows are added) or .html (a page). Can be given several times."
_MOCK, _CUDA = "photos on a mock broker in this process", "the CUDA device, or the CPU where there is none"
_IMAGES = "Images: a folder, tar shards ('train-*.tar'), a topic."
OPTIONS: dict[str, tuple[Any, Any]] = {  # name -> annotation, usual default
    "source": _argument(Names, None, _IMAGES, show_default="photos made here"),
    "target": _argument(str | None, None, _TOPIC, show_default=_MOCK),
    "path": _argument(Path, ..., "A large file on the storage to measure. It is only read."),
    "names": _argument(Names, None, "finish, jitter, unpack.", show_default="all"),
    "batch": _of(int, 64, "Images in a batch.", min=1),
    "threads": _of(int | None, None, "Decoder threads, or workers.", min=1, shown="the CPUs of this process"),
    "seconds": _of(float, 4.0, "Seconds of each turn, without its warm-up.", min=0.001),
    "rounds": _of(int, 3, "Number of turns of each contestant.", min=1),
    "device": _of(str | None, None, "cpu or cuda:N.", shown=_CUDA),
    "engine": _of(str | None, None, "Our engine: host or dali.", shown="the loader's own"),
    "images": _of(int, 3000, "Number of images to use, spread evenly over the source.", min=1),
    "crop": _of(int, 224, "Height and width of the output images.", min=1, metavar="PIXELS"),
    "width": _of(int, 16, "Channels of the network's first stage; more is slower.", min=1),
    "peers": _of(bool, True, "Also measure other loaders.", "--peers/--no-peers"),
    "beside": _of(Names, None, _BESIDE, metavar="FILE.py:FUNCTION"),
    "broker": _of(str | None, None, "Also from a topic, made there and deleted.", "--kafka", metavar="HOST:PORT"),
    "size": _of(str, "256MiB", "Most bytes to read in each turn.", metavar="SIZE"),
    "block": _of(str | None, None, "Bytes of one read.", metavar="SIZE", shown="4 KiB to 8 MiB"),
    "direct": _of(bool, False, "Only reads that bypass the page cache.", "--direct"),
    "quick": _of(bool, False, "Under a minute: short turns, rough figures.", "--quick"),
    "out": _of(list[Path] | None, None, _OUT, metavar="FILE"),
    "config": (Config, None),
    "storage_option": (Storage, None),
    "timeout": (Timeout, 10.0),
}
MEASURED = ("rounds", "quick", "out")
LOADING = ("source", "batch", "threads", "device", "engine", "images", *MEASURED, "config", "storage_option", "timeout")


def _takes(*names: str, **defaults: Any) -> Callable[[Callable[[SimpleNamespace], None]], Callable[..., None]]:
    """A command with these options of `OPTIONS`, which its function gets as one namespace; `defaults` of its own."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for name in names:
        annotation, default = OPTIONS[name]
        default = defaults.get(name, default)
        absent = inspect.Parameter.empty if default is ... else default
        parameters.append(inspect.Parameter(name, kind, default=absent, annotation=annotation))

    def decorate(function: Callable[[SimpleNamespace], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**options: Any) -> None:
            function(_quickly(SimpleNamespace(**options)))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _quickly(options: SimpleNamespace) -> SimpleNamespace:
    """Less of everything with --quick; `until` is when no other turn begins, on the clock of `time.perf_counter`."""
    options.until = math.inf
    if getattr(options, "quick", False):
        options.until = time.perf_counter() + QUICK_LIMIT
        least = {"images": QUICK_IMAGES, "batch": QUICK_BATCH, "seconds": QUICK_SECONDS, "rounds": QUICK_ROUNDS}
        for name in least.keys() & vars(options).keys():
            setattr(options, name, min(getattr(options, name), least[name]))
    return options


@contextmanager
def _job(options: SimpleNamespace) -> Iterator[BenchJob]:
    """The job, its data made or read. Raises ConfigError: a batch of more images than there are; no such source."""
    from dali_feed.bench.data import BenchJob, own_images, photos, scratch
    from dali_feed.bench.ours import engine_of
    from dali_feed.loader.arguments import torch_device
    from dali_feed.options import Tuning

    device = str(torch_device(options.device))
    engine, threads = engine_of(getattr(options, "engine", None), device), Tuning(threads=options.threads).cpu_threads
    with scratch() as folder:
        if getattr(options, "source", None):
            data = own_images(*_records(options), folder / "own")
            data.touch()
        else:
            data = photos(options.images)
        _check_batch(options.batch, data.count)
        crop = getattr(options, "crop", 224)
        yield BenchJob(data, options.batch, device, threads, crop, engine=engine)


def _records(options: SimpleNamespace) -> tuple[Iterator[tuple[memoryview, int]], str]:
    """(payload, label) of records of the user's source, spread evenly, and its name."""
    from dali_feed.cli.judging import judged, spread
    from dali_feed.cli.targets import Access, source_of
    from dali_feed.columns.columns import Columns
    from dali_feed.records.source import LABEL

    source = source_of(options.source, Access.of(options.config, options.timeout, options.storage_option))
    snapshot = source.snapshot()

    def records() -> Iterator[tuple[memoryview, int]]:
        columns = Columns(source)
        if columns.image is None:
            raise ConfigError(f"{source!r}: must have images, which this race decodes; found none")
        for block in judged(source, columns, snapshot, spread(snapshot, options.images)):
            images, labels = block.values[str(columns.image)], block.values.get(LABEL)
            for row in block.usable().nonzero()[0].tolist():
                yield images.payloads[row], 0 if labels is None else int(labels[row])

    return records(), snapshot.source


def _check_batch(batch: int, images: int) -> None:
    if batch > images:
        raise ConfigError(f"--batch: must be at most the number of images, {images}; found {batch}; take a smaller one")


def _about(job: BenchJob, **more: Any) -> dict[str, Any]:
    from dali_feed.bench.runner import about_machine
    from dali_feed.engines.device.cuda import gpu_name

    data = job.data
    size = f"{data.width}x{data.height}" if data.width else "several"
    name = job.device if job.device == "cpu" else gpu_name(job.device)
    images = {"data": data.name, "image": size, "crop": job.crop, "mean bytes": data.mean_bytes, "images": data.count}
    how = {"device": name, "threads": job.threads, "engine": job.engine, "batch": job.batch}
    return about_machine() | images | how | more


def _beside(options: SimpleNamespace, job: BenchJob) -> list[Contestant]:
    """The user's own loaders."""
    if not options.beside:
        return []
    from dali_feed.bench.peers import beside

    return [beside(load_object("--beside", text), job, text.rpartition(":")[2]) for text in options.beside]


def _quick(options: SimpleNamespace, contestants: Sequence[Contestant]) -> list[Contestant]:
    """With --quick only the first way of each."""
    return [replace(each, ways=each.ways[:1]) if options.quick else each for each in contestants]


@contextmanager
def finish(race: Race, out: Sequence[Path] | None) -> Iterator[None]:
    """Around what measures: at its end the race is shown and kept, after Ctrl-C too, which then exits with 130.

    Exits with 1 where nothing was measured.

    Raises:
        ConfigError: at once, for what could not be written at the end.
    """
    _check_out(out or ())
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        typer.echo("interrupted: what follows was measured before", err=True)
    from dali_feed.bench.report import kept

    _show(race)
    for path in out or ():
        kept(race, path)
        typer.echo(f"kept in {path}", err=True)
    if interrupted or not race.rows:
        raise typer.Exit(INTERRUPTED if interrupted else 1)


def _check_out(out: Sequence[Path]) -> None:
    from dali_feed.bench.report import FORMATS

    for path in out:
        if path.suffix not in FORMATS or not path.absolute().parent.is_dir():
            names = ", ".join(FORMATS)
            msg = f"--out: must be a file that ends with one of {names}, in a folder that exists; found {str(path)!r}"
            raise ConfigError(msg)


def _show(race: Race) -> None:
    from dali_feed.bench.report import check_text, shown_columns, text_of
    from dali_feed.bench.runner import RIGHT, WRONG

    if race.kind == "check":
        style = {RIGHT: "green", WRONG: "red"}.get(race.about["outcome"], "yellow")
        show(Report(notes=[(check_text(race), style)]))
        return

    def column(name: str) -> Callable[[Any], str]:
        return lambda row: text_of(name, race.cell(row, name)) + (" (may be chance)" if race.chance(row, name) else "")

    columns = {name: column(name) for name in shown_columns(race)}
    report = Report(tables=[table(race.rows, columns, left=LEFT, most=len(race.rows))] if race.rows else [])
    report.notes += [] if race.rows else [("nothing was measured", "")]
    report.notes += [(f"{who}: NOT MEASURED: {reason}", "") for who, reason in race.missing.items()]
    report.notes += [(sentence, "") for sentence in race.findings]
    show(report)


@contextmanager
def listening() -> Iterator[Listener]:
    """What shows turns as they come, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from dali_feed.bench.runner import Listener, named

    class TurnBar(Listener):
        """On a terminal a bar that is drawn between turns alone; elsewhere a line for each."""

        bar: Progress | None = None

        def begins(self, who: str, way: str, done: int, total: int) -> None:
            self._at = f"{done + 1}/{total} "
            if self.bar is not None:
                self.bar.update(self.bar.task_ids[0], description=named(who, way), completed=done, total=total)
                self.bar.refresh()

        def took(self, who: str, way: str, rate: float) -> None:
            self._say(f"{named(who, way)}: {rate:,.4g}/s", "dim")

        def failed(self, who: str, way: str, reason: str) -> None:
            self._say(f"{named(who, way)}: FAILED: {reason}", "yellow")

        def _say(self, line: str, style: str) -> None:
            if self.bar is None:
                print(self._at + line, file=sys.stderr, flush=True)
                return
            self.bar.print(line, style=style, markup=False)
            self.bar.advance(self.bar.task_ids[0])
            self.bar.refresh()

    heard = TurnBar()
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield heard
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), TimeLeft(), console=console, auto_refresh=False, transient=True
    ) as bar:
        bar.add_task("", total=None)
        heard.bar = bar
        yield heard


@contextmanager
def _race(kind: str, module: Any, options: SimpleNamespace, **more: Any) -> Iterator[tuple[Race, Any]]:
    """A race, and what runs contestants in it; `more` is of each call.

    What the figures say is added, shown and kept at the end, after Ctrl-C too.
    """
    from dali_feed.bench.runner import LATE, Race, race

    result = Race(kind, module.UNIT, list(module.SHOWN))
    with finish(result, options.out), listening() as heard:
        try:
            more |= {"rounds": options.rounds, "until": options.until, "heard": heard}
            yield result, functools.partial(race, result, **more)
        finally:
            late = {who for who, reason in result.missing.items() if reason == LATE}
            result.missing |= dict.fromkeys(late, f"{LATE}; leave --quick out")
            if hasattr(module, "findings"):
                result.findings += module.findings(result)


@_takes(*LOADING, "seconds", "crop", "peers", "beside", "broker", batch=256)
def loader(options: SimpleNamespace) -> None:
    """Measure images per second of our loader, of what bounds it and of other loaders over the same images, in turns.

    Each of them crops at random to --crop, flips, and normalizes to float32. The images are read into the page cache
    first; `bench storage` measures storage. Ctrl-C ends with a table of what was measured. docs/benchmarks.md says
    how to read it.
    """
    from dali_feed.bench import loading
    from dali_feed.bench.data import topic_at

    race = _race("loader", loading, options, seconds=options.seconds)
    with race as (result, run), _job(options) as base, ExitStack() as stack:
        job, reads = base, ["tar", "folder"]
        if options.broker:
            topic = stack.enter_context(topic_at(options.broker, job.data.records(), timeout=options.timeout))
            job, reads = replace(job, data=replace(job.data, topic=topic)), [*reads, "kafka"]
        result.about |= _about(job, seconds=options.seconds, rounds=options.rounds)
        chosen = loading.contestants(job, reads=reads, peers=options.peers) + _beside(options, job)
        run(_quick(options, chosen))


@_takes("target", *LOADING[1:6], *MEASURED, "config", "timeout", "seconds", "peers", "beside")
def kafka(options: SimpleNamespace) -> None:
    """Measure records per second of a topic, as tensors and read alone, beside librdkafka's plain consumer, in turns.

    Tensors are images decoded, cropped at random to 224x224, flipped and normalized to float32. The mock broker runs on
    the CPUs of this process; name a broker to measure a real one. Ctrl-C ends with a table of what was measured.
    """
    from dali_feed.bench import kafka as reads
    from dali_feed.bench.data import BenchJob
    from dali_feed.bench.ours import engine_of
    from dali_feed.cli.targets import Access, sources
    from dali_feed.external_sources import KafkaTopic
    from dali_feed.loader.arguments import torch_device
    from dali_feed.options import Tuning
    from dali_feed.secrets import revealed

    access, device = Access.of(options.config, options.timeout), str(torch_device(options.device))
    config = access.config
    engine, threads = engine_of(options.engine, device), Tuning(threads=options.threads).cpu_threads
    with _race("kafka", reads, options, seconds=options.seconds) as (result, run), ExitStack() as stack:
        data, topic, own = _topic(options, stack)
        job = BenchJob(data, options.batch, device, threads, engine=engine)

        def whole() -> Any:
            if own is None:
                return KafkaTopic(topic.name, topic.servers)
            return sources([own], access)[0]

        def alone() -> KafkaTopic:
            return KafkaTopic(topic.name, topic.servers, label=None, config=config, timeout=options.timeout)

        secrets = revealed(topic.name, config)
        broker = topic.servers if options.target else "librdkafka's mock, in this process"
        result.about |= _about(job, broker=broker, seconds=options.seconds, rounds=options.rounds)
        chosen = reads.contestants(job, alone, whole, secrets, peers=options.peers) + _beside(options, job)
        run(_quick(options, chosen))


def _topic(options: SimpleNamespace, stack: ExitStack) -> tuple[Data, Topic, str | None]:
    """The data with its topic, the topic, and the target that names it, where it is the user's."""
    from dali_feed.bench.data import Data, Topic, photos, topic_at, topic_here
    from dali_feed.cli.targets import KAFKA, topic_of

    target: str | None = options.target
    if target is not None and "/" in target.removeprefix(KAFKA):
        name, servers = topic_of(target)
        topic = Topic(name, servers)
        return Data(f"the topic {name}", Path(), (), 0, 0, topic=topic), topic, target
    if target is not None and (not target.startswith(KAFKA) or not target.removeprefix(KAFKA)):
        topic_of(target)  # which says how one is named
    if options.config:
        msg = f"--config: is only for a topic of your own, kafka://host:port/topic; found {target or 'no target'}"
        raise ConfigError(msg)
    data = photos(options.images)
    _check_batch(options.batch, data.count)
    if target is None:
        topic = stack.enter_context(topic_here(data))
    else:
        servers = target.removeprefix(KAFKA)
        topic = stack.enter_context(topic_at(servers, data.records(), timeout=options.timeout))
    return replace(data, topic=topic), topic, None


@_takes(*LOADING[:4], "images", *MEASURED, "config", "storage_option", "timeout", "seconds", batch=32, seconds=2.0)
def decode(options: SimpleNamespace) -> None:
    """Measure images per second of decoding alone, from memory: our decoder, DALI's, Pillow, torchvision.

    It decodes whole images, and the windows of a random crop, as our loader does on the CPU: with one thread, and with
    --threads. Ctrl-C ends with a table of what was measured.
    """
    from dali_feed.bench import decoding

    with _race("decode", decoding, options, seconds=options.seconds) as (result, run), _job(options) as job:
        result.about |= _about(job, seconds=options.seconds, rounds=options.rounds)
        for count in dict.fromkeys((1, job.threads)):
            case = f"{count} thread{'s' if count > 1 else ''}"
            chosen = decoding.contestants(job, count)
            run(chosen, case=case)


@_takes(*LOADING, "seconds", "width", "peers", "beside", seconds=6.0)
def train(options: SimpleNamespace) -> None:
    """Measure how much of a training step is waiting for its batch: with our loader, with torch's, and with none.

    It trains a small residual network on random crops of 224x224, in turns. `replay` bounds the others: a few of our
    batches again and again, so that the loop waits for nothing. Ctrl-C ends with a table of what was measured.
    """
    from dali_feed.bench import training

    if options.quick:
        options.batch, options.width = min(options.batch, 16), min(options.width, 8)
    with _race("train", training, options, seconds=options.seconds) as (result, run), _job(options) as job:
        result.about |= _about(job, seconds=options.seconds, rounds=options.rounds, width=options.width)
        network = functools.partial(training.small_resnet, options.width)
        chosen = training.contestants(job, network, others=_beside(options, job), peers=options.peers)
        run(_quick(options, chosen))


@_takes(*LOADING, "peers")
def resume(options: SimpleNamespace) -> None:
    """Measure seconds to the first batch of a restored run, at the start, in the middle and near the end of an epoch.

    It compares torch's DataLoader, resumed by hand: batches that were seen before are made and thrown away. Ctrl-C ends
    with a table of what was measured.
    """
    from dali_feed.bench import resuming
    from dali_feed.bench.runner import Race, race

    with _race("resume", resuming, options) as (result, run), _job(options) as job:
        result.about |= _about(job, rounds=options.rounds)
        chosen = resuming.contestants(job, peers=options.peers)
        race(Race("resume", "s"), chosen[:2], rounds=1)  # libraries are loaded and files come to be known
        run(chosen)


@_takes("names", "batch", *MEASURED, "seconds", batch=256, seconds=0.01)
def kernels(options: SimpleNamespace) -> None:
    """Measure GB/s of each kernel on the first GPU, beside a device copy of as many bytes.

    A turn's seconds are the device's own. Exits with 1 without a GPU, or if a variant does not run. Ctrl-C ends with a
    table of what was done.
    """
    from dali_feed.bench import kernels as gpu_kernels
    from dali_feed.bench.runner import about_machine

    if wrong := [name for name in options.names or () if name not in gpu_kernels.CASES]:
        names = ", ".join(gpu_kernels.CASES)
        raise ConfigError(f"bench kernels: must be some of {names}; found {', '.join(wrong)}; leave them out for all")
    device = gpu_kernels.gpu()
    with _race("kernels", gpu_kernels, options, seconds=options.seconds) as (result, run):
        result.about |= about_machine() | {"device": device, "batch": options.batch, "rounds": options.rounds}
        for case, chosen in gpu_kernels.contestants(options.names or list(gpu_kernels.CASES), options.batch):
            run(chosen, case=case)
    if result.missing:
        raise typer.Exit(1)


@_takes("path", "size", "threads", "block", "direct", "seconds", *MEASURED, seconds=1.0, rounds=1)
def storage(options: SimpleNamespace) -> None:
    """Read a file in order and at random places, cold and from the page cache, and say which settings to use.

    Cold reads ask the kernel to drop the file's pages first, which it does for clean ones. Ctrl-C keeps what was
    measured.
    """
    from dali_feed.bench import storage as reads
    from dali_feed.bench.runner import about_machine

    blocks = reads.BLOCKS if options.block is None else (size_of(options.block),)
    modes = ("direct",) if options.direct else reads.MODES[:2] if options.quick else reads.MODES
    chosen = reads.contestants(
        str(options.path),
        blocks=blocks[1:3] if options.quick and options.block is None else blocks,
        threads=reads.THREADS if options.threads is None else (options.threads,),
        modes=modes,
        most_bytes=size_of(options.size),
        seconds=options.seconds,
    )
    with _race("storage", reads, options) as (result, run):
        result.about |= about_machine() | {"data": str(options.path), "rounds": options.rounds}
        run(chosen)


@_takes("source", "device", "out", "config", "storage_option", "timeout")
def gpu(options: SimpleNamespace) -> None:
    """Check that everything is right on this GPU, measure it in under ten minutes, and say what it comes to.

    Each part is a process of its own with a limit of its own: a crash costs a line. With --out FILE.json a line is kept
    as a part ends, and the same call makes the parts that are left or did not go well. Exits with 1 where something is
    WRONG; nothing is timed then.
    --device cpu rehearses all of it at toy size, where figures mean nothing.
    """
    from dali_feed.bench import gpu as parts
    from dali_feed.bench.data import BenchJob, own_images, scratch, textures
    from dali_feed.bench.report import kept, lines_of, pages
    from dali_feed.bench.runner import WRONG
    from dali_feed.options import Tuning

    device, outs = options.device or "cuda:0", options.out or []
    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise ConfigError(f"--device: must be cpu or cuda:N; found {device!r}")
    _check_out(outs)
    options.images, threads = parts.sizes_of(device).images, Tuning().cpu_threads
    lines = [line for path in outs if path.suffix == ".json" and path.exists() for line in lines_of(path)]
    results: list[Race] = []
    interrupted = False

    def begins(part: Any) -> None:
        typer.echo(f"{part.name} (at most {part.limit:.0f} s)", err=True)

    with scratch() as folder:
        own = own_images(*_records(options), folder / "own") if options.source else None
        job = BenchJob(own or textures(options.images, threads), 1, device, threads)
        try:
            for line, before in parts.run(device, job, known=lines, begins=begins):
                results.append(line)
                _show(line)
                for path in outs if not before else ():
                    if path.suffix != ".html":
                        kept(line, path)
        except KeyboardInterrupt:
            interrupted = True
    sentences = parts.so(results, device)
    show(Report(notes=[(sentence, "") for sentence in sentences]))
    for path in outs:
        if path.suffix == ".html":
            path.write_text(pages(results, sentences), encoding="utf-8")
        typer.echo(f"kept in {path}", err=True)
    if interrupted or sentences[0].startswith(WRONG):
        raise typer.Exit(INTERRUPTED if interrupted else 1)


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What `--out FILE.json` kept.")],
    out: Annotated[Path | None, typer.Option(help="The page to write.", metavar="FILE.html")] = None,
) -> None:
    """Show a kept run, or lay several of one kind beside the first of them; exits with 1 where something is LOST.

    Lost is a ratio of ours to another contestant whose rounds all lie below all rounds of the first run, with a median
    more than 3 % below. Runs of different machines are laid beside each other, and not judged.
    """
    from dali_feed.bench.report import compared, page, read

    _check_out([out] if out else ())
    named = [(path.name, read(path)) for path in files]
    lost: dict[str, str] = {}
    if len(named) == 1:
        body = page(named[0][1])
        _show(named[0][1])
    else:
        body, lost, why = compared(named)
        for name, race in named:
            typer.echo(f"{name}:")
            _show(race)
        for ratio, says in lost.items():
            typer.echo(f"LOST {ratio}: {says}")
        if not lost:
            typer.echo(why or "nothing is lost beyond the noise")
    if out is not None:
        out.write_text(body, encoding="utf-8")
        typer.echo(f"kept in {out}", err=True)
    if lost:
        raise typer.Exit(1)


def bench_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(name="bench", help="Measure how fast this machine is.", no_args_is_help=True)
    app.callback()(_root)
    for command in (loader, kafka, decode, train, resume, gpu, kernels, storage, report):
        app.command()(command)
    return app


def _root() -> None:
    """Measure how fast this machine is."""
