"""Peers do our work: the same images, cropped, flipped and normalized, epoch after epoch; and then they end."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.broker.handle import Kafka
from peer_turns import BATCH, COUNT, CROP, Turn, job_in, levels, turn_of
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.bench.contract import Job, Topic
from dali_feed.bench.peers import table
from dali_feed.bench.peers._floats import window
from dali_feed.bench.peers._peer import Peer
from dali_feed.bench.peers._ray import TAKES_PART
from dali_feed.bench.work import MEAN, STD, transform
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList
from dali_feed.testing import Message, publish

CLOSE = 5 / 255 / min(STD)  # five levels of 255: what JPEG and the decoders' colours come to
SEEN = 12  # of 24 images, in 13 epochs of drawing: a peer that draws with replacement has seen more
MEAN_CLOSE = 0.35  # of red's mean over 300 crops; they are 1.1 apart from each other, so 5 standard errors

HEAVY = {"ray-files", "ray-kafka", "grain", "mosaic", "litdata"}  # seconds of imports or processes


def _peers(names: dict[str, str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long if name in HEAVY else ()) for name in names]


def _peer(name: str) -> Peer:
    made = {peer.name: peer for peer in (*table.image_peers(), *table.kafka_peers())}[name]
    assert isinstance(made, Peer)
    return made


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The images as files and tars."""
    return job_in(tmp_path_factory.mktemp("peers"))


def _able(name: str, job: Job) -> Peer:
    peer = _peer(name)
    os.environ[TAKES_PART] = "1"
    if reason := peer.missing(job):
        pytest.skip(f"{name}: {reason}")
    return peer


def test_ray_takes_part_only_if_asked_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun once more it may end the process, and with it what was measured: it is named, with the way to it."""
    monkeypatch.delenv(TAKES_PART, raising=False)
    reason = _peer("ray-files").missing(job)
    assert reason is not None
    assert f"{TAKES_PART}=1" in reason or "no ray" in reason


@pytest.fixture(scope="module", params=_peers(table.IMAGE))
def turn(request: pytest.FixtureRequest, job: Job) -> Turn:
    """One turn of a peer, in its first way."""
    peer = _able(request.param, job)
    return turn_of(peer, job, peer.ways(job)[0])


@pytest.fixture(scope="module")
def ours(job: Job) -> torch.Tensor:
    """What our loader gives of the same images, (n, 3, crop, crop)."""
    source = FileList.from_folder(job.data.files)
    with DataLoader(source, BATCH, shuffle=True, device="cpu", transform=transform(CROP)) as loader:
        return torch.cat([images for _ in range(13) for images, _ in loader])


def _check_alike(batches: torch.Tensor, ours: torch.Tensor) -> None:
    """The mean of red, which is all that crops move, and the images themselves by their green and blue."""
    assert abs(batches[:, 0].mean() - ours[:, 0].mean()) < MEAN_CLOSE
    known = {levels(k): image for k, image in enumerate(_flat())}
    assert len(known) == COUNT
    flat = torch.stack(list(known.values()))
    for each in (batches, ours):
        away = (each[:, None, 1:].mean(dim=(3, 4)) - flat[None, :, :]).abs().amax(dim=2)
        assert away.min(dim=1).values.max() < CLOSE
        assert len(set(away.argmin(dim=1).tolist())) >= SEEN


def _flat() -> Iterator[torch.Tensor]:
    for k in range(COUNT):
        yield (torch.tensor(levels(k)) / 255 - torch.tensor(MEAN[1:])) / torch.tensor(STD[1:])


def test_a_batch_has_the_shape_and_the_type_of_ours(turn: Turn, ours: torch.Tensor) -> None:
    """Batches are whole, float32 NCHW on the device, and a step tells how many images it has."""
    assert turn.said == BATCH
    for batch in turn.batches:
        assert batch.shape == (BATCH, *ours.shape[1:])
        assert (batch.dtype, batch.device) == (ours.dtype, ours.device)
        assert ours.min() - CLOSE < batch.min()
        assert batch.max() < ours.max() + CLOSE


def test_the_images_are_ours(turn: Turn, ours: torch.Tensor) -> None:
    """Each image is one of those that we give, normalized alike, and crops of them have the same mean."""
    _check_alike(torch.cat(list(turn.batches)), ours)


def test_images_are_cropped_and_flipped(turn: Turn) -> None:
    """Red grows to the right in about half of all images, and by another amount in each."""
    images = torch.cat(list(turn.batches))
    slopes = (images[:, 0, :, -1] - images[:, 0, :, 0]).mean(dim=1)
    assert 0.35 < (slopes > 0).float().mean() < 0.65
    assert slopes.abs().std() > 0.3


def test_two_steps_differ(turn: Turn) -> None:
    """No batch comes twice."""
    assert len({batch.numpy().tobytes() for batch in turn.batches}) == len(turn.batches)


def test_nothing_is_left_of_a_turn(turn: Turn) -> None:
    """Whoever leaves the context has no thread and no process of it."""
    assert not turn.threads
    assert not turn.processes


@pytest.mark.long
@pytest.mark.parametrize("name", list(table.IMAGE))
def test_each_way_does_the_work(name: str, job: Job) -> None:
    """Every setting gives whole batches and ends, not the first alone."""
    peer, two = _able(name, job), dataclasses.replace(job, threads=2)
    for way in peer.ways(two):
        done = turn_of(peer, two, way, steps=4)
        assert [tuple(batch.shape) for batch in done.batches] == [(BATCH, 3, CROP, CROP)] * 4, way
        assert (done.threads, done.processes) == ([], []), way


@pytest.mark.parametrize("name", [name for name in _peers(table.KAFKA) if name.values != ("kafka-python",)])
def test_a_peer_reads_the_topic_that_we_read(name: str, job: Job, embedded: Kafka, ours: torch.Tensor) -> None:
    """Images of a topic come as ours do, again and again, and nothing is left of the turn."""
    _check_topic(name, job, embedded, ours)


def test_kafka_python_reads_the_topic_that_we_read(job: Job, real_kafka: Kafka, ours: torch.Tensor) -> None:
    """The same of a broker that it can read: it gets no answer from the embedded one."""
    _check_topic("kafka-python", job, real_kafka, ours)


def _check_topic(name: str, job: Job, kafka: Kafka, ours: torch.Tensor) -> None:
    kafka.create(kafka.topic, 2)
    publish(kafka.servers, kafka.topic, (Message(path.read_bytes()) for path in job.data.files.glob("*/*.jpg")))
    data = dataclasses.replace(job.data, topic=Topic(kafka.topic, kafka.servers))
    job = dataclasses.replace(job, data=data)
    peer = _able(name, job)
    done = turn_of(peer, job, peer.ways(job)[0])
    _check_alike(torch.cat(list(done.batches)), ours)
    assert {batch.shape for batch in done.batches} == {(BATCH, *ours.shape[1:])}
    assert (done.threads, done.processes) == ([], [])


def test_the_table_loads_no_peer() -> None:
    """Who reads the names alone pays for no package of others."""
    told = "import sys, dali_feed.bench.peers.table; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-P", "-c", told], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "nvidia", "webdataset", "datasets", "ray", "kafka", "confluent_kafka"} & set(loaded.split())


@pytest.mark.parametrize("name", [*table.IMAGE, *table.KAFKA])
def test_a_missing_package_is_told_with_the_command(name: str, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is not installed says so and what to install; it raises nothing, nor does it begin."""
    peer = _peer(name)
    for module in peer.modules:
        monkeypatch.setitem(sys.modules, module, None)  # as Python has what cannot be found
    assert peer.name == name
    reason = peer.missing(job)
    assert reason is not None
    assert peer.package in reason
    assert "pip install 'dali-feed[" in reason


@pytest.mark.parametrize("name", list(table.KAFKA))
def test_a_reader_of_topics_asks_for_one(name: str, job: Job) -> None:
    """Where the data is in no topic, it says so, and turns away who begins it all the same."""
    peer = _peer(name)
    assert "this data is not in one" in str(peer.unable(job))
    with pytest.raises(ConfigError, match="this data is not in one"), peer.turn(job, peer.ways(job)[0]):
        pass


def test_a_reader_of_shards_asks_for_some(job: Job) -> None:
    """WebDataset says that it reads tars alone."""
    peer = _able("webdataset", job)
    reason = peer.missing(dataclasses.replace(job, data=dataclasses.replace(job.data, shards=())))
    assert reason is not None
    assert "tar" in reason


def test_windows_are_those_of_torchvision() -> None:
    """Where torch's generator cannot draw, windows lie inside and have the areas and shapes of RandomResizedCrop."""
    height, width, count = 300, 400, 2000
    rng, crop = np.random.default_rng(0), v2.RandomResizedCrop(8)
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    theirs = [crop.make_params([image]) for _ in range(count)]
    want = np.array([[each[name] for name in ("top", "left", "height", "width")] for each in theirs])
    got = np.array([window(rng, height, width) for _ in range(count)])
    top, left, high, wide = got.T
    assert (top.min(), left.min()) >= (0, 0)
    assert (top + high).max() <= height
    assert (left + wide).max() <= width
    np.testing.assert_allclose(got.mean(axis=0), want.mean(axis=0), rtol=0.05)
    np.testing.assert_allclose(got.std(axis=0), want.std(axis=0), rtol=0.05)


def test_scratch_is_written_once(job: Job) -> None:
    """What a peer writes for itself is there for the turns that follow."""
    peer = _able("mosaic", job)
    turn_of(peer, job, peer.ways(job)[0], steps=1)
    before = {path: path.stat().st_mtime_ns for path in Path(job.scratch).rglob("*.mds")}
    turn_of(peer, job, peer.ways(job)[0], steps=1)
    assert before == {path: path.stat().st_mtime_ns for path in Path(job.scratch).rglob("*.mds")}
