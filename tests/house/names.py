"""Lists every public name, argument, attribute and option, so that none is lost while the product is rebuilt.

    python tests/house/names.py CHECKOUT > tests/house/names.tsv

It reads docs/reference.md and docs/cli.md of a checkout; the list is of commit 4bf1ae6. A line is: what it is, its
name, and its fate: kept, renamed to what, or dropped and why. Fates that stand in the file already are kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

NAMES = Path(__file__).with_suffix(".tsv")
_IN_PARTS = re.compile(r"`([^`]+)`")


def main() -> None:
    """Print the list of a checkout, with the fates that are known."""
    docs = Path(sys.argv[1], "docs")
    fates = dict(_known())
    for kind, name in (*_reference((docs / "reference.md").read_text()), *_commands((docs / "cli.md").read_text())):
        print(kind, name, fates.get((kind, name), ""), sep="\t")


def _known() -> Iterator[tuple[tuple[str, str], str]]:
    for line in NAMES.read_text().splitlines() if NAMES.exists() else ():
        kind, name, fate = line.split("\t")
        yield (kind, name), fate


def _reference(text: str) -> Iterator[tuple[str, str]]:
    """Names by their headings, what stands in their tables and lists, and errors."""
    owner, column = "", ""
    for line in text.splitlines():
        if heading := re.match(r"#{2,3} (.*)", line):
            name = _IN_PARTS.match(heading[1])
            owner = name[1] if name else ""
            if name:
                yield "name", owner
            in_errors = heading[1] == "Errors"
            column = "error" if in_errors else ""
        elif table := re.match(r"\| (argument|field|attribute|value|error) \|", line):
            column = table[1]
        elif (row := re.match(r"\| (?:&emsp;)*`([^`]+)` \|", line)) and column and (owner or column == "error"):
            if column == "error" and owner:
                continue  # the errors that it raises: they are listed once, by their own section
            yield column, f"{owner}.{row[1]}" if owner else row[1]
        elif owner and (method := re.match(r"- `(\w+)(\(([^`]*)\))?`", line)):
            yield "method" if method[2] else "attribute", f"{owner}.{method[1]}"
            for argument in re.split(r",\s*(?![^(\[]*[)\]])", method[3] or ""):
                if argument:
                    yield "argument", f"{owner}.{method[1]}.{argument.split('=')[0].strip('* ')}"


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands by their headings, and their options."""
    command = ""
    for line in text.splitlines():
        if heading := re.match(r"## `(dali-feed [^`]+)`", line):
            command = heading[1]
            yield "command", command
        elif command and (row := re.match(r"\| (`[^|]+`) \|", line)):
            yield "option", f"{command} {' '.join(_IN_PARTS.findall(row[1]))}"


if __name__ == "__main__":
    main()
