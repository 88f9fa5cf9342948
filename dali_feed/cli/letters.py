"""Lists dead letters, and says which of them would be good today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dali_feed.cli.targets import letters_at
from dali_feed.cli.text import plural, size_text
from dali_feed.quarantine.letters import Letter
from dali_feed.screen.screen import MAX_PIXELS, screen

__all__ = ["list_letters"]


def list_letters(target: str, *, check: bool, config: Sequence[str], timeout: float) -> int:
    """Print each dead letter of a folder or a topic; with `check`, return how many are still bad."""
    letters = letters_at(target, config=config, timeout=timeout)
    console = Console(highlight=False)
    console.print(Text(str(letters), style="bold"), soft_wrap=True)
    stages: Counter[str] = Counter()
    bad = 0
    for letter in letters.read():
        stages[letter.stage] += 1
        reason = _still_bad(letter) if check else letter.reason
        bad += reason is not None
        word, style = ("good", "green") if reason is None else ("bad ", "yellow")
        size = size_text(len(letter.payload))
        gone = "; the record itself was gone" if letter.gone else ""
        line = f"  {word}  {letter.where}: {reason or letter.reason}  ({letter.stage}, {size}{gone})"
        console.print(Text(line, style=style), soft_wrap=True)
    total = sum(stages.values())
    by_stage = ", ".join(f"{count:,} by the {_WHO[stage]}" for stage, count in sorted(stages.items()))
    summary = f"{total:,} dead letter{plural(total)}{': refused ' + by_stage if total else ''}"
    console.print(f"  {summary}{f'; {total - bad:,} good now, {bad:,} still bad' if check else ''}", soft_wrap=True)
    return bad if check else 0


_WHO = {"source": "source", "screen": "screen", "decode": "decoder"}


def _still_bad(letter: Letter) -> str | None:
    """Check it again; decode it too, where the decoder had refused it. A reason of the source stays."""
    payload = memoryview(letter.payload)
    reason = screen([payload], MAX_PIXELS).reasons.get(0)
    if reason is None and letter.stage == "decode":
        from dali_feed.engines.host.decode import Trial

        reason = Trial().refusal(payload)
    if reason is None and letter.stage == "source":
        reason = f"{letter.reason}; the image itself is good"
    return reason
