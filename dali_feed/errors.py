"""Every error this library raises, by who has to act.

DaliFeedError
├── ConfigError (ValueError)         you: an argument or an option
│   ├── TransformError               a transform that cannot be translated for an engine
│   └── StateError                   a state made for something else
├── SourceError                      where the records are
│   ├── SourceNotFoundError          no such topic, file or pattern
│   ├── SourceEmptyError             it is there and holds no record
│   ├── SourceUnreachableError       no answer in time
│   ├── SourceDeniedError            no rights
│   ├── SourceChangedError           it is not what the index or the state was made for
│   ├── DataLostError                records that were promised are gone (retention, a cut file)
│   └── ProduceError                 records that could not be written to a topic
├── BadRecordError                   one record, with its coordinates
├── FormatError (ValueError)         one value that its format cannot read: its record is a bad one
├── BadRecordLimitError              more bad records than the budget allows
├── DeadLetterError                  dead letters (bad records that are to be kept) that could not be written
├── EngineError                      DALI or a kernel failed for a reason that is no record's fault
├── MissingPackageError (ImportError)  a package of others that is not installed; the message has the command
├── WaitError (TimeoutError, RuntimeError)  no batch within the loader's timeout
└── ClosedError                      used after close()

A message names the subject, the rule, what was found and the cure, in that order.
"""

from __future__ import annotations

__all__ = [
    "BadRecordError",
    "BadRecordLimitError",
    "ClosedError",
    "ConfigError",
    "DaliFeedError",
    "DataLostError",
    "DeadLetterError",
    "EngineError",
    "FallbackWarning",
    "FormatError",
    "MissingPackageError",
    "ProduceError",
    "SourceChangedError",
    "SourceDeniedError",
    "SourceEmptyError",
    "SourceError",
    "SourceNotFoundError",
    "SourceUnreachableError",
    "StateError",
    "TransformError",
    "WaitError",
]


class DaliFeedError(Exception):
    """The root: catching it catches all of them."""


class ConfigError(DaliFeedError, ValueError):
    """An argument or an option has a value that is not allowed."""


class TransformError(ConfigError):
    """A transform that cannot be translated for an engine; the message names the nearest one that can."""


class StateError(ConfigError):
    """A state that was made for another source, seed, lane count or shuffle; every difference is listed."""


class SourceError(DaliFeedError):
    """The records cannot be read."""


class SourceNotFoundError(SourceError):
    """No such topic, file or pattern."""


class SourceEmptyError(SourceError):
    """The source is there and holds no record."""


class SourceUnreachableError(SourceError):
    """There was no answer; the message says at which address and for how long it was tried."""


class SourceDeniedError(SourceError):
    """There are no rights to read the source."""


class SourceChangedError(SourceError):
    """The source is not what the index or the state was made for."""


class DataLostError(SourceError):
    """Records that were there when the source was first looked at are gone."""


class ProduceError(SourceError):
    """Records could not be written to a topic: the broker refuses, or another process has taken the run over."""


class BadRecordError(DaliFeedError):
    """One record cannot be used.

    `where` are its coordinates as people write them, `reason` is why.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class FormatError(DaliFeedError, ValueError):
    """One value is not what its format says, or lacks a member that was asked for; the text is the reason."""


class BadRecordLimitError(DaliFeedError):
    """More records were bad than `BadRecords` allows; `records` holds the last (where, reason) pairs."""

    def __init__(self, message: str, records: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.records = records


class DeadLetterError(DaliFeedError):
    """A dead letter (a bad record that is kept) was not written, or not in time; the message says where to and why."""


class EngineError(DaliFeedError):
    """The engine failed for a reason that is no record's fault."""


class MissingPackageError(DaliFeedError, ImportError):
    """A package of others is not installed: `name` is the module that was wanted."""


class WaitError(DaliFeedError, TimeoutError, RuntimeError):
    """No batch came within `timeout` seconds; the message names the stage that is stuck. The pass goes on."""


class ClosedError(DaliFeedError):
    """Used after close(), or an iterator that a newer one has replaced."""


class FallbackWarning(UserWarning):
    """torch's own DataLoader runs a dataset that our engines cannot read; the text says why.

    `warnings.filterwarnings("error", category=FallbackWarning)` refuses it.
    """
