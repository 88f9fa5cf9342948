"""Seeing a run that goes on: an endpoint with its numbers, reporters, and the view that reads them.

Never: what changes a batch, or what the training loop has to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.watching.endpoint import Endpoint, serve
    from dali_feed.watching.meters import otel
    from dali_feed.watching.reporters import JsonLines, Logging, Reporter, TensorBoard, Wandb
    from dali_feed.watching.reporting import Reporting

__all__ = [
    "Endpoint",
    "JsonLines",
    "Logging",
    "Reporter",
    "Reporting",
    "TensorBoard",
    "Wandb",
    "otel",
    "serve",
]

__getattr__ = lazily(
    __name__,
    {
        "Endpoint": "endpoint",
        "JsonLines": "reporters",
        "Logging": "reporters",
        "Reporter": "reporters",
        "Reporting": "reporting",
        "TensorBoard": "reporters",
        "Wandb": "reporters",
        "otel": "meters",
        "serve": "endpoint",
    },
)
