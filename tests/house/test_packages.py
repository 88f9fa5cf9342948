"""A package that is not installed is one error of one line, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kit.warm import Warm

from dali_feed.errors import DaliFeedError, MissingPackageError
from dali_feed.packages import needed

pytestmark = pytest.mark.slow

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
FEED = """
from dali_feed import Decode
from dali_feed.feed import Feed
from dali_feed.testing.scripted import ScriptedSource
from torchvision.transforms import v2
iter(Feed(ScriptedSource([(b"", 0)] * 4), 2, transform=v2.Resize((8, 8)), decode=Decode(engine={engine!r})))
"""
DALI, CODEC = "pip install nvidia-dali-cuda120", "pip install nvidia-nvimgcodec-cu12"
KAFKA = "pip install 'confluent-kafka>=2.13.2'"
CASES = {
    "the dali engine": ("nvidia.dali", FEED.format(engine="dali"), DALI),
    "DALI's iterators": ("nvidia.dali", "from dali_feed.dali import DALIGenericIterator", DALI),
    "the host engine": ("nvidia.nvimgcodec", FEED.format(engine="host"), CODEC),
    "nothing of NVIDIA": ("nvidia", FEED.format(engine="dali"), DALI),
    "a topic": ("confluent_kafka", "from dali_feed.external_sources import KafkaTopic", KAFKA),
    "a broker": ("confluent_kafka", "from dali_feed.testing import broker", KAFKA),
    "a kernel": ("cupy", "from dali_feed.kernels import launch; launch.kernel('finish', (), 0)", "cupy-cuda12x"),
    "the loader": ("torch", "from dali_feed import DataLoader", "pip install torch"),
}


def without(names: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process that has not these packages."""
    whole = WITHOUT.format(names=names) + code
    return subprocess.run([sys.executable, "-I", "-c", whole], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_is_named_with_its_command(warm: Warm, tmp_path: Path, case: str) -> None:
    """Where it is needed first: by an engine, a name that is imported, a kernel."""
    name, code, command = CASES[case]
    if "nvidia" in name:  # torch and torchvision, which take seconds to import, are not what is missing
        (tmp_path / "script.py").write_text(WITHOUT.format(names=(name,)) + code)
        done = warm.run(["script.py"], tmp_path, beside=False)
    else:
        done = without((name,), code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dali_feed.errors.MissingPackageError: "), done.stderr
    assert command in last
    assert done.stderr.count("Traceback") == 1  # and no other error behind it


def test_the_command_line_says_one_line() -> None:
    """No traceback, and exit code 1."""
    code = "from dali_feed.cli.app import main; main(['inspect', 'kafka://localhost:1/t'])"
    done = without(("confluent_kafka",), code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("dali-feed: confluent-kafka: ")
    assert KAFKA in done.stderr


def test_it_is_an_import_error() -> None:
    """For `except ImportError`, with the module's name; and one of ours."""
    with pytest.raises(ImportError) as caught, needed():
        raise ModuleNotFoundError(name="nvidia")
    assert isinstance(caught.value, MissingPackageError)
    assert isinstance(caught.value, DaliFeedError)
    assert caught.value.name == "nvidia.dali"


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torchvision.transforms.v9'", name="torchvision.transforms.v9"),
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ImportError("cannot import name 'Decoder' from 'nvidia.nvimgcodec'", name="nvidia.nvimgcodec"),
        ImportError("libnvimgcodec.so.0: cannot open shared object file"),
        ValueError("something else"),
    ],
)
def test_what_is_there_and_broken_stays_what_it_is(error: Exception) -> None:
    """A package that is there but old, or whose library is not: its own words say more."""
    with pytest.raises(type(error)) as caught, needed():
        raise error
    assert caught.value is error
