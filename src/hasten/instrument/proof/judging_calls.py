"""The verdict on one recorded call: does the candidate compute what the reference computes?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hasten.instrument.proof.bounds import (
    SCALE_FLOOR,
    Check,
    Deviations,
    check_errors,
    check_finite,
    check_lost,
    errors,
    left_out,
)
from hasten.instrument.proof.calls import RecordedCall, Replay, replay
from hasten.instrument.proof.deviation import overall
from hasten.instrument.proof.random_draws import SameDraws
from hasten.instrument.proof.rounding import Format, coarsest
from hasten.instrument.proof.sensitivity import (
    FINE_SECONDS,
    Differences,
    Sensitivity,
    differences,
    fine_checks,
    measure,
)
from hasten.instrument.proof.streams import Stream, compare_streams

#: A model that differs from itself by more on the same input can't be compared with anything.
_OWN_NOISE = 0.01
#: A figure within so many times its bound is worth more draws, up to so many.
_CLOSE, _MORE_DRAWS = 5.0, 12
_NEARLY = 3.0  # ... and within so many times, the finer figures are looked at for a cause


class CannotJudge(Exception):
    """The reference itself doesn't allow a verdict; the text says why."""


@dataclass
class Verdict:
    """What was found for one call or step.

    Attributes:
        checks: figures against bounds; all have to pass.
        numerics: the class that showed: "exact", "rounding" or "statistics".
        note: what else the user should know.
        noise: the model's own difference from itself.
    """

    checks: list[Check] = field(default_factory=list)
    numerics: str = "exact"
    note: str = ""
    noise: float = 0.0

    @property
    def failed(self) -> list[Check]:
        """The checks that don't pass."""
        return [check for check in self.checks if not check.passed]


@dataclass
class Sides:
    """The two settings that are compared, as functions that put them into force."""

    reference: Callable[[], None]
    candidate: Callable[[], None]
    measured: dict[Any, Sensitivity]  # sensitivities that earlier candidates needed
    key: str  # of the reference
    seconds: float = FINE_SECONDS  # for the replays of a call that only narrow a bound


def judge_call(call: RecordedCall, sides: Sides) -> Verdict:
    """Replay a call under both settings and compare.

    Raises:
        CannotJudge: the reference isn't finite, or differs from itself.
    """
    sides.reference()
    formats = [call.root.reduced]
    first = replay(call)
    again = replay(call)
    sides.candidate()
    formats.append(call.root.reduced)
    dtypes = [p.dtype for p in call.parameters.values()]
    unit = coarsest([*dtypes, *call.autocast.dtypes, *formats], call.root.device)
    seen = replay(call)
    own = _own_noise(again, first, unit)
    found = differences(seen, first, unit)
    if found.equal:
        return Verdict([_same_bits(call)], "exact")
    if not unit.reduced and (checks := _near(first, seen, own, unit)):
        return Verdict(checks, "rounding", noise=_largest(own))
    verdict = _judge_rounding(call, sides, unit, own, (first, seen))
    verdict.noise = _largest(own)
    return verdict


def _own_noise(again: Replay, first: Replay, unit: Format) -> Differences:
    """The reference against itself.

    Raises:
        CannotJudge: it isn't finite, or too different.
    """
    own = differences(again, first, unit)
    for what, part in _parts(own):
        bad = [name for name, d in part.items() if d.reference_bad]
        if bad:
            raise CannotJudge(
                f"the script's own {what} isn't finite at `{bad[0]}`: nothing to compare with"
            )
        if part and errors({"all": overall(part)})["all"] > _OWN_NOISE:
            figures = errors(part)
            worst = max(figures, key=lambda n: figures[n])
            raise CannotJudge(
                f"the model differs from itself on the same input: {what} by "
                f"{figures[worst]:.2g} at `{worst}`"
            )
    return own


def _near(first: Replay, seen: Replay, own: Differences, unit: Format) -> list[Check]:
    """The checks, if all pass at the least bound of a full format, which no draw makes smaller.

    That is a hundred roundings, ten times below what would show in the scale: then neither draws
    nor the finer figures can change the verdict.
    """
    checks = _checks(first, seen, [own], unit)
    gradients = differences(seen, first, unit).gradients
    checks.append(check_lost(gradients, [left_out(own.gradients)], [left_out(gradients)]))
    return checks if all(check.passed for check in checks) else []


@dataclass
class _Attempt:
    """One replay of the candidate against the first of the reference."""

    seen: Replay
    checks: list[Check]
    mode: Callable[[], Any] | None = None  # in which it was replayed

    @property
    def strain(self) -> float:
        return max((check.strain for check in self.checks), default=0.0)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def _judge_rounding(
    call: RecordedCall,
    sides: Sides,
    unit: Format,
    own: Differences,
    replays: tuple[Replay, Replay],
) -> Verdict:
    first, seen = replays

    def attempt(seen: Replay, mode: Callable[[], Any] | None = None) -> _Attempt:
        return _Attempt(seen, _checked(call, sides, unit, own, (first, seen)), mode)

    best, note = attempt(seen), ""
    if not best.passed and (seen.drew or first.drew):
        same = _same_draws(call, sides)
        if same and _closer(other := attempt(same.seen, same.mode), best, first, unit):
            best = other
            note = f"random numbers are drawn {same.how}; compared with the same ones"
        elif (stream := _stream(call, sides, best)) is Stream.OTHER:
            return Verdict(best.checks, "statistics", "another random stream: statistics")
        elif stream is Stream.FIXED:
            return Verdict([*best.checks, _same_numbers()], "rounding", note)
    found = differences(best.seen, first, unit)
    gradients = found.gradients
    if not best.passed:
        best.checks = best.checks + _causes(found, best.checks)
    if best.strain > _NEARLY:
        return Verdict(best.checks, "rounding", note)
    # What is hardly beyond its bound is refused; the finer figures may know the cause.
    sensitivity = _sensitivity(call, sides, unit, first)
    fine = fine_checks(
        call,
        sensitivity,
        gradients,
        sides.reference,
        sides.candidate,
        best.mode,
        sides.seconds,
    )
    return Verdict(best.checks + fine, "rounding", note)


def _closer(other: _Attempt, best: _Attempt, first: Replay, unit: Format) -> bool:
    """Whether the same random numbers explain more than half of what differs.

    A fault besides them may strain one small tensor as much as other numbers do.
    """
    if other.strain < best.strain / 2:
        return True
    now, before = (differences(a.seen, first, unit) for a in (other, best))
    left, was = (overall(found.gradients).difference for found in (now, before))
    # Less is enough where what is left has a cause of its own.
    return left < was / 4 or (left < was and bool(_causes(now, other.checks)))


def _checked(
    call: RecordedCall,
    sides: Sides,
    unit: Format,
    own: Differences,
    replays: tuple[Replay, Replay],
) -> list[Check]:
    """Every check but the fine ones, with more draws where it is close.

    In a small model one unit that switches may be the whole error, and three draws may have
    missed it.
    """
    first, seen = replays
    sides.reference()
    sensitivity = _sensitivity(call, sides, unit, first)
    checks = _checks(first, seen, [*sensitivity.draws, own], unit)
    close = [check.strain < _CLOSE for check in checks if not check.passed]
    missing = _MORE_DRAWS - len(sensitivity.draws)
    if close and all(close) and missing > 0:
        sensitivity.draws += measure(call, unit, missing, len(sensitivity.draws), first).draws
        checks = _checks(first, seen, [*sensitivity.draws, own], unit)
    return checks


def _checks(first: Replay, seen: Replay, draws: list[Differences], unit: Format) -> list[Check]:
    """Every check but the fine ones."""
    found = differences(seen, first, unit)
    checks = [check for what, part in _parts(found) if (check := check_finite(what, part))]
    checks += _structure(first, seen)
    if checks:
        return checks
    checks += check_errors("gradient error", found.gradients, [d.gradients for d in draws], unit)
    checks += check_errors("output error", found.outputs, [d.outputs for d in draws], unit)
    updates = [d.updates for d in draws]
    return checks + check_errors(
        "buffer update error", found.updates, updates, unit, together=False
    )


def _causes(found: Differences, checks: list[Check]) -> list[Check]:
    """Failing checks that name the cause, when an error is one of scale, of holes or of neglect."""
    causes = []
    for what, part in (("gradient is", found.gradients), ("output is", found.outputs)):
        whole = overall(part)
        excess = whole.projection - 1
        if whole.difference and excess**2 * whole.reference > 0.9 * whole.difference:
            text = f"the {what} {whole.projection:.4f} times the reference's"
            causes.append(Check("scale", "gradient", abs(excess), SCALE_FLOOR, text, rank=1))
    for name, d in found.updates.items():
        if d.reference > d.floor and d.gone == d.reference:
            text = f"`{name}` is no longer updated: its statistics are stale"
            causes.append(Check("buffer", name, 1.0, 0.0, text, rank=2))
    holes = check_lost(found.gradients, [], [left_out(found.gradients)])
    explains = holes.rank and not holes.passed and _only_holes(found.gradients, checks)
    return [*causes, holes] if explains else causes


def _only_holes(gradients: Deviations, checks: list[Check]) -> bool:
    """Whether each gradient would pass but for the entries that are lost.

    Coarse roundings make zeros as well, but are far off elsewhere too.
    """
    rest = {n: replace(d, difference=max(0.0, d.difference - d.gone)) for n, d in gradients.items()}
    each, whole = errors(rest), errors({"all": overall(rest)})["all"]
    failed = [c for c in checks if c.what == "gradient error" and not c.passed]
    # The check of all gradients as one vector is the one with a text of its own.
    return all((whole if c.text else each[c.worst]) <= c.bound for c in failed)


def _same_numbers() -> Check:
    text = "the random numbers are the same in every call: a dropout mask is used again"
    return Check("random numbers", "", 1.0, 0.0, text, rank=2)


def _structure(first: Replay, seen: Replay) -> list[Check]:
    """Gradients that are missing, outputs that are missing or in another format."""
    checks = []
    for name, gradient in first.gradients.items():
        if gradient is not None and seen.gradients.get(name) is None:
            text = f"no gradient at `{name}`: it is detached, or used under no_grad"
            checks.append(Check("gradient", name, 1.0, 0.0, text, rank=2))
    for path, dtype in first.dtypes.items():
        now = seen.dtypes.get(path)
        if now is None or (now != dtype and path.startswith("output")):
            text = f"{path} comes as {_name(now)}, not as {_name(dtype)}"
            checks.append(Check("output", path, 1.0, 0.0, text, rank=2))
    return checks


@dataclass
class _SameDraws:
    """A replay of a candidate that drew the reference's random numbers."""

    seen: Replay
    mode: Callable[[], Any]  # in which it drew them
    how: str  # the candidate draws by itself


def _same_draws(call: RecordedCall, sides: Sides) -> _SameDraws | None:
    """None where the candidate draws as the reference does, or can't be made to."""
    root = call.root
    sides.reference()
    reduced, converted = root.reduced, root.converted
    sides.candidate()
    wide = root.reduced is not None and reduced is None
    rows = root.converted > 0 and converted == 0
    if root.compiled or not (wide or rows):
        return None
    mode = partial(SameDraws, wide, rows)
    try:
        seen = replay(call, mode=mode())
    except RuntimeError:  # an operation of the script's own that minds the format
        return None
    ways = [f"in {_name(root.reduced)}"] * wide + ["in another memory order"] * rows
    return _SameDraws(seen, mode, " and ".join(ways))


def _stream(call: RecordedCall, sides: Sides, attempt: _Attempt) -> Stream:
    if any(check.bound == 0.0 for check in attempt.checks):  # not finite, or missing
        return Stream.NEITHER
    return compare_streams(call, sides.reference, sides.candidate)


def _sensitivity(call: RecordedCall, sides: Sides, unit: Format, first: Replay) -> Sensitivity:
    """Measured once for a call, a format, a reference and the present weights."""
    versions = sum(p._version for p in call.parameters.values())
    key = (id(call), unit, sides.key, versions)
    if key not in sides.measured:
        measured = measure(call, unit, base=first)
        if not measured.draws:
            raise CannotJudge(f"a rounding in {unit.name} makes the script's own gradient infinite")
        sides.measured[key] = measured
    return sides.measured[key]


def _same_bits(call: RecordedCall) -> Check:
    return Check("bits", "", 0.0, 0.0, f"same bits in outputs and {len(call.parameters)} gradients")


def _largest(found: Differences) -> float:
    return max((e for _, part in _parts(found) for e in errors(part).values()), default=0.0)


def _parts(found: Differences) -> list[tuple[str, Any]]:
    return [
        ("gradient", found.gradients),
        ("output", found.outputs),
        ("buffer", found.updates),
    ]


def _name(dtype: Any) -> str:
    return "nothing" if dtype is None else str(dtype).removeprefix("torch.")
