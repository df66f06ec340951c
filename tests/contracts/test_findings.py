"""What every finding keeps to, found by discovery: a new one is held to it by itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hasten.findings
import hasten.optimisations
from hasten.diagnosis import FINE_PHASES, Observed, Spread
from hasten.environment import look
from hasten.findings import Diagnosis, Finding, Kind, discover, judge
from hasten.records import Profile

FINDINGS = discover()
SECTIONS = ("What it is", "Why it costs", "How it is measured", "What to do", "Source")
every_finding = pytest.mark.parametrize("finding", FINDINGS.values(), ids=FINDINGS.keys())
Make = Callable[..., Profile]


def observed(seconds: float = 0.3) -> Observed:
    """Of a loop in which nothing is the matter."""
    shares = {"data": 0.01, "forward": 0.4, "backward": 0.55, "optimizer": 0.04}
    return Observed(
        iterations=60,
        wall=_spread(seconds),
        processor=_spread(seconds),
        phases={name: _spread(seconds * shares.get(name, 0.0)) for name in FINE_PHASES},
        events=(),
        sequences=(),
        opening=(),
        startup_seconds=2.0,
        stretches=(),
        plain_seconds=60 * seconds,
        plain_iterations=60,
        trained_iterations=60,
    )


def _spread(value: float) -> Spread:
    return Spread(value, value, value, value)


def quiet(make: Make, **changes: object) -> Diagnosis:
    diagnosis = Diagnosis(make(), look(), observed())
    return dataclasses.replace(diagnosis, **changes)  # type: ignore[arg-type]


def test_some_are_found() -> None:
    assert len(FINDINGS) > 1


def test_every_file_is_discovered() -> None:
    """A file that declares nothing would be silently without effect."""
    folder = Path(hasten.findings.__file__).parent
    files = {f for f in folder.rglob("*.py") if f.name not in ("__init__.py", "base.py")}
    declared = {type(finding).__module__.rpartition(".")[2] for finding in FINDINGS.values()}
    assert {f.stem for f in files if not f.stem.startswith("_")} == declared


@every_finding
def test_declarations(finding: Finding) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", finding.name)
    assert isinstance(finding.kind, Kind)
    assert finding.subject
    assert type(finding).__module__.endswith(finding.name.replace("-", "_"))
    assert set(finding.fixed_by) <= set(hasten.optimisations.discover())


@every_finding
def test_documentation(finding: Finding) -> None:
    """One sentence, then the sections in order, none of them empty."""
    module = __import__(type(finding).__module__, fromlist=["_"])
    first, *rest = (module.__doc__ or "").split("\n\n")
    assert first.endswith(".") and len(first) < 160
    headings = [part.splitlines()[0].strip() for part in rest]
    assert tuple(h for h in headings if h in SECTIONS) == SECTIONS
    for part in rest:
        if part.splitlines()[0].strip() in SECTIONS:
            assert len(part.strip().splitlines()) > 1, f"{part.splitlines()[0]} is empty"
    assert type(finding).__doc__


@every_finding
def test_nothing_is_found_where_nothing_is_the_matter(finding: Finding, make_profile: Make) -> None:
    diagnosis = quiet(make_profile)
    found = list(finding.look(diagnosis))
    assert not found or finding.kind is Kind.LIMIT


@every_finding
def test_it_never_fails_on_strange_loops(finding: Finding, make_profile: Make) -> None:
    for diagnosis in strange(make_profile):
        before = dataclasses.asdict(diagnosis.observed)
        first, second = (list(finding.look(diagnosis)) for _ in range(2))
        assert first == second
        assert finding.what_if(diagnosis) == finding.what_if(diagnosis)
        assert dataclasses.asdict(diagnosis.observed) == before


def strange(make: Make) -> Iterator[Diagnosis]:
    yield quiet(make, profile=make(loader=None, border="step", iterations_per_epoch=None))
    yield quiet(make, profile=make(roots=(), optimizers=()))
    yield quiet(make, profile=make(device="cuda"))
    nothing = dataclasses.replace(observed(), iterations=0, plain_seconds=0.0)
    nothing = dataclasses.replace(nothing, plain_iterations=0, trained_iterations=0)
    yield quiet(make, observed=dataclasses.replace(nothing, phases={}, wall=_spread(0.0)))


def test_claims_about_time_need_a_cost(make_profile: Make) -> None:
    for verdict in judge(quiet(make_profile)):
        assert verdict.finding.kind in (Kind.WRONG, Kind.RISK) or verdict.found.cost
