"""Names and sizes: what a file or a class is called, and how much one file or folder holds.

The tables are of what is not there yet. No name comes to them; they go when they are empty.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dali_feed", "kernels", "external_sources")
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for top in (*PRODUCT, "tests", "bench", "docs", "examples")
    for path in sorted((ROOT / top).rglob("*.py"))
    if (ROOT / "dali_feed" / "kernels") not in path.parents
    and (ROOT / "dali_feed" / "external_sources") not in path.parents
}
OURS = {name: text for name, text in FILES.items() if name.partition("/")[0] in PRODUCT}

# A participle says nothing of what a thing is.
NO_NAMES = {*["asked", "behind", "beside", "coming", "found", "given", "held", "later", "made", "told"]}
PLAIN = {"SourceNotFoundError"}
CALLED_SO = {"NotMadeError"}
LONG: dict[str, str] = {}  # a file above 800 lines, and why it is one subject
MOST_LINES = 800
MOST_FILES = 25  # in a folder
FULL = {"tests/kit"}


def words(name: str) -> set[str]:
    """The words that a name in CamelCase or with underscores is made of."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}


def classes(text: str) -> set[str]:
    """The public classes of a file."""
    return set(re.findall(r"^class ([A-Za-z]\w*)", text, re.MULTILINE))


def badly_called(files: Mapping[str, str]) -> set[str]:
    """Files and public classes that are called by a participle."""
    named = {name for name in files if words(Path(name).stem) & NO_NAMES}
    return named | {one for text in files.values() for one in classes(text) if words(one) & NO_NAMES} - PLAIN


def doubled(files: Mapping[str, str]) -> set[str]:
    """Names that public classes of two files have."""
    return {
        name for name, times in Counter(one for text in files.values() for one in classes(text)).items() if times > 1
    }


def test_names_say_what_a_thing_is() -> None:
    """No file and no public class is called by a word that says what happened to it."""
    assert badly_called(OURS) - CALLED_SO == set(), "call it by what it is"


def test_a_name_is_one_class() -> None:
    """No two public classes of the product share a name."""
    assert doubled(OURS) == set(), "call one of them something else"


def test_public_names_are_listed() -> None:
    """What users can import from a public module is `public_names.txt`: a name comes or goes with its line there."""
    lines = Path(__file__).with_name("public_names.txt").read_text().splitlines()
    for module, names in (line.split(": ") for line in lines):
        assert sorted({*importlib.import_module(module).__all__} - {"__version__"}) == names.split(), module


def test_no_name_of_before_is_lost() -> None:
    """Each name, argument and option that commit 4bf1ae6 had is kept, renamed or dropped, and the list says which."""
    rows = [line.split("\t") for line in Path(__file__).with_name("names.tsv").read_text().splitlines()]
    assert [name for _, name, fate in rows if not fate.startswith(("kept", "renamed to ", "dropped: "))] == []


def test_a_file_is_one_subject() -> None:
    """A file of more than 800 lines has its reason, and a folder at most 25 files."""
    assert {name for name, text in FILES.items() if text.count("\n") > MOST_LINES} - LONG.keys() == set()
    full = {folder for folder, count in Counter(str(Path(name).parent) for name in FILES).items() if count > MOST_FILES}
    assert full - FULL == set(), "divide it by subject"


def test_a_breach_is_seen() -> None:
    """The checks themselves see a file and a class that are called so, and a class that is there twice."""
    assert badly_called({"a/held_rows.py": "", "b/heldout.py": "class AskedFor: ...\nclass _Told: ..."}) == {
        "a/held_rows.py",
        "AskedFor",
    }
    assert doubled({"a.py": "class A: ...", "b.py": "class A: ...\nclass _B: ...", "c.py": "class _B: ..."}) == {"A"}
