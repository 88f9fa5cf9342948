"""Hugging Face's datasets: rows of the Arrow table that is behind them, with the columns that torch's loader gives."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg, png
from kit.inside import running
from kit.later import Later
from PIL import Image as Pillow
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, random_split
from torchvision.io import decode_image
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.errors import ConfigError, FallbackWarning
from dali_feed.external_sources import Table
from dali_feed.feed import Feed
from dali_feed.loader.adapters import Lowered, lower_dataset

datasets: Any = Later("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

TRANSFORM = v2.Compose([v2.ToImage(), v2.Resize((12, 10)), v2.ToDtype(torch.float32, scale=True)])


def rows(data: dict[str, list[Any]]) -> Any:
    """They as a dataset in memory, of these types."""
    types = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog", "eel"]),
        "score": datasets.Value("float32"),
        "flag": datasets.Value("bool"),
        "text": datasets.Value("string"),
        "year": datasets.Value("uint16"),
    }
    return datasets.Dataset.from_dict(data, features=datasets.Features(types))


def pictures(count: int = 15, first: int = 0) -> dict[str, list[Any]]:
    """Images of several sizes in two formats, and other columns."""
    numbers = range(first, first + count)
    return {
        "image": [{"bytes": (png if n % 4 == 3 else jpeg)(n, 20 + n, 30), "path": f"{n}.img"} for n in numbers],
        "label": [n % 3 for n in numbers],
        "score": [n / 7 for n in numbers],
        "flag": [n % 2 == 0 for n in numbers],
        "text": [f"picture {n}" for n in numbers],
        "year": [2000 + n for n in numbers],
    }


def made(count: int = 15, first: int = 0) -> Any:
    """A dataset in memory."""
    return rows(pictures(count, first))


def ours(dataset: Any, **options: Any) -> list[Any]:
    """An epoch of our loader, which must have read the table."""
    with DataLoader(dataset, 4, device="cpu", transform=TRANSFORM, tuning=QUICK, **options) as loader:
        assert isinstance(running(loader), Feed)
        return list(loader)


def torchs(dataset: Any, kind: str | None = None) -> list[Any]:
    """An epoch of torch's loader over the same dataset, decoded by torchvision."""

    class Decoded(torch.utils.data.Dataset[Any]):
        plain = dataset.cast_column("image", datasets.Image(decode=False)).with_format(kind)

        def __len__(self) -> int:
            return len(self.plain)

        def __getitem__(self, k: int) -> Any:
            row = self.plain[k]
            held = torch.frombuffer(bytearray(row["image"]["bytes"]), dtype=torch.uint8)
            return {**row, "image": TRANSFORM(decode_image(held, mode="RGB"))}

    return list(TorchLoader(Decoded(), 4))


def same(mine: list[Any], theirs: list[Any]) -> None:
    """Equal keys, values, types and pixels, to the bit."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert list(a) == list(b)
        for name, value in b.items():
            if isinstance(value, torch.Tensor):
                assert a[name].dtype == value.dtype, name
                assert torch.equal(a[name], value), name
            else:
                assert a[name] == value


@pytest.mark.parametrize("kind", [None, "torch"])
def test_batches_are_what_torchs_loader_makes(kind: str | None) -> None:
    """Dicts of the same columns, in every type and pixel, with Python's values and with the format "torch"."""
    same(ours(made().with_format(kind)), torchs(made(), kind))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "select": lambda data: data.select([9, 3, 3, 0]),
    "a slice": lambda data: data.select(range(4, 11)),
    "shuffle": lambda data: data.shuffle(seed=3),
    "shards of a shuffle": lambda data: data.shuffle(seed=3).shard(3, 1),
    "filter": lambda data: data.filter(lambda row: row["label"] == 1, load_from_cache_file=False),
    "split": lambda data: data.train_test_split(0.3, seed=1)["test"],
    "joined": lambda data: datasets.concatenate_datasets([data.select([2, 1]), made(5, 30), data.shuffle(seed=1)]),
    "fewer columns": lambda data: data.remove_columns(["text"]).rename_column("year", "age"),
    "side by side": lambda data: datasets.concatenate_datasets(
        [data, datasets.Dataset.from_dict({"more": list(range(15))})], axis=1
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_datasets(change: str) -> None:
    """Rows chosen, shuffled, joined and cut, in `datasets`' own order."""
    data = CHANGES[change](made())
    same(ours(data), torchs(data))


def test_a_dataset_on_disk_is_read_where_it_is_mapped(tmp_path: Path) -> None:
    """Saved and loaded, and from a folder of files, whose images the table only names."""
    made().save_to_disk(tmp_path / "saved", num_shards=3)
    same(ours(datasets.load_from_disk(tmp_path / "saved")), torchs(made()))
    names = []
    for n, row in enumerate(pictures()["image"]):
        names.append(str(tmp_path / f"{n}.img"))
        Path(names[-1]).write_bytes(row["bytes"])
    files = datasets.Dataset.from_dict({"image": names, "label": pictures()["label"]})
    same(ours(files.cast_column("image", datasets.Image())), torchs(made().select_columns(["image", "label"])))


def test_columns_of_a_format(tmp_path: Path) -> None:
    """Those alone that the format names; with the others as Python's values where it says so."""
    some = made().with_format("torch", columns=["image", "score"])
    assert [list(batch) for batch in ours(some)] == [["image", "score"]] * 4
    rest = made().with_format("torch", columns=["image", "score"], output_all_columns=True)
    assert ours(rest)[0]["score"].dtype == torch.float32
    other = made().with_format("torch", columns=["image"], output_all_columns=True)
    assert ours(other)[0]["score"].dtype == torch.float64


def test_parts_by_torch() -> None:
    """Subset and random_split of a dataset, as torch's users cut them."""
    data = made().shuffle(seed=2)
    for part in [Subset(data, [5, -1]), *random_split(data, [0.4, 0.6], torch.Generator().manual_seed(3))]:
        same(ours(part), torchs(data.select([k % 15 for k in part.indices])))


def test_a_state_is_good_in_another_process(tmp_path: Path) -> None:
    """The fingerprint is the data's, not `datasets`' own, which a changed function or a random one changes."""
    made().save_to_disk(tmp_path / "data")
    data = made()
    data._fingerprint = "another"
    first, second = (lower_dataset(each.shuffle(seed=3)) for each in (data, datasets.load_from_disk(tmp_path / "data")))
    assert isinstance(first, Lowered)
    assert isinstance(second, Lowered)
    assert isinstance(first.source, Table)
    assert first.source.snapshot().fingerprint == second.source.snapshot().fingerprint


def rotated() -> Any:
    """Eight images lie on their sides, are mirrored, and so on, and say so."""
    data = pictures()
    for way in range(1, 9):
        out, exif = io.BytesIO(), Pillow.Exif()
        exif[0x0112] = way
        Pillow.open(io.BytesIO(png(way, 20, 30))).save(out, "PNG", exif=exif)
        data["image"][way] = {"bytes": out.getvalue(), "path": None}
    return rows(data)


def own() -> Any:
    """One that gives its samples in a way of its own."""
    return type("Own", (datasets.Dataset,), {"__getitem__": lambda self, key: 1})(made().data, info=made().info)


REASONS: dict[str, tuple[Callable[[], Any], str]] = {
    "a function": (lambda: made().with_transform(dict), r"Python function .*with_format\(None\)"),
    "numpy": (lambda: made().with_format("numpy"), "has the format 'numpy'"),
    "a type": (lambda: made().with_format("torch", dtype=torch.float16), "has the format 'torch' .*float16"),
    "no image": (lambda: made().remove_columns("image"), "has 0 columns of images.*cast_column"),
    "not in the format": (lambda: made().with_format("torch", columns=["label"]), "has 0 columns of images"),
    "two": (
        lambda: made().add_column("mask", made().data.table["image"], feature=datasets.Image()),
        "has 2 columns of images.*select_columns",
    ),
    "grey": (lambda: made().cast_column("image", datasets.Image(mode="L")), "mode 'L'"),
    "boxes": (lambda: made().add_column("boxes", [[1, 2]] * 15), "'boxes' of list<"),
    "nothing": (lambda: made().select([]), "is empty"),
    "its own": (own, "has a __getitem__ of its own"),
    "iterable": (lambda: made().to_iterable_dataset(), "is iterable-style"),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_is_not_certain_to_be_the_same_is_not_taken(case: str) -> None:
    """It has a reason instead, with the cure; which the warning says."""
    make, why = REASONS[case]
    with pytest.warns(FallbackWarning, match=f"^dataset: .*{why}"):
        DataLoader(make(), device="cpu")


def test_images_are_turned_as_datasets_turns_them() -> None:
    """Its own decoding applies EXIF, so that is the default; of a Subset too. A crop is one of the upright image."""
    data = rotated()
    upright = torch.stack([TRANSFORM(data[k]["image"]) for k in range(1, 9)])
    assert torch.equal(torch.cat([batch["image"] for batch in ours(data)])[1:9], upright)
    assert torch.equal(torch.cat([batch["image"] for batch in ours(Subset(data, range(1, 9)))]), upright)


def test_pixels_as_they_are_stored() -> None:
    """Without decoding by `datasets` there is no EXIF to apply; nor where that is asked for, nor of a plain table."""
    data = rotated()
    stored = data.cast_column("image", datasets.Image(decode=False))
    same(ours(stored), torchs(stored))
    same(ours(data, decode=Decode(exif=False)), torchs(stored))
    table = Table(data.data.table, "image")
    asked: list[tuple[Any, dict[str, Any]]] = [
        (data, {}),
        (stored, {"decode": Decode(exif=True)}),
        (stored, {}),
        (table, {}),
    ]
    upright, also, first, second = (torch.cat([b["image"] for b in ours(one, **how)]) for one, how in asked)
    assert torch.equal(upright, also)
    assert torch.equal(first, second)
    assert not torch.equal(upright, first)


@pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")
def test_a_dataset_with_a_function_is_run_by_torch() -> None:
    """In our order."""

    def change(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"pixels": [TRANSFORM(image) for image in rows["image"]], "label": rows["label"]}

    data = made().with_transform(change)
    with DataLoader(data, 4, shuffle=True, device="cpu") as loader:
        labels = [batch["label"].tolist() for batch in loader]
    with DataLoader(made(), 4, shuffle=True, device="cpu", transform=TRANSFORM, tuning=QUICK) as loader:
        assert [batch["label"].tolist() for batch in loader] == labels


def test_several_splits_are_refused() -> None:
    """A DatasetDict is no dataset; its splits are named."""
    splits = datasets.DatasetDict({"train": made(), "test": made()})
    with pytest.raises(ConfigError, match=r"found a DatasetDict of the splits 'train', 'test'; give one of them"):
        DataLoader(splits, device="cpu")
