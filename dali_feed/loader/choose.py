"""Who runs what a DataLoader is given: our feed where the dataset is a source or is made of files, else torch's loader.

The law: an argument that cannot apply warns once, one that would change the data is honoured or refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any
from warnings import warn

from torch.utils.data import IterableDataset, default_collate

from dali_feed.columns.image import Image
from dali_feed.errors import ConfigError, FallbackWarning, TransformError
from dali_feed.external_sources.files import FileList
from dali_feed.feed import Feed
from dali_feed.live import LiveFeed
from dali_feed.loader.arguments import refuse, tuned, warn_once
from dali_feed.loader.array_batches import array_columns
from dali_feed.loader.asked import Asked
from dali_feed.loader.datasets import Lowered, is_source, lower_dataset
from dali_feed.loader.functions import UserTransforms, leaves_pil, split
from dali_feed.loader.torch_feed import TorchFeed
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.records.live import is_live
from dali_feed.transforms.mixing import Mixing
from dali_feed.transforms.unknown import NotMadeError

__all__ = ["feed_for"]

Ours = Feed | LiveFeed
Own = tuple[UserTransforms | None, ...]  # by view

_USER = 5  # frames from a warning here up to who called DataLoader
_IDLE = {  # of torch's arguments, and why they have no effect on ours
    "pin_memory": "batches are made on the device",
    "pin_memory_device": "batches are made on the device",
    "persistent_workers": "threads and engine last as long as the loader",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
}


def feed_for(asked: Asked) -> tuple[Ours | TorchFeed, Own]:
    """The feed, and what of the transform is left to run. Raises ConfigError, TransformError for what cannot be."""
    if is_live(asked.dataset):
        return _live(asked)
    found = _native(asked)
    return (_by_torch(asked, found), ()) if isinstance(found, str) else found


def _native(asked: Asked) -> tuple[Feed, Own] | str:
    """The feed of a source, or of a dataset that is as good as one; or why it is not: a clause, "its loader is ..."."""
    source, transform, theirs, turned = asked.dataset, asked.ours.transform, False, False
    if not is_source(source):
        lowered = lower_dataset(source, columns=asked.ours.columns is not None)
        if isinstance(lowered, str):
            return lowered
        source, theirs, turned = lowered.source, lowered.transform is not None, lowered.exif
        if theirs and transform is not None:
            msg = "transform: the dataset has one already; give it to the dataset or to the loader, not to both"
            raise ConfigError(msg)
        transform = lowered.transform if theirs else transform
        if _wants_pil(source, lowered, asked.torchs.collate_fn, transform):
            return "its transform gives PIL images, and its collate_fn takes them"
    other = _other_batches(asked)
    if other is not None:
        return other
    content, ours, torchs = asked.content, asked.ours, asked.torchs
    try:
        columns, transform, own = _asked_for(asked, transform)
        feed = Feed(
            source,
            asked.batch_size or 1,
            shuffle=False if content.shuffle is None else content.shuffle,
            sampler=content.sampler,
            drop_last=content.drop_last,
            transform=transform,
            decode=ours.decode if ours.decode.exif is not None else replace(ours.decode, exif=turned),
            device=asked.device.index if asked.device.type == "cuda" else None,
            columns=columns,
            seed=content.seed,
            lanes=content.lanes,
            rank=content.rank,
            world_size=content.world_size,
            bad=ours.bad,
            tuning=tuned(ours.tuning, torchs.num_workers, torchs.prefetch_factor, _USER),
        )
    except TransformError as error:
        if theirs and not isinstance(error, NotMadeError):
            return f"its transform is not supported ({str(error).removeprefix('transform: ')})"
        raise
    _warn_of_idle(asked, feed)
    return feed, own


def _live(asked: Asked) -> tuple[LiveFeed, Own]:
    """The feed of a stream, which has no order to choose and no end."""
    content, ours, torchs = asked.content, asked.ours, asked.torchs
    for name, given in {"shuffle": content.shuffle, "sampler": content.sampler, "batch_sampler": asked.batches}.items():
        if given is not None and given is not False:
            refuse(name, "a stream has its own order, so leave it out")
    if asked.batch_size is None:
        refuse("batch_size=None", "use batch_size=1")
    for name, set_ in {"drop_last": content.drop_last, "lanes": content.lanes is not None}.items():
        if set_:
            warn_once(name, "a stream has no last batch, and no lanes", _USER)
    if ours.tuning.readers not in (1, Tuning().readers, "auto"):
        warn_once("Tuning(readers=)", "a stream has one reader for all its partitions", _USER)
    columns, transform, own = _asked_for(asked, ours.transform)
    feed = LiveFeed(
        asked.dataset,
        asked.batch_size or 1,
        transform=transform,
        decode=ours.decode,
        device=asked.device.index if asked.device.type == "cuda" else None,
        columns=columns,
        seed=content.seed,
        rank=content.rank,
        world_size=content.world_size,
        bad=ours.bad,
        tuning=tuned(ours.tuning, torchs.num_workers, torchs.prefetch_factor, _USER),
    )
    _warn_of_idle(asked, feed)
    return feed, own


def _warn_of_idle(asked: Asked, feed: Ours) -> None:
    """Warn, once each, of arguments that have no effect on that feed."""
    ours, torchs, user = asked.ours, asked.torchs, _USER + 1
    if not feed.program.views:
        for name in _set_in(ours.decode):
            warn_once(f"Decode({name}=)", "no column is an image", user)
    elif ours.decode.hardware and (feed.engine_name != "dali" or feed.device is None):
        why = "only a GPU has a JPEG engine, and only the dali engine uses it"
        warn_once("Decode(hardware=)", why, user)
    for name, why in _IDLE.items():
        if getattr(torchs, name):
            warn_once(name, why, user)
    if not torchs.in_order:
        warn_once("in_order=False", "batches always come in order", user)


def _asked_for(asked: Asked, transform: Any) -> tuple[Any, Any, Own]:
    """Columns and transform as an engine runs them, and what of the images' transform is left to run behind it."""
    columns = asked.ours.columns
    if columns is None:
        columns = array_columns(asked.dataset, transform)
    if columns is None or transform is not None:
        return columns, *split(transform)
    named: dict[Any, Any] = dict(columns) if isinstance(columns, Mapping) else dict(enumerate(columns))
    own: Own = ()
    for name, kind in named.items():
        if isinstance(kind, Image):
            kept, its = split(kind.transform)
            own += its  # by image column, as by view
            named[name] = replace(kind, transform=kept)
    return (named if isinstance(columns, Mapping) else list(named.values())), None, own


def _set_in(decode: Decode) -> list[str]:
    """The names of what is not left at its default, but `exif`, which nothing overlooks."""
    default = Decode()
    names = [each.name for each in fields(decode) if each.name != "exif"]
    return [name for name in names if getattr(decode, name) != getattr(default, name)]


def _wants_pil(dataset: Any, lowered: Lowered, collate: Any, transform: Any) -> bool:
    """Whether torch would hand a collate_fn of the user's the images as they were opened."""
    default = collate is None or collate is default_collate or isinstance(collate, Mixing)
    named = not isinstance(dataset, list | tuple) and isinstance(lowered.source, FileList)  # else ours gave the samples
    return not default and named and Mixing.lowered(collate) is None and leaves_pil(transform)


def _other_batches(asked: Asked) -> str | None:
    """Why batches of another kind need torch's loader, a clause; None for the usual ones."""
    if asked.batches is not None:
        name, cure = "batch_sampler", "use torch's BatchSampler, or batch_size with sampler"
        why = "it has a batch_sampler that is not torch's BatchSampler"
    elif asked.batch_size is None:
        name, cure, why = (
            "batch_size=None",
            "use batch_size=1",
            "its samples are wanted without batches (batch_size=None)",
        )
    else:
        return None
    if is_source(asked.dataset) or isinstance(asked.dataset, list | tuple):  # torch would give a list's names
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


def _torch_has(asked: Asked, why: str) -> None:
    """Raise ConfigError for what would change the data and torch's own loader, used because of `why`, does not do."""
    collate = asked.torchs.collate_fn
    if isinstance(collate, Mixing) or Mixing.lowered(collate) is not None:
        cure = "Mix in a function, collate_fn=lambda samples: mixup(*default_collate(samples))"
        whose = f"{type(collate).__name__} is for images that we decode"
        refuse("collate_fn", f"{whose}, and not for this dataset, because {why}. {cure}")
    without = {
        "transform": "applies none; give it to the dataset",
        "info": "has no such item; leave it out",
        "columns": "knows none; use a source of dali_feed.external_sources",
    }
    if asked.ours.decode.exif is not None:
        cure = "its dataset decodes; rotate images there, with PIL.ImageOps.exif_transpose in its transform"
        msg = f"Decode(exif=...): torch's own DataLoader runs this dataset, because {why}, and {cure}"
        raise ConfigError(msg)
    for option, cure in without.items():
        if getattr(asked.ours, option) is not None:
            msg = f"{option}: torch's own DataLoader runs this dataset, because {why}, and {cure}"
            raise ConfigError(msg)


def _by_torch(asked: Asked, why: str) -> TorchFeed:
    """Torch's own loader, because of `why`."""
    dataset = asked.dataset
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    gives = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if isinstance(dataset, str | bytes | os.PathLike) or not gives:
        msg = (
            f"source: must be a source of dali_feed.external_sources or a dataset; found {dataset!r}."
            f" {_source_for(dataset)}"
        )
        raise ConfigError(msg)
    _torch_has(asked, why)
    for name in _set_in(asked.ours.decode):
        warn_once(f"Decode({name}=)", "torch's own DataLoader runs this dataset", _USER)
    for option, default in {"bad": BadRecords(), "tuning": Tuning()}.items():
        if getattr(asked.ours, option) != default:
            warn_once(option, "torch's own DataLoader runs this dataset", _USER)
    warn(
        f"dataset: {name} cannot be read by our engines, because {why}; torch's own DataLoader runs it, in our order."
        " For speed, and for batches without bad records, use a source of dali_feed.external_sources",
        FallbackWarning,
        stacklevel=_USER - 1,
    )
    content, options = asked.content, dict(vars(asked.torchs))
    if options.pop("pin_memory_device"):
        warn_once("pin_memory_device", "torch pins memory for the accelerator that is there", _USER)
    options["pin_memory"] = options["pin_memory"] or asked.device.type == "cuda"
    if options["timeout"] and not options["num_workers"]:
        warn_once("timeout", "there are no worker processes to wait for", _USER)
        options["timeout"] = 0
    if not options["in_order"] and not isinstance(dataset, IterableDataset):
        warn_once("in_order=False", "batches always come in order, so that a state can count them", _USER)
        options["in_order"] = True
    if options["in_order"]:  # torch before 2.6 does not know it
        del options["in_order"]
    return TorchFeed(
        dataset,
        asked.batch_size,
        shuffle=content.shuffle,
        sampler=content.sampler,
        batch_sampler=asked.batches,
        drop_last=content.drop_last,
        seed=content.seed,
        lanes=content.lanes,
        rank=content.rank,
        world_size=content.world_size,
        options=options,
    )
