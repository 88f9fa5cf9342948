"""MixUp and CutMix by the names that users import; they live in `dali_feed.transforms.mixing`."""

from __future__ import annotations

from dali_feed.transforms.mixing import Mixed, Mixing, label_pairs, mixed, soft_labels

__all__ = ["Mixed", "Mixing", "label_pairs", "mixed", "soft_labels"]
