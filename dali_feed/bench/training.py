"""`dali-feed bench train`: what a training loop waits for its batches, beside a replay of the same batches.

The law: everybody trains the same small network on batches of the same work. The replay gives batches that were made
beforehand, again and again, so it waits for nothing; what another loses beside it is its loader's.

A wait is the loop's time in next(), of the steps that are counted, whoever feeds it. Our loader's own clock, over the
same steps, ends where it hands a batch over: where the loop's thread then has no processor, the bench sees a wait.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from dali_feed.bench.contract import Contestant, Job, Outcome, Steps
from dali_feed.bench.findings import OWN_VERDICT
from dali_feed.bench.turns import Listener, Make, Measured, Turn, ratios, spread, take_turns
from dali_feed.bench.work import one_torch_thread

__all__ = ["REPLAY", "SHOWN", "Trainer", "findings", "measure", "own_share", "small_resnet", "trained"]

SHOWN = ("who", "way", "img/s", "least", "most", "of replay", "waited", "wait p50 ms", "wait p99 ms", "step ms")
REPLAY = "replay"
REPLAYED = 4  # batches
HARDLY = 0.05  # of the steps' time: nobody would gain by a faster loader
APART = 0.02  # of the loop's time: two clocks that differ by less say the same


class _Block(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)),
            *(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)),
        )
        same = stride == 1 and inner == outer
        self.around = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, inner, h, w) to (n, outer, h / stride, w / stride)."""
        return nn.functional.relu(self.body(images) + self.around(images))


def small_resnet(width: int = 16, classes: int = 1000) -> nn.Module:
    """A residual network of four stages, `width` channels in the first: (n, 3, h, w) floats to (n, classes)."""
    stages = [_Block(width << max(0, n - 1), width << n, 1 if n == 0 else 2) for n in range(4)]
    stem = (nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, classes))


class Trainer:
    """A network and its step.

    make    makes the network
    device  where it trains; off the CPU in bfloat16 and channels last
    """

    def __init__(self, make: Callable[[], nn.Module], device: torch.device) -> None:
        self._device = device
        layout = torch.contiguous_format if device.type == "cpu" else torch.channels_last
        model: Any = make()
        self._model = model.to(device, memory_format=layout)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1, momentum=0.9)
        self._labels: dict[int, torch.Tensor] = {}

    def step(self, images: torch.Tensor) -> torch.Tensor:
        """Forward, backward, update; the loss, which is not waited for."""
        labels = self._labels.setdefault(len(images), torch.zeros(len(images), dtype=torch.int64, device=self._device))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type != "cpu"):  # emulated there
            loss: torch.Tensor = nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


class _Trained(Steps):
    """A contestant's steps with a training step behind each, whose loss is read, as a loop does that shows it."""

    def __init__(self, steps: Steps, trainer: Trainer, waits: list[float]) -> None:
        self.beside, self._steps, self._trainer, self._waits = steps.beside, steps, trainer, waits
        steps.keeps = True

    def begins(self) -> None:
        self._steps.begins()

    def __next__(self) -> int:
        before = self._steps.images  # a loop holds it until it has the next one: to free it is no waiting
        asked = time.perf_counter()
        count = next(self._steps)
        self._waits.append(time.perf_counter() - asked)
        del before
        self._trainer.step(self._steps.images).item()
        return count


class _Replayed(Steps):
    """Batches from memory, in turn."""

    def __init__(self, batches: Sequence[torch.Tensor]) -> None:
        self._batches, self._next = batches, 0

    def __next__(self) -> int:
        self._next += 1
        return self.kept(self._batches[self._next % len(self._batches)])


def _replay(whose: Make) -> Make:
    @contextmanager
    def make() -> Iterator[Steps]:
        with whose() as steps:
            steps.keeps = True
            batches = [steps.images.clone() for _ in zip(range(REPLAYED), steps, strict=False)]
        yield _Replayed(batches)

    return make


def trained(make: Make, trainer: Callable[[], Trainer], waits: list[float]) -> Make:
    """Somebody's batches as a training run has them; how long each step waited is added to `waits`.

    On the CPU the network has one thread of torch, whoever feeds it: with more, they wait for each other in busy loops
    on the cores that decode.
    """

    @contextmanager
    def turn() -> Iterator[Steps]:
        waits.clear()
        with make() as steps, one_torch_thread():
            fed = _Trained(steps, trainer(), waits)
            yield fed
        fed.told = steps.told  # which it has once it is closed

    return turn


class _Waits(Listener):
    """Keeps the waits of the steps that were counted, by contestant and way, and passes all on."""

    def __init__(self, waits: Sequence[float], listener: Listener | None) -> None:
        self._waits, self._listener = waits, listener or Listener()
        self.found: dict[tuple[str, str], list[list[float]]] = {}

    def begins(self, who: str, way: str, done: int, total: int) -> None:
        self._listener.begins(who, way, done, total)

    def took(self, who: str, way: str, turn: Turn) -> None:
        self.found.setdefault((who, way), []).append(list(self._waits[-len(turn.waits) :]))
        self._listener.took(who, way, turn)

    def failed(self, who: str, way: str, reason: str) -> None:
        self._listener.failed(who, way, reason)


def measure(
    contestants: Sequence[Contestant],
    job: Job,
    outcome: Outcome,
    *,
    make: Callable[[], nn.Module] = small_resnet,
    repeats: int,
    seconds: float,
    listener: Listener | None = None,
    until: float = math.inf,
) -> None:
    """Let them feed the same network in turns, the replay of the first one's batches among them.

    Args:
        contestants: in the order of their turns; the first is ours.
        job: what all do.
        outcome: gets rows, waits, who is missing and findings, also where it is interrupted.
        make: makes the network.
        repeats: turns of each.
        seconds: of a turn.
        listener: hears of each turn.
        until: as of `take_turns`.
    """
    waits: list[float] = []
    trainer = functools.partial(Trainer, make, torch.device(job.device))
    makers: dict[str, Mapping[str, Make]] = {}
    for each in contestants:
        if (reason := each.missing(job)) is not None:
            outcome.missing[each.name] = reason
            continue
        turns: dict[str, Callable[[], AbstractContextManager[Steps]]] = {
            way: functools.partial(each.turn, job, way) for way in each.ways(job)
        }
        makers[each.name] = {way: trained(turn, trainer, waits) for way, turn in turns.items()}
        if each is contestants[0]:
            makers[REPLAY] = {"": trained(_replay(next(iter(turns.values()))), trainer, waits)}
    found, heard = Measured(), _Waits(waits, listener)
    try:
        take_turns(makers, found, repeats=repeats, seconds=seconds, listener=heard, until=until)
    finally:
        outcome.missing |= found.missing
        for who, its in found.turns.items():
            told = heard.found[who, found.ways[who]]
            outcome.rows.append(_row(who, found.ways[who], its, told, found.turns.get(REPLAY)))
            outcome.waits[who] = told[-1]
            if its[-1].told:
                outcome.told[who] = its[-1].told
            waited = sum(told[-1])
            outcome.stages[who] = {"source": waited, "trainer": max(0.0, its[-1].seconds - waited)}
        outcome.findings += findings(outcome.rows, outcome.told)


def _row(
    who: str, way: str, turns: Sequence[Turn], waits: Sequence[Sequence[float]], replay: Sequence[Turn] | None
) -> dict[str, Any]:
    rate, least, most = spread(turn.rate for turn in turns)
    beside = ratios(turns, replay) if replay else (None,) * 3
    shares = spread(sum(its) / turn.seconds for its, turn in zip(waits, turns, strict=True))
    own = [share for turn in turns if turn.told and (share := own_share(turn.told)) is not None]
    p50, p99 = (1e3 * float(np.quantile(np.concatenate(waits), q)) for q in (0.5, 0.99))
    return {
        "who": who,
        "way": way,
        "img/s": round(rate),
        "least": round(least),
        "most": round(most),
        **{f"of replay{end}": r and round(r, 3) for end, r in zip(("", ", least", ", most"), beside, strict=True)},
        "waited": round(shares[0], 3),
        "waited, least": round(shares[1], 3),
        "waited, most": round(shares[2], 3),
        "own waited": round(spread(own)[0], 3) if own else None,
        "wait p50 ms": round(p50, 2),
        "wait p99 ms": round(p99, 2),
        "step ms": round(1e3 * spread(turn.seconds / len(turn.waits) for turn in turns)[0], 1),
        "cpu us": round(1e6 * spread(turn.cpu / turn.images for turn in turns)[0]),
        "peak MB": round(max(turn.peak for turn in turns) / 1e6),
    }


def own_share(told: Mapping[str, Any]) -> float | None:
    """The share of its time that the loop waits by our loader's own clock; None where it did not say."""
    stages = {stage["name"]: stage for stage in told["stages"]}
    if not {"train", "handover"} <= set(stages):
        return None
    waited = stages["train"]["waited"]
    whole = waited + stages["train"]["worked"] + stages["handover"]["worked"]
    return float(waited / whole) if whole > 0 else None


def findings(rows: Sequence[Mapping[str, Any]], told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sentences about what the loop waits for; `told` has what our loaders say of themselves."""
    found = []
    for row in (row for row in rows if row["who"] != REPLAY):
        said, ratio = f"{row['who']}: the loop waits for {row['waited']:.0%} of its time", row["of replay"]
        if ratio is not None:
            said += f" and gets {ratio:.2f} of what the network can take"
            if row["waited"] < HARDLY:
                taken = "the rest is CPU time that decoding takes from the network"
                said += f": {'the network is the limit' if ratio > 1 - HARDLY else taken}"
        found.append(f"{said}.")
        if (its := told.get(row["who"])) is not None:
            own = row["own waited"]
            if own is not None and row["waited"] - own > APART:
                found.append(
                    f"Of the {row['waited']:.0%} that the loop waits {row['who']}'s own clock saw {own:.0%}: in the"
                    " rest it had handed its batch over, and the loop's thread had no processor, or not Python's lock."
                )
            found.append(f"{row['who']}{OWN_VERDICT}, of the same steps: {its['sentence']}.")
    return found
