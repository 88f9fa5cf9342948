"""The training process that chaos.py kills: it logs each batch, saves its state after it, and goes on from the last.

    python bench/_chaos_run.py SERVERS TOPIC FOLDER ENGINE

FOLDER/log has a line per batch: epoch, ids, ok, labels and a digest of the pixels. FOLDER/state says how many bytes of
it it stands behind: what follows was written by a process that died before it saved, and is cut off. Nothing else is
ever rewritten, or a process killed at its start would take the log of those before it along.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Shuffle, Tuning
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
        decode=Decode(engine=engine),
        seed=11,
        lanes=2,
        info=True,
        bad=BadRecords(limit=None),
        tuning=Tuning(threads=2, memory=MEMORY),
    )
    kept, saved = 0, folder / "state"
    if saved.exists():
        state = json.loads(saved.read_text())
        kept = state["bytes"]
        loader.load_state_dict(state["loader"])
    with (folder / "log").open("ab") as log, loader:
        log.truncate(kept)
        while (epoch := loader.epoch) < EPOCHS:
            for images, labels, info in loader:
                digest = hashlib.sha256(images.contiguous().numpy()).hexdigest()
                line = [epoch, info.ids.tolist(), info.ok.tolist(), labels.tolist(), digest]
                kept += log.write((json.dumps(line) + "\n").encode())
                log.flush()
                new = saved.with_suffix(".new")
                new.write_text(json.dumps({"bytes": kept, "loader": loader.state_dict()}))
                new.replace(saved)
                print(kept, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
