"""Where a set goes, and what a run keeps beside the shards while it is under way, so that a killed one goes on.

The law: a shard and its index have their names once they are whole and on the disk, and a receipt says then what they
are. A receipt whose files have its sizes means done; anything else that a kill leaves is written again, and nothing of
it is in the set. The folder goes when the manifest is there.

    OUT/.NAME.packing/plan.json       which source, which options, which records go where
                      lock            one process at a time
                      000003.json     the receipt of shard 3: size, samples, checksums, what could not be written
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.bad_records import Tally
from dali_feed.checks import path_of
from dali_feed.errors import ConfigError, StateError
from dali_feed.storage.durable import checked, checked_json, locked, sync_folder, write_whole
from dali_feed.storage.manifest import SUFFIX, Manifest, Shard, manifest_bytes


def place(out: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of a set, and its name. ConfigError where it can be no set's."""
    path = folder_at(out, "a folder, or FOLDER/NAME.dfset")
    if path.suffix == ".dfset":
        if path.is_dir():
            raise ConfigError(f"out: {path} must be a set's manifest, a file; found a folder; give {path}/NAME.dfset")
        return path.parent, path.stem
    if not path.name or path.suffix == ".tar":
        msg = f"out: must be a folder, or FOLDER/NAME.dfset; found {str(out)!r}; name the set, not a shard"
        raise ConfigError(msg)
    return path, path.name


def folder_at(out: str | os.PathLike[str], rule: str = "a folder") -> Path:
    """The absolute path of a place to write at; links stay as they are.

    Raises ConfigError where it has no name, which `os.path` takes for the current folder, and where a file or a folder
    that cannot be written stands in its way.
    """
    text = os.path.expanduser(path_of("out", out))  # noqa: PTH111  a text
    if not text.strip():
        raise ConfigError(f"out: must be {rule}; found {text!r}, which has no name; for the current folder give '.'")
    if "://" in text:
        msg = f"out: must be {rule} of this machine; found {text!r}; write to a disk or a mount, and copy it from there"
        raise ConfigError(msg)
    path = Path(os.path.abspath(text))  # noqa: PTH100  links stay as they are
    there = path.parent if path.suffix == ".dfset" else path
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        what = "a file" if there.exists() else "a broken link"
        msg = f"out: must be {rule}; found {text!r}, where {there} is {what}; give another name, or move it away"
        raise ConfigError(msg)
    if not os.access(there, os.W_OK | os.X_OK):
        cure = f"{there} cannot be written; check its permissions and owner"
        raise ConfigError(f"out: must be {rule} that can be written; found {text!r}; {cure}")
    return path


def denied(path: Path, error: OSError) -> ConfigError:
    """Of a place that cannot be written."""
    msg = f"{path}: a set must be in a place that can be written; found: {error.strerror or error}; give another place"
    return ConfigError(msg)


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """What the block writes is of a place that can be written, or there is a ConfigError."""
    try:
        yield
    except OSError as error:
        raise denied(place, error) from error


@dataclass(frozen=True, slots=True)
class Receipt:
    """A shard that was written.

    size, samples, sha256      of the tar file
    index_sha256, index_size   of its index
    tally    what became of its records
    missing  positions of a topic that have no sample, as runs [partition, start, stop]
    """

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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"tally": self.tally.to_json()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Receipt:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        digests = str(values["sha256"]), str(values["index_sha256"])
        missing = [[int(number) for number in run] for run in values["missing"]]
        tally = Tally.of(values["tally"])
        return cls(int(values["size"]), int(values["samples"]), *digests, int(values["index_size"]), tally, missing)


class WorkFolder:
    """The folder of a set that is under way: `out/.NAME.packing`. `alone` around everything that writes there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.out, self.name = folder, name
        self.path, self.manifest = folder / f".{name}.packing", folder / f"{name}{SUFFIX}"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have it to ourselves; the lock goes with the process, however that ends. ConfigError where another has it."""
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path / "lock"))
            except TimeoutError as error:
                rule = f"one process at a time may pack the set {self.name}"
                msg = f"{self.out}: {rule}; another process packs it now; wait for it, or stop it"
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
            return dict(checked(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            cure = f"remove {self.path} to start from the beginning"
            raise StateError(f"{path}: must be the plan of a run that packs; found: {error}; {cure}") from error

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Keep the plan. It outlasts a power cut when this returns."""
        with writing(self.path):
            write_whole(self.path / "plan.json", checked_json(plan))
            sync_folder(self.path)
            sync_folder(self.out)

    def receipt(self, k: int) -> Receipt | None:
        """What shard k is; None where it was not finished."""
        try:
            return Receipt.of(checked((self.path / f"{k:06d}.json").read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):  # a power cut, or nothing: it is written again
            return None

    def keep(self, k: int, receipt: Receipt) -> None:
        """Keep what shard k is."""
        with writing(self.path):
            write_whole(self.path / f"{k:06d}.json", checked_json(receipt.to_json()))
            sync_folder(self.path)

    def save(self, manifest: Manifest) -> None:
        """Write the manifest, after which the set is there; when this returns it is on the disk."""
        with writing(self.out):
            write_whole(self.manifest, manifest_bytes(manifest))
            sync_folder(self.out)

    def done(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
