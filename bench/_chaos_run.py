"""The training process that chaos.py kills: it logs each batch, saves its state after it, and goes on from the last.

    python bench/_chaos_run.py SERVERS TOPIC FOLDER ENGINE

FOLDER/log has a line per batch: epoch, ids, ok, labels and a digest of the pixels. FOLDER/state names how many lines
it stands behind: lines after those were written by a process that died before it saved, and are cut off.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.external_sources import KafkaTopic

BATCH = 16
EPOCHS = 2
MEMORY = 4 << 20  # far less than the topic holds, so that the broker is asked all along

AUGMENT = v2.Compose([v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4)])


def main(servers: str, topic: str, folder: Path, engine: str) -> None:
    """Train on: a line per batch on the log, then on the state, then its number on standard output."""
    loader = DataLoader(
        KafkaTopic(topic, servers),
        BATCH,
        shuffle=Shuffle(extent=16, window=4),
        transform=v2.Compose([AUGMENT, v2.ToDtype(torch.float32, scale=True)]),
        device="cpu",
        engine=engine,
        seed=11,
        lanes=2,
        info=True,
        bad=BadRecords(limit=None),
        tuning=Tuning(threads=2, memory=MEMORY),
    )
    done, saved = 0, folder / "state"
    if saved.exists():
        state = json.loads(saved.read_text())
        done = state["lines"]
        loader.load_state_dict(state["loader"])
    lines = (folder / "log").read_text().splitlines(keepends=True)[:done] if done else []
    with (folder / "log").open("w") as log, loader:
        log.writelines(lines)
        while (epoch := loader.epoch) < EPOCHS:
            for images, labels, info in loader:
                digest = hashlib.sha256(images.contiguous().numpy()).hexdigest()
                line = [epoch, info.ids.tolist(), info.ok.tolist(), labels.tolist(), digest]
                log.write(json.dumps(line) + "\n")
                log.flush()
                done += 1
                new = saved.with_suffix(".new")
                new.write_text(json.dumps({"lines": done, "loader": loader.state_dict()}))
                new.replace(saved)
                print(done, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
