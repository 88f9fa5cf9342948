"""bench/_kinds.py for tests: bench is no package that could be imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["kinds"]


def _module() -> Any:
    path = Path(__file__).parents[2] / "bench" / "_kinds.py"
    spec = importlib.util.spec_from_file_location("bench_kinds", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kinds = _module()
