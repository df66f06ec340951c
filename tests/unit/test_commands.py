"""The command line, with a search that is played: what is passed on, written and printed."""

from __future__ import annotations

import json
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hasten.tuning
from hasten.commands import main, run, script
from hasten.commands.program import COMMANDS
from hasten.errors import HastenError
from hasten.plan import Plan, dump, load, machine_fingerprint
from hasten.records import Failed, Outcome
from hasten.tuning.driver import unwatched
from hasten.tuning.shields import choose_shield

Make = Callable[..., Outcome]


@dataclass
class Played:
    """A stand-in for the search: keeps the request, gives `outcome` or raises it."""

    outcome: Outcome | BaseException
    requests: list[Any] = field(default_factory=list)

    def tune(self, request: Any, listener: Any) -> Outcome:
        self.requests.append(request)
        listener.watching(0, 30)
        listener.note("played")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def played(make_outcome: Make, monkeypatch: pytest.MonkeyPatch) -> Played:
    play = Played(make_outcome())
    session = types.ModuleType("hasten.tuning.session")
    session.tune = play.tune  # type: ignore[attr-defined]
    session.TuneRequest = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hasten.tuning.session", session)
    monkeypatch.setattr(hasten.tuning, "session", session, raising=False)
    return play


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on stderr."""
        assert self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        captured = capsys.readouterr()
        status = end.value.code
        return Result(status if isinstance(status, int) else 0, captured.out, captured.err)

    return call


Call = Callable[..., Result]


# --- tune --------------------------------------------------------------------------------------


def test_tune_writes_a_plan_and_reports(call: Call, folder: Path, played: Played) -> None:
    result = call("tune", "train.py", "--epochs", "3")
    assert result.status == 0
    assert "next:  hasten run train.py --epochs 3" in result.out
    plan = load(folder / "hasten.toml")
    assert plan.setting == dict(played.outcome.setting)  # type: ignore[union-attr]
    assert plan.arguments == ("--epochs", "3")
    assert plan.fingerprint["device"] == machine_fingerprint("cpu")["device"]
    assert plan.fingerprint["torch"] == "2.14.1+cu130"
    assert {"loader", "model", "optimizer"} <= set(plan.fingerprint)


def test_tune_writes_a_page_as_well(call: Call, folder: Path, played: Played) -> None:
    result = call("tune", "--html", "report.html", "train.py")
    assert result.status == 0 and "report written to report.html" in result.err
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "1.74\u00d7" in page
    assert "next:  hasten run train.py" in result.out  # the report on the terminal stays


@pytest.mark.parametrize(
    ("path", "problem"),
    [("no/report.html", "there is no directory no"), (".", "it is a directory")],
)
@pytest.mark.parametrize("command", ["tune", "diagnose"])
def test_a_page_that_cannot_be_written(
    call: Call, folder: Path, played: Played, command: str, path: str, problem: str
) -> None:
    result = call(command, "--html", path, "train.py")
    assert result.status == 2 and problem in result.line and "--html" in result.line
    assert not played.requests


def test_a_page_that_is_lost_at_the_end(
    call: Call, folder: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = call("tune", "--html", "report.html", "train.py")
    assert result.status == 1 and "No space left on device" in result.err
    assert "Traceback" not in result.err and (folder / "hasten.toml").exists()


def test_what_follows_the_script_is_the_scripts(call: Call, folder: Path, played: Played) -> None:
    call("tune", "--budget", "9", "train.py", "--budget", "3", "--json", "--", "-m", "--help")
    request = played.requests[0]
    assert request.argv == ("train.py", "--budget", "3", "--json", "--", "-m", "--help")
    assert request.budget == 9.0


@pytest.mark.parametrize("form", [("-m", "package.train"), ("-mpackage.train",)])
def test_modules(call: Call, folder: Path, played: Played, form: tuple[str, ...]) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text("")
    result = call("tune", "--seed", "4", *form, "-m", "3")
    assert result.status == 0, result.err
    assert played.requests[0].argv == ("-m", "package.train", "-m", "3")
    assert played.requests[0].seed == 4
    assert load(folder / "hasten.toml").script == "-m package.train"
    assert "hasten run -m package.train -m 3" in result.out


def test_a_double_dash_before_the_script(call: Call, folder: Path, played: Played) -> None:
    call("tune", "--repeat", "--", "train.py", "--x")
    assert played.requests[0].argv == ("train.py", "--x")
    assert played.requests[0].repeat is True


def test_all_options_arrive(call: Call, folder: Path, played: Played) -> None:
    options = "--allow statistics --only amp-bf16 --only threads --skip compile"
    options += " --shield redirect --timeout 30 --output other.toml"
    result = call("tune", *options.split(), "train.py")
    request = played.requests[0]
    assert request.allow == frozenset({"statistics"})
    assert request.only == ("amp-bf16", "threads")
    assert request.skip == ("compile",)
    assert (request.shield, request.timeout) == ("redirect", 30.0)
    assert (folder / "other.toml").exists()
    assert not (folder / "hasten.toml").exists()
    assert "hasten run --plan other.toml train.py" in result.out


def test_one_json_document(call: Call, folder: Path, played: Played) -> None:
    result = call("tune", "--json", "train.py")
    assert json.loads(result.out)["schema"] == 1
    assert "note: played" in result.err


def test_an_interrupt_keeps_what_is_known(
    call: Call, folder: Path, played: Played, make_outcome: Make
) -> None:
    played.outcome = make_outcome(interrupted=True, confirmed=None)
    result = call("tune", "train.py")
    assert result.status == 130
    assert load(folder / "hasten.toml").setting
    assert "interrupted" in result.out


def test_an_interrupt_without_result_keeps_the_old_plan(
    call: Call, folder: Path, played: Played, make_outcome: Make
) -> None:
    (folder / "hasten.toml").write_text("old")
    played.outcome = make_outcome(interrupted=True, confirmed=None, setting={})
    assert call("tune", "train.py").status == 130
    assert (folder / "hasten.toml").read_text() == "old"


def test_an_interrupt_before_anything(call: Call, folder: Path, played: Played) -> None:
    played.outcome = KeyboardInterrupt()
    result = call("tune", "train.py")
    assert result.status == 130
    assert result.err.splitlines()[-1] == "hasten: interrupted before anything was known"


def test_an_error_is_one_line_below_the_scripts_own_words(
    call: Call, folder: Path, played: Played
) -> None:
    played.outcome = HastenError("the script failed", 3, detail="Traceback\n  ValueError: x\n")
    result = call("tune", "train.py")
    assert result.status == 3
    assert result.err.endswith("Traceback\n  ValueError: x\nhasten: the script failed\n")


def test_an_empty_result_is_a_success(
    call: Call, folder: Path, played: Played, make_outcome: Make
) -> None:
    played.outcome = make_outcome(setting={}, confirmed=None, tried=())
    result = call("tune", "train.py")
    assert result.status == 0
    assert "already as fast as it gets" in result.out
    assert load(folder / "hasten.toml").setting == {}


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tun"], "no such command: tun; did you mean tune?"),
        (["frobnicate"], f"there are {', '.join(COMMANDS)}"),
        (["train.py"], "did you mean: hasten tune train.py?"),
        (["--verison"], "--version"),
        (["tune"], "no script given"),
        (["run"], "no script given"),
        (["tune", "-m"], "no module named after -m"),
        (["tune", "--buget", "3", "train.py"], "did you mean '--budget'?"),
        (["tune", "--budget", "0", "train.py"], "'0' is not a number of seconds above 0"),
        (["tune", "--budget", "nan", "train.py"], "'nan' is not a number of seconds"),
        (["tune", "--budget", "soon", "train.py"], "'soon' is not a number of seconds"),
        (["tune", "--allow", "all", "train.py"], "statistics"),
        (["tune", "--shield", "steel", "train.py"], "overlay"),
        (["tune", "trian.py"], "no such script: trian.py; did you mean train.py?"),
        (["tune", "train"], "did you mean train.py?"),
        (["run", "trian.py"], "did you mean train.py?"),
        (["tune", "nowhere/x.py"], "there is no directory nowhere"),
        (["tune", "."], ". is a directory"),
        (["tune", "--only", "amp-bf61", "train.py"], "did you mean amp-bf16?"),
        (["tune", "--skip", "zzz", "train.py"], "no optimisation is called zzz: there are"),
        (["tune", "--output", "no/where.toml", "train.py"], "there is no directory"),
        (["tune", "--output", ".", "train.py"], "it is a directory"),
        (["tune", "-m", "nothing.here"], "no module named nothing"),
        (["tune", "-m", "json.nothing"], "no module named json.nothing"),
        (["tune", "-m", "json"], "package without __main__"),
        (["run", "--plan", "none.toml", "train.py"], "no plan at none.toml"),
        (["env", "extra"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line(
    call: Call, folder: Path, played: Played, arguments: list[str], expected: str
) -> None:
    result = call(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert result.line.startswith("hasten: ")
    assert expected.lower() in result.line.lower()
    assert played.requests == []
    assert not (folder / "hasten.toml").exists()


def test_a_syntax_error_is_shown_as_python_shows_it(
    call: Call, folder: Path, played: Played
) -> None:
    (folder / "bad.py").write_text("x = 1\nfor x in:\n    pass\n")
    result = call("tune", "bad.py")
    assert result.status == 2
    assert 'File "bad.py", line 2' in result.err
    assert "SyntaxError" in result.err
    assert result.err.splitlines()[-1] == "hasten: bad.py has a syntax error"


@pytest.mark.parametrize("form", [["train.py"], ["-m", "train"]])
@pytest.mark.parametrize("command", [["diagnose"], ["tune"], ["batch"], ["run", "--watch"]])
def test_a_module_of_the_users_that_is_called_hasten(
    call: Call, folder: Path, played: Played, command: list[str], form: list[str]
) -> None:
    """Both would have one name in the script's process."""
    (folder / "hasten.py").write_text("")
    result = call(*command, *form)
    assert result.status == 2
    assert result.line.startswith("hasten: hasten.py has the name of hasten itself")


def test_a_checkout_beside_the_script_is_no_such_module(folder: Path) -> None:
    (folder / "hasten" / "src").mkdir(parents=True)
    script.check_name(("train.py",))
    script.check_name((str(Path(hasten.__file__).parent.parent / "train.py"),))


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    with pytest.raises(HastenError, match="make room, or set TMPDIR") as caught:
        choose_shield("auto")
    assert caught.value.exit_code == 3


def test_what_hasten_itself_could_not_do_is_one_line() -> None:
    """Not the whole record, with all lines of a traceback in it."""
    error = unwatched(Failed("internal", "KeyError: 'x'", "Traceback ...\n", {}, 3))
    assert (str(error), error.exit_code) == ("the script could not be watched: KeyError: 'x'", 3)
    assert error.detail == "Traceback ...\n"


def test_null_bytes(call: Call, folder: Path, played: Played) -> None:
    (folder / "bad.py").write_bytes(b"x = 1\0\n")
    assert call("tune", "bad.py").status == 2


def test_other_encodings_and_warnings_are_no_errors(folder: Path) -> None:
    (folder / "old.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9\\d'\n")
    script.check(("old.py",))


def test_modules_are_found_without_importing_their_package(folder: Path) -> None:
    (folder / "noisy").mkdir()
    (folder / "noisy" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "noisy" / "train.py").write_text("x = (\n")
    with pytest.raises(HastenError, match="syntax error"):
        script.check(("-m", "noisy.train"))
    assert "noisy" not in sys.modules


def test_a_package_with_main(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__main__.py").write_text("")
    assert script.find(("-m", "pack")) == folder / "pack" / "__main__.py"


# --- run -----------------------------------------------------------------------------------------


@dataclass
class Became:
    """What the process would have become."""

    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Became:
    became = Became()

    def execve(path: str, line: list[str], env: dict[str, str]) -> None:
        assert path == sys.executable == line[0]
        became.arguments, became.env = tuple(line[1:]), dict(env)
        raise SystemExit(0)

    monkeypatch.setattr(run.os, "execve", execve)
    return became


def write_plan(folder: Path, **fingerprint: str) -> Path:
    now = machine_fingerprint("cpu") | fingerprint
    path = folder / "hasten.toml"
    dump(Plan("train.py", (), {"amp-bf16": True}, fingerprint=now), path)
    return path


def test_without_a_plan_it_is_plain_python(call: Call, folder: Path, became: Became) -> None:
    result = call("run", "train.py", "--plan", "x", "--", "-y")
    assert result.status == 0
    assert became.arguments == ("train.py", "--plan", "x", "--", "-y")
    assert "HASTEN_CHILD" not in became.env
    assert "no plan at hasten.toml" in result.line


def test_an_empty_plan_is_plain_python(call: Call, folder: Path, became: Became) -> None:
    dump(Plan("train.py", (), {}), folder / "hasten.toml")
    assert call("run", "train.py").err == ""
    assert "HASTEN_CHILD" not in became.env


def test_the_plan_is_passed_on(call: Call, folder: Path, became: Became) -> None:
    write_plan(folder, loader="ImageFolder")
    assert call("run", "train.py", "-x").err == ""
    assert became.arguments == ("train.py", "-x")
    child = json.loads(became.env["HASTEN_CHILD"])
    assert child["mode"] == "run"
    assert child["setting"] == {"amp-bf16": True}
    assert child["fingerprint"]["loader"] == "ImageFolder"


def test_the_plan_is_found_beside_the_script(
    call: Call, folder: Path, became: Became, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(folder)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    call("run", "../train.py")
    assert "HASTEN_CHILD" in became.env


def test_watching_needs_no_plan(call: Call, folder: Path, became: Became) -> None:
    write_plan(folder)
    assert call("run", "--watch", "train.py").err == ""
    child = json.loads(became.env["HASTEN_CHILD"])
    assert (child["mode"], child["setting"]) == ("watch", {})


@pytest.mark.parametrize(
    "changed", [{"device": "cpu: another, 96 cores"}, {"torch": "1.0.0"}, {"device": "cuda: none"}]
)
def test_another_machine_needs_force(
    call: Call, folder: Path, became: Became, changed: dict[str, str]
) -> None:
    write_plan(folder, **changed)
    result = call("run", "train.py")
    assert result.status == 2
    assert "--force" in result.line
    assert became.arguments == ()
    forced = call("run", "--force", "train.py")
    assert forced.status == 0
    assert "forced" in forced.line
    assert became.arguments == ("train.py",)


def test_a_bad_plan_stops_it(call: Call, folder: Path, became: Became) -> None:
    (folder / "hasten.toml").write_text("schema = 2\n")
    assert "newer hasten" in call("run", "train.py").line
    assert became.arguments == ()


# --- env -----------------------------------------------------------------------------------------


def test_env(call: Call) -> None:
    assert "processor" in call("env").out
    found = json.loads(call("env", "--json").out)
    assert found["cores"] >= 1


def test_help_of_everything(call: Call) -> None:
    assert call().out == call("--help").out
    for name in ("tune", "run", "env"):
        assert f"hasten {name}" in call(name, "--help").out


def test_the_real_request_takes_what_the_command_gives() -> None:
    session = pytest.importorskip("hasten.tuning.session", exc_type=ImportError)
    names = {f.name for f in session.TuneRequest.__dataclass_fields__.values()}
    assert names == {
        *("argv", "budget", "repeat", "allow", "only", "skip", "device", "shield", "timeout"),
        *("seed", "item_seeds", "curves"),
    }
