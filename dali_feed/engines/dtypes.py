"""The dtypes a recipe may end in, as torch knows them."""

from __future__ import annotations

import torch

__all__ = ["DTYPES"]

DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
