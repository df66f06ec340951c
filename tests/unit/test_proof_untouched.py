"""A proof leaves nothing of the script different, to the bit."""

from __future__ import annotations

import copy
import random
import weakref
from typing import Any

import numpy
import pytest
import torch
from test_proof_zoo import KINDS, Script, clean, simple
from torch import nn

from hasten.instrument.proof import judge
from hasten.instrument.proof.deviation import same_bits
from hasten.instrument.proof.state import ModuleState

__all__ = ["clean"]  # a fixture

BF16: dict[str, Any] = {"amp-bf16": "bfloat16"}


def snapshot(script: Script) -> list[Any]:
    """Everything of a script that a proof could disturb."""
    held: list[Any] = [torch.get_rng_state(), random.getstate(), repr(numpy.random.get_state())]
    for model in script.models:
        for module in model.modules():
            held.append({k: v for k, v in vars(module).items() if k != "_compiled_call_impl"})
            held.append({k: id(v) for k, v in module._buffers.items()})
            held.append({k: len(v) for k, v in vars(module).items() if k.endswith("hooks")})
        held += [(id(p.grad), p.grad, p._version, p.requires_grad) for p in model.parameters()]
        held += [(b, b._version) for b in model.buffers()]
    for optimizer in script.optimizers:
        held.append(optimizer.state_dict())
        held.append([id(p) for group in optimizer.param_groups for p in group["params"]])
    held += [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_num_threads()]
    return copy.deepcopy(held)


def same(a: Any, b: Any) -> bool:
    """Equality to the bit of nested values."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same_bits(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, weakref.ref):
        return same(a(), b())
    return isinstance(a, nn.Module) or bool(a == b)


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("kind", ["cnn", "dropout", "lstm", "gan", "sparse-bag"])
def test_a_proof_leaves_no_trace(kind: str, none: bool) -> None:
    torch.manual_seed(0)
    script = KINDS[kind]()
    recording = script.record()
    if none:
        for optimizer in script.optimizers:
            optimizer.zero_grad(set_to_none=True)
    script.switch({})
    random.random()
    numpy.random.rand()
    before = snapshot(script)
    judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    judge("x", "rounding", recording, script.switch, {}, {"fused-optimizer": "forloop"}, "both")
    assert same(snapshot(script), before)


@pytest.mark.parametrize("kind", ["cnn", "dropout", "gan"])
def test_training_goes_on_as_if_there_had_been_no_proof(kind: str) -> None:
    ends = []
    for proven in (False, True):
        torch.manual_seed(7)
        script = KINDS[kind]()
        recording = script.record()
        if proven:
            judge("x", "rounding", recording, script.switch, {}, BF16, "model")
        for _ in range(3):
            script.iterate()
        ends.append([copy.deepcopy(model.state_dict()) for model in script.models])
    assert same(ends[0], ends[1])


class Failing(nn.Module):
    """Raises after it has changed all that a forward may change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.seen: list[float] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(float(torch.rand(())))
        y = self.head(self.norm(x))
        if torch.is_autocast_enabled("cpu"):
            raise ValueError("not in bfloat16")
        return y


def test_a_candidate_that_raises_is_refused_and_leaves_no_trace() -> None:
    script = simple(Failing(), lambda: (torch.randn(8, 4),), lambda out: out.sum())
    recording = script.record()
    script.switch({})
    before = snapshot(script)
    proof = judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert not proof.passed
    assert proof.reason == "raises ValueError: not in bfloat16"
    assert same(snapshot(script), before)


def test_a_graph_that_the_script_carries_stays_valid() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    script = simple(model, lambda: (torch.randn(8, 4),), lambda out: out.sum())
    recording = script.record()
    model.eval()
    carried = nn.Sequential(*model)(torch.randn(8, 4)).sum()
    model.train()
    judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    carried.backward()


def test_inputs_that_the_script_changes_in_place_were_copied() -> None:
    model, batch = nn.Linear(4, 2), torch.ones(3, 4)
    script = simple(model, lambda: (batch,), lambda out: out.sum())
    recording = script.record(warmup=0)
    batch.zero_()
    args, _, _ = recording.calls[0].inputs()
    assert args[0].sum() == 12


def test_hooks_of_the_script_on_accumulation_do_not_fire() -> None:
    fired = []
    script = KINDS["mlp"]()
    for parameter in script.models[0].parameters():
        parameter.register_post_accumulate_grad_hook(fired.append)
    recording = script.record()
    fired.clear()
    judge("x", "rounding", recording, script.switch, {}, BF16, "model")
    assert not fired


def test_observers_and_output_hooks_are_gone_after_recording() -> None:
    script = KINDS["mlp"]()
    kept: list[torch.Tensor] = []
    handle = script.models[0].register_forward_hook(lambda m, a, out: kept.append(out))
    script.record(warmup=0)
    handle.remove()
    assert all(root.observer is None for root in script.roots)
    assert not kept[0]._backward_hooks


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_scripted_module_is_put_back_as_well() -> None:
    """Its buffers lie in TorchScript's own holder, which is no dict."""
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    state = ModuleState(module)
    module(torch.randn(8, 3))
    moved = {name: b.clone() for name, b in module.named_buffers()}
    assert moved["1.num_batches_tracked"] == 1
    with state.in_force():
        assert dict(module.named_buffers())["1.num_batches_tracked"] == 0
        module(torch.randn(8, 3))
    assert all(torch.equal(b, moved[name]) for name, b in module.named_buffers())
