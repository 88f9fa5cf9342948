"""Peers do our work on images of one's own: the same images, cropped, flipped and normalized, epoch after epoch."""

from __future__ import annotations

import importlib.util
import io
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kit.images import encoded
from PIL import Image

from dali_feed.bench import peers
from dali_feed.bench.data import BenchJob, cached, own_images, payloads_of, topic_here
from dali_feed.bench.loading import contestants
from dali_feed.bench.ours import MEAN, STD
from dali_feed.bench.peers import beside, kafka_peer
from dali_feed.bench.runner import Contestant
from dali_feed.cli.options import load_object
from dali_feed.errors import SourceEmptyError
from dali_feed.external_sources import FileList, ShardSet

CLOSE = 5 / 255 / min(STD)  # five levels of 255: what JPEG and the decoders' colours come to
COUNT, BATCH, CROP = 24, 8, 32
SEEN = 12  # of 24 images, in 13 epochs of drawing: a peer that draws with replacement has seen more
WHO = ("tar", "folder", "ceiling", "bare", "torch", "webdataset", "dali")


def levels(k: int) -> tuple[int, int]:
    """Green and blue of the k-th image, which no crop and no flip changes; its red grows from left to right."""
    return 10 * k, 255 - 10 * k


def jpeg(k: int) -> memoryview:
    """The k-th image."""
    pixels = np.empty((48, 64, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, 64)
    pixels[..., 1], pixels[..., 2] = levels(k)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return memoryview(file.getvalue())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BenchJob:
    """The images as files and tars, and the work on them."""
    data = own_images(((jpeg(k), k % 2) for k in range(COUNT)), "ramps", tmp_path_factory.mktemp("peers"))
    return BenchJob(data, BATCH, "cpu", 1, CROP)


def check(peer: Contestant, way: str, epochs: int = 13) -> None:
    """Whole batches of floats; each image is one of ours, normalized alike, cropped, and flipped in half of them."""
    before = threading.active_count()
    with peer.opens(way) as steps:
        steps.keeps = True
        batches = []
        for _ in range(epochs * COUNT // BATCH):
            assert next(steps) == BATCH
            batches.append(steps.images.clone())
    images = torch.cat(batches)
    assert (images.shape[1:], images.dtype, images.device.type) == ((3, CROP, CROP), torch.float32, "cpu")
    colours = torch.tensor([levels(k) for k in range(COUNT)]) / 255
    flat = (colours - torch.tensor(MEAN[1:])) / torch.tensor(STD[1:])
    away = (images[:, None, 1:].mean(dim=(3, 4)) - flat[None]).abs().amax(dim=2)
    assert away.min(dim=1).values.max() < CLOSE
    assert len(set(away.argmin(dim=1).tolist())) >= SEEN
    slopes = (images[:, 0, :, -1] - images[:, 0, :, 0]).mean(dim=1)
    assert 0.3 < (slopes > 0).float().mean() < 0.7
    assert slopes.abs().std() > 0.1
    assert threading.active_count() <= before + 1  # DALI's and torch's own may take a moment


@pytest.mark.parametrize(
    ("who", "way"),
    [
        *((who, None) for who in WHO),  # in each one's first way
        *(
            pytest.param(who, way, marks=pytest.mark.long)
            for who, way in (("torch", "uint8 x1"), ("torch", "pil x1"), ("dali", "external source x1"))
        ),
    ],
)
def test_everybody_does_the_same_work(job: BenchJob, who: str, way: str | None) -> None:
    """Who makes floats, and who reads, changes no work."""
    (peer,) = [each for each in contestants(job) if each.name == who]
    if peer.unable:
        pytest.skip(peer.unable)
    check(peer, way or peer.ways[0])


def test_a_client_of_kafka_by_hand_does_it(job: BenchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a topic; without one it says what to do."""
    assert "dali-feed produce" in str(kafka_peer(job).unable)
    with topic_here(job.data) as topic:
        peer = kafka_peer(replace(job, data=replace(job.data, topic=topic)))
        monkeypatch.setattr(peers, "BUFFER", 2 * COUNT)  # its worker draws from no more, which it waits for
        check(peer, "uint8 x1", epochs=5)


def picture(form: str, seed: int, side: int = 32) -> memoryview:
    """Of noise."""
    return memoryview(encoded(np.random.default_rng(seed).integers(0, 256, (side, side + 8, 3), np.uint8), form))


def test_files_and_shards_hold_the_same_images(tmp_path: Path) -> None:
    """Each is once a file, below its class, and once in the shards; what nobody could decode is left out and told.

    No bytes of an image, a cut one, and a format that some loaders do not know. Where not all fit into memory, those
    that are held are spread over the classes.
    """
    given = [(picture("PNG", k), k % 3) for k in range(9)]
    whole = picture("JPEG", 0)
    bad = [(memoryview(b"no image"), 0), (whole[: len(whole) // 2], 1), (picture("BMP", 1), 0)]
    data = own_images([*given, *bad], "mine", tmp_path)
    files = FileList.from_folder(data.files)
    assert data.name == "9 images of mine, 3 left out (BMP is not read by every loader)"
    assert (data.count, len(files), len(ShardSet(list(map(str, data.shards))).snapshot())) == (9, 9, 9)
    assert len(ShardSet(list(map(str, data.linked))).snapshot()) == 12 * 9
    assert sorted(payloads_of(data)) == sorted(bytes(payload) for payload, _ in given)
    assert files.labels is not None
    assert sorted(files.labels.tolist()) == sorted(label for _, label in given)
    assert (data.height, data.width) == (32, 40)
    held = payloads_of(data, 4 * data.mean_bytes)
    assert len(held) == 4
    assert {label for payload, label in given if bytes(payload) in held} == {0, 1, 2}
    two = own_images([(picture("PNG", 0), 0), (picture("PNG", 1, 48), 1)], "two", tmp_path / "two")
    assert (len(two.shards), two.height, two.width) == (2, 0, 0)  # of several sizes none is named
    assert own_images(given, "nine", tmp_path / "nine", limit=1).count == 1
    with pytest.raises(SourceEmptyError, match="mine: a bench of loaders needs images .*; found none; 2 were left out"):
        own_images(bad[:2], "mine", tmp_path / "none")


def test_of_two_first_runs_at_once_the_second_takes_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own is dropped; once there, nothing is made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "dali_feed" / "bench"

    def make(folder: Path) -> None:
        (folder / "a").write_text("second")
        (home / "some").mkdir()
        (home / "some" / "a").write_text("first")

    assert (cached("some", make) / "a").read_text() == "first"
    assert cached("some", make) == home / "some"
    assert list(home.iterdir()) == [home / "some"]


@pytest.mark.parametrize("name", ["spdl", "litdata"])
def test_the_examples_of_other_loaders_are_contestants(name: str, tmp_path: Path) -> None:
    """Each is found by its name; where the package is installed it gives normalized crops, more than an epoch."""
    path = Path(__file__).parents[2] / "examples" / "other_loaders.py"
    function = load_object("--beside", f"{path}:{name}")
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name} is installed")
    records = ((jpeg(k), k % 3) for k in range(COUNT))
    job = BenchJob(own_images(records, "mine", tmp_path), BATCH, "cpu", 2, CROP)
    with beside(function, job, name).opens("") as steps:
        steps.keeps = True
        for _ in range(2 * COUNT // BATCH):
            assert next(steps) == BATCH
        assert steps.images.shape == (BATCH, 3, CROP, CROP)
        assert steps.images.dtype == torch.float32
