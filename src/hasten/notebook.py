"""For notebooks and programs that train in functions: `tune`, `applied` and `diagnose`.

What a function trains is not thrown away here and nothing shields files: it runs in this process,
as if it had been called. So tuning calls `train` as often as it takes and leaves it in the middle
of an iteration's border by an exception that is not an `Exception`: `finally` blocks of it run,
and code that catches everything (`except:`) goes on, untouched, to its own end. Afterwards
every seam is taken out and every switch is as it was.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.errors import HastenError
from hasten.findings import Diagnosis, Verdict, judge
from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.programs import follow
from hasten.plan import Plan, dump, load
from hasten.records import Outcome, Setting
from hasten.report.progress import Lines
from hasten.tuning.inside import Inside, InsideRequest
from hasten.tuning.plans import make_plan

_FEW = 10  # iterations, too few for a diagnosis
_MOST_CALLS = 20  # of `train`, when it ends long before the search does


class _Enough(BaseException):
    """Leaves `train` when the search is over."""


def tune(
    train: Callable[[], object],
    *,
    budget: float = 60.0,
    exact: bool = False,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    item_seeds: bool = False,
    output: str | Path | None = None,
) -> Plan:
    """Find what makes `train` faster, in this process.

    Args:
        train: a function without arguments that builds a model and trains it; called again when
            it ends before enough was measured.
        budget: seconds of measuring.
        exact: try only what keeps the same bits; otherwise also what rounds in another way.
        only, skip: names of optimisations.
        item_seeds: what is random in an item comes from seed, epoch and index, so that it is the
            same with any number of workers; the plan says so.
        output: a file for the plan, if it is to be kept.

    Returns:
        The plan, possibly with an empty setting; see `applied`. `Ctrl-C` ends the search with
        what is known.

    Raises:
        HastenError: no training loop was found, or it is too short.
    """
    request = InsideRequest(budget, _classes(exact), only, skip, item_seeds=item_seeds)
    outcome = _search(train, request)
    plan = make_plan((getattr(train, "__qualname__", "train"),), outcome, item_seeds)
    if output is not None:
        dump(plan, Path(output))
    return plan


def _classes(exact: bool) -> tuple[str, ...]:
    return ("exact",) if exact else ("exact", "rounding")


def _search(train: Callable[[], object], request: InsideRequest) -> Outcome:
    inside = Inside(request, Lines(sys.stderr, prefix="hasten: "), lambda _: None, stay=False)

    def program(conductor: Conductor) -> Program:
        yield from inside.program(conductor)
        raise _Enough

    interrupted = False
    for _ in range(_MOST_CALLS):
        conductor = inside.conductor(program)
        conductor.install()
        try:
            train()
        except _Enough:
            pass
        except KeyboardInterrupt:
            interrupted = True
        finally:
            conductor.uninstall()
        if inside.ended or interrupted:
            break
        inside.iterations += conductor.iterations
        if inside.search is None:
            raise HastenError(_too_short(conductor))
    outcome = inside.outcome(interrupted or not inside.ended)
    if outcome is None:
        raise HastenError("the search was over before anything was known")
    return outcome


def _too_short(conductor: Conductor) -> str:
    if not conductor.backwards:
        return "the function ended without a backward pass"
    return (
        f"the function ended after {conductor.iterations} iterations, before it could be watched: "
        "give it more epochs, or allow less time with a smaller budget"
    )


@dataclass(frozen=True, repr=False)
class Diagnosed:
    """What `diagnose` found; shown as the report that `hasten diagnose` prints.

    Attributes:
        diagnosis: everything that was measured.
        verdicts: what was found, with its place and cost.
    """

    diagnosis: Diagnosis
    verdicts: list[Verdict]

    def document(self) -> dict[str, Any]:
        """Plain data, as `hasten diagnose --json` prints it."""
        from hasten.report.diagnosis import document

        return document(self.diagnosis, self.verdicts, "")

    def __repr__(self) -> str:
        from hasten.report.diagnosis_terminal import render

        return render(self.diagnosis, self.verdicts, "", io.StringIO())


def diagnose(train: Callable[[], object], *, budget: float = 30.0) -> Diagnosed:
    """Find out where the time of `train` goes and what is the matter with it, in this process.

    Args:
        train: a function without arguments that builds a model and trains it; called again when
            it ends before enough was measured, and left when it was.
        budget: seconds of measuring.

    Returns:
        Measurements and findings; its `repr` is the report. Everything is as it was afterwards.

    Raises:
        HastenError: no training loop was found, or it is too short.
    """
    from hasten.tuning.diagnosing import DiagnoseRequest
    from hasten.tuning.diagnosing_inside import InsideDiagnosis

    name = getattr(train, "__qualname__", "train")
    session = InsideDiagnosis(train, DiagnoseRequest((name,), budget, "none"))
    try:
        diagnosis = session.here()
    except HastenError as error:
        last = session.last
        if last is not None and last.begun < _FEW:
            raise HastenError(_too_short(last)) from None
        raise error from None
    return Diagnosed(diagnosis, judge(diagnosis))


@contextlib.contextmanager
def applied(plan: Plan | str | Path | Setting) -> Iterator[None]:
    """Train under a plan inside a `with` block; afterwards everything is as it was.

    Args:
        plan: from `tune`, the path of a `hasten.toml`, or a setting such as `{"amp-bf16": True}`.

    Raises:
        HastenError: the plan can't be read, or names something unknown.
    """
    setting, expected, item_seeds = _read(plan)
    conductor = Conductor(lambda c: follow(c, setting, expected))
    conductor.caches.seeds.on = item_seeds
    conductor.install()
    try:
        yield
    finally:
        conductor.uninstall()


def _read(plan: Plan | str | Path | Setting) -> tuple[Setting, dict[str, str], bool]:
    """Setting, fingerprint, and whether items are seeded."""
    if isinstance(plan, (str, Path)):
        plan = load(Path(plan))
    if isinstance(plan, Plan):
        return plan.setting, plan.fingerprint, plan.item_seeds
    return _checked(plan), {}, False


def _checked(setting: dict[str, Any]) -> Setting:
    from hasten.optimisations import named

    for name, value in setting.items():
        try:
            named(name).check(value)
        except ValueError as error:
            raise HastenError(f"{name} wants {error}, not {value!r}") from None
    return setting
