"""Bytes(decode=f): f runs in the engine's threads, for records of a batch alone, on memory of its own."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, bad_tables
from kit.inside import leased, running
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Shuffle, Tuning
from dali_feed.columns import Bytes, Column, Image, Mask, Number
from dali_feed.errors import BadRecordLimitError, ConfigError, FormatError, WaitError

COUNT = 24
IN_ORDER = [*range(0, COUNT, 2), *range(1, COUNT, 2)]  # of the two shards
TWO = Tuning(threads=2, readers=1, next_epoch=False)  # calls are counted


def number(data: memoryview) -> int:
    """As decimal text has it."""
    return int(bytes(data))


def gray(edge: int) -> bytes:
    """A mask."""
    out = io.BytesIO()
    Pillow.new("L", (edge, edge)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What a function waits for; set at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("image", [False, True])
def test_functions_run_beside_each_other_in_threads_that_read_nothing(tmp_path: Path, *, image: bool) -> None:
    """As many at once as `threads` says, in threads that read nothing; also where no image is asked for."""
    meet, names = threading.Barrier(3, timeout=60), set()

    def decode(data: memoryview) -> int:
        if number(data) < 6:  # the first three records
            meet.wait()
        names.add(threading.current_thread().name)
        return number(data)

    columns: dict[str, Column] = {"n": Bytes("cls", decode=decode)}
    columns |= {"image": Image("jpg", v2.Resize((8, 8)))} if image else {}
    with DataLoader(shards(tmp_path), 12, columns=columns, tuning=Tuning(threads=3, readers=1)) as loader:
        assert [n for batch in loader for n in batch["n"]] == IN_ORDER
    assert names == {f"dali_feed-work-{n}" for n in range(3)}


def test_a_record_that_is_in_no_batch_costs_no_call(tmp_path: Path) -> None:
    """Though it is read, to stand in for others; one that does stand in is decoded for each of its slots."""
    calls: Counter[int] = Counter()

    def decode(data: memoryview) -> int:
        calls[number(data)] += 1
        return number(data)

    source = shards(tmp_path, broken={"4.txt": None})
    columns = {"n": Bytes("cls", decode=decode), "text": Bytes("txt")}
    how: dict[str, Any] = {"drop_last": True, "tuning": TWO, "bad": BadRecords(limit=1)}
    with DataLoader(source, 10, columns=columns, **how) as loader:
        given = [n for batch in loader for n in batch["n"]]
    assert given == [6 if n == 4 else n for n in IN_ORDER][:20]
    assert calls == Counter(given)


def test_what_a_function_returns_may_be_a_view(tmp_path: Path) -> None:
    """It lies in memory of its own, which torch may write to, when the batch's memory has long been used again."""
    numbers = Bytes("f32", decode=lambda data: np.frombuffer(data, "<f4"))
    columns = {"x": numbers, "raw": Bytes("f32", decode=lambda data: data)}
    with DataLoader(shards(tmp_path), 4, columns=columns, tuning=TWO) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    assert all(isinstance(batch["x"], list) for batch in batches)  # though all are of one shape
    assert [float(x[0]) for batch in batches for x in batch["x"]] == IN_ORDER * 2
    assert [np.frombuffer(raw, "<f4")[0] for batch in batches for raw in batch["raw"]] == IN_ORDER * 2


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_what_a_function_raises_costs_the_records_slot(tmp_path: Path, engine: str) -> None:
    """And no other's: beside an image that cannot be decoded, and a mask that cannot follow, each in its batch."""
    masks: dict[str, Any] = {f"{n}.txt": gray(16 if n != 2 else 8) for n in range(COUNT)}
    source = shards(tmp_path, broken={**masks, "10.jpg": bad_tables(), "8.f32": b"odd"})

    def decode(data: memoryview) -> torch.Tensor:
        if len(data) % 4:
            msg = "no whole floats"
            raise StopIteration(msg)  # which would end a loop
        return torch.frombuffer(data, dtype=torch.float32)

    columns = {
        "image": Image("jpg", v2.Compose([v2.Resize((12, 12)), v2.RandomHorizontalFlip(0.5)])),
        "mask": Mask("txt"),
        "x": Bytes("f32", decode=decode),
        "n": Number("cls"),
    }
    how: dict[str, Any] = {"tuning": TWO, "bad": BadRecords(limit=3), "info": True}
    with DataLoader(source, 6, columns=columns, decode=Decode(engine=engine), **how) as loader:
        batches = list(loader)
        told = [reason for _, reason in loader.stats().recent_bad]
    instead = {2: 4, 8: 12, 10: 12}
    assert [n for batch, _ in batches for n in batch["n"].tolist()] == [instead.get(n, n) for n in IN_ORDER]
    assert [int(x[0]) for batch, _ in batches for x in batch["x"]] == [instead.get(n, n) for n in IN_ORDER]
    ok = [good for _, info in batches for good in info.ok.tolist()]
    assert [n for n, good in zip(IN_ORDER, ok, strict=True) if not good] == list(instead)
    assert len(told) == 3
    assert "a mask must have the size of its image" in told[0]
    assert "column 'x' of member 'f32': StopIteration: no whole floats" in told


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
        (SystemExit(), SystemExit, ""),
        (ConfigError("use another codec"), ConfigError, "use another codec"),
        (FormatError("no map"), BadRecordLimitError, "column 'n' of member 'cls': FormatError: no map"),
    ],
)
def test_what_speaks_of_no_record_goes_on(tmp_path: Path, raised: Any, error: Any, said: str) -> None:
    """An exit, an interrupt, an error of ours; a FormatError is of one value: where all are bad the budget ends it."""

    def decode(data: memoryview) -> int:
        if error is BadRecordLimitError or number(data) == 8:
            raise raised
        return number(data)

    columns = {"n": Bytes("cls", decode=decode)}
    with (
        DataLoader(shards(tmp_path), 4, columns=columns, tuning=TWO) as loader,
        pytest.raises(error, match=said or None),
    ):
        list(loader)


@pytest.mark.parametrize("image", [False, True])
def test_a_function_that_does_not_return_is_left_behind(tmp_path: Path, go_on: threading.Event, *, image: bool) -> None:
    """A timeout names it and its record; the pass can be left, all memory is given back, and a next pass has all."""
    calls: Counter[int] = Counter()

    def decode(data: memoryview) -> int:
        calls[n := number(data)] += 1
        if n == 10 and calls[n] == 1:
            go_on.wait()
        return n

    columns: dict[str, Column] = {"n": Bytes("cls", decode=decode)}
    columns |= {"image": Image("jpg", v2.Resize((8, 8)))} if image else {}
    loader = DataLoader(shards(tmp_path), 4, columns=columns, tuning=QUICK, timeout=0.5)
    batches = iter(loader)
    assert next(batches)["n"] == [0, 2, 4, 6]
    with pytest.raises(WaitError, match=r"what makes column 'n' is at .*0\.tar#5"):
        next(batches)
    loader.timeout = 60
    assert [n for batch in loader for n in batch["n"]] == IN_ORDER
    loader.close()
    assert leased(running(loader)) == 0
    assert not go_on.is_set()


def _odd(data: memoryview) -> bytes:
    if number(data) % 5 == 3:
        msg = "odd"
        raise ValueError(msg)
    return bytes(data)


@pytest.mark.parametrize("image", [False, True])
def test_decoded_columns_resume_anywhere(tmp_path: Path, *, image: bool) -> None:
    """With a function that refuses every fifth record, at world sizes 1, 2 and 4."""
    columns: dict[str, Column] = {"n": Bytes("cls", decode=_odd)}
    columns |= {"image": Image("jpg", v2.RandomResizedCrop(8))} if image else {}
    source = shards(tmp_path)
    how: dict[str, Any] = {"lanes": 4, "world_sizes": (1, 2, 4), "positions": 2}
    assert_resumes_in_turn(source, columns=columns, shuffle=Shuffle(3, 2), **how)


def test_torchs_operations_have_one_thread_in_each_of_ours(tmp_path: Path) -> None:
    """Else threads times threads wait in loops for each other; elsewhere in the process torch has what it had."""
    columns = {
        "image": Image("jpg", v2.Resize((8, 8))),
        "own": Bytes("txt", decode=lambda _: torch.get_num_threads()),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with DataLoader(shards(tmp_path), 6, columns=columns, decode=Decode(engine="dali"), tuning=TWO) as loader:
            for batch in loader:
                assert batch["own"] == [1] * len(batch["own"])
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *found] == [3, 3]
    finally:
        torch.set_num_threads(before)
