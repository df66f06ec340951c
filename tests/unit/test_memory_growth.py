"""When growing memory counts as growth without end."""

from __future__ import annotations

import pytest

from hasten.findings.habits.memory_growth import growth

MIB = 2**20
COUNTS = list(range(60))


@pytest.mark.parametrize("each", [MIB // 2, MIB])
def test_what_grows_at_the_same_pace_is_told_by_iteration(each: int) -> None:
    assert growth(COUNTS, [100 * MIB + each * n for n in COUNTS]) == pytest.approx(each, rel=0.01)


@pytest.mark.parametrize(
    "private",
    [
        [100 * MIB] * 60,
        [100 * MIB + min(n, 35) * MIB for n in COUNTS],  # filled, and then no more
        [100 * MIB + (n % 20) * 4 * MIB for n in COUNTS],  # emptied now and then
        [100 * MIB + 1000 * n for n in COUNTS],  # too little to matter
        [],
    ],
)
def test_other_memory_is_none(private: list[int]) -> None:
    assert growth(COUNTS[: len(private)], private) == 0.0
