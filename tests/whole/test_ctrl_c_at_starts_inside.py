"""Insides that contract/examples/test_ctrl_c_at_starts.py needs not: they go with what they test."""

from __future__ import annotations

import threading

import pytest
import torch
from kit.limits import LONG

from dali_feed.engines.workers import Alone


def test_torch_has_its_number_of_threads_again() -> None:
    """Threads that cannot all be begun end, and torch's number for other threads is what it was."""
    before, alone, ran = torch.get_num_threads(), Alone(2), threading.Event()
    thread = threading.Thread(target=alone.around(ran.set))

    def start() -> None:
        with alone.starting():
            thread.start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    thread.join(LONG)
    assert (thread.is_alive(), ran.is_set(), torch.get_num_threads()) == (False, False, before)
