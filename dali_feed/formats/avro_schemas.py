"""Avro's schemas: read from text, a file, a folder of them, or a schema registry."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, DaliFeedError, FormatError, SourceUnreachableError
from dali_feed.packages import needed

_MOST_UNKNOWN = 1024  # ids without a schema that are remembered
_MOST_REFERENCES = 256
_NO_SUCH = 404


def written(schema: Any) -> Any:
    """A schema as dicts and lists, of what a user may give: those, JSON text, or the path of a file.

    Raises:
        ConfigError: it is none of them.
    """
    if isinstance(schema, Mapping):
        return dict(schema)
    if isinstance(schema, list | tuple):
        return list(schema)
    text = schema
    try:
        if isinstance(schema, os.PathLike) or (isinstance(schema, str) and schema.endswith(".avsc")):
            text = Path(schema).read_text(encoding="utf-8")
        elif isinstance(schema, str) and schema.isalpha():  # a type's name, as in "long"
            return schema
        return json.loads(text)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"Avro: a schema must be a dict, JSON text or the path of an .avsc file; {error}") from error


def parsed(schema: Any, named: dict[str, Any]) -> Any:
    """The schema with all names in full; the types that it defines come into `named`.

    Raises:
        ConfigError: Avro has no such schema.
        MissingPackageError: fastavro is not installed.
    """
    with needed():
        from fastavro.schema import parse_schema
    try:
        return parse_schema(schema, named_schemas=named)
    except Exception as error:
        raise ConfigError(f"Avro: must be a schema of Avro; {type(error).__name__}: {error}") from error


def whole(schema: Any) -> tuple[Any, dict[str, Any]]:
    """A schema as a user gives it, with all names in full, and the types that it defines. Raises as these two do."""
    named: dict[str, Any] = {}
    return parsed(written(schema), named), named


class Schemas:
    """Schemas by their ids. What was looked up is remembered, what was not found too: an id never changes."""

    def __init__(self, where: Any) -> None:
        if isinstance(where, str | os.PathLike):
            if not Path(where).is_dir():
                raise ConfigError(f"Avro: schemas must be a folder of ID.avsc files; found none at {os.fspath(where)}")
        elif not callable(where) and not hasattr(where, "get_schema"):
            msg = f"Avro: schemas must be a folder, a registry client with get_schema, or a function; found {where!r}"
            raise ConfigError(msg)
        self._where = where
        self._unknown: dict[int, str] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> tuple[Any, dict[str, Any]]:
        """The schema of this id, as `whole` gives it.

        Raises:
            FormatError: there is none, or it is no schema of Avro's: the value that names it cannot be read.
            SourceUnreachableError: the registry does not answer, which is no value's fault.
        """
        with self._lock:
            reason = self._unknown.get(number)
            if reason is None:
                try:
                    return self._resolved(number)
                except FormatError as error:
                    reason = str(error)
                    if len(self._unknown) >= _MOST_UNKNOWN:
                        self._unknown.clear()
                    self._unknown[number] = reason
            raise FormatError(reason)

    def _resolved(self, number: int) -> tuple[Any, dict[str, Any]]:
        named: dict[str, Any] = {}
        answer = self._answer(number, lambda: self._look_up(number))
        text: Any = answer
        references: Any = ()
        if not isinstance(answer, str | Mapping | list):  # an object as confluent_kafka has it
            kind = getattr(answer, "schema_type", None)
            if kind not in {None, "AVRO"}:
                raise FormatError(f"avro: schema {number} must be a schema of Avro; found one of type {kind}")
            text, references = getattr(answer, "schema_str", None), getattr(answer, "references", None) or ()
        try:
            self._refer(number, list(references), named, set())
            return parsed(json.loads(text) if isinstance(text, str) else text, named), named
        except (ConfigError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"avro: schema {number} cannot be read: {error}") from error

    def _refer(self, number: int, references: list[Any], named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        """What a schema refers to, and what that does, comes first."""
        for each in references:
            subject, version = (
                (each["subject"], each["version"]) if isinstance(each, Mapping) else (each.subject, each.version)
            )
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > _MOST_REFERENCES:
                raise ValueError(f"more than {_MOST_REFERENCES} references")
            answer = self._answer(number, functools.partial(self._where.get_version, subject, version))
            schema = getattr(answer, "schema", answer)
            self._refer(number, list(getattr(schema, "references", None) or ()), named, seen)
            parsed(json.loads(schema.schema_str), named)

    def _look_up(self, number: int) -> Any:
        if isinstance(self._where, str | os.PathLike):
            return Path(self._where, f"{number}.avsc").read_text(encoding="utf-8")
        return self._where.get_schema(number) if hasattr(self._where, "get_schema") else self._where(number)

    def _answer(self, number: int, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except DaliFeedError:
            raise
        except Exception as error:
            missing = isinstance(error, LookupError | FileNotFoundError | UnicodeDecodeError)
            if missing or getattr(error, "http_status_code", None) == _NO_SUCH:
                raise FormatError(f"avro: there is no schema {number}: {type(error).__name__}: {error}") from error
            msg = f"Avro: schema {number}: must be available from {self._where!r}; {type(error).__name__}: {error}"
            raise SourceUnreachableError(msg) from error
        if answer is None:
            raise FormatError(f"avro: there is no schema {number}")
        return answer
