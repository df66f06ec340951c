"""Which plans stay after the confirmation from end to end."""

from __future__ import annotations

import pytest

from hasten.records import Ratio
from hasten.statistics import Verdict
from hasten.tuning.confirming import Confirmed


@pytest.mark.parametrize(
    ("ratio", "verdict", "stays"),
    [
        (Ratio(1.5, 1.3, 1.7), Verdict.FASTER, True),
        (Ratio(1.2, 0.9, 1.6), Verdict.CANNOT_TELL, True),
        (Ratio(0.99, 0.90, 1.09), Verdict.CANNOT_TELL, False),
        (Ratio(1.0, 0.99, 1.01), Verdict.NO_DIFFERENCE, False),
        (Ratio(0.8, 0.7, 0.9), Verdict.SLOWER, False),
        (None, Verdict.CANNOT_TELL, False),
    ],
)
def test_a_plan_stays_unless_it_looks_useless(
    ratio: Ratio | None, verdict: Verdict, stays: bool
) -> None:
    assert Confirmed(ratio, verdict).worth_it is stays
