"""Where tests keep what they share: in files that are no tests, beside their users or, for several rooms, support/."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("*.py"))
HELPERS = {path.stem: path for path in FILES if not path.stem.startswith(("test_", "__"))}
SHARED = "support"


def imported(source: str) -> set[str]:
    """The first part of each module's name that a file imports, in a script that it writes out too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
            case ast.Constant(value=str(text)):
                for words in map(str.split, text.splitlines()):
                    if words[:1] in (["from"], ["import"]) and len(words) > 1:
                        found.add(words[1].partition(".")[0])
    return found


def breaches(path: Path, source: str) -> set[str]:
    """The modules of tests that the file may not import: another test, or a helper that another room keeps."""
    named = imported(source)
    others = named - {path.stem}
    homes = {name: HELPERS[name].relative_to(TESTS).parts[:-1] for name in others & set(HELPERS)}
    here = path.relative_to(TESTS).parts[:-1]
    tests = {name for name in others if name.startswith("test_")} | ({path.stem} & named)
    return tests | {name for name, home in homes.items() if home != here and home[:1] != (SHARED,)}


def test_no_test_imports_another_rooms() -> None:
    """Nothing is imported from a test, and a helper that several rooms use stands in support/."""
    found = {str(path.relative_to(TESTS)): breaches(path, path.read_text(encoding="utf-8")) for path in FILES}
    assert {name: what for name, what in found.items() if what} == {}


def test_what_is_a_breach() -> None:
    """An import of a test, of another room's helper and in a script written out; not one's own, nor a shared one."""
    here, test, other = HELPERS["both_versions"], "test_pixels", "zoo"
    assert breaches(here, f"from {test} import run") == {test}
    assert breaches(here, f"def f():\n    import {other}, photographs") == {other}
    assert breaches(here, f"'''\nfrom {other} import x\n'''") == {other}
    assert breaches(HELPERS[other].with_name(f"{test}.py"), f"import {test}, {other}") == {test}


def test_helpers_have_names_of_their_own() -> None:
    """They are imported by name, so no two share one."""
    kept = [path.stem for path in FILES if path.stem != "__init__"]
    assert len(kept) == len(set(kept))
