"""What may differ between baseline and plan, line by line, on made-up records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hasten.protocol import decode, encode
from hasten.report import verification as report
from hasten.tuning.invariants import broken, remarks, repeats, updates
from hasten.tuning.noninferiority import judge
from hasten.verification import Counted, Epoch, Follow, Followed, Pair, Verification

ROW = Counted(1.0, 1, 8, 80, "i", "c", 1, 0, (0.1,))
BASE = Followed(
    iterations=tuple(replace(ROW, indices=f"i{k}", content=f"c{k}") for k in range(6)),
    epochs=(Epoch(48, 48, "e"),),
    still=("frozen",),
    keys=("model 0: a", "model 0: b"),
    saved=("a",),
)


def rows(**changes: Any) -> Followed:
    """The third iteration changed."""
    kept = list(BASE.iterations)
    kept[2] = replace(kept[2], **changes)
    return replace(BASE, iterations=tuple(kept))


CASES = {
    "optimizer steps: 6 in 6 iterations, under the plan 5; the first difference": rows(steps=0),
    "scheduler steps: 0 in 6": rows(scheduler_steps=1),
    "backward passes: 6 in 6": rows(backwards=2),
    "samples an update: 8 in update 3, under the plan 4": rows(samples=4),
    "tokens an update: 80 in update 3, under the plan 79": rows(tokens=79),
    "learning rate: 0.1 in iteration 3, under the plan 0.2": rows(rates=(0.2,)),
    "samples: others than without the plan, from iteration 3 on": rows(indices="x"),
    "batches: the one of iteration 3 has been there before": rows(content="c1"),
    "iterations: 6, under the plan 5": replace(BASE, iterations=BASE.iterations[:5]),
    "epoch 1: 48 samples, 48 of them distinct, under the plan 48, 47 distinct": replace(
        BASE, epochs=(Epoch(48, 47, "f"),)
    ),
    "parameters that don't move any more: last": replace(BASE, still=("frozen", "last")),
    "parameters that move, and don't without the plan: frozen": replace(BASE, still=()),
    "checkpoint: lacks model 0: b": replace(BASE, keys=("model 0: a",)),
    "checkpoint: has in addition model 0: c": replace(BASE, keys=(*BASE.keys, "model 0: c")),
    "checkpoint: keys of a compiled wrapper: model 0: _orig_mod.a": replace(
        BASE, keys=("model 0: _orig_mod.a",)
    ),
    "saved by the script: lacks a": replace(BASE, saved=()),
}


def test_what_moves_by_rounding_alone_may_stand_still() -> None:
    """A bias before a batch norm: its gradient is nothing but rounding."""
    moves = replace(BASE, still=(), slight=("frozen",))
    assert broken(BASE, moves) == [] and broken(moves, BASE) == []
    without = replace(BASE, without_gradient=("frozen",))
    (line,) = broken(without, moves)
    assert line.startswith("parameters that move, and don't without the plan: frozen")
    (line,) = broken(replace(BASE, still=()), BASE)
    assert line.startswith("parameters that don't move any more: frozen")


@pytest.mark.parametrize(("line", "plan"), CASES.items(), ids=lambda value: str(value)[:30])
def test_each_is_named(line: str, plan: Followed) -> None:
    found = broken(BASE, plan)
    assert any(text.startswith(line) for text in found), found
    assert broken(plan, plan) == []


def test_nothing_is_broken_in_what_may_differ() -> None:
    loss, rate = rows(loss=1.1), rows(rates=(0.1 * (1 + 1e-8),))
    assert broken(BASE, loss) == broken(BASE, rate) == []
    other = rows(content="other")
    assert broken(BASE, other) == []
    assert "from iteration 3 on" in remarks(BASE, other)[0]


def test_another_order_is_told_from_other_samples() -> None:
    order = list(BASE.iterations)
    order[1], order[2] = order[2], order[1]
    (line,) = broken(BASE, replace(BASE, iterations=tuple(order)))
    assert line == "samples: in another order than without the plan, from iteration 2 on"


def test_a_batch_that_the_script_itself_repeats() -> None:
    same = replace(BASE, iterations=tuple(replace(row, content="c") for row in BASE.iterations))
    assert repeats(same) == [1, 2, 3, 4, 5]
    assert broken(same, same) == []


def test_updates_of_accumulated_gradients() -> None:
    steps = (0, 1, 0, 1, 0, 0)
    kept = tuple(replace(r, steps=s) for r, s in zip(BASE.iterations, steps, strict=True))
    followed = replace(BASE, iterations=kept)
    assert updates(followed, "samples") == [16, 16] and updates(followed, "tokens") == [160, 160]
    unknown = replace(followed, iterations=tuple(replace(r, tokens=None) for r in kept))
    assert updates(unknown, "tokens") == [None, None]


def test_records_survive_the_wire() -> None:
    for message in (Follow({"threads": 2}, 5), Follow({}), BASE):
        assert decode(encode(message)) == message


def test_losses_are_filled_where_an_iteration_has_none() -> None:
    assert rows(loss=None).losses == (1.0,) * 6


@pytest.fixture
def verified() -> Verification:
    loss = judge("final loss", [1.0, 1.1, 1.2], [1.01, 1.1, 1.19], 0.1)
    pair = Pair(0, (2.0, 1.0), (2.0, float("nan")))
    return Verification(
        "holds", (loss,), (), (pair,) * 3, 50, 10, "seeds", {"threads": 2}, ("a note",), "shield x"
    )


def test_the_report(verified: Verification) -> None:
    text = report.render(verified)
    assert "verdict: the plan holds over these iterations" in text
    assert "not worse beyond 0.1 (given)" in text and "note: a note" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    bad = report.render(replace(verified, verdict="broken", broken=("one", "two")))
    assert "broken under the plan:\n  one\n  two\n" in bad and "do not use it" in bad
    unsure = report.render(replace(verified, verdict="cannot tell"))
    assert "more --seeds or --iterations" in " ".join(unsure.split())


def test_the_document_is_strict_json(verified: Verification) -> None:
    text = json.dumps(report.document(verified), allow_nan=False)
    found = json.loads(text)
    assert found["schema"] == 1 and found["pairs"][0]["plan"] == [2.0, None]
