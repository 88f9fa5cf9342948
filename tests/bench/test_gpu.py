"""`dali-feed bench gpu`: what it checks, what a crash costs, how it goes on, and what it says in the end."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit.bench_command import run as command
from kit.twin import Machine
from nvidia.dali import Pipeline
from nvidia.dali.fn import decoders

from dali_feed.bench import gpu, kernels, right, training
from dali_feed.bench.data import BenchJob, textures
from dali_feed.bench.gpu import GpuPart, ended, parts, so
from dali_feed.bench.report import lines_of
from dali_feed.bench.runner import Race, Turnout
from dali_feed.engines.dali import images
from dali_feed.kernels import augment

NEEDS_GPU = {"kernels", "sanitizer"}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of a race is one step, and the profile is of five."""
    monkeypatch.setattr(gpu, "TOY", replace(gpu.TOY, seconds=0.0))
    monkeypatch.setattr(right, "PROFILED", 5)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BenchJob:
    """A few images, of which batches of four are made on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return BenchJob(textures(6, 2), 4, "cpu", 2, crop=32)


def printing(line: Race) -> list[str]:
    """A command that prints a line."""
    return ["printf", "%s\\n", line.to_json()]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts whose processes have begun; each ends well at once, and looks at no image."""
    names: list[str] = []
    monkeypatch.setattr(gpu, "TOY", replace(gpu.TOY, images=2))
    monkeypatch.setattr(gpu, "child", scripted({}, names))
    return names


def scripted(outcomes: dict[str, str], begun: list[str]) -> Any:
    """Commands of parts that end as they are to: "right", "WRONG", or a row for those that race."""

    def each(name: str, job: BenchJob, _: float) -> list[str]:
        begun.append(name)
        kind = name.split(" ", 1)[0]
        races = kind in {"loader", "train", "settings"}
        line = gpu._line(name, job, kind if races else "check", "images")
        if name in outcomes or not races:
            line.about["outcome"] = outcomes.get(name, "right")
            line.findings.append("is said")
        else:
            line.rows += [
                row("host", "ours", [30.0, 33.0], "ceiling of host"),
                row("ceiling of host", "top", [40.0, 44.0]),
            ]
            line.rows.append(row("torch", "peer", [10.0, 11.0]))
        return printing(line)

    return each


def row(who: str, role: str, rates: list[float], beside: str = "") -> Turnout:
    """A row of a race."""
    each = Turnout("", who, role, beside=beside, rates=rates)
    each.cpu_us, each.server_us, each.others = [1.0] * 2, [0.0] * 2, [0.0] * 2
    return each


@pytest.mark.parametrize("name", [part.name for part in parts("cpu") if not part.races])
def test_each_check_is_right_on_the_cpu_or_needs_a_gpu(name: str, job: BenchJob) -> None:
    """The rehearsal makes every check that needs no GPU."""
    line = gpu._check(name, job, 0.0)
    assert line.about["outcome"] == ("not checked" if name in NEEDS_GPU else "right"), line.findings


@pytest.mark.device
def test_a_kernel_with_other_bits_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level in all pixels or a row of one of them; what is right is right."""
    monkeypatch.setattr(right, "SIZES", ((8, 12),))
    on_gpu, real = SimpleNamespace(device="cuda:0"), augment.augment
    assert "have the bits of their references" in right.kernels(on_gpu)  # type: ignore[arg-type]
    for spoilt in (lambda out: out.bitwise_xor_(1), lambda out: out[0, 3].zero_()):

        def other(images: Any, out: Any, rows: Any, spoilt: Any = spoilt, **more: Any) -> None:
            real(images, out, rows, **more)
            spoilt(out)

        monkeypatch.setattr(augment, "augment", other)
        with pytest.raises(right.WrongError, match="other bits than their reference: augment Identity nearest 8x12"):
            right.kernels(on_gpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pixels", "batches", "torn"])
def test_a_check_sees_other_pixels(name: str, job: BenchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample that is another where the engine is `host`, in one run of several, is WRONG and named."""
    epoch, number = right._epoch, 0

    def other(*arguments: Any, **options: Any) -> right.Pixels:
        nonlocal number
        seen, number = epoch(*arguments, **options), number + 1
        if number == {"pixels": 3, "torn": 4}.get(name):  # host there; host without a broken JPEG
            seen[0] = 255 - seen[0]
        return seen

    monkeypatch.setattr(right, "_epoch", other)
    if name == "batches":  # every run is changed alike, but the first
        monkeypatch.setattr(right, "BATCHES", (1, 2))
        monkeypatch.setattr(right, "_differ", lambda *_: [0])
    outcome, sentence = right.outcome(right.CHECKS[name], job)
    assert outcome == "WRONG"
    assert "host" in sentence or "dali" in sentence


class Profile:
    """Torch's profiler, as far as it would see the twin's GPUs: ranges, and what has waited, each with its thread."""

    def __init__(self, machine: Machine) -> None:
        self._waited, self._events, self._on = machine._waited, list[Any](), False
        machine._waited = self._waits  # type: ignore[method-assign]

    def __call__(self, **_: Any) -> Any:
        """A profile."""
        self._on = True
        return contextlib.nullcontext(self)

    def _waits(self, kind: str, at: str) -> None:
        self._waited(kind, at)
        with self.range("cudaEventSynchronize"):
            pass

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """What `record_function` is to a profile."""
        time_range = SimpleNamespace(start=time.perf_counter())
        yield
        time_range.end = time.perf_counter()
        thread = threading.get_ident()
        if self._on:
            self._events.append(SimpleNamespace(name=name, id=0, device_resource_id=thread, time_range=time_range))

    def events(self) -> list[Any]:
        """So far."""
        return self._events


class Learner:
    """A network on the twin's GPUs: torch's gradients would ask CUDA."""

    def __init__(self, *_: object) -> None:
        pass

    def step(self, images: torch.Tensor) -> torch.Tensor:
        """What a loss is: a number there."""
        return images.mean()


@pytest.fixture
def there(job: BenchJob, monkeypatch: pytest.MonkeyPatch, on_device: Machine | None) -> BenchJob:
    """The same job on a GPU, at toy size."""
    monkeypatch.setattr(gpu, "ON_GPU", gpu.TOY)
    for module in (right, training):
        monkeypatch.setattr(module, "network", lambda _: partial(training.small_resnet, 4))
        if on_device is not None:
            monkeypatch.setattr(module, "Trainer", Learner)
    monkeypatch.setattr(kernels, "L2_BYTES", 1 << 10)
    monkeypatch.setattr(kernels, "SIZE", 32)
    some = {name: lambda batch, each=each: islice(each(batch), 2) for name, each in kernels.CASES.items()}
    monkeypatch.setattr(kernels, "CASES", some)
    if on_device is not None:
        monkeypatch.setattr(right, "LOADS", 0)  # a CPU multiplies slowly
        monkeypatch.setattr(right, "SIZES", ((8, 12),))
        profile = Profile(on_device)
        monkeypatch.setattr(torch.profiler, "profile", profile)
        monkeypatch.setattr(torch.profiler, "record_function", profile.range)
    return replace(job, device="cuda:0")


@pytest.mark.device
@pytest.mark.parametrize("name", [part.name for part in parts("cuda:0") if not part.races])
def test_each_check_is_right_on_a_gpu(name: str, there: BenchJob, on_device: Machine | None) -> None:
    """The twin says to all of them what a GPU is to say."""
    line = gpu._run(name, there, math.inf)
    assert line.about["outcome"] == ("not checked" if name == "sanitizer" else "right"), line.findings
    if name == "waits" and on_device is not None:
        assert ": none in next(); 1 cudaEventSynchronize in the rest of the loop; " in line.findings[0]
        assert "none in other threads" not in line.findings[0]


@pytest.mark.device
@pytest.mark.parametrize("name", ["bandwidth", "loader 4", "train"])
def test_each_race_is_run_on_a_gpu(name: str, there: BenchJob) -> None:
    """Everybody has a row, or a GPU lacks what he needs."""
    line = gpu._run(name, there, math.inf)
    assert line.rows
    assert set(line.missing.values()) <= {"no JPEG engine here"}


def test_each_setting_runs(job: BenchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a GPU is to decide, the CPU rehearses, as far as it has the CPUs; and DALI is given what is said."""
    given: set[tuple[bool, int]] = set()
    build = Pipeline.__init__

    def pipeline(pipe: Any, **options: Any) -> None:
        given.add((options.get("set_affinity", False), options["prefetch_queue_depth"]))
        build(pipe, **options)

    monkeypatch.setattr(Pipeline, "__init__", pipeline)
    line = gpu._settings("settings", job, math.inf)
    able = [each.name for each in gpu.settings(job) if each.unable is None]
    assert [each.who for each in line.rows] == able
    assert given == {(False, 1), (True, 1), (False, 3)}
    assert "set_affinity" not in images.PIPELINE_OPTIONS


@pytest.mark.device
def test_each_setting_runs_on_a_gpu(there: BenchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders are given hints and shares, and an image's is its own."""
    given: list[dict[str, Any]] = []
    decode = decoders.image

    def image(payload: Any, **options: Any) -> Any:
        given.append(options)
        return decode(payload, **options)

    monkeypatch.setattr(decoders, "image", image)
    monkeypatch.setattr(right, "jpeg_engine", lambda _: True)
    line = gpu._settings("settings", there, math.inf)
    able = [each.name for each in gpu.settings(there) if each.unable is None]
    assert [each.who for each in line.rows] == able
    assert {"its memory taken beforehand", "both decoders, by size", "page-locked payloads"} <= set(able)
    assert {each["hw_decoder_load"] for each in given} == {0.0, 1.0}
    hinted = {(each.get("preallocate_width_hint"), each["hw_decoder_load"]) for each in given}
    assert hinted == {(None, 0.0), (None, 1.0), (500, 1.0)}


def test_what_raises_is_wrong() -> None:
    """Whatever it is, with its kind and its words."""
    assert right.outcome(lambda _: str(1 // 0), Any) == (  # type: ignore[arg-type]
        "WRONG",
        "ZeroDivisionError: integer division or modulo by zero",
    )


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("import sys; sys.exit('the last words')", "ended with 1; its last words: the last words"),
        ("print(7)", "ended with 0"),
        ("import threading; threading.Event().wait()", "had no end after 1 s"),
    ],
)
def test_a_part_that_comes_to_no_end_is_a_line(
    code: str, says: str, job: BenchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, an error, silence and a hang: WRONG for a check; a race was only not made."""
    monkeypatch.setattr(gpu, "child", lambda *_: [sys.executable, "-c", code])
    for races, outcome in ((False, "WRONG"), (True, "not checked")):
        line = ended(GpuPart("torn", 4, races=races), job, 1.0 if "wait" in code else 60.0)
        assert line.about["outcome"] == outcome
        assert says in line.findings[0]


def test_what_a_part_leaves_is_ended_with_it(job: BenchJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of one that crashed would be in the way of all that is timed behind it."""
    note = tmp_path / "pid"
    code = f"""import os, subprocess
left = subprocess.Popen(["tail", "-f", "/dev/null"], stdout=subprocess.DEVNULL)
open({str(note)!r}, "w").write(str(left.pid))
os._exit(3)"""
    monkeypatch.setattr(gpu, "child", lambda *_: [sys.executable, "-c", code])
    assert "ended with 3" in ended(GpuPart("torn", 4), job, 60.0).findings[0]
    deadline = time.monotonic() + 60
    stat = Path(f"/proc/{note.read_text()}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("prints", "outcome"),
    [
        ("echo ========= ERROR SUMMARY: 0 errors; echo ========= RACECHECK SUMMARY: 0 hazards displayed", "right"),
        ("echo ========= ERROR SUMMARY: 3 errors", "WRONG"),
        ("echo Device not supported", "not checked"),
        ("exec tail -f /dev/null", "not checked"),
    ],
)
def test_a_sanitizer_that_does_not_run_makes_nothing_wrong(
    prints: str, outcome: str, job: BenchJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what it finds is."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{prints}\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    monkeypatch.setattr(gpu, "SANITIZED", 0.5 if "tail" in prints else 60.0)
    line = gpu._check("sanitizer", replace(job, device="cuda:0"), 0.0)
    assert line.about["outcome"] == outcome, line.findings


def test_a_later_run_goes_on_behind_the_lines_of_before(job: BenchJob, begun: list[str]) -> None:
    """As long as nothing is another: what was cut is made, what has a line is not."""
    whole = [line for line, _ in gpu.run("cpu", job)]
    names = [part.name for part in parts("cpu")]
    assert begun == names
    begun.clear()
    again = list(gpu.run("cpu", job, known=whole[:3]))
    assert begun == names[3:]
    assert [known for _, known in again] == [True] * 3 + [False] * (len(names) - 3)
    begun.clear()
    for line in whole:
        line.about["torch"] = "another"
    list(gpu.run("cpu", job, known=whole))
    assert begun == names


def test_what_did_not_go_well_is_made_again(job: BenchJob, begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that was WRONG or not made, and a race that crashed; what is right or was measured stays."""
    first = scripted({"torn": "WRONG", "waits": "not checked"}, begun)
    second = scripted({"loader 4": "not checked"}, begun)
    known: list[Race] = []
    for child, made in (
        (first, [part.name for part in parts("cpu") if not part.races]),
        (second, ["torn", "waits", "loader 4", "train", "settings"]),
        (scripted({}, begun), ["loader 4"]),
        (scripted({}, begun), []),
    ):
        begun.clear()
        monkeypatch.setattr(gpu, "child", child)
        lines = list(gpu.run("cpu", job, known=known))
        known += [line for line, before in lines if not before]
        assert begun == made
    assert so([line for line, _ in lines], "cpu")[0].startswith("Rehearsed on the CPU: 8 of 8 checks went well")


def test_where_something_is_wrong_nothing_is_timed(
    job: BenchJob, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other checks are made all the same; behind a set-up that is wrong nothing is."""
    monkeypatch.setattr(gpu, "child", scripted({"torn": "WRONG"}, begun))
    lines = [line for line, _ in gpu.run("cpu", job)]
    assert begun == [part.name for part in parts("cpu") if not part.races]
    assert so(lines, "cpu") == ["WRONG on cpu: torn; nothing is timed before that is mended."]
    begun.clear()
    monkeypatch.setattr(gpu, "child", scripted({"set-up": "WRONG"}, begun))
    list(gpu.run("cpu", job))
    assert begun == ["set-up"]


def test_three_sentences(job: BenchJob, begun: list[str]) -> None:
    """Right, what is fastest, and what is gained; parts for which there was no time are named."""
    lines = [line for line, _ in gpu.run("cpu", job)]
    assert len(lines) == len(begun)
    first, *others = so(lines, "cuda:0")
    assert first.startswith("Right on cuda:0: 8 of 8 checks")
    assert "Not begun, as the time was over: bandwidth, loader 64, loader 256" in first
    assert others == [
        'Decode(engine="host") is the fastest: 32 images/s at batch 4, 0.75 of its ceiling.',
        "3.0 times torch's DataLoader, 3.0 or more in each of 2 rounds.",
    ]
    lines[-3].rows[-1].rates[:] = [20.0, 60.0]
    assert so(lines, "cpu")[2] == "No gain here: 1.02 times torch's DataLoader, 0.55 to 1.50."
    assert so(lines, "cpu")[0].startswith("Rehearsed on the CPU: 8 of 8 checks went well")


def test_the_command_keeps_each_line_and_a_page(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 where something is WRONG; the second call reads the lines of the first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "child", scripted({"torn": "WRONG"}, begun))
    outs = [tmp_path / f"gpu.{kind}" for kind in ("json", "html", "csv")]
    for _ in range(2):
        done = command("gpu", "--device", "cpu", *(each for out in outs for each in ("--out", out)))
        assert done.exit_code == 1, done.output
        assert "WRONG       torn: is said" in done.output
        assert [line.about["part"] for line in lines_of(outs[0])] == begun
        assert "torn; nothing is timed" in outs[1].read_text()
    done = command("gpu", "--device", "tpu")
    assert "--device: must be cpu or cuda:N; found 'tpu'" in done.output


def test_a_line_that_a_kill_cut_is_skipped(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a word; its part is made again, and the file is whole then. A file of others is an error as before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "gpu.json"
    assert command("gpu", "--device", "cpu", "--out", out).exit_code == 0
    names, whole = [line.about["part"] for line in lines_of(out)], out.read_text()
    last = whole.splitlines()[-1]
    for left in (3, 200, len(last) - 1):
        begun.clear()
        out.write_text(whole[: -len(last) - 1] + last[:left])
        done = command("gpu", "--device", "cpu", "--out", out)
        assert done.exit_code == 0, done.output
        word = f"{out}: a line must be whole; the last one was cut after {left} letters and is skipped"
        assert caplog.messages[-1] == word
        assert (begun, [line.about["part"] for line in lines_of(out)]) == (names[-1:], names)
    out.write_text("\n".join(whole.splitlines()[1:]))  # a whole line at the end
    assert command("gpu", "--device", "cpu", "--out", out).exit_code == 0
    assert [line.about["part"] for line in lines_of(out)] == names[1:] + names[:1]
    for text in ("notes", '{"kind": "note"}', whole + '{"kin\n'):
        out.write_text(text)
        done = command("gpu", "--device", "cpu", "--out", out)
        assert f"{out}: must be a line that `dali-feed bench ... --out FILE.json` wrote" in done.output
        assert out.read_text() == text


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (((13, 0), "13.2", "nvidia-dali-cuda130", (13, 2), (9, 0)), []),
        (((12, 4), "13.2", "nvidia-dali-cuda120", (13, 2), (9, 0)), ["whl/cu126"]),
        (((12, 8), "13.2", "nvidia-dali-cuda130", (13, 2), (9, 0)), ["whl/cu128", "dali-feed[cuda12]"]),
        (((13, 0), None, "nvidia-dali-cuda130", (13, 2), (9, 0)), ["the CPU alone"]),
        (((0, 0), "13.2", "", (0, 0), (0, 0)), ["no NVIDIA driver"]),
        (((13, 0), "12.6", "nvidia-dali-cuda120", (12, 6), (10, 0)), ["NVRTC 12.6 compiles nothing"]),
    ],
)
def test_what_does_not_fit_is_a_sentence(facts: Any, says: list[str]) -> None:
    """Driver, torch, DALI, NVRTC and the GPU, each with its cure."""
    sentences = right.misfits(*facts)
    assert len(sentences) == len(says)
    assert all(part in sentence for part, sentence in zip(says, sentences, strict=True))


def test_calls_of_a_profile_are_counted_where_they_stand() -> None:
    """In a range of the loop's thread, elsewhere in that, or in others; only those that wait, allocate or copy slowly.

    Torch says of a wait that is of none of its operations that the thread has made it that ended the profile, which is
    the loop's; and a copy from pageable memory is an event of the GPU's, whose number is that of the call.
    """

    def event(name: str, thread: int, start: int, end: int, number: int = 0) -> Any:
        time_range = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(name=name, thread=1, device_resource_id=thread, time_range=time_range, id=number)

    pageable = "Memcpy HtoD (Pageable -> Device)"
    events = [
        event("step", 1, 10, 20),
        event("cudaStreamSynchronize", 1, 12, 13),
        event("cudaEventSynchronize", 2, 12, 13),
        event("cudaMalloc", 1, 30, 31),
        event("cudaLaunchKernel", 1, 14, 15),
        event("cudaMemcpyAsync", 1, 15, 16, 77),
        event(pageable, 7, 24, 25, 77),
        event(pageable, 7, 24, 25, 78),
    ]
    inside, thread, others = right.calls(events, "step")
    assert inside == {"cudaStreamSynchronize": 1, pageable: 1}
    assert thread == {"cudaMalloc": 1}
    assert others == {"cudaEventSynchronize": 1, pageable: 1}


@pytest.mark.long
@pytest.mark.slow
def test_the_whole_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU at toy size, with its own processes: every part has a line, and nothing is WRONG."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = command("gpu", "--device", "cpu", "--out", tmp_path / "gpu.json")
    assert done.exit_code == 0, done.output
    assert [line.about["part"] for line in lines_of(tmp_path / "gpu.json")] == [part.name for part in parts("cpu")]
