"""The colour part of the DALI graph: how many operators it is, and that no step of it waits for the GPU.

The graph of a GPU is made here and not run: what is counted is what it asks of DALI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, types

from dali_feed.compiler.dali import compile_dali
from dali_feed.engines.dali import graph as dali_graph
from dali_feed.transforms import colour as colours
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import RandomResizedCrop

JITTER = ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))


def operators(ops: Sequence[Op], *, gpu: bool) -> list[Any]:
    """The operators of a graph, found from its outputs backwards."""
    program = compile_dali(Recipe(tuple(ops)), region_decode=False)
    with Pipeline(4, 2, None):
        todo: list[Any] = dali_graph.build_graph(program, gpu=gpu)
    found: dict[int, Any] = {}
    while todo:
        node = todo.pop()
        if isinstance(node, list | tuple):
            todo += node
        elif node.source is not None and id(node.source) not in found:
            found[id(node.source)] = node.source
            todo += node.source.inputs
    return list(found.values())


def flat(nodes: Any) -> list[Any]:
    """Nodes out of lists of them."""
    return [each for node in nodes for each in (flat(node) if isinstance(node, list | tuple) else [node])]


def test_no_colour_step_is_copied_to_the_host() -> None:
    """On a GPU nothing of the colour part goes back to the host, be it a mean or the place of a slice."""
    found = operators((RandomResizedCrop((224, 224)), JITTER, ToFloat()), gpu=True)
    back = [
        node.source.name
        for operator in found
        for node in flat(operator.inputs)
        if node.device == "cpu" and node.source.outputs[node.index].device == "gpu"
    ]
    assert not back
    slices = [operator for operator in found if operator.name.startswith("__Slice")]
    assert len(slices) == 12
    assert {len(flat(operator.inputs)) for operator in slices} == {1}, "an anchor or a shape is a node"


def test_contrast_apart_is_contrast() -> None:
    """The form of a contrast step that stays on the GPU gives the other one's pixels, but for a last digit's level."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), np.uint8) // (n % 3 + 1) for n in range(24)]
    factors = rng.uniform(0, 2, 24).astype(np.float32)
    with Pipeline(24, 2, None) as pipe:
        image = fn.external_source(name="image", ndim=3, dtype=types.UINT8)
        factor = fn.external_source(name="factor", ndim=0, dtype=types.FLOAT)
        matrix, shift = factor * types.Constant(np.eye(3, dtype=np.float32)), factor * 0.5 - 0.9995
        mean = colours._gray_mean(image)
        pipe.set_outputs(
            colours._moved(image, matrix, shift + (1 - factor) * mean, types.UINT8),
            colours._contrast_apart(image, matrix, shift, 1 - factor, device="cpu"),
        )
    pipe.build()
    pipe.feed_input("image", pictures)
    pipe.feed_input("factor", list(factors))
    one, other = (output.as_array().astype(int) for output in pipe.run())
    assert np.abs(one - other).max() <= 1
    assert np.mean(one != other) < 1e-3
