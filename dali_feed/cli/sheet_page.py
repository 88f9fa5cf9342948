"""A sheet as one HTML file: images inside it, no script, nothing from elsewhere, every text escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from dali_feed.cli.sheet import AMBER, Cell

__all__ = ["page"]

STYLE = f"""
body {{ font: 13px/1.35 system-ui, sans-serif; margin: 16px; color: #202020; background: #fff }}
main {{ display: flex; flex-wrap: wrap; gap: 16px }}
figure {{ margin: 0; width: 224px }}
img {{ max-width: 224px; image-rendering: auto }}
figcaption {{ overflow-wrap: anywhere }}
.dim {{ color: #707070 }}
.mark {{ color: {AMBER} }}
figure.marked img {{ outline: 3px solid {AMBER} }}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, cells: Sequence[Cell]) -> bytes:
    """The whole file, UTF-8."""
    figures = "\n".join(map(_figure, cells))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{escape(title)}</h1>
<main>
{figures}
</main></body></html>
""".encode(errors="replace")


def _figure(cell: Cell) -> str:
    if isinstance(cell.image, str):
        shown = f'<p class="mark">{escape(cell.image)}</p>'
    else:
        out = io.BytesIO()
        cell.image.save(out, "PNG")
        data = base64.b64encode(out.getvalue()).decode()
        shown = f'<img alt="{escape(cell.where)}" src="data:image/png;base64,{data}">'
    lines = [f"<b>{escape(cell.where)}</b>", f'<span class="dim">{escape(cell.label)}</span>' if cell.label else ""]
    lines += [f'<span class="mark">{escape(cell.mark)}</span>' if cell.mark else ""]
    lines += [f'<span class="dim">{escape(note)}</span>' for note in cell.notes]
    caption = "<br>".join(line for line in lines if line)
    return f'<figure class="{"marked" if cell.mark else "plain"}">{shown}<figcaption>{caption}</figcaption></figure>'
