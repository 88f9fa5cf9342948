"""Arguments and options that several commands have, as typer wants them; sizes and times as people write them.

What a parser refuses is an error of usage, exit code 2, as where a number is no number.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dali_feed.errors import ConfigError

_TIMES = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
Names = list[str] | None


def size_of(text: str | int) -> int:
    """Bytes of 1500, 512MB (of 10^6 each) or 1GiB (of 2^30)."""
    from dali_feed.checks import bytes_of

    try:
        return bytes_of("size", text)
    except ConfigError as error:
        raise typer.BadParameter(str(error).removeprefix("size: ")) from error


def seconds_of(text: str | float) -> float | None:
    """Seconds of 90s, 30m, 12h or 7d; None for forever."""
    if text == "forever":
        return None
    if isinstance(text, str):
        from dali_feed.checks import AMOUNT

        amount = AMOUNT.fullmatch(text.strip())
        if not amount or amount[2] not in _TIMES or not float(amount[1]):
            raise typer.BadParameter(f"must be a time such as 90s, 30m, 12h, 7d, or forever; found {text!r}")
        return float(amount[1]) * _TIMES[amount[2]]
    return text


def size(text: str, shown: str | bool = True) -> Any:
    """An option that is a size: its help, and its default as it is shown."""
    return typer.Option(parser=size_of, metavar="SIZE", help=text, show_default=shown)


def duration(text: str, shown: str | bool = True, parser: Callable[[Any], float | None] = seconds_of) -> Any:
    """An option that is a time."""
    return typer.Option(parser=parser, metavar="TIME", help=text, show_default=shown)


Sources = Annotated[
    list[str],
    typer.Argument(
        help="Tar shards ('train-*.tar', 's3://...'), a set, image folders, files of records, kafka://host:port/topic."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda:N.", show_default="the CUDA device, or the CPU where there is none")
]
Topic = Annotated[str, typer.Argument(help="kafka://host:port/topic, or kafka://host:port,host:port/topic.")]
Config = Annotated[
    Names,
    typer.Option(
        "--config",
        "-X",
        metavar="KEY=VALUE",
        help="An option of librdkafka; a secret as env:NAME or file:PATH. Can be given several times.",
    ),
]
Storage = Annotated[
    Names,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the store behind s3://, https:// and other addresses; a secret as env:NAME or file:PATH."
        " Can be given several times.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a broker that does not answer.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, a line for each look.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a warning.")]
Resize = Annotated[
    int | None, typer.Option(min=1, metavar="PIXELS", help="Scale larger images down: pixels of the shorter side.")
]
Quality = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Quality of the JPEGs that are written.", show_default="90 with --resize"),
]


def load_object(option: str, text: str) -> Any:
    """What a user's file calls by that name, of FILE.py:NAME. The file is run, as `python FILE.py` would."""
    path, _, name = text.rpartition(":")
    if not name.isidentifier() or Path(path).suffix != ".py":
        raise ConfigError(f"{option}: must be FILE.py:NAME; found {text!r}")
    if not Path(path).is_file():
        raise ConfigError(f"{option}: must name a file that exists; found none at {path!r}; check the path")
    here = vars(_module(option, path))
    if name not in here:
        names = ", ".join(sorted(each for each in here if not each.startswith("_")))
        raise ConfigError(f"{option}: {path} must define {name}; found {names or 'nothing'}; check the name")
    return here[name]


def _module(option: str, path: str) -> Any:
    """The file as a module. It has the name that its neighbours import it by, unless another module has that name."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:  # which Python never gives for a .py file
        raise ConfigError(f"{option}: must be a Python file, FILE.py; found {path!r}")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.setdefault(spec.name, module)  # dataclasses look for the module of a class there
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)  # where its own imports are
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
        if folder in sys.path:
            sys.path.remove(folder)  # ours is the first of that name; the file may have put others before it
    return module
