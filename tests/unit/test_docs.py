"""What the documents say is so."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hasten.commands.program import COMMANDS, program
from hasten.diagnosis import (
    Event,
    Examined,
    LoaderTimes,
    Moment,
    Observed,
    Span,
    Timeline,
    TransformTime,
)
from hasten.findings import Finding
from hasten.findings import discover as findings
from hasten.instrument.observe import discover as observers
from hasten.optimisations import discover
from hasten.report import diagnosis as diagnosis_document

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def options(command: str) -> set[str]:
    """Long options of a subcommand."""
    found = program.get_command(click.Context(program), command)
    assert found is not None
    names = {name for p in found.params if isinstance(p, click.Option) for name in p.opts}
    return {name for name in names if name.startswith("--")}


@pytest.mark.parametrize("command", ["diagnose", "compare", "tune", "run", "verify"])
def test_every_option_is_in_the_readme_and_no_other(root: Path, command: str) -> None:
    table = read(root, "README.md").split(f"| option of `{command}` |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"--[a-z-]+", " ".join(rows))) == options(command)


def test_every_command_is_in_the_readme(root: Path) -> None:
    text = read(root, "README.md")
    assert all(f"hasten {command}" in text for command in COMMANDS)
    assert set(re.findall(r"^hasten ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)


def test_every_optimisation_is_in_the_readme_with_its_class(root: Path) -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|[^|]*\| (\w+) \|$", read(root, "README.md"), re.M)
    assert dict(rows) == {name: unit.numerics.value for name, unit in discover().items()}


def test_every_finding_is_in_the_readme_with_its_sentence(root: Path) -> None:
    part = read(root, "README.md").split("<!-- FINDINGS")[1].split("<!-- END OF FINDINGS")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", part, re.M)
    assert dict(rows) == {name: sentence(finding) for name, finding in findings().items()}


def sentence(finding: Finding) -> str:
    """The first of its documentation."""
    text = sys.modules[type(finding).__module__].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def test_make_targets_that_are_named_exist(root: Path) -> None:
    named = {t for name in DOCUMENTS for t in re.findall(r"`?make ([a-z-]+)", read(root, name))}
    listed = subprocess.check_output(["make", "help"], cwd=root, text=True)
    targets = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
    assert {"setup", "demo", "test", "check", "bench", "gpu-check"} <= targets
    assert {name for name in named if name in targets} >= {"demo", "test", "setup", "check"}


def test_every_dependency_has_its_reason(root: Path) -> None:
    text = read(root, "pyproject.toml")
    lists = text.split("dependencies = [")[1].split("]")[0]
    lists += text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    names = set(re.findall(r'"([a-z][a-z-]*)[><=]', lists)) - {"types-psutil"}
    table = read(root, "ARCHITECTURE.md").split("## Dependencies")[1]
    listed = {
        n.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for n in row.split(",")
    }
    assert names <= listed


def test_architecture_is_one_page(root: Path) -> None:
    assert len(read(root, "ARCHITECTURE.md").split()) < 1200


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(root: Path, name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", read(root, name)):
        assert target.startswith("http") or (root / target).exists(), target


def test_paths_that_are_named_exist(root: Path) -> None:
    text = read(root, "ARCHITECTURE.md")
    for path in re.findall(r"`((?:instrument|tuning)/[\w/]+(?:\.py)?)/?`", text):
        assert (root / "src" / "hasten" / path).exists(), path


def test_the_ci_script_can_be_run(root: Path) -> None:
    script = root / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_example_is_a_users_script(root: Path) -> None:
    """It knows nothing of hasten, and has the mistakes that it is there for."""
    text = read(root, "examples/image_classification.py")
    assert "hasten" not in text
    for mistake in (".item()", "set_to_none=False", "DataLoader("):
        assert mistake in text
    for cure in ("num_workers", "autocast", "compile(", "fused"):
        assert cure not in text


def test_the_data_set_is_the_same_every_time(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("sklearn")
    code = (
        "import sys, hashlib, numpy; sys.path.insert(0, 'examples'); import make_data as m;"
        "d = numpy.arange(64.).reshape(8, 8) / 4;"
        "print(hashlib.sha256(m.photograph(d, 3).tobytes()).hexdigest(), m.photograph(d, 3).size)"
    )
    command = [sys.executable, "-B", "-c", code]
    first, second = (subprocess.check_output(command, cwd=root, text=True) for _ in range(2))
    assert first == second
    assert "(96, 96)" in first


def test_every_field_of_a_diagnosis_is_documented(root: Path) -> None:
    text = read(root, "docs/diagnosis-json.md")
    named = set(re.findall(r"`(\w+)`", text))
    records = (Observed, Examined, LoaderTimes, Event, Moment, Span, Timeline, TransformTime)
    fields = {f.name for record in records for f in dataclasses.fields(record)}
    assert fields <= named
    assert {observer.name for observer in observers()} <= named
    source = inspect.getsource(diagnosis_document)
    keys = {key for key in re.findall(r'"(\w+)":', source) if not key.isupper()}
    assert len(keys) > 25 and keys <= named
