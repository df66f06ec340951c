"""What `hasten batch` found, as plain data: what `--json` prints and the report is made from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from hasten.tuning.batch_advice import Advice, advise
from hasten.tuning.batch_records import Measured, Point
from hasten.tuning.fitting import best
from hasten.tuning.memory_model import taken

SCHEMA = 1


def document(found: Measured) -> dict[str, Any]:
    """One document; sizes in samples, memory in bytes, times in seconds unless relative."""
    advice = advise(found)
    confirmed = found.confirmed
    return {
        "schema": SCHEMA,
        "batch_size": found.own,
        "iterations_per_step": found.window,
        "sizes": [_row(p, found, advice) for p in sorted(found.points, key=lambda p: p.size)],
        "memory": _memory(found),
        "limit": found.limit,
        "largest": found.largest,
        "confirmed": None if confirmed is None else _confirmed(confirmed, found.predicted),
        "stopped": found.stopped,
        "knee": advice.knee,
        "noise_scale": _noise(found),
        "no_noise_scale": found.no_noise,
        "advice": _advice(found, advice),
        "savings": _savings(found),
        "notes": found.notes,
        "shield": found.shield,
    }


def _row(point: Point, found: Measured, advice: Advice) -> dict[str, Any]:
    used = point.used
    marks = [
        name
        for name, size in (("knee", advice.knee), ("advised", advice.best))
        if size == point.size and (name == "knee" or size != found.own)
    ]
    return {
        "size": point.size,
        "failed": point.failed,
        "samples_per_second": point.samples_per_second,
        "turns": list(point.turns),
        "iteration_seconds": used.seconds if used else None,
        "memory": used.peak if used else None,
        "resident": used.resident if used else None,
        "taken": taken(used) if used else None,
        "time_to_loss": advice.times.get(point.size),
        "marks": marks,
    }


def _memory(found: Measured) -> dict[str, Any] | None:
    model = found.model
    if model is None:
        return None
    fixed, per_sample = model.line(max(model.sizes))
    return {
        "fixed": fixed,
        "per_sample": per_sample,
        "around": model.around,
        "around_per_sample": model.around_per_sample,
        "residual": model.residual,
        "aligned": model.aligned,
        "sizes": list(model.sizes),
    }


def _confirmed(point: Point, predicted: float) -> dict[str, Any]:
    used = point.used
    return {
        "size": point.size,
        "failed": point.failed,
        "predicted": predicted,
        "measured": used.peak if used else None,
        "taken": taken(used) if used else None,
    }


def _noise(found: Measured) -> dict[str, Any] | None:
    noise = found.noise
    if noise is None:
        return None
    return {
        "samples": _finite(noise.samples),
        "low": noise.low,
        "high": _finite(noise.high),
        "steps": noise.steps,
        "batch_size": noise.batch_size,
    }


def _advice(found: Measured, advice: Advice) -> dict[str, Any]:
    best = advice.best if advice.best is not None else found.own
    return {
        "batch_size": best,
        "gain": advice.gain,
        "low": advice.low,
        "high": advice.high,
        "how": how(found, best),
        "learning_rate_rule": advice.rule,
        "learning_rate_factor": advice.factor,
        "learning_rate_factors": advice.factors,
    }


def how(found: Measured, size: int) -> str:
    """What the user does to train with this size."""
    if found.option is not None:
        return f"pass {found.option} {size}"
    return f"set batch_size={size} where the loader is built"


def _savings(found: Measured) -> dict[str, Any] | None:
    if not found.savings:
        return None
    chosen = best(found.savings, found.limit)
    own = next(p.used for p in found.points if p.size == found.own)
    return {
        "taken": taken(own) if own else None,
        "iteration_seconds": own.seconds if own else None,
        "tried": [dataclasses.asdict(saving) for saving in found.savings],
        "setting": None if chosen is None else chosen.setting,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
