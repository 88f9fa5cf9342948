"""docs/reference.md and docs/cli.md are what the code says, and leave out nothing that users call."""

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
SCRIPT = ROOT / "docs" / "_reference.py"
PUBLIC = Path(__file__).with_name("public.txt").read_text().split()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says(warm: Warm) -> None:
    """A changed signature or docstring changes the page; `make reference` writes it."""
    done = warm.run([SCRIPT, "--check"], beside=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `make reference`"


def test_the_page_of_commands_is_what_their_help_says(warm: Warm) -> None:
    """A changed command or option changes the page; `make reference` writes it."""
    done = warm.run([SCRIPT.with_name("_cli.py"), "--check"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `make reference`"


def test_a_public_name_comes_and_goes_by_hand() -> None:
    """public.txt has every name that users import, in order: one that comes or goes is a line of a change."""
    packages = sorted({name.rpartition(".")[0] for name in PUBLIC})
    assert [f"{package}.{name}" for package in packages for name in importlib.import_module(package).__all__] == PUBLIC


def test_everything_that_users_import_is_there() -> None:
    """Each public name, and each error, has its section or row."""
    page = SCRIPT.with_name("reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^### `(\w+)`|^\| (?:&emsp;)*`(\w+)` \|", page, re.MULTILINE))
    names = {one for pair in named for one in pair}
    unexplained = {"FallbackWarning", "Format", "__version__", "bound", "format_of"}
    assert {name.rpartition(".")[2] for name in PUBLIC} - names <= unexplained


def test_both_styles_of_docstrings_are_read(script: ModuleType) -> None:
    """`Args:` with indented entries, and a table of names; both with lines that go on."""
    text = """What it is.

    first, second  what they are,
                   in two lines
    third
                   alone on its line

    What it does
    in prose.

    Args:
        fourth: what
            it is.
        fifth, sixth: both.

    Raises:
        ValueError: when it is: so.

    Example:
        call(
            1)
    """
    doc = script.taken_apart(text, ("first", "second", "third"))
    both = "what they are, in two lines"
    assert doc.args == {
        "first": both,
        "second": both,
        "third": "alone on its line",
        "fourth": "what it is.",
        "fifth": "both.",
        "sixth": "both.",
    }
    assert doc.prose == ["What it is.", "What it does in prose."]
    assert doc.raises == {"ValueError": "when it is: so."}
    assert doc.example == ["call(", "    1)"]


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
    doc.args["two"] = "is said | too"
    assert script.arguments("Half", Half, doc).splitlines()[2:] == [
        "| `one` | `int` | `2**20` | is said |",
        "| `two` | `tuple[str, ...]` | `('a', 'b')` | is said \\| too |",
    ]
