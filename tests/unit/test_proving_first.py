"""In a training that counts, every candidate is proven before its first block."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from test_search_rounds import PROFILE, Children, Quiet, StoppedClock

from hasten.environment import look
from hasten.records import Failed, Proof, Prove, RunBlock
from hasten.statistics import Family
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import Bench
from hasten.tuning.search import Search


def commands(children: Children, clock: StoppedClock) -> tuple[Search, list[RunBlock | Prove]]:
    """A search in a training that counts, and what it asked for."""
    family, rng = Family(noise=0.03), random.Random(0)
    bench = Bench(PROFILE, family, clock, rng, throw_away=False)  # type: ignore[arg-type]
    environment = replace(look(), cpu_bf16=True, usable_cores=2.0)
    made = Search(bench, environment, Scope(inside=True), Quiet())  # type: ignore[arg-type]
    asked: list[RunBlock | Prove] = []
    steps = made.run()
    try:
        asked.append(next(steps))  # type: ignore[arg-type]
        while True:
            answer = children.answer(asked[-1])
            asked.append(steps.send(answer))  # type: ignore[arg-type]
    except StopIteration:
        return made, asked


@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_refused_or_breaks_gets_no_block(breaks: bool) -> None:
    clock = StoppedClock(120.0)
    children = Children({"amp-bf16": 2.0, "fused-optimizer": 1.3}, clock)
    real = children.answer

    def answer(command: RunBlock | Prove) -> object:
        if breaks and isinstance(command, Prove) and command.name == "amp-bf16":
            return Failed("exception", "view is not compatible", "", command.setting, 3)
        return real(command)

    children.answer = answer  # type: ignore[method-assign]
    children.refused = set() if breaks else {"amp-bf16"}
    made, asked = commands(children, clock)
    proven: set[str] = set()
    for command in asked:
        if isinstance(command, Prove):
            proven.add(command.name)
        else:
            assert set(command.setting) <= proven - {"amp-bf16"}
    assert "amp-bf16" in proven and "fused-optimizer" in made.found.setting
    rows = [row for row in made.found.tried if row.name == "amp-bf16"]
    assert rows and {row.verdict for row in rows} == {"refused"}
    assert ("view is not compatible" in rows[0].reason) is breaks
    assert isinstance(real(Prove("amp-bf16", {"amp-bf16": True}, {}, 1.0)), Proof)
