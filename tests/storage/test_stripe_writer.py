"""Layouts and the writer of stripes: every byte has one place, and a name means that all bytes are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import ConfigError, DataLostError, SourceDeniedError
from dali_feed.storage.striping import BLOCK, Layout, StripeWriter, check_parts, settle


def layout_in(folder: Path, targets: int, count: int, stripe: int = BLOCK) -> Layout:
    """A layout over new folders beside the manifest."""
    names = tuple(f"t{k}" for k in range(targets))
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    return Layout(names, count, stripe)


@given(st.integers(1, 5), st.data())
def test_every_byte_has_one_place(targets: int, data: st.DataObject) -> None:
    """For any layout and size the pieces of a shard fill its parts from end to end, each byte once."""
    layout = Layout(tuple(map(str, range(targets))), data.draw(st.integers(1, targets)), BLOCK)
    size = data.draw(st.integers(0, 12 * BLOCK))
    parts = layout.parts(data.draw(st.integers(0, 9)), "a.tar", size)
    ends = [0] * len(parts)
    for part, at, held in layout.pieces(0, size):
        assert at == ends[part]
        ends[part] += held
    assert ends == [part.size for part in parts]
    assert len({part.target for part in parts}) == len(parts)


def test_what_was_written_lies_where_the_layout_says(tmp_path: Path) -> None:
    """Written in odd pieces, the parts hold the stripes of the shard, and shards begin on targets in turn."""
    layout, data = layout_in(tmp_path, 3, 2), bytes(range(256)) * 70
    writer = StripeWriter(tmp_path, layout, 1, "a.tar")
    for at in range(0, len(data), 1000):
        writer.write(data[at : at + 1000])
    assert not list(tmp_path.glob("t*/a.tar*"))  # no names yet
    parts = writer.commit()
    assert [part.target for part in parts] == [1, 2]
    files = [(tmp_path / f"t{part.target}" / part.file).read_bytes() for part in parts]
    assert b"".join(files[part][at : at + held] for part, at, held in layout.pieces(0, len(data))) == data
    check_parts(tmp_path, layout, parts)


def test_a_kill_between_finish_and_names_is_mended(tmp_path: Path) -> None:
    """Where some parts have their names and some do not, `settle` gives the rest theirs, and does so again."""
    layout = layout_in(tmp_path, 2, 2)
    writer = StripeWriter(tmp_path, layout, 0, "a.tar")
    writer.write(b"x" * 3 * BLOCK)
    parts = writer.finish()
    settle(tmp_path, layout, parts[:1])  # killed here
    with pytest.raises(DataLostError, match=r"t1/a\.tar\.1of2: this part of a shard must have 4096 bytes; found No"):
        check_parts(tmp_path, layout, parts)
    for _ in range(2):
        settle(tmp_path, layout, parts)
    check_parts(tmp_path, layout, parts)


def test_a_shard_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """`abort` removes the temporary files; after `commit` it takes nothing away."""
    layout = layout_in(tmp_path, 2, 2)
    StripeWriter(tmp_path, layout, 0, "a.tar").abort()
    assert not list(tmp_path.glob("t*/.*"))
    writer = StripeWriter(tmp_path, layout, 0, "a.tar")
    parts = writer.commit()
    writer.abort()
    check_parts(tmp_path, layout, parts)


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It is not made: a disk that is not mounted must not be written beside."""
    layout = layout_in(tmp_path, 2, 2)
    (tmp_path / "t1").rmdir()
    with pytest.raises(SourceDeniedError, match=r"target .*/t1: must be a folder that can be written to; .* No such"):
        StripeWriter(tmp_path, layout, 0, "a.tar")
    parts = layout.parts(0, "a.tar", BLOCK)
    (tmp_path / "t0" / "a.tar.0of2").write_bytes(b"x" * BLOCK)
    with pytest.raises(DataLostError, match=r"target .*/t1: a target of a set must be there; .* mount it"):
        check_parts(tmp_path, layout, parts)


@pytest.mark.parametrize(
    ("targets", "count", "stripe", "said"),
    [
        ((), 1, BLOCK, "targets: must be one folder or more"),
        (("a", "./a"), 1, BLOCK, "found a twice"),
        (("a", "b"), 3, BLOCK, "stripe_count: must be 1 to 2"),
        (("a",), 1, 1000, "stripe_size: must be a multiple of 4096"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(targets: tuple[str, ...], count: int, stripe: int, said: str) -> None:
    """With the argument's name."""
    with pytest.raises(ConfigError, match=said):
        Layout(targets, count, stripe)


def test_a_full_target_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """Bytes that a writer still holds are no second error when it is aborted."""
    layout = layout_in(tmp_path, 2, 2)
    (tmp_path / "t1" / ".a.tar.1of2.tmp").symlink_to("/dev/full")
    writer = StripeWriter(tmp_path, layout, 0, "a.tar")
    writer.write(b"x" * (BLOCK + 1))
    with pytest.raises(SourceDeniedError, match=r"target \S+/t1: .* No space left on device; make room"):
        writer.finish()
    writer.abort()
    assert not list(tmp_path.glob("t*/*"))
    assert not list(tmp_path.glob("t*/.*"))
