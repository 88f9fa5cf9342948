"""Commands with arguments that cannot be: one line that says which, and what exit codes say of records."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from kit.command import Cli, assert_one_line, assert_usage, cli
from kit.images import jpeg

from dali_feed.cli.options import load_object
from dali_feed.cli.sheet import Sheet
from dali_feed.errors import ConfigError
from dali_feed.packing.sinks import write_shard

__all__ = ["cli"]  # a fixture


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Two samples, one of whose labels is no number and whose image is none."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0), "cls": b"1"}, {"jpg": b"none", "cls": b"cat"}])
    return tmp_path / "a.tar"


def test_records_that_were_not_written_are_an_exit_code(cli: Cli, shard: Path, tmp_path: Path) -> None:
    """Of pack, whatever it writes: 1 where one failed, so that a script stops."""
    assert cli("pack", shard, tmp_path / "p", "--resize", 8).code == 1
    assert cli("pack", shard, tmp_path / "whole").code == 0
    done = cli("pack", shard, tmp_path / "m", "--to", "mds")
    assert done.code == 1
    assert "must be a whole number; found b'cat'" in " ".join(done.out.split())


TOPIC = "kafka://127.0.0.1:1/t"  # nobody is there
NO_ADDRESSES = ("h:abc", "h:70000", "h:1, :2")
REFUSED = [  # a command, and words of the line that it ends with
    ("inspect none-*.tar", "none-*.tar", "check the path"),
    ("inspect none-*.jpg", "none-*.jpg", "check the path"),
    ("inspect tars", "for its shards write 'tars/*.tar'"),
    ("inspect kafka://127.0.0.1:1", "target: must be a topic, kafka://host:port/topic"),
    (f"inspect {TOPIC} --timeout 0.5", "127.0.0.1:1", "refused"),
    (f"inspect {TOPIC} -X no", "--config: must be KEY=VALUE; found 'no'"),
    (f"inspect {TOPIC} -X sasl.passwordhunter", "--config: must be KEY=VALUE; found '***'"),
    (f"inspect {TOPIC} -X group.id=mine", "group.id"),
    ("inspect a.tar --sheet s.jpg", "--sheet: must be a PNG file"),
    ("inspect a.tar --storage-option token", "--storage-option: must be KEY=VALUE; found '***'"),
    ("inspect a.tar --storage-option a..b=1", "--storage-option: must be KEY=VALUE; found 'a..b'"),
    ("inspect a.tar --storage-option h=1 --storage-option h.X=2", "'h' must have a value or parts, not both"),
    ("inspect a.tar --storage-option passwordSECRET", "--storage-option: must be KEY=VALUE; found '***'"),
    ("tune a.tar --storage-option token=x", "storage_options"),
    ("bench loader a.tar --storage-option token=x", "storage_options"),
    ("bench gpu a.tar --device cpu --storage-option token=x", "storage_options"),
    ("verify none-*.tar", "check the path"),
    ("verify a.tar --storage-option token=x", "storage_options"),
    (f"verify {TOPIC} --storage-option token=x", "--storage-option: is for shards at addresses"),
    ("verify a.tar --dead-letter a.tar/x", "Not a directory"),
    ("dead-letters .", "letters.jsonl"),
    ("show a.tar --out s.html", "--out: must be a PNG file, NAME.png; found 's.html'"),
    ("show a.tar --transform t.txt:train", "--transform: must be FILE.py:NAME; found"),
    ("show a.tar --transform t.py:train", "t.py must run without an error; found in line 2 SystemExit: 3"),
    ("show a.tar --transform gone.py:x", "found none at 'gone.py'"),
    (f"show {TOPIC} -X group.id=mine", "group.id"),
    ("tune a.tar --cpus 4096", "--cpus: must be at most"),
    ("tune a.tar --transform gone.py:x", "must name a file that exists"),
    ("pack a.tar images out", "source: must be one topic, one folder, or tar shards; found a.tar, images"),
    ("pack a.tar out --part =5", "--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found '=5'"),
    ("pack a.tar out --part a/b=5", "--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found 'a/b=5'"),
    ("pack a.tar out --part val=few", "--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found 'val=few'"),
    ("pack a.tar out --to mds --keys own", "--keys: is of tar shards; found --to mds; leave one of the two out"),
    (f"pack {TOPIC} out -X group.id=mine", "group.id"),
    (f"pack {TOPIC} out --to mds -X group.id=mine", "group.id"),
    (f"pack {TOPIC} out --part a=1 -X group.id=mine", "group.id"),
    ("merge a.tar b.tar out", "a.tar: a manifest must be what `dali-feed pack` wrote"),
    ("index none-*.tar", "check the path"),
    ("produce a.tar out", "target: must be a topic, kafka://host:port/topic", "'out'"),
    (f"produce a.tar {TOPIC} {TOPIC}", "source: must be one topic, one folder, or tar shards"),
    (f"produce images {TOPIC} --payload jpg", "--payload: is for tar shards, whose files it names; found 'jpg'"),
    (f"produce {TOPIC} {TOPIC} --payload jpg", "--payload: must be left out for a topic"),
    (f"produce a.tar {TOPIC} --value a", "--value: names members for --format, which must be given too; found a"),
    (f"produce a.tar {TOPIC} --format avro --value cls", "--schema: must be given with --format avro"),
    ("topic create out", "target: must be a topic"),
    *((f"topic describe 'kafka://{name}/t'", "target: servers must be", "host:port") for name in NO_ADDRESSES),
    (f"lag {TOPIC}", "--group, --state: one of them must be given; found neither"),
    (f"lag {TOPIC} --group g --state t.py", "found both"),
    (f"lag {TOPIC} --state t.py", "t.py", "json.dump(loader.state_dict(), file)"),
    ("lag out --group g", "target: must be a topic"),
    ("watch here:port --once", "URL: must be host:port or http://host:port of an endpoint; found 'here:port'"),
]
USAGE = [  # what cannot be read as it is typed: exit code 2
    ("inspect --bogus x", "--bogus"),
    ("inspect a.tar --sample 0", "--sample"),
    ("pack a.tar out --shard-size big", "--shard-size", "must be a size such as 1500, 512MB or 1GiB; found 'big'"),
    ("pack a.tar out --stripe-size 0", "--stripe-size", "must be a size"),
    ("pack a.tar out --to zip", "--to", "'tar', 'tfrecord', 'mds'"),
    ("pack a.tar out --keys mine", "--keys", "'auto', 'own', 'number'"),
    ("pack a.tar out --engine cluster", "--engine", "'threads', 'ray'"),
    (f"produce a.tar {TOPIC} --claim-above 5h", "--claim-above", "must be a size"),
    (f"produce a.tar {TOPIC} --compression zip", "--compression", "'zstd'"),
    (f"topic create {TOPIC} --max-message 8mb", "--max-message", "found '8mb'"),
    (f"topic create {TOPIC} --retention '7 weeks'", "--retention", "must be a time such as 90s"),
    (f"topic create {TOPIC} --compression zip", "--compression", "'producer'"),
    (f"topic describe {TOPIC} --run forever", "--run", "give the length of a run, such as 36h"),
    (f"lag {TOPIC} --group g --watch 0", "--watch"),
    ("watch here:1 --every 0", "--every"),
]


@pytest.fixture
def here(shard: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a shard, a folder of images, and files that are no transforms."""
    folder = shard.parent
    (folder / "images" / "class").mkdir(parents=True)
    (folder / "images" / "class" / "0.jpg").write_bytes(jpeg(0))
    (folder / "tars").mkdir()
    (folder / "tars" / "a.tar").touch()
    (folder / "t.txt").write_text("raise SystemExit")
    (folder / "t.py").write_text("train = []\nraise SystemExit(3)")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("at", range(len(REFUSED)), ids=[command for command, *_ in REFUSED])
def test_what_cannot_be_is_one_line_of_each_command(cli: Cli, here: Path, at: int) -> None:
    """It names the option or the argument, and nothing is written."""
    command, *words = REFUSED[at]
    before = set(here.rglob("*"))
    assert_one_line(cli(*shlex.split(command)), *words)
    ours = {
        path for path in here.rglob("*") if path.suffix != ".dfidx" and "__pycache__" not in path.parts
    }  # Python's own
    assert ours == before


@pytest.mark.parametrize("at", range(len(USAGE)), ids=[command for command, *_ in USAGE])
def test_what_cannot_be_read_is_an_error_of_usage(cli: Cli, here: Path, at: int) -> None:
    """With the option, what was typed, and what may be."""
    command, *words = USAGE[at]
    assert_usage(cli(*shlex.split(command)), *words)


def test_a_file_that_is_a_folder_cannot_be_written(tmp_path: Path) -> None:
    """The option is named, and nothing is left beside it."""
    sheet = Sheet("--sheet", tmp_path / "out.png")
    (tmp_path / "out.png").mkdir()
    (tmp_path / "out.png" / "file").touch()
    with pytest.raises(ConfigError, match=r"--sheet: .*out.png must be a file that can be written; found: Is a direct"):
        sheet.write()
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


def test_a_users_file_may_define_dataclasses(tmp_path: Path) -> None:
    """Those with annotations as texts look for their module by its name, as where Python itself runs the file."""
    (tmp_path / "mine_of_words.py").write_text(
        "from __future__ import annotations\nimport dataclasses\n\n"
        "@dataclasses.dataclass\nclass Crop:\n    size: int = 7\n\ncrop = Crop()\n"
    )
    assert load_object("--transform", f"{tmp_path / 'mine_of_words.py'}:crop").size == 7


def test_a_users_file_may_put_folders_of_its_own_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay on the path, where its transform imports from when it runs; ours, the file's folder, goes."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = list(sys.path)
    (tmp_path / "t.py").write_text("import sys\nsys.path.insert(0, '/its/own')\ncrop = 1\n")
    assert load_object("--transform", f"{tmp_path / 't.py'}:crop") == 1
    assert sys.path == ["/its/own", *before]
