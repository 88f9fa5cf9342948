"""What goes with a batch is made by the feed thread: the trainer's thread has nothing left to draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, labelled
from kit.recorded import Recorded
from torchvision.transforms import v2

from dali_feed import DataLoader, Mixing
from dali_feed.errors import ConfigError, EngineError
from dali_feed.feed import Batch, machine
from dali_feed.feed.batch import MIX, Uploads
from dali_feed.loader.items import spread
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.mixing import Mixed, label_pairs, soft_labels
from dali_feed.transforms.program import Finish, Tail

FLOAT = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(torch.float32, scale=True)])


def loader(mixing: Mixing | None) -> DataLoader:
    """Twenty images in batches of four."""
    return DataLoader(ScriptedSource(labelled(20)), 4, transform=FLOAT, collate_fn=mixing, device="cpu", tuning=QUICK)


def test_a_label_that_is_no_class_is_told_in_its_place() -> None:
    """Behind all batches before it, with its record, and the state stands at the last one that came."""
    with loader(Mixing(0.4, classes=13)) as each:
        batches = iter(each)
        for _ in range(3):
            next(batches)
        with pytest.raises(ConfigError, match=r"labels must lie in 0\.\.12, because classes=13; found 13 in scripted"):
            next(batches)
        assert each.state_dict()["consumed"] == 12


@given(
    labels=st.lists(st.integers(0, 8), max_size=9),
    smoothing=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_labels_mixed_on_the_device_are_numpys(labels: list[int], smoothing: float, seed: int, kind: Any) -> None:
    """Bit for bit, where a sample meets itself or its own class too: every operation rounds once, in one order."""
    n, rng = len(labels), np.random.default_rng(seed)
    share = rng.choice(np.array([0.0, 1.0, *rng.random(4)], np.float32), n)
    partner = rng.integers(0, max(n, 1), n).astype(np.int32)
    drawn = Mixed(partner, share, np.zeros((n, 4), np.int32), share)
    pairs, weights = label_pairs(np.array(labels, kind), drawn)
    found = spread(torch.from_numpy(pairs), torch.from_numpy(weights), 9, smoothing)
    wanted = soft_labels(np.array(labels, np.int64), drawn, 9, smoothing)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy().view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("adjusts", [0, 2])
def test_a_kind_of_batch_is_rehearsed_before_the_loop_sees_it(adjusts: int) -> None:
    """Once: another size, another finish step or a mix is another kind, for which other code is compiled."""
    finish = Finish("float32", (1.0,) * 3, (0.0,) * 3, flip_x=True, flip_y=False, layout="NCHW", adjusts=adjusts)
    adjust = np.zeros((2, adjusts, 2), np.float32) if adjusts else None
    gpu, mixing = Recorded(), dict[str, Any]()
    uploads = Uploads(lambda batch, epoch: mixing, gpu)

    def launches(size: tuple[int, int], finish: Finish = finish) -> int:
        gpu.calls.clear()
        tail = Tail(finish, np.zeros(2, np.int32), None, adjust=adjust)
        uploads(Batch(np.zeros((2, *size, 3), np.uint8), tail, {}, np.arange(2), np.ones(2, bool)), 0)
        assert gpu.calls[-1] == "wait"
        return gpu.calls.count("launch")

    once = 2 if adjusts else 1
    assert [launches((6, 8)), launches((6, 8)), launches((6, 9)), launches((6, 8))] == [once, 0, once, 0]
    assert launches((6, 8), replace(finish, dtype="float16")) == once
    mixing |= {f"{MIX}partner": np.zeros(2, np.int32), f"{MIX}weight": np.ones(2, np.float32)}
    assert [launches((6, 8)), launches((6, 8))] == [once, 0]


def test_what_cannot_be_sent_is_an_engine_error() -> None:
    """Not a traceback out of torch: page-locked memory and the GPU's may both be exhausted."""

    class Full(Recorded):
        """A device without room."""

        def send(self, here: torch.Tensor) -> torch.Tensor:
            """None."""
            msg = "CUDA error: out of memory"
            raise RuntimeError(msg)

    batch = Batch(None, None, {}, np.arange(2), np.ones(2, bool))
    uploads = Uploads(lambda batch, epoch: {"ids": batch.ids}, Full())
    with pytest.raises(EngineError, match=r"^feed: what goes with a batch cannot be sent to the GPU; out of memory"):
        uploads(batch, 0)


@pytest.mark.parametrize("mixing", [None, Mixing(0.4, 1.0, classes=20, smoothing=0.1), Mixing(0.4)])
def test_what_was_sent_is_what_is_handed_over(mixing: Mixing | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before a GPU: fields and mixed labels come out of the block of their batch, equal to those made on the CPU."""
    with loader(mixing) as plain:
        wanted = list(plain)
    gpu = Recorded()
    monkeypatch.setattr(machine, "Uploads", lambda companions, device: Uploads(companions, gpu))
    with loader(mixing) as sent:
        for (images, labels), (same, others) in zip(wanted, sent, strict=True):
            assert torch.equal(images, same)
            pairs = zip(labels, others, strict=True) if isinstance(labels, tuple) else [(labels, others)]
            for one, other in pairs:
                assert one.dtype == other.dtype
                assert torch.equal(one, other)
                assert other.untyped_storage().nbytes() == other.nbytes  # not the whole block
    assert gpu.calls.count("send") == gpu.calls.count("wait") == gpu.calls.count("hold") == len(wanted)
