"""Holds the house: rooms, what stands below each, and that there are no circles.

The law is the table below. It is read off the sources with ast, function-level and TYPE_CHECKING imports
included, so a lazy import does not get round it. A new room needs a row; a row says why it may not know more.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dali_feed.transforms.table import NESTS, NOTHING, TIMM, TORCHVISION

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Room:
    """A folder or a file of `dali_feed/`: it may import itself, `below` and the `outside` packages.

    The standard library and NumPy are everybody's.
    """

    name: str
    below: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


WORDS = ("errors", "checks", "packages")
PURE = (
    *WORDS,
    *("cores", "draws", "records", "screen", "quarantine", "options", "plan", "columns", "transforms", "compiler"),
)
# From the bottom up.
ROOMS = (
    Room("errors"),
    Room("checks", ("errors",)),
    Room("packages", ("errors",)),
    Room("cores"),
    Room("native"),
    Room("locks"),
    Room("secrets", ("errors",)),
    Room("draws", ("errors",)),
    Room("formats", WORDS, ("orjson", "pybase64", "fastavro", "msgpack", "google.protobuf")),
    Room("records", (*WORDS, "native")),
    Room("storage", (*WORDS, "locks", "records", "secrets"), ("fsspec", "aiohttp")),
    Room("screen", WORDS),
    Room("quarantine", (*WORDS, "records")),
    Room("options", (*WORDS, "cores", "quarantine", "screen")),
    Room("tuner", (*WORDS, "cores", "options", "storage")),  # it knows no feed: a feed is what it is handed to race
    Room("plan", (*WORDS, "draws", "records")),
    Room("columns", (*WORDS, "formats", "records", "screen", "plan"), ("tokenizers", "torch", "torchvision", "PIL")),
    Room("transforms", (*WORDS, "draws"), ("torch", "torchvision", "nvidia.dali", "PIL")),  # none while it is imported
    Room("compiler", (*WORDS, "draws", "screen", "transforms")),
    Room("mixing", ("transforms",)),  # names that users import
    Room("colour", ("transforms",)),
    Room("kernels", (*WORDS, "transforms"), ("cupy", "cupy_backends")),
    Room(
        "external_sources",
        (*WORDS, "native", "secrets", "formats", "records", "storage", "quarantine"),
        ("confluent_kafka", "pyarrow", "fsspec", "google_crc32c", "xxhash", "zstandard"),
    ),
    Room("packing", (*WORDS, "cores", "records", "storage", "columns", "external_sources"), ("PIL", "pyarrow", "ray")),
    Room(
        "engines",
        (*PURE, "kernels", "native"),
        ("nvidia.dali", "nvidia.nvimgcodec", "torch", "torchvision", "cupy", "PIL"),
    ),
    Room("feed", (*PURE, "locks", "engines", "tuner")),
    Room("live", (*PURE, "engines", "feed")),
    Room(
        "watching", (*PURE, "feed"), ("prometheus_client", "opentelemetry", "pynvml", "torch")
    ),  # a loader is shown it
    Room(
        "loader",
        (*PURE, "kernels", "external_sources", "engines", "feed", "live", "watching"),
        ("torch", "torchvision", "pynvml"),
    ),
    Room("dali", (*PURE, "engines", "feed", "loader"), ("torch",)),  # DALI's names, no DALI
    Room("testing", (*PURE, "external_sources", "feed", "live"), ("confluent_kafka",)),
    Room("__init__", ("packages", "options", "plan", "transforms", "compiler", "loader")),  # names only, lazily
    Room(
        "bench",
        (
            *(*PURE, "native", "kernels", "storage", "external_sources", "packing"),
            *("engines", "feed", "live", "loader", "testing"),
        ),
        (  # peers are imported when they take part
            *("confluent_kafka", "cupy", "jinja2", "nvidia.dali", "nvidia.nvimgcodec", "PIL", "pynvml"),
            *("skimage", "sklearn", "torch", "torchvision", "webdataset"),
        ),
    ),
    Room(
        "cli",
        (
            *(
                *PURE,
                "native",
                "secrets",
                "formats",
                "storage",
                "external_sources",
                "packing",
                "engines",
                "feed",
                "live",
                "loader",
            ),
            *("testing", "watching", "tuner", "bench"),
        ),
        ("rich", "typer", "matplotlib", "torch", "torchvision", "skimage", "sklearn", "PIL"),
    ),
)
BY_NAME = {room.name: room for room in ROOMS}


def sources() -> dict[str, Path]:
    """Module name -> file, for all that is installed; the two links are not followed."""
    homes = {"dali_feed": "dali_feed", "dali_feed.kernels": "kernels", "dali_feed.external_sources": "external_sources"}
    found = {}
    for package, folder in homes.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "dali_feed" and parts[0] in {"kernels", "external_sources"}:
                continue  # the links, on a Python whose rglob follows them
            found[".".join((package, *parts))] = path
    return found


SOURCES = sources()


def room_of(module: str) -> Room | None:
    """The room that the module `dali_feed.x.y` is in."""
    return BY_NAME.get([*module.split("."), "__init__"][1])


@functools.cache
def imports_of(tree: ast.AST, module: str) -> list[tuple[int, str]]:
    """(line, module) of every import in the tree, wherever it stands; relative ones made absolute."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, name.name) for name in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                above = module.split(".")[:-level] if level else []
                whole = ".".join([*above, *([base] if base else [])])
                # `from package import name` may import a module; the longest name decides.
                found += [(node.lineno, f"{whole}.{name.name}") for name in names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.append((node.lineno, name))
    return found


def allowed(module: str, target: str) -> bool:
    """Whether the table lets `module` import `target`."""
    room = room_of(module)
    assert room is not None
    root = target.partition(".")[0]
    if root == "dali_feed":
        if target.count(".") == 1 and f"{target}.__init__" not in SOURCES and target not in SOURCES:
            target = "dali_feed"  # a name that the package itself gives
        other = room_of(target)
        return other is room or (other is not None and other.name in room.below)
    if root in sys.stdlib_module_names or root == "numpy":
        return True
    return any(target == name or target.startswith(name + ".") for name in room.outside)


def breaches(module: str, tree: ast.AST) -> list[str]:
    """What in the tree breaks the table, one line each."""
    found = []
    for line, target in imports_of(tree, module):
        if not allowed(module, target):
            room = room_of(module)
            assert room is not None
            found.append(f"{module}:{line} imports {target}, which the room {room.name!r} may not")
    return found


def files_below(module: str, tree: ast.AST) -> set[str]:
    """The files of ours that the tree imports; a name that a package gives is not a file."""
    found = {t if t in SOURCES else t.rpartition(".")[0] for _, t in imports_of(tree, module)}
    return {name for name in found if name in SOURCES} - {module}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every file, parsed by who comes to a test of it and not by each that collects this file."""
    return {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}


def test_every_module_has_its_room() -> None:
    """A module that no row names has no law yet, so it must be given one."""
    homeless = [str(path.relative_to(ROOT)) for module, path in SOURCES.items() if room_of(module) is None]
    assert not homeless, f"place in a row of ROOMS: {homeless}"


def test_imports_go_down_only() -> None:
    """No module imports what its row does not name."""
    assert not [breach for module, tree in trees().items() if room_of(module) for breach in breaches(module, tree)]


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not even lazily: the files of each room have an order too."""
    graph = {module: files_below(module, tree) for module, tree in trees().items() if not module.endswith("__init__")}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # a CycleError names the circle


def test_compilers_know_flips_alone_by_name() -> None:
    """A transform is one file and one line of the table; of those files the compilers import the one they fold."""
    lines = {**TORCHVISION, **NESTS, **TIMM}.values()
    files = {f"dali_feed.transforms.{line.partition(':')[0]}" for line in lines if line != NOTHING}
    compilers = {module: tree for module, tree in trees().items() if module.startswith("dali_feed.compiler.")}
    known = {name for module, tree in compilers.items() for name in files_below(module, tree) & files}
    assert known == {"dali_feed.transforms.flip"}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dali_feed.plan.order", "def f():\n    import torch"),
        ("dali_feed.plan.order", "from dali_feed import loader"),
        ("dali_feed.plan.order", "from dali_feed import DataLoader"),
        ("dali_feed.plan.order", "if TYPE_CHECKING:\n    from dali_feed.engines import dali_graph"),
        ("dali_feed.loader.loader", "import nvidia.dali.fn as fn"),
        ("dali_feed.feed.pump", "from nvidia import dali"),
        ("dali_feed.feed.pump", "from ..loader import DataLoader"),
        ("dali_feed.external_sources.files", "import dali_feed.kernels.finish"),
        ("dali_feed.external_sources.files", "importlib.import_module('cupy')"),
        ("dali_feed.kernels.finish", "from dali_feed.external_sources import KafkaTopic"),
        ("dali_feed.kernels.finish", "import kernels.cast"),
        ("dali_feed.engines.dali.graph", "from dali_feed.feed import Feed"),
        ("dali_feed.loader.loader", "from dali_feed.testing import broker"),
    ],
)
def test_a_breach_is_seen(module: str, text: str) -> None:
    """The check itself sees an import in a function, under TYPE_CHECKING, relative, by name or through a parent."""
    assert len(breaches(module, ast.parse(text))) == 1


def test_the_table_points_down() -> None:
    """Rows stand above what they import; few rooms know DALI; kernels and sources do not know each other."""
    names = [room.name for room in ROOMS]
    for row, room in enumerate(ROOMS):
        assert set(room.below) <= set(names[:row]), room.name
    assert [room.name for room in ROOMS if "nvidia.dali" in room.outside] == ["transforms", "engines", "bench"]
    assert "kernels" not in BY_NAME["external_sources"].below
    assert [name for name in PURE if BY_NAME[name].outside] == ["columns", "transforms"]


def test_a_room_opens_without_heavy_imports() -> None:
    """Whoever imports a room's name pays for nothing that one of its files needs."""
    heavy = ("torch", "nvidia", "cupy", "confluent_kafka")
    doors = {module: tree for module, tree in trees().items() if module.endswith("__init__")}
    assert len(doors) > len([room for room in ROOMS if (ROOT / "dali_feed" / room.name).is_dir()])
    assert not [
        (module, name)
        for module, tree in doors.items()
        for _, name in imports_of(tree, module)
        if name.startswith(heavy)
    ]


def test_public_modules_say_what_they_are() -> None:
    """Every module without a leading underscore, packages among them, opens with a docstring."""
    public = {name: tree for name, tree in trees().items() if not name.rpartition(".")[2].startswith("_")}
    public |= {name: tree for name, tree in trees().items() if name.endswith(".__init__")}
    assert not [name for name, tree in public.items() if not ast.get_docstring(tree)]


def test_mapped_folders_import_absolutely() -> None:
    """Files of the two mapped folders name modules in full: their place on disk is not their place in the package."""
    mapped = [name for name, path in SOURCES.items() if path.parent.name in {"kernels", "external_sources"}]
    nodes = [(name, node) for name in mapped for node in ast.walk(trees()[name])]
    assert not [(name, node.lineno) for name, node in nodes if isinstance(node, ast.ImportFrom) and node.level]
