"""Peers do our work: the same images, cropped, flipped and normalized, epoch after epoch; and then they end."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dali_feed.bench.data import BenchJob, own_images, topic_here
from dali_feed.bench.loading import contestants
from dali_feed.bench.ours import MEAN, STD
from dali_feed.bench.peers import beside, kafka_peer
from dali_feed.bench.runner import Contestant

CLOSE = 5 / 255 / min(STD)  # five levels of 255: what JPEG and the decoders' colours come to
COUNT, BATCH, CROP = 24, 8, 32
STEPS = 13 * COUNT // BATCH
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


def check(peer: Contestant, way: str) -> None:
    """Whole batches of floats; each image is one of ours, normalized alike, cropped, and flipped in half of them."""
    before = threading.active_count()
    with peer.opens(way) as steps:
        steps.keeps = True
        batches = []
        for _ in range(STEPS):
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


def test_a_client_of_kafka_by_hand_does_it(job: BenchJob) -> None:
    """From a topic; without one it says what to do."""
    assert "dali-feed produce" in str(kafka_peer(job).unable)
    with topic_here(job.data) as topic:
        check(kafka_peer(replace(job, data=replace(job.data, topic=topic))), "uint8 x1")


def test_a_loader_of_a_users_is_begun_again_and_closed(job: BenchJob) -> None:
    """Batches may be tensors, tuples or dicts."""
    closed = []

    class Mine:
        def __init__(self, batches: list[object]) -> None:
            self._batches = batches

        def __iter__(self) -> object:
            return iter(self._batches)

        def close(self) -> None:
            closed.append(True)

    images = torch.zeros(3, 3, 2, 2)
    peer = beside(lambda _: Mine([images, (images, 1), {"image": images}]), job, "mine")  # type: ignore[arg-type,return-value]
    with peer.opens("") as steps:
        assert [next(steps) for _ in range(7)] == [3] * 7
    assert closed == [True]
