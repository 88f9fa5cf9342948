"""The page: the answer first and who was how fast, then what to do, then how it is known.

The law: who has a minute has it from the first screen, without a table.

One file that asks for nothing: no script, no font, no address. Every chart has its figures as text beside it or in the
table below. What an outcome does not hold has no section.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dali_feed.bench.contract import Outcome
from dali_feed.bench.findings import OURS, OWN_VERDICT
from dali_feed.bench.measures import Figure, Measure, figures, measure_of
from dali_feed.bench.report.bars import bars, number, parts
from dali_feed.bench.report.markup import Markup, join, tag, text
from dali_feed.bench.report.style import STYLE
from dali_feed.bench.report.table import table
from dali_feed.bench.report.timeline import timelines
from dali_feed.bench.report.verdicts import verdicts

__all__ = ["compared", "page", "write"]

KINDS = {
    "loader": "From encoded images to a normalized float batch on the device",
    "kafka": "From a topic's records to tensors",
    "decode": "Decoding alone",
    "kernels": "Kernels beside a copy of the same bytes",
    "io": "What the storage gives",
    "train": "A model trained on the loader's batches",
    "resume": "From a saved state to the first batch",
}
# A text of data is escaped; should one get through, the browser neither runs it nor asks anybody for anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MINE = {"kafka": ("tensors", "in order", "at random")}  # ours, where they are not called as elsewhere
SAME_WORK = "All did the same work"
SAME = {
    "kafka": "Who is called plain, in order or at random reads alone, the others make tensors of what they read",
    "train": "All fed the same network; replay has its batches in memory",
}
PARTS = {
    "loader": "What the thread that makes batches waited for",
    "train": "What the training loop did",
}
STAGES = {  # what a part is called where people read it
    "loader": {"source": "the source", "decode": "the decoder", "trainer": "the loop"},
    "train": {"source": "waiting for a batch", "trainer": "training"},
}
MACHINE = ("machine", "cpus", "device", "driver", "load", "date", "commit", "version")


def write(outcome: Outcome, path: Path) -> None:
    """Write the page to `path`. Raises OSError."""
    path.write_text(page(outcome), encoding="utf-8")


def page(outcome: Outcome) -> str:
    """The page as text."""
    measure = measure_of(outcome.rows)
    found = figures(outcome.rows, measure) if measure is not None else []
    sections = [
        _figures(outcome.kind, found, measure),
        verdicts(outcome),
        _advice([said for said in outcome.findings[1:] if OWN_VERDICT not in said]),
        _stages(outcome),
        _timelines(outcome),
        _missing(outcome),
        _about(outcome),
        table(outcome),
    ]
    return _document(
        f"dali-feed bench {outcome.kind}",
        KINDS.get(outcome.kind, "What was measured"),
        _answer(outcome, found, measure),
        _under(outcome),
        sections,
    )


def compared(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """Several of one kind side by side, each under its name, the first as what the others are compared with."""
    named = [(name, figures(each.rows, measure)) for name, each in outcomes if (measure := measure_of(each.rows))]
    unit = next((m for _, each in outcomes if (m := measure_of(each.rows)) is not None), None)
    if unit is None or len(named) < len(outcomes):
        return page(outcomes[0][1])
    sections, gains = [], list[tuple[float, str]]()
    for who in dict.fromkeys((figure.name, figure.detail) for _, its in named for figure in its):
        its = [(name, next((f for f in its if (f.name, f.detail) == who), None)) for name, its in named]
        shown = [Figure(name, "", f.value, f.least, f.most, f.row) for name, f in its if f is not None]
        first = its[0][1]
        told = []
        if first is not None and first.value:
            for name, figure in its[1:]:
                if figure is not None:
                    ratio = figure.value / first.value
                    told.append(f"{name} is {ratio:.2f} of {its[0][0]}")
                    gains.append((ratio, f"{who[0]}{' ' + who[1] if who[1] else ''} in {name}"))
        body = [tag("h2", text(", ".join(filter(None, who))))]
        body += [tag("p", text("; ".join(told) + "."))] if told else []
        sections.append(tag("section", *body, bars(shown, [named[-1][0]], unit.counts)))
    sections += [tag("section", tag("h2", text(name)), _facts(each)) for name, each in outcomes]
    gains.sort()
    answer = (
        f"{unit.counts}: from {gains[0][0]:.2f} ({gains[0][1]}) to {gains[-1][0]:.2f} ({gains[-1][1]})" if gains else ""
    )
    kind = outcomes[0][1].kind
    return _document(
        f"dali-feed bench {kind}", "Beside each other", answer or "Nothing in common", Markup(""), sections
    )


def _document(title: str, over: str, answer: str, under: Markup, sections: Sequence[Markup | None]) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", text(title)),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "main",
        tag("h1", text(over)),
        tag("p", text(answer), class_="answer"),
        under,
        *(section for section in sections if section is not None),
        tag(
            "footer",
            text(f"Written by {title}. Figures are medians of turns; a whisker goes from the least to the most."),
        ),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def _answer(outcome: Outcome, found: Sequence[Figure], measure: Measure | None) -> str:
    if outcome.findings:
        return outcome.findings[0]
    if measure is None or not found:
        return "Nothing was measured"
    best = (max if measure.more_is_better else min)(found, key=lambda figure: figure.value)
    return f"{', '.join(filter(None, (best.name, best.detail)))}: {number(best.value)} {measure.counts}"


def _under(outcome: Outcome) -> Markup:
    about = outcome.about
    told = [str(about[key]) for key in ("data", "machine", "device") if about.get(key)]
    if "batch" in about:
        told.insert(1, f"batch {about['batch']}")
    return tag("p", text(" · ".join(told)), class_="under")


def _advice(sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    told = [tag("li", text(sentence)) for sentence in sentences]
    return tag("section", tag("h2", text("What the figures say")), tag("ol", *told, class_="advice"))


def _figures(kind: str, found: Sequence[Figure], measure: Measure | None) -> Markup | None:
    if measure is None or not found:
        return None
    ordered = sorted(found, key=lambda figure: figure.value, reverse=measure.more_is_better)
    better = "longer is better" if measure.more_is_better else "shorter is better"
    return tag(
        "section",
        tag("h2", text(measure.counts[0].upper() + measure.counts[1:])),
        tag("p", text(f"{SAME.get(kind, SAME_WORK)}, in turns, on this machine; {better}. Green is dali_feed.")),
        bars(ordered, MINE.get(kind, OURS), measure.counts),
    )


def _stages(outcome: Outcome) -> Markup | None:
    if not outcome.stages:
        return None
    names = STAGES.get(outcome.kind, {})
    return tag(
        "section",
        tag("h2", text("Parts of the time")),
        tag("p", text(f"{PARTS.get(outcome.kind, PARTS['loader'])}, in each one's last turn.")),
        parts({who: {names.get(part, part): s for part, s in its.items()} for who, its in outcome.stages.items()}),
    )


def _timelines(outcome: Outcome) -> Markup | None:
    if not any(outcome.waits.values()):
        return None
    told = (
        "How long the training loop waited for each batch, one after the other, in each one's last turn. The scale is "
        "logarithmic and the same for all. Dashes: half of the steps waited less; dots: 99 of 100 did."
    )
    body = (tag("h2", text("The wait of each step")), tag("p", text(told)))
    return tag("section", *body, timelines(outcome.waits, OURS))


def _missing(outcome: Outcome) -> Markup | None:
    if not outcome.missing:
        return None
    told = [join(tag("dt", text(who)), tag("dd", text(reason))) for who, reason in outcome.missing.items()]
    return tag("section", tag("h2", text("Not measured")), tag("dl", *told))


def _about(outcome: Outcome) -> Markup:
    return tag("section", tag("h2", text("Where and with what")), _facts(outcome))


def _facts(outcome: Outcome) -> Markup:
    about = {key: value for key, value in outcome.about.items() if value not in {None, ""}}
    first = {key: about[key] for key in MACHINE if key in about}
    told = [join(tag("dt", text(key)), tag("dd", text(value))) for key, value in (first | about).items()]
    return tag("dl", *told)
