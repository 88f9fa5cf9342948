"""How running loaders are shown: a line per rank, one for all of them, and what is to be said below."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dali_feed.cli.text import size_text
from dali_feed.cli.watch_state import Loader, Seen, number, plain

__all__ = ["screen", "told"]

BAD = 5  # last bad records that are shown
Cell = Callable[[Loader], str]


def told(seen: Sequence[Seen]) -> dict[str, Any]:
    """A look as JSON has it."""
    loaders = [each for site in seen for each in site.loaders if not site.gone]
    rates = [each.rates.get("samples") for each in loaders]
    known = [rate for rate in rates if rate is not None]
    everything = {
        "loaders": len(loaders),
        "samples": int(sum(number(each.stats, "samples") for each in loaders)),
        "bad": int(sum(number(each.stats, "bad") for each in loaders)),
        "samples_per_second": sum(known) if known else None,
    }
    return {"time": time.time(), "endpoints": [each.told() for each in seen], "all": everything}


def screen(seen: Sequence[Seen]) -> Group:
    """A look as a terminal has it."""
    here = [each for site in seen if not site.gone for each in site.loaders]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    columns = [(name, cell) for name, cell in _COLUMNS if name in _ALWAYS or any(map(cell, here))]
    for name, _ in columns:
        table.add_column(name, justify="left" if name in ("rank", "loader") else "right", no_wrap=True)
    for each in here:
        table.add_row(*(Text(cell(each)) for _, cell in columns))
    if len(here) > 1:
        table.add_row(*(Text(_all(name, here)) for name, _ in columns), style="bold")
    jobs = sorted({each.job for each in here if each.job})
    title = Text(
        f"dali_feed{' ' if jobs else ''}{', '.join(jobs)}, {len(here)} of {_loaders(seen)} loaders", style="bold"
    )
    return Group(title, table, *_verdicts(here), *_errors(here), *_gone(seen), *_bad(here))


def _loaders(seen: Sequence[Seen]) -> int:
    return sum(max(1, len(each.loaders)) if each.gone else len(each.loaders) for each in seen)


def _rate(each: Loader) -> str:
    rate = each.rates.get("samples")
    return "" if rate is None else f"{rate:,.0f}"


def _read(each: Loader) -> str:
    rate = each.rates.get("bytes_read")
    return "" if not rate else f"{size_text(rate)}/s"


def _ms(name: str) -> Cell:
    return lambda each: f"{1e3 * number(each.stats, name):,.1f} ms" if each.stats else ""


def _wait(label: str) -> Cell:
    def cell(each: Loader) -> str:
        share = each.waits().get(label)
        return "" if share is None else f"{share:.0%}"

    return cell


def _lag(each: Loader) -> str:
    kafka = each.stats.get("kafka") or {}
    if kafka.get("lag") is None:
        return ""
    behind = "" if kafka.get("lag_seconds") is None else f", {number(kafka, 'lag_seconds'):,.0f} s"
    return f"{number(kafka, 'lag'):,.0f}{behind}"


def _storage(each: Loader) -> str:
    slow = [number(store, "p99") for store in each.stats.get("storage") or ()]
    return f"{1e3 * max(slow):,.1f} ms" if any(slow) else ""


def _cache(each: Loader) -> str:
    """Of records, and of images on the device."""
    cache, told = each.stats.get("cache"), []
    for of in ("", "device_"):
        hits, held = number(cache, f"{of}hits"), size_text(number(cache, f"{of}held"))
        if asked := hits + number(cache, f"{of}misses"):
            told.append(f"{hits / asked:.0%} of {held}")
    return ", ".join(told)


def _bad_count(each: Loader) -> str:
    return f"{number(each.stats, 'bad'):,.0f}" if each.stats else ""


def _gpu(each: Loader) -> str:
    return f"{number(each.gpu, 'busy'):.0%}" if each.gpu and each.gpu.get("busy") is not None else ""


def _memory(each: Loader) -> str:
    used, total = number(each.gpu, "used"), number(each.gpu, "total")
    return f"{used / 2**30:,.0f}/{total / 2**30:,.0f} GiB" if total else ""


_COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("rank", lambda each: str(each.rank)),
    ("loader", lambda each: each.loader),
    ("epoch", lambda each: str(each.epoch)),
    ("samples", lambda each: f"{number(each.stats, 'samples'):,.0f}"),
    ("samples/s", _rate),
    ("read", _read),
    ("wait p50", _ms("step_wait_p50")),
    ("p99", _ms("step_wait_p99")),
    ("source", _wait("source")),
    ("engine", _wait("engine")),
    ("loop", _wait("loop")),
    ("lag", _lag),
    ("read p99", _storage),
    ("cache", _cache),
    ("bad", _bad_count),
    ("GPU", _gpu),
    ("memory", _memory),
)
_ALWAYS = ("rank", "epoch", "samples", "samples/s", "wait p50", "p99", "bad")


def _all(name: str, here: Sequence[Loader]) -> str:
    """Of all loaders: sums of what can be summed, the worst of waits."""
    match name:
        case "rank":
            return "all"
        case "samples" | "bad":
            return f"{sum(number(each.stats, name) for each in here):,.0f}"
        case "samples/s":
            return f"{sum(each.rates.get('samples', 0.0) for each in here):,.0f}"
        case "read":
            return f"{size_text(sum(each.rates.get('bytes_read', 0.0) for each in here))}/s"
        case "wait p50" | "p99":
            field = "step_wait_p50" if name == "wait p50" else "step_wait_p99"
            return f"{1e3 * max(number(each.stats, field) for each in here):,.1f} ms"
        case "lag":
            return f"{sum(number(each.stats.get('kafka'), 'lag') for each in here):,.0f}"
    return ""


def _verdicts(here: Sequence[Loader]) -> list[Text]:
    """What each loader says of itself; where all say the same, once."""
    said: dict[str, list[str]] = {}
    for each in here:
        stage = each.stats.get("bottleneck")
        verdict = each.verdict or (f"the slow part is the {plain(stage)}" if stage else "")
        if verdict:
            said.setdefault(verdict, []).append(_named(each))
    return [
        Text(f"  {verdict}" if len(names) == len(here) else f"  {', '.join(names)}: {verdict}")
        for verdict, names in said.items()
    ]


def _named(each: Loader) -> str:
    return f"rank {each.rank}{' ' if each.loader else ''}{each.loader}"


def _errors(here: Sequence[Loader]) -> list[Text]:
    return [Text(f"  {_named(each)}: {each.error}", style="yellow") for each in here if each.error]


def _gone(seen: Sequence[Seen]) -> list[Text]:
    now = time.time()
    return [
        Text(
            f"  {each.url} has been gone since {time.strftime('%H:%M:%S', time.localtime(each.since))}"
            f" ({now - (each.since or now):,.0f} s): {each.gone}",
            style="red",
        )
        for each in seen
        if each.gone
    ]


def _bad(here: Sequence[Loader]) -> list[Text]:
    """The last bad records of all loaders, a line each."""
    found = [(each, *pair) for each in here for pair in (each.stats.get("recent_bad") or ())[-BAD:]]
    return [
        Text(f"  bad  {_named(each)}  {plain(where)}: {plain(why)}", style="dim") for each, where, why in found[-BAD:]
    ]
