"""Which plans stay after the confirmation from end to end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hasten.records import BlockDone, Ratio, RunBlock
from hasten.statistics import Verdict
from hasten.tuning.comparing import Bench, Clock, new_family
from hasten.tuning.confirming import Confirmation, Confirmed


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


def test_a_plan_that_crawls_from_its_start_on_is_dropped(make_profile: Any) -> None:
    clock = Clock(60.0)
    profile = make_profile()
    bench = Bench(profile, new_family(profile), clock, random.Random(0))
    confirmation = Confirmation(bench, {"amp-bf16": True}, lambda ratio, turns: None)
    steps = confirmation.run()
    command = next(steps)
    assert isinstance(command, RunBlock)
    slow = BlockDone(command.setting, 1, 100 * profile.iteration, 1.0, 0, {})
    with pytest.raises(StopIteration):
        while True:
            command = steps.send(slow)
            assert command.setting, "no pair is spent on it"
    result = confirmation.result
    assert result is not None and not result.worth_it and "slower" in result.problem
