"""The contract of a format: one value in, out of it the members that were asked for.

The law of this file: whatever the bytes are, what `bound` gives either returns the members or raises a FormatError,
after work and memory that the length of the bytes bounds. So one value costs its own record and nothing else.

Which members are wanted is told once, and the function that comes back is made for them: nobody pays for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from dali_feed.errors import ConfigError, DaliFeedError, FormatError

Value = bytes | bytearray | memoryview
Parse = Callable[[Value], tuple[Any, ...]]


@runtime_checkable
class Format(Protocol):
    """How values are read. Keep this contract, and an object of your own is a format like those that come along.

    A member is known by its name, which for nested records is a path: `body.features`, `images[0].data`. What it is
    given as: a memoryview (bytes; a view of the value where the format allows), a str, an int, a float, a bool, None
    for a null, a NumPy array or a list (numbers in a row), a dict (a record in the record).
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """The function that reads these members of one value: a tuple of them, in this order.

        It may raise anything; that is its value's fault. It keeps nothing from one value to the next that would
        change what it gives, and may be called by several threads at once.

        Raises:
            ConfigError: a member that no value can have.
        """
        ...

    def members(self, value: Value) -> dict[str, Any]:
        """All members of one value, by name: for people who look at a record. May raise anything."""
        ...


def checked(members: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; ConfigError where they are no row of different texts."""
    if isinstance(members, str) or not all(isinstance(name, str) for name in members):
        raise ConfigError(f"members: must be a list of texts; found {members!r}")
    if len(set(members)) < len(members):
        raise ConfigError(f"members: each can be asked for once; found {list(members)}")
    return tuple(members)


def bound(form: Format, members: Sequence[str]) -> Parse:
    """What reads these members of a value, and raises nothing but a FormatError with the reason.

    A DaliFeedError of another kind passes, for it is about more than one record (a schema registry that does not
    answer), and so does a MemoryError: sizes are bounded by the value, so it is the machine's.

    Raises:
        ConfigError: a member that no value can have.
    """
    names = checked(members)
    parse, title, count = form.bind(names), type(form).__name__, len(names)

    def read(value: Value) -> tuple[Any, ...]:
        try:
            members = parse(value)
        except (DaliFeedError, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise FormatError(f"{title}: {type(error).__name__}{f': {reason}' if reason else ''}") from error
        if members.__class__ is tuple and len(members) == count:
            return members
        raise FormatError(f"{title}: must give a tuple of {count} members; found {type(members).__name__}")

    return read
