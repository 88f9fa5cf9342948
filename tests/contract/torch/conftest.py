"""The same samples as files and in memory."""

from __future__ import annotations

from typing import Any

import pytest
from kit.both_loaders import folder_of, tensors_of
from torchvision.datasets import ImageFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Pictures in files, which we read."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root")


@pytest.fixture(scope="module", params=["files", "tensors"])
def data(request: pytest.FixtureRequest, folder: ImageFolder) -> Any:
    """COUNT samples whose label is their number: as files, and as what only torch's loader can read."""
    return folder if request.param == "files" else tensors_of()
