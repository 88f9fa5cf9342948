"""The pages for WebDataset's, Mosaic's and Hugging Face's users: their Python runs as printed.

What needs the other package is run where that is installed (webdataset, mosaicml-streaming, datasets).
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import jpeg
from kit.warm import Warm
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.external_sources import ShardSet
from dali_feed.packing import pack
from dali_feed.packing.sinks import write_shard

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("from-webdataset.md", "from-mosaic.md", "from-huggingface.md")
OTHERS = ("webdataset", "streaming", "datasets")
SHARDS, EACH = 4, 20


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def members(n: int) -> dict[str, bytes]:
    """A sample with all that the pages' columns ask for."""
    array, sound = io.BytesIO(), io.BytesIO()
    np.save(array, np.full(4, n, np.float32))
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * n))
    texts = {"txt": f"sample {n}".encode(), "cls": b"%d" % (n % 5), "json": json.dumps({"n": n}).encode()}
    bare = np.full(4, n, "<f4").tobytes()
    return {"jpg": jpeg(n, 40, 48), **texts, "npy": array.getvalue(), "f32": bare, "wav": sound.getvalue()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards that the pages name."""
    root = tmp_path_factory.mktemp("pages")
    images, pairs = [(jpeg(n, 40, 48), n % 5) for n in range(SHARDS * EACH)], [members(n) for n in range(2 * EACH)]
    for k in range(SHARDS):
        write_shard(root / f"train-{k:04d}.tar", images[k * EACH : (k + 1) * EACH], first=k * EACH)
    for k in range(2):
        write_shard(root / f"pairs-{k:04d}.tar", pairs[k * EACH : (k + 1) * EACH], first=k * EACH)
    pack(ShardSet(str(root / "train-*.tar")), root / "mds", to="mds")
    named = {"image": "jpg", "label": "cls", "caption": "txt", "features": "f32", "meta": "json"}
    pack(ShardSet(str(root / "pairs-*.tar")), root / "pairs", to="mds", members=named)
    if importlib.util.find_spec("datasets"):
        datasets = importlib.import_module("datasets")
        texts = {"caption": "txt", "meta": "json"}
        rows: dict[str, list[Any]] = {name: [pair[its].decode() for pair in pairs] for name, its in texts.items()}
        rows |= {"features": [pair["f32"] for pair in pairs], "label": [int(pair["cls"]) for pair in pairs]}
        rows["image"] = [{"bytes": pair["jpg"], "path": None} for pair in pairs]
        datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk(str(root / "photos"))
    return root


@pytest.mark.parametrize(("page", "number"), [(page, n) for page in PAGES for n in range(len(blocks(page)))])
def test_what_a_page_prints_runs(folder: Path, warm: Warm, page: str, number: int) -> None:
    """Every block stands by itself and ends without an error."""
    code = blocks(page)[number]
    for name in OTHERS:
        if re.search(rf"^(from|import) {name}\b", code, re.MULTILINE) and not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed")
    (folder / "block.py").write_text(code)
    done = warm.run(["block.py"], folder, beside=False, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_gives_the_same(folder: Path) -> None:
    """With shuffling off: its samples, in its order, and its pixels to the bit."""
    wds = pytest.importorskip("webdataset")
    transform = v2.Compose([v2.ToImage(), v2.Resize(36), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)])
    shards = str(folder / "train-{0000..0003}.tar")
    theirs = wds.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("jpg;png", "cls")
    theirs = wds.WebLoader(theirs.map_tuple(transform, int).batched(16), batch_size=None)
    with DataLoader(ShardSet(shards), 16, transform=transform, device="cpu") as ours:
        for (images, labels), (images_too, labels_too) in zip(theirs, ours, strict=True):
            assert torch.equal(images, images_too)
            assert labels.tolist() == labels_too.tolist()
