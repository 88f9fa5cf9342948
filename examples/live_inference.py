"""Online inference: each picture of a Kafka topic is classified as it comes, and the class is written to another topic.

    python examples/live_inference.py --records 200
    python examples/live_inference.py --servers broker:9092 --topic pictures --results classes --group classifiers
    python examples/live_inference.py --servers broker:9092 --topic pictures --batch-size 32 --batch-timeout 0.01

Without --servers a broker inside this process is fed with made pictures, one every --every seconds. A batch is handed
over when it is full, or --batch-timeout seconds after its first record came, so that is the most that batching costs.
With --group several of these processes share the topic: each record is worked on at least once, and again by another
worker where one dies before it has committed. The network here is not trained: yours goes in its place.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from confluent_kafka import Producer
from pictures import COLOURS, SIDE, network
from PIL.Image import fromarray
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Image, Number
from dali_feed.external_sources import ConsumerGroup, KafkaStream
from dali_feed.testing import broker, publish


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", help="of Kafka; without it a broker in this process gets made pictures")
    parser.add_argument("--topic", default="pictures", help="whose values are images")
    parser.add_argument("--results", help="a topic for the classes; without it they are counted alone")
    parser.add_argument("--group", help="the consumer group whose workers share the topic")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--batch-timeout", type=float, help="seconds; needed where a batch is of several")
    parser.add_argument("--records", type=int, help="stop after so many; without it go on for ever")
    parser.add_argument("--every", type=float, default=0.01, help="seconds between made pictures")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> list[float]:
    """Classify until --records; gives each record's seconds from produced to classified."""
    args = arguments(given)
    taken = list[float]()
    ready = v2.Compose([v2.Resize((SIDE, SIDE)), v2.ToDtype(torch.float32, scale=True)])
    columns = {"image": Image("value", ready), "sent": Number("timestamp")}  # Kafka's, in milliseconds
    with servers(args) as at:
        stream = KafkaStream(
            args.topic,
            at,
            start="latest" if args.servers else "earliest",  # of a worker: where its group has no offset yet
            batch_timeout=args.batch_timeout,
            group=None if args.group is None else ConsumerGroup(args.group),
        )
        results = Producer({"bootstrap.servers": at})
        with DataLoader(stream, args.batch_size, columns=columns, info=True) as loader, torch.inference_mode():
            model = network(len(COLOURS)).eval().to(loader.device)
            for batch, info in loader:
                classes = model(batch["image"]).argmax(1).tolist()
                taken += (time.time() - batch["sent"].cpu().numpy() / 1000).tolist()
                for where, ok, found in zip(info.where, info.ok.tolist(), classes, strict=True):
                    if ok and args.results:  # a slot that is not ok has another record, for a bad one
                        results.produce(args.results, json.dumps({"record": where, "class": found}).encode())
                results.flush()
                loader.commit()  # the results are there: a restart need not make them again
                if args.records and len(taken) >= args.records:
                    break
            half, most = np.quantile(taken, (0.5, 0.99))
            print(f"{len(taken)} records; produced to classified: half in {half:.4f} s, 99 of 100 in {most:.4f} s")
            print(loader.stats())
    return taken


@contextmanager
def servers(args: argparse.Namespace) -> Iterator[str]:
    """The address of --servers, or of a broker that is fed with pictures while this is open."""
    if args.servers is not None:
        yield args.servers
        return
    draws, pictures = np.random.default_rng(0), list[bytes]()
    for _ in range(16):
        file = io.BytesIO()
        fromarray(draws.integers(256, size=(48, 64, 3), dtype=np.uint8)).save(file, "JPEG")
        pictures.append(file.getvalue())
    over = threading.Event()
    with broker() as embedded:
        publish(embedded.servers, args.topic, [(pictures[0], None)], partitions=2)
        if args.results:
            publish(embedded.servers, args.results, [], partitions=2)

        def feed() -> None:
            producer = Producer({"bootstrap.servers": embedded.servers, "linger.ms": 0})
            for picture in itertools.cycle(pictures):
                if over.wait(args.every):
                    break
                producer.produce(args.topic, picture)
                producer.poll(0)
            producer.flush()

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield embedded.servers
        finally:
            over.set()
            thread.join()


if __name__ == "__main__":
    main()
