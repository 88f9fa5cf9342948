"""A user's own DALI graph or pipeline: what is read of it, what it is fed, and draws whose state is ours."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from kit.dali_pipelines import CPU, graph, image, plain
from kit.engine_runs import engine_of, images_of, submit, work_for
from kit.images import jpeg, labelled
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import GetSchema, RegisteredCPUOps, RegisteredGPUOps, RegisteredMixedOps
from torchvision.transforms import v2

from dali_feed.dali import DALIClassificationIterator, DALIGenericIterator
from dali_feed.draws import uniforms
from dali_feed.engines.choose import compiled
from dali_feed.engines.dali import user_pipeline as pipeline_states
from dali_feed.engines.dali.graph import DaliProgram
from dali_feed.engines.dali.user_graph import (
    STATE,
    FieldInput,
    GraphDraws,
    PipelineProgram,
    compile_function,
    random_states,
)
from dali_feed.engines.dali.user_pipeline import field_rows, read_pipeline
from dali_feed.engines.engine import Work
from dali_feed.errors import ConfigError, DaliFeedError, EngineError, TransformError
from dali_feed.options import Decode
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.lower import is_graph_function
from dali_feed.transforms.op import numbered


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


# What the graphs of DALI 2.4 can draw with. A release that adds one must be looked at before this list grows.
RANDOM = {
    *("BatchPermutation", "CoinFlip", "ImageDecoderRandomCrop", "Jitter", "NormalDistribution", "ROIRandomCrop"),
    *("RandomBBoxCrop", "RandomCropGenerator", "RandomResizedCrop", "SSDRandomCrop", "Uniform"),
    *("decoders__ImageRandomCrop", "experimental__decoders__ImageRandomCrop"),
    *("noise__Gaussian", "noise__SaltAndPepper", "noise__Shot"),
    *("random__Beta", "random__Choice", "random__CoinFlip", "random__Normal", "random__Uniform"),
    *("segmentation__RandomMaskPixel", "segmentation__RandomObjectBBox"),
}


def schemas() -> set[str]:
    """All operators but readers, which have no place behind a source."""
    names = {*RegisteredCPUOps(), *RegisteredGPUOps(), *RegisteredMixedOps()}
    return {name for name in names if not re.search(r"readers__|Reader|inputs__", name)}


def test_random_operators_take_a_hidden_state() -> None:
    """The argument that resuming stands on is there, on the operators we know and no others."""
    assert {name for name in schemas() if GetSchema(name).HasArgument("_random_state")} == RANDOM


def drawn(graph: Callable[[Any], Any], states: Any) -> list[Any]:
    """What `graph`, of images, gives for batches of 3 under these states (batches, operators, 3, 28)."""

    @pipeline_def(batch_size=3, num_threads=1, device_id=None, seed=int(np.random.default_rng().integers(1 << 30)))  # type: ignore[untyped-decorator, unused-ignore]
    def pipe() -> Any:
        return graph(fn.external_source(name="image"))

    program = read_pipeline(pipe, ())
    engine = engine_of("dali", program, 3, threads=1)
    out = []
    for given in states:
        assert program.states == len(given)
        payloads = {"": [memoryview(jpeg(n, 32, 40)) for n in range(3)]}
        rows = {(0, numbered(STATE, k)): values for k, values in enumerate(given)}
        work = engine.take(submit(engine, Work(np.arange(3), payloads, rows)))
        assert not work.bad
        out.append([np.array(one.images) for one in work.outputs])
    engine.close()
    return out


def decode(payloads: Any) -> Any:
    """Images of one size."""
    return fn.decoders.image(payloads)


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda p: (decode(p), fn.random.uniform(range=[0, 1])),
    "normal": lambda p: (decode(p), fn.random.normal(shape=[5])),
    "coin": lambda p: (decode(p), fn.random.coin_flip(shape=[64])),
    "choice": lambda p: (decode(p), fn.random.choice(100, shape=[9])),
    "beta": lambda p: (decode(p), fn.random.beta(alpha=2.0)),
    "gaussian": lambda p: (decode(p), fn.noise.gaussian(decode(p), stddev=9.0)),
    "shot": lambda p: (decode(p), fn.noise.shot(decode(p), factor=5.0)),
    "salt": lambda p: (decode(p), fn.noise.salt_and_pepper(decode(p), prob=0.2)),
    "permutation": lambda p: (decode(p), fn.batch_permutation()),
    "crop": lambda p: (decode(p), fn.resize(fn.decoders.image_random_crop(p), size=[24, 24])),
    "resized crop": lambda p: (decode(p), fn.random_resized_crop(decode(p), size=[16, 16])),
    "crop generator": lambda p: (decode(p), *fn.random_crop_generator(fn.peek_image_shape(p)[0:2])),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_state_decides_all_draws(name: str) -> None:
    """Equal states give equal draws, in any order of batches and whatever the seed; others give others."""
    a, b = (random_states(seed, 0, np.arange(3), 1) for seed in (1, 2))
    first, second = drawn(GRAPHS[name], [a, b, a]), drawn(GRAPHS[name], [b, a])
    for one, other in ((first[0], first[2]), (first[0], second[1]), (first[1], second[0])):
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))
    if name != "permutation":  # three samples have few permutations
        assert any(not np.array_equal(x, y) for x, y in zip(first[0], first[1], strict=True))


def test_a_batch_has_the_state_of_its_first_sample() -> None:
    """DALI reads no other; the samples behind it follow it by a step of their own and differ from each other."""
    a, b = (random_states(seed, 0, np.arange(3), 1) for seed in (1, 2))
    mixed = a.copy()
    mixed[:, 1:] = b[:, 1:]
    ((_, one),), ((_, other),) = (drawn(GRAPHS["normal"], [states]) for states in (a, mixed))
    assert np.array_equal(one, other)
    assert all(not np.array_equal(x, y) for x, y in pairwise(one))


def test_states_differ_by_seed_epoch_sample_and_operator() -> None:
    """And by nothing else; each is a key, a counter and phase 0."""
    ids = np.array([0, 1, 5 << 40, (5 << 40) + 1])
    base = random_states(7, 3, ids, 2)
    assert base.shape == (2, 4, 28)
    assert np.array_equal(random_states(7, 3, ids[2:], 2), base[:, 2:])
    everything = np.concatenate([base, random_states(8, 3, ids, 2), random_states(7, 4, ids, 2)]).reshape(-1, 28)
    assert len(np.unique(everything, axis=0)) == len(everything)
    assert not base[..., 24:].any()


@pipeline_def(**CPU, enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
def sometimes() -> Any:
    """Random operators in branches of branches, and behind them."""
    images = fn.resize(fn.decoders.image(fn.external_source(name="image")), size=[8, 8])
    if fn.random.coin_flip(dtype=types.BOOL):
        images = fn.noise.gaussian(images, stddev=9.0)
        if fn.random.coin_flip(dtype=types.BOOL):
            images = fn.cast(fn.noise.salt_and_pepper(images) * fn.random.uniform(range=[0, 1]), dtype=types.UINT8)
        else:
            images = fn.noise.shot(images, factor=30.0)
    else:
        images = fn.noise.shot(images, factor=20.0)
    return fn.noise.gaussian(images, stddev=3.0)


def test_operators_in_conditions_resume_as_well() -> None:
    """Where an `if` parts the batch the states are parted with it: all are ours, and a resumed run is bit for bit."""
    options: dict[str, Any] = {"shuffle": True, "seed": 5}
    with DALIGenericIterator(sometimes, ["data"], ScriptedSource(labelled(24)), **options) as whole:
        program = whole._positions._machine.program.outputs[0].program
        assert isinstance(program, PipelineProgram)
        assert (program.states, program.loose) == (8, ())
        wanted = [next(whole)[0]["data"] for _ in range(3)]
        state = whole.state_dict()
        wanted += [next(whole)[0]["data"] for _ in range(3)]
    with DALIGenericIterator(sometimes, ["data"], ScriptedSource(labelled(24)), **options) as again:
        again.load_state_dict(state)
        assert all(torch.equal(a, b[0]["data"]) for a, b in zip(wanted[3:], again, strict=True))


@pytest.mark.long(form="test_operators_in_conditions_resume_as_well")
def test_dalis_automatic_augmentation_is_all_ours() -> None:
    """RandAugment, of some of its operations and many conditions deep, draws from our states alone.

    DALI rewrites its own Python for that, which takes two seconds.
    """
    from nvidia.dali.auto_aug import rand_augment

    @pipeline_def(**CPU, enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
    def augment() -> Any:
        images = fn.resize(fn.decoders.image(fn.external_source(name="image")), size=[8, 8])
        return rand_augment.apply_rand_augment(rand_augment.get_rand_augment_suite()[:5], images, n=2, m=9)

    with warnings.catch_warnings(record=True):  # of DALI, about operators that its own auto_aug uses
        program = read_pipeline(augment, ())
    assert program.states > 0
    assert program.loose == ()


def test_an_operator_without_the_argument_is_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI 2.4 has none; should a release or a plugin bring one, nobody learns of it from a resumed run."""
    monkeypatch.setattr(pipeline_states, "_RANDOM", re.compile("ImageDecoder|decoders__Image"))
    source = ScriptedSource(labelled(4))
    with pytest.warns(UserWarning, match=r"pipeline plain: fn.decoders.image cannot .* resume bit for bit") as told:
        DALIClassificationIterator(plain, source).close()
    assert {one.filename for one in told} == {__file__}


PAYLOADS = [jpeg(n, 16 + 8 * (n % 3), 24 + 8 * (n % 2)) for n in range(5)]


def run(program: DaliProgram, ids: Sequence[int], batch_size: int) -> torch.Tensor:
    """Images of samples `ids`, sample n with payload n % 5, `batch_size` at a time through one engine."""
    engine, out = engine_of("dali", program, batch_size), list[torch.Tensor]()
    for first in range(0, len(ids), batch_size):
        some = ids[first : first + batch_size]
        work = engine.take(submit(engine, work_for(program, [PAYLOADS[n % 5] for n in some], some)))
        out.append(torch.utils.dlpack.from_dlpack(images_of(work)).clone())
    engine.close()
    return torch.cat(out)


def mirrored(image: Any, draws: GraphDraws) -> Any:
    """A user's graph: random brightness, random mirror."""
    small = fn.resize(image, size=[48, 64])
    bright = fn.brightness(small, brightness=draws.uniform(0.5, 1.5))
    return fn.flip(bright, horizontal=fn.cast(draws.coin(0.5), dtype=types.INT32))


def test_a_graph_function_does_not_see_batches() -> None:
    """A user's own graph gives each sample the same image at any batch split; its draws are uniform and coins."""
    ids = [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]
    whole = run(compile_function(mirrored), ids, 10)
    assert whole.shape == (10, 48, 64, 3)
    assert whole.dtype == torch.uint8
    for size in (1, 3, 4):
        assert torch.equal(run(compile_function(mirrored), ids, size), whole)
    assert not torch.equal(whole[:5], whole[5:])  # other samples, other draws


def test_draws_of_a_graph_function() -> None:
    """The n-th draw is word n of the sample's streams: uniforms in their range, coins 0 or 1."""

    def five(image: Any, draws: GraphDraws) -> Any:
        values = fn.stack(*[draws.uniform(-1, 3), draws.coin(0.25), *(draws.uniform() for _ in range(3))])
        return fn.cat(values, fn.cast(image.shape(), dtype=types.FLOAT)[0:1])

    found = run(compile_function(five), range(5), 5).numpy()
    words = uniforms(0, 0, np.arange(5), [0, 1])
    expected = np.stack([-1 + 4 * words[0], words[1] < 0.25, *words[2:5]], axis=1)
    np.testing.assert_allclose(found[:, :5], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda image, draws: [image], "must return one DALI node; found list"),
        (lambda image, draws: None, "must return one DALI node; found NoneType"),
        (lambda image, draws: fn.resize(image, no_such=1), "must build a graph .* raised .*no_such"),
        (lambda image, draws: draws.normal(), "must build a graph .* raised AttributeError"),
    ],
)
def test_graph_functions_that_do_not_build(function: Callable[[Any, Any], Any], told: str) -> None:
    """A graph function that raises, or returns something else, is a TransformError that names it."""
    with pytest.raises(TransformError, match=rf"transform <lambda>: .*{told}"):
        run(compile_function(function), [0], 1)


def test_graphs_that_keep_different_sizes() -> None:
    """Images of different sizes in one batch are an error that lists the sizes and says what to do."""
    with pytest.raises(EngineError, match=r"must have one size.*\(16, 24, 3\).*Crop or resize"):
        run(compile_function(lambda image, draws: image), range(5), 5)


def test_what_is_a_graph_function() -> None:
    """Functions of two arguments are; transforms, classes, and functions of one or without a signature are not."""
    assert is_graph_function(mirrored)
    assert is_graph_function(lambda images, draws: images)
    for other in (v2.Resize(3), lambda images: images, max, int, None):
        assert not is_graph_function(other)


def test_a_graph_that_ignores_its_images_is_refused() -> None:
    """DALI would drop the decoder and then miss the input; the user is told before the first batch."""

    def blind(image: Any, draws: GraphDraws) -> Any:
        return fn.cast(draws.uniform(), dtype=types.FLOAT)

    with pytest.raises(TransformError, match="must use the images"):
        engine_of("dali", compile_function(blind), 2)
