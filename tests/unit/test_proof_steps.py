"""Optimizer implementations are judged on copies, and broken ones are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_proof_zoo import Script, clean, simple
from torch import nn

from hasten.instrument import patching
from hasten.instrument.proof import judge
from hasten.instrument.seams import optimizer as seam
from hasten.records import Proof

__all__ = ["clean"]  # a fixture

FUSED = {"fused-optimizer": "fused"}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5, weight_decay=0.1, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def script_with(optimizer: Callable[[Any], torch.optim.Optimizer], dtype: Any = None) -> Script:
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)]
    model = nn.Sequential(*layers).to(dtype or torch.float32)
    kind = dtype or torch.float32
    return simple(
        model,
        lambda: (torch.randn(8, 3, 8, 8, dtype=kind),),
        lambda out: out.square().mean(),
        optimizer,
    )


def prove(
    script: Script, candidate: dict[str, Any], after: Callable[[], None] | None = None
) -> Proof:
    """Judge a candidate; `after` is what a fault does when the candidate is put into force."""
    recording = script.record()

    def switch(setting: dict[str, Any]) -> None:
        script.switch(setting)
        if setting and after is not None:
            after()

    return judge("x", "rounding", recording, switch, {}, candidate, "optimizer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", ["fused", "foreach", "forloop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_honest_implementations_pass(name: str, which: str, dtype: torch.dtype) -> None:
    if torch.__version__.startswith("2.6.") and dtype is torch.bfloat16 and which != "forloop":
        # Seen on the CPU: fused SGD errs by 1.0, others round more coarsely than the bound allows.
        pytest.skip("torch 2.6 itself is wrong or coarse here, and is refused")
    for seed in range(3):
        torch.manual_seed(seed)
        proof = prove(script_with(OPTIMIZERS[name], dtype), {"fused-optimizer": which})
        assert proof.passed, proof


def lost_group(name: str) -> Proof:
    """The last parameter of an optimizer isn't stepped any more."""
    script = script_with(OPTIMIZERS[name])
    group = script.optimizers[0].param_groups[0]
    everyone = list(group["params"])
    return prove(script, FUSED, lambda: group.update(params=everyone[:-1]))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_lost_group_is_refused(name: str) -> None:
    proof = lost_group(name)
    assert not proof.passed
    assert proof.reason == "`4.bias` is no longer updated: the optimizer has lost it"


def test_another_learning_rate_is_refused() -> None:
    script = script_with(OPTIMIZERS["adam"])
    group = script.optimizers[0].param_groups[0]
    proof = prove(script, FUSED, lambda: group.update(lr=group["lr"] * 1.01))
    assert proof.reason == "lr of group 0 becomes 0.00101, it was 0.001"


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_lost_state_is_refused(name: str) -> None:
    script = script_with(OPTIMIZERS[name])
    kept = copy.copy(script.optimizers[0].state)
    proof = prove(script, FUSED, script.optimizers[0].state.clear)
    script.optimizers[0].state.update(kept)
    assert not proof.passed, proof


def old_strides(name: str) -> tuple[Proof, Proof]:
    """State in the old strides under fused, and the same with its strides put right."""
    script = script_with(OPTIMIZERS[name])
    for _ in range(2):
        script.iterate()
    script.models[0].to(memory_format=torch.channels_last)
    recording = script.record(warmup=0)
    patch = patching.replace(seam, "align_state", lambda optimizer: None)
    broken = judge("x", "rounding", recording, script.switch, {}, FUSED, "optimizer")
    patching.restore(patch)
    honest = judge("x", "rounding", recording, script.switch, {}, FUSED, "optimizer")
    return broken, honest


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_old_strides_under_fused_are_refused(name: str) -> None:
    """With channels_last weights and old-strided state the fused kernel is silently wrong."""
    broken, honest = old_strides(name)
    assert not broken.passed, broken
    assert "weight`, its gradient and its state differ in strides" in broken.reason, broken
    assert honest.passed, honest


def test_values_that_are_not_finite_are_told() -> None:
    script = script_with(OPTIMIZERS["adam"])
    recording = script.record()
    recording.steps[0].twin.param_groups[0]["params"][0].grad.fill_(torch.nan)
    proof = judge("x", "rounding", recording, script.switch, {}, FUSED, "optimizer")
    assert not proof.passed
    assert proof.reason == "not proven: the script's own update isn't finite at `0.weight`"
