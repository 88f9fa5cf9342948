"""torchvision's and timm's datasets of files with a label are read as files: the samples that torch's loader gives."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from kit.images import QUICK, pixels
from PIL import Image
from timm.data import ImageDataset, create_dataset
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader
from torchvision import datasets
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import FallbackWarning
from dali_feed.loader.adapters import Lowered, lower_dataset

COUNT = 7
OPEN = pytest.mark.filterwarnings("ignore:unclosed file", "ignore:Exception ignored in")  # timm's reader leaves them so
TRANSFORM = v2.Compose([v2.ToImage(), v2.CenterCrop(14), v2.ToDtype(torch.float32, scale=True)])


def put(path: Path, n: int, mode: str = "RGB") -> str:
    """Picture n there, in the format of the name, without loss where the format can."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(n, 16 + n, 20)).convert(mode).save(path, quality=95)
    return path.name


def text(path: Path, lines: list[str]) -> None:
    """A file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def flowers(root: Path) -> None:
    """Labels in two files of MATLAB's."""
    base = root / "flowers-102"
    for n in range(COUNT):
        put(base / "jpg" / f"image_{n + 1:05d}.jpg", n)
    scipy.io.savemat(base / "imagelabels.mat", {"labels": np.arange(COUNT) % 3 + 1})
    scipy.io.savemat(base / "setid.mat", {"trnid": np.arange(COUNT) + 1, "valid": [1, 2], "tstid": [1, 2]})


def food(root: Path) -> None:
    """A JSON of names by class."""
    base, names = root / "food-101", {c: [f"{c}/{n}" for n in range(3)] for c in ("waffles", "apple_pie")}
    for n, name in enumerate(each for c in names.values() for each in c):
        put(base / "images" / f"{name}.jpg", n)
    (base / "meta").mkdir()
    (base / "meta" / "train.json").write_text(json.dumps(names))


def aircraft(root: Path) -> None:
    """A text of names and classes."""
    base = root / "fgvc-aircraft-2013b" / "data"
    for n in range(COUNT):
        put(base / "images" / f"{n:07d}.jpg", n)
    text(base / "variants.txt", ["707-320", "A 300"])
    text(base / "images_variant_trainval.txt", [f"{n:07d} {['707-320', 'A 300'][n % 2]}" for n in range(COUNT)])


def cars(root: Path) -> None:
    """Annotations of MATLAB's."""
    base = root / "stanford_cars"
    names = [put(base / "cars_train" / f"{n:05d}.jpg", n) for n in range(COUNT)]
    kind = [("fname", object), ("class", np.uint8)]
    table = np.array([(name, 1 + n % 3) for n, name in enumerate(names)], dtype=kind)
    (base / "devkit").mkdir()
    scipy.io.savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": table})
    classes = np.array(["Acura", "BMW", "Fiat"], dtype=object)
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": classes})


def textures(root: Path) -> None:
    """A text of paths."""
    base, names = root / "dtd" / "dtd", [f"{['zigzag', 'banded'][n % 2]}/{n}.jpg" for n in range(COUNT)]
    for n, name in enumerate(names):
        put(base / "images" / name, n)
    text(base / "labels" / "train1.txt", names)


def folders(*parts: str, end: str = "jpg") -> Callable[[Path], None]:
    """Class folders, below `parts`."""

    def make(root: Path) -> None:
        for n in range(COUNT):
            put(root.joinpath(*parts, ["AnnualCrop", "River"][n % 2], f"{n}.{end}"), n)

    return make


def sun(root: Path) -> None:
    """Folders by letter, and a text of classes."""
    for n in range(COUNT):
        put(root / "SUN397" / "a" / ["abbey", "alley"][n % 2] / f"sun_{n}.jpg", n)
    text(root / "SUN397" / "ClassName.txt", ["/a/abbey", "/a/alley"])


def reviews(root: Path) -> None:
    """Rendered texts."""
    for n in range(COUNT):
        put(root / "rendered-sst2" / "train" / ["negative", "positive"][n % 2] / f"{n}.png", n)


def imagenette(root: Path) -> None:
    """Folders by WordNet's numbers."""
    for n in range(COUNT):
        put(root / "imagenette2-160" / "train" / ["n01440764", "n02102040"][n % 2] / f"{n}.JPEG", n)


MADE: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "Flowers102": (flowers, {}),
    "Food101": (food, {}),
    "FGVCAircraft": (aircraft, {}),
    "StanfordCars": (cars, {}),
    "DTD": (textures, {}),
    "EuroSAT": (folders("eurosat", "2750"), {}),
    "Country211": (folders("country211", "train"), {}),
    "SUN397": (sun, {}),
    "RenderedSST2": (reviews, {}),
    "Imagenette": (imagenette, {"size": "160px"}),
}


def torchvisions(name: str, root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """A dataset of that class, of files made here."""
    make, more = MADE[name]
    make(root)
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda _: True)  # of checksums that ours cannot have
    return getattr(datasets, name)(str(root), **more, **options)


def same(dataset: Any, *, level: float = 1e-6) -> None:
    """Both loaders' batches over it."""
    theirs = TorchLoader(dataset, 3)
    with DataLoader(dataset, 3, device="cpu", tuning=QUICK) as ours:
        assert len(ours) == len(theirs)
        for (a, la), (b, lb) in zip(ours, theirs, strict=True):
            assert la.tolist() == lb.tolist()
            assert (a - b).abs().max() <= level


@pytest.mark.parametrize("name", MADE)
def test_each_gives_what_torchs_loader_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, labels and order, with a target_transform, and in a Subset and a ConcatDataset."""
    options = {"transform": TRANSFORM, "target_transform": lambda label: 10 * int(label)}
    dataset = torchvisions(name, tmp_path, monkeypatch, **options)
    same(dataset)
    same(ConcatDataset([Subset(dataset, [4, 0, -1]), dataset]))


def test_classes_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names, where the dataset says them."""
    found = lower_dataset(torchvisions("DTD", tmp_path, monkeypatch))
    assert isinstance(found, Lowered)
    assert found.source.classes == ("banded", "zigzag")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["Training", "Final_Test"])
def test_files_that_we_cannot_read_go_to_torch(kind: str, tmp_path: Path) -> None:
    """GTSRB is of PPM: it is taken where that is read, and has a reason where it is not, never a bad record each."""
    base, test = tmp_path / "gtsrb" / "GTSRB", kind == "Final_Test"
    for n in range(COUNT):
        put(base / kind / ("Images" if test else f"{n % 2:05d}") / f"{n}.ppm", n)
    with (tmp_path / "gtsrb" / "GT-final_test.csv").open("w", newline="") as out:
        table = csv.writer(out, delimiter=";")
        table.writerows([("Filename", "ClassId"), *((f"{n}.ppm", n % 2) for n in range(COUNT))])
    dataset = datasets.GTSRB(str(tmp_path), "test" if test else "train", transform=TRANSFORM)
    found = lower_dataset(dataset)
    if isinstance(found, Lowered):
        same(dataset)
    else:
        assert found.startswith("has files that we cannot read, such as ")
        assert ".ppm" in found


class Cropped(datasets.Food101):  # type: ignore[misc]
    """Gives its samples in a way of its own."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def test_what_is_not_certain_to_be_the_same_goes_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another loader, a subclass, fields that were changed: each with its reason."""
    plain = torchvisions("Food101", tmp_path / "food", monkeypatch)
    plain.loader = lambda path: path
    assert "its loader='<lambda>' is not torchvision's own" in str(lower_dataset(plain))
    assert "Cropped has a __getitem__ of its own" in str(lower_dataset(Cropped(str(tmp_path / "food"))))
    short = datasets.Food101(str(tmp_path / "food"))
    short._labels = short._labels[:3]
    assert "it does not have as many files and labels as samples" in str(lower_dataset(short))
    moved = datasets.Food101(str(tmp_path / "food"))
    del moved._image_files
    with pytest.raises(FallbackWarning, match="its files are not where torchvision keeps them"):
        DataLoader(moved, device="cpu")


@OPEN
def test_timms_folder(tmp_path: Path) -> None:
    """ImageDataset, by itself and by create_dataset: timm's order, labels and leaf folders."""
    folders("x")(tmp_path)
    put(tmp_path / "x" / "River" / "10.jpg", 10)
    put(tmp_path / "x" / "deep" / "Forest" / "2.png", 12)
    for dataset in (ImageDataset(str(tmp_path)), create_dataset("", str(tmp_path / "x"))):
        dataset.transform = TRANSFORM
        same(dataset)
    found = lower_dataset(ImageDataset(str(tmp_path)))
    assert isinstance(found, Lowered)
    assert found.source.classes == ("AnnualCrop", "Forest", "River")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"load_bytes": True}, "its samples are not RGB images with a label"),
        ({"input_img_mode": "L"}, "its samples are not RGB images with a label"),
        ({"reader": [(b"", 0)]}, "its reader list is not a folder's"),
    ],
)
def test_another_dataset_of_timms_goes_to_torch(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    """With its reason."""
    folders("x")(tmp_path)
    dataset = ImageDataset(str(tmp_path))
    vars(dataset).update(change)
    assert told in str(lower_dataset(dataset))
