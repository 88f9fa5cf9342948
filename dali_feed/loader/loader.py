"""DataLoader: the feed as torch tensors, under torch's names.

torch's own arguments keep torch's meaning. One that cannot apply warns once; one that would change the
data is honoured or refused, never ignored.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn
from warnings import warn

import torch
from torch.utils.data import IterableDataset, default_collate

from dali_feed.checks import whole
from dali_feed.columns.column import Column
from dali_feed.columns.columns import preset_of
from dali_feed.columns.image import Image
from dali_feed.errors import ConfigError, FallbackWarning, TransformError, WaitError
from dali_feed.external_sources.files import FileList
from dali_feed.feed import Feed
from dali_feed.feed.epochs import Epochs
from dali_feed.feed.feed import FeedLoop
from dali_feed.feed.passes import Batches
from dali_feed.loader.adapters import Lowered, Unchanged, lower_dataset
from dali_feed.loader.arguments import (
    check_by_torch,
    ranks,
    refuse,
    seeded,
    torch_device,
    tuned,
    unwrapped,
    warn_once,
)
from dali_feed.loader.dataset_source import DatasetSource, title_of
from dali_feed.loader.frameworks import NoBatchSampler, Registration, Skipped, check_ranks
from dali_feed.loader.functions import UserTransforms, leaves_pil, split
from dali_feed.loader.items import Items, Mixes, moved
from dali_feed.loader.torch_run import Iterations, TorchEpochs, TorchMachine, TorchPlanning
from dali_feed.options import BadRecords, Decode, Tuning, check_groups
from dali_feed.plan.batching import Shares, check_shuffle, has_dealt, length_of
from dali_feed.plan.order import Shuffle
from dali_feed.records.live import Stream
from dali_feed.records.source import Records, Source
from dali_feed.transforms.lower import NotMadeError
from dali_feed.transforms.mixing import Mixing

# Who runs what a DataLoader is given: our feed where the dataset is a source or is made of files, else torch's loader.


Own = tuple[UserTransforms | None, ...]  # by view

_USER = 5  # frames from a warning here up to who called DataLoader
_IDLE = {  # of torch's arguments, and why they have no effect on ours
    "pin_memory": "batches are made on the device",
    "pin_memory_device": "batches are made on the device",
    "persistent_workers": "threads and engine last as long as the loader",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
}


def feed_for(loader: DataLoader, rank: int, world_size: int) -> tuple[Feed | TorchEpochs, Own]:
    """The feed, and what of the transform is left to run. Raises ConfigError, TransformError for what cannot be."""
    native = _native(loader, rank, world_size)
    return (_by_torch(loader, rank, world_size, native), ()) if isinstance(native, str) else native


def _native(loader: DataLoader, rank: int, world_size: int) -> tuple[Feed, Own] | str:
    """The feed of a source, or of a dataset that is as good as one; or why it is not: a clause, "its loader is ..."."""
    source, transform, own_transform, turned = loader.dataset, loader.transform, False, False
    live = isinstance(source, Stream)
    if live:
        _check_live(loader)
    elif not isinstance(source, Source):
        lowered = lower_dataset(source, columns=loader.columns is not None)
        if isinstance(lowered, str):
            lowered = _by_samples(loader, lowered)
        if isinstance(lowered, str):
            return lowered
        source, own_transform, turned = lowered.source, lowered.transform is not None, lowered.exif
        if own_transform and transform is not None:
            msg = "transform: the dataset has one already; give it to the dataset or to the loader, not to both"
            raise ConfigError(msg)
        transform = lowered.transform if own_transform else transform
        if _wants_pil(loader.dataset, source, loader.collate_fn, transform):
            return "its transform gives PIL images, and its collate_fn takes them"
    other = None if live else _other_batches(loader)
    if other is not None:
        return other
    decode, tuning = loader.decode, tuned(loader.tuning, loader.num_workers, loader.prefetch_factor, _USER)
    if isinstance(source, DatasetSource) and tuning.readers == Tuning().readers:
        tuning = replace(tuning, readers=1)  # one thread calls its __getitem__, unless the user says how many may
    try:
        columns, transform, own = _columns_of(source, loader.columns, transform)
        feed = Feed(
            source,
            loader.batch_size or 1,
            shuffle=False if loader.shuffle is None else loader.shuffle,
            sampler=None if live else loader.sampler,
            drop_last=loader.drop_last,
            transform=transform,
            decode=decode if decode.exif is not None else replace(decode, exif=turned),
            device=loader.device.index if loader.device.type == "cuda" else None,
            columns=columns,
            seed=loader.seed,
            lanes=loader.lanes,
            rank=rank,
            world_size=world_size,
            bad=loader.bad,
            tuning=tuning,
        )
    except TransformError as error:
        if own_transform and not isinstance(error, NotMadeError):
            return f"its transform is not supported ({str(error).removeprefix('transform: ')})"
        raise
    _warn_of_idle(loader, feed)
    return feed, own


def _by_samples(loader: DataLoader, why: str) -> Lowered | str:
    """A map-style dataset that gives images as they are, where the loader has the transform; else `why`."""
    dataset = loader.dataset
    wanted = loader.transform is not None or loader.columns is not None
    plain = isinstance(dataset, list | tuple | str | bytes | os.PathLike | IterableDataset)
    plain = plain or type(dataset).__module__.startswith("datasets.")  # Hugging Face's are read as rows, or not at all
    if not wanted or plain or not hasattr(dataset, "__getitem__") or length_of(dataset) is None:
        return why
    source = DatasetSource(dataset, together=loader.tuning.readers not in (1, Tuning().readers))
    return Lowered(source) if loader.columns is not None or source.has_image else why


def _check_live(loader: DataLoader) -> None:
    """Refuse, or warn of, what a stream cannot do: it has no order to choose and no end."""
    batches = loader.batch_sampler if loader._own_batches else None
    for name, value in {"shuffle": loader.shuffle, "sampler": loader.sampler, "batch_sampler": batches}.items():
        if value is not None and value is not False:
            refuse(name, "a stream has its own order, so leave it out")
    if loader.batch_size is None:
        refuse("batch_size=None", "use batch_size=1")
    for name, set_ in {"drop_last": loader.drop_last, "lanes": loader.lanes is not None}.items():
        if set_:
            warn_once(name, "a stream has no last batch, and no lanes", _USER + 1)
    if loader.tuning.readers not in (1, Tuning().readers, "auto"):
        warn_once("Tuning(readers=)", "a stream has one reader for all its partitions", _USER + 1)


def _warn_of_idle(loader: DataLoader, feed: Feed) -> None:
    """Warn, once each, of arguments that have no effect on that feed."""
    user, decode = _USER + 1, loader.decode
    if not feed.program.outputs:
        for name in _set_in(decode):
            warn_once(f"Decode({name}=)", "no column is an image", user)
    elif decode.hardware and (feed.program.engine != "dali" or feed.device is None):
        why = "only a GPU has a JPEG engine, and only the dali engine uses it"
        warn_once("Decode(hardware=)", why, user)
    for name, why in _IDLE.items():
        if getattr(loader, name):
            warn_once(name, why, user)
    if not loader.in_order:
        warn_once("in_order=False", "batches always come in order", user)


def _columns_of(source: Any, columns: Any, transform: Any) -> tuple[Any, Any, Own]:
    """Columns and transform as an engine runs them, and what of the images' transform is left to run behind it."""
    if columns is None or transform is not None:
        try:
            return columns, *split(transform)
        except TransformError:
            if columns is None:
                preset_of(source, transform)  # of a source without images it is the transform that is wrong
            raise
    named: dict[Any, Any] = dict(columns) if isinstance(columns, Mapping) else dict(enumerate(columns))
    own: Own = ()
    for name, column in named.items():
        if isinstance(column, Image):
            kept, its = split(column.transform)
            own += its  # by image column, as by view
            named[name] = replace(column, transform=kept)
    return (named if isinstance(columns, Mapping) else list(named.values())), None, own


def _set_in(decode: Decode) -> list[str]:
    """The names of what is not left at its default, but `exif`, which nothing overlooks."""
    default = Decode()
    names = [each.name for each in fields(decode) if each.name != "exif"]
    return [name for name in names if getattr(decode, name) != getattr(default, name)]


def _wants_pil(dataset: Any, source: Source, collate: Any, transform: Any) -> bool:
    """Whether torch would hand a collate_fn of the user's the images as they were opened."""
    default = collate is None or collate is default_collate
    named = not isinstance(dataset, list | tuple) and isinstance(source, FileList)  # else ours gave the samples
    return not default and named and Mixing.lowered(collate) is None and leaves_pil(transform)


def _other_batches(loader: DataLoader) -> str | None:
    """Why batches of another kind need torch's loader, a clause; None for the usual ones."""
    if loader._own_batches:
        name, cure = "batch_sampler", "use torch's BatchSampler, or batch_size with sampler"
        why = "it has a batch_sampler that is not torch's BatchSampler"
    elif loader.batch_size is None:
        name, cure = "batch_size=None", "use batch_size=1"
        why = "its samples are wanted without batches (batch_size=None)"
    else:
        return None
    if isinstance(loader.dataset, Source | list | tuple):  # torch would give a list's names
        refuse(name, cure)
    return why


def _source_for(name: object) -> str:
    """What to write in place of a name that is no source."""
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""
    if text.startswith("kafka://"):
        return "For a topic use KafkaTopic(topic, servers)"
    if text.endswith(".tar"):
        return f"For tar shards use ShardSet({text!r})"
    if text.endswith((".tfrecord", ".tfrecords")):
        return f"For TFRecord files use TFRecords({text!r})"
    return "For a folder of images use FileList.from_folder(root)"


def _torch_has(loader: DataLoader, why: str) -> None:
    """Raise ConfigError for what would change the data and torch's own loader, used because of `why`, does not do."""
    collate = loader.collate_fn
    if Mixing.lowered(collate) is not None:
        cure = "Mix in a function, collate_fn=lambda samples: mixup(*default_collate(samples))"
        whose = f"{type(collate).__name__} is for images that we decode"
        refuse("collate_fn", f"{whose}, and not for this dataset, because {why}. {cure}")
    if loader.decode.exif is not None:
        cure = "its dataset decodes; rotate images there, with PIL.ImageOps.exif_transpose in its transform"
        raise ConfigError(f"Decode(exif=...): torch's own DataLoader runs this dataset, because {why}, and {cure}")
    without = {
        "transform": (loader.transform is not None, "applies none; give it to the dataset"),
        "info": (loader.info, "has no such item; leave it out"),
        "columns": (loader.columns is not None, "knows none; use a source of dali_feed.external_sources"),
    }
    for option, (set_, cure) in without.items():
        if set_:
            raise ConfigError(f"{option}: torch's own DataLoader runs this dataset, because {why}, and {cure}")


def _by_torch(loader: DataLoader, rank: int, world_size: int, why: str) -> TorchEpochs:
    """Torch's own loader, because of `why`."""
    dataset = loader.dataset
    name = title_of(dataset)
    gives = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if isinstance(dataset, str | bytes | os.PathLike) or not gives:
        raise ConfigError(
            f"source: must be a source of dali_feed.external_sources or a dataset; found {dataset!r}."
            f" {_source_for(dataset)}"
        )
    _torch_has(loader, why)
    for field in _set_in(loader.decode):
        warn_once(f"Decode({field}=)", "torch's own DataLoader runs this dataset", _USER)
    for option, default in {"bad": BadRecords(), "tuning": Tuning()}.items():
        if getattr(loader, option) != default:
            warn_once(option, "torch's own DataLoader runs this dataset", _USER)
    how = "in our order. For speed, and for batches without bad records, use a source of dali_feed.external_sources, or"
    how = f"{how} let it give paths or images as they are, with transform= of the loader"
    if isinstance(dataset, IterableDataset):
        how = "in its own order. For speed, ranks and exact resume use a source of dali_feed.external_sources, or a"
        how = f"{how} map-style dataset that gives paths or images as they are, with transform= of the loader"
    warn(
        f"dataset: {name} cannot be read by our engines, because {why}; torch's own DataLoader runs it, {how}",
        FallbackWarning,
        stacklevel=_USER - 1,
    )
    options = {name: getattr(loader, name) for name in _TORCHS}
    if loader.pin_memory_device:
        warn_once("pin_memory_device", "torch pins memory for the accelerator that is there", _USER)
    options["pin_memory"] = options["pin_memory"] or loader.device.type == "cuda"
    if options["timeout"] and not options["num_workers"]:
        warn_once("timeout", "there are no worker processes to wait for", _USER)
        options["timeout"] = 0
    if not loader.in_order:  # torch before 2.6 does not know it
        if isinstance(dataset, IterableDataset):
            options["in_order"] = False
        else:
            warn_once("in_order=False", "batches always come in order, so that a state can count them", _USER)
    return _torch_positions(loader, rank, world_size, options)


def _torch_positions(loader: DataLoader, rank: int, world_size: int, options: Mapping[str, Any]) -> TorchEpochs:
    """Epochs as torch's loader gives them. `options`: its own arguments for how, not what."""
    dataset, own, batch_size, drop_last = loader.dataset, loader._own_batches, loader.batch_size, loader.drop_last
    shuffle = False if loader.shuffle is None else loader.shuffle
    check_shuffle(shuffle)
    single = batch_size is None and not own
    ranks = Shares.of(batch_size or 1, rank, world_size, loader.lanes)
    size = None if single else ranks.batch_size
    endless = isinstance(dataset, IterableDataset)
    if endless and world_size > 1:
        raise ConfigError(
            f"dataset: an iterable-style one gives every rank the same samples; found world_size={world_size}."
            " Divide its samples inside the dataset, and give rank=0, world_size=1"
        )
    how = {"batch_size": size, "drop_last": drop_last, "shuffle": loader.shuffle} if endless else None
    planning = TorchPlanning(
        dataset,
        ranks,
        shuffle=shuffle,
        sampler=loader.batch_sampler if own else loader.sampler,
        seed=loader.seed,
        drop_last=drop_last,
        single=single or own,
    )
    kind = Iterations if endless else TorchEpochs
    return kind(planning, TorchMachine(dataset, size, options, how), ranks, own_batches=own)


_TORCHS = (  # its arguments for how batches are made, not what is in them
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)
_RANDOM = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)


class DataLoader(FeedLoop):
    """Batches of tensors from a source of `dali_feed.external_sources`, or from a dataset as torch's loader takes it.

    Gives `(images, labels)` per batch, or `(images, labels, info)` with `info=True`; just `images` where
    the source has no labels, and a dict of columns where it is a table. images: (n, 3, height, width)
    on the device, of the dtype that the transform ends in (uint8 without one); labels: int64 (n,) on the device.

    Args:
        dataset: a source; a stream, whose batches never end; torchvision's ImageFolder, DatasetFolder
            or ImageNet, a Subset or ConcatDataset of them, a list of paths or of (path, label) pairs: read as files,
            with the dataset's own transform; Hugging Face's Dataset with images: its table is read. Another one is run
            by torch's own DataLoader, with a `FallbackWarning` that says why.
        batch_size: samples per batch on this rank. None, for a dataset, gives samples by torch's own DataLoader.
        shuffle: bool, or a `Shuffle` that says how far samples are mixed.
        sampler: indices in the order wanted, instead of shuffle; an iterable that ends, read again each epoch. One of
            torch's DistributedSampler has divided the samples among ranks already; its order is this rank's.
        batch_sampler: torch's BatchSampler, for its sampler, batch_size and drop_last.
        num_workers: decoder threads, if `tuning` does not set them; 0 leaves the choice to `tuning`.
        collate_fn: called with a list of (image, label) per batch, image tensors on the device and int labels, or of
            dicts of columns; or a `Mixing`, torchvision's v2.MixUp, v2.CutMix or a RandomChoice of both: batches mixed
            by random numbers that a resume repeats.
        pin_memory: has no effect.
        drop_last: leave out the last batch if it is not full.
        timeout: seconds to wait for a batch, or for what the source holds (its lists, indexes or footers), before a
            WaitError, which is a TimeoutError and, as torch's own, a RuntimeError; 0 waits for ever. Making a loader
            without `columns` may read an index, for which it does not hold.
        worker_init_fn, multiprocessing_context, persistent_workers, pin_memory_device, in_order: has no effect.
        snapshot_every_n_steps: torchdata's; has no effect, as a state is of the last batch at any step.
        generator: the seed is taken from it, once.
        prefetch_factor: batches in flight, if `tuning` does not set them.
        transform: torchvision transforms (v1 or v2), after them Lambda and functions of an image, which run on each
            finished image; or a DALI graph function (images, draws) -> images, where `draws` gives each sample its
            random numbers. A list of torchvision transforms, or an object that gives a list, makes several views of
            each image: `images` is then a list, one tensor per view.
        columns: what a batch holds, name -> class of `dali_feed.columns`: a batch is then a dict of them in that order;
            a sequence of them makes it a tuple. None: the source's own, mostly images and labels.
        device: None: the current CUDA device, or the CPU if there is none.
        seed: of order and augmentation, 0..2**64-1; None is 0.
        lanes: the largest world size this run may ever resume at, or a multiple of many. None: a loaded state's; else
            for shuffled records as many as batch and memory allow, a multiple of today's world size, and today's for
            any other order (docs/resume.md has the rule). docs/start.md explains them.
        rank, world_size: default torch.distributed, then RANK and WORLD_SIZE, then 0 of 1.
        decode: how images are decoded, and which are too large: `Decode`.
        bad: what is done with records that cannot be used.
        tuning: threads, readers, prefetch, memory; never changes a batch.
        info: add an `Info` to each batch.

    Raises:
        ConfigError: (a ValueError) for values that are not allowed, and for transforms that no engine can run.
        SourceError: at the first use of the source, where records cannot be read.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the first 17 are torch's, in torch's order
        self,
        dataset: Source | Any,
        batch_size: int | None = 1,
        shuffle: bool | Shuffle | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | Mixing | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: object = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        transform: object = None,
        columns: Mapping[str, Column] | Sequence[Column] | None = None,
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        decode: Decode = Decode(),
        bad: BadRecords = BadRecords(),
        tuning: Tuning = Tuning(),
        info: bool = False,
    ) -> None:
        check_groups(decode=decode, bad=bad, tuning=tuning)
        self.num_workers, self.collate_fn, self.pin_memory, self.timeout = num_workers, collate_fn, pin_memory, timeout
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator, self.prefetch_factor, self.persistent_workers = generator, prefetch_factor, persistent_workers
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        steps = 0 if snapshot_every_n_steps is None else snapshot_every_n_steps
        self.snapshot_every_n_steps = whole("snapshot_every_n_steps", steps, 0)
        how = {name: getattr(self, name) for name in (*_TORCHS, "pin_memory_device")}
        what = {"batch_size": batch_size, "shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
        check_by_torch(dataset, {**what, "drop_last": drop_last, **how})
        plain = None if batch_sampler is None else unwrapped(batch_sampler)
        if plain is not None:
            sampler, batch_size, drop_last = plain
        self._own_batches = own_batches = batch_sampler is not None and plain is None
        self.dataset, self.batch_size = dataset, None if own_batches else batch_size
        self.shuffle, self.sampler, self.drop_last = shuffle, sampler, drop_last
        self.batch_sampler = NoBatchSampler(self) if batch_sampler is None else batch_sampler
        self.transform, self.columns, self.lanes, self.info = transform, columns, lanes, info
        self.decode, self.bad, self.tuning = decode, bad, tuning
        self.seed, self.device = seeded(seed, generator), torch_device(device)
        dealt = has_dealt(sampler) or own_batches
        if dealt and (rank is not None or world_size is not None):
            raise ConfigError(
                "rank and world_size: a DistributedSampler, or your own batch_sampler, already divides the "
                f"samples among ranks; leave them out; found rank={rank}, world_size={world_size}"
            )
        rank, world_size = (0, 1) if dealt else ranks(rank, world_size)
        if world_size > 1 and isinstance(sampler, _RANDOM):
            warn_once(
                f"{type(sampler).__name__} over {world_size} ranks",
                "each rank makes its own order, so samples overlap. Use shuffle=True, or a DistributedSampler",
                what="does not divide the samples",
            )
        runs, own = feed_for(self, rank, world_size)
        self._feed = feed = runs if isinstance(runs, Feed) else None  # None: torch's own loader runs it
        self._positions = runs._positions if isinstance(runs, Feed) else runs
        self._pass: weakref.ref[_Tensors] | None = None  # that began last
        self._restored = False  # whether a state has been loaded
        self._count: int | None = None  # of epochs, by a framework since then
        self._mixes: Mixes | None = None
        self._items: Callable[[Any], Any] = functools.partial(moved, device=self.device)
        self._unchanged: Unchanged | None = None
        if feed is not None:
            self._unchanged = None if isinstance(dataset, Records) else Unchanged(dataset)
            self._positions.wait_at_most(timeout)
            self._items = items = Items(feed, self.device, collate_fn, own, info=info)
            feed.accompany(items.companions)
            self._mixes = items.mixes
        self._close_at_exit = weakref.finalize(self, self._positions.collected)
        if os.environ.get("DALI_FEED_METRICS"):
            from dali_feed.metrics import serve_if_asked  # and a server with it

            serve_if_asked(self)

    # Accelerate's prepare_data_loader() gives it back as it is, and its save_state() keeps what state_dict() says.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __class_getitem__(cls, batch: object) -> types.GenericAlias:
        """For annotations, which say of torch's loader what a batch is: `DataLoader[...]`."""
        return types.GenericAlias(cls, batch)

    def __setattr__(self, name: str, value: object) -> None:
        """Arguments stay as they were given: torch forbids changing six of them, and here no change has an effect."""
        each_time = name == "timeout" and vars(self).get("_feed") is not None  # it is read with every batch
        if name in _FROZEN and "_close_at_exit" in vars(self) and not each_time:
            msg = f"{name} attribute should not be set after {type(self).__name__} is initialized; make a new one"
            raise ConfigError(msg)
        super().__setattr__(name, value)
        if each_time:
            self._positions.wait_at_most(self.timeout)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: cannot be pickled or copied, because it has threads and a position; make "
            "one where it is used, and pass on state_dict()"
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the epoch that a loaded state is in.

        A pass that was left early has used its epoch. A pass that was left after its first batch was only a look at the
        data: the next pass begins where it began, so `next(iter(loader))` skips no data, however often it is called.
        A pass begins, and the one before is over, when its first batch is asked for; a stream's begins here.
        """
        if self._unchanged is not None:
            self._unchanged.check()
        self._positions.check_open()
        one = _Tensors(self)
        if isinstance(self.dataset, Stream | IterableDataset):
            one.begin()  # a state says from here on where a stream begins; torch asks a dataset for an iterator here
        return one

    def skip(self, batches: int) -> Skipped:
        """The next pass without its first `batches`, by arithmetic: what skip_first_batches of a framework should be.

        It has a length and `set_epoch`, as the loader has; passes behind the next one are whole.

        Raises ConfigError for fewer than 0, and for a stream or an iterable-style dataset, which cannot skip.
        """
        return Skipped(self, whole("skip: batches", batches, 0), functools.partial(_Tensors, self))

    def _begin(self, one: _Tensors, skipped: int) -> Batches:
        """The pass of the feed that this one gives the batches of."""
        last = None if self._pass is None else self._pass()
        if last is not None:
            last.leave()
        check_ranks(self)
        self._positions.follow()  # the user called the sampler's set_epoch(), as torch wants it
        if skipped:
            self._go_ahead(skipped)
        batches = self._positions.batches()
        self._pass = weakref.ref(one)
        return batches

    def _go_ahead(self, batches: int) -> None:
        """The next pass begins so many batches later."""
        epochs = self._positions
        if not isinstance(epochs, Epochs) or isinstance(epochs, Iterations):
            msg = "skip: a stream, or an iterable-style dataset, has no positions to skip to; use load_state_dict()"
            raise ConfigError(msg)
        epochs.leave()
        state = super().state_dict()
        state["consumed"] = min(state["consumed"] + batches * epochs.shares.per_lane, epochs.plan.lane_length)
        super().load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if a loaded state is inside that epoch, it continues there.

        A pass under way goes on to its end. Between `iter(loader)` and its first batch it counts for that pass.
        """
        if isinstance(self.dataset, Stream):
            warn_once("set_epoch", "a stream has no epochs", 2)
        super().set_epoch(epoch)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Let the next pass continue where `state` was saved, in O(1). Raises a StateError that lists every difference.

        For a stream each rank has its own state; to continue at another world size, give a list of the states of all
        ranks. ConfigError where `collate_fn` cannot mix the lanes of the state.
        """
        super().load_state_dict(state)
        self._restored, self._count = True, None
        if self._mixes is not None:
            self._mixes.check(self._positions.shares)

    def _epoch_of_framework(self, epoch: int) -> None:
        """See `NoBatchSampler.set_epoch`."""
        before, self._count = self._count, epoch
        positions = self._positions
        if not self._restored:
            self.set_epoch(epoch)
        elif not isinstance(self.dataset, Stream | IterableDataset):
            over = before is not None and epoch > before and positions.at()[1] > 0
            if over or positions.at_end():
                positions.set_epoch(positions.epoch + 1)


class _Tensors(Iterator[Any]):
    """One pass as torch tensors. It begins with its first batch; frameworks call `iter` to look."""

    def __init__(self, loader: DataLoader, skipped: int = 0) -> None:
        self._loader, self._skipped = loader, skipped
        self._batches: Batches | None = None
        self._beginning = threading.Lock()  # threads may share a pass: one of them begins it
        self._entered = False
        self._registered: Registration | None = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._loader.__reduce_ex__(protocol)

    def __len__(self) -> int:
        """Batches still to come."""
        if self._batches is not None:
            return len(self._batches)
        if isinstance(self._loader.dataset, IterableDataset):
            raise TypeError("an iterable-style dataset does not say how many batches are still to come")
        return max(0, self._loader._now.left(of_next=True) - self._skipped)

    def __next__(self) -> Any:
        timeout = self._loader.timeout
        try:
            batches = self.begin()
            if not self._entered:
                self._enter()
            batch = batches.take(timeout or None, self._loader._items)
        except StopIteration:
            self.leave()
            raise
        except WaitError as error:
            raise WaitError(f"DataLoader timed out after {timeout} seconds; {error}") from error
        if self._registered is not None:
            self._registered.end_of_dataloader = batches.at_end()
        return batch

    def begin(self) -> Batches:
        """The pass of the feed, which begins with the first call."""
        batches = self._batches
        if batches is None:
            with self._beginning:
                batches = self._batches
                if batches is None:
                    batches = self._batches = self._loader._begin(self, self._skipped)
        return batches

    def _enter(self) -> None:
        """Frameworks know it from here on."""
        with self._beginning:
            if not self._entered:
                self._entered = True
                self._registered = Registration.of(self._loader)
                if self._registered is not None:
                    self._leave = weakref.finalize(self, self._registered.leave)

    def leave(self) -> None:
        """Frameworks know it no more. Safe to call twice."""
        registered, self._registered = self._registered, None
        if registered is not None:
            self._leave.detach()
            registered.leave()


_FROZEN = frozenset(inspect.signature(DataLoader).parameters)
