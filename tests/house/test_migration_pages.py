"""The pages for WebDataset's, Mosaic's and Hugging Face's users: their Python runs as printed; MDS arrives whole.

What needs the other package is run where that is installed (webdataset, mosaicml-streaming, datasets).
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.by_others import by_others
from kit.images import jpeg
from kit.warm import Warm
from PIL import Image
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Number, Text
from dali_feed.external_sources import ShardSet
from dali_feed.testing.shards import write_shard

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONVERT = ROOT / "examples" / "mds_to_tar.py"
PAGES = {  # which blocks need the other package
    "from-webdataset.md": [True, False, False, False],
    "from-mosaic.md": [True, False, False, False],
    "from-huggingface.md": [True, True],
}
OTHERS = ("webdataset", "streaming", "datasets")
SHARDS, EACH = 4, 20

MDS = by_others("gray/shard.00000.mds")
INDEX: dict[str, Any] = {
    "format": "mds",
    "version": 2,
    "samples": 3,
    "column_names": ["image", "label", "text"],
    "column_encodings": ["jpeg", "int", "str"],
    "column_sizes": [None, 8, None],
    "raw_data": {"basename": "shard.00000.mds"},
}


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def converted(warm: Warm, root: Path, *options: object, **changed: object) -> subprocess.CompletedProcess[str]:
    """mds_to_tar.py on the shard above, with its index changed."""
    source = root / "mds"
    source.mkdir(exist_ok=True)
    (source / "shard.00000.mds").write_bytes(MDS)
    (source / "index.json").write_text(json.dumps({"version": 2, "shards": [INDEX | changed]}))
    return warm.run([CONVERT, "mds", "tar", *options], root, beside=False)


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
    (root / "tar").mkdir()
    images = [(jpeg(n, 40, 48), n % 5) for n in range(SHARDS * EACH)]
    for k in range(SHARDS):
        for path in (root / f"train-{k:04d}.tar", root / "tar" / f"shard-{k:05d}.tar"):
            write_shard(path, images[k * EACH : (k + 1) * EACH], first=k * EACH)
    pairs = [members(n) for n in range(2 * EACH)]
    (root / "pairs").mkdir()
    for k in range(2):
        for path in (root / f"pairs-{k:04d}.tar", root / "pairs" / f"shard-{k:05d}.tar"):
            write_shard(path, pairs[k * EACH : (k + 1) * EACH], first=k * EACH)
    if importlib.util.find_spec("datasets"):
        datasets = importlib.import_module("datasets")
        texts = {"caption": "txt", "meta": "json"}
        rows: dict[str, list[Any]] = {name: [pair[its].decode() for pair in pairs] for name, its in texts.items()}
        rows |= {"features": [pair["f32"] for pair in pairs], "label": [int(pair["cls"]) for pair in pairs]}
        rows["image"] = [{"bytes": pair["jpg"], "path": None} for pair in pairs]
        datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk(str(root / "photos"))
    if importlib.util.find_spec("streaming"):
        streaming = importlib.import_module("streaming")
        with streaming.MDSWriter(out=str(root / "mds"), columns={"image": "jpeg", "label": "int"}) as writer:
            for image, label in images:
                writer.write({"image": Image.open(io.BytesIO(image)), "label": label})
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


def test_each_page_has_a_before_an_after_and_a_resume() -> None:
    """The first block alone needs the other package, but for a dataset, which is of that package itself."""
    for page, needed in PAGES.items():
        assert [
            any(f"import {name}" in code or f"from {name}" in code for name in OTHERS) for code in blocks(page)
        ] == needed


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


def test_further_columns_become_members(warm: Warm, tmp_path: Path) -> None:
    """Text as it is, and numbers as text; one that has no bytes of its own is refused."""
    done = converted(warm, tmp_path, "--image", "", "--label", "", "--more", "text=txt", "label")
    assert done.stdout == "3 samples in 1 shards; left out: image\n", done.stderr
    columns = {"text": Text("txt"), "label": Number("label")}
    with DataLoader(ShardSet(next((tmp_path / "tar").iterdir())), 3, device="cpu", columns=columns) as loader:
        (batch,) = loader
    assert batch["label"].tolist() == [7, 8, 9]
    assert all(text.encode() in MDS for text in batch["text"])
    assert any(batch["text"])


def test_a_shard_of_mdswriter_becomes_a_tar_shard(warm: Warm, tmp_path: Path) -> None:
    """Each JPEG to the byte, its label, in order; columns that have no place are named."""
    done = converted(warm, tmp_path, "--image", "image", "--label", "label")
    assert done.stdout == "3 samples in 1 shards; left out: text\n", done.stderr
    (shard,) = (tmp_path / "tar").iterdir()
    with DataLoader(ShardSet(shard), 3, device="cpu", transform=v2.CenterCrop(1)) as loader:
        ((images, labels),) = loader
    assert labels.tolist() == [7, 8, 9]
    assert [image[0].item() for image in images] == [0, 40, 80]
    files = [bytes(part) for part in shard.read_bytes().split(b"\xff\xd8")[1:]]
    assert all(b"\xff\xd8" + file[: file.index(b"\xff\xd9") + 2] in MDS for file in files)


@pytest.mark.parametrize(
    ("options", "changed", "said"),
    [
        (("--image", "picture"), {}, "no column is called 'picture'; there are image, label, text"),
        (("--more", "text"), {"column_encodings": ["jpeg", "int", "pkl"]}, "column 'text': .*; found 'pkl'"),
        ((), {"samples": 4}, "it is not as long, or does not hold as many samples, as index.json says"),
    ],
)
def test_what_cannot_be_converted_is_said(warm: Warm, tmp_path: Path, options: Any, changed: Any, said: str) -> None:
    """A sentence instead of a tar file."""
    done = converted(warm, tmp_path, *options, **changed)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert not list((tmp_path / "tar").glob("*"))
