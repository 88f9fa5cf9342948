"""How close the DALI engine on the CPU comes to torchvision: prints the table of docs/transforms.md.

    python -P bench/measure_pixels.py

Photographs that come with scikit-image and scikit-learn, as JPEGs of quality 92, from 97x131 to 1000x1500. Random
transforms are replayed: torchvision's functional form is given the parameters that each photograph drew. The numbers
depend on the versions of DALI and torchvision alone, not on the machine.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from dali_feed.compiler.dali import compile_recipe
from dali_feed.draws.philox import uniforms
from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Work
from dali_feed.options import Tuning
from dali_feed.transforms.keys import Arrays, Key
from dali_feed.transforms.lower import lower

SKIMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "rocket.jpg")
FACTORS = ("brightness", "contrast", "saturation", "hue")
DRAWS = 3  # samples drawn per photograph, where something is random
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Reference = Callable[[torch.Tensor, Arrays, int], torch.Tensor]


def photographs() -> list[bytes]:
    """The JPEGs, every other one with subsampled colour."""
    folder = Path(skimage.__file__).parent / "data"
    pictures = [Image.open(folder / name).convert("RGB") for name in SKIMAGE]
    pictures += [Image.fromarray(image) for image in load_sample_images().images]
    pictures += [pictures[1].resize((131, 97)), pictures[2].resize((1500, 1000), Image.Resampling.LANCZOS)]
    files = []
    for n, picture in enumerate(pictures):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=92, subsampling=2 * (n % 2))
        files.append(out.getvalue())
    return files


def decoded(payload: bytes) -> torch.Tensor:
    """Torchvision's pixels."""
    pixels: torch.Tensor = decode_image(torch.frombuffer(bytearray(payload), dtype=torch.uint8), ImageReadMode.RGB)
    return pixels


def plain(transform: Any) -> Reference:
    """A transform that draws nothing: torchvision's own call."""
    return lambda pixels, *_: transform(pixels)


def cropped(mode: Mode) -> Reference:
    """RandomResizedCrop to 224 with the window that was drawn."""

    def apply(pixels: torch.Tensor, arrays: Arrays, *_: object) -> torch.Tensor:
        y, x, h, w = arrays[Key("window")][0].tolist()
        out: torch.Tensor = F.resized_crop(pixels, y, x, h, w, [224, 224], interpolation=mode)
        return out

    return apply


def turned(mode: Mode) -> Reference:
    """RandomRotation by the angle that was drawn."""

    def apply(pixels: torch.Tensor, arrays: Arrays, *_: object) -> torch.Tensor:
        out: torch.Tensor = F.rotate(pixels, float(arrays[Key("angle1")][0]), interpolation=mode)
        return out

    return apply


def coloured(transform: Any) -> Reference:
    """ColorJitter with the factors and the order that were drawn."""
    names = [name for name in FACTORS if getattr(transform, name) is not None]

    def apply(pixels: torch.Tensor, _: Arrays, sample: int) -> torch.Tensor:
        factors, order = (uniforms(0, 0, np.array([sample]), [stream])[:, 0] for stream in (0, 1))
        for k in np.argsort(order[: len(names)], kind="stable"):
            low, high = getattr(transform, names[k])
            pixels = getattr(F, f"adjust_{names[k]}")(pixels, float(low + (high - low) * factors[k]))
        return pixels

    return apply


def row(name: str, transform: Any, reference: Reference, *, draws: int = DRAWS) -> None:
    """Print the mean over photographs, the mean of the worst one, and the largest difference of a value."""
    program = compile_recipe(lower(transform), region_decode=True)
    engine = make_engine("dali", program, batch_size=1, device=None, tuning=Tuning(threads=2))
    means, most = [], 0.0
    for n, payload in enumerate(FILES):
        pixels = decoded(payload)
        for sample in range(n * draws, n * draws + draws):
            made = program.parameters(np.array([pixels.shape[1:]]), np.array([sample]), seed=0, epoch=0)
            engine.submit(Work(engine.prepare([memoryview(payload)]), made.arrays))
            ours = torch.utils.dlpack.from_dlpack(engine.take().images)[0].double()
            difference = (ours - reference(pixels, made.arrays, sample).double()).abs()
            means.append(float(difference.mean()))
            most = max(most, float(difference.max()))
    engine.close()
    print(f"| {name} | {np.mean(means):.4g} | {np.max(means):.4g} | {most:.4g} |", flush=True)


def main() -> None:
    """Print the table."""
    print("versions:", ", ".join(f"{name} {version(name)}" for name in ("nvidia-dali-cuda120", "torchvision")))
    print("| transform | mean | worst photograph's mean | largest |\n|---|---|---|---|")
    row("none (decoding)", v2.ToImage(), plain(v2.ToImage()), draws=1)
    usual = [v2.Resize(256), v2.CenterCrop(224)]
    normal = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    up = v2.Resize((1200, 1600))
    exact = v2.Compose([v2.CenterCrop(224), *normal])
    bicubic, nearest = (v2.Resize(256, interpolation=mode) for mode in (Mode.BICUBIC, Mode.NEAREST_EXACT))
    rough = v2.Resize((224, 320), antialias=False)
    rough_bicubic = v2.Resize((224, 320), interpolation=Mode.BICUBIC, antialias=False)
    for name, transform in (
        ("Resize(256), CenterCrop(224)", v2.Compose(usual)),
        ("the same, ToDtype, Normalize (normalised units)", v2.Compose([*usual, *normal])),
        ("Resize(256)", v2.Resize(256)),
        ("Resize((1200, 1600))", up),
        ("Resize((224, 320), antialias=False)", rough),
        ("Resize(256, BICUBIC)", bicubic),
        ("Resize((224, 320), BICUBIC, antialias=False)", rough_bicubic),
        ("Resize(256, NEAREST_EXACT)", nearest),
        ("CenterCrop(224), ToDtype, Normalize (normalised units)", exact),
        (
            "RandomHorizontalFlip(1), RandomVerticalFlip(1)",
            v2.Compose([v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1)]),
        ),
    ):
        row(name, transform, plain(transform), draws=1)
    for mode in (Mode.BILINEAR, Mode.BICUBIC, Mode.NEAREST_EXACT):
        row(f"RandomResizedCrop(224, {mode.name})", v2.RandomResizedCrop(224, interpolation=mode), cropped(mode))
    for mode in (Mode.NEAREST, Mode.BILINEAR):
        row(f"RandomRotation(30, {mode.name})", v2.RandomRotation(30, interpolation=mode), turned(mode))
    for name in FACTORS[:3]:
        row(f"ColorJitter({name}=0.4)", v2.ColorJitter(**{name: 0.4}), coloured(v2.ColorJitter(**{name: 0.4})))
    three = v2.ColorJitter(0.4, 0.4, 0.4)
    row("ColorJitter(0.4, 0.4, 0.4)", three, coloured(three))
    for hue in (0.02, 0.1, 0.25):
        jitter = v2.ColorJitter(hue=(hue, hue))
        row(f"ColorJitter(hue=({hue}, {hue}))", jitter, coloured(jitter))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)
    FILES = photographs()
    main()
