"""A format in the place of a topic's codec, as docs/formats.md shows it."""

from __future__ import annotations

import json
from typing import Any

from kit.broker.handle import Kafka, payloads, read
from kit.inside import Extents
from kit.written import EXAMPLE, avro, example

from dali_feed.external_sources import KafkaTopic
from dali_feed.formats import Avro, Format, Json, bound
from dali_feed.testing import Broker, Message


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
