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
from killed_pack import contents
from member_shards import shards

from dali_feed.errors import ConfigError, MissingPackageError, SourceChangedError
from dali_feed.external_sources import ShardSet
from dali_feed.packing import pack

pytestmark = [pytest.mark.slow, pytest.mark.waits]


@pytest.fixture(scope="module")
def nodes() -> Iterator[int]:
    """A cluster of two nodes of one CPU each, on this machine; how many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about descriptors and its future defaults
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=1)
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
    with pytest.raises(ConfigError, match="such as can be sent to other processes; found: cannot pickle"):
        pack(
            ShardSet(str(tmp_path / "*.tar")),
            tmp_path / "b",
            engine="ray",
            map=lambda image: image + bytes([lock.locked()]),
        )
    with pytest.raises(ConfigError, match="engine: must be one of threads, ray; found 'spark'"):
        pack(ShardSet(str(tmp_path / "*.tar")), tmp_path / "b", engine="spark")
    assert not (tmp_path / "b").exists()


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one line with the command that installs it, before anything is written."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"Ray: this needs it.*pip install ray \(or dali-feed\[ray\]\)"):
        pack(shards(tmp_path, 2), tmp_path / "a", engine="ray")
    assert not (tmp_path / "a").exists()
