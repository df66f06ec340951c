"""Throughput of a batch size against the script's own, in turns of two processes.

Two runs of one script differ by more than two batch sizes often do, as other work comes and goes.
So a child at the script's own size stays alive, standing still, and takes turns with each other.
"""

from __future__ import annotations

from collections.abc import Callable

from hasten.instrument.shield.launch import ShieldMode
from hasten.records import BlockDone, RunBlock, Setting
from hasten.tuning.process import Child, Gone

_ROUNDS = 4
_LEAST, _MOST = 3, 200  # iterations in a turn
_TURN = 0.5  # seconds
_WARM = 2  # iterations after the other process has had the caches


class Turns:
    """The child at the script's own size, and comparisons with it.

    Args:
        argv: the script as the user starts it.
        mode: of the shield.
        note: is told what children note.
        timeout: seconds until the first iteration.
        size: the script's own batch size.
        seconds: of its iterations.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        mode: ShieldMode,
        note: Callable[[str], None],
        timeout: float,
        size: int,
        seconds: float,
    ) -> None:
        self._argv, self._mode, self._note, self._timeout = argv, mode, note, timeout
        self._size, self._seconds = size, seconds
        self._child: Child | None = None

    def adopt(self, child: Child) -> None:
        """Let this one stand for the script as it is."""
        self._child = child

    def compare(self, child: Child, size: int, setting: Setting, seconds: float) -> list[float]:
        """How many times the samples a second of the script as it is, by turns.

        Args:
            child: at its training loop, with batches of another size.
            size: of them.
            setting: that is in force there.
            seconds: of an iteration there, about.

        Returns:
            A ratio for each round; fewer where a script has come to its end.
        """
        ratios: list[float] = []
        try:
            for _ in range(_ROUNDS):
                own = self._own_turn()
                theirs = _turn(child, setting, seconds, self._timeout)
                if own is None or theirs is None:
                    break
                ratios.append((size / theirs) / (self._size / own))
        except Gone:
            pass  # the script has come to its end: what there is will do
        return ratios

    def _own_turn(self) -> float | None:
        for _ in range(2):
            try:
                return _turn(self._started(), {}, self._seconds, self._timeout)
            except Gone:
                self.close()
        return None

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child(self._argv, self._mode, self._note)
            self._child.start()
        return self._child

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
        self._child = None


def _turn(child: Child, setting: Setting, seconds: float, timeout: float) -> float | None:
    """Mean seconds of an iteration.

    Raises:
        Gone: the child has ended.
    """
    count = int(min(_MOST, max(_LEAST, _TURN / max(seconds, 1e-6))))
    command = RunBlock(setting, count, _WARM)
    answer = child.ask(command, timeout + 20 * count * seconds)
    if not isinstance(answer, BlockDone) or answer.iterations < 1:
        return None
    return answer.seconds / answer.iterations
