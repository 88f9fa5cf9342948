"""The table of lowerings: every line leads somewhere, and a recipe loads the files of its own ops alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from timm.data import auto_augment, random_erasing
from timm.data import transforms as timm_transforms
from torchvision import transforms as v1
from torchvision.transforms import _presets, v2

from dali_feed.transforms.lower import NESTS, TIMM, TORCHVISION, maker


@pytest.mark.parametrize("line", sorted({*TORCHVISION.values(), *NESTS.values(), *TIMM.values()}))
def test_every_line_leads_somewhere(line: str) -> None:
    """To a function of a file of the room."""
    assert callable(maker(line))


def test_every_name_is_a_class_of_theirs() -> None:
    """Of torchvision's v1, v2 or presets, or of timm's; a misspelt one would never be looked up."""
    for name in (*TORCHVISION, *NESTS):
        assert any(hasattr(module, name) for module in (v1, v2, _presets)), name
    for name in TIMM:
        assert any(hasattr(module, name) for module in (timm_transforms, auto_augment, random_erasing)), name


def test_lowering_loads_the_files_of_a_recipe_alone() -> None:
    """An inversion loads its own file, and not that of a blur."""
    code = (
        "import sys; from dali_feed.transforms.lower import lower\n"
        "invert = type('RandomInvert', (), {'__module__': 'torchvision.transforms.v2._color', 'p': 0.25})()\n"
        "names = ('pointwise', 'filters')\n"
        "print(lower(invert).ops, *(f'dali_feed.transforms.{name}' in sys.modules for name in names))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(RandomInvert(p=0.25),) True False\n", "")
