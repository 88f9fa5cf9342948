"""pixels: what the DALI engine gives on the CPU beside torchvision, on photographs; the random transforms replayed.

Every bound is about 1.3 times what was measured, which stands beside it.
Decoding is exact here (DALI 2.4 and torchvision 0.29 both build on libjpeg-turbo and libpng), so what is left is
resampling: torchvision rounds to whole levels after each of its two passes, DALI once at the end.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from dali_way import REGION, distance, run
from kit.photographs import decoded, encoded, files, photographs
from nvidia.dali import fn, pipeline_def, types
from PIL import Image
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from dali_feed.compiler.dali import compile_recipe
from dali_feed.compiler.program import Parameters
from dali_feed.draws.philox import uniforms
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Torchvision still decodes and says that another package will.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
FACTORS = ("brightness", "contrast", "saturation", "hue")


def images(
    transform: Any, *, region_decode: bool = True, payloads: Sequence[bytes] | None = None
) -> list[torch.Tensor]:
    """What a transform gives on the photographs, whose ids are 0, 1, 2, ..."""
    payloads = photographs() if payloads is None else payloads
    program = compile_recipe(lower(transform), region_decode=region_decode)
    return run(program, payloads, range(len(payloads)))


def parameters(transform: Any, payload: bytes, n: int) -> Parameters:
    """What photograph n draws."""
    program = compile_recipe(lower(transform), region_decode=True)
    return program.parameters(np.array([Image.open(io.BytesIO(payload)).size[::-1]]), np.array([n]), 0, 0)


def test_decoding_is_exact() -> None:
    """Photographs decode to torchvision's own pixels, subsampled or not, baseline or progressive."""
    picture = Image.open(io.BytesIO(photographs()[3]))
    more = [
        encoded(picture, quality=q, subsampling=s, progressive=p) for q in (50, 95) for s in (0, 1, 2) for p in (0, 1)
    ]
    for payloads in (photographs(), more):
        assert distance(images(None, payloads=payloads), [decoded(p) for p in payloads]) == (0, 0)


@pytest.mark.parametrize("name", list(files()))
def test_other_formats_are_exact(name: str) -> None:
    """Gray and palettes become RGB, CMYK is converted and alpha dropped just as torchvision does it."""
    payload = files()[name]
    assert distance(images(None, payloads=[payload]), [decoded(payload)]) == (0, 0)


def test_sixteen_bits_become_eight() -> None:
    """A 16-bit PNG is scaled to 8 bits, rounded; torchvision keeps 16."""
    gray = np.arange(97 * 131, dtype=np.uint16).reshape(97, 131) * 5
    (ours,) = images(None, payloads=[encoded(Image.fromarray(gray), "PNG")])
    theirs = torch.from_numpy(gray / 257.0).expand(3, 97, 131)
    assert distance([ours], [theirs])[1] <= 0.51


@pytest.mark.parametrize("kind", ["JPEG", "gray JPEG", "progressive JPEG", "4:4:4 JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_decoded_window_is_the_window_of_the_decoded(kind: str, orientation: int) -> None:
    """The decoder takes absolute int windows, odd ones inside subsampled blocks too, and turns nothing by EXIF."""
    rgb = Image.open(io.BytesIO(photographs()[2])).convert("L" if "gray" in kind else "RGB")
    exif = rgb.getexif()
    exif[0x0112] = orientation
    options = {"progressive": True} if "progressive" in kind else {"subsampling": 0} if "4:4:4" in kind else {}
    payload = encoded(rgb, kind.rsplit(" ", maxsplit=1)[-1], exif=exif.tobytes(), **options)

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def windows() -> Any:
        data = fn.external_source(name="data", dtype=types.UINT8, ndim=1)
        window = fn.external_source(name="window", dtype=types.INT32, ndim=1)
        options = {"axis_names": "HW", "adjust_orientation": False}
        return fn.decoders.image_slice(data, start=window[0:2], shape=window[2:4], **options)

    chosen = np.array([[3, 5, 31, 47], [0, 0, 97, 131], [96, 130, 1, 1], [17, 1, 64, 129], [1, 2, 3, 4]], np.int32)
    pipe = windows()
    pipe.build()
    pipe.feed_input("data", [np.frombuffer(payload, np.uint8)] * 5)
    pipe.feed_input("window", chosen)
    (found,) = pipe.run()
    (whole,) = images(None, payloads=[payload])
    for n, (y, x, h, w) in enumerate(chosen.tolist()):
        ours = torch.from_numpy(np.array(found[n])).permute(2, 0, 1)
        assert torch.equal(ours, whole[:, y : y + h, x : x + w])


# Name: the transform; bounds on the worst image's mean and on the largest difference, measured ones behind each.
RESIZES: dict[str, tuple[Any, float, float]] = {
    "256, then 224": (v2.Compose([v2.Resize(256), v2.CenterCrop(224)]), 0.25, 1),  # 0.186, 1
    "256": (v2.Resize(256), 0.25, 9),  # 0.176, 7
    "both edges": (v2.Resize((224, 320)), 0.25, 9),  # 0.177, 7
    "small": (v2.Resize((64, 96)), 0.22, 20),  # 0.168, 15
    "large": (v2.Resize((1200, 1600)), 0.25, 1),  # 0.177, 1
    "no antialias": (v2.Resize((64, 96), antialias=False), 0.25, 1),  # 0.183, 1
    "bicubic": (v2.Resize((224, 320), interpolation=Mode.BICUBIC), 0.26, 5),  # 0.197, 4
    "nearest": (v2.Compose([v2.Resize(256, interpolation=Mode.NEAREST_EXACT), v2.CenterCrop(224)]), 0, 0),  # 0, 0
    "max_size": (v2.Compose([v2.Resize(100, max_size=120), v2.CenterCrop(110)]), 0.20, 17),  # 0.150, 13
    "crop": (v2.CenterCrop((300, 600)), 0, 0),  # 0, 0
}


@pytest.mark.parametrize("name", list(RESIZES))
def test_resizing(name: str) -> None:
    """Resize and CenterCrop are torchvision's within a fraction of a level on average."""
    transform, mean, most = RESIZES[name]
    found = distance(images(transform), [transform(decoded(p)) for p in photographs()])
    assert found[0] <= mean, found
    assert found[1] <= most, found


def test_large_differences_stand_at_the_border() -> None:
    """Inside, an antialiased resize differs by one level at most: DALI repeats the edge, torchvision reweighs it."""
    for size in (256, (64, 96), (224, 320)):
        transform = v2.Resize(size)
        assert distance(images(transform), [transform(decoded(p)) for p in photographs()], edge=2)[1] <= 1


def test_validation_recipe() -> None:
    """The usual validation transform agrees within 0.19 levels of 255 on average, 0.0032 in normalised units."""
    pixels = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    normal = v2.Compose([pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    theirs = [decoded(p) for p in photographs()]
    assert distance(images(pixels), [pixels(x) for x in theirs])[0] <= 0.25  # 0.186
    mean, most = distance(images(normal), [normal(x) for x in theirs])
    assert mean <= 0.0042  # 0.0032
    assert most <= 0.0182  # 0.0175: one level of the channel with the smallest std


# The mode, whether the decoder cuts the window, and bounds; measured ones behind each.
WINDOWS: tuple[tuple[Mode, bool, float, float], ...] = (
    (Mode.BILINEAR, True, 0.24, 9),  # 0.182, 7
    (Mode.BILINEAR, False, 0.47, 34),  # 0.362, 26: at its border the resize sees the image beyond the window
    (Mode.BICUBIC, True, 0.29, 7),  # 0.219, 5
    (Mode.BICUBIC, False, 0.53, 34),  # 0.405, 26
    (Mode.NEAREST_EXACT, True, 0, 0),  # 0, 0
    (Mode.NEAREST_EXACT, False, 0, 0),  # 0, 0
)


@pytest.mark.parametrize(("mode", "region_decode", "mean", "most"), WINDOWS)
def test_random_resized_crop(mode: Mode, region_decode: bool, mean: float, most: float) -> None:
    """The drawn window, replayed in torchvision, gives its pixels."""
    transform = v2.RandomResizedCrop(224, interpolation=mode)
    theirs = []
    for n, payload in enumerate(photographs()):
        y, x, h, w = parameters(transform, payload, n).arrays[Key("window")][0].tolist()
        theirs.append(F.resized_crop(decoded(payload), y, x, h, w, [224, 224], interpolation=mode))
    found = distance(images(transform, region_decode=region_decode), theirs)
    assert found[0] <= mean, found
    assert found[1] <= most, found


def test_where_the_window_is_cut_matters_at_its_border_alone() -> None:
    """A window cut by the decoder or by the resize gives the same pixels within one level, but for its border."""
    transform = v2.RandomResizedCrop(224)
    cut, sampled = images(transform, region_decode=True), images(transform, region_decode=False)
    found = distance(cut, sampled)
    assert found[0] <= 0.24, found  # 0.185, of the small image, which is magnified
    assert found[1] <= 34, found  # 26
    assert distance(cut, sampled, edge=4)[1] <= 1


@REGION
def test_flips_and_crops_in_turn(region_decode: bool) -> None:
    """Flips folded into the last step stand where they stood: odd crops on a numbered image come out the same."""
    numbered = np.arange(31 * 45, dtype=np.uint32).reshape(31, 45)
    rgb = np.stack([numbered % 256, numbered // 256, numbered % 7], axis=2).astype(np.uint8)
    payload = encoded(Image.fromarray(rgb), "PNG")
    x, y = v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)
    chains: tuple[list[Any], ...] = (
        [x],
        [y],
        [x, v2.CenterCrop((20, 20))],
        [x, y, v2.CenterCrop((40, 18)), y, v2.CenterCrop((9, 60))],
        [v2.CenterCrop((30, 31)), x, v2.CenterCrop((7, 8)), x],
        [y, v2.RandomRotation((180, 180)), v2.CenterCrop((14, 14))],
    )
    for chain in chains:
        transform = v2.Compose(chain)
        ours = images(transform, payloads=[payload], region_decode=region_decode)
        assert distance(ours, [transform(decoded(payload))]) == (0, 0), chain
    transform = v2.Compose([x, v2.CenterCrop((97, 120)), y, v2.Resize((64, 64)), x, v2.CenterCrop((31, 40))])
    found = distance(images(transform, region_decode=region_decode), [transform(decoded(p)) for p in photographs()])
    assert found[0] <= 0.22  # 0.166
    assert found[1] <= 1


def test_flip_before_a_random_crop() -> None:
    """The window drawn behind a flip is taken from the mirrored image."""
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.RandomResizedCrop(64, interpolation=Mode.NEAREST_EXACT)])
    unflipped = v2.Compose([v2.RandomHorizontalFlip(0.0), v2.RandomResizedCrop(64)])
    for n, payload in enumerate(photographs()):
        y, x, h, w = parameters(unflipped, payload, n).arrays[Key("window")][0].tolist()
        mirrored = F.horizontal_flip(decoded(payload))
        theirs = F.resized_crop(mirrored, y, x, h, w, [64, 64], interpolation=Mode.NEAREST_EXACT)
        program = compile_recipe(lower(transform), region_decode=True)
        assert distance(run(program, [payload], [n]), [theirs]) == (0, 0)


@pytest.mark.parametrize(("mode", "mean"), [(Mode.NEAREST, 0.06), (Mode.BILINEAR, 0.5)])
@pytest.mark.parametrize(("angle", "mirrored"), [(30.0, True), (-7.5, False)])
def test_rotation(angle: float, mode: Mode, mean: float, mirrored: bool) -> None:
    """Turned the same way, about the same centre, filled with the same value; behind a flip too: 0.046 and 0.374."""
    turn = v2.RandomRotation((angle, angle), interpolation=mode, fill=77)
    transform = v2.Compose([v2.RandomHorizontalFlip(float(mirrored)), turn])
    found = distance(images(transform), [transform(decoded(p)) for p in photographs()])
    assert found[0] <= mean, found


def test_rotation_of_floats_fills_in_their_units() -> None:
    """A fill of 0.5 behind ToDtype(scale=True) is the middle gray that torchvision fills with."""
    to_float = v2.ToDtype(torch.float32, scale=True)
    transform = v2.Compose([to_float, v2.RandomRotation((45, 45), fill=0.5)])
    for one, other in zip(images(transform), (transform(decoded(p)) for p in photographs()), strict=True):
        assert abs(float(one[0, 0, 0]) - 0.5) < 0.003
        assert float(other[0, 0, 0]) == 0.5


def adjusted(transform: Any, payload: bytes, n: int) -> torch.Tensor:
    """Torchvision's own steps with the factors and the order that photograph n draws."""
    names = [name for name in FACTORS if getattr(transform, name) is not None]
    factors, order = (uniforms(0, 0, np.array([n]), [stream])[:, 0] for stream in (0, 1))
    pixels = decoded(payload)
    for k in np.argsort(order[: len(names)], kind="stable"):
        low, high = getattr(transform, names[k])
        pixels = getattr(F, f"adjust_{names[k]}")(pixels, float(low + (high - low) * factors[k]))
    return pixels


@pytest.mark.parametrize("factor", [0.37, 1.2, 1.9])
@pytest.mark.parametrize(("name", "mean"), [("brightness", 0.0), ("contrast", 0.06), ("saturation", 0.39)])
def test_each_colour_step(name: str, mean: float, factor: float) -> None:
    """Brightness is exact, contrast (0.048) and saturation (0.30) differ by one level at most: gray is not rounded."""
    transform = v2.ColorJitter(**{name: (factor, factor)})
    found = distance(images(transform), [adjusted(transform, p, n) for n, p in enumerate(photographs())])
    assert found[0] <= mean, found
    assert found[1] <= (1 if mean else 0), found


def test_colour_steps_in_a_drawn_order() -> None:
    """Three steps in an order of each sample's own differ by three levels at most, and by 0.18 on average."""
    transform = v2.ColorJitter(0.4, 0.4, 0.4)
    found = distance(images(transform), [adjusted(transform, p, n) for n, p in enumerate(photographs())])
    assert found[0] <= 0.24, found
    assert found[1] <= 3, found


@pytest.mark.parametrize("factor", [0.02, 0.1, -0.25, 0.5])
def test_hue_is_turned_in_hsv(factor: float) -> None:
    """Single pixels differ by one level, where the last digits of a float decide (0.0003 on average)."""
    transform = v2.ColorJitter(hue=(factor, factor))
    found = distance(images(transform), [adjusted(transform, p, n) for n, p in enumerate(photographs())])
    assert found[0] <= 0.0004, found
    assert found[1] <= 1, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_types(dtype: torch.dtype) -> None:
    """Pixels of a whole crop, converted and normalised, are torchvision's float32 rounded once to the type."""
    crop = v2.CenterCrop(90)
    transform = v2.Compose([crop, v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)])
    exact = v2.Compose([crop, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    ours = [image.to(dtype) for image in images(transform)]
    assert all(image.dtype == dtype for image in ours)
    for one, other in zip(ours, (exact(decoded(p)) for p in photographs()), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=torch.finfo(dtype).eps, atol=2e-6)


def test_uint8_stays_as_it_is() -> None:
    """Without a conversion the batch is uint8."""
    assert {image.dtype for image in images(v2.CenterCrop(90))} == {torch.uint8}
