"""The document that `hasten diagnose --json` prints."""

from __future__ import annotations

import dataclasses
from typing import Any

from hasten.diagnosis import FINE_PHASES, WhatIf
from hasten.findings import Diagnosis, Verdict
from hasten.report.document import finite

#: Raised when a field changes its meaning or goes away; new fields don't count.
SCHEMA = 1


def document(
    diagnosis: Diagnosis, verdicts: list[Verdict], shield: str, argv: tuple[str, ...] = ()
) -> dict[str, Any]:
    """All of a diagnosis as plain data, times in milliseconds where a name says so."""
    seen = diagnosis.observed
    plain: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "command": list(argv),
            "environment": diagnosis.environment.describe(),
            "iteration_ms": 1000 * diagnosis.iteration,
            "overall_iteration_ms": 1000 * diagnosis.overall,
            "phases": {name: 1000 * diagnosis.phase(name) for name in FINE_PHASES},
            "tokens_per_second": _tokens(diagnosis),
            "ceilings": _ceilings(diagnosis),
            "findings": [_finding(verdict) for verdict in verdicts],
            "what_ifs": {name: _what_if(w) for name, w in diagnosis.what_ifs.items()},
            "observed": dataclasses.asdict(seen),
            "examined": dataclasses.asdict(diagnosis.examined),
            "profile": dataclasses.asdict(diagnosis.profile),
            "notes": list(diagnosis.notes),
            "shield": shield,
        }
    )
    return plain


def _ceilings(diagnosis: Diagnosis) -> dict[str, float | None]:
    free, copies = diagnosis.ceilings.data_free, diagnosis.ceilings.copies_free
    loader = diagnosis.examined.loader
    return {
        "data_free_ms": None if free is None or not free.pairs else 1000 * free.after,
        "copies_free_ms": None if copies is None or not copies.pairs else 1000 * copies.after,
        "loader_alone_ms": None if loader is None or loader.alone is None else 1000 * loader.alone,
    }


def _tokens(diagnosis: Diagnosis) -> float | None:
    tokens = diagnosis.examined.facts.get("tokens", 0)
    return tokens / diagnosis.overall if tokens and diagnosis.overall else None


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    return {
        "before_ms": 1000 * what_if.before,
        "after_ms": 1000 * what_if.after,
        "pairs": what_if.pairs,
        "sure": what_if.sure,
        "problem": what_if.problem,
    }


def _finding(verdict: Verdict) -> dict[str, Any]:
    finding, found = verdict.finding, verdict.found
    return {
        "name": finding.name,
        "kind": finding.kind.value,
        "file": found.place.file if found.place is not None else None,
        "line": found.place.line if found.place is not None else None,
        "code": found.place.code if found.place is not None else None,
        "cost_ms": None if found.cost is None else 1000 * found.cost,
        "share": verdict.share,
        "summary": found.summary,
        "evidence": list(found.evidence),
        "todo": found.todo,
        "fixed_by": list(finding.fixed_by),
    }
