"""The matrix is strong: whatever is broken, one of its cells notices."""

from collections.abc import Iterator

import pytest

from strategies.plan.spec import Precision
from tests.strategies.support.law import Bench, band_of
from tests.strategies.support.layouts import Split, Variant, words
from tests.strategies.support.matrix import MATRIX
from tests.strategies.support.mutants import MUTANTS

pytestmark = [pytest.mark.gloo, pytest.mark.slow]


@pytest.fixture(scope="module")
def caught() -> Iterator[list[str]]:
    """The mutants found out; tells how many of all at the end."""
    names: list[str] = []
    yield names
    print(f"\n{len(names)} of {len(MUTANTS)} mutants caught")  # noqa: T201


def cells_for(name: str) -> list[tuple[Split, Variant]]:
    """Where in the matrix a mutant matters, fewest ranks first."""
    needs = {*MUTANTS[name].needs}
    return [(split, variant) for split, variant in MATRIX.items() if needs <= words(split, variant)]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, bench: Bench, caught: list[str]) -> None:
    cells = cells_for(name)
    assert cells, f"no cell of the matrix has {', '.join(MUTANTS[name].needs)} together"
    for split, variant in cells:
        found = bench.departure(split, variant, mutant=name)
        if not found.within(band_of(split, Precision.FLOAT64)):
            caught.append(name)
            print(f"{name}: {split}-{variant}: {found}")  # noqa: T201
            return
    pytest.fail(f"{name} was noticed by none of {len(cells)} cells")
