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
from kit.refused import refusals
from PIL import Image as Pillow
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Tuning
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


def transformed(by: Any) -> Any:
    """Makes a loader of the folder with this transform."""
    return lambda root: DataLoader(ImageFolder(str(root), by), 4, device="cpu")


EMPTY = r"^dataset: a list must hold paths .*; found (\[\]|\(\))\. Check what made it$"
IS_A_CLASS = r"^transform: .*{0} is a class, not a transform; write {0}\(\), with parentheses"
TO_BE_CALLED = r"^transform: .*ImageClassification must be called to make a transform; write .*\(\), with parentheses"


@refusals(
    ConfigError,
    (lambda _: DataLoader([], 4, device="cpu"), EMPTY),
    (lambda _: DataLoader((), 4, device="cpu"), EMPTY),
    (lambda root: DataLoader(tensors(root), transform=TRANSFORM), "^transform: the dataset has one already"),
    (transformed(v2.RandomResizedCrop), IS_A_CLASS.format("RandomResizedCrop"), TransformError),
    (transformed(v2.Compose([v2.Resize(8), v2.ToTensor])), IS_A_CLASS.format("ToTensor"), TransformError),
    (transformed(ResNet18_Weights.DEFAULT.transforms), TO_BE_CALLED, TransformError),
)
def test_what_is_no_dataset_of_ours_is_refused(root: Path, call: Any, error: Any, said: str) -> None:
    """A pattern that found nothing is no epoch of no batches; two transforms are one too many."""
    with pytest.raises(error, match=said):
        call(root)


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


STEPS = (v2.ToImage(), v2.Resize((12, 10)))


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    """Six images of two classes."""
    for n in range(6):
        path = tmp_path / f"class {n % 2}" / f"{n}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(n, 20, 24))
    return ImageFolder(str(tmp_path), v2.Compose(list(STEPS)))


def larger(data: Any) -> None:
    """Another transform."""
    data.transform = v2.Compose([v2.ToImage(), v2.Resize((24, 20))])


def fewer(data: Any) -> None:
    """A list of samples that was cut in place."""
    del data.samples[3:]


def others(data: Any) -> None:
    """Other samples, as many."""
    data.samples = data.samples[::-1]


def numbered(data: Any) -> None:
    """Labels of another kind."""
    data.target_transform = lambda label: label + 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (larger, "transform"),
        (fewer, "number of (samples|imgs)"),
        (others, "samples"),
        (numbered, "target_transform"),
    ],
)
@pytest.mark.parametrize("whole", [lambda d: d, lambda d: Subset(d, range(4)), lambda d: ConcatDataset([d, d])])
def test_a_change_behind_the_loader_is_an_error(
    folder: ImageFolder, change: Callable[[Any], None], name: str, whole: Callable[[Any], Any]
) -> None:
    """At the next pass, by the attribute's name; a loader that is made then has it."""
    data = whole(folder)
    with DataLoader(data, 2, device="cpu", tuning=QUICK) as loader:
        list(loader)
        change(folder)
        with pytest.raises(ConfigError, match=rf"^dataset: the {name} of ImageFolder was changed .* make a new"):
            iter(loader)
    if change is not fewer:  # of a Subset that leaves indices without a sample
        list(DataLoader(data, 2, device="cpu", tuning=QUICK))


def test_what_says_the_same_is_no_change(folder: ImageFolder) -> None:
    """A copy of the same samples, and attributes that we do not read."""
    with DataLoader(folder, 2, device="cpu", tuning=QUICK) as loader:
        list(loader)
        folder.samples = list(folder.samples)
        folder.note = "mine"
        assert len(list(loader)) == 3


class Deep(Dataset[Any]):
    """Grey images of more than 8 bits, one of each of some modes of Pillow."""

    def __init__(self, *modes: str) -> None:
        self.modes = modes

    def __len__(self) -> int:
        return len(self.modes)

    def __getitem__(self, at: int) -> Any:
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[self.modes[at]]
        return Pillow.fromarray(np.linspace(0, 65_535, 16).reshape(4, 4).astype(dtype)), at


def test_images_of_16_bits_are_scaled_as_those_of_files_are(tmp_path: Path) -> None:
    """And not cut off, as Pillow does; of which numbers are white in one of 32 bits, nobody knows."""
    Deep("I;16")[0][0].save(tmp_path / "deep.png")
    with DataLoader([str(tmp_path / "deep.png")], device="cpu") as files:
        (expected,) = files
    with DataLoader(Deep("I;16"), transform=v2.ToImage(), device="cpu") as ours:
        ((found, _),) = ours
    assert torch.equal(found, expected)
    assert len(found.unique()) == 16
    bad = BadRecords(limit=None)
    with DataLoader(Deep("I;16", "I", "F"), 3, transform=v2.ToImage(), bad=bad, info=True, device="cpu") as ours:
        ((_, _, info),) = ours
    assert info.ok.tolist() == [True, False, False]
