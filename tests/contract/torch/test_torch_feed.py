"""A dataset that only torch can read: torch's loader runs it in our order, with our state; one warning says why."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from kit.inside import arguments as torch_arguments
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler

from dali_feed import DataLoader, Decode
from dali_feed.errors import ClosedError, ConfigError, FallbackWarning, StateError


def flat(lists: Iterable[list[int]]) -> list[int]:
    """End to end."""
    return list(itertools.chain.from_iterable(lists))


class Pair(NamedTuple):
    """What a dataset may give."""

    value: torch.Tensor
    number: int


class Squares(Dataset[Any]):
    """Twenty of them; keeps what was asked for."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.asked = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return {"pair": Pair(torch.tensor([index, index * index]), index), "name": f"n{index}"}


class Stream(IterableDataset[int]):
    """Seven numbers."""

    def __iter__(self) -> Any:
        return iter(range(7))


pytestmark = pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")


def indices(batch: Any) -> list[int]:
    """Of a batch of Squares."""
    found: list[int] = batch["pair"].number.tolist()
    return found


def made(dataset: Any = None, batch_size: int | None = 4, **options: Any) -> DataLoader:
    """On the CPU."""
    return DataLoader(Squares() if dataset is None else dataset, batch_size, device="cpu", **options)


def test_it_gives_what_torch_gives_and_says_why() -> None:
    """Batches as torch collates them, and at the caller's line one warning with the reason, which may be an error."""
    why = "^dataset: .*Squares cannot be read by our engines, because .*Squares has a __getitem__ of its own; torch's"
    with pytest.warns(FallbackWarning, match=f"{why} own DataLoader runs it, in our order[.] For .*, use a source of"):
        loader = made()
    theirs = TorchLoader(Squares(), 4)
    assert len(loader) == len(theirs) == 5
    for ours, torchs in zip(loader, theirs, strict=True):
        assert type(ours["pair"]) is Pair
        assert torch.equal(ours["pair"].value, torchs["pair"].value)
        assert ours["name"] == torchs["name"]
    with pytest.warns(FallbackWarning) as said:
        DataLoader(Squares(), 4, device="cpu").close()
    assert [warning.filename for warning in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning, match="^dataset: .*torch's own DataLoader runs it, in our order"):
            made()


def test_of_an_iterable_style_dataset_it_says_that_there_are_no_positions() -> None:
    """And nothing of a __getitem__, of an order of ours, or of a cure that it cannot have."""
    with pytest.warns(
        FallbackWarning, match="because it is iterable-style, so its samples have no positions; "
    ) as said:
        made(Stream()).close()
    (text,) = (str(each.message) for each in said)
    assert "__getitem__" not in text
    assert "in its own order. For speed, ranks and exact resume use a source of" in text


@pytest.mark.parametrize("workers", [0, 2])
def test_it_resumes_at_the_exact_sample(workers: int) -> None:
    """In the middle of a shuffled epoch, at another batch size too, and no sample before it is read."""
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": workers, "lanes": 2}
    with made(**options) as one:
        run = iter(one)
        before = [i for _ in range(2) for i in indices(next(run))]
        state = one.state_dict()
        rest = [indices(batch) for batch in run]
        second = [indices(batch) for batch in one]
    assert sorted(before + flat(rest)) == list(range(20))
    assert sorted(flat(second)) == list(range(20)) != flat(second)
    dataset = Squares()
    with made(dataset, **options) as two:
        two.load_state_dict(state)
        assert [indices(batch) for batch in two] == rest
        assert two.epoch == 1
    if not workers:
        assert set(dataset.asked) == set(flat(rest))
    with made(**options | {"batch_size": 2}) as three:
        three.load_state_dict(state)
        assert sorted(flat(indices(batch) for batch in three)) == sorted(flat(rest))


def test_ranks_share_an_epoch_and_any_state_serves_all() -> None:
    """Two ranks deal the samples of one, with equal numbers of batches; one's state goes on in the other."""
    options: dict[str, Any] = {"shuffle": True, "lanes": 2}
    with made(batch_size=4, **options) as whole:
        wanted = [set(indices(batch)) for batch in whole]
    parts = [made(batch_size=2, rank=rank, world_size=2, **options) for rank in range(2)]
    got = [[indices(batch) for batch in part] for part in parts]
    assert [set(a) | set(b) for a, b in zip(*got, strict=True)] == wanted
    run = iter(parts[0])
    next(run)
    parts[1].load_state_dict(parts[0].state_dict())
    assert parts[1].state_dict()["consumed"] == 2


def test_a_state_of_something_else_is_refused() -> None:
    """Another dataset, seed or lanes: every difference is listed; the loader stays where it was."""
    with made(seed=1) as one, made(Squares(19), seed=2) as other:
        with pytest.raises(StateError, match="source: .*seed: "):
            other.load_state_dict(one.state_dict())
        assert other.epoch == 0


def test_an_iterable_style_dataset_without_a_state_has_one_that_is_refused() -> None:
    """It is run, and torch's own rules hold for it; a checkpoint is saved, and says so when it is loaded."""
    with made(Stream()) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6]]
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6]]
        state = loader.state_dict()
        with pytest.raises(StateError, match="iterable-style and has no state of its own"):
            loader.load_state_dict(state)
        with pytest.raises(TypeError):
            len(loader)
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        made(Stream(), shuffle=True)


class Counting(IterableDataset[Any]):
    """Gives 0 to 6, and says how far it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 7:
            self.at += 1
            yield torch.tensor(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """The next number."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_style_dataset_with_a_state_goes_on_from_it(workers: int) -> None:
    """At the batch behind those that were handed over; in worker processes by torchdata's loader."""
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers}
    with made(Counting(), **options) as loader:
        run = iter(loader)
        first = [next(run).tolist() for _ in range(2)]
        state = json.loads(json.dumps(loader.state_dict())) if not workers else loader.state_dict()
    with made(Counting(), **options) as other:
        other.load_state_dict(state)
        assert first + [batch.tolist() for batch in other] == [[0, 1], [2, 3], [4, 5], [6]]
        assert [batch.tolist() for batch in other] == [*first, [4, 5], [6]]


class Walk:
    """An iterator over seven random steps that says how far it is, and where torch's random numbers are."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.at == 7:
            raise StopIteration
        self.at += 1
        return torch.stack([torch.tensor(self.at), torch.randint(1_000_000, ())])

    def state_dict(self) -> dict[str, Any]:
        """The next step, and the random numbers."""
        return {"at": self.at, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.at = state["at"]
        torch.set_rng_state(state["random"])


class Walks(IterableDataset[Any]):
    """Its iterator has a state, and it has none."""

    def __iter__(self) -> Iterator[Any]:
        return Walk()


class Walking(Walk, IterableDataset[Any]):
    """Its own iterator, which begins again when one is wanted."""

    def __iter__(self) -> Walking:
        self.at = 0
        return self


@pytest.mark.parametrize("kind", [Walks, Walking])
@pytest.mark.parametrize("taken", [0, 2, 4])
@pytest.mark.parametrize("accelerate", [False, True])
def test_an_iterator_with_a_state_goes_on_from_it(
    kind: Any, taken: int, accelerate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own, or that of a dataset that is one: nothing again, nothing left out, and the same random numbers.

    In a run of Accelerate's too, which is told that a batch is the last one before it is given.
    """
    gradients = pytest.importorskip("accelerate.state").GradientState
    monkeypatch.setattr(gradients, "_shared_state", {})
    if accelerate:
        gradients()
    with made(kind(), batch_size=2) as loader:
        run = iter(loader)
        for _ in range(taken):
            next(run)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in run]
        assert len(rest) == 4 - taken
        if not taken:
            assert len(list(loader)) == 4
    with made(kind(), batch_size=2) as other:
        other.load_state_dict(state)
        again = other.state_dict()
        assert again["dataset"].keys() == state["dataset"].keys()
        assert [batch.tolist() for batch in other] == rest
        assert len(list(other)) == 4


def test_a_state_of_an_iterator_is_refused_by_a_dataset_whose_iterator_has_none() -> None:
    """By name, when its pass begins."""
    with made(Walks(), batch_size=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with made(Walks(), batch_size=2) as other:
        other.load_state_dict(state)
        Walks.__iter__, kept = lambda _: iter([torch.tensor(1)]), Walks.__iter__  # type: ignore[method-assign]
        try:
            with pytest.raises(StateError, match="that of an iterator; found one of Walks without load_state_dict"):
                next(iter(other))
        finally:
            Walks.__iter__ = kept  # type: ignore[method-assign]


def test_batches_of_the_users_own_making() -> None:
    """A batch_sampler that torch does not know gives the batches, and a state counts them."""
    given = [[0, 1, 2], [5], [7, 7]]
    with DataLoader(Squares(), batch_sampler=given, device="cpu") as one:
        run = iter(one)
        next(run)
        state = one.state_dict()
        assert [indices(batch) for batch in run] == given[1:]
        one.load_state_dict(state)
        assert [indices(batch) for batch in one] == given[1:]


def test_set_epoch_reaches_order_and_dataset() -> None:
    """Epoch 5 is epoch 5 whenever it is asked for."""
    with made(shuffle=True) as loader:
        for _ in range(2):
            loader.set_epoch(5)
            fifth = [indices(batch) for batch in loader]
        loader.set_epoch(5)
        assert [indices(batch) for batch in loader] == fifth


class Fails(Squares):
    """Cannot give number 6 until it is told to."""

    broken = True

    def __getitem__(self, index: int) -> Any:
        if index == 6 and self.broken:
            msg = "six"
            raise ValueError(msg)
        return super().__getitem__(index)


def test_an_error_of_the_dataset_ends_the_pass_and_loses_nothing() -> None:
    """No batch behind the missing one counts; a state from there begins with it."""
    dataset = Fails()
    with made(dataset) as loader:
        run = iter(loader)
        assert indices(next(run)) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="six"):
            next(run)
        with pytest.raises(ClosedError):
            next(run)
        state = loader.state_dict()
    dataset.broken = False
    with made(dataset) as loader:
        loader.load_state_dict(state)
        assert indices(next(iter(loader))) == [4, 5, 6, 7]


def test_a_pass_knows_how_many_batches_are_left() -> None:
    """Also after a resume, for progress bars and list()."""
    with made() as loader:
        run = iter(loader)
        next(run)
        assert len(run) == 4  # type: ignore[arg-type]
        assert len(list(run)) == 4
        assert len(run) == 0  # type: ignore[arg-type]


def test_a_loop_left_early_leaves_no_workers() -> None:
    """They end with the iterator, as torch's do."""
    with made(num_workers=2) as loader:
        before = len(multiprocessing.active_children())
        for _ in loader:
            assert len(multiprocessing.active_children()) == before + 2
            break
        gc.collect()
        assert len(multiprocessing.active_children()) == before


def test_a_state_that_is_refused_leaves_everything_as_it_was() -> None:
    """A random sampler is not asked again, so the position means what it meant."""
    with made(sampler=RandomSampler(range(20))) as loader, made(seed=9) as other:
        next(iter(loader))
        before = loader.state_dict()
        with pytest.raises(StateError):
            loader.load_state_dict(other.state_dict())
        assert loader.state_dict() == before


def test_samplers_of_any_keys() -> None:
    """What the dataset takes: negative ones and tensors; a batch sampler is told the epoch."""
    with made(sampler=[-1, 3, 3]) as loader:
        assert [i for batch in loader for i in indices(batch)] == [-1, 3, 3]

    class Own:
        epoch: int | None = None

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([[self.epoch]])

    with DataLoader(Squares(), batch_sampler=Own(), device="cpu") as loader:
        assert [indices(batch) for _ in range(2) for batch in loader] == [[0], [1]]


def test_samples_one_by_one_resume_and_are_dealt() -> None:
    """batch_size=None: a state counts samples, and ranks take turns."""
    data = torch.arange(10)
    with made(data, None, shuffle=True) as one, made(data, None, shuffle=True) as two:
        run = iter(one)
        before = [int(next(run)) for _ in range(3)]
        two.load_state_dict(one.state_dict())
        rest = [int(item) for item in run]
        assert [int(item) for item in two] == rest
        assert sorted(before + rest) == list(range(10))
        assert "one sample at a time" in one.describe()
    parts = [made(data, None, rank=rank, world_size=2) for rank in range(2)]
    given = [[int(item) for item in part] for part in parts]
    assert [len(items) for items in given] == [5, 5]
    assert sorted(flat(given)) == list(range(10))


def test_a_dataset_that_grows_does_so_between_epochs() -> None:
    """A pass and a state that stand inside an epoch keep its order; the next one has all."""
    data = [torch.tensor(n) for n in range(6)]
    with made(data, 2, shuffle=True) as loader:
        run = iter(loader)
        next(run)
        data.append(torch.tensor(6))
        assert (len(loader), len(list(run))) == (3, 2)
        assert sorted(int(n) for batch in loader for n in batch) == list(range(7))


def test_a_state_before_an_epoch_is_of_all_that_the_dataset_has_by_then() -> None:
    """What it was made for and how many samples it speaks of are one: another loader over the dataset takes it."""
    data = [torch.tensor(n) for n in range(6)]
    with made(data, 2, shuffle=True) as loader:
        list(loader)
        data.append(torch.tensor(6))
        state = loader.state_dict()
    assert state["source"]["samples"] == 7
    with made(data, 2, shuffle=True) as other:
        other.load_state_dict(state)
        assert sorted(int(n) for batch in other for n in batch) == list(range(7))


OURS_ALONE = "torch's own DataLoader runs this dataset, because .*Squares has a __getitem__ of its own, and"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"transform": print}, f"^transform: {OURS_ALONE} applies none; give it to the dataset$"),
        ({"info": True}, f"^info: {OURS_ALONE} has no such item; leave it out$"),
        ({"rank": 5, "world_size": 2}, "^rank: must be below world_size=2; found 5"),
        ({"rank": 0, "world_size": 0}, "^world_size: "),
        ({"seed": -1}, "^seed: "),
        ({"shuffle": "no"}, "^shuffle: "),
        ({"batch_size": 0}, "^batch_size should be a positive integer value"),
        ({"lanes": 3}, "^lanes: "),
    ],
)
def test_arguments_that_cannot_be_are_named(options: dict[str, Any], told: str) -> None:
    """The same errors as for a source; what is ours alone and would change the data too."""
    with pytest.raises(ConfigError, match=told):
        made(**options)


def test_an_epoch_that_cannot_be_and_what_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is refused, the other warned of."""
    with made() as loader, pytest.raises(ConfigError, match=r"set_epoch: the epoch must be below 2\*\*32"):
        loader.set_epoch(2**33)
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match=r"^Decode\(engine=\) has no effect here: torch's own DataLoader"):
        made(decode=Decode(engine="host"))


class Slow(Squares):
    """Takes its time for a sample."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_stats_count_samples_and_name_who_is_slow(workers: int) -> None:
    """Samples as they were asked for, the short last batch too; "torch" before a quick loop, else "trainer"."""
    with made(Slow(), num_workers=workers) as loader:
        assert (loader.stats().samples, loader.stats().bottleneck) == (0, "")
        list(loader)
        stats = loader.stats()
        assert (stats.samples, stats.batches, stats.bottleneck) == (20, 5, "torch")
        assert "torch" in str(stats)
    with made(batch_size=3) as loader:
        waited, asked = 0.0, time.perf_counter()
        for _ in loader:
            waited += time.perf_counter() - asked
            time.sleep(0.01 + 20 * waited)  # the model: slow, however long this machine takes for a batch
            asked = time.perf_counter()
        stats = loader.stats()
    assert (stats.samples, stats.batches, stats.bottleneck) == (20, 7, "trainer")


def test_stats_count_samples_that_nobody_asked_for() -> None:
    """Of an iterable-style dataset the rows of a batch; of samples one by one, one each; of batches cut by the user."""
    for batch_size, batches in ((3, 3), (None, 7)):
        with DataLoader(Stream(), batch_size, device="cpu") as loader:
            list(loader)
            assert (loader.stats().samples, loader.stats().batches) == (7, batches)
    with DataLoader(Squares(), batch_sampler=[[0, 1, 2], [3]], device="cpu") as loader:
        list(loader)
        assert loader.stats().samples == 4
    with DataLoader(Stream(), 4, collate_fn=lambda rows: {"rows": [str(row) for row in rows]}, device="cpu") as loader:
        list(loader)
        assert loader.stats().samples == 7


class Numbers(Dataset[torch.Tensor]):
    """Ten numbers, of which each epoch has others."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """As datasets have it that change from epoch to epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(100 * self.epoch + index)


def test_an_epoch_that_is_told_is_told_to_the_dataset() -> None:
    """A dataset that has set_epoch hears of it, as under torch's loader it would by its own user."""
    with made(Numbers(), 5) as loader:
        loader.set_epoch(3)
        assert [batch.tolist() for batch in loader] == [[300, 301, 302, 303, 304], [305, 306, 307, 308, 309]]


def test_a_closed_loader_gives_no_pass() -> None:
    """It says so."""
    with made(Numbers(), 5) as loader:
        next(iter(loader))
    with pytest.raises(ClosedError, match="loader: used after close"):
        next(iter(loader))


class Endless(IterableDataset[Any]):
    """Gives lists, of which nobody knows how many samples they are."""

    def __iter__(self) -> Iterator[Any]:
        yield from ([torch.zeros(2), torch.ones(2)] for _ in range(3))


def test_batches_of_lists_are_counted_by_their_first_part() -> None:
    """A batch that the dataset made itself is as many samples as its first tensor has rows."""
    with made(Endless(), None) as loader:
        assert [len(batch) for batch in loader] == [2, 2, 2]
        assert loader.stats().batches == 3
