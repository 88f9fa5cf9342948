"""decode="region": a decoder must show that its windows are those of whole images, or whole images are decoded."""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import jpeg
from numpy.typing import NDArray
from nvidia.dali import fn
from PIL import Image
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.engines.dali.region_probes import Decode, Window, disagreement, probes
from dali_feed.engines.dali.regions import answer, compile_regions, dali_decode, trouble
from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.center_crop import CenterCrop
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.resize import Resize

SMALL = v2.RandomResizedCrop(24, scale=(0.2, 0.5))
Pixels = NDArray[np.uint8]


def moved(dy: int, dx: int) -> Decode:
    """A decoder whose windows are those of an image moved by so much."""

    def decode(payloads: Sequence[bytes], windows: Sequence[Window] | None) -> list[Pixels]:
        images = [np.asarray(Image.open(io.BytesIO(payload)).convert("RGB")) for payload in payloads]
        if windows is None:
            return images
        there = (np.roll(image, (dy, dx), (0, 1)) for image in images)
        return [image[y : y + h, x : x + w] for image, (y, x, h, w) in zip(there, windows, strict=True)]

    return decode


def changed(levels: int, *, frame: bool, least: int = 1) -> Decode:
    """A decoder whose windows are darker by so much, all over or in a frame of a pixel, in batches of `least` on."""
    right = moved(0, 0)

    def decode(payloads: Sequence[bytes], windows: Sequence[Window] | None) -> list[Pixels]:
        found = [image.astype(np.int16) for image in right(payloads, windows)]
        if windows is not None and len(payloads) >= least:
            for image in found:
                kept = image[1:-1, 1:-1].copy()
                image[...] -= levels
                if frame:
                    image[1:-1, 1:-1] = kept
        return [image.clip(0, 255).astype(np.uint8) for image in found]

    return decode


def test_dalis_decoder_on_the_cpu_passes() -> None:
    """In this process, and asked in one of its own."""
    assert disagreement(dali_decode(None, Tuning())) is None
    assert trouble(None, Tuning()) is None


def test_windows_lie_in_their_images() -> None:
    """One that left its image would end the process."""
    for probe in probes():
        width, height = Image.open(io.BytesIO(probe.payload)).size
        y, x, h, w = probe.window
        assert min(y, x) >= 0
        assert min(h, w) > 0
        assert (y + h <= height) & (x + w <= width)


@pytest.mark.parametrize(
    ("decode", "told"),
    [
        (
            moved(0, 16),
            r"240x320 at \(0, 0\) of a 4:2:0 JPEG, decoded alone, differs from the whole image by [\d.]+ levels",
        ),
        (moved(16, 0), "decoded alone, differs"),
        (moved(0, 1), "decoded alone, differs"),
        (moved(-1, 0), "decoded alone, differs"),
        (changed(2, frame=False), r"whole image by [\d.]+ levels on average, 2 at most"),
        (changed(40, frame=True), "40 at most"),
        (changed(9, frame=False, least=2), "decoded in a batch, differs from the whole image by 9.0 levels"),
        (lambda payloads, _: moved(0, 0)(payloads, None), r"has the shape \(480, 640, 3\)"),
    ],
    ids=["16 right", "16 down", "1 right", "1 up", "darker", "dark frame", "in a batch alone", "whole"],
)
def test_wrong_windows_are_found(decode: Decode, told: str) -> None:
    """A pixel's move, two levels all over, a border that no upsampling explains: which window, and by how much."""
    assert re.search(told, disagreement(decode) or "nothing found")


def test_edges_may_differ() -> None:
    """A decoder that upsamples colour without what lies beyond the window passes."""
    assert disagreement(changed(10, frame=True)) is None


CROP = Recipe((RandomResizedCrop((24, 24)),), decode="region")


def test_where_windows_are_wrong_whole_images_are_decoded() -> None:
    """The warning says what was found, and the program is that of decode="exact"."""
    with pytest.warns(UserWarning, match=r'^decode="region": .* whole images are decoded; 3x3 at \(0, 0\) is off'):
        program = compile_regions(CROP, lambda: "3x3 at (0, 0) is off")
    assert not program.window
    assert program.recipe.decode == "exact"


def test_where_windows_are_right_they_are_decoded_alone() -> None:
    """The decoder takes the window, and the program says what it is."""
    program = compile_regions(CROP, lambda: None)
    assert program.window
    assert program.recipe.decode == "region"


def test_a_recipe_without_windows_asks_nobody() -> None:
    """A first resize needs the whole image: no decoder is tested, and a warning says that nothing came of it."""
    asked: list[None] = []
    recipe = Recipe((Resize(30), CenterCrop((24, 24))), decode="region")
    with pytest.warns(UserWarning, match='^decode="region": the transform does not begin with a crop'):
        program = compile_regions(recipe, lambda: asked.append(None))
    assert not program.window
    assert program.recipe.decode == "exact"
    assert not asked


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('anything'); print('dali_feed answers: null'); print('and more')", None),
        ("print('dali_feed answers: \"a window is off\"')", "a window is off"),
        ("print('null')", "the test gave no answer; it printed 'null\\n'"),
        ("pass", "the test gave no answer; it printed ''"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the test was ended by SIGSEGV"),
        ("import sys; sys.exit('no driver')", "the test ended with status 1: no driver"),
    ],
)
def test_a_decoder_that_takes_its_process_along_is_an_answer(code: str, told: str | None) -> None:
    """Windows of JPEGs end in a segmentation fault on some GPUs: this process hears of it and lives."""
    assert answer([sys.executable, "-c", code]) == told


def test_a_process_that_cannot_be_begun_is_an_answer() -> None:
    """It is no error of the loader's."""
    assert str(answer(["/nowhere/python"])).startswith("the test could not be started; ")


def loader(device: str, **options: Any) -> DataLoader:
    """16 pictures, of which windows are used."""
    source = ScriptedSource([(jpeg(n, 90, 120), n) for n in range(16)])
    return DataLoader(source, 8, transform=SMALL, device=device, seed=1, **options)


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_on_the_cpu_windows_are_decoded_alone_anyway(engine: str) -> None:
    """Both engines have the exact pixels of it; what was asked for stands in the state and the description."""
    with loader("cpu", engine=engine) as exact, loader("cpu", engine=engine, decode="region") as region:
        for (a, _), (b, _) in zip(exact, region, strict=True):
            assert torch.equal(a, b)
        assert [each.state_dict()["info"]["decode"] for each in (exact, region)] == ["exact", "region"]
        assert 'decode="region"' in region.describe()
        assert "decode" not in exact.describe()


def test_a_graph_has_windows_of_its_own() -> None:
    """A DALI graph function is given whole images, so decode="region" is refused there."""
    source = ScriptedSource([(jpeg(n), n) for n in range(4)])
    with pytest.raises(ConfigError, match='^decode: "region" decodes only the part .*; found a DALI graph'):
        DataLoader(source, 2, transform=lambda images, draws: fn.resize(images, size=8), device="cpu", decode="region")


@pytest.mark.gpu
def test_gpu_windows_are_those_of_the_cpu() -> None:
    """Decoded alone, or, with one warning, of whole images: the same windows, by few levels."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gpu = loader("cuda", decode="region")
    ran = gpu.state_dict()["info"]["decode"]
    assert [str(each.message)[:16] for each in told] == ([] if ran == "region" else ['decode="region":'])
    with gpu, loader("cpu") as cpu:
        for (a, _), (b, _) in zip(cpu, gpu, strict=True):
            assert (a.float() - b.cpu().float()).abs().mean() < 2
