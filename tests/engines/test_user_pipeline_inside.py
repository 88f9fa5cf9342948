"""Insides that contract/pixels/test_user_pipeline.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit.dali_pipelines import graph, image, plain
from nvidia.dali import fn

from dali_feed.compiler.user_graph import FieldInput
from dali_feed.engines.choose import compiled
from dali_feed.engines.dali.user_pipeline import field_rows, read_pipeline
from dali_feed.errors import ConfigError, DaliFeedError, TransformError
from dali_feed.options import Decode


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


def test_a_pipelines_decoder_turns_as_its_user_says() -> None:
    """exif=True is not for it: its decoder has an argument of its own, which the error names."""
    program = read_pipeline(graph(image)(), ())
    with pytest.raises(
        ConfigError,
        match=r"^Decode\(exif=...\): must be left out with a pipeline of your own, .*adjust_orientation=True",
    ):
        compiled(program, Decode(exif=True), None)
