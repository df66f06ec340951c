"""Work on the script's data in a forked copy of this process, so that nothing of it stays.

Items may open files, fill caches and draw random numbers, and nothing of that may reach the
script.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from hasten.instrument.seams.loader_batches import Incomparable
from hasten.instrument.seams.loader_random import preserved

LIMIT = 60.0  # seconds for a fetch: some libraries hang for ever after a fork
Result = TypeVar("Result")


def elsewhere(work: Callable[[], Result], limit: float = LIMIT) -> Result:
    """Do it in a forked copy of this process, where there is fork; else here.

    Args:
        work: what it returns must be picklable.
        limit: seconds that it may take.

    Raises:
        RuntimeError: it failed there, or took too long.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        with preserved():
            return work()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, there), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, as torch does
        process.start()
    there.close()
    try:
        if here.poll(limit):
            done, answer = here.recv()
        else:
            done, answer = False, f"no batch within {limit:.0f} s"
    except EOFError:
        done, answer = False, "the process died"
    finally:
        here.close()
        _end(process, 1.0)
    if done:
        result: Result = answer
        return result
    raise RuntimeError(answer)


def all_elsewhere(works: list[Callable[[], None]], limit: float = LIMIT) -> bool:
    """Do several things in as many forked copies at once; False: one failed or took too long."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_quietly, args=(work,), daemon=True) for work in works]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in processes:
            process.start()
    end = time.monotonic() + limit
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    done = all(process.exitcode == 0 for process in processes)
    for process in processes:
        _end(process, 0.0)
    return done


def _end(process: Any, patience: float) -> None:
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        os._exit(1)  # the item's own exception comes to the script when the script asks for it


def _answer(work: Callable[[], Any], connection: Any) -> None:
    try:
        connection.send((True, work()))
    except Exception as error:
        connection.send((False, line(error)))


def line(error: BaseException) -> str:
    """An exception in one line for the user."""
    text = str(error).strip().splitlines() or [""]
    kept = text[-1] if "Traceback" in str(error) else text[0]
    return kept if isinstance(error, Incomparable) else f"{type(error).__name__}: {kept}"
