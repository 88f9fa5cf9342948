"""What every format keeps, a user's own too: members or one named error, and names that find it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dali_feed import formats
from dali_feed.errors import ConfigError, DaliFeedError, FormatError, SourceUnreachableError
from dali_feed.formats import Format, Json, Npy, bound, format_of


class Halves:
    """A format of a user's: a text and a number with a semicolon between them."""

    def bind(self, members: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
        """What reads them."""
        order = [("text", "number").index(name) for name in members]

        def parse(value: Any) -> tuple[Any, ...]:
            text, number = bytes(value).decode().split(";")
            both = (text, int(number))
            return tuple(both[k] for k in order)

        return parse

    def members(self, value: Any) -> dict[str, Any]:
        """Both."""
        return dict(zip(("text", "number"), self.bind(("text", "number"))(value), strict=True))


def test_a_format_of_ones_own_is_read_like_the_others() -> None:
    """An object with the two methods is a format; what is asked for comes, in the order asked."""
    assert isinstance(Halves(), Format)
    assert format_of(kept := Halves()) is kept
    read = bound(Halves(), ["number", "text"])
    assert read(b"dog;3") == (3, "dog")
    assert read(memoryview(b"cat;4")) == (4, "cat")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"dog", "ValueError: not enough values"),
        (b"dog;x", "ValueError: invalid literal"),
        (b"\xff;1", "UnicodeDecode"),
    ],
)
def test_whatever_a_format_raises_is_the_one_error(value: bytes, said: str) -> None:
    """Its reason names the format, the exception and its text, in one line."""
    with pytest.raises(FormatError, match=rf"^Halves: .*{said}") as caught:
        bound(Halves(), ["text", "number"])(value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, DaliFeedError)


class Raises:
    """A format that raises what it was told."""

    def __init__(self, error: BaseException | None, gives: Any = ()) -> None:
        self.error, self.gives = error, gives

    def bind(self, members: Sequence[str]) -> Callable[[Any], Any]:
        """What does."""

        def parse(value: Any) -> Any:
            if self.error:
                raise self.error
            return self.gives

        return parse

    def members(self, value: Any) -> dict[str, Any]:
        """None."""
        return {}


@pytest.mark.parametrize("error", [SourceUnreachableError("registry"), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_records_fault_passes(error: BaseException) -> None:
    """A registry that does not answer, or the machine's own trouble, must not make bad records of a whole topic."""
    with pytest.raises(type(error)) as caught:
        bound(Raises(error), [])(b"")
    assert caught.value is error


@pytest.mark.parametrize("error", [RecursionError(), StopIteration(), AssertionError("a\nb")])
def test_odd_exceptions_are_the_one_error_too(error: Exception) -> None:
    """A format may not end the loop that reads for it."""
    with pytest.raises(FormatError, match=type(error).__name__):
        bound(Raises(error), [])(b"")


@pytest.mark.parametrize("gives", [None, (1,), (1, 2, 3), [1, 2], "ab"])
def test_a_format_that_gives_something_else_is_told_so(gives: Any) -> None:
    """Two members are a tuple of two."""
    with pytest.raises(FormatError, match="must give a tuple of 2 members"):
        bound(Raises(None, gives), ["a", "b"])(b"")


@pytest.mark.parametrize("members", ["text", ["a", "a"], [1], [None]])
def test_members_are_different_texts(members: Any) -> None:
    """One text instead of a list of them is a mistake that is easily made."""
    with pytest.raises(ConfigError, match="^members: "):
        bound(Json(), members)


def test_formats_have_names() -> None:
    """Those that need no schema are had by name."""
    assert format_of("json") == Json()
    assert format_of("npy") == Npy()
    assert type(format_of("msgpack")).__name__ == "MsgPack"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("avro", "must be one of json, msgpack, npy.* give Avro"),
        ("jsn", "must be one of json"),
        (Json, "give an object, not its class"),
        (3, "must have the methods bind"),
    ],
)
def test_what_is_no_format_is_refused(what: Any, said: str) -> None:
    """The message says what would be one."""
    with pytest.raises(ConfigError, match=said):
        format_of(what)


def test_names_resolve_and_cost_nothing() -> None:
    """Every exported name is there, and the package alone imports none of the libraries."""
    assert all(getattr(formats, name) is not None for name in formats.__all__)
    libraries = ["fastavro", "google.protobuf", "msgpack", "numpy", "orjson"]
    code = f"import json, sys, dali_feed.formats; print(json.dumps([n for n in {libraries} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {root!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from dali_feed.formats import *
{code}
"""


@pytest.mark.parametrize(
    ("root", "code", "command"),
    [
        ("fastavro", "Avro('\"int\"').bind(['$'])", "pip install fastavro"),
        ("msgpack", "MsgPack().bind(['a'])", "pip install msgpack"),
        ("google", "Example().bind(['a'])", "pip install protobuf"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_command(root: str, code: str, command: str) -> None:
    """Where it is needed first, not before."""
    whole = WITHOUT.format(root=root, code=code)
    done = subprocess.run([sys.executable, "-I", "-c", whole], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dali_feed.errors.MissingPackageError: "), done.stderr
    assert command in last
