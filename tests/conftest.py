"""Fixtures: Kafka brokers, embedded and real, and the marker of tests that need a GPU.

A machine without Java or Maven skips the real broker and says so at the end; with CI=true that is a failure.
KAFKA_BOOTSTRAP names a broker that runs already. REQUIRE_GPU=1 makes a missing GPU a failure.

With `-n` each worker is a process with fixtures of its own, forked from one that has imported torch (kit/warm.py). The
one Apache Kafka of a run is begun with it, or, where not all tests are run, by the first that comes to a test of it.
Ports are looked for where no other worker looks, the embedded broker binds whatever the system gives it, and a topic's
name is random. Files that have slow tests are begun first.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of a GPU for itself
# Torch's threads wait for each other in a loop: on images as small as these it costs ten times what they compute, and
# takes the CPUs from the other workers. It is read when torch is imported, here and in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
from hypothesis import HealthCheck, settings
from kit.broker import real
from kit.kept import Kept
from kit.warm import Warm

# Not while this file is imported: the process that only deals out tests would take six CPU seconds to import torch.
if TYPE_CHECKING:
    from kit.broker.handle import Kafka
    from kit.twin import Machine

    from dali_feed.testing import Broker

# Importlib mode adds no folder by itself: pyproject.toml adds this one for `from kit.images import jpeg`, here for the
# processes that tests start as well. Helpers that are no contract test's stand beside their users.
_ROOMS = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOMS), os.environ.get("PYTHONPATH")]))
_FOLDERS = {path.parent for path in _ROOMS.glob("*/**/*.py") if not path.name.startswith("test_")}
sys.path[:0] = sorted(str(path) for path in _FOLDERS if "kit" not in path.relative_to(_ROOMS).parts)

gc.disable()  # while test modules and libraries are imported, none of which is ever garbage: a third of that time

# How long one example takes is the machine's business, and so is how fast they are made.
# Half of Hypothesis' own number of examples, as many tests run often; new ones are tried in every run.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=500)  # of `make test-long`
settings.load_profile("any machine")

_APACHE_KAFKA = {"real_broker", "own_broker", "needs_kafka"}  # fixtures that start a process of Java
_UNTESTED: list[str] = []
_COLLECTED: list[pytest.Item] = []
MANY = 100  # modules that were imported since, so that it is worth it
_AT_FREEZE = [0]  # how many there were
_WARM = "DALI_FEED_TESTS_WARM"  # the folder of the process that workers are forked from
_PYTHON, _RUN = "DALI_FEED_TESTS_PYTHON", "DALI_FEED_TESTS_RUN"  # which Python it is; the process of the run


@pytest.fixture(scope="session")
def collected() -> list[pytest.Item]:
    """All that was collected, what -m and -k leave out too."""
    return _COLLECTED


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes that cannot lie beside a file lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def embedded_broker() -> Iterator[Broker]:
    """The mock cluster of librdkafka, one per test: the thread of a long-lived one has been seen to end."""
    from dali_feed.testing import broker

    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def needs_kafka() -> None:
    """For what starts Apache Kafka by itself."""
    _need_kafka()


@pytest.fixture(scope="session")
def real_broker() -> Iterator[real.Cluster]:
    """Apache Kafka, shared by the whole run; not for tests that kill it."""
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield real.Cluster(given)
        return
    _need_kafka()
    if at := os.environ.get(_WARM):
        yield real.SharedBroker(Path(at), int(os.environ[_RUN]))
        return
    with real.RealBroker(brief=True) as running:
        yield running


@pytest.fixture
def own_broker() -> Iterator[real.RealBroker]:
    """Apache Kafka for one test, which may kill it."""
    _need_kafka()
    with real.RealBroker(brief=True) as running:
        yield running


@pytest.fixture(params=["embedded", "real", "by message"])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    """Each broker in turn; and the embedded one, of which all is read by message, as without the loops in C."""
    from kit.broker.handle import Kafka

    from dali_feed.external_sources.kafka import reader

    if request.param == "by message":
        request.getfixturevalue("monkeypatch").setattr(reader, "by_column", lambda _: False)
        return Kafka("embedded", request.getfixturevalue("embedded_broker"))
    return Kafka(request.param, request.getfixturevalue(f"{request.param}_broker"))


@pytest.fixture(params=["host", "dali"], scope="module")
def each_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """All of a module's tests with each engine on the CPU: one for the loaders that choose none."""
    from dali_feed.engines import choose

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "ON_CPU", request.param)
        yield request.param


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Runs scripts without the seconds that importing torch takes each; one for all tests of all workers."""
    at = os.environ.get(_WARM)
    with Warm(Path(at) if at else None) as started:
        yield started


@pytest.fixture
def warm_children(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test starts by `sys.executable` is forked from a process that has imported torch."""
    monkeypatch.setattr(sys, "executable", str(warm.python))


def pytest_configure(config: pytest.Config) -> None:
    """Begin what all workers fork from, before there are any."""
    if hasattr(config, "workerinput"):
        sys.executable = os.environ[_PYTHON]  # it was forked too, and children are to be so where a test wants it
    elif workers := getattr(config.option, "numprocesses", None):
        started = Warm()
        os.environ |= {_WARM: str(started.home), _PYTHON: sys.executable, _RUN: str(os.getpid())}
        config.option.tx = [f"popen//python={started.python}"] * workers
        config.add_cleanup(started.close)
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if whole and "KAFKA_BOOTSTRAP" not in os.environ and real.missing() is None:
            # One CPU has nothing to do while torch is imported, and later the first tests wait for the broker.
            threading.Thread(target=real.SharedBroker, args=(started.home, os.getpid()), daemon=True).start()


@pytest.fixture(scope="session")
def cp() -> Any:
    """CuPy, imported where there is a device only."""
    return pytest.importorskip("cupy")


@pytest.fixture(scope="session")
def kept(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """What compilers made before, in pytest's cache folder; `make clean` and `--cache-clear` begin anew."""
    cache = getattr(pytestconfig, "cache", None)  # not there with `-p no:cacheprovider`
    return Kept(tmp_path_factory.mktemp("kernels") if cache is None else cache.mkdir("kernels"))


@pytest.fixture(autouse=True)
def on_device(request: pytest.FixtureRequest) -> Iterator[Machine | None]:
    """The GPUs of a test marked `device`: the twin's, made as the marker says, or, as None, the real ones."""
    if _gpus() and request.node.get_closest_marker("device"):
        for value in vars(request.module).values():  # what a file remembers of one is not the other's
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    if getattr(request, "param", None) != "twin":
        yield None
        return
    from kernel_cases import KERNELS  # torch, DALI: where they are needed alone
    from kernels_host import compile_for_host
    from kit.twins import twin_of

    marker, kept = request.node.get_closest_marker("device"), request.getfixturevalue("kept")
    with twin_of(lambda name: compile_for_host(kept, name, KERNELS[name].variants), **marker.kwargs) as machine:
        yield machine


@pytest.fixture
def embedded(embedded_broker: Broker) -> Kafka:
    """The embedded one alone."""
    from kit.broker.handle import Kafka

    return Kafka("embedded", embedded_broker)


@pytest.fixture
def answers(embedded: Kafka) -> Callable[..., None]:
    """Has the broker, with twenty records in a topic, answer the next requests of a kind with these errors."""
    from kit.broker.handle import value

    from dali_feed.testing import Broker

    embedded.publish(embedded.topic, [(value(i), i) for i in range(20)], partitions=1)
    cluster = embedded.cluster
    assert isinstance(cluster, Broker)
    return lambda request, *errors: cluster.fail_next(request, list(errors))


@pytest.fixture
def real_kafka(real_broker: real.Cluster) -> Kafka:
    """The real one alone, for what the mock cannot do."""
    from kit.broker.handle import Kafka

    return Kafka("real", real_broker)


@pytest.fixture(scope="session")
def link_broker(real_broker: real.Cluster) -> real.RealBroker:
    """The session's broker, where it is ours: a given one has no link."""
    if not isinstance(real_broker, real.RealBroker):
        pytest.skip("a link to the given broker cannot be cut")
    return real_broker


def _need_kafka() -> None:
    reason = real.missing()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI tests the real Kafka: {reason}", pytrace=False)
    _UNTESTED.append(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def _a_heap_of_its_own() -> None:
    """The garbage collector does not look through libraries that earlier files imported.

    In the end a worker has imported a dozen frameworks: each `gc.collect()` would take 0.7 s, and a test of what a
    closed loader leaves behind calls it four times. Whatever else lives now is frozen too and never collected, a loader
    that nobody closed among it; so this is done a few times in a run, and not before each file.
    """
    if len(sys.modules) > _AT_FREEZE[0] + MANY:
        gc.collect()
        gc.freeze()
        _AT_FREEZE[0] = len(sys.modules)


@functools.cache
def _gpus() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what waits for Apache Kafka; put files with slow tests first, each with its tests in their order."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if _APACHE_KAFKA & set(getattr(item, "fixturenames", ())) or parameters.get("kafka") == "real":
            item.add_marker(pytest.mark.waits)
    _COLLECTED[:] = items
    yield  # -m and -k leave some out
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `device` runs on the twin's GPUs, and on the machine's where it has some."""
    if metafunc.definition.get_closest_marker("device"):
        metafunc.parametrize("on_device", ["twin", *(["gpu"] if _gpus() else [])], indirect=True)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, and never look through a million objects of torch for it: 0.3 s each time.

    The youngest are looked through at each 20,000 and not at each 700: a tenth of the CPU seconds of tests that make a
    loader each. A test of what is left behind collects by itself.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    _AT_FREEZE[0] = len(sys.modules)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail what needs a GPU where there is none."""
    on_twin = getattr(getattr(item, "callspec", None), "params", {}).get("on_device") == "twin"
    if item.get_closest_marker("gpu") and (on_twin or not _gpus()):
        if os.environ.get("REQUIRE_GPU") == "1":
            pytest.fail("REQUIRE_GPU=1 and NVML finds no GPU", pytrace=False)
        pytest.skip("no GPU")


def pytest_report_header() -> str:
    """Which brokers and how many GPUs this run has."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    found = f"the one at {given}" if given else real.missing() or f"Apache Kafka {real.kafka_version()}"
    import confluent_kafka

    return f"kafka: embedded librdkafka {confluent_kafka.libversion()[0]}; real: {found}; gpus: {_gpus()}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of several tells what it saw, for the one summary, and is then left as it is."""
    told = getattr(session.config, "workeroutput", None)
    if told is None:
        gc.unfreeze()  # libraries look at their exit for what is left of theirs
        return
    told["untested"] = list(_UNTESTED)
    # Its fixtures are at their end. To look through all libraries for garbage, as pytest does five times, and to take
    # them apart would cost four seconds more, for nobody.
    gc.freeze()
    atexit.register(os._exit, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker told, or say how one ended that crashed: minus the number of the signal that killed it."""
    if error:
        sys.stderr.write(f"{node.gateway.id} ended with {node.gateway._io.popen.wait(60)}\n")
    told = getattr(node, "workeroutput", {})  # nothing, where it crashed
    _UNTESTED.extend(told.get("untested", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested."""
    if _UNTESTED:
        terminalreporter.section("NOT TESTED: THE REAL KAFKA", red=True)
        terminalreporter.line(f"{len(_UNTESTED)} tests skipped: {_UNTESTED[0]}")
