"""Runs `hasten diagnose` on a script of tests/scripts, for the tests of findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent.parent / "scripts"


def diagnosed(script: str, *arguments: str, budget: float = 8.0, **env: str) -> dict[str, Any]:
    """The JSON document of a diagnosis by the real command line."""
    command = [sys.executable, "-m", "hasten", "diagnose", "--json", "--budget", str(budget)]
    result = subprocess.run(
        [*command, str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=SCRIPTS,
        env={**os.environ, **env},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def one(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The finding of this name, which must be there once; others may be there as well."""
    found: list[dict[str, Any]] = [f for f in document["findings"] if f["name"] == name]
    names = [f["name"] for f in document["findings"]]
    assert len(found) == 1, (names, document["what_ifs"], document["notes"])
    return found[0]


def line_of_mistake(script: str) -> int:
    """The line of a script that ends in the comment "the mistake"."""
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith("# the mistake"))
