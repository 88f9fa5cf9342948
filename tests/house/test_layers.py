"""Who may import whom: the contracts of `[tool.importlinter]`, what those cannot see, and what a contract test may use.

Contract tests hold what a user sees: of ours they import public names and tests/kit alone, and nothing private. So a
room can be rebuilt without a line of them changed. What they need of the inside stands in tests/kit/inside.py.
"""

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
LINTER = Path(sys.executable).with_name("lint-imports")
# The seam of a GPU: outside of kernels/ and bench/ nothing else names `torch.cuda` or CuPy. No file comes to them.
ON_THE_DEVICE = {"dali_feed/engines/device/cuda.py", "dali_feed/engines/device/ranges.py"}
# An admin client's requests to the coordinator of a group: librdkafka may abort the process where one fails or is late.
OF_A_COORDINATOR = re.compile(r"\b(list|alter|delete)_consumer_group_offsets|\b(describe|delete)_consumer_groups")
BROKEN = """
[tool.importlinter]
root_packages = ["dali_feed"]
[[tool.importlinter.contracts]]
name = "upside down"
type = "layers"
containers = ["dali_feed"]
layers = ["plan", "feed"]
"""


def linted(*options: object) -> subprocess.CompletedProcess[str]:
    """import-linter over what is installed here."""
    words = [str(LINTER), "--no-cache", "--no-logo", *map(str, options)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_imports_go_down() -> None:
    """No import goes up, beside or in a circle, and heavy packages are known to few; in functions neither."""
    done = linted()
    assert done.returncode == 0, done.stdout


def test_a_breach_is_seen(tmp_path: Path) -> None:
    """The check itself fails where a layer imports what stands above it, and names the import."""
    (tmp_path / "broken.toml").write_text(BROKEN)
    done = linted("--config", tmp_path / "broken.toml")
    assert done.returncode == 1
    assert "dali_feed.feed is not allowed to import dali_feed.plan" in done.stdout


def on_the_device(tree: ast.AST) -> bool:
    """Whether code looks at `torch.cuda` or imports CuPy, in whatever function."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="cuda", value=ast.Name(id="torch")):
                return True
            case ast.Import(names=names) if any(one.name.partition(".")[0] == "cupy" for one in names):
                return True
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "cupy":
                return True
    return False


def test_few_files_know_the_device() -> None:
    """`torch.cuda` is an attribute, which no linter of imports sees: what calls a GPU is known by name."""
    rooms = {path for path in (ROOT / "dali_feed").iterdir() if path.name not in {"bench", "kernels"}}
    files = {file for room in rooms for file in (room.rglob("*.py") if room.is_dir() else [room])}
    python = {str(file.relative_to(ROOT)): file.read_text() for file in files if file.suffix == ".py"}
    named = {name: text for name, text in python.items() if "torch.cuda" in text or "cupy" in text}
    found = {name for name, text in named.items() if on_the_device(ast.parse(text))}
    assert found == ON_THE_DEVICE, "give `Device` a method for it"


def test_nobody_asks_a_group_through_an_admin_client() -> None:
    """Librdkafka would end the process where the answer is an error or comes late; a consumer asks the same."""
    calls = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for room in ("dali_feed", "external_sources", "bench", "examples")
        for file in (ROOT / room).rglob("*.py")
        for match in OF_A_COORDINATOR.finditer(file.read_text())
    }
    assert not calls


HEAVY = ["confluent_kafka", "cupy", "matplotlib", "nvidia", "pyarrow", "rich", "torch", "torchvision", "typer"]
ROOMS = sorted(f"dali_feed.{path.parent.name}" for path in (ROOT / "dali_feed").glob("*/__init__.py"))
TRANSFORMS = sorted(f"dali_feed.transforms.{path.stem}" for path in (ROOT / "dali_feed" / "transforms").glob("*.py"))
LIGHT = ["dali_feed", "dali_feed.errors", "dali_feed.feed.feed", "dali_feed.records.source", *ROOMS, *TRANSFORMS]


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    code = f"import json, sys\n{code}\nprint(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_is_light() -> None:
    """Whoever imports the package, opens a room or names a transform pays for nothing that only one module needs."""
    assert loaded_by("\n".join(f"import {module}" for module in LIGHT)) == []


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


CONTRACT = Path(__file__).resolve().parents[1] / "contract"
OPEN = "cli columns dali errors extend external_sources formats kernels metrics packing testing"
PUBLIC = {"dali_feed", *(f"dali_feed.{name}" for name in OPEN.split())}
NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}
HELPERS = {path.stem for path in CONTRACT.parent.rglob("*.py") if path.parent.name == CONTRACT.name}


def root(node: ast.expr) -> str:
    """The name that a chain of attributes, calls and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def breaches(source: str) -> set[str]:
    """What a file uses of ours that no user can count on, in a script that it writes out too."""
    nodes, found, others = list(ast.walk(ast.parse(source))), set(), {"self", "cls"}
    for node in nodes:
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names if one.name.startswith("dali_feed") and one.name not in PUBLIC}
                others |= {(one.asname or one.name).partition(".")[0] for one in names}
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "dali_feed":
                known = vars(importlib.import_module(module)) if module in PUBLIC else {}
                public = {*known.get("__all__", known), "__version__", "*"} if known else set()
                modules = {one.removeprefix(f"{module}.") for one in PUBLIC} if known else set()
                found |= {f"{module}.{one.name}" for one in names if one.name not in public | modules}
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in HELPERS:
                found.add(module)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] != "kit":
                others |= {one.asname or one.name for one in names}
            case ast.Constant(value=str(text)) if "\nfrom dali_feed" in text:
                lines = [line for line in text.splitlines() if line.startswith(("from ", "import "))]
                found |= breaches("\n".join(lines))
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            found |= set() if node.attr in NAMEDTUPLE or root(node.value) in others else {f"._{node.attr[1:]}"}
    return found


def test_contract_tests_use_public_names() -> None:
    """Every file: names in the `__all__` of a public module, tests/kit, and nothing that begins with an underscore."""
    found = {str(path.relative_to(CONTRACT)): breaches(path.read_text()) for path in sorted(CONTRACT.rglob("*.py"))}
    assert {name: what for name, what in found.items() if what} == {}


def test_what_is_a_breach() -> None:
    """An internal module, a name that is not public, a private, a helper elsewhere, in a script as well; not these."""
    assert breaches("import dali_feed.feed") == {"dali_feed.feed"}
    assert breaches("from dali_feed.feed import Feed\nfrom dali_feed import packages") == {
        "dali_feed.feed.Feed",
        "dali_feed.packages",
    }
    helper = min(HELPERS)
    assert breaches(f"loader._feed\nf(loader).x._y\nfrom {helper} import x") == {"._feed", "._y", helper}
    assert breaches("X = '''\nfrom dali_feed.options import Tuning\n'''") == {"dali_feed.options.Tuning"}
    fine = "import os\nfrom dali_feed import DataLoader, errors\nfrom kit.inside import Feed\nos._exit(self._x)"
    assert breaches(fine + "\nfrom dali_feed.errors import ConfigError") == set()
