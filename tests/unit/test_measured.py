"""Figures that both reports of a diagnosis show: only what was measured, in 80 columns."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

from test_html_pages import diagnosis, observed

from hasten.diagnosis import Ceilings, WhatIf
from hasten.records import Profile
from hasten.report.diagnosis_terminal import render
from hasten.report.measured import figures

Make = Callable[..., Profile]
FACTS: dict[str, Any] = {
    "processor": {"own": 1.5, "others": 0.2, "delay": 0.012},
    "workers": {"batches": [20, 20], "fetch": 0.031, "collate": 0.002, "processor": 0.025},
    "queue": {"ready": [0, 1, 2], "asked": 3, "empty": 1},
    "parts": {
        "roots": [
            {"name": "Generator", "calls": 1.0, "seconds": 0.02},
            {"name": "Critic", "calls": 5.0, "seconds": 0.08},
        ],
        "optimizers": [{"name": "Adam", "calls": 1.0, "seconds": 0.004}],
    },
    "utilisation": {"busy": [80, 90], "watts": [300.0]},
}


def test_everything_that_was_measured_is_shown(make_profile: Make) -> None:
    made = diagnosis(make_profile(), observed=observed(facts=FACTS, stretches=()))
    assert made.profile.loader is not None
    loader = dataclasses.replace(made.profile.loader, workers=2, prefetch=2)
    profile = dataclasses.replace(made.profile, loader=loader)
    environment = dataclasses.replace(made.environment, shm=64 * 2**20)
    ceilings = Ceilings(copies_free=WhatIf(0.3, 0.2, 6))
    made = dataclasses.replace(
        made, profile=profile, environment=environment, ceilings=ceilings, notes=()
    )
    shown = dict(figures(made))
    assert shown["processor time"].endswith("it waited 12.0 ms for a core")
    assert shown["forward pass of 2, Critic"] == "80.0 ms an iteration, 5 calls"
    assert not any("step of" in name for name in shown)  # there is one optimizer
    assert shown["a batch takes a worker"].startswith("31.0 ms, 2.0 ms of it collating and 25.0")
    assert shown["batches ready when one was asked for"].startswith("1.0 on average, none in 33 %")
    assert shown["/dev/shm"] == "5.0 MiB needed at most, of 64 MiB"
    assert (shown["GPU busy, by its driver"], shown["GPU power"]) == ("85 %", "300 W")
    text = render(made, [], "", io.StringIO())
    assert max(map(len, text.splitlines())) <= 80
    for part in ("processor time: ", "Critic: 80.0 ms", "copies between devices free", "GPU power"):
        assert part in text


def test_what_was_not_measured_is_not_shown(make_profile: Make) -> None:
    made = diagnosis(make_profile(loader=None), observed=observed(facts={}))
    assert [name for name, _ in figures(made)] == ["processor time"]
