"""Small versions of the benchmarks: what they conclude from children whose truth is known."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ITERATION = 0.02
GAINS = {"amp-bf16": 1.5, "fused-optimizer": 1.2, "threads": 0.7}
KNOBS = {"amp-bf16": (True,), "fused-optimizer": ("fused", "foreach"), "threads": (2,)}
BEST = {"amp-bf16": True, "fused-optimizer": "fused"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks import each other by name, as scripts do."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "") in map(str, BENCHMARKS.glob("*.py")):
            del sys.modules[name]


class MadeUpDriver:
    """Answers blocks: `GAINS` says how many times faster each unit makes an iteration."""

    def __init__(self, clock: Any, noise: float = 0.01) -> None:
        self.clock, self.noise, self.random = clock, noise, random.Random(1)
        self.process_of: Any = None
        self.failing: set[str] = set()
        self.blocks = 0

    def ask(self, command: Any) -> Any:
        from hasten.records import BlockDone, Failed

        self.blocks += 1
        if self.failing & set(command.setting):
            return Failed("exception", "it broke", "", command.setting, 3)
        seconds = ITERATION
        for name, value in command.setting.items():
            seconds /= 1.02 if value == "foreach" else GAINS[name]
        total = seconds * command.iterations * self.random.lognormvariate(0.0, self.noise)
        return BlockDone(command.setting, command.iterations, total, total, 0, {})

    def serve(self, steps: Generator[Any, Any, None]) -> None:
        try:
            command = next(steps)
            while True:
                command = steps.send(self.ask(command))
        except StopIteration:
            return

    def close(self) -> None:
        pass


@pytest.fixture
def bench() -> Any:
    import growth
    import turns

    made = turns.Table(("train.py",))
    made.driver = MadeUpDriver(made.clock)  # type: ignore[assignment]
    made.profile = growth.profile_of(ITERATION)
    return made


def limits(**changes: Any) -> Any:
    import oracle

    return replace(oracle.Limits(60.0, 0.1, 0.2, (), 6, 8), **changes)


def log_at(path: Path) -> Any:
    import turns

    return turns.Log(path / "log.jsonl")


def ranked_after(bench: Any, log: Any) -> list[dict[str, Any]]:
    import oracle
    import turns

    grid = oracle.Grid(KNOBS, log, limits())
    assert grid.measure(bench, turns.Stopwatch(60.0), random.Random(0))
    return [point.setting for point, _ in grid.ranked()]


def test_the_grid_has_every_combination_once_but_the_script_itself() -> None:
    import oracle

    found = oracle.combinations(KNOBS)
    assert len(found) == 2 * 3 * 2 - 1
    assert len({json.dumps(setting, sort_keys=True) for setting in found}) == len(found)


def test_units_that_exclude_each_other_are_never_combined() -> None:
    import oracle

    found = oracle.combinations({"fused-optimizer": ("fused",), "compiled-optimizer": (True,)})
    assert sorted(map(tuple, found)) == [("compiled-optimizer",), ("fused-optimizer",)]


def test_the_grid_finds_the_best_and_goes_on_where_it_stopped(bench: Any, tmp_path: Path) -> None:
    import oracle
    import turns

    log = log_at(tmp_path)
    cut = oracle.Grid(KNOBS, log, limits())
    assert not cut.measure(bench, turns.Stopwatch(0.0), random.Random(0))
    assert ranked_after(bench, log)[0] == BEST
    pairs, blocks = len(log.of("pair")), bench.driver.blocks
    assert ranked_after(bench, log_at(tmp_path))[0] == BEST  # from the file alone
    assert (len(log_at(tmp_path).of("pair")), bench.driver.blocks) == (pairs, blocks)


def test_what_fails_is_left_out_and_kept_as_a_problem(bench: Any, tmp_path: Path) -> None:
    bench.driver.failing = {"amp-bf16"}
    log = log_at(tmp_path)
    ranked = ranked_after(bench, log)
    assert ranked[0] == {"fused-optimizer": "fused"}
    assert not any("amp-bf16" in setting for setting in ranked)
    assert {row["problem"] for row in log.of("problem")} == {"it broke"}


def test_a_worse_plan_gets_its_share_of_the_best(bench: Any, tmp_path: Path) -> None:
    import oracle

    log, ours = log_at(tmp_path), {"amp-bf16": True}
    oracle.duel(bench, log, "grid 1", ours, BEST, 6)
    assert oracle.share(log) is None  # the others of the grid are to come
    oracle.duel(bench, log, "as it is", ours, {}, 6)
    assert oracle.share(log) == pytest.approx(1 / 1.2, rel=0.03)


def test_a_plan_that_is_the_best_needs_no_duel(bench: Any, tmp_path: Path) -> None:
    import oracle

    log = log_at(tmp_path)
    oracle.duel(bench, log, "grid 1", BEST, BEST, 6)
    assert bench.driver.blocks == 0
    oracle.duel(bench, log, "as it is", BEST, {}, 6)
    assert oracle.share(log) == 1.0


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_samplers_choose_among_the_same_knobs(bench: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("optuna")
    import samplers

    class Passing:
        """A time that is over after so many looks at it."""

        def __init__(self) -> None:
            self.looks = 0

        @property
        def over(self) -> bool:
            self.looks += 1
            return self.looks > 60

    log = log_at(tmp_path)
    samplers.search(kind, bench, KNOBS, log, Passing())  # type: ignore[arg-type]
    chosen = samplers.chosen(log, kind)
    assert set(chosen) <= set(KNOBS)
    assert chosen["amp-bf16"] is True
    assert log.last("sampler")["trials"] == bench.driver.blocks


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    log.add("pair", setting="{}")
    with log.path.open("a") as file:
        file.write('{"kind": "pa')
    again = log_at(tmp_path)
    assert len(again.rows) == 1
    again.add("pair", setting="{}")
    assert len(log_at(tmp_path).rows) == 2


def test_an_oracle_report_says_what_was_not_run(tmp_path: Path) -> None:
    import oracle

    assert oracle.report(tmp_path).count("not run") == len(oracle.NAMES)


# --- noise ---------------------------------------------------------------------------------------


def test_turns_are_right_where_runs_one_after_the_other_are_not(tmp_path: Path) -> None:
    import noise

    found = noise.measure({1: noise.RECORDINGS[1]}, cases=60)
    curves = found["busy"]["1"]["curves"]
    wrong = {way: curves[way][0]["faster"] + curves[way][0]["slower"] for way in noise.WAYS}
    assert wrong["turns"] <= 0.05
    assert min(wrong["runs, t test"], wrong["runs, higher mean"]) > 0.3
    (large,) = [p for p in curves["turns"] if p["effect"] == 1.2]
    assert large["faster"] > 0.8
    assert large["slower"] == 0.0
    assert noise.table(found).count("\n| 1 | ") == len(noise.WAYS)


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import noise

    noise.plot(noise.measure({0: noise.RECORDINGS[0]}, cases=4), tmp_path / "noise.svg")
    assert (tmp_path / "noise.svg").read_text("utf-8").rstrip().endswith("</svg>")


# --- growth --------------------------------------------------------------------------------------


def test_more_candidates_take_more_and_the_planted_one_is_found() -> None:
    import growth

    few, right = growth.searched(2, 0.02, 180.0, seed=0)
    more, also_right = growth.searched(6, 0.02, 180.0, seed=0)
    assert right and also_right
    assert 0.0 < few < more < 180.0


def test_a_table_of_growth_has_a_line_for_each_row() -> None:
    import growth

    lines = list(growth.table(growth.tuning((2,), (0.02, 0.2), 1)))
    assert len(lines) == 2 + 2
    assert {line.count("|") for line in lines} == {7}
    assert lines[2].startswith("| 20 ms | 2 | ")


def test_made_up_units_are_gone_afterwards() -> None:
    import growth

    from hasten.optimisations import discover

    before = list(discover())
    with growth.made_up(3) as names:
        assert set(names) <= set(discover())
    assert list(discover()) == before


# --- peers ---------------------------------------------------------------------------------------


def test_every_workload_has_its_rivals() -> None:
    import peers

    for name in peers.NAMES:
        assert peers.lines_changed(name, "hasten") == 0
        assert 5 < peers.lines_changed(name, "autotune") < 40
        assert 5 < peers.lines_changed(name, "by hand") < 40


def test_a_worse_loss_is_told() -> None:
    import peers

    class Runs:
        def __init__(self, losses: dict[str, list[float]]) -> None:
            self.losses = losses

        def of(self, kind: str) -> list[dict[str, Any]]:
            return [{"rival": r, "loss": loss} for r in self.losses for loss in self.losses[r]]

    good = [0.50, 0.52, 0.51]
    assert peers.loss_said(Runs({"script": good, "by hand": [0.9, 0.91]}), "by hand").endswith(
        "WORSE"
    )
    assert peers.loss_said(Runs({"script": good, "by hand": [0.49, 0.53]}), "by hand").endswith(
        "right"
    )
    assert "too few" in peers.loss_said(Runs({"script": good, "by hand": [0.5]}), "by hand")
    assert peers.loss_said(Runs({"script": good, "by hand": []}), "by hand") == "not run"


def test_the_search_comes_close_to_the_best_of_a_made_up_loop() -> None:
    import search_quality

    from hasten.optimisations import discover

    loop = search_quality.LOOPS["jpeg-bound"]
    with search_quality.only(loop):
        least = search_quality.best(loop)
        seconds, search = search_quality.searched(loop, budget=130.0, noise=0.03, seed=0)
    assert least < 0.2 * loop.seconds({})
    assert seconds < 1.2 * least, search.found.setting
    assert "cache-items" in search.found.setting
    assert "amp-fp16" in discover()  # the real units are back
