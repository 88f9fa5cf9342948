"""What the site has beside the pages of docs/: the README as its first page, and every file that a page links to.

    mkdocs build --strict      # mkdocs.yml names this file as a hook; `make docs` calls it

Pages are written for a checkout, where `../examples/imagenet.py` is a file. Here such a link is led to a copy: of a
page, a page; of code, a page that shows it; of a folder, a page with the names in it; of anything else, the file. So
the site needs no address of the repository, and a link to what is gone is an error of the strict build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HOME = "index.md"
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages outside docs/
LINK = re.compile(r"\[([^][]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".sh": "bash", ".c": "c", ".toml": "toml"}
ITEM = re.compile(r"^( *)(?:[-*]|\d+\.) ")


def place(path: str) -> str:
    """Where a file of the repository stands in the site: pages of docs/ at its top, code as a page."""
    if path == "README.md":
        return HOME
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{path}/index-of-files.md"
    return f"{path}.md" if PurePosixPath(path).suffix in LANGUAGES else path


def origin(uri: str) -> str:
    """The file of the repository that a page of the site was made of."""
    if uri == HOME:
        return "README.md"
    return uri if uri in BESIDE else f"docs/{uri}"


def target(page: str, link: str) -> tuple[str, str] | None:
    """(path in the repository, anchor) that a link of the page `page` leads to; None: out of it, or within the page."""
    file, _, anchor = link.partition("#")
    if not file or re.match(r"[a-z]+:", link):
        return None
    return os.path.normpath(PurePosixPath(page).parent / file), anchor


def linked(pages: list[str]) -> Iterator[str]:
    """The files of the repository that pages of it link to, pages left out."""
    for page in pages:
        for _, link in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            found = target(page, link)
            if found and (ROOT / found[0]).exists() and not found[0].startswith("docs/") and found[0] not in BESIDE:
                yield found[0]


def shown(path: str) -> str:
    """The page that shows a file of code, or the names in a folder. It is left out of the search."""
    hidden = f"---\ntitle: {path}\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n\n# {path}\n\n"
    there = ROOT / path
    if there.is_dir():
        return hidden + "\n".join(f"- `{each.name}`" for each in sorted(there.iterdir()) if each.name[0] not in "_.")
    fence = "`" * 6
    return f"{hidden}{fence}{LANGUAGES[there.suffix]}\n{there.read_text(encoding='utf-8')}{fence}\n"


def title(path: str) -> str | None:
    """The heading of a page; None: no page."""
    if not path.endswith(".md"):
        return None
    found = re.search(r"^# (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def moved(page: str, text: str) -> str:
    """A page's text with its links as the site has them; a link that shows a page's path shows its heading."""

    def led(match: re.Match[str]) -> str:
        found = target(page, match[2])
        if found is None:
            return match[0]
        path, anchor = found
        to = os.path.relpath(place(path), PurePosixPath(place(page)).parent)
        says = (match[1] in {path, PurePosixPath(path).name} and title(path)) or match[1]
        return f"[{says}]({to}{'#' + anchor if anchor else ''})"

    return LINK.sub(led, text)


def spaced(text: str) -> str:
    """As Python's Markdown wants it, which is not GitHub's.

    It begins a list below an empty line alone and nests it by four spaces; in the code of a table's cell it takes a
    bar as it is, where GitHub takes it escaped.
    """
    lines: list[str] = []
    fence, before = -1, ""  # the spaces before an open fence
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if line.lstrip().startswith("```"):
            lines.append(" " * (indent if fence < 0 else fence) + line)
            fence = -1 if fence >= 0 else indent
        elif fence >= 0:
            lines.append(" " * fence + line)
        else:
            if ITEM.match(line) and before and not before.startswith(" ") and not ITEM.match(before):
                lines.append("")
            cells = CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
            lines.append(" " * indent + cells)
        before = line
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: Any) -> Files:
    """Add what stands outside docs/."""
    pages = [*BESIDE, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for path in BESIDE:
        files.append(File.generated(config, place(path), content=(ROOT / path).read_text(encoding="utf-8")))
    for path in sorted(set(linked(pages))):
        uri = place(path)
        if uri.endswith(".md"):
            files.append(File.generated(config, uri, content=shown(path), inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """Lead the links of a page to where the site has them."""
    path = origin(page.file.src_uri)
    if page.file.src_uri == HOME:
        page.meta["hide"] = ["navigation"]
    return spaced(moved(path, text)) if (ROOT / path).is_file() else text
