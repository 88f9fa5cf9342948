"""Accelerate sees our loader as it sees torch's: where an epoch ends, what repeats, what it prepares and saves."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import jpeg
from kit.inside import Stall, arguments
from kit.later import Later
from kit.numbered import Numbers, accelerator, flat, ours, scripted
from kit.ranks import spread
from kit.warm import Warm
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader as TorchLoader

from dali_feed.errors import ConfigError, WaitError
from dali_feed.testing import ScriptedSource

Later("accelerate")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Nothing of Accelerate's is left for other tests of this process."""
    yield
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def references() -> list[Any]:
    """What Accelerate takes to be iterated over."""
    from accelerate.state import GradientState

    return list(GradientState().dataloader_references)


def trained(loader: Any, samples: int, steps: int = 4, epochs: int = 2) -> tuple[int, list[float], float]:
    """Optimizer steps, the rate after each epoch, and the weight at the end."""
    run = accelerator(steps)
    torch.manual_seed(0)
    net: Any = torch.nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=-(-len(loader) // steps) * epochs)
    net, optimizer, loader, schedule = run.prepare(net, optimizer, loader, schedule)
    count, rates = 0, []
    for _ in range(epochs):
        for x, y in loader:
            with run.accumulate(net):
                run.backward((net(x) - y.float().unsqueeze(1) / samples).pow(2).mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                count += run.sync_gradients
        rates.append(round(schedule.get_last_lr()[0], 6))
    return count, rates, round(next(net.parameters()).item(), 6)


@pytest.mark.parametrize(("samples", "updates"), [(27, 6), (54, 10)])
def test_accumulated_gradients_are_applied_at_the_end_of_an_epoch(samples: int, updates: int) -> None:
    """9 batches in fours are 3 updates, with the weights and rates that torch's loader gives."""
    data = Numbers(samples)
    with ours(data, shuffle=False) as mine:
        found = trained(mine, samples)
    assert found == trained(TorchLoader(data, 3, shuffle=False), samples)
    assert found[0] == updates
    assert references() == [None]


def test_a_source_of_ours_ends_an_epoch_as_well() -> None:
    """The last batch says that it is the last before it is handed over, on the way through our own engine."""
    run, seen = accelerator(4), list[bool]()
    with ours(scripted(10), 2) as mine:
        seen += [run.gradient_state.end_of_dataloader for _ in mine]
    assert seen == [False] * 4 + [True]
    assert references() == [None]


def test_a_loop_within_a_loop_that_is_left_early_hides_nothing() -> None:
    """The end of the outer epoch still counts, whether the inner iterator is kept or dropped."""
    run = accelerator(4)
    net, syncs = torch.nn.Linear(1, 1), []
    kept = []
    with ours(Numbers()) as outer, ours(Numbers()) as inner, ours(Numbers()) as other:
        for at, _ in enumerate(outer):
            with run.accumulate(net):
                syncs.append(run.sync_gradients)
            if at == 4:
                for _ in inner:
                    break
            if at == 5:
                kept.append(iter(other))
                next(kept[0])
                next(iter(other))
        assert [at for at, sync in enumerate(syncs) if sync] == [3, 7, 8]
        del kept[:]
    assert references() == [None]


def test_a_look_at_the_iterator_registers_nothing() -> None:
    """A pass is known from its first batch on."""
    accelerator()
    with ours(Numbers()) as mine:
        batches = iter(mine)
        assert references() == [None]
        next(batches)
        assert references()[-1] is not None


def test_a_batch_that_does_not_come_ends_no_epoch() -> None:
    """A time limit that passes leaves the end open, and the pass goes on."""
    run, held = accelerator(), threading.Event()
    source = ScriptedSource([Stall(held, then=(jpeg(0), 0)), (jpeg(1), 1)])
    with ours(source, 2, timeout=0.05) as mine:
        batches = iter(mine)
        with pytest.raises(WaitError):
            next(batches)
        assert not run.gradient_state.end_of_dataloader
        held.set()
        mine.timeout = 0
        assert flat(next(batches)) == [0, 1]
        assert run.gradient_state.end_of_dataloader


def test_preparing_gives_the_loader_back_as_it_is() -> None:
    """By `prepare` and by `prepare_data_loader`; the functions that would rebuild it are refused with the cure."""
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    run = accelerator()
    with ours(Numbers(), shuffle=True) as mine:
        assert run.prepare(mine) is mine
        assert run.prepare_data_loader(mine) is mine
        assert [flat(batch) for batch in mine] != [list(range(at, at + 3)) for at in range(0, 27, 3)]
        for rebuild in (lambda: prepare_data_loader(mine, put_on_device=False), lambda: skip_first_batches(mine, 4)):
            with pytest.raises(ConfigError, match="batch_sampler: .*skip"):
                list(rebuild())  # type: ignore[no-untyped-call]


def test_it_speaks_the_protocol_of_stateful_loaders() -> None:
    """Torchdata's and torch.distributed.checkpoint's: state_dict and load_state_dict."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader.stateful").Stateful
    with ours(scripted(4)) as mine:
        assert isinstance(mine, stateful)
        assert isinstance(mine, Stateful)


@pytest.mark.parametrize("by", ["save_state", "register"])
@pytest.mark.parametrize("stop", [4, 1])
def test_a_checkpoint_keeps_the_loaders_position(by: str, stop: int, tmp_path: Path) -> None:
    """Saved in the second epoch: the same rest, and the same next epoch."""

    def begun() -> tuple[Any, Any]:
        run = accelerator()
        loader = ours(Numbers(), shuffle=True)
        if by == "register":
            run.register_for_checkpointing(loader)
        return run, run.prepare_data_loader(loader) if by == "save_state" else run.prepare(loader)

    run, one = begun()
    list(one)
    rest = []
    for at, batch in enumerate(one):
        if at >= stop:
            rest.append(flat(batch))
        if at == stop - 1:
            run.save_state(str(tmp_path))
    after = [flat(batch) for batch in one]
    one.close()
    run, other = begun()
    run.load_state(str(tmp_path))
    assert [[flat(batch) for batch in other] for _ in range(2)] == [rest, after]
    other.close()


def test_an_accelerate_that_is_not_known_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on where its private names are others."""
    begun = {"_shared_state": {"begun": True}}
    fake = types.SimpleNamespace(
        GradientState=type("GradientState", (), begun), PartialState=type("PartialState", (), {"_shared_state": {}})
    )
    monkeypatch.setitem(sys.modules, "accelerate.state", fake)
    monkeypatch.setattr(arguments, "_warned", set())
    with ours(Numbers()) as mine, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [len(list(mine)) for _ in range(2)] == [9, 9]
    monkeypatch.undo()
    assert sum("does not see where an epoch ends" in str(each.message) for each in said) == 1


RANKS = """
    from accelerate import Accelerator

    def updates(samples):
        run = accelerator(4)
        net, loader, count = torch.nn.Linear(1, 1), ours(Numbers(samples)), 0
        net, loader = run.prepare(net, loader)
        for _ in range(2):
            for _ in loader:
                with run.accumulate(net):
                    count += run.sync_gradients
        return count

    def gathered(data, samples, batch):
        run = accelerator()
        loader = run.prepare(ours(data, batch))
        seen = [int(i) for _, y in loader for i in run.gather_for_metrics(y)]
        return len(seen) == samples and sorted(seen) == list(range(samples))

    said["updates"] = [updates(27), updates(108)]
    pairs = [(27, 3), (27, 4), (25, 2), (24, 4), (1, 4), (3, 4)]
    said["each once"] = [gathered(Numbers(n), n, by) for n, by in pairs]
    said["of a source"] = [gathered(scripted(n), n, by) for n, by in pairs[:3]]
    run = accelerator()
    loader = ours(Numbers(24), 4, shuffle=True)
    said["prepared"] = run.prepare_data_loader(loader) is loader
    said["differ"] = [flat(b) for b in loader] != [flat(b) for b in loader]
"""


def test_two_processes_count_gather_and_divide_as_with_torchs_loader(warm: Warm, tmp_path: Path) -> None:
    """4 and 10 updates; each sample once in metrics, whatever does not divide; one order, dealt to both."""
    for said in spread(warm, tmp_path, RANKS):
        assert said["updates"] == [4, 10]
        assert all(said["each once"])
        assert all(said["of a source"])
        assert said["prepared"]
        assert said["differ"]


SCHEDULED = """
    def rates(make, samples, batch, **config):
        run = accelerator(**config)
        net, loader = torch.nn.Linear(1, 1), make(Numbers(samples), batch)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        one = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2 * len(loader))
        net, optimizer, loader, one = run.prepare(net, optimizer, loader, one)
        found = []
        for _ in range(2):
            for x, y in loader:
                run.backward(net(x).pow(2).mean())
                optimizer.step(), one.step(), optimizer.zero_grad()
            found.append(round(one.get_last_lr()[0], 6))
        return found

    from torch.utils.data import DataLoader as TorchLoader
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            rates(ours, 54, 3)
    said["warnings"] = sum("len(loader) is of one rank" in str(each.message) for each in caught)
    said["ours"] = rates(ours, 54, 3, split_batches=True)
    said["torch"] = rates(lambda data, by: TorchLoader(data, 2 * by), 54, 3, split_batches=True)
"""


def test_a_scheduler_on_two_processes_is_warned_of_once_and_cured_by_split_batches(warm: Warm, tmp_path: Path) -> None:
    """The warning names the cure; with it the rates are those of torch's loader."""
    for said in spread(warm, tmp_path, SCHEDULED, imports="import accelerate, datasets"):
        assert said["warnings"] == 1
        assert said["ours"] == said["torch"]


FOUR = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = accelerator()
        seen = [int(i) for _, y in run.prepare(ours(Numbers(25), 2)) for i in run.gather_for_metrics(y)]
    said["samples"] = len(seen)
    said["warnings"] = sum("counts some samples twice" in str(each.message) for each in caught)
"""


def test_repeats_that_cannot_be_cut_are_said_once(warm: Warm, tmp_path: Path) -> None:
    """25 samples in twos on 4 ranks: the repeats are no tail, so nothing is cut off, and a warning names info.ids."""
    for said in spread(warm, tmp_path, FOUR, world_size=4):
        assert said == {"samples": 28, "warnings": 1}
