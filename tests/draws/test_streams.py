"""streams: every number of a draw has one owner, and whoever draws takes its numbers from the map."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import ViewsProgram
from dali_feed.compiler.user_graph import UserGraph, compile_function, random_states
from dali_feed.draws import philox, streams
from dali_feed.errors import TransformError
from dali_feed.plan.order import EpochPlan, Order
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import Grayscale
from dali_feed.transforms.lower import lower
from dali_feed.transforms.mixing import Mixing, mixed
from dali_feed.transforms.nest import Nest, RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Op, Recipe, walk
from dali_feed.transforms.timm_augment import LayerAugment, MixAugment, PolicyAugment, TimmPart

ROOT = Path(__file__).resolve().parents[2]
MAP = {name: getattr(streams, name) for name in ("PROGRAM", "MIXING", "VIEWS", "COLUMNS", "ORDER")}
DRAWING = ("uniforms", "philox4x32", "permutation", "_words")
HANDED_OVER = ("first", "starts", "stream", "streams")  # numbers that a caller took from the map

PART = TimmPart("Rotate", 1.0, 5.0, 0.5, 9.0)
IDS = np.array([3, 1 << 40, 77])


class _Drawn(list[int]):
    """Streams in the order in which they are drawn from."""

    def owners(self) -> set[str]:
        """Whose they are."""
        return {name for name, owned in MAP.items() for stream in self if stream in owned}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> _Drawn:
    """Everything drawn from now on, wherever: the generator itself writes its first counter word down."""
    real, seen = philox.philox4x32, _Drawn()

    def written_down(counter: Sequence[Any], key: tuple[int, int]) -> Any:
        seen.extend(np.ravel(counter[0]).astype(np.int64).tolist())
        return real(counter, key)

    for module in [module for name, module in sys.modules.items() if name.startswith("dali_feed")]:
        if vars(module).get("philox4x32") is real:
            monkeypatch.setattr(module, "philox4x32", written_down)
    return seen


def test_every_number_has_one_owner() -> None:
    """The ranges lie end to end over all that a counter word can say, where runs of old have them."""
    assert [owned.start for owned in MAP.values()] == [0, 1 << 30, 3 << 29, 7 << 28, 1 << 31]
    assert [owned.stop for owned in MAP.values()] == [1 << 30, 3 << 29, 7 << 28, 1 << 31, 1 << 32]
    assert (streams.EXTENT_ORDER, streams.WINDOW_ORDER) == (1 << 31, (1 << 31) + 1)
    numbers = 1 << (streams.TOP_BITS + streams.NEST_BITS * streams.DEEPEST)
    assert numbers * streams.STREAMS_PER_OP == len(streams.PROGRAM)


def _nests(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
    branch = st.lists(inner, max_size=5).map(tuple)
    branches = st.lists(branch, min_size=1, max_size=5).map(tuple)
    return branch.map(RandomApply) | branches.map(RandomChoice) | branches.map(RandomOrder)


LEAF: st.SearchStrategy[Op] = st.just(Grayscale()) | st.just(MixAugment((PART,), width=3))
OPS = LEAF | _nests(LEAF) | _nests(LEAF | _nests(LEAF)) | _nests(_nests(st.just(Grayscale()) | _nests(LEAF)))


def _depth(op: Op) -> int:
    if isinstance(op, MixAugment):
        return 1
    inner = [each for branch in op.runs() for each in branch] if isinstance(op, Nest) else []
    return isinstance(op, Nest) + max(map(_depth, inner), default=0)


@given(ops=st.lists(OPS.filter(lambda op: _depth(op) <= streams.DEEPEST), max_size=8))
def test_ops_have_numbers_of_their_own(ops: list[Op]) -> None:
    """However ops stand in nests: no two have one number, and the streams of all are a program's."""
    numbers = [n for n, _ in walk(ops)]
    assert len(numbers) == len(set(numbers))
    assert not numbers or (max(numbers) + 1) * streams.STREAMS_PER_OP <= len(streams.PROGRAM)


# Each kind that draws, with as many draws as it can be asked for.
KINDS: dict[str, Any] = {
    "RandomResizedCrop": v2.RandomResizedCrop(8),
    "RandomCrop": v2.RandomCrop(8, pad_if_needed=True),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(),
    "RandomRotation": v2.RandomRotation(30),
    "RandomAffine": v2.RandomAffine(30, (0.1, 0.1), (0.5, 2.0), 10),
    "ColorJitter": v2.ColorJitter(0.1, 0.1, 0.1, 0.1),
    "RandomPerspective": v2.RandomPerspective(p=1.0),
    "GaussianBlur": v2.GaussianBlur(3),
    "RandomErasing": v2.RandomErasing(p=1.0, scale=(0.9, 1.0)),
    "AutoAugment": v2.AutoAugment(),
    "RandAugment": v2.RandAugment(num_ops=16),
    "TrivialAugmentWide": v2.TrivialAugmentWide(),
    "AugMix": v2.AugMix(mixture_width=62, chain_depth=8),
    "RandomApply": v2.RandomApply([v2.ColorJitter(0.1), v2.AugMix(chain_depth=8)]),
    "RandomChoice": v2.RandomChoice([v2.GaussianBlur(3)] * 63),
    "RandomOrder": v2.RandomOrder([v2.RandomInvert()] * 63),
}
TIMMS: dict[str, Op] = {
    "PolicyAugment": PolicyAugment(((PART,) * 8,)),
    "LayerAugment": LayerAugment((PART,), layers=32),
    "MixAugment": MixAugment((PART,), width=32, depth=4),
}


@pytest.mark.parametrize("kind", [*KINDS, *TIMMS])
def test_an_op_keeps_to_its_streams(kind: str, drawn: _Drawn) -> None:
    """Asked for the most it can draw, no kind of op draws where another one of its kind, or of a nest's, does."""
    op: Op = TIMMS[kind] if kind in TIMMS else lower(KINDS[kind]).ops[0]
    ops: tuple[Op, ...] = (
        (Grayscale(), op, op, RandomApply((op,))) if isinstance(op, Nest) or kind in TIMMS else (Grayscale(), op, op)
    )
    program = compile_host(Recipe(ops))
    program.parameters(np.full((3, 2), 40, np.int32), IDS, 5, 0)
    assert drawn.owners() == {"PROGRAM"}
    assert not [stream for stream, times in Counter(drawn).items() if times > 1]


def test_an_order_of_more_than_its_streams_can_say_is_refused() -> None:
    """RandomOrder takes a number per branch, empty ones too: with more than 64 it would draw from the next op's."""
    flips = [v2.RandomInvert()] * 3
    compile_host(lower(v2.RandomOrder([*flips, *[v2.Identity()] * 61])))
    with pytest.raises(TransformError, match=r"^RandomOrder: takes at most 64 transforms; found 65"):
        compile_host(lower(v2.RandomOrder([*flips, *[v2.Identity()] * 62])))


def _views() -> Any:
    program = compile_host(lower(v2.Compose([v2.RandomResizedCrop(8), v2.ToDtype(torch.float32, scale=True)])))
    return ViewsProgram((program, program)).parameters(np.full((3, 2), 40), IDS, 5, 0)


def _order() -> Any:
    snapshot = ScriptedSource([bytes([n]) for n in range(64)], partitions=4).snapshot()
    return EpochPlan(snapshot, Order(shuffled=True, extent=4, window=2), seed=5, epoch=1).window(0, 0, 8)


def _graph() -> Any:
    program = compile_function(lambda images, numbers: images)
    step = program.steps[-1]
    assert isinstance(step, UserGraph)
    step.columns += [("uniform", 0.0, 1.0)] * 9
    return program.parameters(np.full((3, 2), 40), IDS, 5, 0)


@pytest.mark.parametrize(
    ("draw", "owners"),
    [
        (lambda: mixed(Mixing(0.4, 1.0), IDS, 5, 0, (8, 8)), {"MIXING"}),
        (_views, {"VIEWS", "PROGRAM"}),
        (_order, {"ORDER"}),
        (_graph, {"PROGRAM"}),
        (lambda: random_states(5, 0, IDS, 6), {"PROGRAM"}),
    ],
    ids=["MixUp and CutMix", "views", "order", "a user's graph", "a user's pipeline"],
)
def test_who_draws_where(draw: Any, owners: set[str], drawn: _Drawn) -> None:
    """Each draws from its own range."""
    draw()
    assert drawn.owners() == owners


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def _bound(tree: ast.AST) -> Iterator[tuple[set[str], set[str]]]:
    """Names that are bound, and the names they are made of: assignments, comprehensions and loops."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield {name for target in targets for name in _names(target)}, set(_names(value))
            case ast.comprehension(target=target, iter=made) | ast.For(target=target, iter=made):
                yield set(_names(target)), set(_names(made))


def unmapped(text: str) -> list[int]:
    """Lines of a module that draw from numbers which are neither from the map nor handed over."""
    tree = ast.parse(text)
    good = set(HANDED_OVER)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "dali_feed.draws.streams":
            good |= {name.name for name in node.names}
    bound = list(_bound(tree))
    for _ in bound:
        good |= {name for names, made_of in bound if made_of & good for name in names}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", None) not in DRAWING:
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        at = 0 if node.func.id == "philox4x32" else 3  # type: ignore[attr-defined]
        given = keywords.get("counter") or keywords.get("streams") or keywords.get("stream") or node.args[at]
        if isinstance(given, ast.Tuple):
            given = given.elts[0]
        if not good & set(_names(given)):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("call", ["uniforms(seed, 0, ids, [7])", "philox4x32((1 << 30, 0, 0, 0), key)"])
def test_a_number_of_its_own_is_seen(call: str) -> None:
    """The check itself sees who writes a stream's number down, and takes one from the map."""
    mine = f"MINE = 5\n{call}\nuniforms(seed, 0, ids, [MINE + k for k in range(3)])\n"
    assert unmapped(mine) == [2, 3]
    assert not unmapped("from dali_feed.draws.streams import VIEWS\nmine = VIEWS[3]\nphilox4x32((mine, 0, 0, 0), key)")


def test_whoever_draws_takes_its_numbers_from_the_map() -> None:
    """No module but the map writes a stream's number down."""
    files = [path for room in ("dali_feed", "kernels", "external_sources") for path in (ROOT / room).rglob("*.py")]
    drawing = {path: path.read_text() for path in files if any(f"{name}(" in path.read_text() for name in DRAWING)}
    assert len(drawing) > 5
    assert not [(str(path), lines) for path, text in drawing.items() if (lines := unmapped(text))]
