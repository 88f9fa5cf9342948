"""A state keeps the order that a user's sampler gave, whatever its random numbers are, or is refused when taken."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kit.numbered import Numbers, flat, ours, scripted
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from dali_feed.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore::dali_feed.errors.FallbackWarning")

COUNT = 23


def seeded(seed: int) -> torch.Generator:
    """A generator of torch's."""
    return torch.Generator().manual_seed(seed)


class Stateful:
    """A sampler of the user's with a state of its own."""

    def __init__(self) -> None:
        self.turn = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.turn).sample(range(COUNT), COUNT)
        self.turn += 1
        return iter(order)

    def state_dict(self) -> dict[str, int]:
        """How many orders it has given."""
        return {"turn": self.turn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.turn = state["turn"]


class Unmeasured(Stateful):
    """One that does not say how long it is."""

    __len__ = None  # type: ignore[assignment]


class Drawing:
    """One with a generator, as torch's have it, that does not say how long it is."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT, generator=self.generator).tolist())


class Careless:
    """A sampler whose order nothing can make again."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(COUNT), COUNT))


class Backwards:
    """A sampler without any state, whose order is always the same."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))


WHOLE: dict[str, Callable[[], dict[str, Any]]] = {  # those that make later epochs again as well
    "random, generator": lambda: {"sampler": RandomSampler(range(COUNT), generator=seeded(1))},
    "subset, generator": lambda: {"sampler": SubsetRandomSampler(range(3, 20), generator=seeded(2))},
    "weighted, generator": lambda: {"sampler": WeightedRandomSampler([1.0] * COUNT, 30, generator=seeded(3))},
    "batches, generator": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT), generator=seeded(4)), 3, drop_last=False)
    },
    "a state of its own": lambda: {"sampler": Stateful()},
    "generator, no length": lambda: {"sampler": Drawing(seeded(5))},
    "a state, no length": lambda: {"sampler": Unmeasured()},
    "always the same": lambda: {"sampler": Backwards()},
}
EPOCH: dict[str, Callable[[], dict[str, Any]]] = {  # and those whose later epochs are torch's global generator's
    "random": lambda: {"sampler": RandomSampler(range(COUNT))},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(3, 20))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * COUNT, 30)},
}


@pytest.mark.parametrize("data", [Numbers(COUNT), scripted(COUNT)], ids=["torch's loader", "ours"])
@pytest.mark.parametrize("name", [*WHOLE, *EPOCH])
def test_a_run_goes_on_in_the_order_that_its_sampler_gave(name: str, data: Any) -> None:
    """Stopped in its second epoch: a new loader with a new sampler gives the same rest, whatever was drawn since."""
    make = {**WHOLE, **EPOCH}[name]
    size = {} if "batch_sampler" in make() else {"batch_size": 3}
    with ours(data, **{"batch_size": 1, **size, **make()}) as one:
        list(one)
        batches = iter(one)
        for _ in range(2):
            next(batches)
        state = json.loads(json.dumps(one.state_dict()))
        rest = [flat(batch) for batch in batches]
        after = [flat(batch) for batch in one]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    with ours(data, **{"batch_size": 1, **size, **make()}) as other:
        other.load_state_dict(state)
        assert torch.equal(before, torch.get_rng_state())
        assert [flat(batch) for batch in other] == rest
        if name in WHOLE:
            assert [flat(batch) for batch in other] == after


@pytest.mark.parametrize("data", [Numbers(COUNT), scripted(COUNT)], ids=["torch's loader", "ours"])
def test_an_order_that_nothing_can_make_again_is_refused_when_it_is_saved(data: Any) -> None:
    """Not when it is needed; and training goes on."""
    with ours(data, sampler=Careless()) as one:
        batches = iter(one)
        next(batches)
        with pytest.raises(StateError, match="Careless gives another one each time.*state_dict"):
            one.state_dict()
        assert len(list(batches)) == 7


@pytest.mark.parametrize("data", [Numbers(COUNT), scripted(COUNT)], ids=["torch's loader", "ours"])
def test_what_gives_its_items_once_is_not_read_for_a_state(data: Any) -> None:
    """An iterator: the loop gets all that it has."""
    with ours(data, sampler=iter(range(COUNT - 1, -1, -1)), batch_size=3) as one:
        batches = iter(one)
        given = flat(next(batches))
        one.state_dict()
        for batch in batches:
            given += flat(batch)
    assert given == list(range(COUNT - 1, -1, -1))


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        (Stateful(), RandomSampler(range(COUNT)), r"with a state_dict\(\)"),
        (
            RandomSampler(range(COUNT)),
            RandomSampler(range(COUNT), generator=seeded(1)),
            "of torch's without a generator",
        ),
        (RandomSampler(range(COUNT), generator=seeded(1)), RandomSampler(range(COUNT)), "with a generator"),
    ],
)
def test_a_state_of_another_kind_of_sampler_is_refused(saved: Any, loaded: Any, said: str) -> None:
    """The error says with what sampler it was taken."""
    with ours(scripted(COUNT), sampler=saved) as one:
        state = one.state_dict()
    refused = pytest.raises(StateError, match=f"a sampler {said}; found RandomSampler")
    with ours(scripted(COUNT), sampler=loaded) as other, refused:
        other.load_state_dict(state)
