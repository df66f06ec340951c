"""`hasten batch`: throughput, memory and learning over batch size, each size in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable

from hasten.batching import GradientsSampled, MeasureMemory, MemoryUsed, SampleGradients
from hasten.environment import free_memory
from hasten.errors import HastenError
from hasten.optimisations.memory.batch_size import sized, unsizable
from hasten.protocol import Message
from hasten.records import LoaderFacts, Profile, Setting, Watch
from hasten.tuning import batch_option, leftovers
from hasten.tuning.batch_records import BatchRequest, Measured, Point
from hasten.tuning.batch_turns import Turns
from hasten.tuning.driver import before_training, unwatched
from hasten.tuning.fitting import savings
from hasten.tuning.memory_model import fit, taken
from hasten.tuning.noise_scale import noise_scale
from hasten.tuning.process import Child, Gone
from hasten.tuning.shields import choose_shield

_WATCHED = 12  # iterations of the script as it is
_EACH = 0.06  # of the budget is for the iterations of one size
_NOISE = 0.2  # ... and for gradients
_GRADIENTS = 32  # without which they tell nothing; they may take a budget of their own
_LEAST, _MOST = 4, 60  # iterations that a size is timed by
_GAUGED, _GAUGED_VARYING = 3, 16
_BATCHES = 6  # that an epoch must have
_PLATEAU = 1.03  # a doubling that gains less in samples a second ends the climb
_CONFIRM_SECONDS = 120.0


class Batches:
    """One run of `hasten batch`."""

    def __init__(self, request: BatchRequest, say: Callable[[str], None]) -> None:
        self.request, self._say = request, say
        leftovers.sweep()
        self.mode = choose_shield(request.shield)
        self._begun = time.monotonic()
        self._room = free_memory()
        self._by_option = False
        self._apart = 0.0  # seconds that starting scripts took
        self._turns = Turns(request.argv, self.mode, self._note, request.timeout, 1, 1.0)
        self.found: Measured

    def run(self) -> Measured:
        """Measure sizes from small to large, as long as they are predicted to fit."""
        try:
            self._own()
            for size in self._small():
                self._measure(size)
            self._fit()
            if not self.request.sizes:
                self._climb()
        finally:
            self._turns.close()  # its memory is needed
        self._confirm()
        self._save()
        return self.found

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; starting a script isn't measuring."""
        return self.request.budget - (time.monotonic() - self._begun) + self._apart

    def _started(self, child: Child) -> None:
        """Start a script and wait for its training loop."""
        begun = time.monotonic()
        child.start()
        child.ask(Watch(1, 0.0), self.request.timeout)
        self._apart += time.monotonic() - begun

    def _save(self) -> None:
        """Ways to fit the script's own batch size into a limit that it is above."""
        own = next(p.used for p in self.found.points if p.size == self.found.own)
        if self.request.limit is None or own is None or taken(own) <= self.found.limit:
            return

        def start(setting: Setting) -> Child:
            child = Child(self.request.argv, self.mode, self._note, start_setting=setting)
            child.start()
            return child

        patience = self.request.timeout + self._patience()
        self.found.savings = savings(start, self.found.limit, patience, self._say)

    # --- as the script has it --------------------------------------------------------------------

    def _own(self) -> None:
        """Watch, weigh, and take gradients at the script's own batch size."""
        child = Child(self.request.argv, self.mode, self._note_first)
        self._first_notes: list[str] = []
        try:
            self._started(child)
            shield = child.describe
            watch = Watch(_WATCHED, self.request.budget * _EACH)
            profile = child.ask(watch, self.request.timeout)
            if not isinstance(profile, Profile):
                raise unwatched(profile)
            loader = sizable(profile)
            self._begin(profile, loader, shield)
            used = child.ask(self._command(loader.batch_size or 1, profile), self._patience())
            self._add(loader.batch_size or 1, used)
            self._gradients(child)
        except Gone as gone:
            if not hasattr(self, "found"):
                raise before_training(gone, self.request.timeout) from None
            self.found.no_noise = self.found.no_noise or gone.message
        finally:
            child.close()
        if not self.found.good():
            raise HastenError("the script ends before its memory could be measured")

    def _note_first(self, text: str) -> None:
        self._first_notes.append(text)

    def _begin(self, profile: Profile, loader: LoaderFacts, shield: str) -> None:
        own = loader.batch_size or 1
        window = max(1, round(profile.iterations_per_step))
        limit = self.request.limit or self._room
        self.found = Measured(profile, own, window, limit, shield=shield)
        self.found.notes += self._first_notes
        given = batch_option.given(self.request.argv, own)
        self.found.option = given or batch_option.offered(self.request.script)
        self._by_option = self.found.option is not None
        self._turns = Turns(
            self.request.argv, self.mode, self._note, self.request.timeout, own, profile.iteration
        )
        self._say(f"as the script is: {own} samples a batch, {profile.iteration * 1000:.1f} ms")

    def _gradients(self, child: Child) -> None:
        enough = _GRADIENTS * self.found.profile.iteration
        seconds = max(self.request.budget * _NOISE, min(self.request.budget, enough))
        wanted = int(min(2000, max(16, seconds / max(self.found.profile.iteration, 1e-4))))
        self._say("taking gradients at weights that stand still")
        begun = time.monotonic()
        answer = child.ask(SampleGradients(wanted, seconds), self._patience() + seconds)
        self._apart += max(0.0, time.monotonic() - begun - self.request.budget * _NOISE)
        if not isinstance(answer, GradientsSampled):
            self.found.no_noise = getattr(answer, "message", "an unexpected answer")
            return
        self.found.noise = noise_scale(answer)
        if self.found.noise is None:
            self.found.no_noise = answer.trouble or "too few gradients were seen"

    # --- other sizes -----------------------------------------------------------------------------

    def _small(self) -> list[int]:
        """Sizes for the memory model; what the user asks for in place of them."""
        own = self.found.own
        if self.request.sizes:
            return [size for size in self.request.sizes if size != own]
        wanted = [own // 4, own // 2] if own >= 4 else [own * 2, own * 4]
        return sorted(wanted, reverse=own >= 4)

    def _measure(self, size: int) -> None:
        """One size in a process of its own."""
        self._say(f"{size} samples a batch")
        point = self._point(size)
        if self._by_option and (point.used is None or point.used.batch_size != size):
            self.found.notes.append(
                f"{self.found.option} {size} did not give batches of {size} samples: "
                "the loader was built with that size instead"
            )
            self._by_option, self.found.option = False, None
            point = self._point(size)
        if point.used is not None and (idle := point.used.no_effect):
            point = Point(size, failed="; ".join(idle.values()))
        self.found.points.append(point)

    def _point(self, size: int) -> Point:
        argv, start = self._way(size)
        command = self._command(size, self.found.profile, start)
        for _ in range(2):
            answer = self._once(argv, start, command, size)
            if isinstance(answer, Point):
                return answer
            if not isinstance(answer, Gone):
                return Point(size, failed=getattr(answer, "message", "an unexpected answer"))
            if answer.kind != "ended" or command.iterations <= _LEAST:
                break
            command = MeasureMemory(_LEAST, 2, start)  # a short script
        assert isinstance(answer, Gone)
        return Point(size, failed=_why(answer))

    def _way(self, size: int) -> tuple[tuple[str, ...], Setting]:
        """Command line and setting that give batches of this size."""
        loader, option = self.found.profile.loader, self.found.option
        if size == self.found.own or loader is None:
            return self.request.argv, {}
        if self._by_option and option is not None:
            return batch_option.passing(self.request.argv, option, size), {}
        return self.request.argv, {"batch-size": sized(loader, size)}

    def _once(
        self, argv: tuple[str, ...], start: Setting, command: Message, size: int = 0
    ) -> Message | Gone | Point:
        """The answer of a new child; with a size, a point that has had its turns as well."""
        child = Child(argv, self.mode, self._note, start_setting=start)
        try:
            self._started(child)
            answer = child.ask(command, self.request.timeout + self._patience())
            if size and isinstance(answer, MemoryUsed):
                return self._timed(child, size, start, answer)
            return answer
        except Gone as gone:
            return gone
        finally:
            child.close()

    def _timed(self, child: Child, size: int, start: Setting, used: MemoryUsed) -> Point:
        own = next(p for p in self.found.points if p.size == self.found.own)
        ratios: list[float] = []
        if used.batch_size == size and not used.no_effect and self._both_fit(own, used):
            ratios = self._turns.compare(child, size, start, used.seconds)
        return Point(size, used, "", tuple(ratios), own.samples_per_second)

    def _both_fit(self, own: Point, used: MemoryUsed) -> bool:
        return own.used is not None and taken(own.used) + taken(used) < self._room

    def _note(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)

    def _command(
        self, size: int, profile: Profile, setting: Setting | None = None
    ) -> MeasureMemory:
        """Iterations for this size, if they take as long for each sample as usual."""
        seconds = profile.iteration * size / max(1, self.found.own)
        count = int(self.request.budget * _EACH / max(seconds, 1e-4))
        varying = any(root.shapes_vary for root in profile.roots)
        gauged = _GAUGED_VARYING if varying else _GAUGED
        return MeasureMemory(min(_MOST, max(_LEAST, count)), gauged, setting or {})

    def _patience(self) -> float:
        return 60.0 + self.request.budget

    def _add(self, size: int, answer: Message) -> None:
        if not isinstance(answer, MemoryUsed):
            why = getattr(answer, "message", "an unexpected answer")
            raise HastenError(f"the script's memory could not be measured: {why}", 3)
        self.found.points.append(Point(size, answer))
        if answer.room:
            self._room = answer.room
            self.found.limit = self.request.limit or answer.room
        if answer.trouble:
            self.found.notes.append(answer.trouble)

    # --- larger ones -----------------------------------------------------------------------------

    def _fit(self) -> None:
        """The memory model of what is measured so far, and what fits by it."""
        used = [p.used for p in self.found.points if p.used is not None]
        if len(used) < 2:
            return
        self.found.model = fit(used)
        self.found.largest = self.found.model.largest(self.found.limit)

    def _climb(self) -> None:
        """Double the batch until that gains nothing more, or can't be."""
        size = max((p.size for p in self.found.good()), default=self.found.own) * 2
        while not self.found.stopped:
            self.found.stopped = self._why_not(size)
            if self.found.stopped:
                return
            before = self.found.good()[-1]
            self._measure(size)
            self._fit()
            after = self.found.points[-1]
            if after.used is None:
                self.found.stopped = f"{size} samples: {after.failed}"
            elif after.samples_per_second < _PLATEAU * before.samples_per_second:
                self.found.stopped = "a batch twice as large is hardly faster by the sample"
            size *= 2

    def _why_not(self, size: int) -> str:
        """Why this size isn't measured, or an empty string."""
        largest, loader = self.found.largest, self.found.profile.loader
        if self.found.model is None:
            return "memory could not be predicted"
        if largest is not None and size > largest:
            return f"{size} samples are predicted not to fit"
        items = loader.dataset_items if loader is not None else None
        if items is not None and size * _BATCHES > items:
            return f"an epoch has {items} samples"
        if self._seconds(size) * (_LEAST + 8) > self.left:
            return "the budget ends here (--budget SECONDS)"
        return ""

    def _seconds(self, size: int) -> float:
        """Predicted time of an iteration."""
        last = self.found.good()[-1]
        return size / max(last.samples_per_second, 1e-9)

    def _confirm(self) -> None:
        """Try the prediction once, at the largest batch that fits and can be tried."""
        model, loader, good = self.found.model, self.found.profile.loader, self.found.good()
        if model is None or self.request.sizes:
            return
        limits = [self.found.largest] if self.found.largest is not None else []
        if loader is not None and loader.dataset_items is not None:
            limits.append(loader.dataset_items // _BATCHES)
        affordable = _CONFIRM_SECONDS / ((_LEAST + 8) * max(self._seconds(1), 1e-9))
        size = int(min([*limits, affordable]))
        if size <= good[-1].size * 1.2:
            return
        self._say(f"confirming what is predicted for {size} samples a batch")
        self.found.predicted = model.tensors(size)
        argv, start = self._way(size)
        answer = self._once(argv, start, MeasureMemory(2, 2, start))
        if isinstance(answer, MemoryUsed):
            self.found.confirmed = Point(size, answer)
        else:
            why = _why(answer) if isinstance(answer, Gone) else "an unexpected answer"
            self.found.confirmed = Point(size, failed=why)


def sizable(profile: Profile) -> LoaderFacts:
    """The training loader, if it can be given another batch size.

    Raises:
        HastenError: it can't, with the reason.
    """
    if profile.loader is None:
        raise HastenError("batches don't come from a DataLoader: their size can't be changed")
    if reason := unsizable(profile.loader):
        raise HastenError(f"the batch size can't be changed: {reason}")
    return profile.loader


def _why(gone: Gone) -> str:
    if gone.kind == "ended":
        count = gone.ended.iterations if gone.ended is not None else 0
        return f"the script ends after {count} iterations"
    return f"out of memory ({gone.message})" if gone.kind == "memory" else gone.message


def measure(request: BatchRequest, say: Callable[[str], None]) -> Measured:
    """Measure throughput, memory and gradients over batch size.

    Args:
        request: what, and how.
        say: is told what is going on, a line each.

    Raises:
        HastenError: it can't be done, with the reason.
    """
    return Batches(request, say).run()
