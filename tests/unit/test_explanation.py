"""`hasten explain`, and the pages that are made of the same docstrings."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hasten import findings, optimisations
from hasten.commands.explain import command
from hasten.errors import HastenError
from hasten.report.explanation import documents, find, listing, pages, rendered

NAMES = [page.name for page in pages()]


def test_everything_that_is_discovered_is_listed_with_a_sentence() -> None:
    assert set(NAMES) == {*optimisations.discover(), *findings.discover()}
    lines = listing(io.StringIO()).splitlines()
    for page in pages():
        assert any(line.split()[:1] == [page.name] and page.summary in line for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_holds_the_whole_docstring(name: str) -> None:
    page = find(name)
    unit = {**optimisations.discover(), **findings.discover()}[name]
    words = (sys.modules[type(unit).__module__].__doc__ or "").split()
    shown = rendered(page, io.StringIO()).split()
    assert len(page.sections) >= 3 and page.summary.endswith(".")
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("amp-bf61", "amp-bf16"), ("loader", "loader-workers"), ("Data_Bund", "data-bound")],
)
def test_an_unknown_name_gets_a_suggestion(asked: str, meant: str) -> None:
    with pytest.raises(HastenError, match=meant) as raised:
        find(asked)
    assert raised.value.exit_code == 2
    with pytest.raises(HastenError, match="lists them all"):
        find("qqqqqqqqq")


def test_names_as_people_write_them() -> None:
    assert find("AMP_bf16").name == "amp-bf16"


def test_the_command() -> None:
    result = CliRunner().invoke(command, ["cache-items"])
    assert result.exit_code == 0
    assert result.output.startswith("cache-items, an optimisation\n")
    assert "\nNumerics\n  Class `exact`" in result.output


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from hasten.report.explanation import listing, documents; listing(); "
        "documents(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_pages_are_current(root: Path) -> None:
    """`make docs` writes them."""
    folder = root / "docs" / "optimisations"
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    stale = [n for n in {*there, *documents()} if there.get(n) != documents().get(n)]
    assert not stale, f"make docs: {stale}"


def test_what_is_not_current_is_named(root: Path, tmp_path: Path) -> None:
    script = root / "docs" / "make_pages.py"
    copy = tmp_path / "make_pages.py"
    copy.write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    look = [sys.executable, str(copy), "--check"]
    first = subprocess.run(look, capture_output=True, text=True, check=False)
    assert first.returncode == 1 and "compile.md" in first.stderr
    assert subprocess.run(look[:-1], check=False).returncode == 0
    (tmp_path / "optimisations" / "gone.md").write_text("x")
    assert "gone.md" in subprocess.run(look, capture_output=True, text=True, check=False).stderr
    assert subprocess.run(look[:-1], check=False).returncode == 0
    assert subprocess.run(look, check=False).returncode == 0
