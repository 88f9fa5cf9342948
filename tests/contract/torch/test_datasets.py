"""Change the import, keep the dataset: torchvision's folders are read as files; torch's samples in torch's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, jpeg, png
from kit.inside import Feed, running
from kit.inside import arguments as torch_arguments
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from dali_feed import DataLoader, Tuning
from dali_feed.errors import ConfigError, TransformError

TRANSFORM = v2.Compose([v2.ToImage(), v2.Resize((12, 10)), v2.ToDtype(torch.float32, scale=True)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of five images, JPEG and PNG, of several sizes."""
    folder = tmp_path_factory.mktemp("folder")
    for n in range(15):
        path = folder / f"class {n % 3}" / f"{n:02d}.{'png' if n % 4 == 3 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(n, 20 + n, 30) if n % 4 == 3 else jpeg(n, 20 + n, 30))
    return folder


def tensors(root: Path, **options: Any) -> ImageFolder:
    """An ImageFolder that torch's loader can batch, decoded as tensors, so that pixels can be compared bit for bit."""
    return ImageFolder(str(root), TRANSFORM, **options)


class Decoded(ImageFolder):  # type: ignore[misc]
    """The same with torchvision's own decoder in PIL's place, for torch's loader alone."""

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        image = decode_image(path, mode="RGB")
        return self.transform(image), target if self.target_transform is None else self.target_transform(target)


def batches(loader: Any) -> list[tuple[torch.Tensor, list[int]]]:
    """All of an epoch."""
    return [(images, labels.tolist()) for images, labels in loader]


def same(ours: Any, torchs: Any) -> None:
    """Equal labels, order and pixels, to the bit."""
    mine, theirs = batches(ours), batches(torchs)
    assert [labels for _, labels in mine] == [labels for _, labels in theirs]
    for (a, _), (b, _) in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_folder_gives_what_torchs_loader_gives(root: Path, *, drop_last: bool) -> None:
    """The same call on both: the same batches, labels and, with tensor transforms on the CPU, every pixel."""
    theirs: Any = TorchLoader(Decoded(str(root), TRANSFORM), batch_size=4, drop_last=drop_last)
    with DataLoader(tensors(root), batch_size=4, drop_last=drop_last, device="cpu", tuning=QUICK) as ours:
        assert len(ours) == len(theirs)
        assert isinstance(running(ours), Feed)
        same(ours, theirs)


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_parts_and_joins_of_folders(root: Path) -> None:
    """Subset, random_split and ConcatDataset of them, nested, with a target_transform."""
    ours = tensors(root, target_transform=lambda label: 10 + label)
    theirs = Decoded(str(root), TRANSFORM, target_transform=lambda label: 10 + label)

    def cut(whole: Any) -> list[Any]:
        parts = random_split(whole, [0.4, 0.6], torch.Generator().manual_seed(3))
        return [Subset(whole, [14, 0, -1]), *parts, ConcatDataset([Subset(parts[0], [1, 0]), whole])]

    for one, other in zip(cut(ours), cut(theirs), strict=True):
        with DataLoader(one, batch_size=3, device="cpu", tuning=QUICK) as loader:
            assert isinstance(running(loader), Feed)
            same(loader, TorchLoader(other, batch_size=3))


def test_lists_of_paths(root: Path) -> None:
    """Paths alone give images, pairs of path and label both."""
    paths = sorted(root.glob("*/*.jpg"))
    with DataLoader(paths, 4, device="cpu", transform=TRANSFORM, tuning=QUICK) as loader:
        assert sum(len(images) for images in loader) == len(paths)
    with DataLoader([(str(p), n) for n, p in enumerate(paths)], 4, device="cpu", transform=TRANSFORM) as loader:
        assert [n for _, labels in batches(loader) for n in labels] == list(range(len(paths)))


@pytest.mark.parametrize("empty", [[], ()])
def test_an_empty_list_is_an_error(empty: Any) -> None:
    """A pattern that found nothing is no epoch of no batches: the error says what was found."""
    with pytest.raises(
        ConfigError, match=r"^dataset: a list must hold paths .*; found (\[\]|\(\))\. Check what made it$"
    ):
        DataLoader(empty, 4, device="cpu")


@pytest.mark.parametrize(
    ("transform", "cure"),
    [
        (v2.RandomResizedCrop, r"RandomResizedCrop is a class, not a transform; write RandomResizedCrop\(\), with"),
        (v2.Compose([v2.Resize(8), v2.ToTensor]), r"ToTensor is a class, not a transform; write ToTensor\(\), with"),
        (
            ResNet18_Weights.DEFAULT.transforms,
            r"ImageClassification must be called to make a transform; write .*\(\), with",
        ),
    ],
    ids=["class", "class in a Compose", "weights"],
)
def test_a_folder_with_a_transform_that_is_not_made_yet(root: Path, transform: Any, cure: str) -> None:
    """Torch's loader would fail on it in its own words, so it is our error, with the missing parentheses."""
    with pytest.raises(TransformError, match=rf"^transform: .*{cure} parentheses"):
        DataLoader(ImageFolder(str(root), transform), 4, device="cpu")


class Boxed:
    """Holds an image: a class that is called with one, as a function is."""

    def __init__(self, image: Any) -> None:
        self.image = image


@pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")
def test_a_class_that_takes_an_image_is_a_function(root: Path) -> None:
    """Its objects are not called, so torch's loader runs it, as it always did."""
    with DataLoader(ImageFolder(str(root), Boxed), 4, device="cpu", collate_fn=list) as loader:
        assert isinstance(next(iter(loader))[0][0], Boxed)


def test_a_sentence_says_why_torch_runs_it(root: Path) -> None:
    """Of a transform that only torch can run: who cannot read it, why, and what to use."""

    class Odd:
        def __call__(self, image: Any) -> Any:
            return torch.zeros(3)

    told = (
        r"^dataset: torchvision\S*\.ImageFolder cannot be read by our engines, because its transform is not supported"
    )
    with pytest.warns(UserWarning, match=rf"{told} \(\S.*\); torch's own DataLoader runs it, in our order\. For speed"):
        DataLoader(ImageFolder(str(root), v2.RandomApply([Odd()])), 4, device="cpu").close()


def test_two_transforms_are_one_too_many(root: Path) -> None:
    """The dataset's or the loader's."""
    with pytest.raises(ConfigError, match="^transform: the dataset has one already"):
        DataLoader(tensors(root), transform=TRANSFORM, device="cpu")


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_torchs_samplers_give_the_order(root: Path) -> None:
    """BatchSampler, WeightedRandomSampler with a generator, and DistributedSampler of two ranks, epoch by epoch."""
    ours, theirs = tensors(root), Decoded(str(root), TRANSFORM)
    made: list[Callable[[Any], dict[str, Any]]] = [
        lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 4, drop_last=True)},
        lambda data: {
            "sampler": WeightedRandomSampler([1.0] * len(data), 9, generator=torch.Generator().manual_seed(1)),
            "batch_size": 2,
        },
        *(
            lambda data, rank=rank: {"sampler": DistributedSampler(data, 2, rank, seed=5), "batch_size": 3}
            for rank in range(2)
        ),
    ]
    for make in made:
        with DataLoader(ours, device="cpu", tuning=QUICK, **make(ours)) as loader:
            other: Any = TorchLoader(theirs, **make(theirs))
            for epoch in range(2):
                if isinstance(other.sampler, DistributedSampler):
                    other.sampler.set_epoch(epoch)
                same(loader, other)


def test_a_generator_is_the_seed(root: Path) -> None:
    """Equal generators give equal shuffles, another one another; and torch's own seed says so once."""

    def order(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        with DataLoader(tensors(root), 4, True, generator=generator, device="cpu", tuning=QUICK, info=True) as loader:
            return [info.ids.tolist() for _, _, info in loader]

    assert order(1) == order(1) != order(2)


def test_collate_fn_gets_the_samples(root: Path) -> None:
    """A list of (image, int) as torch gives it: MixUp in collate works; default_collate changes nothing."""
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append(samples)
        return v2.CutMix(num_classes=3)(*default_collate(samples))

    with (
        DataLoader(tensors(root), 5, device="cpu", collate_fn=collate, tuning=QUICK) as mixed,
        DataLoader(tensors(root), 5, device="cpu", collate_fn=default_collate, tuning=QUICK) as plain,
    ):
        for (images, labels), (whole, ints) in zip(mixed, plain, strict=True):
            assert images.shape == whole.shape
            assert labels.shape == (5, 3)
            assert torch.equal(torch.stack([image for image, _ in seen[-1]]), whole)
            assert [label for _, label in seen[-1]] == ints.tolist()
            assert type(seen[-1][0][1]) is int


def test_a_folder_resumes_in_the_middle(root: Path) -> None:
    """With torchvision's own random transforms, which draw from our seed, bit for bit."""
    transform = v2.Compose([v2.RandomResizedCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7, "device": "cpu", "tuning": QUICK}
    with DataLoader(ImageFolder(str(root), transform), **options) as one:
        run = iter(one)
        next(run)
        state = one.state_dict()
        rest = [(images, labels.tolist()) for images, labels in run]
    with DataLoader(ImageFolder(str(root), transform), **options) as two:
        two.load_state_dict(state)
        for (a, x), (b, y) in zip(rest, batches(two), strict=True):
            assert x == y
            assert torch.equal(a, b)


def test_labels_are_int64_numbers(root: Path) -> None:
    """As torch's collate makes them."""
    with DataLoader(tensors(root), 4, device="cpu", tuning=QUICK) as loader:
        assert next(iter(loader))[1].dtype == torch.int64
    assert np.asarray(ImageFolder(str(root)).targets).max() == 2


def test_a_folder_with_numbers_of_its_own(root: Path) -> None:
    """Labels outside the classes are what they are."""
    folder = tensors(root)
    folder.samples = [(path, 5 * target) for path, target in folder.samples]
    with DataLoader(folder, 15, device="cpu", tuning=QUICK) as loader:
        assert set(next(iter(loader))[1].tolist()) == {0, 5, 10}


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")
@pytest.mark.parametrize("native", [True, False])
def test_any_ranks_state_serves_all_with_a_distributed_sampler(root: Path, *, native: bool) -> None:
    """What rank 0 saved goes on on rank 1, in rank 1's order; explicit ranks beside it are refused."""
    data = tensors(root) if native else Decoded(str(root), TRANSFORM)

    def made(number: int, **options: Any) -> DataLoader:
        sampler: Any = DistributedSampler(data, 2, number, seed=5)
        return DataLoader(data, 2, sampler=sampler, device="cpu", tuning=QUICK if native else Tuning(), **options)

    with made(0) as zero, made(1) as one, made(1) as other:
        next(iter(zero))
        whole = batches(one)
        other.load_state_dict(zero.state_dict())
        for (a, x), (b, y) in zip(batches(other), whole[1:], strict=True):
            assert x == y
            assert torch.equal(a, b)
    with pytest.raises(ConfigError, match="already divides the samples among ranks"):
        made(0, rank=0, world_size=2)


def test_the_epoch_that_the_user_told_the_sampler(root: Path) -> None:
    """`sampler.set_epoch(30)` before the loop, as torch wants it, is the loader's epoch from there on."""
    data = tensors(root)
    sampler: Any = DistributedSampler(data, 2, 0)
    theirs: Any = DistributedSampler(data, 2, 0)
    with DataLoader(data, 3, sampler=sampler, device="cpu", tuning=QUICK) as loader:
        for epoch in (30, 31):
            sampler.set_epoch(epoch)
            theirs.set_epoch(epoch)
            given = [label for _, labels in batches(loader) for label in labels]
            assert given == [data.targets[i] for i in theirs]
        assert loader.epoch == 32


def test_random_samplers_over_ranks_are_warned_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank would draw an order of its own; tensors as indices are fine."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    data = tensors(root)
    with pytest.warns(UserWarning, match="^RandomSampler over 2 ranks .*samples overlap"):
        DataLoader(data, sampler=RandomSampler(data), rank=0, world_size=2, device="cpu")
    chosen: Any = torch.arange(6)
    with DataLoader(data, 4, sampler=SubsetRandomSampler(chosen), device="cpu", tuning=QUICK) as loader:
        assert sum(len(labels) for _, labels in loader) == 6
