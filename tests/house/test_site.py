"""The site of the pages: it builds without a warning, and nothing that it links to is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an anchor, a link, an image, a script."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in {"href", "src"} and value and not re.match(r"[a-z]+:", value):
                self.links.add(value)


def broken(site: Path) -> list[str]:
    """Links of the site's pages that lead nowhere in it, as "page: link"."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            file, _, anchor = link.partition("#")
            there = Path(os.path.normpath(path.parent / file)) if file else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file() or (anchor and there in pages and anchor not in pages[there].anchors):
                found.append(f"{path.relative_to(site)}: {link}")
    return found


@pytest.mark.long(form="test_every_page_has_its_place")
def test_it_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    """A strict build has no warning, and each link and anchor of what it wrote is there; lists and tables are such."""
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    pytest.importorskip("material", reason="`make docs` installs it")
    done = subprocess.run(
        # Not --quiet: mkdocs would not count its warnings then, and --strict never fail.
        [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert broken(tmp_path / "site") == []
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "docs/" not in Page(start).links
    text = re.sub(r"<(pre|code).*?</\1>", "", start, flags=re.DOTALL)
    assert re.findall(r"^(?:- |\||```).*", text, re.MULTILINE) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """The check itself sees a page, an anchor and a file that are gone."""
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here"></a><a href="https://example.org"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#top"></a><a href="#top"></a><a href="c.html"></a><img src="d">')
    assert sorted(broken(tmp_path)) == ["a.html: b.html#here", "b.html: #top", "b.html: c.html", "b.html: d"]


def test_every_page_has_its_place() -> None:
    """Each page of docs/ stands once in the navigation of mkdocs.yml, and nothing stands there that is gone."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(
        r"^ +- .+: (\S+\.md)$", text.partition("\nnav:\n")[2].partition("\nvalidation:")[0], re.MULTILINE
    )
    beside = ["CHANGELOG.md", "CONTRIBUTING.md", "bench/LOG.md", "index.md"]
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(named) == sorted([*pages, *beside]), "give a new page of docs/ its line under `nav:` in mkdocs.yml"
