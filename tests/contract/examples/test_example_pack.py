"""examples/pack_imagenet.py: a folder of classes becomes a set, and a batch comes of it."""

from __future__ import annotations

from pathlib import Path

from kit.images import jpeg
from kit.warm import Warm

EXAMPLE = Path(__file__).parents[3] / "examples" / "pack_imagenet.py"


def test_it_packs_verifies_and_reads(warm: Warm, tmp_path: Path) -> None:
    """Run twice: the second finds all of it there."""
    for n in range(8):
        path = tmp_path / "train" / f"class{n % 2}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(n % 2, 40, 48 + n))
    for _ in range(2):
        done = warm.run([EXAMPLE, tmp_path / "train", tmp_path / "out", "--resize", 32])
        assert done.returncode == 0, done.stderr
        first, second, third = done.stdout.splitlines()
        assert (first, second) == ("8 images in 1 shards, 0 left out", "0 files are damaged")
        assert third.startswith("a batch of (4, 3, 64, 64), labels [")
