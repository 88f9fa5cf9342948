"""A window without one good record: either the arguments are wrong or the data is; this file decides which.

The law: where no record has been good so far and all of the first window are bad for one reason, nobody can train with
this configuration: a ConfigError with the reason and its cure. Anything else is bad data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dali_feed.errors import BadRecordLimitError, ConfigError
from dali_feed.quarantine.letters import Stage
from dali_feed.records.tally import kind_of

__all__ = ["Proof", "hopeless"]

SHOWN = 5
_CURES = (  # words in a reason, and the cure for it; the first that fits
    (("codec: ",), "Correct the codec, or what it is given; BadRecords is for single records"),
    (
        ("label", "decimal number"),
        "Labels must be whole numbers: write such, or read only images, label=None; of a topic, codec= may make them",
    ),
    (("no such member",), "Name members that the records have: source.members() lists them, as dali-feed inspect does"),
    (("must fit into the image",), "Put a Resize before it, or set pad_if_needed=True"),
    (("image", "unknown format"), "Set image= of the source (codec= of a topic) to what holds the image"),
)
_CURE = {
    "source": "Check the program that wrote the records, and the arguments of the source",
    "screen": "Look at one of them (dali-feed inspect), and check the program that wrote it",
    "decode": "Look at one of them (dali-feed verify --decode)",
}


@dataclass(slots=True)
class Proof:
    """Whether any record has been `good` since the feed was made: then the configuration is right."""

    good: bool = False


def hopeless(
    rows: int, bad: Sequence[tuple[str, str, Stage]], proof: Proof, more: str = ""
) -> ConfigError | BadRecordLimitError:
    """The error for a window of `rows` positions whose records, (where, reason, stage) each, are all bad or absent.

    `more`: the other windows that are the same.
    """
    told = "; ".join(f"{where}: {reason}" for where, reason, _ in bad[:SHOWN])
    if not proof.good and len(bad) > 1 and len({(kind_of(reason), stage) for _, reason, stage in bad}) == 1:
        where, reason, stage = bad[0]
        cure = next((cure for words, cure in _CURES if any(w in reason for w in words)), _CURE[stage])
        absent = f", {rows - len(bad)} positions absent" if rows > len(bad) else ""
        return ConfigError(
            f"all {len(bad)} records of the first window are bad for one reason{absent}: {reason} (such as {where})."
            f" {cure}"
        )
    msg = (
        f"window of {rows} records{more}: the next good record of a window replaces a bad one; found no good "
        f"record at all ({told or 'all positions are absent'}). Check the source, or make Shuffle(window=...) "
        "wider"
    )
    return BadRecordLimitError(msg, tuple((where, reason) for where, reason, _ in bad))
