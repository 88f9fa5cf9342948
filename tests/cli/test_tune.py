"""`dali-feed tune`: it measures a user's own data, prints the line to paste, and keeps it; faults have names."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import jpeg

from dali_feed import DataLoader, Tuning
from dali_feed.external_sources import FileList
from dali_feed.feed import advice, measuring

__all__ = ["cli"]  # a fixture

TRANSFORM = "from torchvision.transforms import v2\ntrain = v2.CenterCrop(8)\nbroken = 1\n"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, with a transform's file beside it; turns are as short as can be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "_LONGEST", 1e-6)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for n in range(16):
        (tmp_path / "photos" / "cat" / f"{n:02}.jpg").write_bytes(jpeg(n))
    (tmp_path / "mine.py").write_text(TRANSFORM)
    return tmp_path / "photos"


def test_it_prints_the_line_and_keeps_it_for_the_loader(cli: Cli, photos: Path) -> None:
    """What the command kept stands in a loader of the same data, batch size and transform."""
    from torchvision.transforms import v2

    mine = f"{photos.parent / 'mine.py'}:train"
    done = cli("tune", photos, "--transform", mine, "--batch", 4, "--device", "cpu", "--seconds", 1, "--cpus", 1)
    assert done.code == 0, done.err
    assert re.search(r"^  Tuning\(.*\)$", done.out, re.MULTILINE)
    assert "batch_size=8: " in done.out, "advice"
    path = re.search(r"kept in (\S+\.json):", done.out)
    assert path
    held = Path(path[1])
    found = json.loads(held.read_text())
    assert found["machine"]["cpus"] == 1
    held.write_text(json.dumps(found | {"tuning": {"readers": 3}}))
    source = FileList.from_folder(photos)
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(here)[:1])  # the machine that the command was told of
    try:
        auto = Tuning.auto()
        with DataLoader(source, 4, shuffle=True, transform=v2.CenterCrop(8), device="cpu", tuning=auto) as loader:
            next(iter(loader))
            assert "tuning: readers 3; kept in " in loader.describe()
    finally:
        os.sched_setaffinity(0, here)


def test_quick_gives_no_advice(cli: Cli, photos: Path) -> None:
    """And ends after a quarter of the time."""
    mine = f"{photos.parent / 'mine.py'}:train"
    done = cli("tune", photos, "--transform", mine, "--batch", 4, "--device", "cpu", "--seconds", 1, "--quick")
    assert done.code == 0, done.err
    assert "the choice is yours" not in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--transform", "mine.py"), ("FILE.py:NAME",)),
        (("--transform", "nowhere.py:train"), ("nowhere.py", "check the path")),
        (("--transform", "mine.py:trian"), ("must define trian", "found broken, train")),
        (("--transform", "fails.py:train"), ("fails.py", "ZeroDivisionError")),
        (("--memory", "1MB"), ("--memory", "at least 1048576")),
        (("--cpus", "100000"), ("--cpus", "at most")),
    ],
)
def test_faults_have_names(
    cli: Cli,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    """In one line, and nothing is measured."""
    monkeypatch.chdir(photos.parent)
    Path("fails.py").write_text("1 / 0\n")
    assert_one_line(cli("tune", photos, "--device", "cpu", *arguments), *words)


def test_a_source_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    """As other commands name it."""
    assert_one_line(cli("tune", tmp_path / "train-*.tar", "--transform", "none"), "train-*.tar", "check the path")


def test_advice_is_of_what_changes_batches_and_tuning_cannot_hold(photos: Path) -> None:
    """Each idea is an argument of the loader, and none a field of Tuning."""
    from dali_feed.feed import Feed

    with Feed(FileList.from_folder(photos), 4, shuffle=True) as feed:
        codes = [idea.code for idea in advice.ideas(feed)]
    assert codes == ["batch_size=8", 'decode="reduced"', "shuffle=Shuffle(extent=64)"]
