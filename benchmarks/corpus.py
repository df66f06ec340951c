"""The corpus: real public training scripts, unmodified, that hasten is tested on.

The scripts are not part of this project. They are checked out at pinned commits
from copies of their repositories into a folder of their own, and given stand-in
data (`corpus_data.py`), because nothing can be downloaded where the benchmarks
run. What a script needs besides is arranged from outside: variables, a folder of
packages, hooks on PYTHONPATH, a stub of `stty`.

    python benchmarks/corpus.py --root CORPUS list
    python benchmarks/corpus.py --root CORPUS prepare [NAME...]
    python benchmarks/corpus.py --root CORPUS plain NAME [--iterations N] [--workers W]
    python benchmarks/corpus.py --root CORPUS compare NAME --tool "hasten run --watch"
    python benchmarks/corpus.py --root CORPUS command NAME --tool "hasten tune --budget 120"

`--mirror` is the folder with the copies: `OWNER+NAME/repo` (a git directory),
or an ordinary clone in `OWNER+NAME`, `NAME` or `NAME.git`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus_data
import loss_trace
from corpus_scripts import SCRIPTS, Repository, Script

DEFAULT_ROOT = Path("/work/corpus")
DEFAULT_MIRROR = Path("/work/.mirror")

# Packages that some script imports, installed without their dependencies (all
# listed) into CORPUS/_site, so that torch and numpy stay the ones of the test.
PACKAGES = (
    "six",
    "tqdm",
    "matplotlib",
    "contourpy",
    "cycler",
    "fonttools",
    "kiwisolver",
    "pyparsing",
    "python-dateutil",
    "requests",
    "urllib3",
    "idna",
    "certifi",
    "charset-normalizer",
    "sentencepiece",
    "wandb==0.19.11",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "docker-pycreds",
    "GitPython",
    "gitdb",
    "smmap",
    "platformdirs",
    "protobuf<6",
    "PyYAML",
    "sentry-sdk",
    "setproctitle",
    "tensorboard==2.19.0",
    "absl-py",
    "grpcio",
    "markdown",
    "werkzeug",
)


def cwd(each: Script, root: Path) -> Path:
    """Return a script's working directory below a corpus root."""
    return root / each.repository.folder / each.directory


def variables(each: Script, root: Path) -> dict[str, str]:
    """Return a script's environment, on top of the present one."""
    repository = root / each.repository.folder
    filled = {
        name: value.format(corpus=root, repository=repository)
        for name, value in each.environment.items()
    }
    front = {
        "PYTHONPATH": [filled.get("PYTHONPATH", ""), str(loss_trace.HOOKS), str(root / "_site")],
        "PATH": [filled.get("PATH", "")],
    }
    for name, places in front.items():
        present = os.environ.get(name, "").split(os.pathsep)
        filled[name] = os.pathsep.join(place for place in [*places, *present] if place)
    return filled


def script(name: str) -> Script:
    """Return the script of that name.

    Raises:
        KeyError: there is none.
    """
    return {each.name: each for each in SCRIPTS}[name]


# -------------------------------------------------------------------------------- checkout
class MissingRepository(Exception):
    """No copy of a repository is in the mirror folder."""


def _git_directory(repository: Repository, mirror: Path) -> Path:
    """Find a copy of a repository in the mirror folder."""
    owner, name = repository.name.split("/")
    for place in (f"{owner}+{name}/repo", f"{owner}+{name}", name, f"{name}.git"):
        for candidate in (mirror / place / ".git", mirror / place):
            if (candidate / "HEAD").exists():
                return candidate
    raise MissingRepository(
        f"no copy of {repository.name} in {mirror}: "
        f"fetch github:{repository.name}, or clone it to {mirror / name}"
    )


def checkout(root: Path, repositories: Iterable[Repository], mirror: Path) -> list[str]:
    """Write the files of each repository's pinned commit below the root.

    Files that the copy lacks (a mirror leaves out the largest) are passed over,
    and folders that are already there are left alone.

    Returns:
        What was passed over, as `folder/path`.

    Raises:
        MissingRepository: a copy is missing; its text says what to fetch.
    """
    missing: list[str] = []
    for repository in dict.fromkeys(repositories):
        folder = root / repository.folder
        mark = folder / ".corpus-commit"
        if mark.exists() and mark.read_text() == repository.commit:
            continue
        git = _git_directory(repository, mirror)
        lacking = _write_tree(git, repository.commit, folder)
        missing += [f"{repository.folder}/{path}" for path in lacking]
        mark.write_text(repository.commit)
    return missing


def _git(git: Path, *arguments: str) -> bytes:
    """Run git on a copy, without ever asking the network for what is not there."""
    quiet = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", f"--git-dir={git}", *arguments]
    return subprocess.run(command, capture_output=True, check=True, env=quiet).stdout


def _write_tree(git: Path, commit: str, folder: Path) -> list[str]:
    """Write a commit's regular files; return the paths of those that the copy lacks."""
    lacking = []
    for entry in _git(git, "ls-tree", "-r", "-z", commit).decode().split("\0"):
        if not entry:
            continue
        about, path = entry.split("\t", 1)
        mode, kind, name = about.split()
        if kind != "blob" or mode == "120000":
            continue
        try:
            content = _git(git, "cat-file", "blob", name)
        except subprocess.CalledProcessError:
            lacking.append(path)
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if mode == "100755" else 0o644)
    return lacking


# --------------------------------------------------------------------------------- prepare
def prepare(
    root: Path,
    scripts: Sequence[Script] = SCRIPTS,
    mirror: Path = DEFAULT_MIRROR,
    python: str = sys.executable,
) -> list[str]:
    """Check out what the scripts need, install their packages, write their data.

    Returns:
        One line for each thing that was done or is worth knowing.
    """
    root.mkdir(parents=True, exist_ok=True)
    missing = checkout(root, (each.repository for each in scripts), mirror)
    done = [f"not in the copy, passed over: {path}" for path in missing]
    if not (root / "_site" / ".complete").exists():
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        subprocess.run([*install, "--target", str(root / "_site"), *PACKAGES], check=True)
        (root / "_site" / ".complete").touch()
        done.append(f"installed packages into {root / '_site'}")
    _write_stty(root / "_bin" / "stty")
    for each in scripts:
        for name, into in each.data:
            if corpus_data.write(name, cwd(each, root) / into):
                done.append(f"{each.name}: wrote {name}")
    return done


def _write_stty(path: Path) -> None:
    """Write a `stty` that knows its size without a terminal (pytorch-cifar asks for it)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho 40 120\n")
    path.chmod(0o755)


# --------------------------------------------------------------------------------- running
def plain(
    each: Script,
    root: Path,
    iterations: int = 30,
    workers: int | None = None,
    timeout: float = 300.0,
    python: str = sys.executable,
) -> loss_trace.Trace:
    """Run a script as plain Python for some iterations and return its losses and times."""
    return loss_trace.trace(
        [python, *each.argv(workers)],
        iterations * each.backwards,
        cwd=cwd(each, root),
        environment=variables(each, root),
        seed=each.seed,
        timeout=timeout,
    )


def compare(
    each: Script,
    root: Path,
    tool: Sequence[str],
    iterations: int = 30,
    workers: int | None = None,
    timeout: float = 300.0,
    python: str = sys.executable,
) -> loss_trace.Comparison:
    """Compare a script's losses as plain Python with those under a tool, to the bit.

    Args:
        each: the script.
        root: the corpus.
        tool: what is put in front of the script, such as `["hasten", "run", "--watch"]`.
        iterations: how many training iterations.
        workers: one of the script's worker counts.
        timeout: seconds for each of the two runs.
        python: the interpreter of the plain run.
    """
    return loss_trace.compare(
        [python, *each.argv(workers)],
        [*tool, *each.argv(workers)],
        iterations * each.backwards,
        cwd=cwd(each, root),
        environment=variables(each, root),
        seed=each.seed,
        timeout=timeout,
        ends_early=each.iterations < iterations,
    )


# ----------------------------------------------------------------------------- subcommands
def _chosen(names: Sequence[str]) -> list[Script]:
    if names:
        return [script(name) for name in names]
    return [each for each in SCRIPTS if not each.slow]


def _list(options: argparse.Namespace) -> int:
    for each in SCRIPTS:
        facts = f"loader {each.loader!s:5} optimizers {each.optimizers}"
        print(f"{each.name:22s} {facts} {each.iteration_ms:8.1f} ms  {each.kind}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    try:
        done = prepare(options.root, _chosen(options.names), options.mirror)
    except MissingRepository as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(done) or "all is there")
    return 0


def _plain(options: argparse.Namespace) -> int:
    failed = 0
    for each in _chosen(options.names):
        seconds = options.seconds or 300.0
        iterations = 0 if options.seconds else options.iterations
        run = plain(each, options.root, iterations, options.workers, seconds)
        wall, processor = run.step_ms(each.backwards)
        ended = {0: "ended", None: "stopped"}.get(run.status, f"failed with {run.status}")
        print(
            f"{each.name:22s} {len(run.losses) // each.backwards:5d} iterations, "
            f"{wall:7.1f} ms, of which {processor:7.1f} ms on the processor, {ended}",
            flush=True,
        )
        if not run.losses or run.status not in (0, None):
            print(run.output, file=sys.stderr)
            failed = 1
    return failed


def _compare(options: argparse.Namespace) -> int:
    tool = shlex.split(options.tool) if options.tool else [sys.executable]
    failed = 0
    for each in _chosen(options.names):
        counts = [options.workers] if options.workers is not None else each.workers or (None,)
        for workers in counts:
            result = compare(each, options.root, tool, options.iterations, workers)
            verdict = "equal" if result.equal else f"DIFFERENT: {result.reason}"
            shown = "" if workers is None else f"{workers} workers"
            print(f"{each.name:22s} {shown:10s} {result.calls:4d} losses {verdict}", flush=True)
            failed |= not result.equal
            if not result.equal and not result.other.losses:
                print(result.other.output, file=sys.stderr)
    return int(failed)


def _command(options: argparse.Namespace) -> int:
    """Print a shell line that runs a script under a tool."""
    for each in _chosen(options.names):
        words = [
            f"{name}={_quoted(name, value)}"
            for name, value in sorted(variables(each, options.root).items())
            if value != os.environ.get(name)
        ]
        tool = options.tool or sys.executable
        line = " ".join([*words, tool, shlex.join(each.argv(options.workers))])
        print(f"cd {shlex.quote(str(cwd(each, options.root)))} && {line}")
    return 0


def _quoted(name: str, value: str) -> str:
    """Quote a variable's value for a shell, with the present value at its end left to the shell."""
    present = os.environ.get(name)
    if present and value.endswith(os.pathsep + present):
        return f'{shlex.quote(value.removesuffix(present))}"${name}"'
    return shlex.quote(value)


def main() -> int:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(description="The corpus of real public training scripts.")
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT)
    parser.add_argument("--mirror", type=Path, default=DEFAULT_MIRROR)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    functions = {
        "list": (_list, "what there is"),
        "prepare": (_prepare, "check out, install packages, write data"),
        "plain": (_plain, "run as plain Python and time the iterations"),
        "compare": (_compare, "compare losses with a tool's to the bit"),
        "command": (_command, "print the shell line that runs a script"),
    }
    for name, (function, text) in functions.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        command.add_argument("names", nargs="*", metavar="NAME", help="scripts; all if left out")
        command.add_argument("--workers", type=int, help="one of the script's worker counts")
        command.add_argument("--iterations", type=int, default=30)
        command.add_argument(
            "--seconds", type=float, default=0.0, help="for plain: time, not count"
        )
        command.add_argument("--tool", default="", help="what to put in front of the script")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - {each.name for each in SCRIPTS})
    if unknown:
        parser.error(f"no script named {', '.join(unknown)}")
    options.root = options.root.resolve()
    return int(options.function(options))


if __name__ == "__main__":
    raise SystemExit(main())
