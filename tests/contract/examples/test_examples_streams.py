"""The examples of streams, on the broker inside the process."""

from __future__ import annotations

from pathlib import Path

import continual_training
import live_inference
import pytest
from kit.images import jpeg

from dali_feed.testing import broker, publish


def test_live_inference_classifies_what_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """Each record as it comes, its class in another topic, and percentiles at the end."""
    taken = live_inference.main(["--records", "20", "--results", "classes", "--every", "0.001"])
    assert len(taken) == 20
    assert "20 records; produced to classified: half in" in capsys.readouterr().out


def test_continual_training_goes_on_and_replays(tmp_path: Path) -> None:
    """Stopped behind a checkpoint it goes on at that; all records come once, and again in the replay."""
    with broker() as embedded:
        placed = publish(embedded.servers, "clicks", [(jpeg(n), n % 3) for n in range(32)], partitions=2)
        run = ["--out", str(tmp_path), "--servers", embedded.servers, "--topic", "clicks", "--batch-size", "4"]
        stopped = continual_training.main([*run, "--steps", "4", "--every", "3"])
        went_on = continual_training.main([*run, "--steps", "8", "--every", "1"])
        seen = [where for step in stopped[:3] + went_on for where in step]
        assert sorted(seen) == sorted(f"clicks[{partition}]@{offset}" for partition, offset in placed)
        again = continual_training.main([*run, "--replay"])
        assert sorted(where for step in again for where in step) == sorted(seen)
