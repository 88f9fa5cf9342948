"""Tests that run in several processes at once: who has which ports, what is begun first, and what is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit.broker.begun import copy_storage, keep_storage, kept_folder
from kit.broker.real import free_ports, missing


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_two_workers_look_at_the_same_ports(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of one worker cannot take a port that a broker of another is about to bind."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(count))
    found = []
    for worker in range(count):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        found.append({port % count for port in free_ports(20)})
    assert all(len(ports) == 1 for ports in found)
    assert len(set.union(*found)) == count


def test_no_port_is_named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one broker is about to bind is not given to its next listener, or to the next broker."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1000")  # 17 ports for each
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw901")
    assert len({port for _ in range(10) for port in free_ports(1)}) == 10


@pytest.mark.skipif(missing() is not None, reason="no Java to begin with")
def test_what_brokers_begin_with_is_made_once_and_whole(tmp_path: Path) -> None:
    """Made by the first who asks; one that fails leaves nothing, and other jars or properties have their own."""
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "half").touch()
        if len(made) == 1:
            raise InterruptedError

    jars, cache = tmp_path / "jars", tmp_path / "cache"
    jars.mkdir()
    with pytest.raises(InterruptedError):
        kept_folder(cache, jars, "a", make)
    assert [path.name for path in cache.iterdir()] == ["jars-begun.lock"]
    first = kept_folder(cache, jars, "a", make)
    assert [path.name for path in first.iterdir()] == ["half"]
    assert kept_folder(cache, jars, "a", make) == first
    assert len(made) == 2
    assert kept_folder(cache, jars, "b", make) != first


def test_brokers_that_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    """The node, the cluster and the folder are each broker's own; what else was formatted is that of the first."""
    (tmp_path / "formatted").mkdir()
    meta = "version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n"
    (tmp_path / "formatted" / "meta.properties").write_text(meta)
    (tmp_path / "formatted" / "bootstrap.checkpoint").write_bytes(b"levels")
    keep_storage(tmp_path / "formatted", tmp_path / "kept")
    copy_storage(tmp_path / "kept", tmp_path / "data", 2, "cluster", "directory")
    found = (tmp_path / "data" / "meta.properties").read_text()
    assert found == "version=1\nnode.id=2\ncluster.id=cluster\ndirectory.id=directory\n"
    assert (tmp_path / "data" / "bootstrap.checkpoint").read_bytes() == b"levels"


@pytest.fixture
def tests(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """All that were collected with this one; run alone, it finds little to hold."""
    if request.config.getoption("failedfirst") or request.config.getoption("newfirst"):
        pytest.skip("another order was asked for")
    return request.session.items


def test_files_with_slow_tests_are_begun_first(tests: list[pytest.Item]) -> None:
    """So that no worker is left with minutes of work when the others have done theirs."""
    slow = {item.path: False for item in tests}
    for item in tests:
        slow[item.path] |= item.get_closest_marker("slow") is not None
    assert list(slow.values()) == sorted(slow.values(), reverse=True)


def test_what_starts_apache_kafka_is_marked(tests: list[pytest.Item]) -> None:
    """`-m "not waits"` starts no Java: each such test has the mark, whichever way it asks for the broker."""
    asking = [item for item in tests if "real" in item.name and "kafka" in getattr(item, "fixturenames", ())]
    asking += [item for item in tests if {"own_broker", "real_broker"} & set(getattr(item, "fixturenames", ()))]
    assert [item.nodeid for item in asking if not item.get_closest_marker("waits")] == []


def test_what_is_left_out_has_a_form_that_is_run(collected: list[pytest.Item]) -> None:
    """`make test` runs each test, some of them shorter or with fewer of its parameters: none is `long` alone.

    `long(form="test_name")` says which test of its file is the short form. But of benchmarks some are only started
    there: tests/bench/test_programs.py.
    """
    run: set[tuple[Path, str]] = set()
    forms: dict[tuple[Path, str], str] = {}
    for item in collected:
        name = item.nodeid.partition("[")[0].rpartition("::")[2]
        if (mark := item.get_closest_marker("long")) is None:
            run.add((item.path, name))
        elif item.path.parent.name != "bench":
            forms[item.path, name] = mark.kwargs.get("form", name)
    assert [name for (path, name), form in forms.items() if (path, form) not in run] == []


def test_make_leaves_out_nothing_else() -> None:
    """`make test` what is marked `long`, `make test-long` nothing."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^(test|test-long):.*\n\t.*pytest (.*)$", makefile, re.MULTILINE))
    options = {name: re.findall(r"-[mk] .*|--ignore.*|--deselect.*", recipe) for name, recipe in recipes.items()}
    assert options == {"test": ['-m "not long"'], "test-long": []}
