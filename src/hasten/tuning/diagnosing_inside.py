"""A diagnosis of a function in this process: what `diagnose` measures, answered by the function.

The function trains in the thread that called; what decides on the measurements runs in another and
waits while the function trains, as a parent waits for its child. Nothing shields files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from queue import SimpleQueue

from hasten.findings import Diagnosis
from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.observe.conductor import ObservingConductor
from hasten.instrument.programs import failure, obey
from hasten.instrument.recorder import Iteration
from hasten.instrument.shield.launch import ShieldMode
from hasten.protocol import Message
from hasten.records import Ended
from hasten.tuning.diagnosing import DiagnoseRequest, Diagnosing
from hasten.tuning.process import Child, Gone

_START, _LEAVE, _DONE = "start", "leave", "done"


class Left(BaseException):
    """Leaves the function when it is not needed any more; passes through `except Exception`."""


class _Stopped(Exception):
    """The function has failed or was interrupted: the diagnosis is over."""


class _Function(Child):
    """Calls of the function, in the place of a child process."""

    def __init__(self, session: InsideDiagnosis) -> None:
        super().__init__((), ShieldMode.NONE, session.notes.append)
        self._session = session
        self._left = False

    def start(self) -> None:
        """Have the function called; it trains while a command is obeyed."""
        self._session.calls.put(_START)

    def ask(self, command: Message, seconds: float) -> Message:
        """Send a command and wait for its answer, however long it takes.

        Raises:
            Gone: the function has come to its end.
        """
        self._session.calls.put(command)
        answer = self._session.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def describe(self) -> str:
        """Nothing is shielded."""
        return ""

    def close(self) -> None:
        """Leave the function."""
        if not self._left:
            self._left = True
            self._session.calls.put(_LEAVE)


class InsideDiagnosis(Diagnosing):
    """One diagnosis of a function.

    Attributes:
        calls: to the thread in which the function trains.
        answers: from it.
        last: the conductor of the last call of the function.
    """

    def __init__(self, train: Callable[[], object], request: DiagnoseRequest) -> None:
        super().__init__(request, lambda _: None)
        self.train = train
        self.calls: SimpleQueue[Message | str] = SimpleQueue()
        self.answers: SimpleQueue[Message | Exception] = SimpleQueue()
        self.last: ObservingConductor | None = None
        self._obeying = False  # a command was taken and is not answered yet
        self._result: Diagnosis | Exception | None = None

    def _start(self, observe: bool) -> Child:
        self._child = _Function(self)
        self._child.start()
        return self._child

    def here(self) -> Diagnosis:
        """Run it, with the function in this thread.

        Raises:
            HastenError: the function can't be diagnosed.
        """
        thread = threading.Thread(target=self._decide, name="hasten diagnose")
        thread.start()
        try:
            self._serve()
        except BaseException:
            self._stop()
            raise
        finally:
            thread.join()
        if isinstance(self._result, Exception):
            raise self._result
        assert self._result is not None
        return self._result

    def _decide(self) -> None:
        try:
            self._result = self.run()
        except Exception as error:  # goes on in the thread that waits
            self._result = error
        self.calls.put(_DONE)

    def _serve(self) -> None:
        """Call the function as often as it is asked for."""
        while (call := self.calls.get()) != _DONE:
            if call == _START:
                self._call()
            elif not isinstance(call, str):
                self.answers.put(self._gone())

    def _stop(self) -> None:
        if self._obeying:
            self._reply(_Stopped())
        while (call := self.calls.get()) != _DONE:
            if not isinstance(call, str):
                self.answers.put(_Stopped())

    def _call(self) -> None:
        conductor = self.last = ObservingConductor(self._program)
        conductor.began = time.time()
        conductor.install()
        try:
            self.train()
        except Left:
            pass
        finally:
            conductor.stop_observing()
            conductor.uninstall()
        if self._obeying:
            self._reply(self._gone())

    def _program(self, conductor: Conductor) -> Program:
        yield
        while (call := self.calls.get()) != _LEAVE:
            if not isinstance(call, str):
                self._obeying = True
                self._reply((yield from _answer(conductor, call)))
        raise Left

    def _reply(self, answer: Message | Exception) -> None:
        self._obeying = False
        self.answers.put(answer)

    def _gone(self) -> Gone:
        last = self.last
        assert last is not None
        return Gone("ended", 0, "", Ended(last.begun, last.backwards, last.steps))


def _answer(conductor: Conductor, command: Message) -> Generator[None, Iteration, Message]:
    try:
        return (yield from obey(conductor, command))
    except Exception as error:  # ours, not the function's
        return failure(conductor, error)
