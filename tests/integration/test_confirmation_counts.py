"""A confirmation counts beside its blocks: a plan that trains something else is refused."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_verify import SCRIPT, put_units

from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import discover
from hasten.records import BlockDone, Setting
from hasten.tuning.comparing import Answer, Bench, Clock, Command, new_family
from hasten.tuning.confirming import Confirmation, Confirmed, whole
from hasten.tuning.driver import Driver
from hasten.tuning.listener import Listener


@pytest.fixture(scope="module", autouse=True)
def units(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Optimisations that train something else, in this process and in children."""
    path = put_units(tmp_path_factory.mktemp("units"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        for folder in path.split(os.pathsep)[:2]:
            patch.syspath_prepend(folder)
        discover.cache_clear()
        yield
    discover.cache_clear()


class Quiet(Listener):
    """Hears nothing."""


class Twice(Driver):
    """Says of every block under a plan that it was twice as fast."""

    def ask(self, command: Command) -> Answer:
        answer = super().ask(command)
        if not isinstance(answer, BlockDone):
            return answer
        seconds = answer.iterations * (0.01 if answer.setting else 0.02)
        return BlockDone(**{**vars(answer), "seconds": seconds})


class Short(Confirmation):
    """Needs no narrow interval: what is timed here isn't real."""

    def _narrow(self) -> bool:
        return self._race.result.pairs >= 2


def confirm(setting: Setting, folder: Path, monkeypatch: Any) -> Confirmed:
    monkeypatch.chdir(folder)
    driver = Twice((str(SCRIPT), "200", "0"), ShieldMode.NONE, Quiet(), print, 120.0, True)
    try:
        profile = driver.watch(8, 5.0)
        driver.close()
        driver.clock = clock = Clock(600.0)
        driver.process_of, driver.counts = whole, True
        bench = Bench(profile, new_family(profile), clock, random.Random(0))
        confirmation = Short(bench, setting, lambda ratio, pairs: None)
        driver.serve(confirmation.run())
    finally:
        driver.close()
    assert confirmation.result is not None
    return confirmation.result


HONEST: list[Any] = [
    {"honest": True},
    {"fused-optimizer": "fused", "amp-bf16": True, "loader-workers": {"workers": 1}},
]
BROKEN = {
    "skips-steps": "optimizer steps: ",
    "halves-batch": "samples: others than without the plan",
    "doubles-rate": "learning rate: 0.003 in iteration ",
    "loses-parameters": "parameters that don't move any more: layers.3.bias, layers.3.weight",
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", HONEST, ids="+".join)
def test_an_honest_plan_stays(setting: Setting, tmp_path: Path, monkeypatch: Any) -> None:
    found = confirm(setting, tmp_path, monkeypatch)
    assert found.broken == () and found.worth_it


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "skips-steps" else pytest.mark.slow) for n in BROKEN],
)
def test_a_plan_that_trains_something_else_is_refused(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    found = confirm({name: True}, tmp_path, monkeypatch)
    assert not found.worth_it
    assert any(BROKEN[name] in line for line in found.broken), found.broken
