"""Secrets among the options of a client of Kafka: those of `dali_feed.secrets`, under the name they had first."""

from __future__ import annotations

from dali_feed.secrets import FromEnv, FromFile, hidden, is_secret, revealed

__all__ = ["FromEnv", "FromFile", "hidden", "is_secret", "revealed"]
