"""Contract tests hold what a user sees: of ours they import public names and tests/kit alone, and nothing private.

So a room can be rebuilt without a line of them changed. What they need of the inside stands in tests/kit/inside.py.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

CONTRACT = Path(__file__).resolve().parents[1] / "contract"
OPEN = "cli columns dali errors external_sources formats kernels metrics packing testing"
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
    tree, found, others = ast.parse(source), set(), {"self", "cls"}
    for node in ast.walk(tree):
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
    for node in ast.walk(tree):
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
