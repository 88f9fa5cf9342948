"""Pipelines that cannot be run: each mistake is told in our words, before a batch is made."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dali_pipelines import CPU, plain
from images import jpeg, labelled
from nvidia.dali import Pipeline, fn, ops, pipeline_def

from dali_feed.compiler.user_pipeline import FieldInput
from dali_feed.dali import DALIClassificationIterator, DALIGenericIterator
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compiled
from dali_feed.engines.dali.pipeline import PipelineEngine, field_rows
from dali_feed.engines.dali.read_pipeline import read_pipeline
from dali_feed.engines.engine import Work
from dali_feed.errors import ConfigError, DaliFeedError, EngineError, TransformError
from dali_feed.loader import arguments as torch_arguments
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.testing.scripted import ScriptedSource


def image(**options: Any) -> Any:
    """Decoded images of one size."""
    return fn.resize(fn.decoders.image(fn.external_source(name="image", **options)), size=[8, 8])


def graph(define: Callable[[], Any], **options: Any) -> Any:
    """A pipeline of that graph."""

    @pipeline_def(**{**CPU, **options})  # type: ignore[untyped-decorator, unused-ignore]
    def mine() -> Any:
        return define()

    return mine


def taken() -> Any:
    """A pipeline that is an iterator's already."""
    pipe = graph(image)()
    read_pipeline(pipe, ())
    return pipe


@pytest.mark.parametrize(
    ("pipelines", "kind", "told"),
    [
        (
            graph(lambda: (image(), fn.external_source(name="lable"))),
            ConfigError,
            r"of image, label, path; found 'lable'",
        ),
        (graph(lambda: (image(), fn.external_source())), ConfigError, "found one without a name"),
        (graph(lambda: fn.external_source(name="label")), ConfigError, r"name='image'\); found 'label'"),
        (graph(fn.random.uniform), ConfigError, "found no external_source"),
        (
            graph(lambda: image(source=lambda: 1)),
            ConfigError,
            "'image' must take its data from the loader's source.*source=",
        ),
        (graph(lambda: (image(), fn.readers.file(file_root="x")[1])), ConfigError, "reader readers__File.*'image'"),
        (graph(lambda: fn.resize(image(), no_such=1)), TransformError, "mine: .* it raised .*no_such"),
        (graph(lambda: (image(), [image])), TransformError, "mine: .*its graph must build"),
        (
            graph(lambda: fn.python_function(image(), function=abs)),
            TransformError,
            "serialize.*python_function.*Leave that operator out",
        ),
        (graph(image, batch_size=None), ConfigError, "must say its batch size"),
        (lambda: plain, ConfigError, "found function from <lambda>"),
        (3, ConfigError, "found int"),
        ([plain, plain], ConfigError, "as each rank runs its own; found 2"),
        (taken, ConfigError, "found one that another iterator uses; make one for each"),
        (lambda crop: plain(), TransformError, r"no arguments; .* missing .*crop"),
    ],
)
def test_pipelines_that_cannot_be(pipelines: Any, kind: type[DaliFeedError], told: str) -> None:
    """Subject, rule, what was found and a cure."""
    with pytest.raises(kind, match=rf"(?s)^pipelines?.*{told}"):
        read_pipeline(pipelines, ("label", "path"))


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


def test_payloads_are_not_copied_on_the_way_in() -> None:
    """DALI shares what it is fed: it keeps the buffers of a batch that waits, where a copy would let them go."""

    class Buffer(np.ndarray[Any, Any]):
        """An array that can be watched."""

    program = read_pipeline(plain, ("label",))
    engine = make_engine("dali", program, batch_size=4, device=None, tuning=Tuning(threads=1))
    assert isinstance(engine, PipelineEngine)
    views: list[Any] = [np.frombuffer(bytearray(jpeg(n)), np.uint8).view(Buffer) for n in range(4)]
    watched = [weakref.ref(view) for view in views]
    payloads = engine.prepare([memoryview(view) for view in views])
    engine._feed(engine._main, Work(payloads, {}, {"label": np.arange(4)}))  # and not begun
    del views, payloads
    gc.collect()
    assert all(ref() is not None for ref in watched)
    engine.close()


def _fed(name: str, values: Any, declared: FieldInput | None = None) -> list[Any]:
    return [np.array(row) for row in field_rows(name, values, declared or FieldInput())]


def test_fields_as_the_graph_takes_them() -> None:
    """Scalars in shape (1,), labels as int32, columns and arrays of any shape as they are, text as its bytes."""
    labels = _fed("label", np.arange(3))
    assert [(row.dtype, row.shape) for row in labels] == [(np.dtype(np.int32), (1,))] * 3
    assert [(row.dtype, row.shape) for row in _fed("key", np.arange(3))] == [(np.dtype(np.int64), (1,))] * 3
    assert [row.shape for row in _fed("label", np.arange(3), FieldInput(np.dtype(np.int64), 0))] == [()] * 3
    assert [row.tolist() for row in _fed("label", [4, 5])] == [[4], [5]]
    assert [bytes(row) for row in _fed("key", [b"ab", "ä"])] == [b"ab", "ä".encode()]
    boxes = [np.zeros((n, 4), np.float64) for n in (1, 3)]
    assert [row.shape for row in _fed("boxes", boxes)] == [(1, 4), (3, 4)]
    assert _fed("boxes", boxes, FieldInput(np.dtype(np.float32), 2))[0].dtype == np.float32


def test_fields_that_do_not_fit() -> None:
    """A label past int32 and a value that is no tensor are told, and never cut."""
    with pytest.raises(ConfigError, match="field label: its values must fit into int32.*4294967296.*dtype"):
        field_rows("label", np.array([1, 1 << 32]), FieldInput())
    with pytest.raises(ConfigError, match="field meta: .*found dict"):
        field_rows("meta", [{}, {}], FieldInput())


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
    with pytest.raises(ConfigError, match="make one for each"):
        DALIClassificationIterator(pipe, ScriptedSource(labelled(8)))


def test_a_pipelines_decoder_turns_as_its_user_says() -> None:
    """exif=True is not for it: its decoder has an argument of its own, which the error names."""
    program = read_pipeline(graph(image)(), ())
    with pytest.raises(
        ConfigError,
        match=r"^Decode\(exif=...\): must be left out with a pipeline of your own, .*adjust_orientation=True",
    ):
        compiled(program, Decode(exif=True), None)
