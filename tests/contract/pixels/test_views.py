"""Several views of one decoded image: each as its transform alone gives it, with draws of its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, broken_png, jpeg, labelled, png
from kit.inside import Feed
from torch.utils.data import ConcatDataset
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Shuffle
from dali_feed.errors import ConfigError, TransformError
from dali_feed.testing import ScriptedSource

FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]
WIDE = v2.Compose(
    [
        v2.RandomResizedCrop(12),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4),
        v2.RandomApply([v2.GaussianBlur(3)]),
        *FLOAT,
        v2.RandomErasing(),
    ]
)
SMALL = v2.Compose([v2.RandomResizedCrop((6, 8), scale=(0.05, 0.3)), v2.RandomVerticalFlip(), *FLOAT])
PLAIN = v2.CenterCrop(10)  # uint8
ENGINES = ["host", "dali"]
ANY = BadRecords(limit=None)


class Several:
    """Gives a list: what each of its transforms makes of the image."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        """The views of one image, in order."""
        return [transform(image) for transform in self.transforms]


def batches(transform: Any, engine: str | None = None, **options: Any) -> list[Any]:
    """An epoch of eleven images in batches of four."""
    source = ScriptedSource(labelled(11), extent=4)
    how = {"device": "cpu", "tuning": QUICK, "seed": 3, "decode": Decode(engine=engine), **options}
    with DataLoader(source, 4, shuffle=Shuffle(4, 2), transform=transform, **how) as loader:
        return list(loader)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_view_is_what_its_transform_gives_alone(engine: str) -> None:
    """So one more view changes nothing of what a run has seen; to the bit where images are decoded whole alike."""
    alone = batches(WIDE if engine == "host" else [WIDE], engine)
    for (views, labels), (images, same) in zip(batches([WIDE, SMALL], engine), alone, strict=True):
        assert isinstance(views, list)
        assert torch.equal(views[0], images if engine == "host" else images[0])
        assert torch.equal(labels, same)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_view_has_its_size_dtype_and_draws(engine: str) -> None:
    """The same transform twice gives two images, and the order of views says who draws what."""
    for views, _ in batches([WIDE, WIDE, SMALL, PLAIN], engine):
        n = len(views[0])
        assert [tuple(view.shape) for view in views] == [(n, 3, 12, 12)] * 2 + [(n, 3, 6, 8), (n, 3, 10, 10)]
        assert [view.dtype for view in views] == [torch.float32] * 3 + [torch.uint8]
        assert all(not torch.equal(one, other) for one, other in zip(views[0], views[1], strict=True))
    (other, _), (one, _) = batches([SMALL, WIDE], engine)[0], batches([WIDE, WIDE], engine)[0]
    assert torch.equal(other[1], one[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_sees_the_same_views(engine: str) -> None:
    """Also at another batch size, on two ranks."""
    whole = batches([WIDE, SMALL], engine, lanes=2)
    source = ScriptedSource(labelled(11), extent=4)
    how: dict[str, Any] = {
        "transform": [WIDE, SMALL],
        "decode": Decode(engine=engine),
        "lanes": 2,
        "seed": 3,
        "device": "cpu",
    }
    with DataLoader(source, 4, shuffle=Shuffle(4, 2), tuning=QUICK, **how) as first:
        next(iter(first))
        state = first.state_dict()
    for rank in range(2):
        with DataLoader(source, 2, shuffle=Shuffle(4, 2), tuning=QUICK, rank=rank, world_size=2, **how) as resumed:
            resumed.load_state_dict(state)
            for (views, labels), (all_views, all_labels) in zip(resumed, whole[1:], strict=True):
                half = len(all_labels) // 2
                mine = slice(rank * half, (rank + 1) * half)
                assert torch.equal(labels, all_labels[mine])
                for view, every in zip(views, all_views, strict=True):
                    assert torch.equal(view, every[mine])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_fails_late_is_replaced_in_every_view(engine: str) -> None:
    """All views of a slot are of the record that stands in it."""
    items: list[Any] = labelled(12)
    items[5] = (broken_png(), 5)
    source = ScriptedSource(items, extent=4)
    with DataLoader(
        source, 4, transform=[WIDE, SMALL], decode=Decode(engine=engine), device="cpu", tuning=QUICK, bad=ANY, info=True
    ) as loader:
        given = list(loader)
    clean = ScriptedSource(labelled(12), extent=4)
    with DataLoader(
        clean, 4, transform=[WIDE, SMALL], decode=Decode(engine=engine), device="cpu", tuning=QUICK, bad=ANY, info=True
    ) as loader:
        wanted = {
            int(sample): [view[k] for view in views]
            for views, _, info in loader
            for k, sample in enumerate(info.ids.tolist())
        }
    assert sum(int((~info.ok).sum()) for _, _, info in given) == 1
    for views, _, info in given:
        for k, sample in enumerate(info.ids.tolist()):
            assert all(torch.equal(view[k], one) for view, one in zip(views, wanted[sample], strict=True))


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_views_of_a_dataset_are_those_of_torchs_loader(tmp_path: Path) -> None:
    """A class that gives a list, as an ImageFolder's transform: one import is the difference, to the bit on the CPU."""
    for n in range(6):
        path = tmp_path / f"{n % 2}" / f"{n}.{'png' if n % 3 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((png if n % 3 else jpeg)(n, 20 + n, 30))
    views = Several([v2.Compose([v2.Resize((9, 11)), *FLOAT]), v2.CenterCrop(7)])

    def read(path: str) -> torch.Tensor:
        image: torch.Tensor = decode_image(path, mode="RGB")
        return image

    theirs = list(TorchLoader(ImageFolder(str(tmp_path), views, loader=read), 4))
    with DataLoader(ImageFolder(str(tmp_path), views), 4, device="cpu", tuning=QUICK) as loader:
        ours = list(loader)
    for (a, labels), (b, same) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, same)
        assert len(a) == len(b) == 2
        assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def test_a_collate_fn_is_given_the_views_of_each_sample() -> None:
    """A list in the image's place, as torch's loader gives it."""
    seen: list[Any] = []

    def collate(samples: list[Any]) -> int:
        seen.extend(samples)
        return len(samples)

    assert batches([SMALL, PLAIN], collate_fn=collate) == [4, 4, 3]
    assert all([tuple(view.shape) for view in views] == [(3, 6, 8), (3, 10, 10)] for views, _ in seen)


RANDOM = {
    "RandomCrop": v2.RandomCrop(10),
    "ColorJitter": v2.Compose([v2.CenterCrop(12), v2.ColorJitter(0.5, 0.5, 0.5)]),
    "RandomAffine": v2.Compose([v2.CenterCrop(12), v2.RandomAffine(90)]),
    "RandomErasing": v2.Compose([v2.CenterCrop(12), *FLOAT, v2.RandomErasing(p=1)]),
    "nested": v2.Compose([v2.CenterCrop(12), v2.RandomApply([v2.RandomApply([v2.ColorJitter(0.5)], 1.0)], 1.0)]),
    "AugMix": v2.Compose([v2.CenterCrop(12), v2.AugMix()]),
    "RandAugment": v2.Compose([v2.CenterCrop(12), v2.RandAugment()]),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_random_transform_draws_anew_in_each_view(engine: str, name: str) -> None:
    """No two views of a batch are alike, so that contrasting them means something."""
    if engine == "dali" and name in {"AugMix", "RandAugment"}:
        pytest.skip("DALI has no operators for it")
    for views, _ in batches([RANDOM[name]] * 3, engine):
        assert all(not torch.equal(one, other) for one, other in itertools.combinations(views, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_views_have_memory_of_their_own(engine: str) -> None:
    """What a trainer writes into one is not seen in another, though DALI computes equal views once."""
    for (one, other), _ in batches([v2.Compose([v2.CenterCrop(10), *FLOAT])] * 2, engine):
        kept = other.clone()
        one.zero_()
        assert torch.equal(other, kept)


def test_equal_views_of_two_parts_are_one_dataset(tmp_path: Path) -> None:
    """ConcatDataset's parts are compared by what their views are lowered to."""
    parts = []
    for name in ("a", "b"):
        (tmp_path / name / "c").mkdir(parents=True)
        (tmp_path / name / "c" / "0.jpg").write_bytes(jpeg(0, 20, 20))
        parts.append(ImageFolder(str(tmp_path / name), Several([v2.CenterCrop(8), v2.CenterCrop(6)])))
    with DataLoader(ConcatDataset(parts), 2, device="cpu", tuning=QUICK) as loader:
        ((views, _),) = loader
    assert [tuple(view.shape) for view in views] == [(2, 3, 8, 8), (2, 3, 6, 6)]


def test_a_feed_gives_further_views_that_speak_dlpack() -> None:
    """The batch itself is its first view."""
    source = ScriptedSource(labelled(4))
    with Feed(source, 4, transform=[SMALL, PLAIN], tuning=QUICK) as feed:
        (batch,) = feed
    assert tuple(torch.utils.dlpack.from_dlpack(batch).shape) == (4, 3, 6, 8)
    assert [tuple(torch.utils.dlpack.from_dlpack(view).shape) for view in batch.more] == [(4, 3, 10, 10)]


def test_views_in_channels_last() -> None:
    """Each of them has torch's shape, and channels last in memory."""
    planar = batches([WIDE, SMALL])
    for (views, _), (wanted, _) in zip(
        batches([WIDE, SMALL], decode=Decode(memory_format=torch.channels_last)), planar, strict=True
    ):
        for view, same in zip(views, wanted, strict=True):
            assert view.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(view, same)


def test_images_too_small_for_one_view_are_bad_records() -> None:
    """A record counts as bad where any view cannot take it."""
    items = [*labelled(3), (jpeg(3, 8, 40), 3)]
    with DataLoader(
        ScriptedSource(items), 2, transform=[SMALL, v2.RandomCrop(10)], device="cpu", tuning=QUICK, bad=ANY, info=True
    ) as loader:
        assert [ok for _, _, info in loader for ok in info.ok.tolist()] == [True, True, True, False]


def test_sizes_that_differ_are_told_by_view() -> None:
    """The error names the sizes of the view that has several."""
    items = [(jpeg(0, 16, 16), 0), (jpeg(1, 20, 16), 1)]
    loader = DataLoader(ScriptedSource(items), 2, transform=[SMALL, None], device="cpu", tuning=QUICK)
    with loader, pytest.raises(ConfigError, match=r"found \(16, 16\) from .* and \(20, 16\) from"):
        next(iter(loader))


def test_what_cannot_be_a_view_is_refused() -> None:
    """No views, too many, and a graph function among them."""
    source = ScriptedSource(labelled(2))
    with pytest.raises(TransformError, match="take 1 to 64 transforms; found 0"):
        DataLoader(source, 2, transform=[], device="cpu")
    with pytest.raises(TransformError, match="take 1 to 64 transforms; found 65"):
        DataLoader(source, 2, transform=[PLAIN] * 65, device="cpu")
    with pytest.raises(TransformError, match="found a DALI graph function in it"):
        DataLoader(source, 2, transform=[PLAIN, lambda images, draws: images], device="cpu")
