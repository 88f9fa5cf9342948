"""How a report looks: light and dark, on a screen of any width and on paper."""

from __future__ import annotations

__all__ = ["COLOURS", "STYLE"]

# Of charts, in the order of use: told apart by people who see few colours, and on paper by lightness.
COLOURS = ("#0b6e4f", "#d1662c", "#3b6fb6", "#8a5a9e", "#b8962e", "#5f6b73", "#b03a48", "#2a8c8c")

STYLE = """
:root { color-scheme: light dark; --ink: #14201b; --soft: #55625c; --line: #d9dfdb; --back: #fbfcfb; --panel: #ffffff;
  --ours: #0b6e4f; --other: #8fa39a; --top: #c9d2cd; --mark: #b03a48; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eeea; --soft: #a3b1aa; --line: #33403a; --back: #101613;
  --panel: #171f1b; --ours: #4cc38a; --other: #6f8279; --top: #3d4a44; --mark: #f0808c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.1rem; font-weight: 600; color: var(--soft); margin: 0 0 .75rem; letter-spacing: .01em; }
.answer { font-size: 1.7rem; line-height: 1.25; font-weight: 650; margin: 0 0 .75rem; text-wrap: balance; }
.under { color: var(--soft); margin: 0 0 2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .25rem; }
h3 { font-size: 1rem; margin: 1.1rem 0 .2rem; overflow-wrap: anywhere; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: .6rem; padding: 1.25rem 1.4rem;
  margin: 0 0 1.25rem; break-inside: avoid; }
section > p { margin: 0 0 1rem; color: var(--soft); max-width: 46rem; }
section > p.verdict { color: var(--ink); font-weight: 600; } section > .scroll { margin: 0 0 1rem; }
ul.advice { padding-left: 1.3rem; }
ol.advice { margin: .5rem 0 0; padding-left: 1.3rem; } ol.advice li { margin: .35rem 0; }
.bars { display: grid; grid-template-columns: fit-content(14rem) 1fr max-content; gap: .55rem .9rem;
  align-items: center; }
.row { display: contents; }
.bars .who { overflow-wrap: anywhere; } .bars small, .under small { color: var(--soft); }
.bars .value { text-align: right; font-variant-numeric: tabular-nums; }
.track { position: relative; height: 1.35rem; background: color-mix(in srgb, var(--line) 45%, transparent);
  border-radius: .25rem; }
.bar { position: absolute; inset: 0 auto 0 0; background: var(--other); border-radius: .25rem; }
.bar.ours { background: var(--ours); } .bar.top { background: var(--top); }
.bar.part { border-radius: 0; }
.whisker { position: absolute; top: 50%; height: 2px; background: var(--ink); transform: translateY(-50%); }
.whisker::before, .whisker::after { content: ""; position: absolute; top: -4px; width: 2px; height: 10px;
  background: var(--ink); } .whisker::before { left: 0; } .whisker::after { right: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .9rem 0 0; padding: 0; list-style: none;
  color: var(--soft); font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .4rem;
  vertical-align: -.05rem; }
figure { margin: 1rem 0 0; } figcaption { font-size: .95rem; margin-bottom: .25rem; overflow-wrap: anywhere; }
.chart { display: grid; grid-template-columns: max-content 1fr; gap: 0 .5rem; }
.axis { display: flex; flex-direction: column; justify-content: space-between; text-align: right; color: var(--soft);
  font-size: .75rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: 7rem; background: color-mix(in srgb, var(--line) 30%, transparent);
  border-radius: .25rem; }
.wait { fill: none; stroke: var(--other); stroke-width: 1.5; } .ours .wait { stroke: var(--ours); }
.median { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 5 4; }
.tail { stroke: var(--mark); stroke-width: 1; stroke-dasharray: 2 3; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; } th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, td.text { text-align: left; }
details { margin-top: .9rem; } details > p { margin: .8rem 0 0; color: var(--soft); }
details > .scroll { margin: .6rem 0 0; } summary { cursor: pointer; color: var(--soft); }
pre { overflow-x: auto; font-size: .8rem; background: var(--back); padding: .75rem; border-radius: .4rem;
  border: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr max-content 1fr; gap: .2rem 1rem; margin: .5rem 0 0;
  font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .85rem; }
@media (max-width: 36rem) { .bars { display: block; }
  .row { display: grid; grid-template-columns: 1fr max-content; gap: .1rem .9rem; margin-bottom: .6rem; }
  .row .track { order: 3; grid-column: 1 / -1; } .answer { font-size: 1.3rem; } main { padding-top: 1.25rem; }
  dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; } }
@media print { body { background: white; } section { border-color: #bbb; }
  .bar, .track, svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; } details { display: none; } }
"""
