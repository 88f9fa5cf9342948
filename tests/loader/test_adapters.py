"""What becomes of datasets: files, where the samples are certain to be torch's; else torch's loader, and why."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, pixels
from kit.inside import running
from kit.later import Later
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, default_collate
from torch.utils.data import DataLoader as TorchLoader
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import FallbackWarning
from dali_feed.feed import Feed
from dali_feed.loader.adapters import Lowered, lower_dataset

timm, matlab = Later("timm.data"), Later("scipy.io")
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
    matlab.savemat(base / "imagelabels.mat", {"labels": np.arange(COUNT) % 3 + 1})
    matlab.savemat(base / "setid.mat", {"trnid": np.arange(COUNT) + 1, "valid": [1, 2], "tstid": [1, 2]})


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
    matlab.savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": table})
    classes = np.array(["Acura", "BMW", "Fiat"], dtype=object)
    matlab.savemat(base / "devkit" / "cars_meta.mat", {"class_names": classes})


def textures(root: Path) -> None:
    """A text of paths, beside class folders."""
    folders("dtd", "dtd", "images", classes=("zigzag", "banded"))(root)
    names = [f"{['zigzag', 'banded'][n % 2]}/{n}.jpg" for n in range(COUNT)]
    text(root / "dtd" / "dtd" / "labels" / "train1.txt", names)


def folders(
    *parts: str, classes: tuple[str, str] = ("AnnualCrop", "River"), name: str = "{}.jpg", listed: str = ""
) -> Callable[[Path], None]:
    """Class folders, below `parts`; a text of the classes, if it is `listed`."""

    def make(root: Path) -> None:
        for n in range(COUNT):
            put(root.joinpath(*parts, classes[n % 2], name.format(n)), n)
        if listed:
            text(root / listed, [f"/a/{each}" for each in classes])

    return make


MADE: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "Flowers102": (flowers, {}),
    "Food101": (food, {}),
    "FGVCAircraft": (aircraft, {}),
    "StanfordCars": (cars, {}),
    "DTD": (textures, {}),
    "EuroSAT": (folders("eurosat", "2750"), {}),
    "Country211": (folders("country211", "train"), {}),
    "SUN397": (
        folders("SUN397", "a", classes=("abbey", "alley"), name="sun_{}.jpg", listed="SUN397/ClassName.txt"),
        {},
    ),
    "RenderedSST2": (folders("rendered-sst2", "train", classes=("negative", "positive"), name="{}.png"), {}),
    "Imagenette": (
        folders("imagenette2-160", "train", classes=("n01440764", "n02102040"), name="{}.JPEG"),
        {"size": "160px"},
    ),
}


def same(dataset: Any, *, level: float = 1e-6) -> None:
    """Both loaders' batches over it."""
    theirs = TorchLoader(dataset, 3)
    with DataLoader(dataset, 3, device="cpu", tuning=QUICK) as ours:
        assert isinstance(running(ours), Feed)
        assert len(ours) == len(theirs)
        for (a, la), (b, lb) in zip(ours, theirs, strict=True):
            assert la.tolist() == lb.tolist()
            assert (a - b).abs().max() <= level


@pytest.mark.parametrize("name", MADE)
def test_each_gives_what_torchs_loader_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, labels and order, with a target_transform, and in a Subset and a ConcatDataset; with their classes."""
    make, options = MADE[name]
    make(tmp_path)
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda _: True)  # of checksums that ours cannot have
    options = {"transform": TRANSFORM, "target_transform": lambda label: 10 * int(label)} | options
    dataset = getattr(datasets, name)(str(tmp_path), **options)
    same(dataset)
    same(ConcatDataset([Subset(dataset, [4, 0, -1]), dataset]))
    if name == "DTD":
        found: Any = lower_dataset(datasets.DTD(str(tmp_path)))
        assert found.source.classes == ("banded", "zigzag")


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


@OPEN
def test_timms_folder(tmp_path: Path) -> None:
    """ImageDataset, by itself and by create_dataset: timm's order, labels and leaf folders."""
    folders("x")(tmp_path)
    put(tmp_path / "x" / "River" / "10.jpg", 10)
    put(tmp_path / "x" / "deep" / "Forest" / "2.png", 12)
    for dataset in (timm.ImageDataset(str(tmp_path)), timm.create_dataset("", str(tmp_path / "x"))):
        dataset.transform = TRANSFORM
        same(dataset)
    found: Any = lower_dataset(timm.ImageDataset(str(tmp_path)))
    assert found.source.classes == ("AnnualCrop", "Forest", "River")


def changed(dataset: Any, **fields: Any) -> Any:
    """The dataset with other attributes, or, where they are None, without them."""
    vars(dataset).update(fields)
    for name in [name for name, value in fields.items() if value is None]:
        delattr(dataset, name)
    return dataset


class Own(ImageFolder):  # type: ignore[misc]
    """Gives its samples in a way of its own."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index


class Cropped(datasets.Food101):  # type: ignore[misc]
    """Too."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def crop(fill: int) -> Any:
    """Prints alike, whatever it fills with."""
    return v1.Compose([v1.RandomCrop(40, padding=9, fill=fill), v1.ToTensor()])


def flatten(image: torch.Tensor) -> torch.Tensor:
    """A function of the user's."""
    return image.flatten()


def behind(root: str, function: Any) -> ImageFolder:
    """A folder whose transform ends in it."""
    return ImageFolder(root, v2.Compose([v1.ToTensor(), function]))


def food_of(root: str) -> Any:
    """A Food101 below a folder."""
    food(Path(root, "food"))
    return datasets.Food101(str(Path(root, "food")))


TIMM = "its samples are not RGB images with a label"
REASONS: dict[str, tuple[Callable[[str], Any], str]] = {  # a dataset of that folder, and why it is torch's
    "__getitem__": (Own, "Own has a __getitem__ of its own"),
    "of a part": (lambda root: Subset(Own(root), [0]), "Own has a __getitem__ of its own"),
    "of torchvision's": (lambda root: Cropped(food_of(root).root), "Cropped has a __getitem__ of its own"),
    "range": (lambda _: range(3), "builtins.range has a __getitem__ of its own"),
    "loader": (lambda root: ImageFolder(root, loader=str), "its loader='str' is not torchvision's own"),
    "another's": (lambda root: changed(food_of(root), loader=str), "its loader='str' is not torchvision's own"),
    "labels": (lambda root: ImageFolder(root, target_transform=str), "its target_transform gives '0' for class 0"),
    "one of two": (lambda root: ConcatDataset([ImageFolder(root), ImageFolder(root, TRANSFORM)]), "different trans"),
    "fills": (lambda root: ConcatDataset([ImageFolder(root, crop(0)), ImageFolder(root, crop(9))]), "different trans"),
    "functions": (lambda root: ConcatDataset([behind(root, flatten), behind(root, abs)]), "different trans"),
    "cut": (lambda root: changed(food_of(root), _labels=[1]), "it does not have as many files and labels as samples"),
    "no files": (lambda root: changed(food_of(root), _image_files=None), "its files are not where torchvision keeps"),
    "numbers": (lambda _: [1, 2], "a list must hold paths"),
    "texts": (lambda _: ["hello world", "another"], ""),
    "pairs": (lambda _: [("hello world", 1)], ""),
    "lists": (lambda root: [(str(next(Path(root).glob("*/*.jpg"))), [1])], ""),
    "nothing": (lambda root: Subset(ImageFolder(root), []), ""),
    "outside": (lambda root: Subset(ImageFolder(root), [99]), ""),
    "between": (lambda root: Subset(ImageFolder(root), [1.7]), ""),  # type: ignore[list-item]
    "bytes": (lambda root: changed(timm.ImageDataset(root), load_bytes=True), TIMM),
    "grey": (lambda root: changed(timm.ImageDataset(root), input_img_mode="L"), TIMM),
    "reader": (lambda root: changed(timm.ImageDataset(root), reader=[(b"", 0)]), "its reader list is not a folder's"),
}


@OPEN
@pytest.mark.parametrize("case", REASONS)
def test_what_is_not_certain_to_be_the_same_goes_to_torch(case: str, tmp_path: Path) -> None:
    """With its reason in a warning, which is an error here."""
    make, why = REASONS[case]
    folders("x")(tmp_path)
    with pytest.raises(FallbackWarning, match=f"^dataset: .* because .*{why}"):
        DataLoader(make(str(tmp_path / "x")), device="cpu").close()


def test_what_is_as_good_as_a_folder_is_taken(tmp_path: Path) -> None:
    """A DatasetFolder with torchvision's own loader; joined folders whose transforms do the same."""
    folders("x")(tmp_path)
    root = str(tmp_path / "x")
    assert repr(crop(0)) == repr(crop(9))
    taken: list[Any] = [
        datasets.DatasetFolder(root, pil_loader, extensions=(".jpg",)),
        ConcatDataset([ImageFolder(root, crop(0)), ImageFolder(root, crop(0))]),
        ConcatDataset([behind(root, flatten), behind(root, flatten)]),
    ]
    for dataset in taken:
        assert isinstance(lower_dataset(dataset), Lowered)


def fast_collate(samples: list[Any]) -> Any:
    """As apex's: of PIL images, whose size is a pair, in whole levels."""
    images, targets = [image for image, _ in samples], torch.tensor([target for _, target in samples])
    width, height = images[0].size[0], images[0].size[1]
    batch = torch.zeros((len(images), 3, height, width), dtype=torch.uint8)
    for n, image in enumerate(images):
        batch[n] += torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    return batch, targets


@pytest.mark.parametrize("crop", [v2.CenterCrop(16), v1.Compose([v1.CenterCrop(16), v1.RandomHorizontalFlip(0.0)])])
def test_a_collate_fn_that_wants_pil_images_is_given_them(crop: Any, tmp_path: Path) -> None:
    """By torch's own loader, with the reason in its warning; with a transform that makes tensors by ours."""
    folders("x")(tmp_path)
    data = ImageFolder(str(tmp_path / "x"), crop)
    why = "ImageFolder .*, because its transform gives PIL images, and its collate_fn takes them; torch's own"
    with pytest.warns(FallbackWarning, match=why):
        loader = DataLoader(data, 4, device="cpu", collate_fn=fast_collate)
    with loader:
        for (a, x), (b, y) in zip(loader, TorchLoader(data, 4, collate_fn=fast_collate), strict=True):
            assert torch.equal(a, b)
            assert torch.equal(x, y)
    for other in (data, ImageFolder(str(tmp_path / "x"), TRANSFORM)):
        with DataLoader(other, 4, device="cpu", collate_fn=default_collate) as ours:
            assert isinstance(running(ours), Feed)
