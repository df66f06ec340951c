"""`tune`: watch, search, confirm. What commands and notebooks call."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hasten.environment import Environment, look
from hasten.errors import HastenError
from hasten.records import Outcome, Profile
from hasten.tuning import curves, leftovers
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import Bench, Clock, new_family
from hasten.tuning.confirming import Confirmation, Confirmed, whole
from hasten.tuning.driver import Driver
from hasten.tuning.listener import Listener
from hasten.tuning.search import Search
from hasten.tuning.shields import choose_shield
from hasten.tuning.verifying import VerifyRequest
from hasten.verification import Verification

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
        item_seeds: what is random in an item comes from seed, epoch and index.
        curves: pairs of runs, each from seeds of its own, whose losses are compared at the end.
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
    item_seeds: bool = False
    curves: int = 5


class Session:
    """One run of `tune`; what is known survives an interrupt."""

    def __init__(self, request: TuneRequest, listener: Listener) -> None:
        self.request, self.listener = request, listener
        self.environment: Environment = look()
        leftovers.sweep()
        self.mode = choose_shield(request.shield)
        self.driver = Driver(
            request.argv, self.mode, listener, self._note, request.timeout, request.repeat
        )
        self.driver.item_seeds = request.item_seeds
        self.notes: list[str] = []
        self.confirmation: Confirmation | None = None
        self.verified: Verification | None = None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    def run(self) -> Outcome:
        """Watch, search, confirm; an interrupt ends it with what is known."""
        search = self._search(self._watch())
        interrupted = False
        try:
            self.driver.serve(search.run())
            self._confirm(search)
            self._compare_curves(search)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.driver.close()
        return self._outcome(search, interrupted)

    def _watch(self) -> Profile:
        try:
            profile = self.driver.watch(_WATCHED, self.request.budget * _WATCH_SHARE)
        except BaseException:
            self.driver.close()
            raise
        self.listener.profiled(profile)
        return profile

    def _search(self, profile: Profile) -> Search:
        request = self.request
        self.driver.clock = clock = Clock(request.budget * (1 - _CONFIRM_SHARE))
        bench = Bench(profile, new_family(profile), clock, random.Random(request.seed))
        scope = Scope(request.allow, request.only, request.skip, request.device)
        return Search(bench, self.environment, scope, self.listener)

    def _confirm(self, search: Search) -> None:
        self.driver.close()  # its cores and memory are needed
        plan, clock = search.found.setting, search.bench.clock
        if not plan:
            return
        clock.budget = clock.spent + self.request.budget * _CONFIRM_SHARE
        self.confirmation = Confirmation(
            search.bench,
            plan,
            lambda ratio, turns: self.listener.confirming(ratio, turns, clock.left),
            search.found.sure,
        )
        self.driver.process_of, self.driver.counts = whole, True
        try:
            self.driver.serve(self.confirmation.run())
        except HastenError as error:  # what the search has found is still worth telling
            self._note(f"the gain could not be confirmed: {error}")

    def _compare_curves(self, search: Search) -> None:
        """Whether the plan learns as well, from several seeds."""
        self.driver.close()
        request, plan = self.request, search.found.setting
        kept = self.confirmed is None or self.confirmed.worth_it
        if not plan or not kept or not request.curves:
            return
        room = curves.Room(
            request.budget,
            self.driver.start_seconds,
            search.bench.profile.iteration,
            request.curves,
            self.driver.together,
        )
        if not room.iterations:
            self._note(room.refusal)
            return
        wanted = VerifyRequest(
            argv=request.argv,
            setting=plan,
            seeds=request.curves,
            iterations=room.iterations,
            item_seeds=request.item_seeds,
            shield=self.mode.value,
            timeout=request.timeout,
            together=self.driver.together,
        )
        try:
            self.verified = curves.compare(wanted, self.listener)
        except HastenError as error:
            self._note(f"the loss curves of several seeds could not be compared: {error}")

    @property
    def confirmed(self) -> Confirmed | None:
        """What the confirmation has shown by now."""
        return self.confirmation.result if self.confirmation is not None else None

    def _outcome(self, search: Search, interrupted: bool) -> Outcome:
        confirmed = self.confirmed
        if confirmed is not None and confirmed.problem:
            self._note(confirmed.problem)
        for line in confirmed.broken if confirmed is not None else ():
            self._note(f"the plan trains something else, and is dropped: {line}")
        known = search.outcome(interrupted and confirmed is None)
        if confirmed is not None and not confirmed.worth_it:
            if not confirmed.broken:
                self._note("the plan was not faster from end to end, and is dropped")
            known = replace(known, setting={})
        against = curves.objections(self.verified) if self.verified is not None else []
        for line in against:
            self._note(line)
        if against:
            known = replace(known, setting={})
        return replace(
            known,
            confirmed=confirmed.ratio if confirmed is not None else None,
            confirmed_verdict=confirmed.verdict.value if confirmed is not None else "",
            iterations=self.driver.iterations,
            interrupted=interrupted,
            shield=self.driver.shield,
            notes=tuple(self.notes),
            courses=self.confirmation.courses if self.confirmation is not None else (),
            counted=confirmed.counted if confirmed is not None else 0,
            broken=confirmed.broken if confirmed is not None else (),
            verified=self.verified,
        )


def tune(request: TuneRequest, listener: Listener) -> Outcome:
    """Find what makes a script's training faster.

    Raises:
        HastenError: the script can't be tuned, with what to do.
    """
    return Session(request, listener).run()
