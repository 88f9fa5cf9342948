"""Runs to be watched, and what an endpoint says of them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from kit.images import QUICK, labelled
from prometheus_client.parser import text_string_to_metric_families

from dali_feed.feed import Feed
from dali_feed.feed.stats import Stats
from dali_feed.testing import ScriptedSource


class Counting(Feed):
    """Counts how often it is looked at."""

    looks = 0

    def __init__(self, records: int = 16, **options: Any) -> None:
        super().__init__(ScriptedSource(labelled(records)), 4, tuning=QUICK, **options)

    def stats(self) -> Stats:
        """As a feed's."""
        self.looks += 1
        return super().stats()


def get(url: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  our own endpoint
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def series(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What `/metrics` says: (name, labels in order, those without a value left out) -> value."""
    status, text = get(f"{url}/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if v))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def look(url: str) -> list[dict[str, Any]]:
    """The loaders of `/stats.json`."""
    status, text = get(f"{url}/stats.json")
    assert status == 200
    found: list[dict[str, Any]] = json.loads(text)["loaders"]
    return found
