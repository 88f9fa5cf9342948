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

SHORTEST = 3  # fewer letters are in every message, and keep nothing secret
_NAMES = re.compile(r"password|passphrase|secret|token|private|key\.pem|oauthbearer\.config|jaas")
_STORES = re.compile(r"_key$|access_key_id|authori[sz]ation|credential|cookie|\bsas\b|sas_")  # and those of obstore
_NO_SECRETS = re.compile(r"\.location$|\.url$|\.file$")  # where something is
_VALUES = re.compile(r"=(\S+)")  # of "principal=... scope=...", as sasl.oauthbearer.config has them
_HIDDEN: set[str] = set()
# Headers that say nothing of who asks.
PLAIN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "cache-control", "pragma", "user-agent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The value of an option, read whenever a client is made: from an environment variable, or from a file.

    env   the variable's name
    file  the file's path: all its text, without the end of its last line
    """

    env: str | None = None
    file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            msg = "Secret: must have one of env= and file=; found " + ("both" if self.env is not None else "neither")
            raise ConfigError(msg)

    def read(self) -> str:
        """The value. ConfigError where the variable is not set, or the file cannot be read."""
        if self.file is None:
            value = os.environ.get(self.env or "")
            if value is None:
                raise ConfigError(f"the environment variable {self.env} must be set; it is not")
            return value
        try:
            return Path(self.file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise ConfigError(f"the file {os.fspath(self.file)} must hold a secret; found: {why}") from None


def is_secret(name: str) -> bool:
    """Whether an option of that name holds what nobody may see."""
    return bool(_NAMES.search(name)) and not _NO_SECRETS.search(name)


def revealed(subject: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their secrets read, which `hidden` knows from now on. ConfigError where one cannot be read."""
    return {name: _read(f"{subject}: {name} in config=", value, is_secret(name)) for name, value in config.items()}


def revealed_options(subject: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """As `revealed`, of options of a store, which may hold further ones: {"client_options": {...}}."""
    read: dict[str, Any] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise ConfigError(f"{subject}: each option must have a text as its name; found {name!r}")
        if isinstance(value, Mapping):
            read[name] = revealed_options(f"{subject}[{name!r}]", value)
        else:
            header = subject.endswith("['default_headers']") and name.lower() not in PLAIN_HEADERS
            secret = header or is_secret(name.lower()) or bool(_STORES.search(name.lower()))
            read[name] = _read(f"{subject}[{name!r}]", value, secret)
    return read


def _read(subject: str, value: Any, secret: bool) -> Any:
    if isinstance(value, Secret):
        secret = True
        try:
            value = value.read()
        except ConfigError as error:
            raise ConfigError(f"{subject}: {error}") from None
    if secret and isinstance(value, str):
        parts = (value, *value.splitlines(), *_VALUES.findall(value))  # a message may quote a part of it
        _HIDDEN.update(part for part in parts if len(part) >= SHORTEST)
    return value


def hidden(text: str) -> str:
    """The text with *** in the place of every secret that any client was given."""
    for secret in sorted(_HIDDEN, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
