"""Bad records: slots never shift, each costs one slot, is told once, and is held to a budget."""

from __future__ import annotations

import re
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import (
    QUICK,
    Seen,
    bad_tables,
    broken_png,
    cut_jpeg,
    encoded,
    huge_jpeg,
    jpeg,
    labelled,
    padded,
    png,
    seen,
    text,
    truncated_jpeg,
)
from kit.inside import Corrupt, Feed, Gap, leased
from kit.kinds import broken_gif, slow_jpeg
from torchvision.transforms import v2

from dali_feed import BadRecords, Decode, Shuffle, Tuning
from dali_feed.errors import BadRecordError, BadRecordLimitError, ConfigError
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")

SIZE = v2.Resize((16, 16))
ANY = BadRecords(limit=None)
SCREENED = {
    "empty": b"",
    "text": text(),
    "huge": huge_jpeg(),
    "truncated": truncated_jpeg(),
    "markers": b"\xff\xd8\xff\xd9",
    "zeros": bytes(300),
    "half a header": jpeg(0)[:30] + b"\xff\xd9",
}
LATE = {"zlib": broken_png(), "tables": bad_tables(), "gif": broken_gif()}


def _feed(items: list[Any], batch_size: int = 4, **options: Any) -> Feed:
    extent = options.pop("extent", 8)
    options = {"transform": SIZE, "bad": ANY, "tuning": QUICK, "shuffle": Shuffle(extent, 1)} | options
    return Feed(ScriptedSource(items, extent=extent), batch_size, **options)


def _with(faults: dict[int, Any], count: int = 32) -> list[Any]:
    items = labelled(count)
    for n, item in faults.items():
        items[n] = item
    return items


def _expected(order: list[int], bad: set[int], window: int) -> tuple[list[int], list[bool]]:
    """The rule of slots, written down again: the next good one of the window in dealt order, round its end."""
    out, ok = [], []
    for slot, n in enumerate(order):
        first = slot - slot % window
        line = order[first : first + window]
        k = slot - first
        while line[k % len(line)] in bad:
            k += 1
        out.append(line[k % len(line)])
        ok.append(n not in bad)
    return out, ok


@pytest.mark.parametrize("bad", [truncated_jpeg(), broken_png()], ids=["screened", "late"])
def test_a_replacement_of_another_size_is_an_error_that_names_both(bad: bytes) -> None:
    """Where images keep their own sizes a record that stands in must have its batch's size, whoever finds the fault."""
    items: list[Any] = [(jpeg(n), n) for n in range(3)] + [(bad, 3), (jpeg(4, 20, 16), 4)]
    with (
        _feed(items, shuffle=False, extent=5, transform=v2.ToDtype(torch.float32, scale=True)) as feed,
        pytest.raises(ConfigError, match=r"one size; found \(16, 16\) from .*@0 and \(20, 16\) from .*@4"),
    ):
        next(iter(feed))


@pytest.mark.parametrize("late", [False, True], ids=["screened", "late"])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 8, 32])
def test_a_slot_goes_to_the_next_good_record_of_its_window(batch_size: int, late: bool) -> None:
    """Also round the window's end and over neighbours, at every batch size, whoever finds the fault."""
    bad = {2, 3, 8, 15, 16, 17, 18, 19, 20, 21, 22, 31}
    fault = (broken_png(), 5) if late else Corrupt()
    with _feed(labelled(32)) as feed:
        order = feed.plan.ids(0, 0, 32).tolist()
    ids, ok = _expected(order, bad, 8)
    for tuning in (QUICK, Tuning(threads=2, readers=3, prefetch=4)):
        with _feed(_with(dict.fromkeys(bad, fault)), batch_size, tuning=tuning) as feed:
            batches = [seen(batch) for batch in feed]
            assert feed.stats().bad == len(bad)
        assert [n for b in batches for n in b[0]] == ids
        assert [n for b in batches for n in b[1]] == ids  # labels are the ids
        assert [good for b in batches for good in b[2]] == ok


@pytest.mark.parametrize("kind", LATE)
def test_a_record_that_only_the_decoder_refuses_costs_its_slot_alone(kind: str) -> None:
    """The rest of its batch is bit-identical to a clean run; it is counted once, with its coordinates."""
    crop = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
    faulty = _with({13: (LATE[kind], 0)})
    with _feed(labelled(32), 8, transform=crop) as clean, _feed(faulty, 8, transform=crop) as feed:
        whole, mended = list(clean), list(feed)
        stats = feed.stats()
    assert (stats.bad, stats.absent) == (1, 0)
    ((where, reason),) = stats.recent_bad
    assert where == "scripted[0]@13"
    assert kind != "gif" or reason.startswith("decoder: Pillow cannot decode it: OSError: broken data stream")
    for a, b in zip(whole, mended, strict=True):
        assert np.array_equal(a.ids != 13, b.ok)
        same = a.ids == b.ids
        assert np.array_equal(same, b.ok)
        assert np.array_equal(np.asarray(a.images)[same], np.asarray(b.images)[same])
        for slot in np.flatnonzero(~same):
            row = int(np.flatnonzero(a.ids == b.ids[slot])[0])  # a record has one draw wherever it stands
            assert np.array_equal(np.asarray(b.images)[slot], np.asarray(a.images)[row])
            assert b.fields["label"][slot] == b.ids[slot]


def test_a_late_bad_record_in_every_batch() -> None:
    """Batches that fail one after another, with several in flight, come out in order, each mended."""
    bad = set(range(1, 64, 4))
    with _feed(_with(dict.fromkeys(bad, (broken_png(), 0)), 64), 4, tuning=Tuning(threads=1, prefetch=4)) as feed:
        order = feed.plan.ids(0, 0, 64).tolist()
        batches = list(feed)
        assert feed.stats().bad == 16
    ids, ok = _expected(order, bad, 8)
    assert np.concatenate([b.ids for b in batches]).tolist() == ids
    assert np.concatenate([b.ok for b in batches]).tolist() == ok


@pytest.mark.parametrize("kind", [*SCREENED, *LATE])
def test_each_kind_of_garbage_in_a_large_batch(kind: str) -> None:
    """A batch of 96 with garbage in every third slot comes through; DALI alone would end the process."""
    payload = {**SCREENED, **LATE}[kind]
    items = [(payload, n) if n % 3 == 1 else (jpeg(n), n) for n in range(192)]
    with _feed(items, 96, extent=192) as feed:
        batches = list(feed)
        assert [len(b) for b in batches] == [96, 96]
        assert feed.stats().bad == 64
        assert not feed.stats().absent
    ids = np.concatenate([b.ids for b in batches])
    assert (ids % 3 != 1).all()
    assert int(sum(b.ok.sum() for b in batches)) == 128


def test_a_jpeg_cut_with_an_end_marker_is_decoded_as_torchvision_does() -> None:
    """What is missing is filled up by libjpeg; the record is not bad."""
    with _feed(_with({3: (cut_jpeg(), 3)}), 8) as feed:
        assert all(b.ok.all() for b in feed)


def test_random_bytes_in_bodies_never_end_the_process() -> None:
    """Bodies overwritten at random, screened or not, decoded or refused: every batch comes, and ok slots are right."""
    rng = np.random.default_rng(5)
    items: list[Any] = labelled(256)
    for n in range(0, 256, 2):
        body = bytearray((jpeg, broken_png, bad_tables)[n % 3](n))
        for _ in range(rng.integers(1, 6)):
            body[int(rng.integers(2, len(body) - 2))] = int(rng.integers(256))
        items[n] = (bytes(body), n)
    with _feed(items, 64, extent=64) as feed:
        batches = list(feed)
        assert [len(b) for b in batches] == [64] * 4
        assert feed.stats().bad == sum(int((~b.ok).sum()) for b in batches)
        assert sum(int((~b.ok).sum()) for b in batches) > 60


@pytest.mark.parametrize("whole", [jpeg(1), png(1)], ids=["JPEG", "PNG"])
def test_every_cut_of_an_image(whole: bytes) -> None:
    """Cut at any byte, an image is decoded or quarantined with its coordinates, and never anything else."""
    items: list[Any] = [(whole[:length], 1) for length in range(len(whole) + 1)]
    with _feed(items, batch_size=64, shuffle=Shuffle(64, 100), lanes=1) as feed:
        own = sum(int(batch.ok.sum()) for batch in feed)
        stats = feed.stats()
    assert own >= 1
    assert own + stats.bad == len(items)
    assert all(where.startswith("scripted[0]@") and reason for where, reason in stats.recent_bad)


def test_64_bad_records_in_a_row() -> None:
    """A run of bad records is filled from what follows, and each is told once."""
    with _feed(_with(dict.fromkeys(range(64), Corrupt()), 80), 16, extent=80, shuffle=False) as feed:
        batches = list(feed)
        assert np.concatenate([b.ids for b in batches]).tolist() == [64] * 64 + list(range(64, 80))
        assert feed.stats().bad == 64


def test_absent_positions_are_nobodys_fault() -> None:
    """Offset holes are replaced and shown in ok, and count as absent, not as bad: no budget ends there."""
    faults = dict.fromkeys([0, 5, 6, 7, 30], Gap())
    with _feed(_with(faults), 4, bad=BadRecords(limit=0, action="raise")) as feed:
        batches = list(feed)
        assert len(batches) == 8
        assert (feed.stats().absent, feed.stats().bad) == (5, 0)
        assert sum(int((~b.ok).sum()) for b in batches) == 5


@pytest.mark.parametrize(
    "items",
    [
        [Corrupt(), Corrupt("label: 'x' is no number", jpeg(0))],
        [(broken_png(), 0)] * 2,
    ],
    ids=["several reasons", "late"],
)
def test_a_source_with_nothing_good_says_which_records(items: list[Any]) -> None:
    """All bad is an error that names coordinates, even where any number of bad records is allowed."""
    with _feed(items * 8, 4) as feed:
        with pytest.raises(BadRecordLimitError, match=r"scripted\[0\]@\d+") as caught:
            list(feed)
        assert caught.value.records[0][0].startswith("scripted[0]@")
    assert leased(feed) == 0


def test_all_absent_is_an_error_too() -> None:
    """A window of holes has nothing to put into its slots."""
    with _feed([Gap()] * 16, 4) as feed, pytest.raises(BadRecordLimitError, match="absent"):
        list(feed)


@pytest.mark.parametrize("late", [False, True], ids=["screened", "late"])
@pytest.mark.parametrize(("limit", "allowed"), [(0, 0), (2, 2), (Fraction(1, 10), 3), (Fraction(0), 0)])
def test_the_budget_ends_the_run_above_it(limit: int | Fraction, allowed: int, late: bool) -> None:
    """As many bad records as the limit pass; one more stops the run, with the coordinates of them all."""
    item = (broken_png(), 0) if late else Corrupt()
    spots = [1, 9, 17, 25]
    with _feed(_with(dict.fromkeys(spots[:allowed], item)), bad=BadRecords(limit=limit)) as feed:
        assert len(list(feed)) == 8
        assert len(list(feed)) == 8  # the budget is an epoch's
    with _feed(_with(dict.fromkeys(spots[: allowed + 1], item)), bad=BadRecords(limit=limit)) as feed:
        with pytest.raises(BadRecordLimitError, match=f"at most {allowed} of this epoch's 32 slots") as caught:
            list(feed)
        assert sorted(w for w, _ in caught.value.records) == sorted(f"scripted[0]@{n}" for n in spots[: allowed + 1])
        assert feed.stats().bad == allowed + 1
    assert leased(feed) == 0


@pytest.fixture(scope="module")
def wanted(each_engine: str) -> list[Seen]:
    """Of good records alone."""
    with _feed(labelled(32)) as clean:
        return [seen(b) for b in clean]


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("item", [Corrupt(), Corrupt("label"), (broken_png(), 0)], ids=["header", "label", "late"])
def test_raise_comes_in_the_batchs_place(item: Any, prefetch: int, wanted: list[Seen]) -> None:
    """All batches before the bad record are delivered, none behind it, at any prefetch."""
    tuning = Tuning(threads=1, prefetch=prefetch)
    with _feed(_with({13: item}), bad=BadRecords(action="raise"), tuning=tuning) as feed:
        place = next(n for n, b in enumerate(wanted) if 13 in b[0])
        got: list[Seen] = []
        with pytest.raises(BadRecordError, match=r"scripted\[0\]@13: ") as caught:
            got.extend(seen(b) for b in feed)  # an error leaves what came before
        assert got == wanted[:place]
        assert caught.value.where == "scripted[0]@13"
        assert feed.state_dict()["consumed"] == 4 * place
    assert leased(feed) == 0


@pytest.mark.parametrize("prefetch", [1, 4])
def test_the_budget_ends_at_the_same_batch_at_any_prefetch(prefetch: int) -> None:
    """One record that the decoder refuses and one that the screen refuses a batch later: the later one ends it."""
    with _feed(labelled(32)) as clean:
        order = clean.plan.ids(0, 0, 32).tolist()
    faults = {order[1]: (broken_png(), 0), order[9]: Corrupt()}
    with _feed(_with(faults), bad=BadRecords(limit=1), tuning=Tuning(threads=1, prefetch=prefetch)) as feed:
        batches = iter(feed)
        assert [len(next(batches)) for _ in range(2)] == [4, 4]
        with pytest.raises(BadRecordLimitError):
            next(batches)


def test_label_faults_are_bad_records() -> None:
    """A record whose image is whole and whose label is not is replaced like any other."""
    with _feed(_with({4: Corrupt("label: 'cat' is no int", jpeg(4))})) as feed:
        assert 4 not in np.concatenate([b.ids for b in feed])
        assert feed.stats().recent_bad == (("scripted[0]@4", "label: 'cat' is no int"),)


def test_max_pixels_bounds_what_a_header_may_ask_for() -> None:
    """An image above the bound is a bad record that says so; one at it is none."""
    items = [*labelled(3), (jpeg(3, 16, 17), 3)]
    with _feed(items, 4, tuning=QUICK, decode=Decode(max_pixels=256)) as feed:
        (batch,) = feed
        assert sorted(set(batch.ids.tolist())) == [0, 1, 2]
        assert "17x16 is 272 pixels, more than the limit of 256" in feed.stats().recent_bad[0][1]


def test_max_work_bounds_how_often_a_decoder_goes_over_an_image() -> None:
    """An image above the bound is a bad record that says so; one at it is none."""
    items = [*labelled(2), (slow_jpeg(64, 20), 2), (slow_jpeg(64, 21), 3)]
    with _feed(items, 4, tuning=QUICK, decode=Decode(max_work=64 * 64 * 20)) as feed:
        (batch,) = feed
        assert sorted(set(batch.ids.tolist())) == [0, 1, 2]
        ((where, reason),) = feed.stats().recent_bad
    assert where == "scripted[0]@3"
    assert "64x64 in more than 20 scans" in reason


def test_an_image_too_small_for_its_crop_is_a_bad_record() -> None:
    """What RandomCrop cannot take costs a slot and says how large the image is; pad_if_needed takes it."""
    items: list[Any] = [(jpeg(n, 32, 40), n) for n in range(8)]
    items[3] = (jpeg(3, 20, 40), 3)
    crop = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(24)])
    with _feed(items, transform=crop) as feed:
        assert np.concatenate([batch.fields["label"] for batch in feed]).tolist().count(3) == 0
        ((where, reason),) = feed.stats().recent_bad
        assert where.endswith("@3")
        assert reason == "RandomCrop: 24x24 must fit into the image; found 40x20; give pad_if_needed=True"
    with _feed(items, transform=v2.RandomCrop(24, pad_if_needed=True)) as feed:
        assert sum(int(batch.ok.sum()) for batch in feed) == 8


def test_replacements_by_world_size_are_the_same() -> None:
    """Late and early faults and holes: two ranks put into their lanes what one rank puts there."""
    faults = {3: Corrupt(), 4: (broken_png(), 0), 5: Gap(), 20: (bad_tables(), 0), 21: (broken_png(), 0), 31: Gap()}

    def lanes(world: int) -> dict[int, list[tuple[int, bool]]]:
        out: dict[int, list[tuple[int, bool]]] = {}
        for rank in range(world):
            with _feed(_with(faults), 4 // world, lanes=2, rank=rank, world_size=world) as feed:
                for batch in feed:
                    pairs = list(zip(batch.ids.tolist(), batch.ok.tolist(), strict=True))
                    mine = range(rank, 2, world)
                    share = len(pairs) // len(mine)
                    for k, lane in enumerate(mine):
                        out.setdefault(lane, []).extend(pairs[k * share : (k + 1) * share])
        return out

    assert lanes(1) == lanes(2)


@pytest.mark.parametrize(
    "wrong",
    [{"limit": -1}, {"limit": 0.1}, {"limit": True}, {"limit": Fraction(3, 2)}, {"floor": 0.5}, {"action": "skip"}],
)
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    """A limit is an int, a Fraction of 0..1 or None; an action is one of two."""
    with pytest.raises(ConfigError, match=f"BadRecords\\({next(iter(wrong))}="):
        BadRecords(**wrong)


def test_headers_that_lie_about_their_size() -> None:
    """A JPEG that announces more or fewer rows than its body holds gives a batch, whatever becomes of it."""
    items: list[Any] = labelled(16)
    for n, rows in ((2, 400), (5, 3), (9, 8000)):
        body = bytearray(padded(jpeg(n), 2000))
        at = body.index(b"\xff\xc0")
        body[at + 5 : at + 7] = struct.pack(">H", rows)
        items[n] = (bytes(body), n)
    for transform in (SIZE, v2.RandomResizedCrop(16)):
        with _feed(items, 8, transform=transform) as feed:
            assert [len(b) for b in feed] == [8, 8]


def test_one_bad_record_in_a_short_last_window_costs_one_slot() -> None:
    """Wherever a single bad record stands in an epoch, also at its very end, the epoch goes on."""
    shuffle = Shuffle(1, 32)
    with _feed(labelled(33), shuffle=shuffle) as clean:
        last = int(clean.plan.ids(0, 32, 33)[0])
    with _feed(_with({last: Corrupt()}, 33), shuffle=shuffle) as feed:
        assert sum(len(batch) for batch in feed) == 33


def test_a_window_forgives_what_lies_further_apart() -> None:
    """Two bad ones within eight slots end the run, and the same two ten slots apart do not."""
    for spots, ends in (((3, 13), False), ((3, 10), True)):
        items = labelled(32)
        for spot in spots:
            items[spot] = Corrupt()
        with Feed(ScriptedSource(items), 4, bad=BadRecords(limit=1, window=8), tuning=QUICK) as feed:
            if ends:
                with pytest.raises(BadRecordLimitError, match="at most 1 of any 8 successive slots"):
                    list(feed)
            else:
                assert len(list(feed)) == 8


def test_a_small_set_survives_its_first_bad_images() -> None:
    """Of 20 images a hundredth is none, and three may be bad; the fourth ends the run and says what the limit was."""
    for count in (1, 3, 4):
        items = labelled(20)
        for spot in range(0, 5 * count, 5):
            items[spot] = Corrupt()
        with Feed(ScriptedSource(items), 4, transform=SIZE, tuning=QUICK) as feed:
            if count == 4:
                with pytest.raises(
                    BadRecordLimitError, match=r"at most 3 of this .* \(limit=1/100, floor=3\); found 4"
                ):
                    list(feed)
            else:
                assert len(list(feed)) == 5
                assert feed.stats().bad == count


def test_a_floor_is_for_shares_alone() -> None:
    """A limit of none is none, an int is as many as it says, and a share above the floor is that share."""
    assert [BadRecords(limit=limit).allowed(1000) for limit in (Fraction(0), 0, 1, Fraction(1, 100))] == [0, 0, 1, 10]
    assert BadRecords(floor=0).allowed(99) == 0
    assert BadRecords(limit=None).allowed(99) is None
    with pytest.raises(ConfigError, match=r"BadRecords\(floor=\.\.\.\)"):
        BadRecords(floor=-1)


def test_a_window_must_be_slots() -> None:
    """An int of at least 1, or None."""
    with pytest.raises(ConfigError, match=r"BadRecords\(window=\.\.\.\)"):
        BadRecords(window=0)


def test_an_image_that_a_resize_would_blow_up_costs_its_slot() -> None:
    """A file of some hundred bytes, 1x65500: with a shorter edge of 46 pixels it is above the bound of any image."""
    thin = encoded(np.zeros((1, 65_500, 3), np.uint8))
    reasons = []
    for edge, bad in ((8, 0), (46, 1)):
        transform = v2.Compose([v2.Resize(edge), v2.CenterCrop(8)])
        with _feed(_with({3: thin}, 8), transform=transform) as feed:
            assert sum(int((~batch.ok).sum()) for batch in feed) == bad
            reasons += [reason for _, reason in feed.stats().recent_bad]
    (reason,) = reasons
    assert re.search("Resize: may make 134217728 pixels .* found one of 65500x1, .* become 3013000x46", reason), reason


def test_the_only_image_of_a_batch_may_be_replaced_by_one_of_another_size() -> None:
    """With `batch_size=1` images need no size in common, whoever refuses one: the screen, or the decoder."""
    items = labelled(8, sizes=True)
    for n, bad in ((2, truncated_jpeg()), (5, broken_png())):
        items[n] = bad
    with _feed(items, 1, transform=None) as feed:
        assert [bool(batch.ok[0]) for batch in feed].count(False) == 2
