"""DALI's own iterators, by name and by what they give, around a user's own pipeline fed from any of our sources.

    from dali_feed.dali import DALIClassificationIterator

    @pipeline_def(batch_size=64, num_threads=4, device_id=0)
    def train():
        jpegs, labels = fn.external_source(name="image"), fn.external_source(name="label")
        images = fn.decoders.image_random_crop(jpegs, device="mixed")
        return fn.resize(images, size=[224, 224]), labels

    for data in DALIClassificationIterator(train, ShardSet("train-*.tar"), shuffle=True):
        images, labels = data[0]["data"], data[0]["label"]

Several inputs, one per member of a record, are columns:

    columns = {"image": Image("jpg;png"), "mask": Mask("seg.png"), "label": Number("cls")}
    DALIGenericIterator(train, ["image", "mask", "label"], ShardSet("train-*.tar"), columns=columns)

An item is a list of one dict, name of output -> torch tensor: one pipeline and one process per GPU. A label that the
graph declares nothing of comes as int32 in shape (1,), as fn.readers.file gives it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, unique
from typing import Any, NoReturn, Self, cast
from warnings import warn

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.columns.column import Column, Number
from dali_feed.columns.graph_inputs import graph_inputs
from dali_feed.columns.image import Image
from dali_feed.engines.dali.user_graph import FieldInput, PipelineProgram
from dali_feed.engines.finish import tensor_of
from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.feed.epochs import Epochs
from dali_feed.feed.feed import FeedLoop
from dali_feed.feed.passes import Batches
from dali_feed.loader.arguments import ranks, warn_once
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.packages import needed
from dali_feed.plan.order import EpochPlan, Shuffle
from dali_feed.records.source import Source

with needed():
    from dali_feed.engines.dali.user_pipeline import open_pipeline, read_pipeline

__all__ = ["DALIClassificationIterator", "DALIGenericIterator", "LastBatchPolicy"]

_CHECKPOINTS = "state_dict() and load_state_dict() of the iterator hold its position and the random numbers"


@unique
class LastBatchPolicy(Enum):
    """What is done with a last batch that is not full. DALI's own enum is taken as well.

    FILL     its last sample is repeated until it is full, as a reader with pad_last_batch=True does
    DROP     it is left out
    PARTIAL  it comes as it is, smaller; samples that are repeated so that all ranks have equally many batches are left
             out, so that a rank's last batch may have no sample. Where windows are shuffled (a topic's, a
             `Shuffle(4, 2)`) they stand anywhere in the epoch's last window, each batch of which may be smaller, or
             have no sample
    """

    FILL = 0
    DROP = 1
    PARTIAL = 2


class DALIGenericIterator(FeedLoop, Iterator[list[dict[str, torch.Tensor]]]):
    """Batches of a pipeline as DALI's DALIGenericIterator gives them, with a length and a state.

    Args:
        pipelines: a function under `@pipeline_def`, or the Pipeline it gives, which then belongs to the iterator; or a
            list of one. Its batch size, threads, device and queue depth are used. It takes its records from
            `fn.external_source(name="image")`, the image's bytes as uint8, and one more for each other column of the
            source's own.
        output_map: names of the pipeline's outputs, in order.
        source: where records are (`dali_feed.external_sources`); it stands in place of the graph's reader.
        size: not needed, because it is counted; if it is given, it must be the same as the attribute `size`.
        reader_name: has no effect: the source is the reader.
        auto_reset: True or "yes": at the end of an epoch the next one is made ready. Otherwise `reset()`, or the next
            `for`, does that.
        fill_last_batch: DALI's older name for FILL and PARTIAL.
        dynamic_shape: has no effect, as in DALI.
        last_batch_padded: has no effect: FILL repeats the last sample, and no epoch takes from the next.
        last_batch_policy: what is done with a last batch that is not full.
        prepare_first_batch: has no effect: the first batch is begun when the loop takes it.
        columns: the inputs of the graph, name -> class of `dali_feed.columns`, where they are members of a record:
            `fn.external_source(name="mask")` takes the column `mask`. Images and masks as their bytes, screened;
            text and bytes as uint8; arrays, boxes, token ids and numbers as such.
        shuffle, sampler, seed, lanes, rank, world_size, bad, tuning: as in `dali_feed.DataLoader`. `tuning` overrides
            what the pipeline says of prefetching; `seed` is also that of DALI's random operators.
        decode: which images are too large, `Decode(max_pixels=, max_work=)`. All else is the graph's own, and a
            ConfigError here.

    Raises ConfigError or TransformError for values that are not allowed and graphs that cannot run.
    """

    _positions: Epochs
    _stacklevel = 3  # from a warning to the line that makes the iterator

    def __init__(  # noqa: PLR0913, PLR0917  DALI's arguments, in DALI's order; ours by name
        self,
        pipelines: object,
        output_map: Sequence[str],
        source: Source | None = None,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: str | bool | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: bool = False,
        last_batch_padded: bool = False,
        last_batch_policy: Enum = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
        *,
        columns: Mapping[str, Column] | None = None,
        shuffle: bool | Shuffle | None = None,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        decode: Decode = Decode(),
        bad: BadRecords = BadRecords(),
        tuning: Tuning | None = None,
    ) -> None:
        self._auto_reset = _auto_reset(auto_reset)
        self._policy = _policy(last_batch_policy, fill_last_batch)
        if source is not None and not isinstance(source, Source):
            raise ConfigError(f"source: must be one of dali_feed.external_sources; found {type(source).__name__}")
        opened = open_pipeline(pipelines)
        if source is None:
            raise ConfigError(
                f"pipeline {opened.name}: there must be a source to read from; found none. Three edits: give the "
                "iterator source=, such as FileList.from_folder(root), ShardSet('train-*.tar') or KafkaTopic(topic, "
                "servers); put fn.external_source(name='image'), fn.external_source(name='label') in the reader's "
                "place; leave out reader_name= and size=, because the iterator knows its size (loop.size, len(loop))"
            )
        inputs = graph_inputs(source.preset if columns is None else columns)
        first = next(name for name, column in inputs.items() if isinstance(column, Image))
        if opened.pipe._checkpoint is not None:
            raise ConfigError(f"pipeline {opened.name}: checkpoint= is of DALI's own iterator; {_CHECKPOINTS}")
        program = read_pipeline(opened, [name for name in inputs if name != first], first)
        if columns is not None:
            program.inputs = {name: _declared(how, columns[name]) for name, how in program.inputs.items()}
        inputs[first] = replace(inputs[first], transform=program)  # type: ignore[call-arg]  # an Image
        idle = {
            "reader_name": (reader_name is not None, "the source is the reader"),
            "dynamic_shape": (dynamic_shape, "shapes may differ from batch to batch"),
            "last_batch_padded": (last_batch_padded, "FILL always repeats the last sample"),
            "prepare_first_batch": (not prepare_first_batch, "no batch is begun before it is asked for"),
            "the pipeline's enable_checkpointing": (opened.pipe._enable_checkpointing, _CHECKPOINTS),
            "the pipeline's seed": (program.seed is not None, "seed= of the iterator is the seed, on all ranks"),
        }
        for name, (is_set, why) in idle.items():
            if is_set:
                warn_once(name, why, self._stacklevel)
        self.output_map = _names(output_map, program)
        self.batch_size = program.batch_size
        _warn_of_randomness(program, self._stacklevel)
        rank, world_size = ranks(rank, world_size)
        feed = Feed(
            source,
            program.batch_size,
            shuffle=False if shuffle is None else shuffle,
            sampler=sampler,
            drop_last=self._policy is LastBatchPolicy.DROP,
            columns=inputs,
            decode=decode,
            device=program.device,
            seed=seed,
            lanes=lanes,
            rank=rank,
            world_size=world_size,
            bad=bad,
            tuning=tuning or replace(Tuning(), threads=program.threads, prefetch=program.prefetch),
        )
        self._positions = cast("Epochs", feed._positions)  # as its source is bounded
        self._close_at_exit = weakref.finalize(self, self._positions.collected)
        self._batches: Batches | None = None
        self._ended = False
        if size not in (-1, self.size):
            msg = f"size: the source tells it, {self.size} samples an epoch on this rank; found {size}. Leave size out"
            raise ConfigError(msg)

    # DALI's side.

    @property
    def size(self) -> int:
        """Samples that an epoch gives on this rank; repeated ones count, dropped ones do not."""
        if self._policy is not LastBatchPolicy.PARTIAL:
            return len(self) * self.batch_size
        return self._slots - (int(self._repeated(0, self._positions.plan.lane_length).sum()) if self._repeats else 0)

    @property
    def _slots(self) -> int:
        """Samples of an epoch on this rank, counting those that drop_last leaves out at its end."""
        return self._positions.plan.lane_length * len(self._positions.shares.mine)

    @property
    def _repeats(self) -> bool:
        """Whether there are samples that PARTIAL leaves out."""
        plan = self._positions.plan
        return self._policy is LastBatchPolicy.PARTIAL and isinstance(plan, EpochPlan) and plan.repeats > 0

    def _repeated(self, first: int, stop: int) -> NDArray[np.bool_]:
        """Which slots of these, lane by lane, have a sample that another slot of the epoch has: bool (lanes, slots)."""
        plan: Any = self._positions.plan
        return np.stack([plan.repeated(lane, first, stop) for lane in self._positions.shares.mine])

    @property
    def _size(self) -> int:
        """DALI's own name for it, which scripts divide by the batch size."""
        return self.size

    def __iter__(self) -> Self:
        """This iterator; an epoch that was begun or ended is reset, so that a `for` is an epoch, or the rest of a
        loaded one.

        An epoch of which a single batch was taken was a look at the data, and begins again.
        """
        self._batches, self._ended = None, False
        self._positions.leave()
        return self

    def reset(self) -> None:
        """Make the next epoch ready, at any time: the current one ends. A second call changes nothing."""
        self._positions.skip()
        self._batches, self._ended = None, False

    def __next__(self) -> list[dict[str, torch.Tensor]]:
        if self._ended:
            raise StopIteration
        if self._batches is None:
            self._batches = self._positions.batches()
            if not len(self):
                raise ConfigError(
                    f"last_batch_policy: DROP leaves out a batch that is not full; found none that is, as an epoch has"
                    f" {self._slots} samples on this rank, and a batch {self.batch_size}. Give FILL or PARTIAL"
                )
        try:
            outputs: dict[str, torch.Tensor] = self._batches.take(make=self._outputs_of)
        except StopIteration:
            self._ended = True
            if self._auto_reset:
                self.reset()
            raise
        return [outputs]

    def _outputs_of(self, batch: Batch) -> dict[str, torch.Tensor]:
        missing = self.batch_size - len(batch) if self._policy is LastBatchPolicy.FILL else 0
        with batch.reading():
            outputs = [_filled(tensor_of(out.images, batch.device), missing) for out in (batch, *batch.more)]
        if self._repeats:
            outputs = self._once(outputs, len(batch))
        return dict(zip(self.output_map, outputs, strict=True))

    def _once(self, outputs: list[torch.Tensor], count: int) -> list[torch.Tensor]:
        """The outputs of the next `count` slots without samples that others have."""
        at, lanes = self._positions.at()[1], len(self._positions.shares.mine)
        rows = np.flatnonzero(~self._repeated(at, at + count // lanes).ravel())
        if len(rows) == count:
            return outputs
        kept = torch.from_numpy(rows)
        return [output[kept.to(output.device)] for output in outputs]

    def checkpoints(self) -> NoReturn:
        """DALI's are not taken: `state_dict()` has the position and the random numbers. Raises ConfigError."""
        raise ConfigError(f"checkpoints(): {_CHECKPOINTS}")

    def next(self) -> list[dict[str, torch.Tensor]]:
        """The next batch."""
        return self.__next__()

    # Ours.

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if a loaded state is inside that epoch, it continues there."""
        super().set_epoch(epoch)
        self._batches, self._ended = None, False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass continue where `state` was saved, in O(1). StateError lists every difference."""
        super().load_state_dict(state)
        self._batches, self._ended = None, False


class DALIClassificationIterator(DALIGenericIterator):
    """`DALIGenericIterator(pipelines, ["data", "label"], source, ...)`: for pipelines of images and labels."""

    _stacklevel = 4

    def __init__(self, pipelines: object, source: Source | None = None, *args: Any, **options: Any) -> None:
        super().__init__(pipelines, ["data", "label"], source, *args, **options)


def _auto_reset(value: object) -> bool:
    if value in (False, None, "no"):
        return False
    if value in (True, "yes"):
        return True
    raise ConfigError(f'auto_reset: must be True, False, None, "yes" or "no"; found {value!r}')


def _policy(policy: object, fill: bool | None) -> LastBatchPolicy:
    if fill is not None:
        return LastBatchPolicy.FILL if fill else LastBatchPolicy.PARTIAL
    if not isinstance(policy, Enum) or type(policy).__name__ != "LastBatchPolicy":
        raise ConfigError(f"last_batch_policy: must be a LastBatchPolicy; found {policy!r}")
    return LastBatchPolicy[policy.name]


def _names(output_map: Sequence[str], program: PipelineProgram) -> list[str]:
    names = list(output_map)
    if isinstance(output_map, str) or len(set(names)) != len(names):
        raise ConfigError(f"output_map: must be a list of distinct names; found {output_map!r}")
    if len(names) != program.outputs:
        msg = f"output_map: must name the {program.outputs} outputs of pipeline {program.name}; found {names}"
        raise ConfigError(msg)
    return names


def _declared(field: FieldInput, column: Column) -> FieldInput:
    """What the graph says of an input; where it says nothing a number is of its column's type."""
    if field.dtype is None and isinstance(column, Number):
        return replace(field, dtype=np.dtype(column.dtype))
    return field


def _warn_of_randomness(program: PipelineProgram, stacklevel: int) -> None:
    if program.loose:
        warn(
            f"pipeline {program.name}: {', '.join(program.loose)} cannot take its state from outside in this DALI, so"
            " that augmentation does not resume bit for bit; order, labels and everything else do",
            UserWarning,
            stacklevel=stacklevel,
        )


def _filled(rows: torch.Tensor, missing: int) -> torch.Tensor:
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
