"""Draws are Philox's own, pure in their arguments and the same in every release; each stream has one owner."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from dali_feed import draws
from dali_feed.draws import (
    EXTENT_ORDER,
    WINDOW_ORDER,
    check_seed,
    permutation,
    philox4x32,
    seed_of_turn,
    seed_within,
    uniforms,
)
from dali_feed.engines.dali.user_graph import compile_function, random_states
from dali_feed.errors import ConfigError
from dali_feed.plan.order import EpochPlan, Order
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import Grayscale
from dali_feed.transforms.crops import RandomIoUCrop
from dali_feed.transforms.lower import lower
from dali_feed.transforms.mixing import Mixing, mixed
from dali_feed.transforms.nest import Nest, RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Draws, Op, Recipe, walk
from dali_feed.transforms.program import Output, Program, compile_host
from dali_feed.transforms.timm_augment import TimmAugMix, TimmAutoAugment, TimmPart, TimmRandAugment

SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 2**32 - 1)
IDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)

# Known answers published with Random123, philox4x32 with 10 rounds: counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def _scalar_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """The generator as its paper gives it, on Python's ints."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return tuple(c)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    """The published vectors come out."""
    assert tuple(int(word) for word in philox4x32(counter, key)) == answer
    assert _scalar_philox(counter, key) == answer


@settings(deadline=None)
@given(seed=SEEDS, epoch=EPOCHS, sample=st.integers(0, 2**63 - 1), stream=st.integers(0, 2**32 - 1))
def test_counter_and_key_layout(seed: int, epoch: int, sample: int, stream: int) -> None:
    """A uniform is the top 24 bits of the word at counter (stream, epoch, id low, id high) under the seed."""
    counter = (stream, epoch, sample & 0xFFFFFFFF, sample >> 32)
    words = _scalar_philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    drawn = uniforms(seed, epoch, np.array([sample]), [stream])
    assert [float(u) * 2**24 for u in drawn[:, 0]] == [word >> 8 for word in words]


@settings(deadline=None)
@given(seed=SEEDS, epoch=EPOCHS, ids=IDS, streams=st.lists(st.integers(0, 1000), max_size=4), cut=st.data())
def test_independent_of_the_batch(
    seed: int, epoch: int, ids: list[int], streams: list[int], cut: st.DataObject
) -> None:
    """A sample's uniforms lie in [0, 1) and do not depend on which samples or streams are drawn with it."""
    batch = np.array(ids, np.int64)
    whole = uniforms(seed, epoch, batch, streams)
    assert whole.shape == (4 * len(streams), len(ids))
    assert whole.dtype == np.float32
    assert ((whole >= 0) & (whole < 1)).all()
    k = cut.draw(st.integers(0, len(ids)))
    parts = [uniforms(seed, epoch, part, streams) for part in (batch[:k], batch[k:])]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    for n, stream in enumerate(streams):
        np.testing.assert_array_equal(uniforms(seed, epoch, batch, [stream]), whole[4 * n : 4 * n + 4])


@given(seed=SEEDS, stream=st.integers(0, 2**32 - 1), number=st.integers(0, 2**64 - 2))
def test_a_seed_within_another_is_two_words(seed: int, stream: int, number: int) -> None:
    """The first two at counter (stream, 0, number low, number high) under the seed; that of turn 0 is the run's own."""
    low, high, _, _ = _scalar_philox((stream, 0, number & 0xFFFFFFFF, number >> 32), (seed & 0xFFFFFFFF, seed >> 32))
    assert seed_within(seed, stream, number) == low | high << 32
    assert seed_of_turn(seed, 0) == seed
    assert seed_of_turn(seed, number + 1) == seed_within(seed, draws.REPEATS, number + 1)


@given(seed=SEEDS, epoch=EPOCHS, size=st.integers(0, 300), first=st.integers(0, 2**40))
def test_permutation_is_one(seed: int, epoch: int, size: int, first: int) -> None:
    """Every rank stands in a permutation once, and it comes out the same each time."""
    once = permutation(seed, epoch, size, EXTENT_ORDER, first)
    np.testing.assert_array_equal(np.sort(once), np.arange(size))
    np.testing.assert_array_equal(permutation(seed, epoch, size, EXTENT_ORDER, first), once)


def test_golden_permutations() -> None:
    """No release may change order: these are pinned."""
    assert permutation(0, 0, 12, EXTENT_ORDER).tolist() == [11, 3, 5, 9, 7, 2, 1, 4, 10, 6, 8, 0]
    assert permutation(2**63 + 5, 3, 12, WINDOW_ORDER, 1_000_000).tolist() == [9, 0, 3, 6, 2, 5, 4, 10, 1, 7, 8, 11]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, np.int64(5), np.uint64(2**63), -1, 2**64, True, 1.0, "1", None])
def test_a_seed_is_an_int_of_64_bits(seed: Any) -> None:
    """NumPy's too, and comes back as a Python int; anything else is a ConfigError with the range and what was found."""
    if not isinstance(seed, bool | float | str | None) and 0 <= seed < 2**64:
        assert type(check_seed(seed)) is int
        assert check_seed(seed) == seed
        return
    with pytest.raises(ConfigError, match=rf"^seed: must be an int in 0\.\.2\*\*64-1; found {re.escape(repr(seed))}"):
        check_seed(seed)


# Who draws from which stream.


ROOT = Path(__file__).resolve().parents[2]
MAP = {name: getattr(draws, name) for name in ("PROGRAM", "MIXING", "VIEWS", "COLUMNS", "ORDER")}

PART = TimmPart("Rotate", 1.0, 5.0, 0.5, 9.0)
SAMPLES = np.array([3, 1 << 40, 77])


class _Drawn(list[int]):
    """Streams in the order in which they are drawn from."""

    def owners(self) -> set[str]:
        """Whose they are."""
        return {name for name, owned in MAP.items() for stream in self if stream in owned}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> _Drawn:
    """Everything drawn from now on, wherever: the generator itself writes its first counter word down."""
    real, seen = draws.philox4x32, _Drawn()

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
    assert (draws.EXTENT_ORDER, draws.WINDOW_ORDER) == (1 << 31, (1 << 31) + 1)
    numbers = 1 << (draws.TOP_BITS + draws.NEST_BITS * draws.DEEPEST)
    assert numbers * draws.STREAMS_PER_OP == len(draws.PROGRAM)


def _nests(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
    branch = st.lists(inner, max_size=3).map(tuple)
    branches = st.lists(branch, min_size=1, max_size=3).map(tuple)
    return branch.map(RandomApply) | branches.map(RandomChoice) | branches.map(RandomOrder)


LEAF: st.SearchStrategy[Op] = st.just(Grayscale()) | st.just(TimmAugMix((PART,), width=3))
OPS = LEAF | _nests(LEAF) | _nests(LEAF | _nests(LEAF)) | _nests(_nests(st.just(Grayscale()) | _nests(LEAF)))


def _depth(op: Op) -> int:
    if isinstance(op, TimmAugMix):
        return 1
    inner = [each for branch in op.runs() for each in branch] if isinstance(op, Nest) else []
    return isinstance(op, Nest) + max(map(_depth, inner), default=0)


@given(ops=st.lists(OPS.filter(lambda op: _depth(op) <= draws.DEEPEST), max_size=8))
def test_ops_have_numbers_of_their_own(ops: list[Op]) -> None:
    """However ops stand in nests: no two have one number, and the streams of all are a program's."""
    numbers = [n for n, _ in walk(ops)]
    assert len(numbers) == len(set(numbers))
    assert not numbers or (max(numbers) + 1) * draws.STREAMS_PER_OP <= len(draws.PROGRAM)


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
    "TimmAutoAugment": TimmAutoAugment(((PART,) * 8,)),
    "TimmRandAugment": TimmRandAugment((PART,), layers=32),
    "TimmAugMix": TimmAugMix((PART,), width=32, depth=4),
}


@pytest.mark.parametrize("kind", [*KINDS, *TIMMS])
def test_an_op_keeps_to_its_streams(kind: str, drawn: _Drawn) -> None:
    """Asked for the most it can draw, no kind of op draws where another one of its kind, or of a nest's, does."""
    op: Op = TIMMS[kind] if kind in TIMMS else lower(KINDS[kind]).ops[0]
    ops: tuple[Op, ...] = (
        (Grayscale(), op, op, RandomApply((op,))) if isinstance(op, Nest) or kind in TIMMS else (Grayscale(), op, op)
    )
    program = compile_host(Recipe(ops))
    program.parameters(np.full((3, 2), 40, np.int32), SAMPLES, 5, 0)
    assert drawn.owners() == {"PROGRAM"}
    assert not [stream for stream, times in Counter(drawn).items() if times > 1]


def _views() -> Any:
    program = compile_host(lower(v2.Compose([v2.RandomResizedCrop(8), v2.ToDtype(torch.float32, scale=True)])))
    views = Program(tuple(Output("host", program, view=view) for view in range(2)))
    return views.draw(np.full((3, 2), 40), SAMPLES, 5, 0)


def _order() -> Any:
    snapshot = ScriptedSource([bytes([n]) for n in range(64)], partitions=4).snapshot()
    return EpochPlan(snapshot, Order(shuffled=True, extent=4, window=2), seed=5, epoch=1).window(0, 0, 8)


def _graph() -> Any:
    node = type("DataNode", (), {})()
    program = compile_function(lambda images, numbers: [images, *(numbers.uniform() for _ in range(9))][0])
    program.steps[0].build(node, lambda *_: node)
    program.taken(Draws((), np.full((3, 2), 40), SAMPLES, 5, 0))


def _by_boxes() -> Any:
    op = RandomIoUCrop()
    draws = Draws(range(op.streams), np.full((3, 2), 40), SAMPLES, 5, 0)
    draws.boxes = lambda _: [np.array([[2, 2, 9, 9]], np.float32)] * 3
    op.draw(draws)


@pytest.mark.parametrize(
    ("draw", "owners"),
    [
        (lambda: mixed(Mixing(0.4, 1.0), SAMPLES, 5, 0, (8, 8)), {"MIXING"}),
        (_views, {"VIEWS", "PROGRAM"}),
        (_order, {"ORDER"}),
        (_graph, {"PROGRAM"}),
        (lambda: random_states(5, 0, SAMPLES, 6), {"PROGRAM"}),
        (_by_boxes, {"PROGRAM"}),
    ],
    ids=["MixUp and CutMix", "views", "order", "a user's graph", "a user's pipeline", "a window by boxes"],
)
def test_who_draws_where(draw: Any, owners: set[str], drawn: _Drawn) -> None:
    """Each draws from its own range."""
    draw()
    assert drawn.owners() == owners


def test_whoever_draws_is_known() -> None:
    """No other file of the product calls the generator: a new one needs its line here, and its case above."""
    files = [path for room in ("dali_feed", "kernels", "external_sources") for path in (ROOT / room).rglob("*.py")]
    calls = re.compile(r"(?<![.\w])(uniforms|philox4x32|permutation)\(")
    drawing = {path.name for path in files if calls.search(path.read_text())}
    assert drawing == {"draws.py", "order.py", "user_graph.py", "mixing.py", "op.py", "crops.py"}
