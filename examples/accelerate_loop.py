"""Accelerate: `prepare` returns the loader as it is; once registered, `save_state` saves its state.

    python examples/accelerate_loop.py --out run --steps 10
    python examples/accelerate_loop.py --out run --steps 30      # goes on at step 11
    accelerate launch --num_processes 2 examples/accelerate_loop.py --out run

The loader is made after the Accelerator, which knows the ranks. It gives each rank its part by itself: --batch-size is
per rank, as everywhere in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pictures import arguments, network, pictures, transforms
from torch import nn
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader


class Progress:
    """How many steps have been made."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        """What `save_state` keeps of it."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back to it."""
        self.step = state["step"]


def main() -> None:
    """Train up to --steps, from the checkpoint where there is one."""
    args = arguments(__doc__)
    accelerator = Accelerator()
    set_seed(0)
    images = ImageFolder(str(pictures(args)), transforms())
    loader = DataLoader(images, args.batch_size, shuffle=True, seed=0, device=accelerator.device)
    model = network(len(images.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress, checkpoint = Progress(), str(args.out / "checkpoint")
    accelerator.register_for_checkpointing(loader, progress)
    if (args.out / "checkpoint").exists():
        accelerator.load_state(checkpoint)

    while progress.step < args.steps:
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            accelerator.print(f"step {progress.step}: loss {loss.item():.4f}", flush=True)
            if progress.step % 5 == 0 or progress.step == args.steps:
                accelerator.save_state(checkpoint)
            if progress.step == args.steps:
                break
    loader.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
