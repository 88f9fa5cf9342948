"""Lambda and functions of the user's own at the end of a Compose: run on each finished image, behind either engine."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg, labelled, png
from kit.inside import Feed
from PIL import ImageFilter
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.errors import TransformError
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")
ON_HOST = pytest.mark.parametrize("each_engine", ["host"], indirect=True)  # DALI has no such operators

SOURCE = ScriptedSource(labelled(10), extent=4)
BOTH = pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])


def loader(*own: Any, before: tuple[Any, ...] = (v1.ToTensor(),), **options: Any) -> DataLoader:
    """Ten pictures of 16x16, behind `before` and the user's own."""
    chosen: dict[str, Any] = {"device": "cpu", "tuning": QUICK, "transform": v2.Compose([*before, *own])} | options
    return DataLoader(SOURCE, 4, **chosen)


def images(found: DataLoader) -> list[Any]:
    """Those of an epoch, batch by batch."""
    with found:
        return [batch for batch, _ in found]


def flatten(image: torch.Tensor) -> torch.Tensor:
    """One image as a vector: of a whole batch it would be another thing."""
    assert image.shape == (3, 16, 16)
    return image.flatten() - image.mean()


@BOTH
def test_lambda_sees_each_image_by_itself(T: Any) -> None:
    """Each image of a batch, (3, height, width); what it gives for them is stacked."""
    whole, own = images(loader()), images(loader(T.Lambda(flatten)))
    for batch, made in zip(whole, own, strict=True):
        assert torch.equal(made, torch.stack([flatten(image) for image in batch]))


class Scale(torch.nn.Module):
    """A module of the user's."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The image times three."""
        return image * 3


@pytest.mark.parametrize("compose", [v1.Compose, lambda every: v2.Compose([v2.Compose(every[:1]), *every[1:]])])
def test_functions_and_modules_run_in_their_order(compose: Any) -> None:
    """Whatever is called with an image, one after the other, in a Compose of either kind or a nested one."""
    transform = compose([v1.ToTensor(), Scale(), v2.Lambda(lambda image: image + 1), torch.nn.ReLU(), flatten])
    for batch, made in zip(images(loader()), images(loader(transform=transform)), strict=True):
        assert torch.equal(made, torch.stack([flatten(image * 3 + 1) for image in batch]))


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_a_folder_gives_what_torchs_loader_gives(tmp_path: Path) -> None:
    """With a Lambda behind Normalize, on both: the same batches to the bit, and no fallback, which would warn."""
    for n in range(6):
        path = tmp_path / f"class {n % 2}" / f"{n}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(n, 20 + n, 30))
    resized = v2.Resize((12, 10), v2.InterpolationMode.NEAREST_EXACT)  # exact on both engines
    to = [v2.ToImage(), resized, v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*to, v2.Lambda(lambda image: image.flip(0).roll(1, -1))])
    theirs = TorchLoader(ImageFolder(str(tmp_path), transform, loader=lambda path: decode_image(path, mode="RGB")), 4)
    with DataLoader(ImageFolder(str(tmp_path), transform), 4, device="cpu", tuning=QUICK) as ours:
        for (a, la), (b, lb) in zip(ours, theirs, strict=True):
            assert (a - b).abs().max() <= 1e-7
            assert torch.equal(la, lb)


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ((v1.ToTensor(),), torch.Tensor),
        ((v2.PILToTensor(),), torch.Tensor),
        ((v2.ToImage(), v2.ToDtype(torch.float32, scale=True)), tv_tensors.Image),
        ((v2.ToImage(), v2.ToPureTensor()), torch.Tensor),
        ((v2.ToDtype(torch.float16),), torch.Tensor),
    ],
)
def test_the_class_of_an_image_is_torchvisions(before: Any, kind: type) -> None:
    """Behind ToImage a tv_tensors.Image, so that a Lambda for that type alone is run; batches are plain tensors."""
    seen: set[type] = set()
    only = v2.Lambda(lambda image: image.mul(0).add(7), tv_tensors.Image)

    def look(image: Any) -> Any:
        seen.add(type(image))
        return image

    for batch in images(loader(look, only, before=before)):
        assert type(batch) is torch.Tensor
        assert (batch == 7).all().item() is (kind is tv_tensors.Image)
    assert seen == {kind}


@pytest.mark.parametrize("kind", [tv_tensors.Mask, tv_tensors.BoundingBoxes, torch.Tensor])
def test_a_lambda_for_other_types_leaves_an_image_as_it_is(kind: type) -> None:
    """Between our steps, where the image is a PIL image, as behind them."""
    flat = v2.Lambda(lambda image: image * 0, kind)
    host = Decode(engine="host")
    whole, own = (
        images(loader(before=(v2.Resize((16, 16)), *flats, v1.ToTensor()), decode=host)) for flats in ((), (flat,))
    )
    assert all(torch.equal(a, b) for a, b in zip(whole, own, strict=True))


def test_what_is_no_tensor_is_joined_as_torch_joins_it() -> None:
    """Pairs and mappings of tensors become pairs and mappings of batches."""
    pairs = images(loader(lambda image: (image, {"mean": image.mean()})))
    for batch, (whole, more) in zip(images(loader()), pairs, strict=True):
        assert torch.equal(whole, batch)
        assert torch.equal(more["mean"], torch.stack([image.mean() for image in batch]))


def test_collate_fn_gets_what_they_made() -> None:
    """Each sample as the functions left it, of any size."""

    def collate(samples: list[Any]) -> Any:
        assert [tuple(image.shape) for image, _ in samples] == [(1 + label % 3,) for _, label in samples]
        return default_collate([label for _, label in samples])

    with loader() as plain:
        labels = [found for _, found in plain]
    counts = iter(torch.cat(labels).tolist())
    with loader(lambda image: image.flatten()[: 1 + next(counts) % 3], collate_fn=collate) as own:
        assert [found.tolist() for found in own] == [found.tolist() for found in labels]


def test_memory_format_is_kept() -> None:
    """A batch that is asked for with channels last has them last behind a Lambda too."""
    plain = images(loader(lambda image: image * 2))
    for batch, last in zip(
        plain, images(loader(lambda image: image * 2, decode=Decode(memory_format=torch.channels_last))), strict=True
    ):
        assert torch.equal(batch, last)
        assert last.is_contiguous(memory_format=torch.channels_last)


def test_info_and_labels_come_with_it() -> None:
    """All else of a batch is as without."""
    with loader(info=True) as plain, loader(flatten, info=True) as own:
        for (_, la, ia), (made, lb, ib) in zip(plain, own, strict=True):
            assert made.shape == (len(lb), 768)
            assert torch.equal(la, lb)
            assert ia.where == ib.where


def test_an_exception_tells_of_which_record() -> None:
    """It is the user's own, with a note of the function and of the record's coordinates."""
    left = iter(range(10))

    def picky(image: torch.Tensor) -> torch.Tensor:
        if next(left) == 5:
            message = "not this one"
            raise KeyError(message)
        return image

    with loader(info=True) as plain:
        where = [at for _, _, found in plain for at in found.where]
    with loader(v2.Lambda(picky)) as own, pytest.raises(KeyError, match="not this one") as error:
        list(own)
    (note,) = error.value.__notes__
    assert note.startswith("transform: Lambda(test_an_exception_tells_of_which_record.<locals>.picky) raised it on")
    assert note.endswith(f"the image of {where[5]}")


@BOTH
@pytest.mark.parametrize(
    ("before", "behind", "told"),
    [
        ((), (v2.Normalize([0.5], [0.5]),), "found no conversion to either before it. Put ToTensor"),
        ((v1.ToTensor(),), (flatten, v2.RandomErasing()), "must come last; found RandomErasing after it. Move it to"),
        ((), (), "found no conversion to either before it. Put ToTensor, or ToImage and ToDtype, there"),
        ((v2.CenterCrop(9),), (), "given RGB of (9, 9) it gave AttributeError: "),
    ],
)
def test_places_refused(T: Any, before: Any, behind: Any, told: str) -> None:
    """Before a transform of ours, or where torchvision would hand over a PIL image, it is refused by name."""
    with pytest.raises(TransformError, match=rf"^transform: Lambda\(flatten\) is run on finished .*{re.escape(told)}"):
        loader(T.Lambda(flatten), *behind, before=before)


def test_a_folder_whose_lambda_stands_elsewhere_is_torchs(tmp_path: Path) -> None:
    """It would be handed a PIL image there, as by torch's own loader, which runs it with the reason in its warning."""
    path = tmp_path / "class" / "0.jpg"
    path.parent.mkdir()
    path.write_bytes(jpeg(0))
    transform = v2.Compose([v2.Lambda(lambda image: image.rotate(180)), v1.ToTensor()])
    with pytest.warns(UserWarning, match="Lambda.* is run on finished .*found no conversion to either.*torch's own"):
        found = DataLoader(ImageFolder(str(tmp_path), transform), device="cpu")
    with found:
        assert [images.shape for images, _ in found] == [(1, 3, 16, 16)]


def normalized(image: torch.Tensor) -> torch.Tensor:
    """As torchvision does it, behind the user's function."""
    out: torch.Tensor = v2.functional.normalize(image * 2, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    return out


@BOTH
def test_what_draws_nothing_may_follow(T: Any) -> None:
    """Normalize behind a Lambda, and a resize behind it, give what torchvision gives for each image."""
    ends = (T.Lambda(lambda image: image * 2), T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), T.CenterCrop(8))
    for batch, made in zip(images(loader()), images(loader(*ends)), strict=True):
        assert torch.equal(made, torch.stack([normalized(image)[:, 4:12, 4:12] for image in batch]))


class Blurred:
    """DINO's and SimCLR's own kind: of a PIL image, at random, by a coin of its own."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        """The image, or a smooth one."""
        if random.random() >= self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(2))


@ON_HOST
def test_functions_of_pil_images_run_between_our_steps(tmp_path: Path) -> None:
    """Behind a crop, in a nest too: what torchvision makes of the images, with no fallback, which would warn."""
    for n in range(6):
        path = tmp_path / f"class {n % 2}" / f"{n}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(n, 20 + n, 30))
    crop, flip = v2.CenterCrop((18, 20)), v2.RandomHorizontalFlip(1.0)
    blur, convert = Blurred(1.0), lambda image: image.convert("RGB")
    inner = v2.RandomApply([blur], p=1.0)
    transform = v1.Compose([crop, convert, blur, Blurred(0.0), inner, flip, v1.ToTensor(), v1.Normalize([0.5], [0.5])])
    theirs = TorchLoader(ImageFolder(str(tmp_path), transform), 4)
    with DataLoader(ImageFolder(str(tmp_path), transform), 4, device="cpu", tuning=QUICK) as ours:
        for (a, la), (b, lb) in zip(ours, theirs, strict=True):
            assert (a - b).abs().max() <= 1e-6
            assert torch.equal(la, lb)


@ON_HOST
def test_a_pil_functions_draws_are_not_moved_by_the_trial() -> None:
    """It is tried when the loader is made; what it draws for that is put back."""
    random.seed(3)
    states = random.getstate(), torch.get_rng_state()
    loader(before=(v2.CenterCrop(12), Blurred(0.5), v1.ToTensor())).close()
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


@ON_HOST
def test_an_exception_of_a_pil_function_names_it() -> None:
    """Other than a bad record: the run stops with the function and what it raised, or with what it gave."""
    left = iter([None, *range(20)])  # the first is the trial

    def picky(image: Any) -> Any:
        if next(left) == 5:
            message = "not this one"
            raise KeyError(message)
        return image

    def shrinking(image: Any) -> Any:
        return image if next(left) is None else image.resize((3, 3))

    for own, told in (
        (picky, "picky raised on .*KeyError: 'not this one'"),
        (shrinking, "shrinking must give .*RGB of"),
    ):
        left = iter([None, *range(20)])
        with (
            loader(before=(v2.CenterCrop(12), own, v1.ToTensor())) as found,
            pytest.raises(TransformError, match=f"^transform: .*{told}"),
        ):
            list(found)


def test_what_is_not_the_users_is_refused_as_ever() -> None:
    """Torchvision's own random classes, graph functions in a Compose, what cannot be called, a function by itself."""
    for odd, name in [
        (v2.JPEG(50), "JPEG"),
        (lambda images, draws: (images, draws), "function"),
        ("Resize", "str"),
    ]:
        with pytest.raises(TransformError, match=f"{name} is not supported\\. .*Lambda and functions of an image"):
            loader(odd)
    with pytest.raises(TransformError, match="function is not supported"):
        loader(transform=flatten)
    with pytest.raises(TransformError, match="Lambda is not supported"):
        Feed(SOURCE, transform=v2.Compose([v1.ToTensor(), v2.Lambda(flatten)]))


def test_a_sequential_is_a_compose() -> None:
    """Torchvision's transforms in torch's Sequential are lowered, with our draws; a function may have defaults."""

    def brighter(image: torch.Tensor, by: float = 0.5) -> torch.Tensor:
        return image + by

    inner = torch.nn.Sequential(v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True), v2.RandomHorizontalFlip())
    transform = v2.Compose([inner, brighter])
    source = ScriptedSource(labelled(6))
    runs = []
    for _ in range(2):
        with DataLoader(source, 6, transform=transform, device="cpu", tuning=QUICK) as loader:
            runs.append(next(iter(loader))[0])
    assert torch.equal(*runs)
    with DataLoader(source, 6, transform=inner, device="cpu", tuning=QUICK) as loader:
        assert torch.equal(next(iter(loader))[0] + 0.5, runs[0])
