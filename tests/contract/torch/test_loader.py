"""DataLoader: torch's arguments with torch's meaning, and batches as torch tensors."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, jpeg, labelled, pixels, png
from kit.inside import Corrupt, Gap, running
from kit.inside import arguments as torch_arguments
from kit.refused import first, refusals
from torch.utils.data import DataLoader as TorchLoader
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Info, Shuffle, Tuning
from dali_feed.errors import ConfigError, TransformError
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")

SOURCE = ScriptedSource(labelled(10), extent=4)


def _loader(source: Any = SOURCE, batch_size: Any = 4, **options: Any) -> DataLoader:
    chosen: dict[str, Any] = {"device": "cpu", "tuning": QUICK} | options
    return DataLoader(source, batch_size, **chosen)


def test_the_signature_begins_with_torchs_own() -> None:
    """Names, order, kinds and defaults are those of the installed torch.utils.data.DataLoader."""
    torchs = list(inspect.signature(TorchLoader.__init__).parameters.values())
    ours = list(inspect.signature(DataLoader.__init__).parameters.values())
    told = [(p.name, p.kind, p.default) for p in torchs]
    assert [(p.name, p.kind, p.default) for p in ours[: len(torchs)]] == told
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(torchs) :])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampler": [1], "shuffle": True}, "^sampler option is mutually exclusive with shuffle$"),
    ({"num_workers": -1}, "^num_workers option should be non-negative; use num_workers=0 to "),
    ({"timeout": -1}, "^timeout option should be non-negative$"),
    ({"batch_sampler": [[1]], "batch_size": 1}, "^batch_sampler: .*BatchSampler"),
    (
        {"batch_sampler": [[1]]},
        "^batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_",
    ),
    ({"collate_fn": 3}, "^collate_fn: must be callable; found 3"),
    ({"generator": torch.Generator(), "seed": 3}, "^generator option is mutually exclusive with seed"),
    ({"generator": 3}, "^generator: must be a torch.Generator; found int"),
    ({"batch_size": 0}, "^batch_size should be a positive integer value, but got batch_size=0"),
    ({"batch_size": None}, "^batch_size=None: would change the data, and is not supported.*use batch_size=1"),
    ({"batch_size": 2.0}, "^batch_size should be .*=2.0"),
    ({"batch_size": True}, "^batch_size should be .*=True"),
    ({"shuffle": 1}, "^shuffle: .*found 1"),
    ({"shuffle": "yes"}, "^shuffle: "),
    ({"device": "tpu9"}, "^device: .*tpu9"),
    ({"device": "meta"}, "^device: "),
    ({"device": object()}, "^device: "),
    ({"decode": "host"}, "^decode: must be a Decode"),
    ({"bad": 5}, "^bad: must be a BadRecords; found "),
    ({"bad": 0}, "^bad: must be a BadRecords; found "),
    ({"tuning": {}}, "^tuning: must be a Tuning; found "),
    ({"tuning": {"threads": 2}}, "^tuning: must be a Tuning; found "),
    ({"seed": -1}, "seed"),
    ({"seed": 1 << 64}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"lanes": 0}, "^lanes: "),
    ({"lanes": 3}, "^lanes: .*lanes=3"),
    ({"lanes": 8}, "^lanes: .*lanes=8"),
    ({"rank": 0}, "^rank and world_size: "),
    ({"world_size": 2}, "^rank and world_size: "),
    ({"rank": 2, "world_size": 2}, "^rank: .*found 2"),
    ({"rank": -1, "world_size": 2}, "^rank: "),
    ({"rank": 0, "world_size": 0}, "^world_size: "),
    ({"rank": 0, "world_size": 2, "lanes": 1}, "^lanes: .*world_size=2"),
    ({"prefetch_factor": 0, "tuning": Tuning()}, "prefetch"),
]


@pytest.mark.parametrize(("options", "told"), REFUSED, ids=lambda value: str(value)[:30])  # without addresses
def test_what_cannot_be_is_a_config_error(options: dict[str, Any], told: str) -> None:
    """It is raised at once, names the argument, and is a ValueError as torch's are."""
    with pytest.raises(ConfigError, match=told) as caught:
        _loader(**options)
    assert isinstance(caught.value, ValueError)


SIZES = ScriptedSource([(jpeg(0), 0), (jpeg(1), 1), (jpeg(2, 24, 16), 2), (jpeg(3), 3)])
TWO_SIZES = r"scripted\[0\]@0 and \(24, 16\) from scripted\[0\]@2.*CenterCrop"
NO_DATASET = r"source: .*FileList\.from_folder"


@refusals(
    ConfigError,
    (lambda: _loader(prefetch_faktor=2), "prefetch_faktor", TypeError),
    (lambda: _loader("folder", tuning=Tuning()), NO_DATASET),
    (lambda: _loader(Path("folder"), tuning=Tuning()), NO_DATASET),
    (lambda: _loader(3, tuning=Tuning()), NO_DATASET),
    (lambda: _loader(None, tuning=Tuning()), NO_DATASET),
    (lambda: DataLoader("a", 4), "FileList"),
    (lambda: DataLoader("a/train-*.tar", 4), "ShardSet"),
    (lambda: DataLoader("kafka://b:9092/t", 4), "KafkaTopic"),
    (lambda: DataLoader([("a.jpg", "cat")], 4), r"must be ints; found 'cat' of a\.jpg"),
    (lambda: BadRecords(limit=0.01), r"Fraction\(1, 100\).*found 0\.01"),  # type: ignore[arg-type]
    (lambda: _loader(transform=v2.TenCrop(4)), "TenCrop", TransformError),
    (lambda: first(_loader(SIZES)), TWO_SIZES),
    (lambda: first(_loader(SIZES, transform=v2.Resize(16))), TWO_SIZES),
)
def test_what_is_refused_names_the_cure(call: Any, error: Any, said: str) -> None:
    """A name in a dataset's place is told the source; images of several sizes name two records."""
    with pytest.raises(error, match=said):
        call()


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and WORLD_SIZE count where both are set; one alone does not, and words are refused."""
    monkeypatch.setenv("RANK", "1")
    assert running(_loader()).world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with _loader() as mine:
        assert (running(mine).rank, running(mine).world_size) == (1, 2)
        assert [labels.tolist() for _, labels in mine] == [[5, 6, 7, 8], [9]]
    with _loader(rank=0, world_size=1) as mine:
        assert running(mine).world_size == 1
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE"):
        _loader()
    assert os.environ["RANK"] == "two"


def test_batches_are_tuples_of_tensors() -> None:
    """uint8 NCHW images without a transform, int64 labels, the last batch smaller; len() is what comes."""
    with _loader(ScriptedSource([(png(n), n) for n in range(10)])) as mine:
        batches = list(mine)
        assert len(mine) == len(batches) == 3
    for k, (images, labels) in enumerate(batches):
        assert images.dtype == torch.uint8
        assert images.shape == (4 if k < 2 else 2, 3, 16, 16)
        assert labels.dtype == torch.int64
        assert labels.tolist() == list(range(4 * k, min(4 * k + 4, 10)))
        for image, label in zip(images, labels.tolist(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(label))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_the_dtype_is_what_the_transform_ends_in(dtype: torch.dtype) -> None:
    """Values too: 0..1 for floats, within what the dtype can tell."""
    with _loader(ScriptedSource([(png(3), 3)]), transform=v2.ToDtype(dtype, scale=True)) as mine:
        ((images, _),) = mine
    assert images.dtype == dtype
    expected = torch.from_numpy(pixels(3)).permute(2, 0, 1)
    if dtype.is_floating_point:
        assert torch.allclose(images[0].float(), expected.float() / 255, atol=5e-3)
    else:
        assert torch.equal(images[0], expected)


def test_channels_last_is_a_matter_of_memory() -> None:
    """memory_format changes the strides of a batch and not a pixel of it."""
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    batches = []
    for memory_format in (None, torch.channels_last):
        with _loader(transform=transform, decode=Decode(memory_format=memory_format)) as mine:
            batches.append([images for images, _ in mine])
    for plain, last in zip(*batches, strict=True):
        assert plain.is_contiguous()
        assert last.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(plain, last)


def test_without_labels_batches_are_images() -> None:
    """A source without other fields gives plain tensors."""
    with _loader(ScriptedSource([jpeg(n) for n in range(5)])) as mine:
        assert [tuple(batch.shape) for batch in mine] == [(4, 3, 16, 16), (1, 3, 16, 16)]
        assert all(isinstance(batch, torch.Tensor) for batch in mine)


def test_info_tells_what_stands_in_the_slots() -> None:
    """ids, ok and where, the replacement's own where one stands in."""
    items = labelled(8)
    items[2], items[3] = Corrupt(), Gap()
    with _loader(ScriptedSource(items, extent=8), info=True, bad=BadRecords(limit=None)) as mine:
        (_, labels, info), (_, _, second) = mine
    assert isinstance(info, Info)
    assert info.ids.tolist() == [0, 1, 4, 4]
    assert info.ids.dtype == torch.int64
    assert info.ok.tolist() == [True, True, False, False]
    assert info.where == ("scripted[0]@0", "scripted[0]@1", "scripted[0]@4", "scripted[0]@4")
    assert labels.tolist() == [0, 1, 4, 4]
    assert second.ok.all()
    with _loader(ScriptedSource([jpeg(0)]), info=True) as mine:
        ((images, info),) = mine
        assert images.shape[0] == len(info.where) == 1


def test_a_users_graph_function_runs_and_resumes() -> None:
    """Its draws are a function of the sample, so the rest after a restore is equal."""

    def graph(images: Any, draws: Any) -> Any:
        from nvidia.dali import fn

        return fn.cast_like(images * draws.uniform(0.5, 1.0) + draws.coin() * 10, images)

    with _loader(transform=graph, shuffle=True) as mine, _loader(transform=graph, shuffle=True) as other:
        batches = iter(mine)
        next(batches)
        other.load_state_dict(mine.state_dict())
        for (a, x), (b, y) in zip(batches, other, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(x, y)


def test_num_workers_and_prefetch_factor_become_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count where tuning does not say, and where it does they warn; 0 workers leave the choice to it."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with _loader(tuning=Tuning(), num_workers=3, prefetch_factor=5) as mine:
        assert (running(mine).tuning.threads, running(mine).tuning.prefetch) == (3, 5)
    with pytest.warns(UserWarning, match="has no effect here") as told:
        mine = _loader(tuning=Tuning(threads=1), num_workers=3, prefetch_factor=5)
    with mine:
        assert running(mine).tuning == Tuning(threads=1)
    assert {str(w.message).split()[0] for w in told} == {"num_workers", "prefetch_factor"}
    assert {w.filename for w in told} == {__file__}
    with _loader(tuning=Tuning()) as mine:
        assert running(mine).tuning == Tuning()


def test_a_sampler_gives_the_order() -> None:
    """Indices of the source in the order given, repeats too, read anew each epoch."""

    class Sampler:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([9, 0, 0, self.epoch])

    with _loader(sampler=Sampler()) as mine:
        assert [labels.tolist() for _ in range(2) for _, labels in mine] == [[9, 0, 0, 0], [9, 0, 0, 1]]


def test_stats_count_what_was_handed_over() -> None:
    """Samples, batches, bytes, bad and absent after an epoch, and their text."""
    items = labelled(12)
    items[4], items[5] = Corrupt(), Gap()
    source = ScriptedSource(items, extent=4)
    with _loader(source, bad=BadRecords(limit=None)) as mine:
        assert mine.stats().samples == 0
        list(mine)
        stats = mine.stats()
        assert (stats.samples, stats.batches, stats.bad, stats.absent) == (12, 3, 1, 1)
        assert stats.bytes_read == source.bytes_read
        assert stats.bottleneck in {"trainer", *(each.cause for each in stats.wait_causes)}
        assert min(stats.read_wait, stats.engine_wait, stats.trainer_wait, stats.step_wait_p50) >= 0
        assert stats.step_wait_p50 <= stats.step_wait_p99
        assert "scripted[0]@4" in str(stats)
        list(mine)
        assert mine.stats().bad == 2
        assert mine.stats().samples == 24


def test_describe_says_what_an_epoch_is_made_of() -> None:
    """Samples, extents, windows, memory, batches and engine, in words."""
    with _loader(shuffle=Shuffle(2, 3)) as mine:
        text = mine.describe()
    for part in (
        "10 samples",
        "extents: 5 of up to 2",
        "3 extents, 6 samples",
        "MB in memory",
        "batches: 3 of 4 per rank, 1 rank\n",
    ):
        assert part in text
    with _loader(shuffle=True) as mine:
        assert "uniformly" in mine.describe()
    with _loader() as mine:
        assert "order: the source's own, not shuffled" in mine.describe()
    with _loader(sampler=[1, 2]) as mine:
        assert "sampler" in mine.describe()


@pytest.mark.parametrize("epoch", [-1, 1 << 32, 0.5, True, "1"])
def test_an_epoch_that_cannot_be(epoch: Any) -> None:
    """set_epoch takes an int of 0..2**32-1."""
    with _loader() as mine, pytest.raises(ConfigError, match="set_epoch"):
        mine.set_epoch(epoch)
