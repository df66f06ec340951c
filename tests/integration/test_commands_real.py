"""The real command line in processes of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HASTEN = [sys.executable, "-m", "hasten"]
QUICK = 0.25  # seconds of processor time that help may take


def call(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HASTEN, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def processor_seconds(*arguments: str) -> float:
    """User and system time of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*HASTEN, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tune", "--help"]])
def test_help_is_quick(arguments: list[str]) -> None:
    """In processor time, the best of three: the machine may be busy."""
    assert min(processor_seconds(*arguments) for _ in range(3)) < QUICK


HEAVY = (
    "import sys, hasten.commands as c\n{call}\nprint([m for m in {names!r} if m in sys.modules])"
)


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ["torch", "numpy", "rich", "tomlkit", "psutil"]),
        (["tune", "--help"], ["torch", "numpy", "rich", "tomlkit", "psutil"]),
        (["env"], ["torch", "numpy"]),
        (["run", "missing.py"], ["torch", "numpy", "rich"]),
        (["tune", "missing.py"], ["torch", "numpy", "rich"]),
        (["tune", "--only", "missing", __file__], ["torch"]),
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str], absent: list[str]) -> None:
    attempt = f"try: c.main({arguments!r})\nexcept SystemExit: pass"
    code = HEAVY.format(call=attempt, names=absent)
    out = subprocess.check_output([sys.executable, "-c", code], text=True, stderr=subprocess.PIPE)
    assert out.splitlines()[-1] == "[]"


def test_the_installed_command() -> None:
    """The console script is there beside the interpreter and says the same."""
    command = Path(sys.executable).parent / "hasten"
    out = subprocess.check_output([str(command), "--version"], text=True)
    assert out == call("--version").stdout
    assert out.startswith("hasten ")


def test_modules_in_the_current_folder_are_not_for_us(tmp_path: Path) -> None:
    for name in ("click", "json", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not mine')\n")
    result = call("env", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["env"], ["env", "--json"], ["--help"]):
        result = subprocess.run(
            [*HASTEN, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
        assert result.stderr == b""
        assert result.returncode == 1
    os.close(writer)


def test_env_in_any_encoding() -> None:
    result = call("env", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert result.returncode == 0, result.stderr
    assert json.loads(call("env", "--json").stdout)["python"] == sys.version.split()[0]


# --- run without a plan is plain Python ------------------------------------------------------

FAITHFUL = """\
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path,
    "spec": None if __spec__ is None else __spec__.name, "package": __package__,
    "variables": {k: v for k, v in os.environ.items() if k not in ("_", "SHLVL")},
    "modules": sorted(sys.modules), "parent": os.getppid(),
}))
sys.exit(7)
"""


@pytest.mark.parametrize("form", [["there/train.py"], ["-m", "there.train"]])
def test_it_becomes_the_script(tmp_path: Path, form: list[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.py").write_text(FAITHFUL)
    line = [*form, "--plan", "x", "--", "-m"]
    plain = subprocess.run(
        [sys.executable, *line],
        cwd=tmp_path,
        env=dict(os.environ),  # without what readline adds to C's environment only
        capture_output=True,
        text=True,
        check=False,
    )
    ours = call("run", *line, cwd=tmp_path)
    assert ours.returncode == plain.returncode == 7, ours.stderr
    then, now = json.loads(plain.stdout), json.loads(ours.stdout)
    for key in then:
        assert now[key] == then[key], key
    assert ours.stderr.count("\n") == 1
    assert "no plan at" in ours.stderr


def test_errors_of_the_script_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    plain = subprocess.run(
        [sys.executable, "bad.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ours = call("run", "bad.py", cwd=tmp_path)
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.endswith(plain.stderr)


def test_signals_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*HASTEN, "run", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9


# --- bad input, as the shell sees it -----------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["tune"],
        ["tune", "missing.py"],
        ["tune", "--budget", "x", "train.py"],
        ["tune", "--only", "missing", "train.py"],
        ["tune", "--output", "/dev/null", "train.py"],
        ["tune", "--output", "/proc/hasten.toml", "train.py"],
        ["run", "--plan", "missing.toml", "train.py"],
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "train.py").write_text("print('must not run')\n")
    result = call(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("hasten: ")
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["train.py"]


def test_bad_input_is_told_at_once(tmp_path: Path) -> None:
    began = time.process_time()
    assert call("tune", "missing.py", cwd=tmp_path).returncode == 2
    assert time.process_time() - began < 5
