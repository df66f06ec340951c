"""The learning rate of another batch size: the rule, its plan, and steps with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import hasten.tuning.batches
from hasten.batching import MemoryUsed
from hasten.commands import main
from hasten.errors import HastenError
from hasten.instrument.seams.rates import ScaledRates
from hasten.plan import load
from hasten.records import OptimizerFacts
from hasten.tuning.batch_advice import changing, learning_rates
from hasten.tuning.batch_records import Measured, Point
from hasten.tuning.noise_scale import NoiseScale

Make = Callable[..., Any]


def trained(kind: Any, rate: Any, steps: int = 6) -> tuple[list[torch.Tensor], list[float]]:
    """Weights after some steps of a schedule, and the rates that a log would show."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": rate / 2}]
    optimizer = kind(groups, lr=rate)
    schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rates = []
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + step)).square().mean().backward()
        optimizer.step()
        schedule.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return [p.detach().clone() for p in model.parameters()], rates


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_are_those_of_another_rate_and_logs_those_of_the_script(kind: Any) -> None:
    rates = ScaledRates({"SGD": 4.0, "AdamW": 2.0}, lambda: True)
    factor = {"SGD": 4.0, "AdamW": 2.0}[kind.__name__]
    rates.install()
    try:
        weights, logged = trained(kind, 0.03125)
    finally:
        rates.uninstall()
    wanted, own = trained(kind, factor * 0.03125)[0], trained(kind, 0.03125)[1]
    assert all(torch.equal(a, b) for a, b in zip(weights, wanted, strict=True))
    assert logged == own


def test_other_optimizers_and_loaders_that_were_not_changed_keep_their_rate() -> None:
    own = trained(torch.optim.SGD, 0.01)[0]
    for rates in (ScaledRates({"Adam": 2.0}, lambda: True), ScaledRates({"SGD": 2}, lambda: False)):
        rates.install()
        try:
            found = trained(torch.optim.SGD, 0.01)[0]
        finally:
            rates.uninstall()
        assert all(torch.equal(a, b) for a, b in zip(found, own, strict=True))


def test_a_step_that_raises_leaves_no_rate_behind() -> None:
    class Failing(torch.optim.SGD):
        failed = False

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            if not Failing.failed:
                Failing.failed = True
                raise RuntimeError("out of memory")
            return super().step(closure)

    parameter = nn.Parameter(torch.zeros(1))
    optimizer = Failing([parameter], lr=1.0)
    parameter.grad = torch.ones(1)
    rates = ScaledRates({"Failing": 3.0}, lambda: True)
    rates.install()
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step()
        optimizer.step()
    finally:
        rates.uninstall()
    assert parameter.item() == -3.0 and optimizer.param_groups[0]["lr"] == 1.0


# --- the plan ----------------------------------------------------------------------------------


def facts(*names: str) -> tuple[OptimizerFacts, ...]:
    return tuple(OptimizerFacts(n, "torch.optim", 1, 1, 1, None, None, False, 1.0) for n in names)


def measured(make_profile: Make, noise: float) -> Measured:
    """A script at 32 samples that is twice as quick by the sample at 64, and no more at 128."""
    profile = dataclasses.replace(make_profile(), optimizers=facts("AdamW", "SGD"))
    loader = dataclasses.replace(profile.loader, batch_size=32)
    profile = dataclasses.replace(profile, loader=loader)
    points = [
        Point(size, MemoryUsed(size, "cpu", 10, 10, seconds=1.0), "", (1.0,), speed)
        for size, speed in ((32, 100.0), (64, 200.0), (128, 200.0))
    ]
    scale = NoiseScale(noise, noise / 2, noise * 2, 100, 32)
    return Measured(profile, 32, 1, 10**9, points, noise=scale)


def test_each_optimizer_has_its_own_rule() -> None:
    assert learning_rates(facts("AdamW", "SGD", "Lion"), 4.0) == {
        "AdamW": 2.0,
        "SGD": 4.0,
        "Lion": 2.0,
    }


def test_a_plan_for_the_advised_batch_size(make_profile: Make) -> None:
    value = changing(measured(make_profile, 1000.0))["batch-size"]
    assert (value["size"], value["from"]) == (64, 32)
    assert value["lr"] == {"AdamW": pytest.approx(2**0.5, abs=1e-6), "SGD": 2.0}
    assert changing(measured(make_profile, 1.0)) == {}, "its own batch is the best"


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(("batch", *arguments))
    return end.value.code if isinstance(end.value.code, int) else 0


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_profile: Make) -> Path:
    monkeypatch.chdir(tmp_path)
    play = measured(make_profile, 1000.0)
    monkeypatch.setattr(hasten.tuning.batches, "measure", lambda request, say: play)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path / "train.py"


def test_the_batch_size_is_changed_only_where_that_is_allowed(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("--output", "p.toml", "train.py") == 2
    assert "--allow statistics" in capsys.readouterr().err
    assert called("--allow", "statistics", "train.py") == 2
    assert "goes with --output" in capsys.readouterr().err
    assert called("--fit-memory", "1GiB", "--output", "p.toml", "train.py") == 0
    assert "there is nothing to change" in capsys.readouterr().err
    assert not (script.parent / "p.toml").exists()
    assert called("--allow", "statistics", "--output", "p.toml", "train.py") == 0
    shown = capsys.readouterr()
    assert "next: hasten run --plan p.toml train.py" in shown.err
    assert "learning rate with the square root of the batch size" in shown.out
    plan = load(script.parent / "p.toml")
    assert plan.setting["batch-size"]["size"] == 64
    assert plan.setting["batch-size"]["lr"]["SGD"] == 2.0
    assert "batch size 64" in plan.fingerprint["loader"]


@pytest.mark.parametrize("rates", ["{ SGD = 0 }", '{ SGD = "2" }', "2.0"])
def test_a_plan_with_odd_rates_is_refused(script: Path, rates: str) -> None:
    path = script.parent / "p.toml"
    value = f"{{ size = 64, from = 32, dataset = 'D', shuffled = true, lr = {rates} }}"
    path.write_text(f"schema = 1\n[settings]\nbatch-size = {value}\n")
    with pytest.raises(HastenError, match="numbers above 0 for lr"):
        load(path)
