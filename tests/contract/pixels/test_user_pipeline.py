"""Pipelines that cannot be run, and options that contradict a transform: told before a batch is made."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from kit.dali_pipelines import CPU, graph, plain
from kit.images import jpeg, labelled
from kit.inside import Feed
from kit.inside import arguments as torch_arguments
from nvidia.dali import Pipeline, fn, ops
from torchvision.transforms import v2

from dali_feed import BadRecords, Decode
from dali_feed.dali import DALIClassificationIterator, DALIGenericIterator
from dali_feed.errors import ConfigError, EngineError
from dali_feed.testing import ScriptedSource


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": 5}, "size: .* 8 samples .* found 5"),
        ({"auto_reset": "maybe"}, "auto_reset: .*'maybe'"),
        ({"last_batch_policy": "FILL"}, "last_batch_policy: .*'FILL'"),
        ({"output_map": ["a"]}, r"output_map: .* 2 outputs of pipeline plain; found \['a'\]"),
        ({"output_map": ["a", "a"]}, "output_map: .*distinct"),
        ({"output_map": "ab"}, "output_map: .*list"),
        ({"source": [1, 2]}, "source: .*found list"),
        (
            {"source": None, "reader_name": "Reader"},
            r"pipeline plain: .*source=.*ShardSet.*fn\.external_source\(name='image'\).*leave out reader_name=",
        ),
        ({"shuffle": True, "sampler": [1]}, "mutually exclusive"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], told: str) -> None:
    """Each is a ConfigError that names the argument."""
    given: dict[str, Any] = {"output_map": ["data", "label"], "source": ScriptedSource(labelled(8))}
    given |= options
    with pytest.raises(ConfigError, match=told):
        DALIGenericIterator(plain, **given)


def test_arguments_without_effect_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's name, shapes and padding are taken and left; the right size is taken in silence."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    source = ScriptedSource(labelled(8))
    given = {"reader_name": "Reader", "dynamic_shape": True, "last_batch_padded": True, "prepare_first_batch": False}
    with pytest.warns(UserWarning, match="has no effect here") as told:
        DALIClassificationIterator(plain, source, **given).close()
    assert sorted(str(one.message).partition(" ")[0] for one in told) == sorted(given)
    assert {one.filename for one in told} == {__file__}
    DALIClassificationIterator(plain, source, size=8, **given).close()


def test_a_built_pipeline_is_taken() -> None:
    """As DALI's own scripts make it: built before the iterator has it."""
    pipe = plain()
    pipe.build()
    with DALIClassificationIterator(pipe, ScriptedSource(labelled(8))) as loop:
        assert [label for data in loop for label in data[0]["label"].flatten().tolist()] == list(range(8))


def test_outputs_of_several_sizes_are_an_engine_error() -> None:
    """Which output it is, and the sizes."""
    loop = DALIGenericIterator(graph(_ragged), ["a", "b"], ScriptedSource(labelled(8, sizes=True)))
    with loop, pytest.raises(EngineError, match=r"output 1 of a batch must have one size.*\(16, 16, 3\)"):
        next(loop)


def _ragged() -> Any:
    whole = fn.decoders.image(fn.external_source(name="image"))
    return fn.resize(whole, size=[8, 8]), whole


def test_a_sample_that_the_graph_cannot_do_is_replaced() -> None:
    """Not the payload is at fault but what the graph asks of it: that record is marked, with its label, alone."""

    def cut() -> Any:
        whole = fn.decoders.image(fn.external_source(name="image"))
        return fn.crop(whole, crop=(20, 20), out_of_bounds_policy="error"), fn.external_source(name="label")

    items = [(jpeg(n, 24 if n != 2 else 16, 24), n) for n in range(8)]
    with DALIClassificationIterator(graph(cut), ScriptedSource(items), bad=BadRecords(limit=None)) as loop:
        assert [n for data in loop for n in data[0]["label"].flatten().tolist()] == [0, 1, 3, 3, 4, 5, 6, 7]
        ((_, reason),) = loop.stats().recent_bad
    assert re.search(
        r"fn.crop at .*test_user_pipeline.py:\d+: Slice can't be placed out of bounds.*16 x 24 x 3", reason
    )
    assert "C++" not in reason


def test_a_label_that_does_not_fit_stops_the_run_in_its_place() -> None:
    """The batches before it come; the error names the field."""
    items: list[Any] = labelled(12)
    items[9] = (items[9][0], 1 << 40)
    with DALIClassificationIterator(plain, ScriptedSource(items)) as loop:
        next(loop)
        next(loop)
        with pytest.raises(ConfigError, match="field label"):
            next(loop)


def test_a_field_that_cannot_be_fed_leaves_nothing_in_the_pipeline() -> None:
    """After its error the next pass has each label with its own image, and not with the one of a batch before."""
    items: list[Any] = labelled(12)
    order = [*range(12)]

    def pairs(data: Any) -> list[Any]:
        return [(int(n), image.tolist()) for n, image in zip(data["label"], data["data"], strict=True)]

    with DALIClassificationIterator(plain, ScriptedSource(items), sampler=order) as loop:
        wanted = pairs(next(loop)[0])
    items[len(wanted)] = (items[len(wanted)][0], 1 << 40)  # in the second batch
    with DALIClassificationIterator(plain, ScriptedSource(items), sampler=order) as loop:
        with pytest.raises(ConfigError, match="field label"):
            for _ in loop:
                pass
        loop.set_epoch(0)
        assert pairs(next(loop)[0]) == wanted


class Old(Pipeline):  # type: ignore[misc, unused-ignore]
    """A pipeline as DALI's users wrote it before `@pipeline_def`."""

    def __init__(self) -> None:
        super().__init__(**CPU)
        self.payloads, self.labels = ops.ExternalSource(name="image"), ops.ExternalSource(name="label")
        self.decode, self.resize = ops.decoders.Image(), ops.Resize(size=[8, 8])
        self.noise = ops.noise.Gaussian(stddev=4.0)

    def define_graph(self) -> Any:
        """Images and labels."""
        return self.noise(self.resize(self.decode(self.payloads()))), self.labels()


def test_a_pipeline_class_is_taken() -> None:
    """With operators as objects and define_graph; its noise is ours too. One object serves one iterator."""
    pipe = Old()
    with DALIClassificationIterator(pipe, ScriptedSource(labelled(8))) as loop:
        first = [data[0]["data"].clone() for data in loop]
    with DALIClassificationIterator(Old(), ScriptedSource(labelled(8))) as loop:
        assert all((a == data[0]["data"]).all() for a, data in zip(first, loop, strict=True))
    with pytest.raises(ConfigError, match="found one that another iterator uses; make one for each"):
        DALIClassificationIterator(pipe, ScriptedSource(labelled(8)))


def own_graph(images: Any, draws: Any) -> Any:
    """A user's own graph."""
    del draws
    return images


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": v2.Resize((8, 8)), "decode": "fast"}, "decode: must be a Decode"),
        (
            {"transform": own_graph, "decode": Decode(memory_format=torch.channels_last)},
            r"Decode\(memory_format=...\): must be left out with a DALI graph, .*; found torch.channels_last",
        ),
        (
            {"transform": own_graph, "decode": Decode(engine="host")},
            r"Decode\(engine='host'\): .*found a DALI graph",
        ),
    ],
)
def test_an_option_that_the_engine_cannot_keep_is_refused(options: dict[str, Any], said: str) -> None:
    """With what it may be."""
    with pytest.raises(ConfigError, match=said):
        Feed(ScriptedSource([(jpeg(0), 1)]), 1, **options).close()
