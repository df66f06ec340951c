"""The loop of a process that watches over a trial: it ends when the trial does, or its watcher.

Two such processes stand above the script, one above the other. Each ends the trial and removes the
scratch folder when the process above it is gone, so no single SIGKILL leaves anything behind.
"""

import os
import select
import signal
from collections.abc import Callable

_STOPPERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class Outcome:
    """How the watched process ended: ``status`` as ``subprocess`` counts it, or a reason."""

    def __init__(self, status: int | None, reason: str | None) -> None:
        self.status = status
        self.reason = reason


class Supervisor:
    """Waits for one child and for the end of a pipe, whichever comes first."""

    def __init__(self, above: int) -> None:
        """Prepares to notice ended children; call it before the child is forked.

        Args:
            above: the reading end of a pipe that only the process above holds open.
        """
        for number in _STOPPERS:
            signal.signal(number, signal.SIG_IGN)
        self._above = above
        self._wake_in, wake_out = os.pipe()
        os.set_blocking(wake_out, False)
        os.set_blocking(self._wake_in, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written
        self._callbacks: dict[int, Callable[[], bool]] = {}

    def serve(self, descriptor: int, callback: Callable[[], bool]) -> None:
        """Calls ``callback`` whenever ``descriptor`` is readable, until it returns False."""
        self._callbacks[descriptor] = callback

    def watch(self, child: int, tick: Callable[[], str | None], every_s: float | None) -> Outcome:
        """Waits for the end of ``child``.

        Args:
            child: the process whose end is the trial's.
            tick: called now and then; a reason to end the trial, or None.
            every_s: how often, at least; None when only events matter.
        """
        poll = select.poll()
        for descriptor in (self._above, self._wake_in, *self._callbacks):
            poll.register(descriptor, select.POLLIN)
        while True:
            status = _ended(child)
            if status is not None:
                return Outcome(status, None)
            reason = tick()
            if reason is not None:
                return Outcome(None, reason)
            for descriptor, _ in poll.poll(None if every_s is None else every_s * 1000):
                if descriptor == self._above and not os.read(self._above, 1):
                    return Outcome(None, "stopped")
                if descriptor == self._wake_in:
                    os.read(self._wake_in, 512)
                elif descriptor in self._callbacks and not self._callbacks[descriptor]():
                    poll.unregister(descriptor)


def _ended(child: int) -> int | None:
    """Reaps what has ended, adopted orphans as well; the child's status if it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # cannot happen before the child's status was returned
            return -signal.SIGKILL
        if pid == 0:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def reset_signals() -> None:
    """Gives a process that is about to become the script the signals of a fresh program."""
    signal.set_wakeup_fd(-1)
    for number in (*_STOPPERS, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
