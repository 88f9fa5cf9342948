"""What a wrong configuration is told by, beside data that is bad; and the budget of bad records, window by window."""

from __future__ import annotations

import functools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, broken_png, jpeg, labelled, text, truncated_jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.bad_records import Quarantine
from dali_feed.columns import Text
from dali_feed.errors import BadRecordLimitError, ConfigError
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.packing.sinks import write_shard
from dali_feed.plan.order import Shuffle
from dali_feed.testing import Broker, Message
from dali_feed.testing.publisher import publish as send
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

SIZE = v2.Resize((16, 16))


def run(source: Any, **options: Any) -> None:
    """An epoch of `source`."""
    with Feed(source, 4, **{"transform": SIZE, "tuning": QUICK} | options) as feed:
        try:
            for _ in feed:
                pass
        finally:
            feed.close()
            assert feed._slabs.leased == 0


def publish(broker: Broker, messages: list[Message]) -> None:
    """Make topic "t" of them."""
    broker.create("t", 1)
    send(broker.servers, "t", messages)


@pytest.mark.parametrize("bad", [BadRecords(), BadRecords(limit=None), BadRecords(action="raise")])
def test_labels_that_are_text(tmp_path: Path, bad: BadRecords) -> None:
    """Of shards: the reason, a record, and what can be done, whatever may be bad of single records."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(n), "cls": b"cat %d" % n} for n in range(12)])
    with pytest.raises(ConfigError, match=r"^all 12 records .*number is needed; found .cat 0. .*a\.tar#0.*label=None"):
        run(ShardSet(tmp_path / "a.tar"), bad=bad)


def test_labels_of_a_topic_that_are_text(embedded_broker: Broker) -> None:
    """The header that is no number, in a loader too, and the two ways out."""
    publish(embedded_broker, [Message(jpeg(n), headers=(("label", b"dog"),)) for n in range(8)])
    with (
        DataLoader(KafkaTopic("t", embedded_broker.servers), 4, transform=SIZE, device="cpu", tuning=QUICK) as loader,
        pytest.raises(ConfigError, match=r"^all 8 records .*'label' .*: .* found 'dog' .*@0\).*label=None.*codec="),
    ):
        next(iter(loader))


def test_a_member_that_no_record_has(embedded_broker: Broker) -> None:
    """The cure lists members, although the records that lack it have one called "image"."""
    publish(embedded_broker, [Message(json.dumps({"image": "a", "text": "b"}).encode()) for _ in range(8)])
    source = KafkaTopic("t", embedded_broker.servers, label=None, format="json")
    with pytest.raises(ConfigError, match=r"^all 8 records .*txt: no such member.*source\.members\(\) lists them"):
        next(iter(DataLoader(source, 4, columns={"text": Text("txt")}, device="cpu", tuning=QUICK)))


def test_a_topic_without_the_header_of_a_label(embedded_broker: Broker) -> None:
    """The cure is an argument of the topic, and no member of its records; whichever header was named."""
    publish(embedded_broker, [Message(jpeg(n), headers=(("class", b"1"),)) for n in range(8)])
    for label in ("label", "kind"):
        with pytest.raises(ConfigError, match=r'^all 8 records .*no such member .*label="class".*label=None'):
            run(KafkaTopic("t", embedded_broker.servers, label=label))


def wrapped(value: memoryview, _: Any, __: Any) -> Any:
    """A codec with a mistake: the field is called 'picture'."""
    record = json.loads(bytes(value))
    return {"image": record["image"], "label": record["label"]}  # the line that raises


def test_a_codec_that_raises_names_its_line(embedded_broker: Broker) -> None:
    """File and line of the user's code, also where json's own code raised; a partial is looked through."""
    publish(embedded_broker, [Message(json.dumps({"picture": n, "label": n}).encode()) for n in range(6)])
    line = wrapped.__code__.co_firstlineno
    place = rf"{Path(__file__).name}:{line + 3} in wrapped"
    for codec in (wrapped, functools.partial(wrapped)):
        with pytest.raises(
            ConfigError, match=rf"codec: KeyError: 'image' is missing, at .*{place} .*Correct the codec"
        ):
            run(KafkaTopic("t", embedded_broker.servers, codec=codec))


def test_a_codec_that_others_raise_in(embedded_broker: Broker) -> None:
    """What the codec calls is not the user's to mend: its own line is named; and where it gives the wrong thing, it."""
    publish(embedded_broker, [Message(b"no json") for _ in range(6)])
    line = wrapped.__code__.co_firstlineno
    with pytest.raises(ConfigError, match=rf"codec: JSONDecodeError: .*{Path(__file__).name}:{line + 2} in wrapped"):
        run(KafkaTopic("t", embedded_broker.servers, codec=wrapped))
    codec = lambda *_: {"image": None, "label": 1}  # noqa: E731
    line = codec.__code__.co_firstlineno
    with pytest.raises(ConfigError, match=rf"codec: TypeError: .*{Path(__file__).name}:{line} in <lambda>"):
        run(KafkaTopic("t", embedded_broker.servers, codec=codec))


@pytest.mark.parametrize(
    ("payload", "reason", "cure"),
    [
        (text(), "text, not an image", r"codec="),
        (b"%PDF-1.7" + bytes(60), r"PDF", r"dali-feed inspect"),
        (truncated_jpeg(), "JPEG cut off", "dali-feed inspect"),
    ],
)
def test_payloads_that_are_no_images(payload: bytes, reason: str, cure: str) -> None:
    """The screen's reason, and what it points to."""
    with pytest.raises(ConfigError, match=rf"^all 16 records .*{reason}.*{cure}"):
        run(ScriptedSource([(payload, n) for n in range(16)]), decode=Decode(engine="dali"))


def test_bad_data_is_no_configuration() -> None:
    """Several reasons, a single record, a window that is bad behind good ones, and pixels that no decoder takes."""
    several: list[Any] = [Corrupt("one"), Corrupt("other")] * 4
    behind: list[Any] = [*labelled(8), *[Corrupt("one")] * 8]
    late: list[Any] = [(broken_png(), n) for n in range(8)]
    order = {"shuffle": Shuffle(8, 1), "seed": 2}
    with Feed(ScriptedSource(behind, extent=8), 8, transform=SIZE, tuning=QUICK, **order) as feed:  # type: ignore[arg-type]
        assert feed.plan.ids(0, 0, 1)[0] < 8  # the good ones come first
    alone: list[Any] = [Corrupt("one")]
    for items in (several, alone, behind, late):
        with pytest.raises(BadRecordLimitError, match="Check the source"):
            run(ScriptedSource(items, extent=8), **order, bad=BadRecords(limit=None))


def test_holes_do_not_hide_the_reason() -> None:
    """Positions without a record are nobody's fault, and are counted."""
    items: list[Any] = [Gap(), Corrupt("label: no number"), Gap(), *[Corrupt("label: no number")] * 5]
    with pytest.raises(ConfigError, match=r"^all 6 records .*one reason, 2 positions absent: label: no number"):
        run(ScriptedSource(items, extent=8))


@given(
    bad=st.sets(st.integers(0, 59)),
    batch=st.integers(1, 20),
    window=st.integers(1, 70),
    limit=st.one_of(st.integers(0, 6), st.fractions(0, 1)),
    floor=st.integers(0, 6),
    order=st.randoms(use_true_random=False),
)
def test_it_ends_where_a_window_holds_one_too_many(
    bad: set[int], batch: int, window: int, limit: int | Fraction, floor: int, order: object
) -> None:
    """At the batch in which some `window` slots in a row, counted one by one, first hold more than limit and floor."""
    share = isinstance(limit, Fraction)
    allowed = max(int(limit * window), floor if limit else 0) if share else int(limit)
    quarantine = Quarantine(BadRecords(limit=limit, window=window, floor=floor), 60)
    for first in range(0, 60, batch):
        here = [slot for slot in bad if first <= slot < first + batch]
        order.shuffle(here)  # type: ignore[attr-defined]  # the screen's come before the decoder's
        ended = False
        try:
            for slot in here:
                quarantine.add(slot, slot, f"t[0]@{slot}", "cut off")
        except BadRecordLimitError:
            ended = True
        told = [slot for slot in bad if slot < first + batch]
        full = any(sum(q <= slot < q + window for slot in told) > allowed for q in told)
        assert ended == full
        if ended:
            return
