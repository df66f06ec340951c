"""The verdict on one recorded optimizer step: do both implementations move the same way?"""

from __future__ import annotations

import dataclasses
from typing import Any

from hasten.instrument.proof.bounds import (
    Check,
    Deviations,
    check_errors,
    check_finite,
    check_scale,
    scale,
    weights,
)
from hasten.instrument.proof.deviation import Deviation, compare
from hasten.instrument.proof.judging_calls import CannotJudge, Sides, Verdict
from hasten.instrument.proof.rounding import Format, Noise, coarsest
from hasten.instrument.proof.sensitivity import DRAWS
from hasten.instrument.proof.steps import FLAGS, STEPS, RecordedStep, Steps

#: A movement below so many roundings of the parameter itself is lost in them.
_ROUNDINGS = 8
#: On the sensitivity: a step has no long sums, whose order could matter.
_FACTOR = 4.0


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
    options = _options(step)
    sides.candidate()
    changed = _changed(_options(step), options)
    seen = step.steps()
    updates, state = _against(seen, first, unit)
    if not changed and all(d.equal for part in (updates, state) for d in part.values()):
        text = f"same bits in the updates of {len(step.names)} parameters"
        return Verdict([Check("bits", "", 0.0, 0.0, text)], "exact", _skipped(step))
    checks = changed or [
        c for w, p in (("update", updates), ("state", state)) if (c := check_finite(w, p))
    ]
    if not checks:
        sides.reference()
        checks = _compared(step, first, (updates, state), unit)
        if not all(check.passed for check in checks):
            checks += _causes(seen, updates)
    return Verdict(checks, "rounding", _skipped(step))


def _options(step: RecordedStep) -> list[dict[str, Any]]:
    """What the groups are set to now, apart from which implementation runs."""
    hidden = ("params", *FLAGS)
    groups = step.optimizer.param_groups
    return [{k: v for k, v in group.items() if k not in hidden} for group in groups]


def _changed(now: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[Check]:
    """Options that differ, such as a learning rate."""
    checks = []
    for index, (a, b) in enumerate(zip(now, before, strict=False)):
        for key in [k for k in b if k not in a or bool(a[k] != b[k])]:
            text = f"{key} of group {index} becomes {a.get(key)}, it was {b[key]}"
            checks.append(Check("option", f"group {index}", 1.0, 0.0, text, rank=2))
    return checks


def _compared(
    step: RecordedStep, first: Steps, found: tuple[Deviations, Deviations], unit: Format
) -> list[Check]:
    """At the least bounds first: draws only widen them, so what passes needs none."""
    updates, state = ({n: _still(d) for n, d in part.items()} for part in found)
    checks = _checked(found, [(updates, state)], first, unit)
    if all(check.passed for check in checks):
        return checks
    moved = [
        _against(step.steps(Noise(unit.unit, 3000 + k).move), first, unit) for k in range(DRAWS)
    ]
    return _checked(found, moved, first, unit)


def _still(deviation: Deviation) -> Deviation:
    """A draw that changed nothing."""
    return dataclasses.replace(deviation, difference=0.0, product=deviation.reference)


def _checked(
    found: tuple[Deviations, Deviations],
    moved: list[tuple[Deviations, Deviations]],
    first: Steps,
    unit: Format,
) -> list[Check]:
    """Every figure against what draws that moved like this allow."""
    updates, state = found
    move_draws = [_rounded(u, first, unit) for u, _ in moved]
    state_draws = [s for _, s in moved]
    checks = check_errors("update error", updates, move_draws, unit, False, _FACTOR)
    checks += check_errors("state error", state, state_draws, unit, False, _FACTOR)
    weight = weights(move_draws)
    draws = [scale(d, weight) for d in move_draws]
    check = check_scale(draws, [scale(updates, weight)], unit)
    # With parameters in a reduced format, implementations that round momentum once or twice
    # differ in the mean as well, by up to a rounding.
    bound = check.bound + (unit.unit if unit.reduced else 0.0)
    text = f"the update is off by {check.figure:.2%} in scale, allowed {bound:.2%}"
    return [*checks, dataclasses.replace(check, worst="update", bound=bound, text=text)]


def _causes(seen: Steps, updates: Deviations) -> list[Check]:
    """Failing checks that name the cause, when it is one that can be seen."""
    checks = []
    for name, d in updates.items():
        if d.reference > d.floor and d.gone == d.reference:
            text = f"`{name}` is no longer updated: the optimizer has lost it"
            checks.append(Check("update", name, 1.0, 0.0, text, rank=2))
    for name in seen.misaligned:
        text = f"`{name}`, its gradient and its state differ in strides, which this step ignores"
        checks.append(Check("strides", name, 1.0, 0.0, text, rank=2))
    return checks


def _rounded(updates: Deviations, first: Steps, unit: Format) -> Deviations:
    """A draw, at least as far off as one rounding of the parameter a step makes it."""
    least = {name: STEPS * (unit.unit * size) ** 2 for name, size in first.sizes.items()}
    return {
        name: dataclasses.replace(d, difference=max(d.difference, least[name]))
        for name, d in updates.items()
    }


def _against(a: Steps, b: Steps, unit: Format) -> tuple[Deviations, Deviations]:
    floors = {name: (_ROUNDINGS * unit.unit * size) ** 2 for name, size in b.sizes.items()}
    return compare(a.updates, b.updates, floors), compare(a.state, b.state)


def _skipped(step: RecordedStep) -> str:
    return f"{step.skipped} large parameters of {step.name} not looked at" if step.skipped else ""
