"""Reports of real runs, opened by a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import chromium
import pytest
from diagnosing import SCRIPTS

needs_browser = pytest.mark.skipif(
    chromium.installed() is None, reason="no Chromium is installed (Debian: chromium)"
)
_PHONE, _DESK = 380, 1180
_LARGEST = 300_000  # bytes of a picture that is kept

#: Texts whose contrast to what is behind them is below 4.5 to 1 (WCAG 2, AA), outside of plots.
_PALE = """
(() => {
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4
  const light = c => {
    const part = c.map(v => linear(v / 255))
    return .2126 * part[0] + .7152 * part[1] + .0722 * part[2]
  }
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number)
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = numbers(getComputedStyle(e).backgroundColor)
      if (c.length == 3 || c[3] == 1) return c.slice(0, 3)
    }
    return [255, 255, 255]
  }
  const pale = []
  for (const e of document.body.querySelectorAll('*:not(svg *)')) {
    const own = [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())
    if (!own || !e.getClientRects().length) continue
    const [a, b] = [numbers(getComputedStyle(e).color), behind(e)].map(c => light(c.slice(0, 3)))
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05)
    if (ratio < 4.5) pale.push([e.className, e.textContent.slice(0, 40), ratio])
  }
  return JSON.stringify(pale)
})()
"""


def run(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hasten", command, *arguments],
        capture_output=True,
        text=True,
        timeout=560,
        cwd=cwd,
        check=False,
    )


def examine(tab: chromium.Page, path: Path) -> list[tuple[str, str]]:
    """What holds for every page, in every width and scheme; gives what a screen reader finds."""
    assert path.stat().st_size < 2 * 2**20
    tab.open(path)
    assert tab.ask("document.querySelectorAll('script').length") == 0
    for media, width, dark in (
        ("screen", _DESK, False),
        ("screen", _DESK, True),
        ("screen", _PHONE, True),
        ("print", 800, False),
        ("screen", _PHONE, False),
    ):
        tab.look(width, 900, dark, media)
        assert tab.ask("document.documentElement.scrollWidth") <= width
        pale = tab.ask(_PALE)
        assert pale == "[]", (media, width, dark)
    found = tab.names()
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
    assert tab.ask("document.activeElement.className") == "skip"
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [path.as_uri()]
    return found


def pictures(tab: chromium.Page, name: str, folder: Path) -> list[Path]:
    """Light, dark and on a telephone: the beginning of a page that is open."""
    taken = []
    tab.ask("document.activeElement.blur()")
    for kind, width, dark in (
        ("light", _DESK, False),
        ("dark", _DESK, True),
        ("phone", _PHONE, False),
    ):
        tab.look(width, 1560 if width == _DESK else 1000, dark)
        taken.append(folder / f"{name}-{kind}.png")
        tab.picture(taken[-1])
        assert 5_000 < taken[-1].stat().st_size < _LARGEST
    return taken


@needs_browser
def test_a_diagnosis_opens_in_a_browser(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    script = str(SCRIPTS / "reported.py")
    options = ("--budget", "12", "--html", str(report))
    result = run("diagnose", *options, script, "60", "--save", cwd=SCRIPTS)
    assert result.returncode == 0, result.stderr
    assert f"report written to {report}" in result.stderr
    with chromium.page(tmp_path / "browser") as tab:
        found = examine(tab, report)
        pictures(tab, "diagnosis", tmp_path)
    text = report.read_text(encoding="utf-8")
    assert "torch.save(model.state_dict(), WHERE)" in text  # the user's line
    assert "optimizer.step()" in text  # one round it
    headings = [name for role, name in found if role == "heading"]
    for heading in ("Findings", "Timeline", "From now to the floor", "Loss", "Memory"):
        assert heading in headings
    images = [name for role, name in found if role in ("img", "image")]
    assert any(name.startswith("main process, an iteration: ") for name in images)
    assert any(name.startswith("worker 0, an iteration: makes a batch") for name in images)
    assert any(name.startswith("Loss over") for name in images)
    assert sum(role == "row" for role, _ in found) > 10  # tables stay tables on a telephone


@pytest.mark.slow
@needs_browser
def test_a_tuning_opens_in_a_browser(tmp_path: Path) -> None:
    report, plan = tmp_path / "report.html", tmp_path / "hasten.toml"
    options = ["--budget", "14", "--only", "debug-off", "--curves", "2"]
    where = ["--output", str(plan), "--html", str(report)]
    result = run("tune", *options, *where, str(SCRIPTS / "unit_debug.py"), cwd=SCRIPTS)
    assert result.returncode == 0, result.stderr
    with chromium.page(tmp_path / "browser") as tab:
        found = examine(tab, report)
        pictures(tab, "tuning", tmp_path)
    headings = [name for role, name in found if role == "heading"]
    for heading in ("The plan", "What was tried", "Timeline", "Loss", "Memory"):
        assert heading in headings, result.stdout
    images = [name for role, name in found if role in ("img", "image")]
    (loss,) = [name for name in images if name.startswith("Loss over")]
    assert "ends at" in loss
    if "Confirmed" in result.stdout:  # on a busy machine the time may end before
        assert "as it is ends at" in loss and "the plan ends at" in loss
    assert any(role == "rowheader" and name.startswith("debug-off") for role, name in found)


def test_a_page_that_cannot_be_written_is_said_before_anything_is_run(tmp_path: Path) -> None:
    for command in ("diagnose", "tune"):
        result = run(command, "--html", "no/where.html", str(SCRIPTS / "steady.py"), cwd=tmp_path)
        assert result.returncode == 2 and result.stderr.count("\n") == 1
        assert "there is no directory no; see --html" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_browser
def test_pictures_for_the_documents(tmp_path: Path, root: Path) -> None:
    """Reports of a script with mistakes; with HASTEN_PICTURES set, those kept in docs/.

    For a machine with nothing else to do; some minutes.
    """
    plan = str(tmp_path / "plan.toml")
    for name, options, arguments in (
        ("diagnosis", ("diagnose", "--budget", "30"), ("400", "--save")),
        ("tuning", ("tune", "--budget", "180", "--output", plan), ("400",)),
    ):
        report = tmp_path / f"{name}.html"
        result = run(
            *options, "--html", str(report), "tests/scripts/reported.py", *arguments, cwd=root
        )
        assert result.returncode == 0, result.stderr
        with chromium.page(tmp_path / f"{name}-browser") as tab:
            examine(tab, report)
            taken = pictures(tab, name, tmp_path)
        if os.environ.get("HASTEN_PICTURES"):
            (root / "docs" / "pictures").mkdir(exist_ok=True)
            for picture in taken:
                shutil.copy(picture, root / "docs" / "pictures")
