"""`Decode`: what it refuses, and what of it a state compares."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, labelled
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Tuning
from dali_feed.errors import ConfigError, StateError
from dali_feed.testing.scripted import ScriptedSource, ScriptedStream

CROP = v2.RandomResizedCrop(8)


def loader(*, live: bool = False, **options: Any) -> DataLoader:
    """Of eight pictures, bounded or as a stream."""
    source: Any = ScriptedStream(labelled(8)) if live else ScriptedSource(labelled(8), extent=4)
    given: dict[str, Any] = {"device": "cpu", "transform": CROP, "tuning": QUICK, "seed": 5} | options
    return DataLoader(source, 4, **given)


def state_of(**options: Any) -> dict[str, Any]:
    """A state behind the first of two batches, through JSON."""
    with loader(**options) as one:
        batches = iter(one)
        next(batches)
        found: dict[str, Any] = json.loads(json.dumps(one.state_dict()))
        return found


@pytest.mark.parametrize(
    ("group", "field", "wrong", "rule"),
    [
        (Decode, "engine", "gpu", "must be 'dali', 'host' or None; found 'gpu'"),
        (Decode, "exif", 1, "must be True, False or None; found 1"),
        (Decode, "hardware", 1.5, r"must lie in 0..1; found 1.5"),
        (Decode, "memory_format", torch.preserve_format, ".*channels_last; found torch.pres"),
        (Decode, "memory_format", "NHWC", ".*found 'NHWC'"),
        (Decode, "max_pixels", 0, ".*found 0"),
        (Decode, "max_work", 2.5, ".*found 2.5"),
        (Tuning, "memory", "much", ".*found 'much'"),
        (Tuning, "memory", 1000, ".*found 1000"),
        (Tuning, "next_epoch", 1, ".*found 1"),
        (Tuning, "readers", "many", ".*found 'many'"),
        (Tuning, "readers", 0, ".*found 0"),
        (Tuning, "readers", True, ".*found True"),
        (Tuning, "readers", 2.0, ".*found 2.0"),
        (Tuning, "cache", "8GB", "must be a Cache or None"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(group: Any, field: str, wrong: Any, rule: str) -> None:
    """With the argument, the rule and what was found."""
    with pytest.raises(ConfigError, match=rf"{group.__name__}\({field}=...\).*: {rule}"):
        group(**{field: wrong})


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.filterwarnings("ignore:Decode")
def test_a_state_lists_every_difference_of_what_decides_pixels_and_good_records(live: bool) -> None:
    """Turning, the JPEG engine's share and both bounds, all in one error; and the loader goes on as it was."""
    state = state_of(live=live)
    other = Decode(exif=True, hardware=0.5, max_pixels=1000, max_work=2000)
    with loader(live=live, decode=other) as one:
        with pytest.raises(StateError) as refused:
            one.load_state_dict(state)
        next(iter(one))
    for line in (
        "exif: the state has False, this loader True",
        "hardware: the state has 0.0, this loader 0.5",
        f"max_pixels: the state has {1 << 27}, this loader 1000",
        f"max_work: the state has {1 << 31}, this loader 2000",
    ):
        assert line in str(refused.value)


@pytest.mark.parametrize("live", [False, True])
def test_a_state_goes_on_with_another_engine_and_another_layout(live: bool) -> None:
    """Both stand in it for people alone."""
    state = state_of(live=live, decode=Decode(engine="host"))
    assert state["info"]["engine"] == "host"
    assert state["info"]["memory_format"] is None
    with loader(live=live, decode=Decode(engine="dali", memory_format=torch.channels_last)) as one:
        one.load_state_dict(state)
        images, labels = next(iter(one))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == [4, 5, 6, 7]
        assert one.state_dict()["info"]["memory_format"] == "torch.channels_last"


def test_exif_left_open_is_what_it_comes_to() -> None:
    """None is False for a source, and a state of one goes on with the other."""
    state = state_of()
    with loader(decode=Decode(exif=False)) as one:
        one.load_state_dict(state)
        assert next(iter(one))[1].tolist() == [4, 5, 6, 7]


def test_a_stream_refuses_readers_that_adapt() -> None:
    """It has one reader for all its partitions."""
    with pytest.raises(ConfigError, match=r'Tuning\(readers="auto"\): a stream has one reader'):
        loader(live=True, tuning=Tuning(readers="auto"))


@pytest.mark.parametrize("sampler", [np.arange(4), torch.arange(4), [0, 1], []])
def test_a_stream_refuses_any_sampler(sampler: Any) -> None:
    """An array too, whose truth is not one value."""
    with pytest.raises(ConfigError, match="^sampler: would change the data, .*a stream has its own order"):
        loader(live=True, sampler=sampler)
