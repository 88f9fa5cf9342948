"""Holds that three folders install as one package, with or without the two links.

The mapping in pyproject.toml is what builds; the links are for type checkers and editors. Wheels are built from a
copy, because setuptools leaves its build folder in the tree and would pick it up again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", LINKS)
def test_links_are_links(name: str) -> None:
    """Each points at its neighbour by a relative path, so a clone works wherever it lies; git has nothing behind it."""
    link = ROOT / "dali_feed" / name
    assert str(link.readlink()) == LINKS[name]
    listed = subprocess.run(["git", "ls-files", "-s", link], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("no git checkout")
    assert listed.stdout.split()[0::3] == ["120000", f"dali_feed/{name}"]


def test_every_package_is_listed() -> None:
    """pyproject.toml names exactly the folders that hold Python files."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {str(Path(name).parent).replace("/", ".") for name in files_to_ship(ROOT) if name.endswith(".py")}
    assert set(listed) == there


def tree_of(root: Path, links: Callable[[Path], None]) -> Path:
    """A copy of what is built from, with the links treated so."""
    tree = root / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("dali_feed", *LINKS):
        left = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=left)
    for name in LINKS:
        links(tree / "dali_feed" / name)
    return tree


def built(tree: Path, to: Path, **environment: str) -> Path:
    """The wheel of a tree."""
    command = [sys.executable, "-Im", "build", "--wheel", "--no-isolation", "--outdir", str(to), str(tree)]
    told = os.environ | {"NO_COLOR": "1"} | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
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


@pytest.mark.parametrize("harm", [keep, lose, flatten])
def test_wheel_equals_the_tree(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The wheel holds every Python, C and CUDA file of the three folders under one name, whatever the links became."""
    tree = tree_of(tmp_path, harm)
    expected = files_to_ship(tree)

    names = names_of(built(tree, tmp_path))
    if shutil.which("cc") is not None:
        expected.add(COMPILED)
    info = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert len(names) == len(set(names))
    assert set(names) - info == expected
    assert {"dali_feed/py.typed", "dali_feed/kernels/__init__.py"} <= expected
    assert any(name.endswith("licenses/LICENSE") for name in info)


def test_a_wheel_is_built_without_a_compiler(tmp_path: Path) -> None:
    """Where the loops in C cannot be compiled the wheel has all the rest, and the build says so and goes on."""
    tree = tree_of(tmp_path, keep)
    expected = files_to_ship(tree)
    names = set(names_of(built(tree, tmp_path, CC="false")))
    assert {name for name in names if ".dist-info/" not in name} == expected
