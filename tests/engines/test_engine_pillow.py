"""GIF and WebP in the engines: Pillow's pixels in torchvision's steps."""

from __future__ import annotations

import functools
import io
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gif_files import gif, gifs, opened
from kit.images import QUICK, encoded, jpeg, pixels, png
from kit.photographs import decoded, photographs
from kit.torchvision_way import applied
from PIL import Image
from recipes import CASES
from torchvision.transforms import v2

from dali_feed.compiler.host import compile_host
from dali_feed.engines.choose import ENGINES, make_engine
from dali_feed.engines.engine import Engine, Work
from dali_feed.errors import MissingPackageError
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.screen import pillow
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.keys import Key
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.resize import RandomResizedCrop, Resize

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


@functools.cache
def pictures(kind: str) -> tuple[bytes, ...]:
    """Three photographs as GIFs or WebPs."""
    out = []
    for payload in photographs()[2:4]:
        file = io.BytesIO()
        image = Image.open(io.BytesIO(payload)).convert("RGB")
        (image.quantize(256) if kind == "GIF" else image).save(file, kind)
        out.append(file.getvalue())
    return tuple(out)


def run(recipe: Recipe, payloads: Sequence[bytes]) -> tuple[list[torch.Tensor], list[dict[Key, Any]]]:
    """The images, each a batch of its own, and the parameters that each took."""
    program = compile_host(recipe)
    views = [memoryview(payload) for payload in payloads]
    screened = screen(views)
    assert not screened.reasons
    made = program.parameters(screened.sizes, np.arange(len(views)), 0, 0).arrays
    engine = make_engine("host", program, batch_size=1, device=None, tuning=Tuning(threads=2))
    images, rows = [], []
    for n, view in enumerate(views):
        result = engine.redo(Work(engine.prepare([view]), {name: values[n : n + 1] for name, values in made.items()}))
        assert result.images is not None, result.bad
        images.append(result.images[0])
        rows.append({name: values[n].tolist() for name, values in made.items()})
    engine.close()
    return images, rows


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
@pytest.mark.parametrize("name", CASES)
def test_steps_equal_torchvision(name: str, kind: str) -> None:
    """Whole or a window, the decoded image goes through every op with torchvision's bits."""
    recipe = Recipe(CASES[name])
    for payload, ours, rows in zip(pictures(kind), *run(recipe, pictures(kind)), strict=True):
        image: Any = torch.from_numpy(opened(payload)).permute(2, 0, 1)
        for k, op in enumerate(recipe.ops):
            image = applied(image, k, op, rows)
        assert ours.dtype == image.dtype
        assert torch.equal(ours, image)


def test_pixels_are_pillows() -> None:
    """Every kind of file has the pixels that ImageFolder gets of it, whole and in a window."""
    for name, payload in gifs().items():
        whole = opened(payload)
        assert np.array_equal(pillow.decode(memoryview(payload)), whole), name
        h, w = (max(1, side // 3) for side in whole.shape[:2])
        part = pillow.decode(memoryview(payload), (h // 2, w // 2, h, w))
        assert np.array_equal(part, whole[h // 2 : h // 2 + h, w // 2 : w // 2 + w])
        assert part.flags.c_contiguous
        assert part.flags.writeable


@pytest.mark.parametrize("name", sorted(set(gifs()) - {"gif without palette", "gif without end"}))
def test_gifs_beside_torchvision(name: str) -> None:
    """Opaque pixels of the first image are torchvision's; the others are background there and transparent here."""
    payload = gifs()[name]
    theirs = decoded(payload)
    first = (theirs if theirs.ndim == 3 else theirs[0]).permute(1, 2, 0).numpy()
    ours = pillow.decode(memoryview(payload))
    with Image.open(io.BytesIO(payload)) as image:
        x0, y0, x1, y1 = image.tile[0][1] or (0, 0, 0, 0)
        clear, background = image.info.get("transparency", 0), image.info.get("background", 0)
        opaque = np.zeros(ours.shape[:2], bool)
        opaque[y0:y1, x0:x1] = "transparency" not in image.info
        opaque[y0:y1, x0:x1] |= np.asarray(image)[y0:y1, x0:x1] != clear
        table = np.array(image.getpalette() or [level for level in range(256) for _ in "RGB"]).reshape(-1, 3)
    assert np.array_equal(ours[opaque], first[opaque])
    assert (ours[~opaque] == table[clear]).all()
    assert (first[~opaque] == table[background]).all()
    assert opaque.all() == (name not in ("gif transparent", "gif on a canvas", "gif interlaced on a canvas"))


@pytest.mark.parametrize("name", ["gif without palette", "gif without end"])
def test_gifs_that_torchvision_refuses(name: str) -> None:
    """Without a palette Pillow takes levels of gray, and what comes behind the first image may be missing."""
    with pytest.raises(RuntimeError, match="decode_gif"):
        decoded(gifs()[name])
    assert pillow.decode(memoryview(gifs()[name])).shape == (31, 40, 3)


def webp(n: int, height: int, width: int) -> bytes:
    """A lossless one."""
    return encoded(pixels(n, height, width), "WEBP", lossless=True)


def mixed(count: int) -> list[bytes]:
    """JPEG, GIF, WebP and PNG by turns, each telling its number."""
    return [(jpeg, gif, webp, png)[n % 4](n, 16, 16) for n in range(count)]


def test_threads_change_nothing() -> None:
    """A mixed batch is the same with one thread and with eight, and when it is run over and over."""
    program = compile_host(Recipe((RandomResizedCrop((16, 16)),)))
    views = [memoryview(payload) for payload in mixed(64)]
    made = program.parameters(screen(views).sizes, np.arange(64), 0, 0).arrays
    found = []
    for threads, times in ((1, 1), (8, 4)):
        engine = make_engine("host", program, batch_size=64, device=None, tuning=Tuning(threads=threads))
        for _ in range(times):
            result = engine.redo(Work(engine.prepare(views), made))
            assert result.images is not None, result.bad
            found.append(result.images.clone())
        engine.close()
    assert all(torch.equal(one, found[0]) for one in found[1:])


def broken_gif() -> bytes:
    """It passes the screen, and its codes name entries that nobody has made."""
    payload = bytearray(gifs()["gif"])
    at = 13 + (6 << (payload[10] & 7)) + 12
    payload[at : at + 40] = b"\xff" * 40
    return bytes(payload)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Of two threads, whose images are 8x8."""
    recipe = Recipe((Resize((8, 8)),))
    made = make_engine("host", compile_host(recipe), batch_size=8, device=None, tuning=Tuning(threads=2))
    yield made
    made.close()


def marks(engine: Engine, payloads: Sequence[bytes]) -> dict[int, str]:
    """The bad slots of a batch that passes the screen whole."""
    views = [memoryview(payload) for payload in payloads]
    screened = screen(views)
    assert not screened.reasons
    program = compile_host(Recipe((Resize((8, 8)),)))
    arrays = program.parameters(screened.sizes, np.arange(len(views)), 0, 0).arrays
    return engine.redo(Work(engine.prepare(views), arrays)).bad


def test_a_gif_that_cannot_be_decoded_is_a_mark(engine: Engine) -> None:
    """It costs its own slot, and the reason names Pillow and what it said."""
    assert marks(engine, [gif(), jpeg(0)]) == {}
    bad = marks(engine, [gif(), broken_gif(), jpeg(0)])
    assert list(bad) == [1]
    assert bad[1].startswith("decoder: Pillow cannot decode it: OSError: broken data stream")


def kinds() -> dict[str, bytes]:
    """A file of each kind that Pillow decodes, and masks of two others."""
    levels = pixels(0, 31, 40)[..., 0]
    some = {f"webp {lossless}": encoded(pixels(0, 31, 40), "WEBP", lossless=lossless) for lossless in (False, True)}
    some |= {kind: encoded(pixels(0, 31, 40), kind) for kind in ("TIFF", "BMP", "PPM")}
    return gifs() | some | {"lzw": encoded(levels, "TIFF", compression="tiff_lzw")}


def test_pillows_own_bound_and_warnings_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image above Pillow's bound on pixels, which is the user's, is good; so is one of which Pillow warns."""
    want = {name: opened(payload) for name, payload in kinds().items()}
    mask = encoded(pixels(0, 31, 40)[..., 0], "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    for name, payload in kinds().items():
        assert not screen([memoryview(payload)]).reasons
        assert np.array_equal(pillow.decode(memoryview(payload)), want[name]), name
    assert pillow.opened(mask).size == (40, 31)
    assert Image.MAX_IMAGE_PIXELS == 1
    monkeypatch.undo()
    odd = bytearray(encoded(pixels(0, 31, 40), "TIFF"))
    at = odd.index(struct.pack("<HHI", 284, 3, 1))
    odd[at : at + 8] = struct.pack("<HHI", 284, 3, 2)  # two values where one is expected
    with pytest.warns(UserWarning, match="Metadata Warning"):
        opened(bytes(odd))
    assert pillow.decode(memoryview(odd)).shape == (31, 40, 3)  # a warning is an error here


def test_without_pillow_the_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no fault of the record's: it is never counted as bad."""
    views = [memoryview(payload) for payload in (gif(), jpeg(0), png(0))]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="pip install pillow"):
        screen(views)
    assert not screen(views[1:]).reasons


def fed(payloads: Sequence[bytes], engine: str) -> tuple[list[Any], Feed]:
    """The batches of 8 that a feed gives of the payloads, in their order, and the feed, closed."""
    items = [(payload, n) for n, payload in enumerate(payloads)]
    source = ScriptedSource(items, extent=8)
    feed = Feed(
        source,
        8,
        shuffle=False,
        transform=v2.Resize((16, 16)),
        decode=Decode(engine=engine),
        bad=BadRecords(limit=None),
        tuning=QUICK,
    )
    with feed:
        return list(feed), feed


@pytest.mark.parametrize("engine", ENGINES)
def test_a_feed_of_all_formats(engine: str) -> None:
    """Every engine delivers every record: what its decoder does not take has Pillow's pixels, and steps of its own."""
    payloads = mixed(32)
    batches, feed = fed(payloads, engine)
    assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(32))
    assert feed.stats().bad == 0
    images = np.concatenate([np.asarray(batch.images) for batch in batches])
    for n, payload in enumerate(payloads):
        assert np.array_equal(images[n], opened(payload).transpose(2, 0, 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_pillow_cannot_decode_costs_its_slot(engine: str) -> None:
    """On every engine a GIF that passes the screen and no decoder is replaced in its slot, with the reason."""
    payloads = [broken_gif() if n in (3, 12) else (gif, jpeg)[n % 2](n, 16, 16) for n in range(24)]
    batches, feed = fed(payloads, engine)
    ids = np.concatenate([batch.ids for batch in batches])
    assert ids.tolist() == [{3: 4, 12: 13}.get(n, n) for n in range(24)]
    assert [where for where, _ in feed.stats().recent_bad] == ["scripted[0]@3", "scripted[0]@12"]
    for _, reason in feed.stats().recent_bad:
        assert reason.startswith("decoder: Pillow cannot decode it: OSError: broken data stream")
    images = np.concatenate([np.asarray(batch.images) for batch in batches])
    for n, sample in enumerate(ids.tolist()):
        assert np.array_equal(images[n], opened(payloads[sample]).transpose(2, 0, 1))
