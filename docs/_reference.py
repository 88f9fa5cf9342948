"""Writes docs/reference.md from the signatures and docstrings of what users call.

    python docs/_reference.py            # write the page; `make reference` does this
    python docs/_reference.py --check    # print what has changed, and exit with 1 where something has

An argument without a meaning in its docstring, or an error without somebody who has to act, is an error here.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("reference.md")
WIDTH = 120

TAIL = "Next: [README](../README.md), for how to begin; [cli.md](cli.md), for the commands of `dali-feed`.\n"
HEAD = """\
# Reference

For people who use it already. Here you can look up every argument, option and error: its type, its default, what it
means and what it raises. [start.md](start.md#our-words) explains lane, slot, window and the other words.

This page is written from the code by `make reference`. Do not edit it: edit the docstring.

"""

# Section -> where users import from, and what.
SECTIONS = {
    "The loader": {
        "dali_feed": "DataLoader Info",
        "dali_feed.feed.stats": "Stats StageStats CpuStats WaitCause Running verdict Verdict",
        "dali_feed.records.gauges": "KafkaStats PartitionStats BrokerStats StorageStats TargetStats CacheStats",
    },
    "Options": {"dali_feed": "Shuffle BadRecords Decode Tuning Cache Mixing"},
    "Columns": {
        "dali_feed.columns": "Image Mask Boxes Keypoints Array Tokens Packed Number Text JsonValue Bytes"
        " TokenBatch PackedBatch Counted"
    },
    "Formats": {"dali_feed.formats": "Avro Example Json MsgPack Npy Protobuf"},
    "Sources": {
        "dali_feed.external_sources": "KafkaTopic KafkaStream ConsumerGroup ShardSet TFRecords MDS RecordIO Table"
        " Arrays FileList Concat Mix Topics Secret"
    },
    "Packing": {"dali_feed.packing": "pack Layout PackedSet verify Verified Damage split merge index"},
    "Into a topic": {"dali_feed.external_sources": "Producer Claim Produced Tally"},
    "Of your own": {
        "dali_feed.extend": "Source Reader Block Fault Member Snapshot Extents Lease Pieces Stream Column Format Op"
        " Draws"
    },
    "Dead letters": {"dali_feed.external_sources": "DeadLetterFolder"},
    "Without torch": {"dali_feed.feed": "Feed Batch"},
    "DALI's iterators": {"dali_feed.dali": "DALIGenericIterator DALIClassificationIterator LastBatchPolicy"},
    "Watching a run": {"dali_feed.metrics": "serve Endpoint otel"},
    "Testing": {
        "dali_feed.testing": "broker Broker publish Message ScriptedSource Corrupt Gap Stall Abort"
        " assert_resumes_anywhere ScriptedStream assert_stream_resumes"
    },
}
NAMES = {name: module for homes in SECTIONS.values() for module, names in homes.items() for name in names.split()}
RESULTS = {
    "Info",
    "Stats",
    "StageStats",
    "CpuStats",
    "WaitCause",
    "Running",
    "Verdict",
    "KafkaStats",
    "PartitionStats",
    "BrokerStats",
    "StorageStats",
    "TargetStats",
    "CacheStats",
    "Batch",
    "Produced",
    "Tally",
    "PackedSet",
    "Verified",
    "Damage",
}  # that users read and never make

ABOUT = {
    "The loader": """\
        `DataLoader` takes torch's arguments in torch's order; what is new is given by name. Each batch is a tuple of
        tensors; with `info=True` its last item is an `Info`, which says which records are in it.""",
    "Options": "Small frozen groups. A value that is not allowed is a `ConfigError` (a `ValueError`) at once.",
    "Sources": """\
        Where records are. A source is cheap to make: files are opened, and a broker is called, at the first use. The
        methods are there for the loader. Sources, `Producer` and `Secret` can be imported from `dali_feed` too.""",
    "Of your own": """\
        What a source, a column, a format or a transform of your own is written with:
        [CONTRIBUTING.md](../CONTRIBUTING.md#add-a-source), [columns.md](columns.md),
        [formats.md](formats.md#how-do-i-add-a-format-of-my-own).""",
    "Columns": "What a batch holds: see [columns.md](columns.md).",
    "Formats": "What a record's value holds: see [formats.md](formats.md).",
    "Packing": "Records of any source into sets of shards, and what is done with sets: see [shards.md](shards.md).",
    "Into a topic": "Records of any source to a topic: [kafka-produce.md](kafka-produce.md#how-do-i-get-data-in).",
    "Dead letters": "Where bad records are kept: see [bad-records.md](bad-records.md#how-do-i-keep-the-bad-ones).",
    "Without torch": "`Feed` is the loader without torch, for JAX, CuPy or an engine of your own.",
    "DALI's iterators": "For a pipeline of your own: see [from-dali.md](from-dali.md).",
    "Watching a run": "Its numbers for Prometheus and OpenTelemetry: see [watching.md](watching.md).",
    "Testing": "For tests of your own pipeline or source. A training run needs nothing of this.",
    "Errors": """\
        All are in `dali_feed.errors`. A message names what it is about, the rule, what was found and what to do, in
        that order.""",
}

# Who has to act; an error that is not here is as the one it is a kind of.
ACTS = {
    "DaliFeedError": "catch this one to catch all of them",
    "ConfigError": "you: change the argument that the message names",
    "StateError": "you: load the state into a loader with the same values as the one that saved it, or start again",
    "SourceError": "whoever looks after the data: the broker, the disk, the rights",
    "SourceNotFoundError": "you: check the name; or whoever looks after the data",
    "SourceEmptyError": "you: check the name; or whoever looks after the data",
    "SourceUnreachableError": "whoever runs the broker or the file system; then a run continues from its last state",
    "SourceDeniedError": "whoever gives the rights",
    "SourceChangedError": "whoever writes the data: it must not change during a run; then start again",
    "DataLostError": "whoever sets the retention, or restores the files",
    "ProduceError": "whoever runs the broker; or you: end the other process that writes the same run",
    "BadRecordError": "whoever writes the records",
    "FormatError": "whoever writes the records; a run counts it as a bad record",
    "BadRecordLimitError": "whoever writes the records; or you: allow more in `BadRecords`",
    "DeadLetterError": "whoever looks after the folder or topic of dead letters",
    "EngineError": "whoever runs the machine: its memory, GPU and driver; for your own graph, you",
    "MissingPackageError": "you: the message has the command that installs it",
    "WaitError": "whoever looks after what the message names, such as the broker; the loop may ask again",
    "ClosedError": "you: make a new loader, or use the newer iterator",
}


# Meanings that a docstring leaves to its first sentence. One that it gives stands before these.
MEANINGS = {
    "broker.brokers": "how many, 1 or more",
    "Broker.brokers": "how many, 1 or more",
    "Stats.at": "when, in seconds of `time.monotonic`: differences are times between two",
    "Batch.tail": "what the finish step still has to do to `images`; None where that is nothing",
    "ScriptedSource.items": "bytes, (bytes, label), or a fault, such as `Gap()`",
    "ScriptedStream.partitions": "the items that each partition begins with, as of `ScriptedSource`",
    "ScriptedSource.partitions": "how many parts the items are divided into",
}


HEADS = ("Args:", "Raises:", "Returns:", "Example:")
ARG = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
ROW = re.compile(r"(\w+(?:, \w+)*)(?: {2,}(.+))?")


@dataclass
class Doc:
    """A docstring taken apart."""

    prose: list[str] = field(default_factory=list)
    args: dict[str, str] = field(default_factory=dict)
    raises: dict[str, str] = field(default_factory=dict)
    example: list[str] = field(default_factory=list)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """The lines below each of `HEADS`, and those between as ""."""
    head, lines = "", list[str]()
    for line in inspect.cleandoc(text).splitlines():
        if line in HEADS or (head and line and not line.startswith(" ")):
            yield head, lines
            head, lines = (line, []) if line in HEADS else ("", [line])
        else:
            lines.append(line)
    yield head, lines


def entries(lines: list[str], row: re.Pattern[str]) -> dict[str, str]:
    """Name -> text, where `row` is how a line begins that names something; other lines go on with it."""
    found, names = dict[str, str](), list[str]()
    for line in lines:
        if begun := row.fullmatch(line):
            names = begun[1].split(", ")
            found |= dict.fromkeys(names, begun[2] or "")
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found


def taken_apart(text: str, known: tuple[str, ...]) -> Doc:
    """Both of our styles: `Args:` with indented entries, and a table of names with two spaces behind each."""
    doc = Doc()
    for head, lines in sections(text):
        if head == "Args:":
            doc.args |= entries(lines, ARG)
        elif head == "Raises:":
            doc.raises |= entries(lines, ARG)
        elif head == "Example:":
            doc.example = textwrap.dedent("\n".join(lines)).splitlines()
        elif head == "Returns:":
            doc.prose.append("Returns " + " ".join(map(str.strip, lines)).strip())
        else:
            for paragraph in filter(None, "\n".join(lines).strip("\n").split("\n\n")):
                found = entries(paragraph.splitlines(), ROW)
                if "  " in paragraph.partition("\n")[0] or (found and set(found) <= set(known)):
                    doc.args |= found
                else:
                    doc.prose.append(" ".join(paragraph.split()))
    return doc


def doc_of(thing: Any, known: tuple[str, ...] = ()) -> Doc:
    """The docstring of a class or function, and for a class the arguments that its bases explain."""
    doc = taken_apart(inspect.getdoc(thing) or "", known)
    for base in inspect.getmro(thing)[1:] if inspect.isclass(thing) else ():
        if base.__module__.startswith("dali_feed") and base.__doc__:
            doc.args = taken_apart(base.__doc__, known).args | doc.args
    return doc


def shown(value: Any) -> str:
    """A default as people write it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) is int and value >= 1 << 16 and value & (value - 1) == 0:
        return f"2**{value.bit_length() - 1}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return plain(text).replace("|", "\\|")


def plain(text: str) -> str:
    """Text in which Markdown sees no bold: __dlpack__ becomes code."""
    return re.sub(r"(?<![`\w])__\w+__(?![`\w])", r"`\g<0>`", text)


def code(text: str) -> str:
    """As code, in a table."""
    return "`" + text.replace("|", "\\|") + "`"


def table(head: str, rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def wrapped(text: str, later: str = "") -> str:
    """A paragraph; its second and later lines begin with `later`."""
    return textwrap.fill(plain(text), WIDTH, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


def opened(section: str) -> str:
    """The head of a section."""
    return f"## {section}\n\n{wrapped(' '.join(ABOUT[section].split()))}\n"


def default_of(owner: Any, parameter: inspect.Parameter) -> str:
    """The default of a parameter or field; a factory is called."""
    if parameter.default is inspect.Parameter.empty:
        return "required"
    for each in fields(owner) if is_dataclass(owner) else ():
        if each.name == parameter.name and each.default_factory is not MISSING:
            return code(shown(each.default_factory()))
    return code(shown(parameter.default))


def parameters(thing: Any) -> list[inspect.Parameter]:
    """What a caller gives, in order."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return []
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return [p for p in inspect.signature(thing).parameters.values() if p.kind not in variable]


def meanings(name: str, wanted: Sequence[str], doc: Doc) -> dict[str, str]:
    """What each of the names means; one that nobody explains is an error."""
    found = {each: doc.args.get(each) or MEANINGS.get(f"{name}.{each}", "") for each in wanted}
    if lost := [each for each, meaning in found.items() if not meaning]:
        msg = f"{name}: its docstring must give a meaning for each argument; found none for {', '.join(lost)}"
        raise SystemExit(msg)
    return found


def arguments(name: str, thing: Any, doc: Doc) -> str:
    """The table of what a caller gives."""
    rows, by_name, given = [], False, parameters(thing)
    means = meanings(name, [parameter.name for parameter in given], doc)
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and not by_name:
            by_name = True
            if parameter is not given[0]:
                rows.append(("*from here on by name*", "", "", ""))
        kind = code(str(parameter.annotation).strip("'\""))
        rows.append((code(parameter.name), kind, default_of(thing, parameter), cell(means[parameter.name])))
    return table("argument, type, default, meaning", rows) if rows else ""


def fields_of_result(name: str, thing: Any, doc: Doc) -> str:
    """What the fields of a class hold that users read and never make."""
    doc.args |= {each.name: each.metadata["metric"].help for each in fields(thing) if "metric" in each.metadata}
    means = meanings(name, [each.name for each in fields(thing)], doc)
    return table(
        "field, type, meaning", [(code(f.name), code(str(f.type)), cell(means[f.name])) for f in fields(thing)]
    )


def call(name: str, function: Any) -> str:
    """A method as it is called."""
    given = [p for p in parameters(function) if p.name not in {"self", "cls"}]
    return f"{name}({', '.join(p.name if p.default is p.empty else f'{p.name}={shown(p.default)}' for p in given)})"


def methods(thing: type) -> Iterator[str]:
    """A line for each public method and property of a class, and of bases that have no section of their own."""
    found: dict[str, Any] = {}
    bases = [base for base in inspect.getmro(thing) if base.__module__.startswith("dali_feed")]
    shown = [base for base in bases if base is thing or base.__name__ not in NAMES]
    for base in reversed(shown):
        found |= {n: value for n, value in vars(base).items() if n in {"__len__", "__iter__"} or not n.startswith("_")}
    found = {n: value for n, value in found.items() if next(base for base in bases if n in vars(base)) in shown}
    for name, value in found.items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if not inspect.isfunction(function) or not function.__doc__:
            continue
        doc = doc_of(function)
        head = name if isinstance(value, property) else call(name, function)
        head = {"__len__()": "len()", "__iter__()": "iter()"}.get(head, head)
        text = " ".join(doc.prose + [f"{name}: {arg}." for name, arg in doc.args.items()])
        text += "".join(f" `{name}`: {why.rstrip('.')}." for name, why in doc.raises.items())
        yield wrapped(f"- `{head}`: {text}", "  ") + "\n"


def entry(name: str) -> str:
    """The section of one name."""
    module = NAMES[name]
    thing = getattr(importlib.import_module(module), name)
    doc = doc_of(thing, tuple(p.name for p in parameters(thing)))
    parts = [f"### `{name}`\n", f"`from {module} import {name}`\n", "\n\n".join(map(wrapped, doc.prose)) + "\n"]
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        parts.append(table("value, meaning", [(code(each.name), cell(doc.args[each.name])) for each in thing]))
    elif name in RESULTS:
        parts.append(fields_of_result(name, thing, doc))
    else:
        mine, given = taken_apart(inspect.getdoc(thing) or "", ()).args, {p.name for p in parameters(thing)}
        extra = {n: text for n, text in mine.items() if n not in given and doc.args[n]}
        parts += [arguments(name, thing, doc)]
        parts += [table("attribute, meaning", [(code(n), cell(text)) for n, text in extra.items()])] if extra else []
    if doc.raises:
        parts.append(table("error, when", [(code(n), cell(text)) for n, text in doc.raises.items()]))
    if doc.example:
        parts.append("```python\n" + "\n".join(doc.example) + "\n```\n")
    if inspect.isclass(thing) and not issubclass(thing, enum.Enum):
        parts.append("".join(methods(thing)))
    return "\n".join(part for part in parts if part.strip())


def errors() -> str:
    """Every error, in the order of the tree, with who has to act."""
    module = importlib.import_module("dali_feed.errors")
    ordered = [each for each in vars(module).values() if inspect.isclass(each) and each.__name__ in module.__all__]

    def below(parent: type, depth: int) -> Iterator[tuple[type, int]]:
        yield parent, depth
        for each in ordered:
            if each.__bases__[0] is parent:
                yield from below(each, depth + 1)

    def actor(error: type) -> str:
        known = next(base for base in error.__mro__ if base.__name__ in ACTS or base is Exception)
        if known is Exception or (known is module.DaliFeedError and error is not known):
            msg = f"{error.__name__}: say in docs/_reference.py who has to act"
            raise SystemExit(msg)
        return ACTS[known.__name__]

    rows = []
    for error, depth in below(module.DaliFeedError, 0):
        kinds, meaning = ", ".join(code(base.__name__) for base in error.__bases__), " ".join(doc_of(error).prose)
        rows.append(("&emsp;" * depth + code(error.__name__), kinds, cell(meaning), actor(error)))
    return f"{opened('Errors')}\n{table('error, a kind of, meaning, who has to act', rows)}"


def contents() -> str:
    """What stands where: each section with its names."""
    rows, seen = [], set[str]()
    for title in ABOUT:
        anchor = re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        names = [name for listed in SECTIONS.get(title, {}).values() for name in listed.split()]
        links = []
        for name in names:  # of `verdict` and `Verdict` the first has the anchor
            links.append(code(name) if name.lower() in seen else f"[{code(name)}](#{name.lower()})")
            seen.add(name.lower())
        rows.append((f"[{title}](#{anchor})", ", ".join(links) or "each error, and who has to act"))
    return table("section, names", rows)


def page() -> str:
    """The whole page."""
    parts = [HEAD + contents()]
    for title, homes in SECTIONS.items():
        parts += [opened(title), *(entry(name) for names in homes.values() for name in names.split())]
    return "\n".join([*parts, errors(), TAIL])


def written(path: Path, wanted: str, about: str) -> int:
    """Write a page, or with --check compare it; the exit status."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page is old")
    check = parser.parse_args().check
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if check:
        lines = found.splitlines(), wanted.splitlines()
        sys.stdout.writelines(
            f"{line}\n" for line in difflib.unified_diff(*lines, "the page", "the code", "", "", 0, "")
        )
        return int(wanted != found)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(written(PAGE, page(), __doc__ or ""))
