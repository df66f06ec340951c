"""`hasten compare`: changes, their intervals, and when it fails."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hasten.commands.compare import command
from hasten.diagnosis import FINE_PHASES
from hasten.errors import HastenError
from hasten.instrument.observe.program import series
from hasten.report.comparison import compare, document, load, render
from hasten.statistics.bootstrap import change_of_mean


def made(times: float = 1.0, noise: float = 0.02, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A document of a loop of 10 ms, `times` as slow in its forward pass."""
    random = np.random.default_rng(seed)
    spread = 1 + noise * random.standard_normal(60)
    parts = dict(zip(FINE_PHASES, (0.001, 0.0, 0.004, 0.004, 0.001, 0.0), strict=True))
    parts["forward"] *= times
    values = {name: (seconds * spread).tolist() for name, seconds in parts.items()}
    total = np.sum(list(values.values()), axis=0)
    values |= {"iteration": total.tolist(), "processor": total.tolist()}
    found = {
        "schema": 1,
        "command": ["train.py"],
        "environment": {"cpu": "one", "cores": 2, "torch": "2.14.1"},
        "iteration_ms": 1000 * float(total.mean()),
        "phases": {name: 1000 * float(np.mean(values[name])) for name in FINE_PHASES},
        "ceilings": {"data_free_ms": 9.0, "copies_free_ms": None, "loader_alone_ms": 1.0},
        "findings": [],
        "observed": {"series": values, "processor": {"mean": float(total.mean())}},
        "examined": {"peak_memory": 2**30},
    }
    return found | changes


def test_a_change_is_found_with_an_interval_that_holds_it() -> None:
    found = compare(made(), made(1.25, seed=1), 0.05)
    change = found.iteration.change
    assert change is not None and change.low is not None and change.high is not None
    assert change.low < 0.1 < change.high and change.high - change.low < 0.05
    assert found.iteration.verdict == "slower" and found.failed
    verdicts = {phase.name: phase.verdict for phase in found.phases}
    assert verdicts["forward"] == "slower" and verdicts["backward"] != "slower"
    assert "copies" not in verdicts


@pytest.mark.parametrize(
    ("times", "noise", "limit", "failed"),
    [
        (1.0, 0.02, 0.05, False),
        (1.25, 0.02, 0.2, False),
        (1.25, 0.8, 0.05, False),
        (0.8, 0.02, 0.0, False),
        (1.25, 0.02, 0.05, True),
        (1.05, 0.002, 0.0, True),
    ],
)
def test_it_fails_only_for_what_is_surely_too_slow(
    times: float, noise: float, limit: float, failed: bool
) -> None:
    assert compare(made(noise=noise), made(times, noise, seed=1), limit).failed is failed


def test_intervals_keep_their_promise_on_bursts() -> None:
    """Waits of 3, 99, 3, 99 ms and slow drifts: neighbours are not independent."""
    random, missed = np.random.default_rng(5), 0
    for trial in range(200):
        pair = []
        for _ in range(2):
            drift = np.repeat(random.standard_normal(20), 6)
            pair.append(10 + 0.5 * drift + random.standard_normal(120) + np.tile([3, 99], 60))
        change = change_of_mean(pair[0].tolist(), pair[1].tolist(), 0.95, seed=trial)
        assert change is not None and change.low is not None and change.high is not None
        missed += not change.low <= 0 <= change.high
    assert missed <= 30


def test_few_or_no_iterations_have_no_interval() -> None:
    assert change_of_mean([], [1.0]) is None and change_of_mean([0.0], [1.0]) is None
    few = change_of_mean([1.0, 1.0], [2.0, 2.0])
    assert few is not None and (few.estimate, few.low) == (1.0, None)
    plain = {"schema": 1, "iteration_ms": 10.0, "phases": {"data": 1.0}}
    slower = compare(plain, plain | {"iteration_ms": 11.0}, 0.05)
    assert slower.failed and slower.iteration.verdict == ""
    assert not compare(plain, plain | {"iteration_ms": 11.0}, 0.1 + 1e-9).failed


def test_what_else_changed_is_told() -> None:
    old = {"name": "no-workers", "file": "/a/t.py", "line": 3, "code": "x", "cost_ms": 2.0}
    moved = old | {"file": "/b/t.py", "line": 9, "cost_ms": 1.0}
    new = {"name": "nan-loss", "file": "/b/t.py", "line": 1, "code": "y", "cost_ms": None}
    gone = {"name": "one-thread", "file": None, "line": None, "code": None, "cost_ms": 1.0}
    other = made(environment={"cpu": "two", "cores": 2, "torch": "2.14.1"}, findings=[moved, new])
    found = compare(made(findings=[old, gone]), other, 0.05)
    assert [one["name"] for one in found.appeared] == ["nan-loss"]
    assert [one["name"] for one in found.gone] == ["one-thread"]
    assert [pair[1]["line"] for pair in found.stayed] == [9]
    assert found.other == (("cpu", "one", "two"),)
    text = render(found)
    for part in ("new: nan-loss", "gone: one-thread", "2.00 ms -> 1.00 ms", "cpu: one -> two"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    json.dumps(document(found), allow_nan=False)


def test_the_command_and_its_exit_codes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(made()))
    second.write_text(json.dumps(made(1.25, seed=1)))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(command, arguments, standalone_mode=False)

    assert run(str(first), str(second)).return_value == 1
    for share, status in (("20%", 0), ("0.2", 0), ("5 %", 1), ("0", 1)):
        assert run(str(first), str(second), "--fail-over", share).return_value == status
    assert run(str(first), str(first)).return_value == 0
    assert run(str(second), str(first), "--fail-over", "0%").return_value == 0
    as_json = json.loads(run(str(first), str(second), "--json").output)
    assert as_json["failed"] is True and as_json["iteration"]["verdict"] == "slower"
    bad = run(str(first), str(second), "--fail-over", "much")
    assert bad.exception is not None and "not a share" in bad.exception.format_message()


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(HastenError, match="can't be read"):
        load(path)
    wrong = copy.deepcopy(made()) | {"schema": 99}
    for text, expected in (
        ("{", "no JSON"),
        ("[]", "not written by"),
        ('{"baseline": 1}', "not written by"),
        (json.dumps(wrong), "schema 99"),
        (json.dumps(made(iteration_ms=None)), "no time"),
    ):
        path.write_text(text)
        with pytest.raises(HastenError, match=expected):
            load(path)


def test_series_are_kept_short_and_keep_their_mean() -> None:
    assert series([]) == () and series([1.0, 2.0]) == (1.0, 2.0)
    values = [float(i % 7) for i in range(10_000)]
    short = series(values)
    assert len(short) <= 240
    assert math.isclose(sum(short) / len(short), sum(values) / len(values), rel_tol=0.01)
