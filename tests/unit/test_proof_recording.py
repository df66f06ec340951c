"""What can be recorded, what can't, and what is said then."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_proof_zoo import KINDS, NoEvents, Script, clean, simple
from torch import nn

from hasten.instrument.proof import Recording, judge
from hasten.instrument.seams.optimizer import OptimizerHandle
from hasten.instrument.seams.root import Root

__all__ = ["clean"]  # a fixture

BF16: dict[str, Any] = {"amp-bf16": "bfloat16"}


def passes(script: Script, candidate: dict[str, Any] | None = None, **options: Any) -> str:
    recording = script.record(**options)
    assert recording.complete is None
    proof = judge("x", "rounding", recording, script.switch, {}, candidate or BF16, "model")
    assert proof.passed, proof
    return proof.reason


@dataclass
class Plain:
    logits: torch.Tensor
    extra: Any = None


class Ordered(OrderedDict):  # type: ignore[type-arg]
    """Like the outputs of transformers: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Own:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda t: t, lambda o: o),
    "tuple": (lambda t: (t, t.detach()), lambda o: o[0]),
    "nested": (lambda t: {"a": [t, {"b": (t * 2, None)}]}, lambda o: o["a"][1]["b"][0]),
    "ordered": (lambda t: Ordered(logits=t, n=3), lambda o: o.logits),
    "loss": (lambda t: t.square().mean(), lambda o: o),
}


@pytest.mark.parametrize("shape", OUTPUTS)
def test_outputs_of_many_shapes(shape: str) -> None:
    make, take = OUTPUTS[shape]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))

        def forward(self, x: torch.Tensor) -> Any:
            return make(self.body(x))

    passes(simple(Model(), lambda: (torch.randn(64, 6),), lambda o: take(o).square().mean()))


@pytest.mark.parametrize("kind", [Plain, Own])
def test_outputs_of_own_classes_are_found(kind: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> Any:
            return kind(self.body(x))

    script = simple(Model(), lambda: (torch.randn(64, 6),), lambda o: o.logits.square().mean())
    passes(script, {"threads": 1})
    recording = script.record()
    proof = judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert "output.logits comes as bfloat16, not as float32" in proof.reason or proof.passed


def test_inputs_of_own_classes_are_copied() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x, self.name = torch.randn(64, 6), "train"

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)

        def forward(self, batch: Any, *, scale: float) -> torch.Tensor:
            batch.x.mul_(scale)
            return self.body(batch.x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterate() -> None:
        optimizer.zero_grad()
        model(Batch(), scale=2.0).square().mean().backward()
        optimizer.step()

    passes(Script([model], [optimizer], iterate))


def test_a_loss_handed_on_as_an_attribute_is_seen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.side = nn.Linear(6, 5), nn.Linear(6, 1)
            self.kl: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kl = self.side(x).square().mean()
            return self.body(x)

    model = Model()
    script = simple(model, lambda: (torch.randn(64, 6),), lambda o: o.square().mean() + model.kl)
    recording = script.record()
    assert set(recording.calls[0].gradients) == {"output", "kl"}
    kept = model.kl
    assert judge("x", "rounding", recording, script.switch, {}, BF16, "model").passed
    assert model.kl is kept


def test_the_second_network_of_a_gan_gets_its_inputs_gradient_compared() -> None:
    script = KINDS["gan"]()
    recording = script.record()
    names = [call.root.name for call in recording.calls]
    assert len(names) == 4
    assert len(recording.calls[-1].inputs()[2]) == 1


def test_a_script_that_is_in_autocast_already_is_replayed_there() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterate() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.randn(64, 16))
        out.float().square().mean().backward()
        optimizer.step()

    script = Script([model], [optimizer], iterate)
    recording = script.record()
    assert recording.calls[0].autocast.dtypes == [torch.bfloat16]
    proof = judge("x", "exact", recording, script.switch, {}, {}, "model")
    assert proof.passed and proof.numerics == "exact"


def test_only_the_first_calls_of_a_closure_are_kept() -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10)
    x, y = torch.randn(32, 6), torch.randn(32, 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    script = Script([model], [optimizer], lambda: optimizer.step(closure))
    recording = script.record(warmup=0)
    assert len(recording.calls) == 4 and recording.passed_over > 0
    assert judge("x", "rounding", recording, script.switch, {}, BF16, "model").passed
    proof = judge("x", "rounding", recording, script.switch, {}, {}, "optimizer")
    assert not proof.passed and "LBFGS can't step on copies" in proof.reason


def test_a_gradient_penalty_is_compared_to_the_second_order() -> None:
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterate() -> None:
        optimizer.zero_grad()
        x = torch.randn(64, 6, requires_grad=True)
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (g.norm(dim=1) - 1).square().mean().backward()
        optimizer.step()

    script = Script([model], [optimizer], iterate)
    recording = script.record()
    assert recording.calls[0].twice
    proof = judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert proof.passed, proof


# --- what can't be used -------------------------------------------------------------------


def refusal(script: Script, **options: Any) -> str:
    recording = script.record(**options)
    assert recording.complete is not None
    proof = judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert not proof.passed and proof.reason == f"not proven: {recording.complete}"
    return recording.complete


def test_no_call() -> None:
    recording = Recording(KINDS["mlp"]().roots, [])
    recording.start()
    recording.finish()
    assert recording.complete == "no training call of Sequential in this iteration"


def test_no_gradient() -> None:
    model = nn.Linear(4, 2)
    script = Script([model], [], lambda: model(torch.randn(3, 4)))
    assert refusal(script) == "no gradient came back to the outputs of Linear"


def test_backward_inside_the_call() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            out.sum().backward(retain_graph=True)
            return out

    model = Model(4, 2)
    script = simple(model, lambda: (torch.randn(3, 4),), lambda out: out.sum())
    assert refusal(script) == "Model calls backward itself"


def test_no_tensor_in_the_output() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            out = super().forward(x)
            return lambda: out

    script = simple(Model(4, 2), lambda: (torch.randn(3, 4),), lambda out: out().sum())
    assert refusal(script) == "Model returns no tensor that can be found"


def test_too_large() -> None:
    script = KINDS["mlp"]()
    assert "more than the 1 MiB allowed" in refusal(script, limit_bytes=100)


def test_an_output_gradient_that_is_too_large() -> None:
    script = simple(nn.Linear(4, 4000), lambda: (torch.randn(300, 4),), lambda out: out.sum())
    assert "too large to record its gradient" in refusal(script, limit_bytes=1_000_000)


def test_a_root_without_a_call_is_told_beside_the_verdict() -> None:
    script = KINDS["mlp"]()
    other = nn.Linear(2, 2)
    script.roots.append(Root(other, True, NoEvents()))
    recording = script.record()
    assert recording.complete == "no training call of Linear in this iteration"
    proof = judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert proof.passed and proof.reason.endswith("no training call of Linear in this iteration")


def test_a_large_optimizer_is_sampled() -> None:
    model = nn.Sequential(*[nn.Linear(50, 50) for _ in range(8)])
    script = simple(model, lambda: (torch.randn(4, 50),), lambda out: out.sum())
    recording = script.record(limit_bytes=400_000)
    step = recording.steps[0]
    assert 0 < len(step.names) < 16 and step.skipped == 16 - len(step.names)
    proof = judge("x", "rounding", recording, script.switch, {}, FUSED, "optimizer")
    assert proof.passed and "not looked at" in proof.reason


FUSED = {"fused-optimizer": "fused"}


# --- a reference that can't be compared with ----------------------------------------------


def test_a_model_that_differs_from_itself() -> None:
    class Model(nn.Linear):
        generator = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.rand(2, generator=self.generator)

    script = simple(Model(4, 2), lambda: (torch.randn(3, 4),), lambda out: out.sum())
    proof = judge("x", "exact", script.record(), script.switch, {}, BF16, "model")
    assert not proof.passed
    assert "the model differs from itself on the same input" in proof.reason


def test_small_differences_from_itself_are_what_an_exact_candidate_may_have() -> None:
    class Model(nn.Linear):
        generator = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.rand((len(x), 2), generator=self.generator)
            return super().forward(x) * (1 + 1e-6 * noise)

    script = simple(Model(4, 2), lambda: (torch.randn(3, 4),), lambda out: out.sum())
    proof = judge("x", "exact", script.record(), script.switch, {}, {}, "model")
    assert proof.passed and proof.reason.startswith("within the own noise of the model"), proof
    proof = judge("x", "exact", script.record(), script.switch, {}, BF16, "model")
    assert not proof.passed


def test_a_reference_that_is_not_finite() -> None:
    script = simple(
        nn.Linear(4, 2), lambda: (torch.full((3, 4), torch.inf),), lambda out: out.sum()
    )
    script.optimizers = []
    proof = judge("x", "rounding", script.record(warmup=0), script.switch, {}, BF16, "model")
    assert not proof.passed and "the script's own gradient isn't finite" in proof.reason


def test_a_candidate_that_is_not_finite() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return out / 0 if torch.is_autocast_enabled("cpu") else out

    script = simple(Model(4, 2), lambda: (torch.randn(3, 4),), lambda out: out.sum())
    proof = judge("x", "rounding", script.record(), script.switch, {}, BF16, "model")
    assert not proof.passed and "aren't finite" in proof.reason


def test_kind_and_class_are_checked() -> None:
    script = KINDS["mlp"]()
    with pytest.raises(ValueError, match="loader"):
        judge("x", "rounding", script.record(), script.switch, {}, {}, "loader")


def test_steps_of_other_optimizers_are_left_alone() -> None:
    script = KINDS["mlp"]()
    recording = Recording(script.roots, [OptimizerHandle(script.optimizers[0])])
    recording.before_step(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert not recording.steps
