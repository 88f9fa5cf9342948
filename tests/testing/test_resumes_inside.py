"""Insides that contract/resume/test_resumes.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest
from kit.images import labelled

from dali_feed.feed import Feed
from dali_feed.plan.order import Shuffle
from dali_feed.testing import ScriptedSource, assert_resumes_anywhere, resumes


class Skips(Feed):
    """A feed that restores as most loaders do: it reads what came before, and throws it away."""

    def load_state_dict(self, state: Any) -> None:
        """Skip over the past, then stand where `state` says."""
        for _ in self:
            if self.state_dict()["consumed"] >= state["consumed"]:
                break
        super().load_state_dict(state)


def test_reading_the_past_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches are equal and yet the law is broken: restoring may not read what came before."""
    monkeypatch.setattr(resumes, "Feed", Skips)
    with pytest.raises(
        AssertionError, match=r"after 0 batches at world size 2.*load_state_dict\(\) must read no records"
    ):
        assert_resumes_anywhere(ScriptedSource(labelled(24), extent=2), shuffle=Shuffle(2, 2))
