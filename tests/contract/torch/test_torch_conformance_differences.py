"""Where ours differs from torch's loader on purpose: what torch does, and what ours does instead."""

from __future__ import annotations

import copy
import inspect
import itertools
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.both_loaders import COUNT, CPU_WARNING, OURS_BY_TORCH, Numbers, Stream, flat, folder_of, labels_of, tensors_of
from kit.images import QUICK, jpeg
from kit.inside import Stall, TorchFeed, running, torchs
from kit.inside import arguments as torch_arguments
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader
from dali_feed.errors import ClosedError, ConfigError, SourceEmptyError, WaitError
from dali_feed.testing import ScriptedSource

pytestmark = [OURS_BY_TORCH, CPU_WARNING]

PAGE = Path(__file__).parents[3] / "docs" / "from-torch.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Pictures in files."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root")


class Overtaken(Numbers):
    """Number 0 waits until number 4 is asked for, which two workers are when the loop has got a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = multiprocessing.Event()

    def __getitem__(self, index: int) -> int:
        if index == 4:
            self.passed.set()
        elif index == 0:
            self.passed.wait()
        return index


def theirs(data: Any, *args: Any, **options: Any) -> Any:
    """Torch's loader."""
    return TorchLoader(data, *args, **options)


def ours(data: Any, *args: Any, **options: Any) -> DataLoader:
    """On the CPU."""
    return DataLoader(data, *args, device="cpu", **options)


def test_the_page_has_the_lists() -> None:
    """Of every argument, of what differs, and of torch's tests that are not held."""
    text = PAGE.read_text()
    assert "## What is different?" in text
    assert "## Which of torch's own tests do not hold, and why?" in text
    assert [name for name in inspect.signature(TorchLoader).parameters if f"`{name}" not in text] == []


def test_it_is_no_instance_of_torchs_class(folder: ImageFolder) -> None:
    """Whoever takes loaders of that class apart leaves it as it is."""
    with ours(folder) as made:
        assert not isinstance(made, TorchLoader)


def test_one_pass_at_a_time(folder: ImageFolder) -> None:
    """Torch's passes over one loader are independent; with us the older one says that it is over."""
    for data in (folder, tensors_of()):
        passes = theirs(data, 5)
        assert len(list(zip(passes, passes, strict=True))) == 3
        with ours(data, 5) as made, pytest.raises(ClosedError, match="a newer pass"):
            list(zip(made, made, strict=True))


def test_an_error_ends_the_pass() -> None:
    """Torch's iterator goes on behind the batch that is missing; ours does not, so that a state counts right."""

    class Breaks(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise LookupError(index)
            return index

    runs = iter(theirs(Breaks(), 2)), iter(ours(Breaks(), 2))
    for run in runs:
        next(run)
        with pytest.raises(LookupError):
            next(run)
    assert next(runs[0]).tolist() == [4, 5]
    with pytest.raises(ClosedError):
        next(runs[1])


def test_an_iterator_counts_down(folder: ImageFolder) -> None:
    """Torch's len() of an iterator stays what it was."""
    for data in (folder, tensors_of()):
        for loader, left in ((theirs(data, 5), 3), (ours(data, 5), 2)):
            run: Any = iter(loader)
            next(run)
            assert len(run) == left


def test_torchs_own_seed_is_not_asked(folder: ImageFolder) -> None:
    """`torch.manual_seed` changes torch's shuffle; ours is by `seed`, and leaves torch's generator as it is."""

    def orders(make: Any, data: Any) -> list[list[int]]:
        return [(torch.manual_seed(seed), flat(labels_of(make(data, 5, shuffle=True))))[1] for seed in (1, 2)]

    for data in (folder, tensors_of()):
        one, two = orders(theirs, data)
        assert one != two
        one, two = orders(ours, data)
        assert one == two != flat(labels_of(ours(data, 5, shuffle=True, seed=3)))
    before = torch.get_rng_state()
    list(ours(folder, 5, shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_of_files_is_a_tuple(folder: ImageFolder) -> None:
    """Torch collates pairs into a list."""
    assert type(next(iter(theirs(folder, 2)))) is list
    assert type(next(iter(ours(folder, 2)))) is tuple


def test_attributes_are_what_was_given(folder: ImageFolder) -> None:
    """None, or false, where torch has put its own; the size of a BatchSampler is batch_size."""
    batches = torch.utils.data.BatchSampler(range(4), 2, drop_last=True)
    for data in (folder, tensors_of()):
        with ours(data) as made, ours(data, batch_sampler=batches) as other:
            assert (made.sampler, made.collate_fn) == (None, None)
            assert not made.batch_sampler  # an object that says what to do in place of using it
            assert (other.batch_size, other.drop_last, other.sampler) == (2, True, batches.sampler)
        assert theirs(data, batch_sampler=batches).batch_size is None


@pytest.mark.parametrize(
    "name", ["num_workers", "collate_fn", "pin_memory", "generator", "prefetch_factor", "worker_init_fn", "in_order"]
)
def test_all_arguments_stay(folder: ImageFolder, name: str) -> None:
    """Torch lets these be set afterwards; with us they would have no effect any more, so they cannot be."""
    setattr(theirs(folder), name, 0)
    for data in (folder, tensors_of()):
        with ours(data) as made, pytest.raises(ConfigError, match=f"^{name} attribute should not .*make a new one"):
            setattr(made, name, 0)


def test_a_timeout_may_be_set_where_it_counts(folder: ImageFolder) -> None:
    """Over files it is read with every batch; torch's loader was told once, so it is refused there."""
    with ours(folder) as made:
        made.timeout = 5
        assert made.timeout == 5
    with ours(tensors_of()) as made, pytest.raises(ConfigError, match="^timeout attribute should not be set"):
        made.timeout = 5


def test_decoder_threads_need_no_workers(folder: ImageFolder) -> None:
    """prefetch_factor counts for files with num_workers=0 too, which torch refuses."""
    with pytest.raises(ValueError, match="prefetch_factor option"):
        theirs(folder, prefetch_factor=3)
    with ours(folder, prefetch_factor=3) as made:
        assert running(made).tuning.prefetch == 3
    with pytest.raises(ConfigError, match="prefetch"):
        ours(folder, num_workers=1, prefetch_factor=0)


def test_what_is_not_clear_is_refused() -> None:
    """Torch takes any truth for shuffle, and looks at a collate_fn or a generator when it needs one."""
    for options in ({"shuffle": 1}, {"collate_fn": 3}, {"generator": 3}):
        theirs(range(3), **options)
        with pytest.raises(ConfigError, match=next(iter(options))):
            ours(range(3), **options)


def test_files_have_no_negative_numbers(folder: ImageFolder) -> None:
    """A dataset in memory counts from behind as a list does; files are named by their place."""
    assert labels_of(theirs(folder, sampler=[-1])) == [[COUNT - 1]]
    assert labels_of(ours(tensors_of(), sampler=[-1])) == [[COUNT - 1]]
    with ours(folder, sampler=[-1]) as made, pytest.raises(ConfigError, match=r"must lie in 0\.\.11; found -1"):
        next(iter(made))


def test_an_epoch_of_files_holds_one_at_least(folder: ImageFolder) -> None:
    """A sampler that gives nothing is an empty epoch for torch's loader, and an error over files."""
    for make, data in ((theirs, folder), (ours, tensors_of())):
        assert list(make(data, sampler=[])) == []
    with ours(folder, sampler=[]) as made, pytest.raises(SourceEmptyError, match="found none for epoch 0. Check"):
        next(iter(made))


def test_a_sampler_that_gives_its_indices_once(folder: ImageFolder) -> None:
    """A generator has one epoch in it: torch's loader gives an empty second one without a word, ours says why."""
    loader = theirs(folder, sampler=iter([0, 1]))
    assert [len(list(loader)) for _ in range(2)] == [2, 0]
    with ours(folder, sampler=iter([0, 1])) as made:
        assert len(list(made)) == 2
        with pytest.raises(
            SourceEmptyError, match="found none for epoch 1. An iterator gives its items once; give a l"
        ):
            next(iter(made))


def test_nothing_can_be_shuffled() -> None:
    """Torch refuses shuffle=True over an empty dataset; with us it has no batches, as without."""
    with pytest.raises(ValueError, match="num_samples"):
        list(theirs(Numbers(0), shuffle=True))
    assert list(ours(Numbers(0), shuffle=True)) == []


def test_a_sampler_without_a_length_has_one(folder: ImageFolder) -> None:
    """Ours reads an epoch's order whole and counts it; torch's loader has no length then."""

    class Three:
        def __iter__(self) -> Any:
            return iter([1, 2, 3])

    for data in (folder, tensors_of()):
        with pytest.raises(TypeError):
            len(theirs(data, 2, sampler=Three()))
        assert len(ours(data, 2, sampler=Three())) == 2


def test_a_sampler_has_to_end(folder: ImageFolder) -> None:
    """Torch takes as many as the loop does; with us one that goes on for ever is an error that names it."""

    class Forever:
        def __iter__(self) -> Any:
            return itertools.cycle(range(COUNT))

    for data in (folder, tensors_of()):
        run = iter(theirs(data, 5, sampler=Forever()))
        assert len(labels_of(itertools.islice(run, 9))) == 9
        with (
            ours(data, 5, sampler=Forever()) as made,
            pytest.raises(ConfigError, match="^sampler: must end, .*Forever"),
        ):
            next(iter(made))


def test_a_random_sampler_is_asked_when_the_length_is(folder: ImageFolder) -> None:
    """Its order is drawn by len() or state_dict() where they come first, and is the epoch's from there on."""
    for data in (folder, tensors_of()):
        with ours(data, 5, sampler=RandomSampler(data)) as made:
            torch.manual_seed(1)
            assert len(made) == 3
            torch.manual_seed(2)
            given = labels_of(made)
        torch.manual_seed(1)
        assert given == labels_of(ours(data, 5, sampler=RandomSampler(data)))


def test_a_stream_over_ranks_is_refused() -> None:
    """Torch gives every rank all of it; with us somebody has to say that the dataset shards itself."""
    with pytest.raises(ConfigError, match="every rank the same samples; .*Divide its samples inside"):
        ours(Stream(), rank=0, world_size=2)


def test_a_loader_stays_where_it_was_made(folder: ImageFolder) -> None:
    """Torch's can be pickled; ours holds threads and a position."""
    for data in (folder, tensors_of()):
        pickle.dumps(theirs(data))
        with ours(data) as made:
            for act in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be pickled or copied.*state_dict"):
                    act(made)


def test_names_are_no_pictures(folder: ImageFolder) -> None:
    """Torch would collate a list's names; where batches of another kind are asked for, ours says that it cannot."""
    names = [path for path, _ in folder.samples]
    assert next(iter(theirs(names, batch_sampler=[[0]]))) == [names[0]]
    for options in ({"batch_sampler": [[0]]}, {"batch_size": None}):
        with pytest.raises(ConfigError, match=f"^{next(iter(options))}.* would change the data"):
            ours(names, **options)


def test_a_timeout_of_ours_is_torchs_runtime_error_and_more() -> None:
    """A WaitError, also a TimeoutError, in torch's words and with the stage that is stuck; the pass goes on."""
    go_on = threading.Event()
    source = ScriptedSource([Stall(go_on, then=(jpeg(0), 0))])
    with ours(source, timeout=0.1, tuning=QUICK) as made:
        run = iter(made)
        with pytest.raises(
            RuntimeError, match=r"^DataLoader timed out after 0\.1 seconds; source: .*from scripted\[0\]@0"
        ) as caught:
            next(run)
        assert isinstance(caught.value, WaitError)
        assert isinstance(caught.value, TimeoutError)
        go_on.set()


def test_a_timeout_without_workers_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asserts that there is none."""
    with pytest.raises(AssertionError, match="timeout == 0"):
        list(theirs(range(3), timeout=3))
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match="^timeout has no effect here: there are no worker processes"):
        made = ours(range(3), timeout=3)
    assert len(list(made)) == 3


def test_batches_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """in_order=False lets torch's workers overtake one another; with us a state counts batches, so that none does."""
    options: dict[str, Any] = {"num_workers": 2, "in_order": False}
    assert next(iter(theirs(Overtaken(), **options))).tolist() == [1]
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match="^in_order=False has no effect here: batches always come in order, so that"):
        made = ours(Numbers(), **options)
    with made:
        assert isinstance(running(made), TorchFeed)
        assert torchs(made).in_order
        assert [int(batch) for batch in made] == list(range(COUNT))


def test_numpys_numbers_are_numbers(folder: ImageFolder) -> None:
    """Torch refuses an int of NumPy's as a batch size."""
    size: Any = np.int64(5)
    with pytest.raises(ValueError, match="batch_size should be a positive integer value"):
        theirs(folder, size)
    for data in (folder, tensors_of()):
        assert labels_of(ours(data, size)) == labels_of(theirs(data, 5))
    assert len(list(ours(Stream(), size))) == 3
