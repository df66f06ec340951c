"""The loss curves that `tune` compares at its end: how long they are, and what they drop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hasten.errors import HastenError
from hasten.instrument.shield.launch import ShieldMode
from hasten.records import Outcome, Profile
from hasten.tuning import curves
from hasten.tuning.curves import Room, objections
from hasten.tuning.listener import Listener
from hasten.tuning.plans import make_plan
from hasten.tuning.session import Session, TuneRequest
from hasten.tuning.verifying import Verifying, VerifyRequest, _Run
from hasten.verification import Counted, Followed, Judged, Verification

PLAN = {"amp-bf16": True}


class Quiet(Listener):
    """Hears nothing."""


def judged(verdict: str) -> Judged:
    return Judged("final loss", verdict, 0.05, "given", 0.5, 0.61, 0.11, 0.08, 0.14, 5, 0.95)


def found(verdict: str = "holds", **changes: Any) -> Verification:
    facts: dict[str, Any] = {
        "verdict": verdict, "judged": (judged("not worse"),), "broken": (), "pairs": (),
        "iterations": 60, "smoothed": 12, "seeds": "seeded", "setting": PLAN,
    }  # fmt: skip
    return Verification(**{**facts, **changes})


@pytest.mark.parametrize(
    ("budget", "start", "iteration", "iterations"),
    [
        (180.0, 5.0, 0.01, 200),  # no more than says enough
        (180.0, 5.0, 0.1, 36),  # a fifth of the budget
        (180.0, 5.0, 0.4, 20),  # so few take less than half of it
        (180.0, 5.0, 0.5, 0),
        (180.0, 6.0, 0.1, 0),  # ten starts alone would take a third of it
    ],
)
def test_how_many_iterations(
    budget: float, start: float, iteration: float, iterations: int
) -> None:
    room = Room(budget, start, iteration, seeds=5)
    assert room.iterations == iterations
    assert 10 * room.iterations * iteration <= budget / 2


def test_starts_side_by_side_take_less() -> None:
    assert Room(180.0, 6.0, 0.1, seeds=5, together=True).iterations == 36


def test_the_refusal_says_what_it_would_take() -> None:
    text = Room(60.0, 20.0, 0.1, seeds=5).refusal
    assert "10 runs of 20 iterations would take 4 min beside a budget of 60 s" in text
    assert text.endswith("hasten verify does it")


def test_objections() -> None:
    assert objections(found()) == []
    assert objections(found("cannot tell", judged=(judged("cannot tell"),))) == []
    (line,) = objections(found("broken", judged=(judged("worse"),)))
    assert line.startswith("the plan learns less, and is dropped: final loss 0.5, under it 0.61")
    (line,) = objections(found("broken", broken=("optimizer steps: 9, under the plan 8",)))
    assert line.endswith("and is dropped: optimizer steps: 9, under the plan 8")


def test_both_runs_of_a_pair_may_go_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And come out with their own results, whichever ends first."""
    for together in (False, True):
        order: list[str] = []

        def child(self: Any, setting: Any, number: int, order: list[str] = order) -> Any:
            name = "plan" if setting else "as it is"
            for step in range(3 if setting else 2):
                order.append(f"{name} {step}")
                yield
            return _Run(Followed(iterations=(Counted(loss=len(name)),)), None)

        monkeypatch.setattr(Verifying, "_child", child)
        verifying = Verifying(VerifyRequest(("x.py",), PLAN, together=together), print)
        runs = verifying._both(0)
        assert [run.followed.iterations[0].loss for run in runs if run] == [8, 4]
        ours = [order.index(f"as it is {step}") for step in range(2)]
        assert (order.index("plan 0") < ours[1]) is together


# --- in a session ------------------------------------------------------------------------------


def session(curves: int = 5, start: float = 1.0) -> Session:
    made = Session.__new__(Session)
    made.request = TuneRequest(("train.py",), curves=curves)
    made.mode, made.notes, made.listener = ShieldMode.REDIRECT, [], Quiet()
    made.driver = SimpleNamespace(  # type: ignore[assignment]
        close=lambda: None, start_seconds=start, together=True, iterations=100, shield=""
    )
    made.confirmation, made.verified = None, None
    return made


def search(profile: Profile, outcome: Outcome) -> Any:
    return SimpleNamespace(
        found=SimpleNamespace(setting=PLAN),
        bench=SimpleNamespace(profile=profile),
        outcome=lambda interrupted: outcome,
    )


@pytest.mark.parametrize(
    ("answer", "kept", "note"),
    [
        (found(), True, ""),
        (found("cannot tell", judged=(judged("cannot tell"),)), True, ""),
        (found("broken", judged=(judged("worse"),)), False, "the plan learns less"),
        (found("broken", broken=("samples: others",)), False, "the plan trains something else"),
        (HastenError("the script could not be followed"), True, "could not be compared: the"),
    ],
)
def test_a_plan_that_learns_less_is_dropped(
    make_profile: Callable[..., Profile],
    make_outcome: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    kept: bool,
    note: str,
) -> None:
    asked: list[VerifyRequest] = []

    def compare(request: VerifyRequest, listener: Listener) -> Verification:
        asked.append(request)
        if isinstance(answer, HastenError):
            raise answer
        return answer

    monkeypatch.setattr(curves, "compare", compare)
    made, searched = session(), search(make_profile(), make_outcome())
    made._compare_curves(searched)
    outcome = made._outcome(searched, interrupted=False)
    assert [(r.seeds, r.setting, r.shield, r.together) for r in asked] == [
        (5, PLAN, "redirect", True)
    ]
    assert 20 <= (asked[0].iterations or 0) <= 200
    assert bool(outcome.setting) is kept
    assert (note in " ".join(outcome.notes)) if note else not outcome.notes
    if isinstance(answer, Verification):
        plan = make_plan(("train.py",), outcome)
        assert plan.verified["final_loss"] == answer.judged[0].verdict
        assert plan.verified["iterations"] == 60 and plan.verified["final_loss_margin"] == 0.05
    assert outcome.verified is (answer if isinstance(answer, Verification) else None)


def test_they_are_left_out_where_they_would_take_too_long_or_are_not_wanted(
    make_profile: Callable[..., Profile],
    make_outcome: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curves, "compare", lambda *a: pytest.fail("nothing should be run"))
    searched = search(make_profile(), make_outcome())
    made = session(start=60.0)
    made._compare_curves(searched)
    assert made.notes and "hasten verify" in made.notes[0]
    made = session(curves=0)
    made._compare_curves(searched)
    assert made.notes == []
