"""Insides that contract/bad_records/test_dead_letter_folder.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path

from kit.shelves import letter

from dali_feed.external_sources import DeadLetterFolder
from dali_feed.quarantine.letters import Original


def test_a_folder_keeps_a_record_in_full(tmp_path: Path) -> None:
    """Key, headers and a value that is not the payload, headers without a value, and names that no disk would take."""
    folder = DeadLetterFolder(tmp_path / "a" / "b")
    full = Original(b"\xffkey", b"wrapped", (("h", b"\x00"), ("h", None)))
    letters = [
        letter(0, where="/data/über/a:b?.jpg", original=full),
        letter(1, where="t[0]@1", original=Original(None, b"payload 1")),
        letter(2, where="t[0]@2", original=Original(b"", None), payload=b"", stage="source"),
        letter(3, where="x" * 5000, gone=True),
        letter(4, where="bad-\udcff.jpg"),
    ]
    writer = folder.writer()
    writer.write(letters[:2])
    writer.write(letters[2:])
    writer.close()
    assert list(folder.read()) == letters
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert len(names) == 1 + len(letters) + 1
    assert all(len(name) < 64 and name.isascii() and name.replace("-", "").replace(".", "").isalnum() for name in names)
    folder.writer().write([letter(0, where="/data/über/a:b?.jpg", reason="again")])
    assert [found.reason for found in folder.read()][-1] == "again"
    assert len(list(folder.read())) == len(letters)
    folder.writer().write([letter(4, where="bad-\udcff.jpg", source="another")])
    assert len(list(folder.read())) == len(letters) + 1
