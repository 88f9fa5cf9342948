"""A run for which nobody gave `lanes` goes on with another number of ranks, as if nothing had happened."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg, labelled
from kit.inside import write_shard
from kit.member_shards import shards
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Packed, Text
from dali_feed.errors import StateError
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.testing import ScriptedSource

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])
SAMPLES, BATCH = 192, 64


def _dataset(kind: str, folder: Path) -> Any:
    if kind == "dataset":
        return TensorDataset(torch.arange(SAMPLES))
    if kind == "scripted":
        return ScriptedSource(labelled(SAMPLES), partitions=2, extent=8)
    if kind == "shards":
        for part in range(2):
            write_shard(folder / f"s-{part}.tar", [(jpeg(n), n) for n in range(SAMPLES // 2)])
        return ShardSet(str(folder / "s-*.tar"))
    for n in range(SAMPLES):
        (folder / f"{n:03}.jpg").write_bytes(jpeg(n))
    return FileList(sorted(folder.glob("*.jpg")), list(range(SAMPLES)))


def _options(kind: str = "scripted") -> dict[str, Any]:
    """Of a loader of that kind."""
    common = {"shuffle": True, "device": "cpu", "seed": 5}
    return common if kind == "dataset" else common | {"transform": CROP, "tuning": QUICK, "info": True}


def _ranks(dataset: Any, state: Any, ranks: int, options: dict[str, Any]) -> list[list[Any]]:
    """Batches of the rest of an epoch, and of the whole next one, on each rank."""
    found = []
    for rank in range(ranks):
        with DataLoader(dataset, BATCH // ranks, rank=rank, world_size=ranks, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found.append([batch for _ in range(2) for batch in loader])
    return found


def _samples(batches: list[Any]) -> dict[int, list[bytes]]:
    """Of the ranks' parts of a global batch: which samples it holds, with the pixels of each."""
    if not isinstance(batches[0][-1], torch.Tensor):
        return {
            sample: [images[k].numpy().tobytes(), bytes([ok])]
            for images, _, info in batches
            for k, (sample, ok) in enumerate(zip(info.ids.tolist(), info.ok.tolist(), strict=True))
        }
    return {int(value): [] for (values,) in batches for value in values}


@pytest.mark.filterwarnings("ignore::dali_feed.errors.FallbackWarning")
@pytest.mark.parametrize("kind", ["scripted", "shards", "files", "dataset"])
def test_saved_on_one_rank_it_goes_on_with_two_and_four(kind: str, tmp_path: Path) -> None:
    """Each global batch of the rest, and of the next epoch, has the samples and pixels of the run that was not cut."""
    dataset, options = _dataset(kind, tmp_path), _options(kind)
    with DataLoader(dataset, BATCH, **options) as loader:
        batches = iter(loader)
        whole = [next(batches)]
        state = json.loads(json.dumps(loader.state_dict()))
        whole += [*batches, *loader]
    for ranks in (1, 2, 4):
        parts = _ranks(dataset, state, ranks, options)
        found = [_samples(list(step)) for step in zip(*parts, strict=True)]
        assert found == [_samples([batch]) for batch in whole[1:]]


def test_no_record_is_repeated_that_was_not() -> None:
    """On one rank an epoch of a number that nothing divides has each record once."""
    with DataLoader(ScriptedSource(labelled(97)), 64, **_options()) as loader:
        ids = torch.cat([info.ids for *_, info in loader])
        assert loader.state_dict()["made_for"]["lanes"] == 1
    assert sorted(ids.tolist()) == list(range(97))


@pytest.mark.parametrize("kind", ["scripted", "dataset"])
@pytest.mark.filterwarnings("ignore::dali_feed.errors.FallbackWarning")
def test_the_first_state_says_once_where_it_can_go(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO, of a shuffled run; one in order has the lanes that it is given."""
    dataset, options = _dataset(kind, tmp_path), _options(kind)
    with caplog.at_level(logging.INFO, "dali_feed"), DataLoader(dataset, BATCH, **options) as loader:
        next(iter(loader))
        loader.state_dict()
        loader.state_dict()
        with DataLoader(dataset, BATCH, **options | {"shuffle": False}) as in_order:
            in_order.state_dict()
    told = [text for text in caplog.messages if "world size" in text]
    assert len(told) == 1
    assert "world size 1, 2, 4, with the same 64 samples" in told[0]


def test_a_number_that_a_state_cannot_go_to_is_refused() -> None:
    """It lists the lanes of both."""
    source, options = ScriptedSource(labelled(96), extent=8), _options()
    with DataLoader(source, 60, **options, lanes=3) as loader:
        state = loader.state_dict()
    with (
        DataLoader(source, 30, **options, rank=0, world_size=2) as loader,
        pytest.raises(StateError, match="lanes: the state has 3, this loader 2"),
    ):
        loader.load_state_dict(state)


def test_nothing_is_looked_at_when_a_loader_is_made() -> None:
    """The number of lanes comes of the records: it is found at the first use."""

    class Untouched(ScriptedSource):
        def snapshot(self, pin: Any = None) -> Any:
            msg = "looked at"
            raise AssertionError(msg)

    DataLoader(Untouched(labelled(8)), 64, shuffle=True, device="cpu", tuning=QUICK).close()


def test_a_column_that_joins_records_has_a_lane_on_each_rank(tmp_path: Path) -> None:
    """Documents that are packed together are those of a lane, so more lanes would make other rows of them."""
    source = shards(tmp_path, 36)
    tokens = {"tokens": Packed("txt", lambda text: [1] * len(text), 8)}
    for columns, lanes in ((tokens, 1), ({"text": Text("txt")}, 2)):
        with DataLoader(source, 36, shuffle=True, columns=columns, device="cpu", tuning=QUICK) as loader:
            assert loader.state_dict()["made_for"]["lanes"] == lanes
