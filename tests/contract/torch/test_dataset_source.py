"""A map-style dataset of the user's own with transform= of the loader: its samples go through our engines."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK
from PIL import Image as Pillow
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Tuning
from dali_feed.columns import Image, Number
from dali_feed.errors import ConfigError, StateError
from dali_feed.external_sources import FileList

TRANSFORM = v2.Compose([v2.RandomResizedCrop(8), v2.ToDtype(torch.float32, scale=True)])


class Pictures(Dataset[Any]):
    """24 pictures, each given as `kind` says, and their numbers."""

    def __init__(self, folder: Path, kind: str, count: int = 24) -> None:
        self.kind, self.paths, self.threads = kind, [folder / f"{n:02}.png" for n in range(count)], set[int]()
        for n, path in enumerate(self.paths):
            if not path.exists():
                rng = np.random.default_rng(n)
                Pillow.fromarray(rng.integers(0, 255, (20 + n, 30, 3), np.uint8)).save(path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> Any:
        self.threads.add(threading.get_ident())
        path = self.paths[at]
        images: dict[str, Any] = {
            "path": lambda: str(path),
            "bytes": path.read_bytes,
            "pil": lambda: Pillow.open(path),
            "array": lambda: np.asarray(Pillow.open(path)),
            "tensor": lambda: torch.from_numpy(np.asarray(Pillow.open(path)).copy()).permute(2, 0, 1),
        }
        return images[self.kind](), at


def batches(data: Any, **options: Any) -> list[tuple[torch.Tensor, list[int]]]:
    """An epoch's images and labels."""
    with DataLoader(data, 4, device="cpu", shuffle=True, lanes=1, transform=TRANSFORM, tuning=QUICK, **options) as mine:
        return [(images, labels.tolist()) for images, labels in mine]


@pytest.mark.parametrize("kind", ["path", "bytes", "pil", "array", "tensor"])
def test_images_as_they_are_give_what_the_files_give(kind: str, tmp_path: Path) -> None:
    """The pixels, labels and order are those of the same files, without a warning: no loader of torch's runs it."""
    data = Pictures(tmp_path, kind)
    found = batches(data)
    assert sorted(label for _, labels in found for label in labels) == list(range(24))
    plain = v2.Compose([v2.Resize((8, 8)), v2.ToDtype(torch.float32, scale=True)])
    with (
        DataLoader(data, 24, device="cpu", transform=plain, tuning=QUICK) as one,
        DataLoader(FileList(data.paths, range(24)), 24, device="cpu", transform=plain, tuning=QUICK) as other,
    ):
        (mine, labels), (theirs, numbers) = next(iter(one)), next(iter(other))
    assert torch.equal(mine, theirs)
    assert labels.tolist() == numbers.tolist() == list(range(24))


def test_one_thread_calls_the_dataset_unless_the_user_says_more(tmp_path: Path) -> None:
    """A dataset that keeps a file open is safe by default; its look at the first sample is the user's own thread."""
    data = Pictures(tmp_path, "pil")
    with DataLoader(data, 4, device="cpu", transform=TRANSFORM) as mine:
        data.threads.clear()
        list(mine)
    assert len(data.threads) == 1
    with DataLoader(data, 4, device="cpu", transform=TRANSFORM, tuning=Tuning(readers=3)) as mine:
        assert mine.stats().readers in (0, 3)


def test_a_sample_that_fails_costs_its_slot(tmp_path: Path) -> None:
    """What `__getitem__` raises, and an image that is none, are bad records with coordinates; the others come."""

    class Fails(Pictures):
        def __getitem__(self, at: int) -> Any:
            if at == 7:
                msg = "no such row"
                raise KeyError(msg)
            return super().__getitem__(at)

    options: dict[str, Any] = {"bad": BadRecords(limit=None), "tuning": QUICK, "transform": TRANSFORM, "info": True}
    with DataLoader(Fails(tmp_path, "path"), 24, device="cpu", **options) as mine:
        paths: Any = mine.dataset
        paths.paths[3].unlink()
        paths.paths[5].write_bytes(b"no image")
        _, _, info = next(iter(mine))
        stats = mine.stats()
    assert [n for n, ok in enumerate(info.ok.tolist()) if not ok] == [3, 5, 7]
    reasons = dict(stats.recent_bad)
    assert "No such file" in reasons["Fails#3"]
    assert "KeyError: 'no such row'" in reasons["Fails#7"]


def test_it_resumes_with_its_augmentation(tmp_path: Path) -> None:
    """Stopped after two batches: the rest bit for bit, in another loader; a Subset of other samples is refused."""
    data = Pictures(tmp_path, "pil")
    options: dict[str, Any] = {"shuffle": True, "lanes": 1, "transform": TRANSFORM, "tuning": QUICK, "device": "cpu"}
    with DataLoader(data, 4, **options) as one:
        run = iter(one)
        next(run)
        next(run)
        state = json.loads(json.dumps(one.state_dict()))
        rest = list(run)
    with DataLoader(data, 4, **options) as other:
        other.load_state_dict(state)
        for (a, x), (b, y) in zip(other, rest, strict=True):
            assert torch.equal(a, b)
            assert x.tolist() == y.tolist()
    inner = Subset(data, range(20))
    with DataLoader(Subset(inner, range(10)), 2, **options) as one:
        state = one.state_dict()
    with DataLoader(Subset(Subset(data, range(4, 24)), range(10)), 2, **options) as other, pytest.raises(StateError):
        other.load_state_dict(state)
    joined: list[Any] = [ConcatDataset([Subset(data, range(at, at + 4)), Subset(data, range(8, 14))]) for at in (0, 4)]
    with DataLoader(joined[0], 2, **options) as one:
        state = one.state_dict()
    with DataLoader(joined[1], 2, **options) as other, pytest.raises(StateError):
        other.load_state_dict(state)


def test_a_dataset_of_mappings_gives_dicts_and_columns_choose(tmp_path: Path) -> None:
    """Keys are members: a batch is a dict of all of them, or what `columns=` asks for."""
    data = Pictures(tmp_path, "bytes")

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, at: int) -> Any:
            image, number = data[at]
            return {"img": image, "n": number, "weight": at / 2, "vector": torch.arange(3) + at, "name": f"n{at}"}

    with DataLoader(Rows(), 8, device="cpu", transform=v2.Resize((4, 4)), tuning=QUICK) as mine:
        batch = next(iter(mine))
    assert list(batch) == ["img", "n", "weight", "vector", "name"]
    assert batch["weight"].tolist() == [n / 2 for n in range(8)]
    assert batch["vector"].tolist() == [[n, n + 1, n + 2] for n in range(8)]
    assert batch["name"] == [f"n{n}" for n in range(8)]
    columns = {"n": Number("n"), "img": Image("img", v2.Resize((4, 4)))}
    with DataLoader(Rows(), 8, device="cpu", columns=columns, tuning=QUICK) as mine:
        assert list(next(iter(mine))) == ["n", "img"]
    with (
        pytest.raises(ConfigError, match=r"member 'gone'"),
        DataLoader(Rows(), 8, device="cpu", columns={"x": Number("gone")}) as mine,
    ):
        next(iter(mine))
