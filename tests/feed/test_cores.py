"""How many cores a process may use, and that every default that counts cores asks for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dali_feed import options as module
from dali_feed.feed.meter import PassClock
from dali_feed.options import Tuning, cores, whole_cores

QUOTA = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "350000 100000\n"}


def written(root: Path, files: dict[str, str]) -> Path:
    """Those files of the kernel's, below `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def old(groups: str, group: str, quota: int) -> dict[str, str]:
    """The files of the kernel's old form, with a period of 0.1 s."""
    limits = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100_000}
    files = {f"sys/fs/cgroup/cpu{group}/{name}": f"{limit}\n" for name, limit in limits.items()}
    return {"proc/self/cgroup": groups} | files


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/not/here\n", "sys/fs/cgroup/cpu.max": "25000 100000\n"}, 0.25),
        (old("4:cpu,cpuacct:/job\n1:memory:/job\n", "/job", 75_000), 0.75),
        (old("4:cpu:/\n", "", -1), None),
    ],
)
def test_a_limit_of_a_control_group_counts_as_fewer_cores(tmp_path: Path, files: dict[str, str], most: float) -> None:
    """Of the group or one above it, in the kernel's new form and in its old one; without one the affinity counts."""
    free = cores(tmp_path / "nothing")
    assert cores(written(tmp_path, files)) == (free if most is None else most)


@pytest.mark.parametrize(("quota", "whole"), [(10_000, 1), (100_000, 1), (110_000, 2), (350_000, 4), (9_900_000, 16)])
def test_a_part_of_a_core_counts_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int, whole: int
) -> None:
    """Rounded up, so that threads can use all that is allowed; never more than the affinity has, and never none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    root = written(tmp_path, QUOTA | {"sys/fs/cgroup/job/cpu.max": f"{quota} 100000\n"})
    assert whole_cores(root) == whole


def test_defaults_count_the_cores_that_a_quota_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, and the cores of the verdict: 3.5 of the 16 that are seen."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert (Tuning().cpu_threads, PassClock().stats().cores) == (16, 16)
    written(tmp_path, QUOTA)
    assert (Tuning().cpu_threads, Tuning().gpu_threads) == (4, 4)
    assert PassClock().stats().cores == 3.5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Tuning().cpu_threads == 2


def test_nobody_else_counts_cores() -> None:
    """No file of the package asks the system by itself: it would see cores that a quota takes away."""
    home = Path(module.__file__).parent
    texts = {path: path.read_text() for path in sorted(home.rglob("*.py"))}
    counted = [path.relative_to(home).as_posix() for path, text in texts.items() if "cpu_count(" in text]
    asked = [path.relative_to(home).as_posix() for path, text in texts.items() if "sched_getaffinity(" in text]
    assert counted == []
    assert asked == ["bench/runner.py", "cli/tune.py", "options.py"]  # the bench looks at the machine itself
