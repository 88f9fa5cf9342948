"""Insides that contract/torch/test_torch_feed.py needs not: they go with what they test."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from dali_feed.loader.device import moved

pytestmark = pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")


def test_batches_of_any_class_move() -> None:
    """Mappings, lists and packed sequences keep their class where they can; on the CPU nothing is touched."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    item = {"a": [torch.zeros(2), "text"], "b": OrderedDict(x=torch.zeros(1)), "c": packed}
    assert moved(item, torch.device("cpu")) is item
    there = moved({key: item[key] for key in ("a", "b")}, torch.device("meta"))
    assert there["a"][0].is_meta
    assert type(there["b"]) is OrderedDict
    assert there["b"]["x"].is_meta
