"""Packing on Ray: the same set as threads make, whoever dies, and errors as they are without Ray."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.killed_pack import contents
from kit.member_shards import shards

from dali_feed.errors import ConfigError, MissingPackageError, SourceChangedError, SourceDeniedError
from dali_feed.external_sources import ShardSet
from dali_feed.packing import Layout, pack, verify

pytestmark = [pytest.mark.slow, pytest.mark.waits]


@pytest.fixture(scope="module")
def nodes() -> Iterator[int]:
    """A cluster of two nodes of one CPU each, on this machine; how many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about descriptors and its future defaults
        import ray
        from ray.cluster_utils import Cluster

        # Without those of its processes that only show people something: each imports Ray for a second.
        less = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **less})
        try:
            cluster.add_node(num_cpus=1, include_log_monitor=False)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            yield len(ray.nodes())
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (FutureWarning, ResourceWarning))
        yield


def test_the_same_set_from_two_nodes_one_of_whose_workers_is_killed(nodes: int, tmp_path: Path) -> None:
    """No file differs from what threads write, and none is left over; a worker that dies is replaced."""
    assert nodes == 2
    source = shards(tmp_path)
    killed, here = tmp_path / "killed", os.getpid()  # where images are looked at for a plan

    def same(image: bytes) -> bytes:
        if os.getpid() != here and not killed.exists():
            killed.write_bytes(b"")
            os.kill(os.getpid(), signal.SIGKILL)
        return image

    done = pack(source, tmp_path / "ray" / "x.dfset", shard_bytes=30_000, map=same, engine="ray")
    assert done.shards >= 4
    assert done.done == done.total == 24
    assert killed.exists()
    pack(source, tmp_path / "threads" / "x.dfset", shard_bytes=30_000, map=same)
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")


def test_errors_come_as_they_are(nodes: int, tmp_path: Path) -> None:
    """What a task raises is raised here; a source that a task sees otherwise is named; what cannot be sent too."""

    class Moved(ShardSet):
        """One that other processes see as another."""

        def __reduce__(self) -> tuple[type[ShardSet], tuple[str]]:
            return ShardSet, (str(tmp_path / "0.tar"),)

    shards(tmp_path)
    with pytest.raises(SourceChangedError, match="all machines of a Ray cluster must see the same records"):
        pack(Moved(str(tmp_path / "*.tar")), tmp_path / "a", engine="ray")
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="objects that can be sent to other processes; found: cannot pickle"):
        pack(
            ShardSet(str(tmp_path / "*.tar")),
            tmp_path / "b",
            engine="ray",
            map=lambda image: image + bytes([lock.locked()]),
        )
    with pytest.raises(ConfigError, match="engine: must be one of threads, ray; found 'spark'"):
        pack(ShardSet(str(tmp_path / "*.tar")), tmp_path / "b", engine="spark")
    assert not (tmp_path / "b").exists()


def test_a_striped_set_is_the_one_that_threads_write(nodes: int, tmp_path: Path) -> None:
    """Over three targets, bit for bit, with a worker that is killed while it writes stripes, and nothing left over."""
    assert nodes == 2
    source = shards(tmp_path)
    killed, here = tmp_path / "killed", os.getpid()

    def same(image: bytes) -> bytes:
        if os.getpid() != here and not killed.exists():
            killed.write_bytes(b"")
            os.kill(os.getpid(), signal.SIGKILL)
        return image

    for engine in ("ray", "threads"):
        for target in "abc":
            (tmp_path / engine / target).mkdir(parents=True)
        layout = Layout(("a", "b", "c"), 2, 4096)
        pack(source, tmp_path / engine / "x.dfset", shard_bytes=30_000, map=same, layout=layout, engine=engine)
        assert not verify(tmp_path / engine / "x.dfset").damages
    assert killed.exists()
    found = contents(tmp_path / "ray")
    assert found == contents(tmp_path / "threads")
    assert {str(Path(name).parent) for name in found} >= {"a", "b", "c"}
    assert not [path for path in (tmp_path / "ray").rglob("*") if path.name.startswith(".")]


def test_a_target_that_a_machine_does_not_see_is_named(nodes: int, tmp_path: Path) -> None:
    """By the machine that lacks it; one that this process lacks is told before a task is begun."""
    source, out = shards(tmp_path, 4), tmp_path / "out" / "x.dfset"
    (tmp_path / "out" / "a").mkdir(parents=True)
    with pytest.raises(SourceDeniedError, match=r"target .*/out/b: must be a folder .*; found none; mount or make it"):
        pack(source, out, layout=Layout(("a", "b"), 2, 4096), engine="ray")
    held = os.open(tmp_path / "out" / "a", os.O_RDONLY)
    try:
        layout = Layout((f"/proc/self/fd/{held}", str(tmp_path)), 1, 4096)  # a folder of this process alone
        with pytest.raises(ConfigError, match=r"every machine of a Ray cluster must see all targets .*/proc/self/fd/"):
            pack(source, out.with_name("y.dfset"), layout=layout, engine="ray")
    finally:
        os.close(held)
    assert not list((tmp_path / "out").glob("*.dfset"))


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one line with the command that installs it, before anything is written."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"Ray: this needs it.*pip install ray \(or dali-feed\[ray\]\)"):
        pack(shards(tmp_path, 2), tmp_path / "a", engine="ray")
    assert not (tmp_path / "a").exists()
