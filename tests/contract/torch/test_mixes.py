"""MixUp and CutMix in collate position: images and labels mixed alike, by draws that survive a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg
from kit.mixes import BOTH, FLOAT, loader
from kit.refused import drained, first, refusals
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from dali_feed import DataLoader, Mixing
from dali_feed.errors import ConfigError, TransformError
from dali_feed.external_sources import Table
from dali_feed.testing import ScriptedSource


def test_a_resumed_run_mixes_as_it_would_have() -> None:
    """In the middle of an epoch, and on two ranks: a lane's samples meet each other alone."""
    with loader(BOTH, 4, lanes=2) as whole:
        wanted = list(whole)
    with loader(BOTH, 4, lanes=2) as first:
        next(iter(first))
        state = first.state_dict()
    for rank in range(2):
        with loader(BOTH, 2, lanes=2, rank=rank, world_size=2) as part:
            part.load_state_dict(state)
            for (images, labels), (all_images, all_labels) in zip(part, wanted[1:], strict=True):
                mine = slice(rank * len(images), (rank + 1) * len(images))
                assert torch.equal(images, all_images[mine])
                assert torch.equal(labels, all_labels[mine])


def test_torchvisions_classes_are_taken_with_our_draws() -> None:
    """v2.MixUp, v2.CutMix and a RandomChoice of them are what `Mixing` says."""
    cases = [
        (v2.MixUp(alpha=0.3, num_classes=30), Mixing(mixup=0.3, classes=30)),
        (v2.CutMix(num_classes=30), Mixing(cutmix=1.0, classes=30)),
        (
            v2.RandomChoice([v2.CutMix(num_classes=30), v2.MixUp(alpha=0.2, num_classes=30)], p=[3, 1]),
            Mixing(mixup=0.2, cutmix=1.0, switch=0.75, classes=30),
        ),
    ]
    for theirs, ours in cases:
        with loader(theirs) as one, loader(ours) as other:
            for (images, labels), (same, soft) in zip(one, other, strict=True):
                assert torch.equal(images, same)
                assert torch.equal(labels, soft)


def test_other_fields_pass() -> None:
    """Just the labels are mixed; a single sample meets itself."""
    source = ScriptedSource([(jpeg(0), 7)])
    with DataLoader(source, 1, transform=FLOAT, collate_fn=BOTH, device="cpu", tuning=QUICK) as one:
        ((_, labels),) = one
    assert labels[0, 7] == pytest.approx(0.9 + 0.1 / 30)


def small(images: Any, draws: Any) -> Any:
    """A graph of the user's own that gives bytes, with channels last."""
    from nvidia.dali import fn

    return fn.resize(images, size=[8, 8])


def floats(images: Any, draws: Any) -> Any:
    """One that gives floats, with channels last."""
    from nvidia.dali import fn, types

    return fn.cast(small(images, draws), dtype=types.FLOAT)


def labelled_by(column: list[Any], mixing: Mixing) -> DataLoader:
    """Two images with these labels."""
    pa = pytest.importorskip("pyarrow")
    source = Table(pa.table({"image": [jpeg(0), jpeg(1)], "label": column}))
    return DataLoader(source, 2, transform=FLOAT, collate_fn=mixing, device="cpu", tuning=QUICK)


def brought_by_a_state() -> None:
    """A loader without lanes= takes the state's."""
    with loader(None, lanes=6) as one, loader(BOTH) as other:
        other.load_state_dict(one.state_dict())


ZEROS = TensorDataset(torch.zeros(4, 3, 2, 2), torch.zeros(4))
LABELS = "whole numbers of classes; found"
LANES = r"found lanes=\d+ in global batches of \d+ samples. Give"
GETTER = v2.MixUp(num_classes=30, labels_getter=lambda batch: batch[1])
FIVE = Mixing(1.0, classes=5)
CHOICE = v2.RandomChoice([v2.MixUp(num_classes=2), v2.CutMix(num_classes=3)])
OWN = v2.Compose([FLOAT, v2.Lambda(lambda image: image)])


@refusals(
    ConfigError,
    (lambda: loader(BOTH, transform=v2.CenterCrop(8)), "mix floats; found images of torch.uint8"),
    (lambda: first(loader(BOTH, transform=small)), "mix floats; found images of"),
    (lambda: first(loader(BOTH, transform=floats)), r"found \(6, 8, 8, 3\)"),
    (lambda: loader(BOTH, transform=[FLOAT, FLOAT]), "found several views"),
    (lambda: loader(BOTH, transform=OWN), "found your own function"),
    (lambda: DataLoader(ZEROS, 2, collate_fn=BOTH), "Mixing is for images that we decode"),
    (lambda: loader(v2.MixUp()), "num_classes must be given", TransformError),
    (lambda: loader(CHOICE), "one v2.MixUp and one v2.CutMix", TransformError),
    (lambda: loader(GETTER), "labels_getter must be left out", TransformError),
    (lambda: drained(loader(FIVE)), r"labels must lie in 0\.\.4, .* found \d+ in scripted\[0\]@\d+"),
    (lambda: Mixing(1.0, classes=0), "Mixing", TransformError),
    (lambda: Mixing(1.0, smoothing=0.1), "Mixing", TransformError),
    (lambda: Mixing(1.0, classes=3, smoothing=2), "Mixing", TransformError),
    (lambda: loader(BOTH, lanes=6), LANES),
    (lambda: loader(BOTH, lanes=12, rank=1, world_size=2), LANES),
    (brought_by_a_state, "found lanes=6 in global batches of 6"),
    (lambda: first(labelled_by([0.5, 1.5], BOTH)), LABELS),
    (lambda: first(labelled_by([0.5, 1.5], Mixing(1.0))), LABELS),
    (lambda: first(labelled_by(["a", "b"], BOTH)), LABELS),
    (lambda: first(labelled_by(["a", "b"], Mixing(1.0))), LABELS),
    (lambda: first(labelled_by([True, False], BOTH)), LABELS),
    (lambda: first(labelled_by([True, False], Mixing(1.0))), LABELS),
)
def test_what_cannot_be_mixed_is_refused(call: Any, error: Any, said: str) -> None:
    """At once, or with the first batch where only that can tell; nothing is left unmixed without a word."""
    with pytest.raises(error, match=said):
        call()
