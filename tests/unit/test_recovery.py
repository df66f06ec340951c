"""Recovery: what is tried in the place of a value that its proof has refused."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_proof_zoo import Script, clean
from torch import nn

from hasten.instrument.proof import judge, program
from hasten.instrument.seams.wide_functions import WideFunctions
from hasten.optimisations import discover, find
from hasten.optimisations.base import Optimisation
from hasten.records import Proof, Prove
from hasten.tuning.comparing import Clock
from hasten.tuning.proving import Proofs
from hasten.tuning.trial import Bundle

__all__ = ["clean"]  # a fixture


class Wrong(torch.autograd.Function):
    """A weight whose gradient comes out half as large again."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.5


class Fragile(nn.Linear):
    """Right in float32 only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = Wrong.apply(self.weight) if torch.is_autocast_enabled("cpu") else self.weight
        return nn.functional.linear(x, weight, self.bias)


class Net(nn.Module):
    def __init__(self, fragile: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.heads = nn.Sequential(*(Fragile(32, 32) for _ in range(fragile)))
        self.last = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.heads(self.body(x)))


def script(fragile: int = 1) -> Script:
    torch.manual_seed(0)
    model = Net(fragile)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))

    def iterate() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Script([model], [optimizer], iterate)


def prove(made: Script, value: Any) -> Proof:
    """The proof of amp-bf16 with this value."""
    unit = find("amp-bf16")
    seams: Any = type("Seams", (), {"roots": made.roots})()

    def switch(setting: dict[str, Any]) -> None:
        unit.disable(seams)
        if setting:
            unit.enable(seams, setting["amp-bf16"])

    recording = made.record()
    return judge("amp-bf16", "rounding", recording, switch, {}, {"amp-bf16": value}, "model")


@pytest.mark.parametrize("fragile", [1, 2])
def test_the_module_that_fails_is_kept_in_float32(fragile: int) -> None:
    """Each remedy names one more module, until the proof passes."""
    made, unit, value = script(fragile), find("amp-bf16"), True
    names = []
    for _ in range(fragile):
        proof = prove(made, value)
        assert not proof.passed, proof
        value, *_ = unit.remedies(value, proof)
        unit.check(value)
        names = value["float32"]
    assert sorted(names) == [f"heads.{k}" for k in range(fragile)]
    assert prove(made, value).passed
    assert not made.roots[0]._kept, "afterwards nothing is kept"


def test_three_modules_are_enough() -> None:
    refused = Proof("amp-bf16", "rounding", False, 1.0, 0.1, "e.weight", "")
    assert find("amp-bf16").remedies({"float32": ["a", "b", "c"]}, refused) == ()
    assert find("amp-bf16").remedies({"float32": ["e"]}, refused) == ()
    whole = Proof("amp-bf16", "rounding", False, 1.0, 0.1, "weight", "")
    assert find("amp-bf16").remedies(True, whole) == ({"functions": "float32"},)
    assert find("amp-bf16").remedies({"functions": "float32"}, whole) == ()


class Half(torch.autograd.Function):
    """What comes out of a function; its gradient is right where that was float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.narrow = x.dtype != torch.float32
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1.5 if ctx.narrow else 1.0)


class OwnLoss(nn.Module):
    """Returns a loss of its own, whose logarithm goes wrong in a reduced format."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Parameter(torch.randn(32, 4) / 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logs = Half.apply((self.net(x) @ self.head).log_softmax(-1))
        return -logs.gather(1, y[:, None]).mean()


def test_the_loss_inside_of_a_model_is_kept_in_float32() -> None:
    torch.manual_seed(0)
    model = OwnLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))

    def iterate() -> None:
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()

    made, unit = Script([model], [optimizer], iterate), find("amp-bf16")
    refused = prove(made, True)
    assert not refused.passed, refused
    *_, functions = unit.remedies(True, refused)
    assert not prove(made, {"float32": ["net"]}).passed, "a layer in float32 doesn't help here"
    unit.check(functions)
    assert functions == {"functions": "float32"}
    passed = prove(made, functions)
    assert passed.passed and passed.numerics == "rounding", passed
    assert made.roots[0]._wide is None, "afterwards nothing is kept"


def test_functions_that_lose_digits_run_in_float32() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    functions: list[Any] = [
        lambda h: h.softmax(-1), lambda h: nn.functional.softmax(h, dim=-1), lambda h: h.exp(),
        lambda h: h.abs() ** 0.5, lambda h: torch.logsumexp(h, -1), lambda h: h.sum(),
        lambda h: nn.functional.mse_loss(h, torch.zeros_like(h)), lambda h: h.mean(),
        lambda h: nn.functional.layer_norm(h, (16,)),
    ]  # fmt: skip
    for function in functions:
        with torch.autocast("cpu", torch.bfloat16), WideFunctions("cpu"):
            product = x @ w
            found = function(product)
        assert (product.dtype, found.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(found, function(product.float()))
    with WideFunctions("cpu"):
        assert (x.bfloat16() + 1).dtype == torch.bfloat16, "others stay as they are"


@pytest.mark.parametrize(
    "value",
    [{}, {"float32": []}, {"float32": "a"}, {"float32": [1]}, {"functions": True}, "float32"],
)
def test_values_that_a_plan_may_not_hold(value: Any) -> None:
    for name in ("amp-bf16", "amp-fp16"):
        with pytest.raises(ValueError):
            find(name).check(value)


def test_kept_modules_are_neither_pickled_nor_compiled() -> None:
    made = script()
    root = made.roots[0]
    root.autocast("bfloat16", keep=["heads.0", "Net.last", "nowhere"])
    assert root.run(torch.randn(2, 16)).dtype == torch.float32
    copy = pickle.loads(pickle.dumps(nn.Sequential(made.models[0].body, made.models[0].last)))
    assert copy[1]._compiled_call_impl is None
    root.compile({"backend": "eager"})
    assert not root.compiled, "dynamo would not see what is kept"
    root.autocast("bfloat16", functions=True)
    root.compile({"backend": "eager"})
    assert not root.compiled
    root.autocast(None)
    assert made.models[0].last._compiled_call_impl is None


def test_foreach_in_place_of_fused() -> None:
    refused = Proof("fused-optimizer", "rounding", False, 1.0, 0.1, "w", "")
    assert find("fused-optimizer").remedies("fused", refused) == ("foreach",)
    assert find("fused-optimizer").remedies("foreach", refused) == ()


@pytest.mark.parametrize("unit", discover().values(), ids=discover().keys())
def test_remedies_are_values_of_the_unit(unit: Optimisation, make_profile: Any) -> None:
    from hasten.environment import look

    refused = Proof(unit.name, "rounding", False, 1.0, 0.1, "layers.0.weight", "")
    for value in unit.applies(make_profile(), look()).values:
        for remedy in unit.remedies(value, refused):
            unit.check(remedy)
            assert remedy != value


# --- in a search -------------------------------------------------------------------------------


def answered(steps: Generator[Any, Any, str], refuse: Any, asked: list[Any]) -> str:
    """Play the child: it refuses some settings."""
    try:
        command = next(steps)
        while True:
            assert isinstance(command, Prove)
            asked.append(command.setting)
            passed = command.setting not in refuse
            figure = 0.0 if passed else 1.0
            answer = Proof(command.name, "rounding", passed, figure, 0.5, "head.weight", "too far")
            command = steps.send(answer)
    except StopIteration as end:
        return str(end.value)


def test_a_refused_value_leaves_others_of_its_unit_open() -> None:
    proofs, unit, asked = Proofs(frozenset()), find("fused-optimizer"), []
    refuse = [{"fused-optimizer": "fused"}]
    assert proofs.remedies(unit, "fused") == []
    assert answered(proofs.refusal(unit, "fused"), refuse, asked) == "too far"
    assert proofs.objection(unit) == "too far"
    assert proofs.remedies(unit, "fused") == [(unit, "foreach")]
    assert answered(proofs.refusal(unit, "foreach"), refuse, asked) == ""
    assert proofs.objection(unit, "fused") == "too far" and proofs.objection(unit, "foreach") == ""
    assert proofs.remedies(unit, "fused") == [], "it was tried"
    assert len(asked) == 2
    answered(proofs.refusal(unit, "fused"), refuse, asked)
    assert len(asked) == 2, "each value is proven once"


def test_one_iteration_with_the_same_bits_makes_no_promise() -> None:
    proofs = Proofs(frozenset())
    for name, found, shown in [
        ("fused-optimizer", "exact", "rounding"),
        ("loader-workers", "statistics", "statistics"),
        ("grads-to-none", "exact", "exact"),
    ]:
        steps = proofs.refusal(find(name), True)
        next(steps)
        with pytest.raises(StopIteration):
            steps.send(Proof(name, found, True, 0.0, 1.0, "", "fine"))
        assert proofs.numerics(find(name)) == shown


def test_the_parts_of_a_bundle() -> None:
    proofs, asked = Proofs(frozenset()), []
    amp, threads = find("amp-bf16"), find("threads")
    bundle = Bundle(((threads, 2), (amp, True)))
    refused = answered(proofs.refusal(bundle, bundle.setting), [{"amp-bf16": True}], asked)
    assert refused == "amp-bf16: too far"
    remedies = [{"float32": ["head"]}, {"functions": "float32"}]
    assert proofs.remedies(bundle, bundle.setting) == [(amp, value) for value in remedies]


def test_proofs_are_told_how_long_they_may_take_and_compiling_is_apart() -> None:
    clock = Clock(100.0)
    proofs, asked = Proofs(frozenset(), clock), []
    left = clock.left
    for name in ("amp-bf16", "threads", "grads-to-none", "fused-optimizer"):
        steps = proofs.refusal(find(name), True)
        asked.append(next(steps).seconds)
        with pytest.raises(StopIteration):
            steps.send(Proof(name, "rounding", True, 0.0, 1.0, "", "fine", 34.0, 30.0))
    assert asked == [5.0, 3.0, 1.0, 1.0], "of a tenth of the budget; and a second in any case"
    assert proofs.seconds == 16.0 and clock.compile_seconds == 120.0
    assert clock.left >= left, "what was compiled is not measuring"


def test_what_dynamo_compiles_is_known() -> None:
    known = {"_compile.compile_inner": [1.0, 2.0], "backward._backward_impl": [0.5], "gc": [9.0]}
    with pytest.MonkeyPatch.context() as patch:
        stand_in = SimpleNamespace(compilation_time_metrics=known)
        patch.setitem(sys.modules, "torch._dynamo.utils", stand_in)
        assert program._compiled() == 3.5
