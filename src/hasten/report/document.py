"""The document that `hasten tune --json` prints."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from hasten.plan import Plan
from hasten.records import PHASES, Outcome, Profile, Ratio, Tried
from hasten.report.phrases import run_command

#: Raised when a field changes its meaning or goes away; new fields don't count.
SCHEMA = 1


def document(outcome: Outcome, plan: Plan, written: Path | None) -> dict[str, Any]:
    """All of an outcome as plain data. Ratios above 1 are faster; times are named by their unit.

    Args:
        outcome: what was found.
        plan: the plan made of it.
        written: where the plan was written; None when it was not.
    """
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "hasten": plan.hasten,
        "environment": outcome.environment,
        "baseline": _baseline(outcome.profile),
        "tried": [_tried(tried) for tried in outcome.tried],
        "plan": {
            "path": None if written is None else str(written.resolve()),
            "settings": dict(plan.setting),
            "fingerprint": dict(plan.fingerprint),
            "script": plan.script,
            "arguments": list(plan.arguments),
            "command": run_command(script(plan), None if default(plan, written) else written),
        },
        "confirmed": _ratio(outcome.confirmed),
        "confirmed_verdict": outcome.confirmed_verdict,
        "counted": {"iterations": outcome.counted, "broken": list(outcome.broken)},
        "verified": None if outcome.verified is None else dataclasses.asdict(outcome.verified),
        "data_free": _ratio(outcome.data_free),
        "seconds": outcome.seconds,
        "compile_seconds": outcome.compile_seconds,
        "proof_seconds": outcome.proof_seconds,
        "iterations": outcome.iterations,
        "interrupted": outcome.interrupted,
        "shield": outcome.shield,
        "notes": list(outcome.notes),
    }
    plain: dict[str, Any] = finite(found)
    return plain


def script(plan: Plan) -> tuple[str, ...]:
    """Script and arguments of a plan as Python takes them."""
    if plan.script.startswith("-m "):
        return ("-m", plan.script[3:], *plan.arguments)
    return (plan.script, *plan.arguments)


def default(plan: Plan, written: Path | None) -> bool:
    """Whether `hasten run` finds the plan by itself."""
    if written is None:
        return True
    folder = Path() if plan.script.startswith("-m ") else Path(plan.script).parent
    return written.resolve() == (folder / "hasten.toml").resolve()


def _baseline(profile: Profile) -> dict[str, Any]:
    return {
        "iteration_ms": 1000 * profile.iteration,
        "iterations": len(profile.iteration_seconds),
        "phases_ms": {name: 1000 * profile.phases.get(name, 0.0) for name in PHASES},
        "profile": dataclasses.asdict(profile),
    }


def _tried(tried: Tried) -> dict[str, Any]:
    entry = dataclasses.asdict(tried)
    entry["class"] = entry.pop("numerics")
    return entry


def _ratio(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else dataclasses.asdict(ratio)


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON doesn't have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
