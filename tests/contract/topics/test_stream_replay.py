"""A stretch of a Kafka stream read again: the same records under the same random numbers."""

from __future__ import annotations

import json
from typing import Any

import torch
from kit.images import jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader, Tuning
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import Broker, publish

RANDOM = v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
HOW: dict[str, Any] = {"device": "cpu", "transform": RANDOM, "tuning": Tuning(threads=1), "seed": 5, "info": True}


def test_a_replay_gives_what_the_loop_was_given(embedded_broker: Broker) -> None:
    """Between two states of a loader: each record that it received in between, once, with the same pixels."""
    embedded_broker.create("clicks", 2)
    publish(embedded_broker.servers, "clicks", [(jpeg(n), n) for n in range(24)])
    stream = KafkaStream("clicks", embedded_broker.servers, start="earliest", batch_timeout=0.2)
    pixels: dict[int, torch.Tensor] = {}
    with DataLoader(stream, 3, **HOW) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        a = json.loads(json.dumps(loader.state_dict()))
        for _ in range(4):
            images, _, info = next(batches)
            pixels |= dict(zip(info.ids.tolist(), images, strict=True))
        b = json.loads(json.dumps(loader.state_dict()))
    again: dict[int, torch.Tensor] = {}
    with DataLoader(stream.replay(a, [b]), 5, **HOW) as loader:
        for images, _, info in loader:
            again |= dict(zip(info.ids.tolist(), images, strict=True))
    assert again.keys() == pixels.keys()
    assert all(torch.equal(again[k], pixels[k]) for k in pixels)
