"""What a run that packs keeps while it is under way, so that a killed one goes on: a folder beside the shards.

The law: a shard has its name only once it is whole and on the disk, and a receipt says what it is before it gets it.
What a kill leaves is either used as it is or written again; nothing of it is in the set. The folder goes when the
manifest is there.

    OUT/.NAME.packing/plan.json       which source, which options, which records go where
                      lock            one process at a time
                      000003.tar      being written
                      000003.json     the receipt of shard 3: size, samples, checksums, what could not be written
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, StateError
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import checked, checked_json, only_one, sync_folder, write_whole
from dali_feed.storage.manifest import Shard

__all__ = ["Receipt", "Work", "denied", "digest_of"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a shard is; see `shard.Made`."""

    size: int
    samples: int
    sha256: str
    index_sha256: str
    index_size: int
    tally: Tally
    missing: list[list[int]]

    def shard(self, name: str) -> Shard:
        """As the manifest has it."""
        return Shard(name, self.size, self.samples, self.sha256, self.index_size, self.index_sha256)

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"tally": self.tally.told()}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Receipt:
        """What `told` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        digests = str(told["sha256"]), str(told["index_sha256"])
        missing = [[int(number) for number in run] for run in told["missing"]]
        tally = Tally.of(told["tally"])
        return cls(int(told["size"]), int(told["samples"]), *digests, int(told["index_size"]), tally, missing)


class Work:
    """The folder. `held` around everything that writes there."""

    attempt = ""  # told apart in temporary names, where two processes may write one shard

    def __init__(self, folder: Path, name: str) -> None:
        self.out, self.name = folder, name
        self.path = folder / f".{name}.packing"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have it to ourselves; the lock goes with the process, however that ends. ConfigError where another has it."""
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_one(self.path / "lock"))
            except BlockingIOError as error:
                msg = (
                    f"{self.out}: one process at a time may pack the set {self.name}; another process packs it now; "
                    "wait for it, or stop it"
                )
                raise ConfigError(msg) from error
            except OSError as error:
                raise denied(self.out, error) from error
            try:
                yield
            finally:
                if not (self.path / "plan.json").exists():  # nothing was begun, or all of it is done
                    self.done()

    def plan(self) -> dict[str, Any] | None:
        """The plan that is under way; None where there is none. Raises StateError where the file is none."""
        path = self.path / "plan.json"
        try:
            found = checked(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            msg = (
                f"{path}: must be the plan of a run that packs; found: {error}; remove {self.path} to start from the "
                "beginning"
            )
            raise StateError(msg) from error
        return dict(found)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Keep the plan. It outlasts a power cut when this returns."""
        write_whole(self.path / "plan.json", checked_json(plan))
        sync_folder(self.path)
        sync_folder(self.out)

    def temporary(self, k: int) -> Path:
        """Where shard k is written."""
        return self.path / f"{k:06d}.tar"

    def receipt(self, k: int) -> Receipt | None:
        """What shard k is; None where it was not finished."""
        try:
            return Receipt.of(checked((self.path / f"{k:06d}.json").read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):  # a power cut, or nothing: it is written again
            return None

    def keep(self, k: int, receipt: Receipt) -> None:
        """Keep what shard k is."""
        write_whole(self.path / f"{k:06d}.json", checked_json(receipt.told()))
        sync_folder(self.path)

    def forget(self, k: int) -> None:
        """Shard k is about to be written anew."""
        (self.path / f"{k:06d}.json").unlink(missing_ok=True)

    def done(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def denied(path: Path, error: OSError) -> ConfigError:
    """Of a place that cannot be written."""
    msg = f"{path}: a set must be in a place that can be written; found: {error.strerror or error}; give another place"
    return ConfigError(msg)


def digest_of(whole: bytes) -> str:
    """SHA-256, as hex."""
    return hashlib.sha256(whole).hexdigest()
