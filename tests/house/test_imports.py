"""Holds what importing costs, and what the packages say they give."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["confluent_kafka", "cupy", "matplotlib", "nvidia", "pyarrow", "rich", "torch", "torchvision", "typer"]
FILES = sorted(
    {path.resolve() for name in ("dali_feed", "kernels", "external_sources") for path in (ROOT / name).rglob("*.py")}
)


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    code = f"import json, sys\n{code}\nprint(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "module",
    [
        "dali_feed",
        "dali_feed.errors",
        "dali_feed.external_sources",
        "dali_feed.feed",
        "dali_feed.feed.feed",
        "dali_feed.kernels",
        "dali_feed.records.source",
    ],
)
def test_importing_is_light(module: str) -> None:
    """Whoever imports the package pays for nothing that only one of its modules needs."""
    assert loaded_by(f"import {module}") == []


def test_a_feed_is_made_without_torch(tmp_path: Path) -> None:
    """Also one that is asked for its length and its state: the engines load what they need when one is made."""
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    made = f"FileList(['{tmp_path / 'a.jpg'}'])"
    code = f"""
from dali_feed.external_sources import FileList
from dali_feed.feed import Batch, Feed
with Feed({made}, shuffle=True) as feed:
    assert len(feed) == 1
    feed.load_state_dict(feed.state_dict())
    assert feed.describe()
"""
    assert loaded_by(code) == []


def test_importing_transforms_loads_numpy_alone() -> None:
    """Every file of the room at once: what runs on pixels or builds a graph imports its library when it is called."""
    names = sorted(path.stem for path in (ROOT / "dali_feed" / "transforms").glob("*.py") if path.stem != "__init__")
    modules = [f"dali_feed.transforms.{name}" for name in names]
    code = (
        f"import importlib, json, sys; known = set(sys.modules); [importlib.import_module(m) for m in {modules}];"
        "found = {name.partition('.')[0] for name in set(sys.modules) - known};"
        "print(json.dumps(sorted(found - set(sys.stdlib_module_names))))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [name for name in json.loads(done.stdout) if not name.startswith("_")]
    assert set(found) <= {"dali_feed", "numpy"}, found


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (p, name)
        for p in ("dali_feed", "dali_feed.external_sources", "dali_feed.kernels")
        for name in getattr(importlib.import_module(p), "__all__", [])
    ],
)
def test_exported_names_resolve(package: str, name: str) -> None:
    """Every name in a package's `__all__` can be had from it, lazily or not."""
    assert getattr(importlib.import_module(package), name) is not None


@pytest.mark.parametrize("package", ["dali_feed", "dali_feed.external_sources", "dali_feed.kernels"])
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    """A lazy package fails on a misspelt name as every module does, naming both."""
    with pytest.raises(AttributeError, match=rf"{re.escape(package)}.*DataLaoder"):
        _ = importlib.import_module(package).DataLaoder


def exported(tree: ast.Module) -> list[str] | None:
    """The module's `__all__`, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """The order that ruff's RUF022 keeps: constants, classes, the rest; and 9 before 10."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def fault(path: Path) -> str | None:
    """What is wrong with the `__all__` of a file, if it has one."""
    tree = ast.parse(path.read_text())
    names = exported(tree)
    if names is None:
        return None
    if names != sorted(set(names), key=sort_key):
        return f"not sorted: {names}"
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    missing = {name for name in defined if not name.startswith("_")} - set(names)
    return f"public, but not in __all__: {sorted(missing)}" if missing else None


def test_all_is_sorted_and_whole() -> None:
    """`__all__`, where there is one, is sorted and leaves out no public function or class of the file."""
    faults = {str(path.relative_to(ROOT)): fault(path) for path in FILES}
    assert {name: what for name, what in faults.items() if what} == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("__all__ = ['a', 'B']\ndef a(): pass", "not sorted"),
        ("__all__ = ['a']\ndef a(): pass\ndef b(): pass", "public, but not in __all__: ['b']"),
    ],
)
def test_a_fault_of_all_is_seen(text: str, told: str, tmp_path: Path) -> None:
    """The check itself sees names out of order, and one that is left out."""
    (tmp_path / "file.py").write_text(text)
    assert str(fault(tmp_path / "file.py")).startswith(told)
