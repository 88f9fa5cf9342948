"""graph_function: a user's own DALI graph, whose draws do not depend on batches and whose mistakes are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_runs import engine_of, work_for
from kit.images import jpeg
from nvidia.dali import fn, types
from torchvision.transforms import v2

from dali_feed.compiler.dali import DaliProgram
from dali_feed.compiler.user_graph import GraphDraws, compile_function, is_graph_function
from dali_feed.draws import uniforms
from dali_feed.errors import EngineError, TransformError

PAYLOADS = [jpeg(n, 16 + 8 * (n % 3), 24 + 8 * (n % 2)) for n in range(5)]


def run(program: DaliProgram, ids: Sequence[int], batch_size: int) -> torch.Tensor:
    """Images of samples `ids`, sample n with payload n % 5, `batch_size` at a time through one engine."""
    engine, out = engine_of("dali", program, batch_size), list[torch.Tensor]()
    for first in range(0, len(ids), batch_size):
        some = ids[first : first + batch_size]
        engine.submit(work_for(engine, program, [PAYLOADS[n % 5] for n in some], some))
        result = engine.take()
        assert not result.bad
        out.append(torch.utils.dlpack.from_dlpack(result.images).clone())
    engine.close()
    return torch.cat(out)


def graph(image: Any, draws: GraphDraws) -> Any:
    """A user's graph: random brightness, random mirror."""
    small = fn.resize(image, size=[48, 64])
    bright = fn.brightness(small, brightness=draws.uniform(0.5, 1.5))
    return fn.flip(bright, horizontal=fn.cast(draws.coin(0.5), dtype=types.INT32))


def test_a_graph_function_does_not_see_batches() -> None:
    """A user's own graph gives each sample the same image at any batch split; its draws are uniform and coins."""
    ids = [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]
    whole = run(compile_function(graph), ids, 10)
    assert whole.shape == (10, 48, 64, 3)
    assert whole.dtype == torch.uint8
    for size in (1, 3, 4):
        assert torch.equal(run(compile_function(graph), ids, size), whole)
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
    assert is_graph_function(graph)
    assert is_graph_function(lambda images, draws: images)
    for other in (v2.Resize(3), lambda images: images, max, int, None):
        assert not is_graph_function(other)


def test_a_graph_that_ignores_its_images_is_refused() -> None:
    """DALI would drop the decoder and then miss the input; the user is told before the first batch."""

    def blind(image: Any, draws: GraphDraws) -> Any:
        return fn.cast(draws.uniform(), dtype=types.FLOAT)

    with pytest.raises(TransformError, match="must use the images"):
        engine_of("dali", compile_function(blind), 2)
