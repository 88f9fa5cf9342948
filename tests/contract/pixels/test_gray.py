"""Grayscale to one channel: a batch has one, and what stands behind it sees one, as torchvision's kernels do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.images import QUICK, labelled, pixels, png
from kit.inside import Feed
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Mixing
from dali_feed.errors import TransformError
from dali_feed.testing import ScriptedSource

SOURCE = ScriptedSource([(png(n), n) for n in range(6)], extent=3)
ENGINES = pytest.mark.parametrize("engine", ["host", "dali"])
FLOAT = v2.ToDtype(torch.float32, scale=True)


def images(*transforms: Any, engine: str = "host", **options: Any) -> torch.Tensor:
    """Those of a batch of six."""
    whole = v2.Compose(transforms)
    how: dict[str, Any] = {"device": "cpu", "decode": Decode(engine=engine), "tuning": QUICK} | options
    with DataLoader(SOURCE, 6, transform=whole, **how) as loader:
        batch: torch.Tensor = next(iter(loader))[0]
    return batch


def theirs(*transforms: Any) -> torch.Tensor:
    """What torchvision makes of them."""
    whole = v2.Compose([v2.ToImage(), *transforms])
    return torch.stack([torch.as_tensor(whole(pixels(n))) for n in range(6)])


@pytest.mark.parametrize(
    "transforms",
    [
        (v2.Grayscale(1),),
        (v2.Grayscale(), v2.Resize((9, 11)), v2.GaussianBlur(3, (1.5, 1.5)), v2.Pad(2, fill=9), v2.RandomEqualize(1.0)),
        (v2.Grayscale(1), FLOAT, v2.Normalize([0.5], [0.25]), v2.RandomHorizontalFlip(1.0)),
        (v2.Grayscale(1), v2.RandomApply([v2.RandomInvert(1.0)], 1.0), v2.CenterCrop((20, 9)), FLOAT),
    ],
)
def test_it_is_torchvisions_to_the_bit(transforms: tuple[Any, ...]) -> None:
    """On the host engine, in whole levels and floats, whatever follows; in one block of memory."""
    found = images(*transforms)
    expected = theirs(*transforms)
    assert found.shape == expected.shape == (6, 1, *expected.shape[2:])
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_the_dali_engine_has_one_channel_too() -> None:
    """Within a level."""
    ends = (v2.Grayscale(1), FLOAT, v2.Normalize([0.4], [0.2]))
    found, expected = images(*ends, engine="dali"), theirs(*ends)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1.01 / 255 / 0.2


@ENGINES
def test_v1_and_channels_last(engine: str) -> None:
    """v1's class with ToTensor is the same; channels last in memory changes nothing."""
    one = images(v1.Grayscale(), v1.ToTensor(), engine=engine)
    assert torch.equal(one, images(v2.Grayscale(1), FLOAT, engine=engine))
    assert torch.equal(
        one,
        images(v2.Grayscale(1), FLOAT, engine=engine, decode=Decode(engine=engine, memory_format=torch.channels_last)),
    )


@ENGINES
def test_a_function_behind_it_sees_one_channel(engine: str) -> None:
    """(1, height, width), or a PIL image of mode L."""
    shapes = images(v2.Grayscale(1), v1.ToTensor(), lambda image: torch.tensor(image.shape), engine=engine)
    assert shapes.tolist() == [[1, 16, 16]] * 6
    seen: set[str] = set()

    def look(image: Any) -> Any:
        seen.add(image.mode)
        return image

    images(v2.CenterCrop(8), v2.Grayscale(1), look, v1.ToTensor(), engine="host")
    assert seen == {"L"}


def test_views_have_channels_of_their_own() -> None:
    """One gray view beside one of colours."""
    views = [v2.Compose([v2.Grayscale(1), FLOAT]), FLOAT]
    with DataLoader(ScriptedSource(labelled(4)), 4, transform=views, device="cpu", tuning=QUICK) as loader:
        gray, colours = next(iter(loader))[0]
    assert (gray.shape[1], colours.shape[1]) == (1, 3)


@ENGINES
def test_it_is_mixed_as_colours_are(engine: str) -> None:
    """One channel, of two images by the same weights."""
    ends = (v2.Grayscale(1), FLOAT)
    found = images(*ends, engine=engine, collate_fn=Mixing(mixup=0.4, classes=8))
    colours = images(v2.Grayscale(3), FLOAT, engine=engine, collate_fn=Mixing(mixup=0.4, classes=8))
    assert found.shape == (6, 1, 16, 16)
    assert torch.equal(found, colours[:, :1])
    assert not torch.equal(found, images(*ends, engine=engine))


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (
            (v1.ToTensor(), v2.Normalize([0.1, 0.2, 0.3], [1.0])),
            "Normalize: must have one number, as images have one channel after Grayscale(1)",
        ),
        ((v2.Pad(1, fill=(1, 2, 3)),), "Pad: must have one number, as images have one channel after Grayscale(1)"),
        ((v2.RGB(),), "RGB: makes three channels of one; found Grayscale(1) before it"),
    ],
)
def test_three_numbers_for_one_channel_are_refused(behind: tuple[Any, ...], told: str) -> None:
    """Torchvision would make three channels of it, or fail."""
    with pytest.raises(TransformError) as error:
        images(v2.Grayscale(1), *behind)
    assert str(error.value).startswith(told)


def test_a_feed_has_three_channels() -> None:
    """Its arrays are (n, 3, height, width), so it refuses what would change that, and says so."""
    with pytest.raises(TransformError, match="^Grayscale: num_output_channels must be 3, or 1 in a DataLoader"):
        Feed(SOURCE, transform=v2.Grayscale(1))
