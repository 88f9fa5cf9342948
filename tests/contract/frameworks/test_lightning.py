"""Lightning trains, validates, predicts and resumes with our loader as with torch's, and loses no epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.numbered import Numbers, StatefulStream, ours
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

PLACES: list[dict[str, Any]] = [
    {},
    {"limit_train_batches": 0.5},
    {"limit_train_batches": 4},
    {"val_check_interval": 0.5},
    {"limit_val_batches": 1},
    {"fast_dev_run": True},
]


@pytest.mark.parametrize("options", PLACES, ids=[str(each) for each in PLACES])
@pytest.mark.parametrize("dealt", [False, True])
def test_limits_and_validation_come_where_torchs_do(options: dict[str, Any], dealt: bool, tmp_path: Path) -> None:
    """As many batches, validation in the same places on the same samples, with a DistributedSampler given too."""
    from kit.lightning_net import Net, trainer

    def run(make: Any) -> tuple[list[int], list[tuple[int, list[int]]], list[Any]]:
        net, whole = Net(), trainer(tmp_path, enable_checkpointing=False, **options)
        sampler = DistributedSampler[Any](Numbers(), 1, 0) if dealt else None
        order: dict[str, Any] = {"shuffle": True} if sampler is None else {"sampler": sampler}
        checks = make(Numbers(10), 4)
        whole.fit(net, make(Numbers(), 3, **order), checks)
        epochs = [sum(epoch == each for epoch, _ in net.seen) for each in range(2)]
        return epochs, net.checks, whole.predict(net, checks)

    assert run(ours) == run(TorchLoader)


def resumed(folder: Path, at: int, **options: Any) -> tuple[Any, Any]:
    """A run of three epochs, and one that goes on from the checkpoint after `at` batches of the second."""
    from kit.lightning_net import Net, Save, trainer

    path, combined = folder / "at.ckpt", options.pop("combined", None)

    def data() -> Any:
        one = ours(Numbers(), shuffle=True)
        if combined is None:
            return one
        from lightning.pytorch.utilities import CombinedLoader

        return CombinedLoader({"a": one, "b": ours(Numbers(12))}, combined)

    whole, rest = Net(), Net()
    trainer(folder, max_epochs=3, callbacks=[Save(path, at)], enable_checkpointing=False, **options).fit(whole, data())
    again = trainer(folder, max_epochs=3, enable_checkpointing=False, **options)
    again.fit(rest, data(), ckpt_path=path, weights_only=False)
    return whole, rest


@pytest.mark.parametrize(
    ("at", "options"),
    [
        (4, {}),
        (4, {"accumulate_grad_batches": 2}),
        (4, {"combined": "max_size_cycle"}),
        (2, {"combined": "min_size"}),
    ],
)
def test_a_run_that_resumes_in_an_epoch_sees_what_the_unbroken_one_saw(
    at: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """The same rest, the same next epoch, the same weights."""
    whole, rest = resumed(tmp_path, at, **options)
    assert rest.seen == whole.seen[-len(rest.seen) :]
    first = sum(epoch == 0 for epoch, _ in whole.seen)
    assert len(rest.seen) == len(whole.seen) - first - at
    assert torch.equal(whole.layer.weight, rest.layer.weight)


@pytest.mark.parametrize("when", [{}, {"every_n_train_steps": 9}], ids=["end of epoch", "last batch"])
def test_a_checkpoint_at_the_end_of_an_epoch_loses_none(when: dict[str, int], tmp_path: Path) -> None:
    """A run of two epochs goes on to four: 36 steps in the order of the unbroken run."""
    from kit.lightning_net import Net, lightning, trainer

    keep = lightning.callbacks.ModelCheckpoint(tmp_path, filename="last", **when)
    with ours(Numbers(), shuffle=True) as mine:
        trainer(tmp_path, callbacks=[keep]).fit(Net(), mine)
    rest, whole = Net(), Net()
    path = keep.best_model_path or keep.last_model_path
    with ours(Numbers(), shuffle=True) as mine:
        again = trainer(tmp_path, max_epochs=4, enable_checkpointing=False)
        again.fit(rest, mine, ckpt_path=path, weights_only=False)
        assert again.train_dataloader is mine
    with ours(Numbers(), shuffle=True) as mine:
        trainer(tmp_path, max_epochs=4, enable_checkpointing=False).fit(whole, mine)
    assert again.global_step == 36
    assert [ids for _, ids in rest.seen] == [ids for _, ids in whole.seen[18:]]


@pytest.mark.parametrize("limit", [1, 4, 9])
def test_a_checkpoint_in_validation_at_the_end_of_a_cut_epoch_begins_the_next(limit: int, tmp_path: Path) -> None:
    """Not the rest that `limit_train_batches` leaves out; and each later epoch is another, if only of one batch."""
    from kit.lightning_net import Net, lightning, trainer

    class Save(lightning.Callback):  # type: ignore[misc]
        def on_validation_end(self, whole: Any, _: Net) -> None:
            if whole.current_epoch == 1:
                whole.save_checkpoint(tmp_path / "at.ckpt")

    def run(net: Net, callbacks: Any, path: Path | None) -> list[Any]:
        options = {"max_epochs": 5, "limit_train_batches": limit, "enable_checkpointing": False}
        with ours(Numbers(), shuffle=True) as mine, ours(Numbers(6)) as checks:
            trainer(tmp_path, callbacks=callbacks, **options).fit(net, mine, checks, ckpt_path=path, weights_only=False)
        return [ids for _, ids in net.seen]

    whole = run(Net(), [Save()], None)
    assert run(Net(), [], tmp_path / "at.ckpt") == whole[2 * limit :]


def test_an_iterable_dataset_trains_and_is_saved(tmp_path: Path) -> None:
    """Each epoch has all its samples, and a checkpoint keeps the dataset's own state."""
    from kit.lightning_net import Net, Save, trainer

    net = Net()
    with ours(StatefulStream()) as mine:
        whole = trainer(tmp_path, callbacks=[Save(tmp_path / "at.ckpt", 4)], enable_checkpointing=False)
        whole.fit(net, mine)
    assert [ids for _, ids in net.seen] == [list(range(at, at + 3)) for at in range(0, 27, 3)] * 2
    assert (tmp_path / "at.ckpt").exists()
