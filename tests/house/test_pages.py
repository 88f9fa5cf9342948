"""What the pages name is there, the README's example prints what it says, and written pages are what the code says."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path

import pytest
from kit.images import jpeg
from kit.limits import LONG
from kit.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.-])(?:dali_feed|kernels|external_sources|tests|bench|docs|examples|\.ci)/[\w./*-]*[\w*/]")
NAME = re.compile(r"(?<![\w/.-])dali_feed(?:\.\w+)+")
IMPORT = re.compile(r"^[+ >]*(from dali_feed\S* import [^#\n(]+|import dali_feed\S*)", re.MULTILINE)
TEMPLATE = re.compile(r"(^|/|_)x\.\w+$")  # kernels/x.cu: the file that a reader is about to make
ELSEWHERE = ["CHANGELOG.md", "CONTRIBUTING.md", "index.md"]  # pages of the site outside of docs/
HEADERS = {"dali_feed.where", "dali_feed.original", "dali_feed.source"}  # of a dead letter in a topic, no modules


def named(page: Path) -> str:
    """A page, for messages."""
    return str(page.relative_to(ROOT))


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def missing_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in slugs(target)):
            found.append(link)
    return found


def missing_paths(text: str) -> list[str]:
    """Paths of this repository in a text that are not there; a pattern must match something."""
    paths = {path for path in PATH.findall(text) if not TEMPLATE.search(path)}
    return sorted(path for path in paths if not any(ROOT.glob(path.rstrip("/"))))


def resolves(name: str) -> bool:
    """Whether a dotted name is a module of ours or something in one."""
    parts = name.split(".")
    for known in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:known]))
        except ModuleNotFoundError:
            continue
        for part in parts[known:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def missing_names(text: str) -> list[str]:
    """Names of ours in a text that cannot be imported."""
    names = set(NAME.findall(text)) - HEADERS
    for line in IMPORT.findall(text):
        for node in ast.parse(line.strip().rstrip(",\\")).body:
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{name.name}" for name in node.names}
    return sorted(name for name in names if not resolves(name.removesuffix(".py")))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page is a file, or a heading, that exists."""
    assert missing_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_named_files_exist(page: Path) -> None:
    """Every path of this repository in a page's text, tables and commands."""
    assert missing_paths(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_named_names_can_be_imported(page: Path) -> None:
    """Every `dali_feed.x` and every import of ours that a page prints."""
    assert missing_names(page.read_text(encoding="utf-8")) == []


def test_what_is_missing_is_seen(tmp_path: Path) -> None:
    """The checks themselves see a file that is gone, a heading that is gone, and a name that was moved."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](#a-page) [b](#b) [c](gone.md) [d](https://example.org/gone)\n")
    assert missing_links(page) == ["#b", "gone.md"]
    assert missing_paths(
        "`tests/house/test_pages.py`, tests/house/, bench/gone.py, `tests/test_x.py`, tests/*/gone_*.py"
    ) == ["bench/gone.py", "tests/*/gone_*.py"]
    assert missing_names("`dali_feed.DataLoader` dali_feed.gone\nfrom dali_feed.plan.order import Shuffle, Gone\n") == [
        "dali_feed.gone",
        "dali_feed.plan.order.Gone",
    ]


def test_every_room_has_its_line() -> None:
    """The tree in architecture.md names each folder and each file that stands in `dali_feed/`, and nothing else."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("\ndali_feed/\n")[2].partition("\n```")[0]
    named = {name for line in tree.splitlines() if line.strip() for name in line.strip().partition("  ")[0].split()}
    rooms = {f"{path.parent.name}/" for path in (ROOT / "dali_feed").rglob("__init__.py")} - {"dali_feed/", "demo/"}
    rooms |= {"kernels/", "external_sources/"}
    files = {path.name for path in (ROOT / "dali_feed").glob("*.py")} - {"__init__.py"}
    assert named == rooms | files


def test_every_page_is_two_clicks_from_the_readme() -> None:
    """A page that nobody leads to is not read; and each has its line under `nav:` of the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    near = [page for page in PAGES[2:] if f"(docs/{page.name}" in text]
    text += "".join(page.read_text(encoding="utf-8") for page in near)
    assert [named(page) for page in PAGES[2:] if page not in near and f"{page.name})" not in text] == []
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\nvalidation:")[0]
    lines = re.findall(r"^ +- .+: (\S+\.md)$", site, re.MULTILINE)
    assert sorted(lines) == sorted([*(str(page.relative_to(ROOT / "docs")) for page in PAGES[2:]), *ELSEWHERE])


def printed_by(code: str, warm: Warm, folder: Path) -> str:
    """What it prints on the CPU, where a folder of images is."""
    for n in range(100):
        its = folder / "photos" / "train" / "abcd"[n % 4]
        its.mkdir(parents=True, exist_ok=True)
        (its / f"{n:02d}.jpg").write_bytes(jpeg(n))
    run = subprocess.run(
        [warm.python, "-c", code],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error::UserWarning"},
        cwd=folder,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_example_prints_what_the_readme_shows(warm: Warm, tmp_path: Path) -> None:
    """The first Python block prints the block that follows it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n```\n(.*?)```", text, re.DOTALL)
    assert found, "README.md must open with an example and its output"
    code, printed = found.groups()
    assert printed_by(code, warm, tmp_path) == printed


def test_a_new_users_first_page_runs(warm: Warm, tmp_path: Path) -> None:
    """Its blocks one after the other: the resumed epoch ends, the image that was cut off is named, a topic is read."""
    code = "".join(re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text(encoding="utf-8"), re.DOTALL))
    printed = printed_by(code, warm, tmp_path)
    assert printed.count("torch.Size([16, 3, 64, 64]) cpu torch.int64") == 6
    assert "photos/train/a/00.jpg" in printed


PUBLIC = Path(__file__).with_name("public.txt").read_text().split()


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


def test_a_line_of_chaos_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a race's are, and those of a CSV, which there need not be."""
    monkeypatch.syspath_prepend(str(DOCS))
    (tmp_path / "chaos.jsonl").write_text('{"date": "1", "scene": "train", "faults": 20, "again": null}\n')
    runs = importlib.import_module("_tables").Results(tmp_path).runs("chaos")
    assert runs == [[{"date": "1", "scene": "train", "faults": "20", "again": ""}]]
