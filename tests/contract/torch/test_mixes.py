"""MixUp and CutMix in collate position: images and labels mixed alike, by draws that survive a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg
from kit.mixes import BOTH, FLOAT, loader
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from dali_feed import DataLoader, Mixing
from dali_feed.errors import ConfigError, TransformError
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


def test_what_cannot_be_mixed_is_refused() -> None:
    """Bytes, several views, records without labels, datasets that torch's loader runs, classes that disagree."""
    with pytest.raises(ConfigError, match="mix floats; found images of torch.uint8"):
        loader(BOTH, transform=v2.CenterCrop(8))
    with pytest.raises(ConfigError, match="found several views"):
        loader(BOTH, transform=[FLOAT, FLOAT])
    with pytest.raises(ConfigError, match="found your own function"):
        loader(BOTH, transform=v2.Compose([FLOAT, v2.Lambda(lambda image: image)]))
    data = TensorDataset(torch.zeros(4, 3, 2, 2), torch.zeros(4))
    with pytest.raises(ConfigError, match="Mixing is for images that we decode"):
        DataLoader(data, 2, collate_fn=BOTH, device="cpu")
    with pytest.raises(TransformError, match="num_classes must be given"):
        loader(v2.MixUp())
    with pytest.raises(TransformError, match="one v2.MixUp and one v2.CutMix"):
        loader(v2.RandomChoice([v2.MixUp(num_classes=2), v2.CutMix(num_classes=3)]))
    with pytest.raises(TransformError, match="labels_getter must be left out"):
        loader(v2.MixUp(num_classes=30, labels_getter=lambda batch: batch[1]))
    with (
        pytest.raises(ConfigError, match=r"labels must lie in 0\.\.4, .* found \d+ in scripted\[0\]@\d+"),
        loader(Mixing(1.0, classes=5)) as few,
    ):
        list(few)
    for options in ({"classes": 0}, {"smoothing": 0.1}, {"classes": 3, "smoothing": 2}):
        with pytest.raises(TransformError, match="Mixing"):
            Mixing(1.0, **options)


@pytest.mark.parametrize("options", [{"lanes": 6}, {"lanes": 12, "rank": 1, "world_size": 2}])
def test_lanes_of_one_sample_are_refused(options: dict[str, Any]) -> None:
    """Each sample would meet itself, and nothing be mixed without a word."""
    with pytest.raises(ConfigError, match=r"found lanes=\d+ in global batches of \d+ samples. Give"):
        loader(BOTH, **options)


def test_lanes_of_one_sample_that_a_state_brings_are_refused() -> None:
    """A loader without lanes= takes the state's."""
    with loader(None, lanes=6) as first:
        state = first.state_dict()
    with loader(BOTH) as given, pytest.raises(ConfigError, match="found lanes=6 in global batches of 6"):
        given.load_state_dict(state)


def test_bytes_of_a_graph_of_the_users_own_are_refused_when_they_come() -> None:
    """What it gives is known then and not before."""

    def small(images: Any, draws: Any) -> Any:
        from nvidia.dali import fn

        return fn.resize(images, size=[8, 8])

    with loader(BOTH, transform=small) as given, pytest.raises(ConfigError, match="mix floats; found images of"):
        next(iter(given))


@pytest.mark.parametrize("column", [[0.5, 1.5], ["a", "b"], [True, False]])
def test_labels_that_are_no_classes_are_refused(column: list[Any]) -> None:
    """With what they are, whether classes are given or not."""
    pa = pytest.importorskip("pyarrow")
    from dali_feed.external_sources import Table

    table = pa.table({"image": [jpeg(0), jpeg(1)], "label": column})
    for mixing in (BOTH, Mixing(1.0)):
        with (
            DataLoader(Table(table), 2, transform=FLOAT, collate_fn=mixing, device="cpu", tuning=QUICK) as given,
            pytest.raises(ConfigError, match="whole numbers of classes; found"),
        ):
            next(iter(given))


def test_a_graph_that_gives_no_channels_first_images_is_refused() -> None:
    """Rather than mixed along the wrong axes."""

    def channels_last(images: Any, draws: Any) -> Any:
        from nvidia.dali import fn, types

        return fn.cast(fn.resize(images, size=[8, 8]), dtype=types.FLOAT)

    with loader(BOTH, transform=channels_last) as given, pytest.raises(ConfigError, match=r"found \(6, 8, 8, 3\)"):
        next(iter(given))
