"""Optuna's TPE and random search over the knobs of one script, as people use them.

Each trial is one block of one setting, of the length that hasten takes for it, and its figure is
the mean time of an iteration: no reference beside it and no repetition. Settings change inside
one running child, which spares these searches the new start that each trial would take otherwise.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

from turns import Log, Stopwatch, Table, key

from hasten.optimisations import discover
from hasten.records import BlockDone, Setting, Value
from hasten.tuning.comparing import Fresh

KINDS = ("tpe", "random")
_FAILED = 1e6  # seconds: what a setting costs that does not work
_MOST = 400  # trials

Choose = Callable[[str, list[str]], str]


def setting_of(knobs: dict[str, tuple[Value, ...]], choose: Choose) -> Setting:
    """A setting, each knob's value chosen by name; later ones give way to what excludes them."""
    setting: Setting = {}
    for name, values in knobs.items():
        texts = ["", *(json.dumps(value, sort_keys=True) for value in values)]
        chosen = choose(name, texts)
        clash = set(discover()[name].excludes) & set(setting)
        clash |= {other for other in setting if name in discover()[other].excludes}
        if chosen and not clash:
            setting[name] = json.loads(chosen)
    return setting


def block_seconds(bench: Table, setting: Setting) -> float:
    """Mean seconds of an iteration over one block."""
    shared = bench.bench()
    length = shared.length(setting)
    while True:
        answer = bench.driver.ask(shared.block(setting, length))
        if isinstance(answer, Fresh):
            shared.forget()
            continue
        if not isinstance(answer, BlockDone) or answer.no_effect:
            return _FAILED
        return answer.seconds / answer.iterations


def study_of(kind: str, seed: int = 0) -> Any:
    """A study of Optuna with this sampler."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = optuna.samplers.TPESampler(seed=seed) if kind == "tpe" else None
    return optuna.create_study(sampler=made or optuna.samplers.RandomSampler(seed=seed))


def search(
    kind: str, bench: Table, knobs: dict[str, tuple[Value, ...]], log: Log, watch: Stopwatch
) -> None:
    """Let one sampler choose until the time is over, starts of processes included; kept."""
    if any(row["sampler"] == kind for row in log.of("sampler")):
        return
    study, trials, begun = study_of(kind), 0, time.monotonic()
    best, best_seconds = {}, math.inf
    while not watch.over and trials < _MOST:
        trial = study.ask()
        setting = setting_of(knobs, trial.suggest_categorical)
        taken = block_seconds(bench, setting)
        study.tell(trial, taken)
        trials += 1
        if taken < best_seconds:
            best, best_seconds = setting, taken
    log.add(
        "sampler", sampler=kind, setting=key(best), trials=trials, wall=time.monotonic() - begun
    )


def chosen(log: Log, kind: str) -> Setting:
    """What a sampler found best."""
    (found,) = [row for row in log.of("sampler") if row["sampler"] == kind]
    setting: Setting = json.loads(found["setting"])
    return setting
