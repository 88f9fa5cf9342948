"""What the tables of docs/benchmarks.md on scaling are made of; docs/_figures.py says how. No figure stands here."""

from __future__ import annotations

from _figures import Results, Row, number, table

__all__ = ["scaling"]

THREADS, RANKS = (1, 2), (1, 2, 3, 4)
RECORDS = tuple(10**k for k in range(3, 8))
ORDERS = {"single": "every record by itself", "runs": "runs of 320"}


def scaling(results: Results) -> list[str]:
    """docs/benchmarks.md: threads, ranks and records of a plan, of one run."""
    counted = [("threads", n) for n in THREADS] + [("ranks", n) for n in RANKS]
    planned = [(records, order) for records in RECORDS for order in ORDERS]
    wanted = [{"what": what, "n": n} for what, n in counted]
    wanted += [{"what": "plan", "n": records, "order": order} for records, order in planned]
    rows = results.newest("scaling", *wanted)
    rates, plans = rows[: len(counted)], dict(zip(planned, rows[len(counted) :], strict=True))
    head = ["", "images per second", "of one, in the same round", "CPU us an image"]
    says = [f"{n} decoder thread{'s' if n > 1 else ''}" for n in THREADS]
    says += [f"{n} rank{'s' if n > 1 else ''}" for n in RANKS]
    lines = [
        [text, number(row, "img/s"), _ratio(row), number(row, "cpu us")] for text, row in zip(says, rates, strict=True)
    ]
    orders = ["records of an epoch", *(f"{says}: order, first window, memory" for says in ORDERS.values())]
    ends = [[f"{records:,}", *(_plan(plans[records, order]) for order in ORDERS)] for records in RECORDS]
    return [*table(head, *lines), "", *table(orders, *ends)]


def _ratio(row: Row) -> str:
    return f"{row['of 1']} ({row['of 1, least']} to {row['of 1, most']})"


def _plan(row: Row) -> str:
    seconds = float(row["order s"])
    order = f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
    return f"{order}, {number(row, 'window ms', 1)} ms, {number(row, 'MB')} MB"
