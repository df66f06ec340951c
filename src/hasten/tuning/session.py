"""`tune`: watch, search, confirm. What commands and notebooks call."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

from hasten.environment import Environment, look
from hasten.errors import HastenError
from hasten.instrument.shield import scratch
from hasten.instrument.shield.launch import ShieldMode, available_modes
from hasten.records import Outcome, Profile
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import Bench, Clock, new_family
from hasten.tuning.confirming import Confirmation, Confirmed, whole
from hasten.tuning.driver import Driver
from hasten.tuning.listener import Listener
from hasten.tuning.search import Found, Search

_WATCHED = 120  # iterations, unless that takes too long
_WATCH_SHARE = 0.1  # of the budget, at most
_CONFIRM_SHARE = 0.3  # of the budget is kept for the confirmation


@dataclass(frozen=True)
class TuneRequest:
    """What to tune, and how.

    Attributes:
        argv: the script and its arguments as Python takes them, ("-m", "mod", ...) for a module.
        budget: seconds of measuring.
        repeat: restart a script that ends after few iterations.
        allow: classes of numerics that are allowed beyond exact and rounding.
        only, skip: names of optimisations.
        device: an accelerator that may be tried although the script trains on the CPU.
        shield: "auto", "overlay", "redirect" or "none".
        timeout: seconds until the first iteration, and for each block beyond its usual time.
        seed: of the order of blocks.
    """

    argv: tuple[str, ...]
    budget: float = 180.0
    repeat: bool = False
    allow: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    device: str | None = None
    shield: str = "auto"
    timeout: float = 600.0
    seed: int = 0


class Session:
    """One run of `tune`; what is known survives an interrupt."""

    def __init__(self, request: TuneRequest, listener: Listener) -> None:
        self.request, self.listener = request, listener
        self.environment: Environment = look()
        scratch.sweep()  # what a session left that was killed with all of its keepers
        self.mode = choose_shield(request.shield)
        self.driver = Driver(
            request.argv, self.mode, listener, self._note, request.timeout, request.repeat
        )
        self.notes: list[str] = []
        self.search: Search | None = None
        self.confirmation: Confirmation | None = None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    def run(self) -> Outcome:
        """Watch, search, confirm; an interrupt ends it with what is known."""
        profile = self._watch()
        clock = Clock(self.request.budget * (1 - _CONFIRM_SHARE))
        interrupted = False
        try:
            self._search(profile, clock)
            self._confirm(clock)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.driver.close()
        return self._outcome(profile, clock, interrupted)

    def _watch(self) -> Profile:
        try:
            profile = self.driver.watch(_WATCHED, self.request.budget * _WATCH_SHARE)
        except BaseException:
            self.driver.close()
            raise
        self.listener.profiled(profile)
        return profile

    def _search(self, profile: Profile, clock: Clock) -> None:
        bench = Bench(profile, new_family(profile), clock, random.Random(self.request.seed))
        scope = Scope(self.request.allow, self.request.only, self.request.skip, self.request.device)
        self.driver.clock = clock
        self.search = Search(bench, self.environment, scope, self.listener)
        self.driver.serve(self.search.run())

    def _confirm(self, clock: Clock) -> None:
        assert self.search is not None
        self.driver.close()  # its cores and memory are needed
        plan = self.search.found.setting
        if not plan:
            return
        clock.budget = clock.spent + self.request.budget * _CONFIRM_SHARE
        self.confirmation = Confirmation(
            self.search.bench,
            plan,
            lambda ratio, turns: self.listener.confirming(ratio, turns, clock.left),
        )
        self.driver.process_of = whole
        try:
            self.driver.serve(self.confirmation.run())
        except HastenError as error:  # what the search has found is still worth telling
            self._note(f"the gain could not be confirmed: {error}")

    @property
    def confirmed(self) -> Confirmed | None:
        """What the confirmation has shown by now."""
        return self.confirmation.result if self.confirmation is not None else None

    def _outcome(self, profile: Profile, clock: Clock, interrupted: bool) -> Outcome:
        found = self.search.found if self.search is not None else Found()
        confirmed = self.confirmed
        if confirmed is not None and confirmed.problem:
            self._note(confirmed.problem)
        setting = found.best if interrupted and not confirmed else found.setting
        if confirmed is not None and (confirmed.problem or confirmed.verdict.value == "slower"):
            self._note("the plan was not faster from end to end, and is dropped")
            setting = {}
        return Outcome(
            environment=self.environment.describe(),
            profile=profile,
            tried=(*found.tried, *(self.search.unfinished() if self.search else ())),
            setting=setting,
            confirmed=confirmed.ratio if confirmed is not None else None,
            confirmed_verdict=confirmed.verdict.value if confirmed is not None else "",
            seconds=clock.spent,
            compile_seconds=clock.compile_seconds,
            iterations=self.driver.iterations,
            interrupted=interrupted,
            shield=self.driver.shield,
            notes=tuple(self.notes),
            data_free=found.data_free,
        )


def choose_shield(wanted: str) -> ShieldMode:
    """The shield to use.

    Raises:
        HastenError: the one that was asked for can't be had here.
    """
    modes = available_modes(os.getcwd())
    if wanted == "auto":
        return modes[0]
    mode = ShieldMode(wanted)
    if mode not in modes:
        have = ", ".join(m.value for m in modes)
        raise HastenError(f"the {wanted} shield can't be had on this machine; there is: {have}", 3)
    return mode


def tune(request: TuneRequest, listener: Listener) -> Outcome:
    """Find what makes a script's training faster.

    Raises:
        HastenError: the script can't be tuned, with what to do.
    """
    return Session(request, listener).run()
