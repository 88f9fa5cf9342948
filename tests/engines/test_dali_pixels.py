"""The DALI engine's pixels on the CPU beside the host engine's, which are torchvision's bit for bit, on photographs.

The draws are the same, so what differs is arithmetic: torchvision rounds to whole levels after each of a resize's two
passes, DALI once at the end. Every bound is about 1.3 times what was measured, which stands beside it.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_runs import each
from kit.kinds import saved
from kit.photographs import decoded, files, photographs
from kit.recipes import FLOAT, SMALL, simclr
from kit.torchvision_way import both, distance
from nvidia.dali import Pipeline, fn, pipeline_def, types
from PIL import Image
from torchvision.transforms import v2

from dali_feed.engines.dali.graph import compile_dali
from dali_feed.errors import TransformError
from dali_feed.transforms import colour as colours
from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.settings import DType, Layout
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

X, Y, ALL = Flip("x"), Flip("y"), 255
JITTER = ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
EXACT = (0, 0)
INVERT, INVERTED = Pointwise("RandomInvert"), Pointwise("RandomInvert", 1.0)


def moved(how: Any) -> RandomAffine:
    """Turned, moved, scaled and sheared."""
    return RandomAffine((-40.0, 40.0), (0.1, 0.2), (0.7, 1.4), (-9.0, 9.0, -5.0, 5.0), how, 77.0)


# Ops; bounds on the worst image's mean and on the largest difference, and measured ones behind them. Of two bounds the
# second is for windows that the first resize cuts and not the decoder.
CASES: dict[str, tuple[Any, ...]] = {
    "nothing": ((), EXACT),
    "256, then 224": ((Resize(256), CenterCrop((224, 224))), (0.25, 1)),  # 0.186, 1
    "256": ((Resize(256),), (0.25, 9)),  # 0.176, 7
    "both edges": ((Resize((224, 320)),), (0.25, 9)),  # 0.177, 7
    "small": ((Resize((64, 96)),), (0.22, 20)),  # 0.168, 15
    "large": ((Resize((1200, 1600)),), (0.25, 1)),  # 0.177, 1
    "no antialias": ((Resize((64, 96), antialias=False),), (0.25, 1)),  # 0.183, 1
    "bicubic": ((Resize((224, 320), interpolation="bicubic"),), (0.26, 5)),  # 0.197, 4
    "nearest": ((Resize(256, interpolation="nearest-exact"), CenterCrop((224, 224))), EXACT),
    "max_size": ((Resize(100, max_size=120), CenterCrop((110, 110))), (0.20, 17)),  # 0.150, 13
    "centre": ((CenterCrop((300, 600)),), EXACT),
    # 0.0032, 0.0175: one level of the channel with the smallest std
    "evaluation": ((Resize(256), CenterCrop((224, 224)), *FLOAT), (0.0042, 0.0182)),
    # 0.182, 7 and 0.362, 26: at its border the resize sees the image beyond the window
    "window": ((RandomResizedCrop((224, 224)),), (0.24, 9), (0.47, 34)),
    "window, bicubic": ((RandomResizedCrop((224, 224), interpolation="bicubic"),), (0.29, 7), (0.53, 34)),  # 0.219, 5
    "window, nearest": ((RandomResizedCrop((224, 224), interpolation="nearest-exact"),), EXACT, EXACT),
    "window behind a flip": ((X, RandomResizedCrop((64, 64), interpolation="nearest-exact")), EXACT, EXACT),
    "flip": ((Flip("x", 1.0),), EXACT),
    "flip, cut": ((Flip("x", 1.0), CenterCrop((20, 20))), EXACT, EXACT),
    "flips and cuts": ((X, Y, CenterCrop((40, 18)), Y, CenterCrop((9, 60))), EXACT, EXACT),
    "cuts and flips": ((CenterCrop((30, 31)), X, CenterCrop((7, 8)), X), EXACT, EXACT),
    "turned over": ((Y, Rotation((180.0, 180.0)), CenterCrop((14, 14))), EXACT, EXACT),
    "flips around a resize": (
        (X, CenterCrop((97, 120)), Y, Resize((64, 64)), X, CenterCrop((31, 40))),
        *((0.22, 1),) * 2,  # 0.166
    ),
    "crop": ((RandomCrop((64, 80)),), EXACT, EXACT),
    "crop behind flips": ((X, Y, RandomCrop((64, 80)), X), EXACT, EXACT),
    "crop of a crop": ((RandomCrop((90, 100)), RandomCrop((64, 80))), EXACT, EXACT),
    "crop, then an enlarged one": (
        (RandomCrop((64, 80)), RandomCrop((300, 20), (9, 8, 7, 6), True, (1.0, 2.0, 3.0))),
        *(EXACT, EXACT),
    ),
    "padded": ((Pad((1, 2, 3, 4), (200.0, 7.0, 90.0)),), EXACT),
    "padded behind flips": ((X, Y, Pad((1, 2, 3, 4), 9.0), RandomCrop((90, 70), (5, 0, 0, 9))), EXACT, EXACT),
    # one resampling of the window alone
    "crop folded into a resize": ((Resize(120), RandomCrop((96, 96)), ToFloat(scale=False)), (0.25, 1)),  # 0.185
    "rotation, nearest": ((X, Rotation((30.0, 30.0), fill=77.0)), (0.06, ALL)),  # 0.046
    "rotation": ((Rotation((-7.5, -7.5), "bilinear", 77.0),), (0.5, ALL)),  # 0.374
    "rotation behind a flip": ((Flip("x", 1.0), Rotation((30.0, 30.0), "bilinear", 77.0)), (0.5, ALL)),
    **{  # 0.016, 0.325; nearest takes other pixels at ties alone
        f"affine, {how}, {len(flips)}{flips[:1]}": ((*flips, moved(how)), (0.022 if how == "nearest" else 0.43, ALL))
        for how in ("nearest", "bilinear")
        for flips in ((), (X,), (Y,), (X, Y))
    },
    "affine about a point": (
        (X, RandomAffine((9.0, 20.0), scale=(1.2, 1.3), interpolation="bilinear", center=(20.0, 90.0))),
        (0.33, ALL),  # 0.25
    ),
    **{  # 0.048 and 0.30: gray is not rounded
        f"{name} {factor}": ((ColorJitter(**{name: (factor, factor)}),), (mean, 1 if mean else 0))
        for name, mean in (("brightness", 0.0), ("contrast", 0.06), ("saturation", 0.39))
        for factor in (0.37, 1.2, 1.9)
    },
    **{  # 0.0003, where the last digits of a float decide
        f"hue {factor}": ((ColorJitter(hue=(factor, factor)),), (0.0004, 1)) for factor in (0.02, 0.1, -0.25, 0.5)
    },
    "colour steps in a drawn order": ((ColorJitter(*((0.6, 1.4),) * 3),), (0.24, 3)),  # 0.18
    "gray": ((SMALL, Grayscale()), (0.0011, 1)),  # 0.00083, 1
    "gray, sometimes": ((SMALL, RandomGrayscale(0.5)), (0.0011, 1)),  # 0, 0
    "gray floats": ((SMALL, ToFloat(), Grayscale()), (0.0009, 0.0021)),  # 0.00068, 0.0020: half a level
    "blur": ((SMALL, GaussianBlur((9, 5), (0.1, 2.0))), (2.3e-5, 1)),  # 1.7e-5, 1
    "large blur": ((SMALL, GaussianBlur((23, 23), (1.0, 9.0))), (1.4e-4, 1)),  # 1.0e-4, 1
    "blur of floats": ((SMALL, ToFloat(), GaussianBlur((9, 5), (0.1, 2.0))), (0.0013, 0.0021)),  # 0.0010, 0.0020
    "invert": ((SMALL, Pointwise("RandomInvert", 0.5)), EXACT),
    "invert floats": ((SMALL, ToFloat(), Pointwise("RandomInvert", 0.5)), (1e-7, 2e-7)),  # 5.7e-8, 1.2e-7
    "posterize": ((SMALL, Pointwise("RandomPosterize", 0.5, 3)), EXACT),
    "posterize, no bits": ((SMALL, Pointwise("RandomPosterize", 1.0, 0)), EXACT),
    "solarize": ((SMALL, Pointwise("RandomSolarize", 0.5, 150.5)), EXACT),
    "solarize floats": ((SMALL, ToFloat(), Pointwise("RandomSolarize", 0.5, 0.4)), (1e-7, 2e-7)),  # 3.4e-8, 8.9e-8
    "erase": ((SMALL, RandomErasing(0.8, value=77.9)), EXACT),
    "erase with a colour, behind flips": ((SMALL, X, Y, RandomErasing(1.0, value=(200.0, 7.0, 90.0)), X), EXACT),
    "erase floats": (  # 0.00054, 0.0020
        (SMALL, ToFloat(), RandomErasing(1.0, value=0.5), RandomErasing(0.0)),
        (0.0007, 0.0021),
    ),
    "erase twice behind normalize": (  # 0.0020, 0.0082: half a level of the first
        (SMALL, X, *FLOAT, RandomErasing(1.0), RandomErasing(0.5)),
        (0.0026, 0.0088),
    ),
    "apply": (
        (
            SMALL,
            RandomApply((X, GaussianBlur((9, 5)), RandomErasing(0.8), Pointwise("RandomPosterize", setting=3)), 0.5),
            RandomApply((INVERT, Y, Pointwise("RandomSolarize", setting=99.0), Grayscale()), 0.5),
        ),
        (4.1e-4, 1),  # 3.1e-4
    ),
    "apply colour": ((SMALL, RandomApply((JITTER,), 0.6)), (0.06, 3)),  # 0.047, 2
    "apply turns": (  # 0.25, 61: as without a nest, at the border of the moved image
        (
            SMALL,
            RandomApply((Rotation((-30.0, 30.0), "bilinear"),), 0.5),
            RandomApply((RandomAffine((-9.0, 9.0), (0.1, 0.1), interpolation="bilinear"),), 0.5),
        ),
        (0.33, 80),
    ),
    "choice": (
        (SMALL, RandomChoice(((Grayscale(),), (X, INVERTED), ()), (1.0, 2.0, 3.0))),
        EXACT,
    ),
    "a window of what may be mirrored": (
        (SMALL, RandomApply((Flip("x", 1.0), RandomChoice(((Flip("y", 1.0),), ()))), 0.6), RandomCrop((64, 80))),
        EXACT,
    ),
    "choice in apply": (
        (
            SMALL,
            RandomApply((RandomChoice(((Grayscale(),), (INVERTED,))),)),
            INVERT,
        ),
        EXACT,
    ),
    "self-supervised training": (lower(simclr(v2)).ops, (0.0073, ALL)),  # 0.0056
}


@pytest.mark.parametrize(
    ("name", "region"), [(name, not k) for name, (_, *bounds) in CASES.items() for k in range(len(bounds))]
)
def test_pixels_are_the_host_engines(name: str, region: bool) -> None:
    """Within what was measured, with windows cut by the decoder and by the first resize; dtype and shape are equal."""
    ops, *bounds = CASES[name]
    mean, most = bounds[0 if region else 1]
    ours, theirs = both(Recipe(ops), region_decode=region)
    assert [image.dtype for image in ours] == [image.dtype for image in theirs]
    found = distance(ours, theirs)
    assert found[0] <= mean, found
    assert found[1] <= most, found


@pytest.mark.parametrize("name", [*files(), *((q, s, p) for q in (50, 95) for s in (0, 1, 2) for p in (0, 1))])
def test_decoding_is_exact(name: Any) -> None:
    """Every format, and JPEGs subsampled or not, baseline or progressive, are torchvision's own pixels."""
    if isinstance(name, str):
        payload = files()[name]
    else:
        quality, subsampling, progressive = name
        picture = Image.open(io.BytesIO(photographs()[3]))
        payload = saved(picture, quality=quality, subsampling=subsampling, progressive=progressive)
    assert distance(each("dali", compile_dali(Recipe()), [payload], [0]), [decoded(payload)]) == (0, 0)


def test_sixteen_bits_become_eight() -> None:
    """A 16-bit PNG is scaled to 8 bits, rounded; torchvision keeps 16."""
    gray = np.arange(97 * 131, dtype=np.uint16).reshape(97, 131) * 5
    payload = saved(Image.fromarray(gray), "PNG")
    ours = each("dali", compile_dali(Recipe()), [payload], [0])
    assert distance(ours, [torch.from_numpy(gray / 257.0).expand(3, 97, 131)])[1] <= 0.51


@pytest.mark.parametrize("kind", ["JPEG", "gray JPEG", "progressive JPEG", "4:4:4 JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_decoded_window_is_the_window_of_the_decoded(kind: str, orientation: int) -> None:
    """The decoder takes absolute int windows, odd ones inside subsampled blocks too, and turns nothing by EXIF."""
    rgb = Image.open(io.BytesIO(photographs()[2])).convert("L" if "gray" in kind else "RGB")
    exif = rgb.getexif()
    exif[0x0112] = orientation
    options = {"progressive": True} if "progressive" in kind else {"subsampling": 0} if "4:4:4" in kind else {}
    payload = saved(rgb, kind.rsplit(" ", maxsplit=1)[-1], exif=exif.tobytes(), **options)

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
    (whole,) = each("dali", compile_dali(Recipe()), [payload], [0])
    for n, (y, x, h, w) in enumerate(chosen.tolist()):
        ours = torch.from_numpy(np.array(found[n])).permute(2, 0, 1)
        assert torch.equal(ours, whole[:, y : y + h, x : x + w])


def test_large_differences_stand_at_the_border() -> None:
    """Inside, a resize differs by one level at most: DALI repeats the edge, torchvision reweighs it; windows alike."""
    for size in (256, (64, 96), (224, 320)):
        assert distance(*both(Recipe((Resize(size),))), edge=2)[1] <= 1
    crop = Recipe((RandomResizedCrop((224, 224)),))
    cut, sampled = (both(crop, region_decode=region)[0] for region in (True, False))
    assert distance(cut, sampled, edge=4)[1] <= 1


def test_rotation_of_floats_fills_in_their_units() -> None:
    """A fill of 0.5 behind ToDtype(scale=True) is the middle gray that torchvision fills with."""
    for one, other in zip(*both(Recipe((ToFloat(), Rotation((45.0, 45.0), fill=0.5)))), strict=True):
        assert abs(float(one[0, 0, 0]) - 0.5) < 0.003
        assert float(other[0, 0, 0]) == 0.5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_types(dtype: DType) -> None:
    """Pixels of a whole crop, converted and normalised, are torchvision's float32 rounded once to the type."""
    crop = CenterCrop((90, 90))
    ours = both(Recipe((crop, ToFloat(dtype), FLOAT[1])))[0]
    exact = both(Recipe((crop, *FLOAT)))[1]
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == getattr(torch, dtype)
        torch.testing.assert_close(one.float(), other, rtol=torch.finfo(one.dtype).eps, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_last_erasing_is_exact(dtype: DType, layout: Layout) -> None:
    """One that only flips and floats follow writes its value into floats, whatever it is, into the same rectangles."""
    ops = (SMALL, Y, ToFloat(dtype), FLOAT[1], RandomErasing(1.0, value=(9.0, -0.1, 0.0)), X)
    for ours, theirs in zip(*both(Recipe(ops, layout)), strict=True):
        value = torch.tensor([9.0, -0.1, 0.0], dtype=ours.dtype)
        value = value[:, None, None] if layout == "NCHW" else value
        assert (theirs == value).any()
        assert torch.equal(ours == value, theirs == value)


def test_what_is_not_picked_stays_as_it_is() -> None:
    """Ops of a nest that no sample picks give the pixels of the recipe without them."""
    inner = (
        *(Flip("x", 1.0), Flip("y", 1.0), JITTER, Grayscale(), INVERTED, GaussianBlur((5, 5))),
        *(Rotation((20.0, 30.0), "bilinear"), RandomAffine((9.0, 9.5), interpolation="bilinear")),
        *(Pointwise("RandomPosterize", 1.0, 2), Pointwise("RandomSolarize", 1.0, 9.0), RandomErasing(1.0, value=9.0)),
    )
    nest = RandomApply((RandomApply(inner, 1.0),), 0.0)
    crop = RandomResizedCrop((64, 80))
    (plain, _), (nested, _) = both(Recipe((X, crop))), both(Recipe((X, crop, nest)))
    assert distance(plain, nested) == (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_channels_last_has_the_same_values(dtype: str) -> None:
    """A batch of layout NHWC is that of NCHW with its axes moved."""
    floats: tuple[Op, ...] = (ToFloat(), Normalize((0.5,), (0.25,))) if dtype == "float32" else ()
    ops = (RandomResizedCrop((64, 96)), X, Y, *floats)
    planes, last = (both(Recipe(ops, layout))[0] for layout in ("NCHW", "NHWC"))
    for one, other in zip(planes, last, strict=True):
        assert other.shape == (64, 96, 3)
        assert torch.equal(one, other.permute(2, 0, 1))


SHIFTED = (ToFloat(scale=False),)


@pytest.mark.parametrize(
    ("ops", "told"),
    [
        (
            (Pointwise("RandomAdjustSharpness", setting=2.0),),
            "RandomAdjustSharpness: the dali engine has no operator for it",
        ),
        (
            (RandomApply((Pointwise("RandomAutocontrast"),)),),
            "RandomAutocontrast: the dali engine has no operator for it",
        ),
        ((RandomPerspective(),), "RandomPerspective: the dali engine has no operator for it"),
        ((Pointwise("RandomEqualize"),), "RandomEqualize: the dali engine has no operator for it"),
        ((RandomOrder(((Grayscale(),), (X,))),), "RandomOrder: the dali engine runs transforms in one order"),
        (
            (ToFloat(), Pointwise("RandomPosterize", setting=3)),
            "RandomPosterize: the dali engine needs uint8 pixels; found float32",
        ),
        (
            (*SHIFTED, INVERT),
            r"RandomInvert: the dali engine needs uint8 pixels or floats in 0\.\.1",
        ),
        (
            (*SHIFTED, Pointwise("RandomSolarize", setting=0.5)),
            "RandomSolarize: the dali engine needs uint8 pixels or floats",
        ),
        ((*FLOAT, RandomErasing(value=9.0), RandomErasing()), "RandomErasing: the dali engine needs a value"),
        ((Pad((1, 1, 1, 1), mode="reflect"),), 'Pad: the dali engine knows padding_mode="constant"; found "reflect"'),
        ((RandomCrop((9, 9), pad_if_needed=True, mode="edge"),), 'RandomCrop: the dali engine knows padding_mode="c'),
        ((Rotation((1.0, 2.0), fill=(1.0, 2.0, 3.0)),), "RandomRotation: the dali engine takes one fill for all chan"),
        ((RandomAffine((1.0, 2.0), fill=(1.0, 2.0, 3.0)),), "RandomAffine: the dali engine takes one fill"),
    ],
)
def test_what_dali_has_no_operator_for(ops: tuple[Op, ...], told: str) -> None:
    """It is refused when the program is made, and the message names the engine that takes it."""
    with pytest.raises(TransformError, match=f"^{told}.*host engine can run it"):
        compile_dali(Recipe(ops))


def test_contrast_apart_is_contrast() -> None:
    """The form of a contrast step that stays on the GPU gives the other one's pixels, but for a last digit's level."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), np.uint8) // (n % 3 + 1) for n in range(24)]
    factors = rng.uniform(0, 2, 24).astype(np.float32)
    with Pipeline(24, 2, None) as pipe:
        image = fn.external_source(name="image", ndim=3, dtype=types.UINT8)
        factor = fn.external_source(name="factor", ndim=0, dtype=types.FLOAT)
        matrix, shift = factor * types.Constant(np.eye(3, dtype=np.float32)), factor * 0.5 - 0.9995
        mean = colours._gray_mean(image)
        pipe.set_outputs(
            colours._moved(image, matrix, shift + (1 - factor) * mean, types.UINT8),
            colours._contrast_apart(image, matrix, shift, 1 - factor, device="cpu"),
        )
    pipe.build()
    pipe.feed_input("image", pictures)
    pipe.feed_input("factor", list(factors))
    one, other = (output.as_array().astype(int) for output in pipe.run())
    assert np.abs(one - other).max() <= 1
    assert np.mean(one != other) < 1e-3
