"""philox: the numbers are Philox's own, pure in their arguments, and the same in every release."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_feed.draws.philox import check_seed, permutation, philox4x32, uniforms
from dali_feed.draws.streams import EXTENT_ORDER, ORDER, WINDOW_ORDER
from dali_feed.errors import ConfigError

SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 2**32 - 1)
IDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)

# Known answers published with Random123, philox4x32 with 10 rounds: counter, key, result.
KNOWN = (
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
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
@given(seed=SEEDS, epoch=EPOCHS, ids=IDS, streams=st.lists(st.integers(0, 1000), min_size=1, max_size=4), cut=st.data())
def test_independent_of_the_batch(
    seed: int, epoch: int, ids: list[int], streams: list[int], cut: st.DataObject
) -> None:
    """A sample's uniforms lie in [0, 1) and do not depend on which samples or streams are drawn with it."""
    batch = np.array(ids, np.int64)
    whole = uniforms(seed, epoch, batch, streams)
    assert whole.shape == (4 * len(streams), len(ids))
    assert whole.dtype == np.float32
    assert whole.min() >= 0
    assert whole.max() < 1
    k = cut.draw(st.integers(0, len(ids)))
    parts = [uniforms(seed, epoch, part, streams) for part in (batch[:k], batch[k:])]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    for n, stream in enumerate(streams):
        np.testing.assert_array_equal(uniforms(seed, epoch, batch, [stream]), whole[4 * n : 4 * n + 4])


def test_seeds_epochs_samples_and_streams_differ() -> None:
    """Changing any one argument, in its low or its high bits, gives other numbers."""
    cases = [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (1 << 32, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 1 << 40, 0),
        (0, 0, 0, 1),
    ]
    drawn = [tuple(uniforms(seed, epoch, np.array([i]), [stream])[:, 0]) for seed, epoch, i, stream in cases]
    assert len(set(drawn)) == len(cases)


def test_uniforms_are_uniform() -> None:
    """Over 40,000 samples, sixteen equal bins fill equally (chi-square below its 1e-6 quantile), in every row."""
    drawn = uniforms(7, 3, np.arange(40_000), [0, 5])
    for row in drawn:
        counts = np.bincount((row * 16).astype(int), minlength=16)
        assert ((counts - 2500) ** 2 / 2500).sum() < 56.5


def test_golden_uniforms() -> None:
    """No release may change augmentation: these are pinned."""
    drawn = uniforms(2**63 + 5, 3, np.array([0, (7 << 40) | 123456789]), [0, 17])
    assert (drawn * 2**24).astype(int).T.tolist() == [
        [8331405, 486911, 11677161, 7573762, 13388451, 10157192, 9467846, 3294093],
        [545771, 13996271, 15135955, 11550389, 7693298, 9866481, 2660784, 1488635],
    ]


@given(seed=SEEDS, epoch=EPOCHS, size=st.integers(0, 300), first=st.integers(0, 2**40))
def test_permutation_is_one(seed: int, epoch: int, size: int, first: int) -> None:
    """Every rank stands in a permutation once, and it comes out the same each time."""
    once = permutation(seed, epoch, size, EXTENT_ORDER, first)
    np.testing.assert_array_equal(np.sort(once), np.arange(size))
    np.testing.assert_array_equal(permutation(seed, epoch, size, EXTENT_ORDER, first), once)


def test_permutations_differ() -> None:
    """Another seed, epoch, stream or range gives another order, and few items stay where they are."""
    cases = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 500)]
    orders = [permutation(s, e, 500, ORDER[stream], first) for s, e, stream, first in cases]
    for n, one in enumerate(orders):
        assert sum(one == np.arange(500)) < 10
        for other in orders[:n]:
            assert sum(one == other) < 10


def test_permutations_are_uniform() -> None:
    """All 24 orders of four items come up equally often over 24,000 epochs (chi-square below its 1e-6 quantile)."""
    counts: dict[bytes, int] = {}
    for epoch in range(24_000):
        key = permutation(1, epoch, 4, EXTENT_ORDER).tobytes()
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 73.0


def test_golden_permutations() -> None:
    """No release may change order: these are pinned."""
    assert permutation(0, 0, 12, EXTENT_ORDER).tolist() == [11, 3, 5, 9, 7, 2, 1, 4, 10, 6, 8, 0]
    assert permutation(2**63 + 5, 3, 12, WINDOW_ORDER, 1_000_000).tolist() == [9, 0, 3, 6, 2, 5, 4, 10, 1, 7, 8, 11]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, np.int64(5), np.uint64(2**63)])
def test_seeds_that_fit(seed: int) -> None:
    """An int of 64 bits, NumPy's too, is a seed, and comes back as a Python int."""
    assert type(check_seed(seed)) is int
    assert check_seed(seed) == seed


@pytest.mark.parametrize("seed", [-1, 2**64, True, 1.0, "1", None])
def test_seeds_that_do_not(seed: object) -> None:
    """Anything else is a ConfigError that names the range and what was found."""
    with pytest.raises(ConfigError, match=r"^seed: must be an int in 0\.\.2\*\*64-1; found ") as error:
        check_seed(seed)  # type: ignore[arg-type]
    assert repr(seed) in str(error.value)
