"""Honest settings pass on every kind of model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_proof_zoo import KINDS, Script, clean, labels, simple, skip_without_lstm
from torch import nn

from hasten.instrument.proof import judge
from hasten.records import Proof

__all__ = ["clean"]  # a fixture

EAGER_STREAM = {"options": {"fallback_random": True}}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "bf16": ({"amp-bf16": "bfloat16"}, "model"),
    "threads": ({"threads": 2}, "both"),
    "fused": ({"fused-optimizer": "fused"}, "optimizer"),
    "foreach": ({"fused-optimizer": "foreach"}, "optimizer"),
}
QUICK = ("mlp", "cnn", "lstm", "vae", "gan", "bag", "dropout")


def prove(kind: str, seed: int, setting: dict[str, Any], what: str, numerics: str) -> Proof:
    torch.manual_seed(seed)
    script = KINDS[kind]()
    recording = script.record()
    return judge("x", numerics, recording, script.switch, {}, setting, what)


@pytest.mark.parametrize(
    ("kind", "name"), [*((k, n) for k in QUICK for n in SETTINGS), ("handmade", "bf16")]
)
def test_honest(kind: str, name: str) -> None:
    skip_without_lstm(kind == "lstm" and name == "bf16")
    proof = prove(kind, 1, *SETTINGS[name], "rounding")
    assert proof.passed, proof


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_honest_in_twenty_trials(kind: str, name: str) -> None:
    if (kind, name) == ("sparse-bag", "fused"):
        pytest.skip("torch has no fused step for sparse gradients")
    skip_without_lstm(kind == "lstm" and name == "bf16")
    for seed in range(20):
        proof = prove(kind, seed, *SETTINGS[name], "rounding")
        assert proof.passed, (seed, proof)


def test_fused_refuses_sparse_gradients_with_the_reason() -> None:
    proof = prove("sparse-bag", 0, *SETTINGS["fused"], "rounding")
    assert not proof.passed and "does not support sparse gradients" in proof.reason


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["cnn", "dropout"])
def test_compiled_with_the_eager_random_stream(kind: str, bf16: bool) -> None:
    setting = {"compile": EAGER_STREAM, **({"amp-bf16": "bfloat16"} if bf16 else {})}
    proof = prove(kind, 0, setting, "model", "rounding")
    assert proof.passed, proof


def pooled_cnn() -> Script:
    """Biases before batch norms, and one number over all places as the output gradient."""
    blocks: list[nn.Module] = []
    for before in (3, 16, 16, 16):
        blocks += [nn.Conv2d(before, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return simple(
        nn.Sequential(*blocks, *head), lambda: (torch.randn(8, 3, 32, 32),), labels(8, 10)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_compiled_with_biases_before_batch_norm(seed: int) -> None:
    """Their gradients are zero but for rounding, which compiled code does in another order."""
    torch.manual_seed(seed)
    script = pooled_cnn()
    recording = script.record()
    setting = {"compile": EAGER_STREAM}
    proof = judge("x", "rounding", recording, script.switch, {}, setting, "model")
    assert proof.passed, proof


@pytest.mark.slow
def test_compiled_with_masks_of_its_own_is_statistics() -> None:
    proof = prove("dropout", 0, {"compile": {}}, "model", "rounding")
    assert not proof.passed and proof.numerics == "statistics"
    assert proof.reason.startswith("another random stream: statistics")


def test_the_same_setting_is_exact() -> None:
    proof = prove("cnn", 0, {}, "both", "exact")
    assert proof.passed and proof.numerics == "exact" and proof.figure == 0
    assert prove("cnn", 0, {}, "both", "rounding").numerics == "exact"


def test_a_unit_that_says_exact_but_rounds_is_refused() -> None:
    proof = prove("mlp", 0, {"amp-bf16": "bfloat16"}, "model", "exact")
    assert not proof.passed and proof.numerics == "rounding"
    assert proof.reason.startswith("not the same bits: ")


class Carried(nn.Module):
    """An LSTM whose cell holds on to what it has: every step rounds on top of those before."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(24, 32), nn.Linear(32, 12)
        with torch.no_grad():
            for bias in (self.lstm.bias_ih_l0, self.lstm.bias_hh_l0):
                bias[32:64] = 2.0  # the forget gate lets 98 % through

    def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        out, state = self.lstm(x, state)
        return self.head(out[-1]), state


def carried() -> Script:
    model, state = Carried(), [(torch.zeros(1, 8, 32), torch.zeros(1, 8, 32))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterate() -> None:
        optimizer.zero_grad()
        out, new = model(torch.randn(60, 8, 24), state[0])
        nn.functional.cross_entropy(out, torch.randint(12, (8,))).backward()
        optimizer.step()
        state[0] = tuple(s.detach() for s in new)

    return Script([model], [optimizer], iterate)


@pytest.mark.parametrize("seed", range(3))
def test_a_state_that_is_carried_far_passes_in_bfloat16(seed: int) -> None:
    skip_without_lstm(True)
    torch.manual_seed(seed)
    script = carried()
    enabled = torch._C._get_mkldnn_enabled()
    recording = script.record()
    proof = judge("x", "rounding", recording, script.switch, {}, {"amp-bf16": "bfloat16"}, "model")
    assert proof.passed, proof
    assert torch._C._get_mkldnn_enabled() == enabled


def six_dropouts() -> Script:
    """On the CPU in bfloat16 each of them multiplies by 1.1094 in place of 1 / 0.9."""
    layers: list[nn.Module] = []
    for before in (64, *[128] * 5):
        layers += [nn.Linear(before, 128), nn.GELU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    return simple(model, lambda: (torch.randn(64, 64),), labels(64, 10))


@pytest.mark.parametrize("seed", range(3))
def test_masks_that_all_round_alike_pass_in_bfloat16(seed: int) -> None:
    torch.manual_seed(seed)
    script = six_dropouts()
    recording = script.record()
    proof = judge("x", "rounding", recording, script.switch, {}, {"amp-bf16": "bfloat16"}, "model")
    assert proof.passed, proof


class WrongMask(nn.Module):
    """Keeps nine tenths, and says so of 0.91 in the reduced format."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = 0.9 if x.dtype == torch.float32 else 0.91
        return x * torch.empty_like(x).bernoulli_(0.9).div_(kept)


def test_a_mask_that_is_scaled_by_something_else_is_refused() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.GELU(), WrongMask(), nn.Linear(128, 10)]
    script = simple(nn.Sequential(*layers), lambda: (torch.randn(64, 64),), labels(64, 10))
    recording = script.record()
    proof = judge("x", "rounding", recording, script.switch, {}, {"amp-bf16": "bfloat16"}, "model")
    assert not proof.passed and "times the reference's" in proof.reason, proof
