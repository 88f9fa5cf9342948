"""Both versions of torchvision's transforms, for tests that hold for either."""

from __future__ import annotations

import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BOTH = pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
