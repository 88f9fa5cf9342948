"""Insides that contract/torch/test_user_transforms.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_feed.loader.functions import split

pytestmark = pytest.mark.usefixtures("each_engine")


def test_nothing_is_split_off_what_has_none() -> None:
    """A transform without functions of the user's goes on as it is."""
    for transform in (None, v2.Resize(3), v2.Compose([v2.Resize(3), v1.ToTensor()]), v1.Compose([]), "Resize"):
        assert split(transform) == (transform, (None,))
