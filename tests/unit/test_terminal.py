"""What is shown: complete, within 80 columns, plain without a terminal, and valid JSON."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hasten.environment import look
from hasten.plan import Plan
from hasten.records import PHASES, Outcome, Ratio, Tried
from hasten.report import machine, phrases, progress, terminal
from hasten.report.document import document
from hasten.verification import Judged, Pair, Verification

Make = Callable[..., Outcome]
PLAN = Path("examples/hasten.toml")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


def plan_of(outcome: Outcome, script: str = "examples/train.py") -> Plan:
    return Plan(script, ("--epochs", "3"), dict(outcome.setting), outcome.tried, outcome.confirmed)


def report(outcome: Outcome, written: Path | None = PLAN, stream: io.StringIO | None = None) -> str:
    return terminal.render(outcome, plan_of(outcome), written, stream or io.StringIO())


# --- the report ------------------------------------------------------------------------------


def test_it_tells_everything(make_outcome: Make) -> None:
    text = report(make_outcome())
    for expected in (
        "an iteration takes 300.0 ms",
        "backward           140.0 ms   47 %",
        "amp-bf16                           1.71x  1.62 to 1.80  faster         rounding",
        "on top of amp-bf16:",
        "gradient error 0.29 is above the bound",
        "35 s of compiling are won back after 1,200 iterations",
        "plan: amp-bf16; loader-workers workers 2, prefetch 2, persistent",
        "Confirmed from end to end: 1.74x (1.66 to 1.82)",
        "with all data at hand it would be 1.10x",
        "measured for 2 min 51 s and compiled for 35 s, 812 iterations",
        "shield: overlay",
        "note: something to know",
        "next:  hasten run examples/train.py --epochs 3",
    ):
        assert expected in text


def test_what_was_compared_of_the_training(make_outcome: Make) -> None:
    loss = Judged("final loss", "not worse", 0.05, "given", 0.5, 0.51, 0.01, -0.01, 0.03, 5, 0.95)
    pairs = tuple(Pair(k, (1.0, 0.5), (1.0, 0.51)) for k in range(5))
    found = Verification("holds", (loss,), (), pairs, 2, 1, "seeded", {"x": 1})
    outcome = make_outcome(counted=40, verified=found)
    text = " ".join(report(outcome).split())
    assert "counted over 40 iterations of both, and the same: samples and updates" in text
    assert "5 pairs of runs over the same 2 iterations: seeded" in text
    assert "not worse beyond 0.05 (given)" in text and "below 0.03 and above -0.01" in text
    plain = document(outcome, Plan("train.py", (), {}), None)
    assert plain["counted"] == {"iterations": 40, "broken": []}
    assert plain["verified"]["judged"][0]["margin"] == 0.05
    assert [pair["plan"] for pair in plain["verified"]["pairs"]] == [[1.0, 0.51]] * 5
    assert document(make_outcome(), Plan("train.py", (), {}), None)["verified"] is None


def test_it_is_plain_and_narrow_without_a_terminal(make_outcome: Make) -> None:
    text = report(make_outcome())
    assert "\x1b" not in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80


def test_several_at_once_are_told_part_by_part(make_outcome: Make) -> None:
    value = {"amp-bf16": True, "threads": 2}
    both = Tried("amp-bf16 + threads", value, 1.5, 1.4, 1.6, "faster", "rounding")
    text = report(make_outcome(tried=(both,)))
    assert "amp-bf16                           1.50x" in text
    assert "\n  + threads 2\n" in text


def test_long_names_and_reasons_are_wrapped(make_outcome: Make) -> None:
    long = Tried("x" * 30, {"a" * 20: "b" * 20}, 1.0, 0.9, 1.1, "failed", "exact", "word " * 60)
    text = report(make_outcome(tried=(long,), notes=("note " * 50,)))
    assert max(map(len, text.splitlines())) <= 80


def test_colours_on_a_terminal(make_outcome: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in report(make_outcome(), stream=Terminal())
    assert "\u2588" in report(make_outcome(), stream=Terminal())


def test_no_color(make_outcome: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" not in report(make_outcome(), stream=Terminal())


def test_already_fast(make_outcome: Make) -> None:
    same = Tried("amp-bf16", True, 1.0, 0.99, 1.01, "no difference", "rounding")
    text = report(make_outcome(setting={}, confirmed=None, tried=(same,)))
    assert "already as fast as it gets" in text
    assert "next:" not in text


def test_not_sure(make_outcome: Make) -> None:
    unsure = Tried("amp-bf16", True, 1.1, 0.9, 1.3, "cannot tell", "rounding")
    text = report(make_outcome(setting={}, confirmed=None, tried=(unsure,)))
    assert "larger --budget" in text
    assert "already as fast" not in text


@pytest.mark.parametrize(
    ("setting", "written", "expected"),
    [
        ({}, None, "nothing was written"),
        ({"amp-bf16": True}, PLAN, "known until then, and kept"),
    ],
)
def test_interrupted(
    make_outcome: Make, setting: dict[str, object], written: Path | None, expected: str
) -> None:
    outcome = make_outcome(setting=setting, confirmed=None, interrupted=True)
    assert expected in report(outcome, written)


def test_not_confirmed(make_outcome: Make) -> None:
    outcome = make_outcome(confirmed=Ratio(1.03, 0.98, 1.08), confirmed_verdict="cannot tell")
    assert "larger --budget can tell" in report(outcome)


def test_other_plan_paths_are_in_the_command(make_outcome: Make) -> None:
    text = terminal.render(
        make_outcome(), plan_of(make_outcome(), "my train.py"), Path("p.toml"), io.StringIO()
    )
    command = text.split("next:  ")[1].strip()
    assert shlex.split(command)[2:] == ["--plan", "p.toml", "my train.py", "--epochs", "3"]


def test_a_module_is_run_as_one(make_outcome: Make) -> None:
    plan = plan_of(make_outcome(), "-m package.train")
    text = terminal.render(make_outcome(), plan, Path("hasten.toml"), io.StringIO())
    assert "hasten run -m package.train --epochs 3" in text


def test_what_a_stream_cannot_encode(make_outcome: Make) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    text = terminal.render(
        make_outcome(notes=("caf\u00e9",)), plan_of(make_outcome()), PLAN, stream
    )
    assert "caf?" in text


def test_a_vague_ceiling_is_left_out(make_outcome: Make) -> None:
    assert "all data at hand" not in report(make_outcome(data_free=Ratio(1.5, 0.1, 15.0)))


def test_nothing_tried(make_outcome: Make) -> None:
    text = report(make_outcome(setting={}, tried=(), confirmed=None))
    assert "nothing" in text


# --- the document ----------------------------------------------------------------------------


def test_document(make_outcome: Make) -> None:
    outcome = make_outcome()
    found = json.loads(json.dumps(document(outcome, plan_of(outcome), PLAN), allow_nan=False))
    assert found["schema"] == 1
    assert found["environment"]["cores"] >= 1
    assert found["baseline"]["iteration_ms"] == pytest.approx(300)
    assert list(found["baseline"]["phases_ms"]) == list(PHASES)
    assert found["confirmed"] == {"ratio": 1.74, "low": 1.66, "high": 1.82}
    assert found["seconds"] == 171.2
    assert found["plan"]["settings"] == outcome.setting
    assert found["plan"]["path"] == str(PLAN.resolve())
    wanted = {"name", "value", "ratio", "low", "high", "verdict", "class", "reason"}
    for entry in found["tried"]:
        assert wanted | {"payback_iterations"} <= set(entry)
    assert [entry["class"] for entry in found["tried"]][:2] == ["rounding", "exact"]


def test_document_without_a_result(make_outcome: Make) -> None:
    endless = Tried("a", None, float("nan"), 0.0, float("inf"), "cannot tell", "exact")
    outcome = make_outcome(setting={}, confirmed=None, tried=(endless,))
    found = json.loads(json.dumps(document(outcome, plan_of(outcome), None), allow_nan=False))
    assert found["confirmed"] is None
    assert found["plan"]["path"] is None
    assert found["tried"][0]["ratio"] is None


# --- progress --------------------------------------------------------------------------------


def go_through(listener: progress.Lines | progress.Display, outcome: Outcome) -> None:
    listener.watching(0, 30)
    listener.watching(12, 30)
    listener.profiled(outcome.profile)
    listener.trying("amp-bf16", True, None, 0, 160.0)
    listener.trying("amp-bf16", True, Ratio(1.7, 1.5, 1.9), 8, 150.0)
    listener.compiling("compile")
    for tried in outcome.tried:
        listener.tried(tried)
    listener.confirming(None, 0, 20.0)
    listener.confirming(Ratio(1.7, 1.5, 1.9), 4, 10.0)
    listener.note("a [bracket] note")


def test_progress_without_a_terminal(make_outcome: Make) -> None:
    stream = io.StringIO()
    with progress.progress(180, stream) as listener:
        go_through(listener, make_outcome())
    lines = stream.getvalue().splitlines()
    assert "amp-bf16: faster 1.71x (1.62 to 1.80)" in lines
    assert "note: a [bracket] note" in lines
    assert len([line for line in lines if line.startswith("confirming")]) == 1
    assert "\x1b" not in stream.getvalue()


def test_progress_on_a_terminal(make_outcome: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress.progress(180, stream) as listener:
        assert isinstance(listener, progress.Display)
        go_through(listener, make_outcome())
        listener.live.refresh()
    text = stream.getvalue()
    assert "confirming the plan" in text
    assert "a [bracket] note" in text
    assert "10 s left" in text


def test_a_reader_that_went_away_does_not_end_a_search(make_outcome: Make) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with progress.progress(180, Closed()) as listener:
        go_through(listener, make_outcome())


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ""),
        (None, ""),
        (4, "4"),
        ("fused", "fused"),
        ({"workers": 0}, "workers 0"),
        ({"workers": 2, "prefetch": None, "persistent": False}, "workers 2"),
    ],
)
def test_values(value: object, words: str) -> None:
    assert phrases.value(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "0 s"), (59.6, "60 s"), (120, "2 min 00 s"), (171, "2 min 51 s")]
)
def test_durations(seconds: float, words: str) -> None:
    assert phrases.duration(seconds) == words


def test_the_machine_in_words() -> None:
    environment = look()
    text = machine.render(environment, io.StringIO())
    assert environment.cpu in text
    assert text.isascii()
    assert "\x1b" not in text
    assert f"{environment.cores} core" in machine.line(environment.describe())
