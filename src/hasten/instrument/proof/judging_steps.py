"""The verdict on one recorded optimizer step: do both implementations move the same way?"""

from __future__ import annotations

import dataclasses

from hasten.instrument.proof.bounds import (
    Check,
    Deviations,
    check_errors,
    check_finite,
    check_scale,
    scale,
    weights,
)
from hasten.instrument.proof.deviation import compare
from hasten.instrument.proof.judging_calls import CannotJudge, Sides, Verdict
from hasten.instrument.proof.rounding import Format, Noise, coarsest
from hasten.instrument.proof.sensitivity import DRAWS
from hasten.instrument.proof.steps import RecordedStep, Steps

#: A movement below so many roundings of the parameter itself is lost in them.
_ROUNDINGS = 8


def judge_step(step: RecordedStep, sides: Sides) -> Verdict:
    """Step copies under both settings and compare what moved, and the state.

    Raises:
        CannotJudge: the reference isn't finite, or can't step on copies.
    """
    sides.reference()
    try:
        first = step.steps()
    except Exception as error:  # the script's own optimizer: anything may happen
        raise CannotJudge(
            f"{step.name} can't step on copies ({type(error).__name__}: {error})"
        ) from error
    unit = coarsest([p.dtype for p in step.originals], "cpu")
    bad = [n for n, d in compare(first.updates, first.updates).items() if d.reference_bad]
    if bad:
        raise CannotJudge(f"the script's own update isn't finite at `{bad[0]}`")
    sides.candidate()
    seen = step.steps()
    updates, state = _against(seen, first, unit)
    if all(d.equal for part in (updates, state) for d in part.values()):
        text = f"same bits in the updates of {len(step.names)} parameters"
        return Verdict([Check("bits", "", 0.0, 0.0, text)], "exact", _skipped(step))
    checks = [c for w, p in (("update", updates), ("state", state)) if (c := check_finite(w, p))]
    if not checks:
        sides.reference()
        checks = _compared(step, first, seen, unit)
    return Verdict(checks, "rounding", _skipped(step))


def _compared(step: RecordedStep, first: Steps, seen: Steps, unit: Format) -> list[Check]:
    moved = [
        _against(step.steps(Noise(unit.unit, 3000 + k).move), first, unit) for k in range(DRAWS)
    ]
    updates, state = _against(seen, first, unit)
    move_draws = [u for u, _ in moved]
    checks = check_errors("update error", updates, move_draws, unit, together=False)
    checks += check_errors("state error", state, [s for _, s in moved], unit, together=False)
    weight = weights(move_draws)
    draws = [scale(d, weight) for d in move_draws]
    check = check_scale(draws, [scale(updates, weight)], unit)
    return [*checks, dataclasses.replace(check, text=check.text.replace("gradient", "update"))]


def _against(a: Steps, b: Steps, unit: Format) -> tuple[Deviations, Deviations]:
    floors = {name: (_ROUNDINGS * unit.unit * size) ** 2 for name, size in b.sizes.items()}
    return compare(a.updates, b.updates, floors), compare(a.state, b.state)


def _skipped(step: RecordedStep) -> str:
    return f"{step.skipped} large parameters of {step.name} not looked at" if step.skipped else ""
