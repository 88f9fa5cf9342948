"""Where the bytes of a set's shards lie: RAID-0 over folders.

The law: which byte lies where is arithmetic on (layout, number of the shard, byte) alone, so a manifest names the
layout once, and the sizes of parts always add up to their shard's.

A shard is cut into stripes of `stripe_size` bytes. Stripe i goes to part i % stripe_count; a part is one file that has
its stripes one behind the other. Part p of shard s lies on target (s + p) % targets, so that the first stripes, and
shards that are smaller than a row of stripes, spread over all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dali_feed.errors import ConfigError

__all__ = ["BLOCK", "STRIPE_BYTES", "Layout", "Part"]

BLOCK = 4096  # what direct reads and pages are aligned to
STRIPE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a shard: which target has it, its name there, and its bytes."""

    target: int
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How the shards of a set are laid over folders.

    targets       the folders; a relative one is beside the manifest
    stripe_count  parts of a shard: 1 has each shard whole on one target, and all targets in turn
    stripe_size   bytes of a stripe, a multiple of 4096

    Raises ConfigError for values that are not allowed.
    """

    targets: tuple[str, ...]
    stripe_count: int = 1
    stripe_size: int = STRIPE_BYTES

    def __post_init__(self) -> None:
        if not self.targets or not all(isinstance(each, str) and each for each in self.targets):
            msg = f"targets: must be one folder or more; found {self.targets!r}"
            raise ConfigError(msg)
        plain = [os.path.normpath(each) for each in self.targets]
        if len(set(plain)) < len(plain):
            twice = next(each for each in plain if plain.count(each) > 1)
            msg = f"targets: must be different folders, else stripes share a disk; found {twice} twice"
            raise ConfigError(msg)
        if not 1 <= self.stripe_count <= len(self.targets):
            msg = f"stripe_count: must be 1 to {len(self.targets)}, the number of targets; found {self.stripe_count}"
            raise ConfigError(msg)
        if self.stripe_size < BLOCK or self.stripe_size % BLOCK:
            msg = f"stripe_size: must be a multiple of {BLOCK} bytes, the size of a page; found {self.stripe_size}"
            raise ConfigError(msg)

    @classmethod
    def over(cls, home: str, targets: Sequence[str], count: int | None = None, size: int = STRIPE_BYTES) -> Layout:
        """Over folders as a shell names them, for a manifest in `home`; those inside it move with it. None: all."""
        home, folders = os.path.abspath(home), [os.path.abspath(each) for each in targets if each]
        inside = [os.path.relpath(each, home) if each.startswith(f"{home}/") else each for each in folders]
        return cls(tuple(inside), len(inside) if count is None else count, size)

    def folder(self, target: int, home: str) -> str:
        """The folder of a target, for a manifest that lies in the folder `home`."""
        return os.path.normpath(os.path.join(home, self.targets[target]))

    def parts(self, number: int, name: str, size: int) -> tuple[Part, ...]:
        """The files of shard `number`, which has `size` bytes. One that gets no byte is an empty file."""
        count, stripe = self.stripe_count, self.stripe_size
        whole, rest = divmod(size, stripe)
        found = []
        for k in range(count):
            rows = whole // count + (whole % count > k)
            held = rows * stripe + (rest if whole % count == k else 0)
            file = name if count == 1 else f"{name}.{k}of{count}"
            found.append(Part((number + k) % len(self.targets), file, held))
        return tuple(found)

    def pieces(self, at: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Bytes `at` to `at + size` of a shard in order: (part, byte in that part, bytes), none over a stripe's end."""
        end = at + size
        while at < end:
            stripe, inside = divmod(at, self.stripe_size)
            held = min(self.stripe_size - inside, end - at)
            row, part = divmod(stripe, self.stripe_count)
            yield part, row * self.stripe_size + inside, held
            at += held
