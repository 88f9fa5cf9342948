"""What a user's own Python file defines, by `FILE.py:NAME`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError

__all__ = ["named_in"]


def named_in(option: str, target: str) -> Any:
    """The object of that name in that file, which is run. ConfigError where there is none, or the file fails."""
    file, colon, name = target.rpartition(":")
    path = Path(file)
    if not (colon and name.isidentifier() and path.suffix == ".py"):
        msg = f"{option}: must be FILE.py:NAME; found {target!r}"
        raise ConfigError(msg)
    if not path.is_file():
        msg = f"{option}: must name a file that is there; found none at {file}; check the path"
        raise ConfigError(msg)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        msg = f"{option}: {file} must be a Python file"
        raise ConfigError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # its neighbours, as `python FILE.py` has them
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        msg = f"{option}: {file} must run without an error; found {type(error).__name__}: {error}"
        raise ConfigError(msg) from error
    finally:
        sys.path.pop(0)
    if not hasattr(module, name):
        here = sorted(each for each in vars(module) if not each.startswith("_"))
        msg = f"{option}: {file} must define {name}; found {', '.join(here) or 'nothing'}; check the name"
        raise ConfigError(msg)
    return getattr(module, name)
