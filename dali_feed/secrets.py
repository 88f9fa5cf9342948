"""Secrets among the options of a client: taken from the environment or a file, and never shown.

The law: a secret is read when a client is made, is held by nothing that is printed or pickled, and is replaced by ***
in every message and line of a log that we pass on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError

__all__ = ["FromEnv", "FromFile", "hidden", "is_secret", "revealed", "revealed_options"]

SHORTEST = 3  # fewer letters are in every message, and keep nothing secret
_NAMES = re.compile(r"password|passphrase|secret|token|private|key\.pem|oauthbearer\.config|jaas")
_STORES = re.compile(r"_key$|access_key_id|authori[sz]ation|credential|cookie|\bsas\b|sas_")  # and those of obstore
_NO_SECRETS = re.compile(r"\.location$|\.url$|\.file$")  # where something is
_VALUES = re.compile(r"=(\S+)")  # of "principal=... scope=...", as sasl.oauthbearer.config has them
_HIDDEN: set[str] = set()


@dataclass(frozen=True, slots=True)
class FromEnv:
    """The value of an option, read whenever a client is made: that of an environment variable.

    name  the variable's
    """

    name: str

    def read(self) -> str:
        """The value. ConfigError where it is not set."""
        value = os.environ.get(self.name)
        if value is None:
            msg = f"the environment variable {self.name} must be set; it is not"
            raise ConfigError(msg)
        return value


@dataclass(frozen=True, slots=True)
class FromFile:
    """The value of an option, read whenever a client is made: the text of a file, without the end of its last line.

    path  the file's
    """

    path: str | os.PathLike[str]

    def read(self) -> str:
        """The value. ConfigError where the file cannot be read."""
        try:
            return Path(self.path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            msg = f"the file {os.fspath(self.path)} must hold a secret; found: {said}"
            raise ConfigError(msg) from None


def is_secret(name: str) -> bool:
    """Whether an option of that name holds what nobody may see."""
    return bool(_NAMES.search(name)) and not _NO_SECRETS.search(name)


def revealed(subject: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their secrets read, which `hidden` knows from now on. ConfigError where one cannot be read."""
    return {name: _read(f"{subject}: {name} in config=", value, is_secret(name)) for name, value in config.items()}


def revealed_options(subject: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """As `revealed`, of options of a file system, which may hold further ones: {"client_kwargs": {...}}."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found[name] = revealed_options(f"{subject}[{name!r}]", value)
        else:
            secret = is_secret(name.lower()) or bool(_STORES.search(name.lower()))
            found[name] = _read(f"{subject}[{name!r}]", value, secret)
    return found


def _read(subject: str, value: Any, secret: bool) -> Any:
    told = isinstance(value, FromEnv | FromFile)
    try:
        found = value.read() if told else value
    except ConfigError as error:
        msg = f"{subject}: {error}"
        raise ConfigError(msg) from None
    if told or secret:
        text = found if isinstance(found, str) else ""
        parts = (text, *text.splitlines(), *_VALUES.findall(text))  # a message may quote a part of it
        _HIDDEN.update(part for part in parts if len(part) >= SHORTEST)
    return found


def hidden(text: str) -> str:
    """The text with *** in the place of every secret that any client was given."""
    for secret in sorted(_HIDDEN, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
