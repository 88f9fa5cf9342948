"""Each argument of the loader, and each field of its groups: honoured, warned of once, or refused.

The law: an argument that cannot apply warns once, one that would change the data is honoured or refused, and none is
ignored. A new argument without a row fails.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import labelled
from kit.inside import arguments as torch_arguments
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, DataLoader, Decode, Tuning
from dali_feed.columns import Number
from dali_feed.errors import ConfigError, FallbackWarning
from dali_feed.external_sources import ConsumerGroup, DeadLetterFolder, KafkaStream
from dali_feed.testing import ScriptedSource, ScriptedStream

GROUPS = {"decode": Decode, "bad": BadRecords, "tuning": Tuning}  # beside these a Cache, which is in a Tuning
# A bounded source, a stream, a topic that a group's workers share, a bounded source with a sampler, and a dataset that
# torch's own loader runs.
GIVEN = ("bounded", "stream", "group", "sampler", "torch")


def first(samples: list[Any]) -> int:
    """A collate_fn."""
    return len(samples)


# Argument, or group and field: a value that is not the default, and what becomes of it for each of GIVEN: h, w or r.
TABLE: dict[str, tuple[Any, str]] = {
    "batch_size": (3, "h h h h h"),
    "shuffle": (True, "h r r r h"),  # torch refuses it beside a sampler
    "sampler": ([1, 0], "h r r h h"),
    "batch_sampler": (BatchSampler(SequentialSampler(range(8)), 2, drop_last=False), "h r r r h"),
    "num_workers": (2, "h h h h h"),
    "collate_fn": (first, "h h h h h"),
    "pin_memory": (True, "w w w w h"),
    "drop_last": (True, "h w w h h"),
    "timeout": (5, "h h h h w"),
    "worker_init_fn": (print, "w w w w h"),
    "multiprocessing_context": ("spawn", "w w w w r"),  # torch refuses it without workers
    "generator": (torch.Generator(), "h h h h h"),
    "prefetch_factor": (3, "h h h h r"),  # and these two
    "persistent_workers": (True, "w w w w r"),
    "pin_memory_device": ("cuda", "w w w w w"),
    "in_order": (False, "w w w w w"),
    "snapshot_every_n_steps": (10, "h h h h h"),  # torchdata's: a state is of the last batch anyway
    "transform": (v2.CenterCrop(8), "h h h h r"),
    "columns": ({"label": Number("label")}, "h h h h r"),
    "device": ("cpu", "h h h h h"),
    "seed": (3, "h h h h h"),
    "lanes": (2, "h w w h h"),
    "rank": (0, "h h h h h"),
    "world_size": (2, "h h h h h"),
    "info": (True, "h h h h r"),
    "decode.engine": ("host", "h h h h w"),
    "decode.exif": (True, "h h h h r"),
    "decode.hardware": (0.5, "w w w w w"),  # on the CPU
    "decode.memory_format": (torch.channels_last, "h h h h w"),
    "decode.max_pixels": (10_000, "h h h h w"),
    "decode.max_work": (20_000, "h h h h w"),
    "bad.limit": (Fraction(1, 10), "h h h h w"),
    "bad.action": ("raise", "h h h h w"),
    "bad.window": (100, "h h h h w"),
    "bad.dead_letter": (DeadLetterFolder("unused"), "h h h h w"),
    "bad.floor": (5, "h h h h w"),
    "tuning.threads": (2, "h h h h w"),
    "tuning.readers": (3, "h w w h w"),
    "tuning.prefetch": (3, "h h h h w"),
    "tuning.memory": ("64MiB", "h h h h w"),
    "tuning.watchdog": (10.0, "h h h h w"),
    "tuning.next_epoch": (False, "h h h h w"),
    "tuning.cache": (Cache("1MB"), "h r r h w"),
    "cache.memory": (Cache(memory="1MB"), "h r r h w"),
    "cache.disk": (Cache(disk="kept", disk_limit="1MB"), "h r r h w"),
    "cache.disk_limit": (Cache(memory="1MB", disk="kept", disk_limit="1MB"), "h r r h w"),
    "cache.device": (Cache(device="1MB"), "r r r r w"),  # on the CPU
    "cache.pixels": (Cache(memory="1MB", pixels=True), "h r r h w"),
}


def outcome(given: str, name: str, value: Any) -> str:
    """What becomes of that argument there."""
    datasets: dict[str, Any] = {
        "bounded": ScriptedSource(labelled(8), extent=4),
        "stream": ScriptedStream(labelled(8)),
        "group": KafkaStream(
            "topic", "localhost:1", group=ConsumerGroup("group")
        ),  # asks no broker before a batch is wanted
        "sampler": ScriptedSource(labelled(8), extent=4),
        "torch": TensorDataset(torch.arange(8)),
    }
    options: dict[str, Any] = (
        {"device": "cpu"}
        | ({} if name == "batch_sampler" else {"batch_size": 2})
        | ({"sampler": [0, 2, 4, 6]} if given == "sampler" else {})
    )
    group, _, field = name.partition(".")
    if group == "cache":
        options["tuning"] = Tuning(cache=value)
    else:
        options[group] = GROUPS[group](**{field: value}) if field else value
    if name in ("rank", "world_size"):
        options |= {"rank": 0, "world_size": 2}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            DataLoader(datasets[given], **options).close()
        except ConfigError:
            return "r"
    others = [each for each in told if not issubclass(each.category, FallbackWarning)]
    return "w" if any("has no effect here" in str(each.message) for each in others) else "h"


def test_every_argument_and_field_has_a_row() -> None:
    """And no row is of another one."""
    names = set(inspect.signature(DataLoader).parameters) - {"dataset", *GROUPS}
    groups = {**GROUPS, "cache": Cache}
    names |= {f"{group}.{each.name}" for group, kind in groups.items() for each in fields(kind)}
    assert set(TABLE) == names


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", TABLE)
def test_an_argument_is_honoured_warned_of_or_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the table says, for each kind of dataset."""
    monkeypatch.chdir(tmp_path)
    value, expected = TABLE[name]
    found = []
    for given in GIVEN:
        monkeypatch.setattr(torch_arguments, "_warned", set())
        found.append(outcome(given, name, value))
    assert " ".join(found) == expected
