"""What every format keeps, a user's own too: members or one named error, and names that find it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka, payloads, read
from kit.inside import Extents
from kit.written import EXAMPLE, avro, example

from dali_feed import formats
from dali_feed.errors import DaliFeedError, FormatError, SourceUnreachableError
from dali_feed.external_sources import KafkaTopic
from dali_feed.formats import Avro, Format, Json, Npy, bound, format_of
from dali_feed.testing import Broker, Message


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


def test_formats_have_names() -> None:
    """Those that need no schema are had by name."""
    assert format_of("json") == Json()
    assert format_of("npy") == Npy()
    assert type(format_of("msgpack")).__name__ == "MsgPack"


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
        if name.partition(".")[0] in ("fastavro", "msgpack", "google"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from dali_feed.errors import MissingPackageError
from dali_feed.formats import *
for made, paths in ((Avro('"int"'), ["$"]), (MsgPack(), ["a"]), (Example(), ["a"])):
    try:
        made.bind(paths)
    except MissingPackageError as error:
        print(str(error).replace("\\n", " "))
"""


def test_a_library_that_is_missing_is_named_with_its_command() -> None:
    """Where it is needed first, not before."""
    done = subprocess.run([sys.executable, "-I", "-c", WITHOUT], capture_output=True, text=True, check=True)
    avro, msgpack, example = done.stdout.splitlines()
    assert "pip install fastavro" in avro
    assert "pip install msgpack" in msgpack
    assert "pip install protobuf" in example


PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_run(number: int) -> None:
    """Each by itself, as printed."""
    exec(compile(BLOCKS[number], f"block {number}", "exec"), {"__name__": "page"})  # noqa: S102 - our own page


def codec_of(form: Format) -> Any:
    """Image and label of the records of this file."""
    members = bound(form, ["body.image", "body.label"])

    def codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, Any]:
        image, label = members(value)
        return {"image": image, "label": label}

    return codec


def test_records_in_json_and_avro_arrive_and_bad_ones_say_why(embedded_broker: Broker) -> None:
    """Image and label of each; a record that is cut, or lacks a member, is a fault with the format's reason."""
    kafka = Kafka("embedded", embedded_broker)
    text = json.dumps({"body": {"image": "/9j/", "label": 5}}).encode()
    whole = avro(EXAMPLE, example(image=b"\xff\xd8\xff"))
    cases: list[tuple[str, Format, list[bytes], int, dict[int, str]]] = [
        ("json", Json(base64=("body.image",)), [text, text[:-2], b'{"body": {}}'], 5,
         {1: "json: ", 2: "json: body.image: no such"}),
        ("avro", Avro(EXAMPLE), [whole, whole[:-2], whole + b"\0"], -7, {1: "avro: ", 2: "avro: must be one value"}),
    ]  # fmt: skip
    for topic, form, values, label, reasons in cases:
        kafka.publish(topic, [Message(value) for value in values], partitions=1)
        block = read(KafkaTopic(topic, kafka.servers, codec=codec_of(form)), Extents.one(0, 0, 3))
        numbers: Any = block.values["codec:label"]
        assert (payloads(block)[0], numbers[0]) == (b"\xff\xd8\xff", label)
        assert block.faults.keys() == reasons.keys()
        assert all(block.faults[row].reason.startswith(f"codec: FormatError: {said}") for row, said in reasons.items())
