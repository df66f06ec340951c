"""The search against made-up children: what is true of them must come out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from hasten.environment import look
from hasten.optimisations import discover
from hasten.records import (
    BlockDone,
    Failed,
    LoaderFacts,
    OptimizerFacts,
    Profile,
    Proof,
    Prove,
    RootFacts,
    RunBlock,
)
from hasten.statistics import Family
from hasten.tuning.candidates import Scope, collect
from hasten.tuning.comparing import Bench, Fresh
from hasten.tuning.search import Search

ITERATION = 0.02
#: What is tried must not depend on what this machine is, or has installed.
MACHINE = replace(
    look(),
    cpu_bf16=True,
    cpu_flags=("avx512_bf16", "avx512_fp16"),
    usable_cores=2.0,
    gpus=(),
    compiler="/usr/bin/g++",
)

PROFILE = Profile(
    torch="2.14.1",
    device="cpu",
    border="loader",
    iteration_seconds=(ITERATION,) * 100,
    phases={"data": 0.006, "forward": 0.004, "backward": 0.006, "optimizer": 0.003, "other": 0.001},
    loader=LoaderFacts("map", "D", 8, 100, 0, None, False, True, "c", "s", None, True),
    roots=(RootFacts("Net", 1000, 4, ("float32",), "cpu", 1.0, False, False, None),),
    optimizers=(
        OptimizerFacts(
            "AdamW", "torch.optim", 1, 4, 1000, None, None, False, 1.0, False, True, True
        ),
    ),
    threads=1,
    iterations_per_epoch=100,
)


@pytest.fixture(autouse=True)
def no_other_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for beside what `MACHINE` says."""
    monkeypatch.setattr("hasten.optimisations.device.allocator.library", lambda name: None)


class Quiet:
    """A listener that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class StoppedClock:
    """Time that passes with the made-up blocks only."""

    def __init__(self, budget: float) -> None:
        self.budget, self.spent, self.compile_seconds = budget, 0.0, 0.0

    def exclude(self, seconds: float, compiling: bool = False) -> None:
        pass

    @property
    def left(self) -> float:
        return max(0.0, self.budget - self.spent)


class Children:
    """Answers commands: `gains` says how many times faster each unit makes an iteration."""

    def __init__(self, gains: dict[str, float], clock: StoppedClock, noise: float = 0.02) -> None:
        self.gains, self.clock, self.noise = gains, clock, noise
        self.random = random.Random(1)
        self.refused: set[str] = set()
        self.refused_values: set[str] = set()
        self.statistics: set[str] = set()
        self.failing: set[str] = set()
        self.fresh = 0.0

    def answer(self, command: RunBlock | Prove) -> object:
        if self.random.random() < self.fresh:
            return Fresh()
        if isinstance(command, Prove):
            numerics = "statistics" if command.name in self.statistics else "rounding"
            passed = command.name not in self.refused | self.statistics
            passed = passed and str(command.setting[command.name]) not in self.refused_values
            figure = 1.0 if command.name in self.refused else 0.0
            return Proof(command.name, numerics, passed, figure, 0.5, "w", "gradient error")
        if self.failing & set(command.setting):
            return Failed("exception", "it broke", "", command.setting, 3)
        return self.block(command)

    def block(self, command: RunBlock) -> BlockDone:
        seconds = ITERATION
        for name in command.setting:
            seconds /= self.gains.get(name, 1.0)
        noise = self.random.lognormvariate(0.0, self.noise)
        total = seconds * command.iterations * noise
        self.clock.spent += total * (1 + command.warmup / command.iterations)
        done = BlockDone(command.setting, command.iterations, total, total, 0, {})
        return replace(done, pool_seconds=0.05 if "loader-workers" in command.setting else None)


def search(
    gains: dict[str, float], scope: Scope | None = None, budget: float = 120.0, **traits: object
) -> Search:
    clock = StoppedClock(budget)
    children = Children(gains, clock)
    for name, value in traits.items():
        setattr(children, name, value)
    bench = Bench(PROFILE, Family(noise=0.03), clock, random.Random(0))  # type: ignore[arg-type]
    made = Search(bench, MACHINE, scope or Scope(), Quiet())  # type: ignore[arg-type]
    steps = made.run()
    try:
        command = next(steps)
        while True:
            command = steps.send(children.answer(command))  # type: ignore[arg-type]
    except StopIteration:
        return made


def verdicts(made: Search) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for tried in made.found.tried:
        rows.setdefault(tried.name, []).append(tried.verdict)
    return rows


def test_gains_are_found_and_combined() -> None:
    made = search({"amp-bf16": 1.6, "fused-optimizer": 1.15, "threads": 0.5, "compile": 0.9})
    assert {"amp-bf16", "fused-optimizer"} <= set(made.found.setting)
    assert not {"threads", "compile"} & set(made.found.setting)
    assert made.found.plan_ratio == pytest.approx(1.6 * 1.15, rel=0.1)


def test_what_crawls_is_given_up_after_its_first_block() -> None:
    made = search({"amp-bf16": 0.01, "compile": 0.5, "fused-optimizer": 1.3})
    assert set(made.found.setting) == {"fused-optimizer"}
    rows = [row for row in made.found.tried if "amp-bf16" in row.name]
    assert rows and all(row.pairs == 0 and row.verdict == "cannot tell" for row in rows)
    assert {row.reason for row in rows} == {"given up after its first block, many times slower"}
    assert any(row.pairs for row in made.found.tried if row.name == "compile")


def test_small_gains_are_found_together_where_no_part_can_be_told() -> None:
    gains = {"fused-optimizer": 1.06, "amp-bf16": 1.07, "loader-workers": 1.08}
    made = search(gains, noise=0.06, budget=60.0)
    assert made.found.plan_ratio > 1.1


def test_a_large_gain_is_not_left_waiting_for_a_small_one_to_be_told() -> None:
    gains = {"retain-heap": 1.05, "channels-last": 1.04, "loader-workers": 1.7}
    for seed in range(3):
        made = search(gains, noise=0.1, budget=60.0, random=random.Random(seed))
        assert "loader-workers" in made.found.setting


def test_what_is_only_likely_is_marked_for_the_confirmation() -> None:
    made = search({"fused-optimizer": 1.2}, noise=0.12, budget=12.0)
    likely = {"setting": {"fused-optimizer": "fused"}, "sure": False}
    assert {key: getattr(made.found, key) for key in likely} == likely


def test_a_plan_has_no_parts_that_do_nothing() -> None:
    for seed in range(2):
        made = search({"amp-bf16": 1.5}, noise=0.04, random=random.Random(seed))
        assert set(made.found.setting) == {"amp-bf16"}


def test_what_is_measured_between_processes_is_found_too() -> None:
    assert "retain-heap" in search({"retain-heap": 1.3, "amp-bf16": 1.2}).found.setting


def test_nothing_is_found_where_nothing_helps() -> None:
    assert search({}).found.setting == {}


def test_workers_are_found_and_kept_over_epochs() -> None:
    made = search({"loader-workers": 1.4})
    value = made.found.setting["loader-workers"]
    assert value["workers"] in (1, 2)
    assert value["persistent"] is True  # a start takes 0.05 s of an epoch of two seconds


def test_what_fails_its_proof_is_refused_with_the_figure() -> None:
    made = search({"amp-bf16": 1.6}, refused={"amp-bf16"})
    assert made.found.setting == {}
    assert set(verdicts(made)["amp-bf16"]) == {"refused"}  # as it is, and with a remedy
    assert made.found.tried[-1].reason or any(t.reason for t in made.found.tried)


def test_a_remedy_takes_the_place_of_what_was_refused() -> None:
    made = search({"fused-optimizer": 1.5}, refused_values={"fused"})
    assert made.found.setting == {"fused-optimizer": "foreach"}


@pytest.mark.parametrize(
    ("allow", "kept"), [(frozenset(), False), (frozenset({"statistics"}), True)]
)
def test_other_random_streams_need_to_be_allowed(allow: frozenset[str], kept: bool) -> None:
    made = search({"loader-workers": 1.4}, Scope(allow=allow), statistics={"loader-workers"})
    assert ("loader-workers" in made.found.setting) is kept


def test_a_failing_candidate_does_not_stop_the_search() -> None:
    made = search({"amp-bf16": 1.6, "compile": 3.0}, failing={"compile"})
    assert set(made.found.setting) == {"amp-bf16"}
    assert verdicts(made)["compile"] == ["failed"]


def test_children_that_come_to_their_end_void_the_pair_only() -> None:
    assert "amp-bf16" in search({"amp-bf16": 1.6}, fresh=0.2).found.setting


def test_only_and_skip() -> None:
    made = search({"amp-bf16": 1.6, "fused-optimizer": 1.5}, Scope(skip=("amp-bf16",)))
    assert set(made.found.setting) == {"fused-optimizer"}
    made = search({"amp-bf16": 1.6, "fused-optimizer": 1.5}, Scope(only=("amp-bf16",)))
    assert set(made.found.setting) == {"amp-bf16"}


def test_the_budget_is_kept() -> None:
    made = search({"amp-bf16": 1.01}, budget=5.0)
    assert made.bench.clock.spent < 5.0 + 2.0


def test_loaders_are_left_alone_where_data_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = replace(PROFILE, phases={**PROFILE.phases, "data": 0.0001})
    monkeypatch.setattr(f"{__name__}.PROFILE", free)
    made = search({"loader-workers": 1.4})
    assert verdicts(made)["loader-workers"] == ["not applicable"]


def test_every_unit_is_accounted_for() -> None:
    assert set(discover()) <= set(verdicts(search({})))


def test_an_idle_accelerator_is_told_of_and_tried_when_asked_for() -> None:
    profile, environment = PROFILE, replace(look(), gpus=({"name": "H200"},))
    told: list[str] = []
    found = collect(Scope(), profile, environment, lambda unit, why: told.append(why))
    assert "cuda is there and idle: --device cuda tries it" in told
    assert "accelerator" not in {unit.name for unit, _ in found}
    asked = collect(Scope(device="cuda"), profile, environment, lambda unit, why: None)
    assert ("accelerator", "cuda") in {(unit.name, str(value)) for unit, value in asked}


def test_what_a_plan_excludes_is_not_tried_on_top_of_it() -> None:
    made = search({"amp-bf16": 1.6, "amp-fp16": 1.6})
    pair = {"amp-bf16", "amp-fp16"}
    both = [t for t in made.found.tried if pair <= {t.name, *t.against.split(" + ")}]
    assert "amp-bf16" in made.found.setting and not both
