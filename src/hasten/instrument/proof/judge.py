"""The proof: recorded calls and steps under two settings, and one line for the user."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hasten.instrument.proof.bounds import Check
from hasten.instrument.proof.judging_calls import CannotJudge, Sides, Verdict, judge_call
from hasten.instrument.proof.judging_steps import judge_step
from hasten.instrument.proof.recording import Recording
from hasten.instrument.proof.sensitivity import FINE_SECONDS
from hasten.instrument.proof.state import RandomState
from hasten.records import Proof, Setting

KINDS = ("model", "optimizer", "both")
_ORDER = ("exact", "rounding", "statistics")


def judge(
    name: str,
    numerics: str,
    recording: Recording,
    switch: Callable[[Setting], None],
    reference: Setting,
    candidate: Setting,
    kind: str,
    seconds: float = FINE_SECONDS,
) -> Proof:
    """Check on the script's own model what `candidate` changes against `reference`.

    To be called at an iteration border. Afterwards `reference` is in force, and nothing else of
    the script is different.

    Args:
        name: the optimisation, for the record.
        numerics: the class it declares, "exact" or "rounding".
        recording: of an earlier iteration.
        switch: puts a setting into force.
        reference: what is compared with; usually empty.
        candidate: what is judged.
        kind: what it touches: "model", "optimizer" or "both".
        seconds: for the replays of a call that only narrow a bound.

    Raises:
        ValueError: another kind or class.
    """
    if kind not in KINDS or numerics not in _ORDER:
        raise ValueError(f"kind {kind!r} or class {numerics!r} is none that can be judged")
    began = time.monotonic()
    sides = Sides(
        lambda: switch(reference),
        lambda: switch(candidate),
        recording.sensitivities,
        repr(reference),
        seconds,
    )
    with _untouched(sides):
        try:
            proof = _proof(name, numerics, _verdicts(recording, sides, kind))
        except CannotJudge as reason:
            proof = _refusal(name, numerics, f"not proven: {reason}")
        except Exception as error:  # of the script's code or of torch, under the candidate
            proof = _refusal(name, numerics, f"raises {_short(error)}")
    lacks = recording.lacks(kind)
    if lacks is not None and proof.passed:
        proof = dataclasses.replace(proof, reason=f"{proof.reason}; {lacks}")
    return dataclasses.replace(proof, seconds=time.monotonic() - began)


def _verdicts(recording: Recording, sides: Sides, kind: str) -> list[Verdict]:
    """One for each recorded call and step.

    Raises:
        CannotJudge: there is none.
    """
    verdicts = []
    if kind in ("model", "both"):
        for call in recording.calls:
            verdict = judge_call(call, sides)
            verdict.checks = [
                dataclasses.replace(c, text=c.line.replace(f"`{c.worst}`", f"`{full}`"), worst=full)
                for c in verdict.checks
                for full in [recording.qualified(call.root, c.worst)]
            ]
            verdicts.append(verdict)
            if verdict.failed:
                return verdicts
    if kind in ("optimizer", "both"):
        verdicts += [judge_step(step, sides) for step in recording.steps if step.originals]
    if not verdicts:
        raise CannotJudge(recording.lacks(kind) or "nothing was recorded")
    return verdicts


def _proof(name: str, numerics: str, verdicts: list[Verdict]) -> Proof:
    shown = max((v.numerics for v in verdicts), key=_ORDER.index)
    failed = [check for verdict in verdicts for check in verdict.failed]
    notes = "; ".join(dict.fromkeys(v.note for v in verdicts if v.note))
    check = max(
        failed or [c for v in verdicts for c in v.checks],
        key=lambda c: (c.rank if failed else 0, c.strain),
    )
    line = check.line
    passed = not failed
    if passed and numerics == "exact" and shown != "exact":
        noise = max(v.noise for v in verdicts)
        passed = noise > 0 and check.figure <= 4 * noise
        line = f"{'within the own noise of the model' if passed else 'not the same bits'}: {line}"
    if shown == "statistics":
        passed, line = False, f"{notes} ({line})"
    elif notes:
        line = f"{line}; {notes}"
    return Proof(name, shown, passed, _plain(check.figure), check.bound, check.worst, line)


def _refusal(name: str, numerics: str, reason: str) -> Proof:
    return Proof(name, numerics, False, 0.0, 0.0, "", reason)


@contextmanager
def _untouched(sides: Sides) -> Iterator[None]:
    """Random state and setting are put back, whatever happens."""
    state = RandomState()
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        sides.reference()
        torch.clear_autocast_cache()
        state.put()


def _plain(figure: float) -> float:
    """JSON knows no infinity."""
    return min(figure, 1e30)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


__all__ = ["KINDS", "Check", "judge"]
