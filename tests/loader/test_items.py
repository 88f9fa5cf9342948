"""What a batch's values become: stacked as torch collates them, and moved to a device, whatever they lie in."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from kit.images import QUICK, jpeg
from torch.utils.data import default_collate
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.external_sources import KafkaTopic
from dali_feed.loader.arguments import moved
from dali_feed.loader.items import stacked
from dali_feed.testing import Broker, Message
from dali_feed.testing.publisher import publish

ALIKE: dict[str, list[Any]] = {
    "ints": [1, -2, 3],
    "floats": [0.5, 1.0, -3.25],
    "bools": [True, False, True],
    "NumPy's numbers": [np.float32(1.5), np.float32(2)],
    "arrays": [np.arange(6, dtype=np.float32).reshape(2, 3) + n for n in range(3)],
    "arrays without axes": [np.array(2), np.array(3)],
    "tensors": [torch.arange(4), torch.arange(4) * 2],
}
LEFT: dict[str, list[Any]] = {
    "texts": ["a", "b"],
    "bytes": [b"a", b"b"],
    "nothing": [],
    "none among them": [1, None],
    "lists": [[1, 2], [3, 4]],
    "dicts": [{"a": 1}, {"a": 2}],
    "shapes that differ": [np.zeros(2), np.zeros(3)],
    "types that differ": [np.zeros(2), np.zeros(2, np.int64)],
    "tensors that differ": [torch.zeros(2), torch.zeros(3)],
    "arrays of texts": [np.array(["a"]), np.array(["b"])],
    "beyond 64 bits": [1, 1 << 63],
    "far beyond": [1, 1 << 70],
    "a type that torch has not": [np.zeros(2, np.longdouble)] * 2,
}


@pytest.mark.parametrize("kind", ALIKE)
def test_values_alike_are_stacked_as_torch_collates_them(kind: str) -> None:
    """Value for value and type for type."""
    found, wanted = stacked(ALIKE[kind]), default_collate(ALIKE[kind])
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", LEFT)
def test_others_are_left_as_they_are(kind: str) -> None:
    """A list of what the codec gave."""
    assert stacked(LEFT[kind]) is LEFT[kind]


def test_a_number_may_be_whole() -> None:
    """JSON writes 1 for 1.0: float64 wherever one of a batch is. Other byte orders and read-only views are copied."""
    assert torch.equal(stacked([1, 2.5]), torch.tensor([1, 2.5], dtype=torch.float64))
    assert torch.equal(stacked([np.arange(3, dtype=">i4")] * 2), torch.arange(3, dtype=torch.int32).expand(2, 3))
    assert stacked([np.frombuffer(b"ab", np.uint8)] * 2).tolist() == [[97, 98]] * 2


def test_fields_of_a_codec_come_stacked(embedded_broker: Broker) -> None:
    """Through a loader: boxes, a weight and a mark as tensors on its device, a caption as texts."""

    def codec(value: memoryview, key: bytes | None, _: Any) -> dict[str, Any]:
        n = int(key or b"0")
        boxes = np.full((2, 4), n, np.float32)
        return {"image": value, "label": n, "boxes": boxes, "weight": n / 2, "mark": n > 1, "caption": f"picture {n}"}

    embedded_broker.create("t", 1)
    publish(embedded_broker.servers, "t", [Message(jpeg(n), key=b"%d" % n) for n in range(4)])
    fields = ("label", "boxes", "weight", "mark", "caption")
    source = KafkaTopic("t", embedded_broker.servers, codec=codec, fields=fields)
    with DataLoader(source, 4, transform=v2.Resize((8, 8)), device="cpu", tuning=QUICK) as loader:
        _, labels, boxes, weight, mark, caption = next(iter(loader))
    assert torch.equal(boxes, labels[:, None, None].expand(4, 2, 4).float())
    assert torch.equal(weight, labels / 2)
    assert weight.dtype == torch.float64
    assert torch.equal(mark, labels > 1)
    assert caption == [f"picture {n}" for n in labels.tolist()]


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
