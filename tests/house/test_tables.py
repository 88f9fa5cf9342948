"""The figures of the pages are what the rows of the benches say."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "_tables.py"
ROWS = """date,who,img/s
2026-01-01T00:00,a,100
2026-01-01T00:00,b,50
2026-01-03T00:00,a,300
date,load,who,img/s
2026-01-02T00:00,0.1,a,200
2026-01-02T00:00,0.1,b,90
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script that writes the tables, with its helpers beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    before = set(sys.modules)
    yield importlib.import_module("_tables")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_pages_say_what_the_rows_say() -> None:
    """A new row, or a figure that somebody edits, makes a page old; `make tables` writes it."""
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `make tables`"


def test_figures_come_from_the_newest_run_that_has_all(script: ModuleType, tmp_path: Path) -> None:
    """Not from the newest run where it lacks a row, nor from two runs; a heading within the file counts from there."""
    (tmp_path / "some.csv").write_text(ROWS)
    results = script.Results(tmp_path)
    assert [row["img/s"] for row in results.newest("some", {"who": "a"}, {"who": "b"})] == ["200", "90"]
    assert [row["img/s"] for row in results.newest("some", {"who": "a"})] == ["300"]
    with pytest.raises(LookupError, match=r"some\.csv has a row for each of .*'c'"):
        results.newest("some", {"who": "a"}, {"who": "c"})


def test_a_region_is_written_anew_and_the_rest_is_left(script: ModuleType, tmp_path: Path) -> None:
    """What somebody wrote between the marks is gone; a second time changes nothing."""
    (tmp_path / "some.csv").write_text(ROWS)
    results, figures = script.Results(tmp_path), {"one": lambda found: [found.newest("some", {"who": "a"})[0]["img/s"]]}
    page = "before 7\n<!-- table: one -->\nedited\n<!-- end -->\nafter\n"
    done = script.written(page, results, figures)
    assert done == "before 7\n<!-- table: one -->\n\n300\n\n<!-- end -->\nafter\n"
    assert script.written(done, results, figures) == done


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("<!-- table: one -->\n", "without its"),
        ("<!-- table: one -->\n<!-- table: one -->\n<!-- end -->\n", "without its"),
        ("<!-- end -->\n", "without its"),
        ("<!-- table: two -->\n<!-- end -->\n", r"makes the table 'two'; there are \['one'\]"),
    ],
)
def test_marks_that_are_wrong_are_refused(script: ModuleType, tmp_path: Path, page: str, says: str) -> None:
    """A mark that is not closed would leave a table as it is, in silence."""
    with pytest.raises(ValueError, match=says):
        script.written(page, script.Results(tmp_path), {"one": lambda _: []})
