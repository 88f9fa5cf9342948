"""Order, draws, pixels and columns are those of the day they were frozen: nothing else compares with yesterday."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit import golden
from kit.ways import LONG

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[golden.Runner]:
    """One for all rows of a process, which share their sources."""
    with golden.Runner(tmp_path_factory.mktemp("golden")) as made:
        yield made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in golden.names()]
)
def test_a_row_gives_what_was_frozen(runner: golden.Runner, name: str) -> None:
    """Ids, ok, values and moved pixels on every machine; other pixels where somebody froze them for such a machine."""
    result = runner.run(name)
    pixels = result.pop("pixels", None)
    assert result == golden.everywhere()[name]
    if pixels is None:
        return
    frozen = golden.of_pixels()
    if frozen is None:
        pytest.skip(f"no pixels are frozen for {golden.key()}: tests/contract/freeze.py says how they are written")
    assert pixels == frozen[name]


def test_no_frozen_row_is_without_a_way() -> None:
    """A row that is taken out of the table goes out of the file with it."""
    assert list(golden.everywhere()) == golden.names()
