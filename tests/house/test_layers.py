"""Who may import whom: the contracts of `[tool.importlinter]` in pyproject.toml, and what those cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINTER = Path(sys.executable).with_name("lint-imports")
# Files outside of kernels/ and bench/ that call a GPU by `torch.cuda` or CuPy. No file comes to them.
ON_THE_DEVICE = {
    "dali_feed/cli/bench.py",
    "dali_feed/engines/device_cache.py",
    "dali_feed/engines/failures.py",
    "dali_feed/engines/gpu/device.py",
    "dali_feed/engines/gpu/finish.py",
    "dali_feed/engines/gpu/parcel.py",
    "dali_feed/engines/ranges.py",
    "dali_feed/loader/arguments.py",
    "dali_feed/loader/items.py",
}
BROKEN = """
[tool.importlinter]
root_packages = ["dali_feed"]
[[tool.importlinter.contracts]]
name = "upside down"
type = "layers"
containers = ["dali_feed"]
layers = ["plan", "feed"]
"""


def linted(*options: object) -> subprocess.CompletedProcess[str]:
    """import-linter over what is installed here."""
    words = [str(LINTER), "--no-cache", "--no-logo", *map(str, options)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_imports_go_down() -> None:
    """No import goes up, beside or in a circle, and heavy packages are known to few; in functions neither."""
    done = linted()
    assert done.returncode == 0, done.stdout


def test_a_breach_is_seen(tmp_path: Path) -> None:
    """The check itself fails where a layer imports what stands above it, and names the import."""
    (tmp_path / "broken.toml").write_text(BROKEN)
    done = linted("--config", tmp_path / "broken.toml")
    assert done.returncode == 1
    assert "dali_feed.feed is not allowed to import dali_feed.plan" in done.stdout


def on_the_device(tree: ast.AST) -> bool:
    """Whether code looks at `torch.cuda` or imports CuPy, in whatever function."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="cuda", value=ast.Name(id="torch")):
                return True
            case ast.Import(names=names) if any(one.name.partition(".")[0] == "cupy" for one in names):
                return True
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "cupy":
                return True
    return False


def test_few_files_know_the_device() -> None:
    """`torch.cuda` is an attribute, which no linter of imports sees: what calls a GPU is known by name."""
    rooms = {path for path in (ROOT / "dali_feed").iterdir() if path.name not in {"bench", "kernels"}}
    files = {file for room in rooms for file in (room.rglob("*.py") if room.is_dir() else [room])}
    python = {str(file.relative_to(ROOT)): file.read_text() for file in files if file.suffix == ".py"}
    found = {name for name, text in python.items() if on_the_device(ast.parse(text))}
    assert found - ON_THE_DEVICE == set(), "call the device where the others do"
