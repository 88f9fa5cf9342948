"""What is committed is source: no checkpoints, no data, nothing large that is not text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 64 << 10  # bytes of a file that is not text
WRITTEN_BY_RUNS = {
    *(".bin", ".ckpt", ".engine", ".jpeg", ".jpg", ".npy", ".npz", ".onnx", ".parquet", ".pickle", ".pkl", ".pt"),
    *(".pth", ".safetensors", ".tar", ".tfrecord", ".zip"),
}


def committed() -> list[Path]:
    """All files that git knows here."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_no_run_has_left_its_files() -> None:
    """Nothing that a training run, a bench or a packer writes is committed."""
    assert [path for path in committed() if path.suffix in WRITTEN_BY_RUNS] == []


def test_nothing_large_is_committed_but_text() -> None:
    """A file above 64 KB is text."""
    large = [path for path in committed() if path.is_file() and path.stat().st_size > MOST]
    assert [path for path in large if b"\0" in path.read_bytes()] == []
