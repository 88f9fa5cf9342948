"""A tiny language model, trained on documents of JSON in a Kafka topic, packed several to a row.

    python examples/train_text.py --out run --steps 50
    python examples/train_text.py --out run --steps 100       # goes on at step 51
    python examples/train_text.py --out run --servers broker:9092 --topic documents --member body.text

Without --servers it reads Python's own reference, paragraph by paragraph, from a broker inside this process. Tokens are
bytes, or those of a file that the `tokenizers` library wrote. A document sees nothing of its neighbours in a row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn

from dali_feed import DataLoader
from dali_feed.columns import Packed, PackedBatch
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, broker, publish

BYTES, END = 256, 256  # ids of bytes, and the one behind each document


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--servers", help="of Kafka; without it a broker in this process has Python's reference")
    parser.add_argument("--topic", default="reference", help="whose values are JSON")
    parser.add_argument("--member", default="text", help="path of the text in a value")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it tokens are bytes")
    parser.add_argument("--end", default="<|endoftext|>", help="the tokenizer's token behind each document")
    parser.add_argument("--length", type=int, default=64, help="tokens in a row")
    parser.add_argument("--batch-size", type=int, default=16, help="documents in a batch")
    parser.add_argument("--steps", type=int, default=100, help="in all; a run that was stopped before goes on to it")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Train up to --steps, from the checkpoint where there is one."""
    args = arguments(given)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer, end, ids = vocabulary(args)
    columns = {"tokens": Packed(args.member, tokenizer, args.length, end=end)}
    with servers(args) as at:
        source = KafkaTopic(args.topic, at, label=None, format="json")
        with DataLoader(source, args.batch_size, shuffle=True, seed=0, columns=columns) as loader:
            torch.manual_seed(0)
            losses = train(Causal(ids, args.length).to(loader.device), loader, args.out / "checkpoint.pt", args.steps)
    if losses:
        print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} at last")


def train(model: Causal, loader: DataLoader, checkpoint: Path, steps: int) -> list[float]:
    """The losses of the steps that are left; the checkpoint is written behind the last one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, losses = 0, list[float]()
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]))
        step = saved["step"]
    while step < steps:
        for batch in loader:
            loss = model.loss(batch["tokens"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if step % 10 == 0:
                print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
            if step == steps:
                break
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(held | {"loader": json.dumps(loader.state_dict())}, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)  # whole or not at all
    return losses


class Causal(nn.Module):
    """Two layers of attention in which a token sees those before it in its own document."""

    def __init__(self, ids: int, length: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(ids, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, ids)

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """What follows each token: float32 (rows, length, ids)."""
        sees = (batch.document[:, :, None] == batch.document[:, None, :]).tril()
        hidden = self.tokens(batch.ids) + self.places(batch.position)
        found: torch.Tensor = self.out(self.layers(hidden, mask=~sees.repeat_interleave(self.heads, 0)))
        return found

    def loss(self, batch: PackedBatch) -> torch.Tensor:
        """Of each token but those that begin a document, and what is filled: position is 0 there."""
        targets = batch.ids.masked_fill(batch.position == 0, -100)[:, 1:]
        return nn.functional.cross_entropy(self(batch)[:, :-1].flatten(0, 1), targets.flatten())


def vocabulary(args: argparse.Namespace) -> tuple[Any, int, int]:
    """What makes ids of a text, the id behind each document, and how many ids there are."""
    if args.tokenizer is None:
        return lambda text: list(text.encode()), END, BYTES + 1
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    end = tokenizer.token_to_id(args.end)
    if end is None:
        msg = f"--end: {args.tokenizer} must have the token; found none that is {args.end}"
        raise SystemExit(msg)
    return tokenizer, end, tokenizer.get_vocab_size()


@contextmanager
def servers(args: argparse.Namespace) -> Iterator[str]:
    """The address of --servers, or of a broker that has Python's reference, the same at each run."""
    if args.servers is not None:
        yield args.servers
        return
    paragraphs = [text for name in sorted(topics) for text in topics[name].split("\n\n") if text.strip()]
    with broker() as embedded:
        values = [Message(json.dumps({args.member: text.strip()}).encode()) for text in paragraphs[:1000]]
        publish(embedded.servers, args.topic, values, partitions=2)
        yield embedded.servers


if __name__ == "__main__":
    main()
