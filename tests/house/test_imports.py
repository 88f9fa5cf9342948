"""What importing costs, and that a package gives what it says."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["confluent_kafka", "cupy", "matplotlib", "nvidia", "pyarrow", "rich", "torch", "torchvision", "typer"]
ROOMS = sorted(f"dali_feed.{path.parent.name}" for path in (ROOT / "dali_feed").glob("*/__init__.py"))
LIGHT = ["dali_feed", "dali_feed.errors", "dali_feed.feed.feed", "dali_feed.records.source", *ROOMS]


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    code = f"import json, sys\n{code}\nprint(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_is_light() -> None:
    """Whoever imports the package, or opens a room, pays for nothing that only one of its modules needs."""
    assert loaded_by("\n".join(f"import {module}" for module in LIGHT)) == []


def test_importing_transforms_is_light() -> None:
    """Every file of the room at once: what runs on pixels or builds a graph imports its library when it is called."""
    names = sorted(path.stem for path in (ROOT / "dali_feed" / "transforms").glob("*.py"))
    assert loaded_by("\n".join(f"import dali_feed.transforms.{name}" for name in names)) == []


def test_a_feed_is_made_without_torch(tmp_path: Path) -> None:
    """Also one that is asked for its length and its state: the engines load what they need when one is made."""
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    code = f"""
from dali_feed.external_sources import FileList
from dali_feed.feed import Batch, Feed
with Feed(FileList(['{tmp_path / "a.jpg"}']), shuffle=True) as feed:
    assert len(feed) == 1
    feed.load_state_dict(feed.state_dict())
    assert feed.describe()
"""
    assert loaded_by(code) == []


@pytest.mark.parametrize("package", ["dali_feed", *ROOMS])
def test_a_package_gives_what_it_says(package: str) -> None:
    """Every name in its `__all__` can be had from it, lazily or not; a misspelt one is an error that names both."""
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in getattr(module, "__all__", ()))
    with pytest.raises(AttributeError, match=rf"{re.escape(package)}.*DataLaoder"):
        _ = module.DataLaoder
