"""Three folders install as one package; a package that is not installed is one error of one line with its command.

The mapping in pyproject.toml is what builds; the links are for type checkers and editors. Wheels are built from a
copy, because setuptools leaves its build folder in the tree and would pick it up again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.warm import Warm

from dali_feed.errors import DaliFeedError, MissingPackageError
from dali_feed.packages import needed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LINKS = {"kernels": "../kernels", "external_sources": "../external_sources"}
SHIPPED = {".py", ".cu", ".cuh", ".c", ".h", ".j2", ".typed"}
COMPILED = "dali_feed/native/_native.abi3.so"


def files_to_ship(root: Path) -> set[str]:
    """What a wheel of the tree at `root` must hold beside its dist-info."""
    homes = {"dali_feed": "dali_feed", "kernels": "dali_feed/kernels", "external_sources": "dali_feed/external_sources"}
    found = set()
    for folder, home in homes.items():
        for path in (root / folder).rglob("*"):
            inside = path.relative_to(root / folder)
            linked = folder == "dali_feed" and inside.parts[0] in LINKS
            if path.is_file() and path.suffix in SHIPPED and not linked:
                found.add(f"{home}/{inside.as_posix()}")
    return found


def tree_of(root: Path, links: Callable[[Path], None]) -> Path:
    """A copy of what is built from, with the links treated so."""
    tree = root / "tree"
    tree.mkdir()
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    settings = (ROOT / "pyproject.toml").read_text().replace('"-O3"', '"-O0"')  # nothing of it is run: half the time
    (tree / "pyproject.toml").write_text(settings)
    for name in ("dali_feed", *LINKS):
        left = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=left)
    for name in LINKS:
        links(tree / "dali_feed" / name)
    return tree


def built(tree: Path, to: Path, **environment: str) -> Path:
    """The wheel of a tree: as a release makes it, or, told something, by the one call that pip makes."""
    command = [sys.executable, "-Im", "build", "--wheel", "--no-isolation", "--outdir", str(to), str(tree)]
    if environment:
        command = [sys.executable, "-Ic", f"from setuptools.build_meta import build_wheel; build_wheel({str(to)!r})"]
    told = os.environ | {"NO_COLOR": "1"} | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tree, env=told)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = to.glob("*.whl")
    return wheel


def names_of(wheel: Path) -> list[str]:
    """The files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def keep(_: Path) -> None:
    """The links as they are."""


def lose(link: Path) -> None:
    """No link: an archive that dropped them."""
    link.unlink()


def flatten(link: Path) -> None:
    """A text file that holds the target: what git makes where links are not allowed."""
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)


@pytest.mark.parametrize(("harm", "environment"), [(keep, {}), (lose, {"CC": "false"}), (flatten, {"CC": "false"})])
def test_wheel_equals_the_tree(tmp_path: Path, harm: Callable[[Path], None], environment: dict[str, str]) -> None:
    """The wheel holds every Python, C and CUDA file of the three folders under one name, whatever the links became.

    Where the loops in C cannot be compiled the build goes on, and the wheel has all the rest.
    """
    tree = tree_of(tmp_path, harm)
    expected = files_to_ship(tree)

    names = names_of(built(tree, tmp_path, **environment))
    if not environment and shutil.which("cc") is not None:
        expected.add(COMPILED)
    info = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert len(names) == len(set(names))
    assert set(names) - info == expected
    assert {"dali_feed/py.typed", "dali_feed/kernels/__init__.py"} <= expected
    assert any(name.endswith("licenses/LICENSE") for name in info)


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
    "a kernel": ("cupy", "from dali_feed.kernels import launch; launch.kernel('finish', ())", "cupy-cuda12x"),
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
