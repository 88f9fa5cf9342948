"""Every kind of image that Pillow, tifffile and imagecodecs write, however turned, on both engines, in a process."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from kit import kinds_run
from kit.warm import Warm

pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

pytestmark = pytest.mark.slow
GOOD = "good"
Found = dict[str, dict[str, str]]  # per engine: name of an image -> what became of it


@pytest.fixture(scope="module")
def run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, str]:
    """What became of each image, and what was printed meanwhile; a process that dies says at which image."""
    progress = tmp_path_factory.mktemp("kinds") / "progress"
    command = [Path(kinds_run.__file__), progress]
    done = warm.run(command, env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    last = progress.read_text().splitlines()[-1:] if progress.exists() else []
    assert done.returncode == 0, f"ended with {done.returncode} at {last}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_no_kind_of_image_ends_the_process(run: tuple[Found, str]) -> None:
    """All that passes the screen is decoded or has a reason, and most of it is decoded."""
    found, _ = run
    assert len(found["host"]) > 3000
    for engine in ("host", "dali"):
        assert sum(what == GOOD for what in found[engine].values()) > 1600
        assert all(found[engine].values())


def test_the_pixels_are_pillows(run: tuple[Found, str]) -> None:
    """What is decoded by the host engine has the pixels that ImageFolder gets, and by the dali engine the same."""
    found, _ = run
    assert {name: what for name, what in found["host"].items() if what.startswith("other")} == {}
    assert {name: what for name, what in found["dali"].items() if what.startswith("other")} == {}


def test_both_engines_take_the_same_images(run: tuple[Found, str]) -> None:
    """A record that is bad on one engine is bad on the other, for the same reason."""
    found, _ = run
    assert {name: found["host"][name] for name in found["dali"]} == found["dali"]


def test_turned_tiffs_are_decoded_in_every_layout(run: tuple[Found, str]) -> None:
    """Each orientation, those that are none too, is decoded as often as the others, for all that can be decoded."""
    found, _ = run
    for engine in ("host", "dali"):
        named = [name for name, what in found[engine].items() if what == GOOD and name.startswith("tiff ")]
        turned = Counter(name.rpartition("turned ")[2] for name in named if ", strips" in name or ", tiles" in name)
        assert set(turned) == set("0123456789")
        assert len(set(turned.values())) == 1
        assert turned["6"] >= 26


def test_no_library_prints_its_errors(run: tuple[Found, str]) -> None:
    """What becomes of an image is told by us: neither nvImageCodec nor OpenCV writes to the user's terminal."""
    _, said = run
    assert [line for line in said.splitlines() if "[ERROR" in line or "[WARN" in line or " WARN:" in line] == []
