"""Writes docs/cli.md from what the commands of `dali-feed` say of themselves when they are asked for help.

python docs/_cli.py            # write the page; `make reference` does this
python docs/_cli.py --check    # print what has changed, and exit with 1 where something has
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from _reference import cell, code, doc_of, table, wrapped, written

from dali_feed.cli.app import app

PAGE = Path(__file__).with_name("cli.md")

TAIL = "Next: [kafka.md](kafka.md) and [shards.md](shards.md) show most of them at work.\n"
HEAD = """\
# The command line

For people at a terminal. Here you can look up every command of `dali-feed` with its options. An error of ours is one
line on stderr and exit code 1; an option that cannot be is 2; Ctrl-C is one line and 130. `dali-feed --version` prints
the version and whether the [loops in C](speed.md#are-the-loops-in-c-used) are used, `dali-feed COMMAND --help`
what stands here.

This page is written from the commands by `make reference`. Do not edit it: edit a command's docstring or its options.

"""


def option(name: str, hint: Any, default: Any) -> tuple[str, ...] | None:
    """The row of an option or argument of a command; None for one that is hidden."""
    kind, info = typing.get_args(hint)[:2]
    if getattr(info, "hidden", False):
        return None
    is_option = type(info).__name__ == "OptionInfo"
    decls = [text for text in (info.default, *(info.param_decls or ())) if str(text).startswith("-")]
    mine = name.replace("_", "-")
    plain = f"--{mine}/--no-{mine}" if kind is bool else f"--{mine}"  # as Typer names what is given no name
    names = [each for text in decls or [plain] for each in text.split("/")] if is_option else [name.upper()]
    shown_kind = {"bool": "flag"}.get(getattr(kind, "__name__", ""), str(getattr(kind, "__name__", kind)))
    choices = next((typing.get_args(each) for each in (kind, *typing.get_args(kind)) if _is_literal(each)), ())
    shown_kind = " or ".join(choices) or shown_kind.removesuffix(" | None").removeprefix("pathlib.")
    shown_kind = info.metavar or shown_kind  # what is typed
    given = "" if default is None or default is False else code(str(default))
    given = "required" if default is inspect.Parameter.empty else given
    given = info.show_default if isinstance(info.show_default, str) else given
    return ", ".join(map(code, names)), code(shown_kind), given, cell(info.help)


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def commands(group: typer.Typer, before: str = "dali-feed") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each command as people type it, and what it calls; those of a group behind the group's name."""
    for command in group.registered_commands:
        function = command.callback
        if function is not None and not command.hidden:
            yield f"{before} {command.name or function.__name__.replace('_', '-')}", function
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            yield from commands(inner.typer_instance, f"{before} {inner.typer_instance.info.name}")


def section(name: str, function: Callable[..., Any]) -> str:
    """What a command does, and its options."""
    hints = typing.get_type_hints(function, include_extras=True)
    given = [option(p.name, hints[p.name], p.default) for p in inspect.signature(function).parameters.values()]
    rows = [row for row in given if row]
    prose = "\n\n".join(map(wrapped, doc_of(function).prose)) + "\n"
    return "\n".join([f"## `{name}`\n", prose, table("option, type, default, meaning", rows)])


def page() -> str:
    """The whole page."""
    every = list(commands(app))
    rows = [(f"[`{name}`](#{name.replace(' ', '-')})", cell(doc_of(call).prose[0])) for name, call in every]
    return HEAD + "\n".join([table("command, what it does", rows), *(section(*each) for each in every), TAIL])


if __name__ == "__main__":
    sys.exit(written(PAGE, page(), __doc__ or ""))
