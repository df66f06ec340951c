"""Attention by hand is recognised, however it is written, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hasten.diagnosis import FINE_PHASES, Examined, Observed, Place, Spread
from hasten.environment import look
from hasten.findings import Diagnosis, discover
from hasten.instrument.observe.alternatives import alternatives
from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.attention import Attention, Chain, replaced
from hasten.instrument.observe.attention_weights import Weights, without
from hasten.instrument.observe.functions import watch
from hasten.instrument.observe.instead import in_turns
from hasten.records import Profile
from hasten.statistics.turns import saved

ROWS, HEADS, LENGTH, WIDTH = 3, 2, 6, 4
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Form = Callable[["Model", torch.Tensor, torch.Tensor, torch.Tensor], Any]


class Model(nn.Module):
    """Makes queries, keys and values of (rows, heads, length, width), and calls a form of it."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.project = nn.Linear(8, 3 * HEADS * WIDTH)
        self.bias = nn.Parameter(torch.randn(1, HEADS, LENGTH, LENGTH))
        self.drop = nn.Dropout(0.25)
        self.register_buffer("lower", torch.ones(LENGTH, LENGTH).tril())

    def forward(self, x: torch.Tensor) -> Any:
        made = self.project(x).view(ROWS, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return self.form(self, made[0], made[1], made[2])


def causal(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(WIDTH))
    scores = scores.masked_fill(model.lower == 0, float("-inf"))
    return model.drop(F.softmax(scores, dim=-1)) @ v


def letters(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (rows, length, heads, width)
    energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
    weights = torch.softmax(energy / 8**0.5, dim=3)
    return torch.einsum("nhql,nlhd->nqhd", [weights, v])


def in_place(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2))
    scores /= 2.0
    scores[:, model.lower == 0] = -1e9
    return torch.bmm(scores.softmax(2), v)


def learned(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return (q @ k.mT + model.bias).float().softmax(-1).type_as(q) @ v


def padded(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    mask = torch.ones(ROWS, 1, 1, LENGTH, dtype=torch.bool)
    mask[0, ..., 4:] = False
    scores = torch.matmul(q, k.transpose(2, 3)).masked_fill(~mask, -1e9)
    return torch.matmul(nn.Softmax(dim=-1)(scores), v)


FORMS = {
    "causal": (causal, {"causal": True, "mask": False, "dropout": 0.25}),
    "letters": (letters, {"causal": False, "mask": False, "dropout": 0.0}),
    "in place": (in_place, {"causal": True, "mask": False, "dropout": 0.0}),
    "learned": (learned, {"causal": False, "mask": True, "dropout": 0.0}),
    "padded": (padded, {"causal": False, "mask": True, "dropout": 0.0}),
}


def fused(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def returned(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return {"result": weights @ v, "weights": weights}


def penalised(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights.square().mean()


def over_queries(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return (q @ k.mT).softmax(-2) @ v


def clipped(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return (q @ k.mT).clamp(-1, 1).softmax(-1) @ v


OTHERS = (fused, returned, penalised, over_queries, clipped)


def squared(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = q @ k.mT
    return (scores * scores.detach() * 9).softmax(-1) @ v


def shown(module: nn.Module, *args: Any) -> tuple[Any, Captured]:
    """A stand-in for the root of a training, and its call."""
    root = SimpleNamespace(module=module, own_compile=False, graphs=(0, 0, 0), device="cpu")
    captured = Captured()
    captured(cast(Any, root), lambda *args: None, args, {})
    return root, captured


def chains(form: Form) -> list[tuple[Chain, int]]:
    torch.manual_seed(0)
    watcher = Attention()
    assert watch(*shown(Model(form), torch.randn(ROWS, LENGTH, 8)), [watcher])
    return watcher.chains


@pytest.mark.parametrize("name", FORMS)
def test_it_is_recognised_and_the_kernel_gives_the_same(name: str) -> None:
    form, expected = FORMS[name]
    ((chain, count),) = chains(form)
    make = replaced(chain)
    assert make is not None and count == 1
    facts = chain.facts()
    assert {k: facts[k] for k in expected} == expected and facts["shape"][-2:] == [LENGTH, LENGTH]
    assert chain.at is not None and chain.at.function == form.__name__
    one = make()
    if not chain.dropout:
        torch.testing.assert_close(one.as_is(), one.instead(), rtol=1e-4, atol=1e-5)
        _same_gradients(one)


def _same_gradients(one: Any) -> None:
    """Of queries, keys and values; a bias that is learned is one leaf in each way."""
    leaves = [leaf for leaf in one.leaves if leaf.requires_grad][:3]
    result = one.as_is()
    weight = torch.randn_like(result)
    first = torch.autograd.grad(result, leaves, weight, allow_unused=True)
    second = torch.autograd.grad(one.instead(), leaves, weight, allow_unused=True)
    for a, b in zip(first, second, strict=True):
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", OTHERS, ids=lambda form: form.__name__)
def test_other_things_are_left_alone(form: Form) -> None:
    assert not chains(form)


def test_what_gives_other_numbers_is_no_attention() -> None:
    assert not chains(squared) or replaced(chains(squared)[0][0]) is None


def test_alike_ones_are_timed_once_and_counted() -> None:
    def twice(model: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return causal(model, q, k, v) + causal(model, q, k, v)

    root, captured = shown(Model(twice), torch.randn(ROWS, LENGTH, 8))
    (entry,) = alternatives([(root, captured)], 0.05)["attention"]
    assert entry["times"] == 2 and len(entry["as_is"]) == len(entry["instead"]) > 2
    assert entry["place"]["function"] == "causal" and not entry["library"]


class Heads(nn.Module):
    def __init__(self, use: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        y, weights = self.attention(x, x, x)
        return (y, weights.sum()) if self.use else y


@pytest.mark.parametrize("use", [False, True])
def test_weights_that_nothing_uses(use: bool) -> None:
    watcher = Weights()
    assert watch(*shown(Heads(use), torch.randn(2, 5, 8)), [watcher])
    if use:
        assert not watcher.calls
        return
    ((asked, count),) = watcher.calls
    assert count == 1 and asked.at is not None and "self.attention(x" in asked.at.code
    make = without(asked)
    assert make is not None
    one = make()
    torch.testing.assert_close(one.as_is(), one.instead(), rtol=1e-4, atol=1e-5)


def test_weights_of_torchs_own_encoder_are_not_asked_for() -> None:
    watcher = Weights()
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    assert watch(*shown(layer, torch.randn(2, 5, 8)), [watcher])
    assert not watcher.calls


def test_times_come_in_pairs_and_leaves_keep_no_gradient() -> None:
    ((chain, _),) = chains(letters)
    make = replaced(chain)
    assert make is not None
    made = []
    before, after = in_turns(lambda: made.append(make()) or made[-1], 9, "cpu", 0.01)
    assert len(before) == len(after) >= 3
    assert 1 < len(made) < 9 and all(leaf.grad is None for one in made for leaf in one.leaves)


# --- the findings ------------------------------------------------------------------------------

PLACE = {"file": "/home/me/model.py", "line": 7, "code": "a = q @ k.mT", "function": "forward"}


def diagnosis(make: Callable[..., Profile], **facts: Any) -> Diagnosis:
    """An iteration of 100 ms, of which 80 are forward and backward, half of that on a core."""
    shares = {"forward": 0.03, "backward": 0.05}
    wall = {name: _spread(shares.get(name, 0.0)) for name in FINE_PHASES}
    used = {name: _spread(shares.get(name, 0.0) / 2) for name in FINE_PHASES}
    seen = Observed(
        10, _spread(0.1), _spread(0.05), wall, (), (), (), 1.0, (), 1.0, 10, 10, {}, None, used
    )
    return Diagnosis(make(device="cpu"), look(), seen, Examined(facts=facts))


def _spread(value: float) -> Spread:
    return Spread(value, value, value, value)


def entry(**more: Any) -> dict[str, Any]:
    times = {"as_is": [0.02 + 1e-4 * n for n in range(8)], "instead": [0.01] * 8}
    usual = {"place": PLACE, "library": "", "times": 4, "shape": [2, 4, 64, 64], "dropout": 0.1}
    return {**usual, "causal": True, "mask": False, **times, **more}


def test_the_cost_is_in_time_that_goes_by(make_profile: Callable[..., Profile]) -> None:
    (one,) = discover()["attention-by-hand"].look(diagnosis(make_profile, attention=[entry()]))
    assert one.place == Place(**PLACE)
    assert one.cost == pytest.approx(2 * 0.01, rel=0.1)
    assert "is_causal=True, dropout_p" in one.todo and "attn_mask" not in one.todo


def test_the_cost_is_a_part_of_forward_and_backward(make_profile: Callable[..., Profile]) -> None:
    slow = entry(as_is=[2.0 + n for n in range(8)], instead=[1.0] * 8)
    (one,) = discover()["attention-by-hand"].look(diagnosis(make_profile, attention=[slow]))
    assert one.cost is not None and one.cost < 0.08


@pytest.mark.parametrize("name", ["attention-by-hand", "attention-weights-unused"])
def test_it_has_to_be_sure_and_worth_it(make_profile: Callable[..., Profile], name: str) -> None:
    kind = "attention" if "hand" in name else "weights"
    mixed = entry(instead=[0.01, 0.03] * 4)
    few = entry(as_is=[0.02] * 4, instead=[0.01] * 4)
    small = entry(as_is=[0.0011] * 8, instead=[0.0010] * 8)
    for case in (mixed, few, small):
        assert not list(discover()[name].look(diagnosis(make_profile, **{kind: [case]})))
    assert list(discover()[name].look(diagnosis(make_profile, **{kind: [entry()]})))


def test_a_librarys_line_is_said(make_profile: Callable[..., Profile]) -> None:
    lines = entry(place=None, library="/usr/lib/transformers/models/gpt.py:40")
    (one,) = discover()["attention-by-hand"].look(diagnosis(make_profile, attention=[lines]))
    assert one.place is None and "transformers/models/gpt.py:40" in one.summary
    assert 'attn_implementation="sdpa"' in one.todo


def test_what_is_saved_has_an_interval() -> None:
    found = saved([5.0, 6.0, 7.0, 5.0, 6.0, 9.0], [4.0] * 6)
    assert (found.median, found.low, found.high) == (2.0, 1.0, 5.0)
    assert saved([2.0] * 5, [1.0] * 5).low == -math.inf
    many = saved([1.0 + n for n in range(15)], [1.0] * 15)
    assert (many.low, many.high) == (3.0, 11.0)
    assert dataclasses.is_dataclass(many)
