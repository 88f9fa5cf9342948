"""Pages that are written by scripts are what the code and the rows of the benches say, and leave out no public name."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from kit.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PUBLIC = Path(__file__).with_name("public.txt").read_text().split()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "_reference.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "command"),
    [("_reference.py", "make reference"), ("_cli.py", "make reference"), ("_tables.py", "make tables")],
)
def test_a_page_is_what_it_is_written_from(warm: Warm, name: str, command: str) -> None:
    """A changed signature, docstring, command, option or row of a bench changes its page; `make` writes it."""
    done = warm.run([DOCS / name, "--check"], beside=name != "_reference.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"run `{command}`"


def test_a_public_name_comes_and_goes_by_hand() -> None:
    """public.txt has every name that users import, in order: one that comes or goes is a line of a change."""
    packages = sorted({name.rpartition(".")[0] for name in PUBLIC})
    assert [f"{package}.{name}" for package in packages for name in importlib.import_module(package).__all__] == PUBLIC


def test_everything_that_users_import_is_there() -> None:
    """Each public name, and each error, has its section or row."""
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^### `(\w+)`|^\| (?:&emsp;)*`(\w+)` \|", page, re.MULTILINE))
    names = {one for pair in named for one in pair}
    unexplained = {"FallbackWarning", "Format", "__version__", "bound", "format_of"}
    assert {name.rpartition(".")[2] for name in PUBLIC} - names <= unexplained


@dataclass(frozen=True)
class Half:
    """Half explained.

    one  is said
    """

    one: int = 1 << 20
    two: tuple[str, ...] = ("a", "b")


def test_an_argument_without_a_meaning_is_refused(script: ModuleType) -> None:
    """No row is left empty: the message names class and argument."""
    doc = script.doc_of(Half, ("one", "two"))
    with pytest.raises(SystemExit, match=r"Half: .* meaning for each argument; found none for two"):
        script.arguments("Half", Half, doc)
