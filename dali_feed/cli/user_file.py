"""An object of a user's own Python file, as `file.py:name` says it. The file is run, as `python file.py` would."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from dali_feed.errors import ConfigError

__all__ = ["object_of"]


def object_of(option: str, text: str) -> object:
    """What the file calls by that name. Raises ConfigError where there is no such file or name, or the file fails."""
    path, _, name = text.rpartition(":")
    if not path or not name.isidentifier():
        msg = f"{option}: must be FILE.py:NAME; found {text!r}"
        raise ConfigError(msg)
    if not Path(path).is_file():
        msg = f"{option}: must be a Python file that is there; found none at {path!r}"
        raise ConfigError(msg)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        msg = f"{option}: must be a Python file, FILE.py; found {path!r}"
        raise ConfigError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # where its own imports are
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.origin]
        line = f", line {frames[-1].lineno}" if frames else ""
        msg = f"{option}: {path}{line} must run; found {type(error).__name__}: {error}"
        raise ConfigError(msg) from error
    finally:
        sys.path.pop(0)
    if not hasattr(module, name):
        names = ", ".join(each for each in vars(module) if not each.startswith("_"))
        msg = f"{option}: {path} must have a name {name!r}; found {names or 'none'}"
        raise ConfigError(msg)
    found: object = getattr(module, name)
    return found
