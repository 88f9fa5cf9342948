"""An object of a user's own Python file, as `FILE.py:NAME` says it. The file is run, as `python FILE.py` would."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError

__all__ = ["object_of"]


def object_of(option: str, text: str) -> Any:
    """What the file calls by that name. Raises ConfigError where there is no such file or name, or the file fails."""
    path, _, name = text.rpartition(":")
    if not name.isidentifier() or Path(path).suffix != ".py":
        msg = f"{option}: must be FILE.py:NAME; found {text!r}"
        raise ConfigError(msg)
    if not Path(path).is_file():
        msg = f"{option}: must name a file that exists; found none at {path!r}; check the path"
        raise ConfigError(msg)
    here = vars(_run(option, path))
    if name not in here:
        names = ", ".join(sorted(each for each in here if not each.startswith("_")))
        msg = f"{option}: {path} must define {name}; found {names or 'nothing'}; check the name"
        raise ConfigError(msg)
    return here[name]


def _run(option: str, path: str) -> Any:
    """The file as a module. It has the name that its neighbours import it by, unless another module has that name."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:  # which Python never gives for a .py file
        msg = f"{option}: must be a Python file, FILE.py; found {path!r}"
        raise ConfigError(msg)
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.setdefault(spec.name, module)  # dataclasses look for the module of a class there
    sys.path.insert(0, str(Path(path).resolve().parent))  # where its own imports are
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script that reads its arguments ends the process
        if known is module:
            del sys.modules[spec.name]
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.origin]
        line = f" in line {frames[-1].lineno}" if frames else ""
        msg = f"{option}: {path} must run without an error; found{line} {type(error).__name__}: {error}"
        raise ConfigError(msg) from error
    finally:
        sys.path.pop(0)
    return module
