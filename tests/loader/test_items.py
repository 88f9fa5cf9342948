"""What a batch's values become: columns of what a codec gave, and tensors moved to a device, whatever they lie in."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from kit.images import QUICK, jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Array, Image, Number, Text
from dali_feed.external_sources import KafkaTopic
from dali_feed.loader.arguments import moved
from dali_feed.testing import Broker, Message
from dali_feed.testing.publisher import publish


def test_what_a_codec_gives_comes_as_columns(embedded_broker: Broker) -> None:
    """Through a loader: boxes, a weight and a mark as tensors on its device, a caption as texts."""

    def codec(value: memoryview, key: bytes | None, _: Any) -> dict[str, Any]:
        n = int(key or b"0")
        boxes = np.full((2, 4), n, np.float32)
        return {"image": value, "label": n, "boxes": boxes, "weight": n / 2, "mark": n > 1, "caption": f"picture {n}"}

    embedded_broker.create("t", 1)
    publish(embedded_broker.servers, "t", [Message(jpeg(n), key=b"%d" % n) for n in range(4)])
    columns = {
        "image": Image("codec:image", v2.Resize((8, 8))),
        "label": Number("codec:label"),
        "boxes": Array("codec:boxes"),
        "weight": Number("codec:weight", "float64"),
        "mark": Number("codec:mark", "bool"),
        "caption": Text("codec:caption"),
    }
    source = KafkaTopic("t", embedded_broker.servers, codec=codec)
    with DataLoader(source, 4, columns=columns, device="cpu", tuning=QUICK) as loader:
        batch = next(iter(loader))
    labels = batch["label"]
    assert torch.equal(batch["boxes"], labels[:, None, None].expand(4, 2, 4).float())
    assert torch.equal(batch["weight"], labels / 2)
    assert torch.equal(batch["mark"], labels > 1)
    assert batch["caption"] == [f"picture {n}" for n in labels.tolist()]


class Pair(NamedTuple):
    """What a dataset may give."""

    value: torch.Tensor
    number: int


def test_batches_of_any_class_move() -> None:
    """Mappings, lists, named tuples and packed sequences keep their class; on the CPU nothing is touched."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    pair = Pair(torch.zeros(2), 1)
    item = {"a": [torch.zeros(2), "text"], "b": OrderedDict(x=torch.zeros(1)), "c": packed, "d": pair}
    assert moved(item, torch.device("cpu")) is item
    there = moved({key: item[key] for key in ("a", "b", "d")}, torch.device("meta"))
    assert there["a"][0].is_meta
    assert there["b"]["x"].is_meta
    assert there["d"].value.is_meta
    assert (type(there["b"]), type(there["d"])) == (OrderedDict, Pair)
