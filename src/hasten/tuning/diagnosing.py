"""`diagnose`: observe a script, measure its ceilings and what-ifs, and judge.

One child after another runs the script: should it come to its end while something is measured,
the measurement goes on in a new one, and what can't be had is named in the notes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hasten.diagnosis import Ceilings, Examined, Observed, WhatIf
from hasten.environment import Environment, look
from hasten.errors import HastenError
from hasten.findings import Diagnosis, discover
from hasten.findings.base import RELIEF
from hasten.instrument.shield.launch import ShieldMode
from hasten.protocol import Message
from hasten.records import BlockDone, Examine, Failed, Observe, Profile, RunBlock, Setting, Watch
from hasten.tuning import leftovers
from hasten.tuning.driver import before_training
from hasten.tuning.process import Child, Gone
from hasten.tuning.shields import choose_shield

_OBSERVED = 60  # iterations, unless that takes too long
_OBSERVE_SHARE = 0.35  # of the budget
_EXAMINE_SHARE = 0.15
_LEAST = 10  # iterations that a script must have
_BLOCK = 12  # iterations
_BLOCK_SECONDS = 3.0
_PAIRS = 12  # at most
_ERRORS = 4.5  # standard errors above no effect that are enough to be sure, ...
_UNLIKELY = 2.0  # below so many further pairs aren't worth their time
_ENOUGH = 6  # ... of so many pairs or more
_LARGE = 1.2  # times as fast: three pairs that don't overlap are enough to be sure
_HOPELESS = 1.3  # times as slow: one look is enough
_PATIENCE = 60.0  # seconds beyond what a command should take


@dataclass(frozen=True)
class DiagnoseRequest:
    """What to diagnose, and how.

    Attributes:
        argv: the script and its arguments as Python takes them.
        budget: seconds of measuring, about.
        shield: "auto", "overlay", "redirect" or "none".
        timeout: seconds until the first iteration.
    """

    argv: tuple[str, ...]
    budget: float = 60.0
    shield: str = "auto"
    timeout: float = 600.0


class Diagnosing:
    """One run of `diagnose`."""

    def __init__(self, request: DiagnoseRequest, say: Callable[[str], None]) -> None:
        self.request, self.say = request, say
        self.environment: Environment = look()
        leftovers.sweep()
        self.mode: ShieldMode = choose_shield(request.shield)
        self.shield = ""
        self.notes: list[str] = []
        self._child: Child | None = None
        self._end = 0.0

    def run(self) -> Diagnosis:
        """Measure everything.

        Raises:
            HastenError: the script can't be diagnosed, with what to do.
        """
        try:
            diagnosis = self._observe()
            self.say("measuring what would be if ...")
            self._end = time.monotonic() + self.request.budget * (1 - _OBSERVE_SHARE)
            examined = self._examine()
            diagnosis = replace(diagnosis, examined=examined)
            diagnosis = replace(diagnosis, ceilings=self._ceilings(diagnosis))
            diagnosis = replace(diagnosis, what_ifs=self._what_ifs(diagnosis))
            return replace(diagnosis, notes=tuple(dict.fromkeys(self.notes)))
        finally:
            self.close()

    def close(self) -> None:
        """End the child that runs."""
        if self._child is not None:
            self._child.close()
            self._child = None

    # --- observing -----------------------------------------------------------------------------

    def _observe(self, half: int = 0) -> Diagnosis:
        """Observe the script; where it ends meanwhile, once more and only `half` its length."""
        self.say("starting the script, to observe it as it is")
        seconds = self.request.budget * _OBSERVE_SHARE
        watched, most = (min(8, half), max(2, half - 4)) if half else (8, 0)
        try:
            child = self._start(observe=True)
            profile = child.ask(Watch(watched, seconds / 4), self.request.timeout)
            command = Observe(most or _OBSERVED, seconds, most=most)
            observed = child.ask(command, seconds + self.request.timeout)
        except Gone as gone:
            self.close()
            passed = gone.ended.iterations if gone.ended and gone.kind == "ended" else 0
            if passed >= _LEAST and not half:
                return self._observe(passed // 2)
            if passed:
                raise HastenError(_too_few(passed)) from None
            raise before_training(gone, self.request.timeout) from None
        if not isinstance(profile, Profile) or not isinstance(observed, Observed):
            raise HastenError(f"the script could not be observed: {_why(profile, observed)}", 3)
        return Diagnosis(profile, self.environment, observed)

    def _start(self, observe: bool) -> Child:
        self._child = Child(self.request.argv, self.mode, self.notes.append, observe=observe)
        self._child.start()
        self.shield = self._child.describe
        return self._child

    def _examine(self) -> Examined:
        seconds = self.request.budget * _EXAMINE_SHARE
        answer: Message | None = None
        for arithmetic in (True, False):
            answer = self._ask(Examine(seconds, arithmetic), 120.0)
            if isinstance(answer, Examined):
                return answer
        self.notes.append(f"the loop could not be examined: {_why(answer)}")
        return Examined()

    def _ask(self, command: Message, seconds: float) -> Message | None:
        """One answer, from a new child if need be; None when there is none to be had."""
        for _ in range(2):
            try:
                child = self._child or self._again()
                return child.ask(command, seconds + _PATIENCE)
            except Gone as gone:
                self.close()
                if gone.kind != "ended":
                    self.notes.append(f"a measurement failed: {gone.message}")
                    return None
        return None

    def _again(self) -> Child:
        """Another child at its training loop, with nothing to observe any more."""
        child = self._start(observe=True)
        child.ask(Watch(2, 0.0), self.request.timeout)
        child.ask(Observe(0, 0.0, 0), self.request.timeout)
        return child

    # --- what would be if ------------------------------------------------------------------------

    def _ceilings(self, diagnosis: Diagnosis) -> Ceilings:
        free = copies = None
        if diagnosis.profile.loader is not None:
            free = self._compare(diagnosis, {}, hold_data=True)
        if any(event.observed for event in diagnosis.observed.all("copy")):
            copies = self._compare(diagnosis, {f"{RELIEF}copies": True})
        return Ceilings(data_free=free, copies_free=copies)

    def _what_ifs(self, diagnosis: Diagnosis) -> dict[str, WhatIf]:
        found: dict[str, WhatIf] = {}
        for finding in discover().values():
            setting = finding.what_if(diagnosis)
            if setting is None:
                continue
            if time.monotonic() > self._end:
                self.notes.append(f"no time was left to measure {finding.name}")
                continue
            found[finding.name] = self._compare(diagnosis, setting)
        return found

    def _compare(self, diagnosis: Diagnosis, setting: Setting, hold_data: bool = False) -> WhatIf:
        """Blocks as the script is and with the change, in turns."""
        iteration = max(diagnosis.iteration, 1e-4)
        flight = _in_flight(diagnosis, setting)
        count = max(4, min(_BLOCK * max(1, flight // 4), int(_BLOCK_SECONDS / iteration)))
        count = max(count, min(200, int(0.2 / iteration)))
        before: list[float] = []
        after: list[float] = []
        for _ in range(_PAIRS):
            for change, held, times in (({}, False, before), (setting, hold_data, after)):
                command = _command(change, count, held)
                block = self._block(command, iteration)
                if isinstance(block, str):
                    return WhatIf(diagnosis.iteration, diagnosis.iteration, 0, False, block)
                share = _epoch_share(diagnosis, {} if held else change, block)
                times.append(block.seconds / max(1, block.iterations) + share)
            hopeless = after[-1] > _HOPELESS * before[-1] or is_idle(before, after)
            if hopeless or is_sure(before, after) or time.monotonic() > self._end:
                break
        sure = is_sure(before, after)
        return WhatIf(statistics.median(before), statistics.median(after), len(before), sure)

    def _block(self, command: RunBlock, iteration: float) -> BlockDone | str:
        answer = self._ask(command, 20 * iteration * (command.iterations + 8))
        if not isinstance(answer, BlockDone):
            return _why(answer)
        if answer.no_effect:
            return "; ".join(answer.no_effect.values())
        return answer


def is_idle(before: list[float], after: list[float]) -> bool:
    """Whether several pairs have not shown any gain, so that more of them hardly will."""
    return len(before) >= _ENOUGH and _errors(before, after) < _UNLIKELY


def _errors(before: list[float], after: list[float]) -> float:
    """How many standard errors the mean gain is above nothing."""
    gains = [math.log(b / a) for b, a in zip(before, after, strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    return statistics.fmean(gains) / max(error, 1e-9)


def is_sure(before: list[float], after: list[float]) -> bool:
    """Whether a change is faster beyond chance, by blocks in turns.

    Without any effect four blocks of each kind don't overlap in one case of seventy, six pairs all
    go the same way in one of sixty-four, and the mean of six is 4.5 standard errors above nothing
    in one of three hundred (Student's t).
    """
    if len(before) < 3:
        return False
    apart = min(before) > max(after)
    if apart and (len(before) > 3 or min(before) > _LARGE * max(after)):
        return True
    if len(before) < _ENOUGH:
        return False
    alike = all(b > a for b, a in zip(before, after, strict=True))
    return (alike and len(before) == _ENOUGH) or _errors(before, after) > _ERRORS


def _too_few(passed: int) -> str:
    """The line for a script that is over before it was observed."""
    return (
        f"the script ended after {passed} iterations, which is too few to observe it: "
        "give it more epochs or data"
    )


def _command(change: Setting, count: int, held: bool) -> RunBlock:
    """A block under `change`, whose keys "relief:NAME" are reliefs."""
    setting = {name: value for name, value in change.items() if not name.startswith(RELIEF)}
    reliefs = tuple(name.removeprefix(RELIEF) for name in change if name.startswith(RELIEF))
    return RunBlock(setting, count, 2, held, _BLOCK_SECONDS, reliefs)


def _epoch_share(diagnosis: Diagnosis, change: Setting, block: BlockDone) -> float:
    """Seconds an iteration that starting and ending the workers of each epoch take."""
    loader, epoch = diagnosis.profile.loader, diagnosis.profile.iterations_per_epoch
    if loader is None or not epoch or not block.pool_seconds:
        return 0.0
    own = {"workers": loader.workers, "persistent": loader.persistent}
    value = change.get("loader-workers", own)
    if not value["workers"] or value["persistent"]:
        return 0.0
    ends = diagnosis.observed.facts.get("loaders", {}).get("last_waits") or [0.0]
    end: float = statistics.median(ends) * value["workers"] / max(1, loader.workers)
    return (block.pool_seconds + end) / epoch


def _in_flight(diagnosis: Diagnosis, setting: Setting) -> int:
    """Batches that are on their way at most, by the script's configuration or the changed one."""
    loader = diagnosis.profile.loader
    if loader is None:
        return 0
    own = loader.in_flight
    changed = setting.get("loader-workers")
    if not isinstance(changed, dict):
        return own
    return max(own, int(changed["workers"]) * int(changed.get("prefetch") or 2))


def _why(*answers: Message | None) -> str:
    for answer in answers:
        if isinstance(answer, Failed):
            return answer.message
        if answer is None:
            return "the script ended or failed too soon"
    return "unexpected answer"


def diagnose(request: DiagnoseRequest, say: Callable[[str], None]) -> tuple[Diagnosis, str]:
    """Find out where a script's time goes and what is the matter with it.

    Args:
        request: what, and how.
        say: is told what is going on, a line each.

    Returns:
        The diagnosis, and one line about what was shielded.

    Raises:
        HastenError: the script can't be diagnosed, with what to do.
    """
    session = Diagnosing(request, say)
    return session.run(), session.shield
