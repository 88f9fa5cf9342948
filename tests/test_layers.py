"""Holds the layers: imports go down only.

The law is the table below. It is read off the sources with ast, function-level and TYPE_CHECKING imports
included, so a lazy import does not get round it. A new module needs a row; a row says why it may not know more.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 400


@dataclass(frozen=True)
class Layer:
    """`modules` (a package's name stands for all in it) may import themselves, `below` and the `outside` packages.

    The standard library and NumPy are everybody's.
    """

    name: str
    modules: tuple[str, ...]
    below: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


# From the bottom up.
LAYERS = (
    Layer(
        "pure",
        (
            *("errors", "packages", "records", "present", "letters", "options"),  # words
            *("plan", "draws", "parcel"),  # and order
            *(
                "recipe",
                "geometry",
                "affine",
                "colour",
                "mixing",
                "finishing",
                "outline",
                "reduction",
            ),  # what is done to an image,
            *(
                "recipe_rules",
                "recipe_effects",
                "recipe_auto",
                "recipe_pillow",
                "pillow_augment",
                "recipe_fit",
                "geometry_fit",
                "recipe_noise",
                "recipe_own",
                "auto_augment",
                "nesting",
                "erasing",
                "perspective",
            ),  # small ops, and ops in ops,
            *("batch_draws", "steps", "program", "host_program", "graph_function"),  # and how each engine is told
            *("host_effects", "program_run", "program_effects", "program_fit", "pipeline_program", "split_program"),
            *("tail_colour", "views"),
            *("screen", "headers", "headers_tiff"),  # what may reach a decoder,
            *("headers_png", "headers_webp", "headers_bmp", "headers_pnm", "headers_gif", "headers_avif"),  # by format
            *("headers_av1", "headers_scans"),
            *("transforms_timm", "transform_fields", "transform_names", "wrappers"),  # who is known, and how it is read
            *("transforms", "state", "stats", "reasons"),  # torchvision by name; where a run stands; its counts
        ),
    ),
    Layer("kernels", ("kernels",), ("pure",), ("cupy", "cupy_backends")),
    Layer("external_sources", ("external_sources",), ("pure",), ("confluent_kafka", "pyarrow", "fsspec")),
    Layer(
        "engines",
        ("engines",),
        ("pure", "kernels"),
        ("nvidia.dali", "nvidia.nvimgcodec", "torch", "torchvision", "cupy", "PIL"),
    ),
    Layer("feed", ("feed",), ("pure", "external_sources", "engines")),
    Layer(
        "loader",
        (
            *("loader", "feeds", "items", "mixes", "user_transforms"),
            *("datasets", "hf_datasets", "image_datasets", "torch_arguments"),
            *("torch_feed", "torch_passes", "stacking"),
            *("dali", "dali_reader"),  # its names, no DALI
        ),
        ("pure", "kernels", "external_sources", "engines", "feed"),
        ("torch", "torchvision", "pynvml"),
    ),
    Layer("testing", ("testing",), ("pure", "external_sources", "feed"), ("confluent_kafka",)),
    Layer("front", ("__init__",), ("pure", "loader")),  # names only, lazily
    Layer(
        "top",
        ("cli", "demo", "inspection", "inspection_view", "verification", "verification_view", "letterbox"),
        ("pure", "kernels", "external_sources", "engines", "feed", "loader", "testing", "front"),
        ("rich", "typer", "matplotlib", "torch", "torchvision", "skimage", "sklearn", "PIL"),
    ),
)


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
FILES = sorted(
    path
    for folder in ("dali_feed", "kernels", "external_sources", "tests", "bench", "examples")
    for suffix in ("*.py", "*.cu", "*.cuh")
    for path in (ROOT / folder).rglob(suffix)
)


def layer_of(module: str) -> Layer | None:
    """The layer whose row names the module `dali_feed.x.y`, or the package it is in."""
    first = [*module.split("."), "__init__"][1]
    return next((layer for layer in LAYERS if first in layer.modules), None)


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
    layer = layer_of(module)
    assert layer is not None
    root = target.partition(".")[0]
    if root == "dali_feed":
        if target.count(".") == 1 and f"{target}.__init__" not in SOURCES and target not in SOURCES:
            target = "dali_feed"  # a name that the package itself gives
        other = layer_of(target)
        return other is layer or (other is not None and other.name in layer.below)
    if root in sys.stdlib_module_names or root == "numpy":
        return True
    return any(target == name or target.startswith(name + ".") for name in layer.outside)


def breaches(module: str, tree: ast.AST) -> list[str]:
    """What in the tree breaks the table, one line each."""
    found = []
    for line, target in imports_of(tree, module):
        if not allowed(module, target):
            layer = layer_of(module)
            assert layer is not None
            found.append(f"{module}:{line} imports {target}, which the layer {layer.name!r} may not")
    return found


def test_every_module_has_its_place() -> None:
    """A module that no row names has no law yet, so it must be given one."""
    homeless = [str(path.relative_to(ROOT)) for module, path in SOURCES.items() if layer_of(module) is None]
    assert not homeless, f"place in a row of LAYERS: {homeless}"


def test_imports_go_down_only() -> None:
    """No module imports what its row does not name."""
    assert not [
        breach
        for module, path in SOURCES.items()
        if layer_of(module)
        for breach in breaches(module, ast.parse(path.read_text()))
    ]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dali_feed.plan", "def f():\n    import torch"),
        ("dali_feed.plan", "from dali_feed import loader"),
        ("dali_feed.plan", "from dali_feed import DataLoader"),
        ("dali_feed.plan", "if TYPE_CHECKING:\n    from dali_feed.engines import dali_graph"),
        ("dali_feed.loader", "import nvidia.dali.fn as fn"),
        ("dali_feed.feed.pump", "from nvidia import dali"),
        ("dali_feed.feed.pump", "from ..loader import DataLoader"),
        ("dali_feed.external_sources.files", "import dali_feed.kernels.finish"),
        ("dali_feed.external_sources.files", "importlib.import_module('cupy')"),
        ("dali_feed.kernels.finish", "from dali_feed.external_sources import KafkaTopic"),
        ("dali_feed.kernels.finish", "import kernels.cast"),
        ("dali_feed.engines.dali_graph", "from dali_feed.feed import Feed"),
        ("dali_feed.loader", "from dali_feed.testing import broker"),
    ],
)
def test_a_breach_is_seen(module: str, text: str) -> None:
    """The check itself sees an import in a function, under TYPE_CHECKING, relative, by name or through a parent."""
    assert len(breaches(module, ast.parse(text))) == 1


def test_the_table_points_down() -> None:
    """Rows stand above what they import, only engines know DALI, and the two middle layers do not know each other."""
    names = [layer.name for layer in LAYERS]
    for row, layer in enumerate(LAYERS):
        assert set(layer.below) <= set(names[:row]), layer.name
    assert [layer.name for layer in LAYERS if "nvidia.dali" in layer.outside] == ["engines"]
    by_name = {layer.name: layer for layer in LAYERS}
    assert by_name["kernels"].below == by_name["external_sources"].below == ("pure",)
    assert not by_name["pure"].outside


def test_files_stay_small() -> None:
    """A file above 400 lines has more than one subject."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


def test_public_modules_say_what_they_are() -> None:
    """Every module without a leading underscore, packages among them, opens with a docstring."""
    public = {name: path for name, path in SOURCES.items() if not name.rpartition(".")[2].startswith("_")}
    public |= {name: path for name, path in SOURCES.items() if name.endswith(".__init__")}
    assert not [name for name, path in public.items() if not ast.get_docstring(ast.parse(path.read_text()))]


def test_mapped_folders_import_absolutely() -> None:
    """Files of the two mapped folders name modules in full: their place on disk is not their place in the package."""
    mapped = [path for path in SOURCES.values() if path.parent.name in {"kernels", "external_sources"}]
    nodes = [(path.name, node) for path in mapped for node in ast.walk(ast.parse(path.read_text()))]
    assert not [(name, node.lineno) for name, node in nodes if isinstance(node, ast.ImportFrom) and node.level]
