"""The two processes between hasten and a trial: the keeper and, below it, the guard.

The keeper watches hasten and the guard; the guard watches the keeper and the script. Whichever is
left ends every process of the trial and removes its scratch folder. Started by `launch`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from hasten.instrument.shield import (
    descendants,
    kernel,
    landlock,
    metadata,
    mounts,
    namespaces,
    scratch,
)
from hasten.instrument.shield.overlay import View
from hasten.instrument.shield.supervise import Outcome, Supervisor, reset_signals

_KEEPER_LOOKS_EVERY_S = 2.0
_GUARD_LOOKS_EVERY_S = 0.5
_GUARD_MAY_TAKE_S = 3.5
_FAILED = 125  # what the command `env` ends with when it could not start its program

Trial = Mapping[str, Any]  # the document that `launch` writes; see there


def main(control: int, status: int) -> None:
    """Runs a trial to its end.

    Args:
        control: a pipe that begins with the trial as one line of JSON; its end means "stop".
        status: a pipe for events, one line of JSON each.
    """
    hasten = os.getppid()
    reporter = Reporter(status)
    request = json.loads(_first_line(control))
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    kernel.adopt_orphans()
    supervisor = Supervisor(control)
    try:
        trial = _with_scratch(request)
    except OSError as error:
        reporter.event("failed", reason=f"no place for scratch files: {error}")
        return
    reporter.event("scratch", folder=trial["scratch"])
    guard_end, keeper_end = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(keeper_end)
        os.close(control)
        _run_or_report(reporter, lambda: _guard(trial, guard_end, reporter))
    os.close(guard_end)
    _let_go(trial)
    outcome = supervisor.watch(guard, lambda: _orphaned(hasten), _KEEPER_LOOKS_EVERY_S)
    os.close(keeper_end)
    if outcome.status is None:
        _wait_for_end(guard)
    left = descendants.kill_all()
    if outcome.status not in (0, None):
        reporter.ended(-9, f"the guard of the trial ended with {outcome.status}")
    _clean(trial, left, reporter)


def _with_scratch(request: Trial) -> Trial:
    """Makes the scratch folder here and not in hasten, which may be killed the moment after."""
    environment = request["env"]
    folder, _lock = scratch.create(environment, upper_layer=request["mode"] == "overlay")
    if request["mode"] == "redirect":
        environment = _redirected(environment, folder, request["keep"])
    in_memory = not mounts.can_hold_upper_layer(folder)
    return {**request, "env": environment, "scratch": folder, "in_memory": in_memory}


def _redirected(environment: Mapping[str, str], folder: str, keep: list[str]) -> dict[str, str]:
    temporary = os.path.join(folder, "tmp")
    os.mkdir(temporary)
    shield = json.dumps({"scratch": folder, "keep": keep})
    # Triton loads what it has compiled by a call that no Python function sees.
    triton = {"TRITON_CACHE_DIR": os.path.join(temporary, "triton")}
    return {**triton, **environment, "TMPDIR": temporary, "HASTEN_SHIELD": shield}


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            sys.exit(0)  # hasten ended before it had said what to run
        line += piece
    return line


def _orphaned(hasten: int) -> str | None:
    # A process that hasten forked may hold our pipe open, so its end alone is no proof of life.
    return None if os.getppid() == hasten else "hasten is gone"


def _wait_for_end(guard: int) -> None:
    """Leaves the guard time to clean up, since it knows more than the keeper does."""
    deadline = time.monotonic() + _GUARD_MAY_TAKE_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(guard, os.WNOHANG)[0] == guard:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)


def _clean(trial: Trial, left: list[int], reporter: "Reporter") -> None:
    folder = trial["scratch"]
    if not scratch.remove(folder) and not scratch.remove(folder):
        reporter.event("left", detail=f"files in {folder}")
    if left:
        reporter.event("left", detail=f"processes {left}")


class Reporter:
    """Writes events for `launch`; each is short enough to arrive in one piece."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def event(self, name: str, **details: object) -> None:
        """Writes one event; hasten may be gone, and then there is nobody to tell."""
        try:
            os.write(self._descriptor, json.dumps({"event": name, **details}).encode() + b"\n")
        except BrokenPipeError:
            return

    def ended(self, status: int, reason: str | None) -> None:
        """Says how the script ended."""
        self.event("exit", status=status, reason=reason)


def _let_go(trial: Trial) -> None:
    """Closes what is meant for the script alone, so that its end shows at the other side."""
    for descriptor in trial["pass_fds"]:
        os.close(descriptor)
    namespaces.close_streams()


def _run_or_report(reporter: Reporter, work: Callable[[], None]) -> NoReturn:
    """Runs a forked process to its end: it must never return into its parent's code."""
    code = 0
    try:
        work()
    except BaseException as error:  # whatever it was, the process above has to hear of it
        reporter.event("failed", reason=f"{type(error).__name__}: {error}")
        code = _FAILED
    os._exit(code)


# -- the guard ------------------------------------------------------------------------------------


def _guard(trial: Trial, above: int, reporter: Reporter) -> None:
    kernel.adopt_orphans()
    supervisor = Supervisor(above)
    memory = descendants.SharedMemory() if trial["mode"] != "overlay" else None
    watch = scratch.SizeWatch(trial["scratch"], trial["cap"])

    def tick() -> str | None:
        if memory is not None:
            memory.look()
        return watch.complaint()

    if trial["mode"] == "overlay":
        child, result = _start_in_overlay(trial, reporter)
    else:
        child, result = _start_beside(trial, reporter, supervisor), None
    _let_go(trial)
    outcome = supervisor.watch(child, tick, _GUARD_LOOKS_EVERY_S)
    if memory is not None:
        descendants.freeze()  # else a file could be made between this look and the end
        memory.look(always=True)
    left = descendants.kill_all()
    if memory is not None:
        memory.remove()
    status, reason = _script_status(outcome, result)
    reporter.ended(status, reason)
    _clean(trial, left, reporter)


def _script_status(outcome: Outcome, result: int | None) -> tuple[int, str | None]:
    if outcome.status is None:
        return -9, outcome.reason
    if result is None:
        return outcome.status, None
    text = os.read(result, 64)
    if text:
        return os.waitstatus_to_exitcode(int(text)), None
    return outcome.status or -9, "the trial's first process was killed"


def _start_in_overlay(trial: Trial, reporter: Reporter) -> tuple[int, int]:
    """Starts process 1 of the trial; returns it and the pipe on which it reports the status."""
    confined = namespaces.enter()
    alive, alive_end = os.pipe()
    result, result_end = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(alive_end)
        reset_signals()
        namespaces.die_with(alive)
        report = _status_writer(result_end)
        _run_or_report(reporter, lambda: _first_process(trial, confined, reporter, report))
    os.write(alive_end, b"!")
    for descriptor in (alive, alive_end, result_end):
        os.close(descriptor)
    return first, result


def _status_writer(descriptor: int) -> Callable[[int], None]:
    return lambda status: (os.write(descriptor, str(status).encode()), None)[1]


def _first_process(
    trial: Trial, confined: bool, reporter: Reporter, report: Callable[[int], None]
) -> None:
    namespaces.make_mounts_private()
    view = View(trial["scratch"], in_user_namespace=confined)
    view.build(trial["scratch"], trial["cwd"], trial["keep"], in_memory=trial["in_memory"])
    kernel.enter_root(view.root)
    if confined:  # see `renames`
        environment = {**trial["env"], "HASTEN_SHIELD": json.dumps({"renames": True})}
        trial = {**trial, "env": environment}
    namespaces.run_init(lambda: _become_script(trial, reporter), trial["pass_fds"], report)


def _start_beside(trial: Trial, reporter: Reporter, supervisor: Supervisor) -> int:
    """Starts the script as a child of the guard, with writes refused in redirect mode."""
    if trial["mode"] != "redirect":
        child = os.fork()
        if child == 0:
            reset_signals()
            _run_or_report(reporter, lambda: _become_script(trial, reporter))
        return child
    import socket  # only here: the other modes start without it

    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        reset_signals()
        _run_or_report(reporter, lambda: _confine_and_become_script(trial, there, reporter))
    there.close()
    _, listeners, _, _ = socket.recv_fds(here, 1, 1)
    here.close()
    if listeners:
        guard = metadata.Guard(listeners[0], _writable_folders(trial))
        supervisor.serve(listeners[0], guard.answer)
    return child


def _writable_folders(trial: Trial) -> list[str]:
    folders = [trial["scratch"], "/dev/shm", *trial["keep"]]
    return [folder for folder in folders if os.path.isdir(folder)]


# -- the script -----------------------------------------------------------------------------------


def _confine_and_become_script(trial: Trial, channel: Any, reporter: Reporter) -> None:
    import socket

    landlock.confine(_writable_folders(trial))
    listener = metadata.install()
    socket.send_fds(channel, [b"!"], [listener])
    os.close(listener)
    channel.close()
    _become_script(trial, reporter)


def _become_script(trial: Trial, reporter: Reporter) -> None:
    os.setsid()
    kernel.die_with_parent(9)
    os.chdir(trial["cwd"])
    for descriptor in trial["pass_fds"]:
        os.set_inheritable(descriptor, True)
    reporter.event("started")
    argv, environment = trial["argv"], trial["env"]
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        reporter.event("failed", reason=f"{argv[0]}: {error.strerror}")
        os._exit(_FAILED)
