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
SHIPPED = {".py", ".cu", ".cuh", ".typed"}


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
def test_links_are_relative_and_resolve(name: str) -> None:
    """Each link points at its neighbour by a relative path, so a clone works wherever it lies."""
    link = ROOT / "dali_feed" / name
    assert link.is_symlink()
    assert str(link.readlink()) == LINKS[name]
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKS)
def test_links_are_tracked_as_links(name: str) -> None:
    """Git knows the link itself, and nothing behind it a second time."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("git answers nothing here (nothing tracked yet, or not this user's checkout)")
    rows = [line.partition("\t") for line in listed.stdout.splitlines()]
    found = [(entry.split()[0], path) for entry, _, path in rows if path.startswith(f"dali_feed/{name}")]
    assert found == [("120000", f"dali_feed/{name}")]


def test_every_package_is_listed() -> None:
    """pyproject.toml names exactly the folders that hold Python files."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {str(Path(name).parent).replace("/", ".") for name in files_to_ship(ROOT) if name.endswith(".py")}
    assert set(listed) == there


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
    """The wheel holds every Python and CUDA file of the three folders under one name, whatever became of the links."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("dali_feed", *LINKS):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKS:
        harm(tree / "dali_feed" / name)
    expected = files_to_ship(tree)

    command = [sys.executable, "-Im", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    info = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert len(names) == len(set(names))
    assert set(names) - info == expected
    assert {"dali_feed/py.typed", "dali_feed/kernels/__init__.py"} <= expected
    assert any(name.endswith("licenses/LICENSE") for name in info)
