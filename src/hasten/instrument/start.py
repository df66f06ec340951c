"""Puts a conductor with the right program into the process, once torch has been imported."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import time
from collections.abc import Callable

from hasten.instrument import keeping
from hasten.instrument.ahead import ahead
from hasten.instrument.channel import Channel
from hasten.instrument.conductor import Conductor
from hasten.instrument.launch import ChildDescription
from hasten.instrument.programs import follow, observe, serve
from hasten.instrument.recorder import FORWARD, Recorder
from hasten.instrument.verify.seeding import Seeding
from hasten.records import Ended, Setting

_CALIBRATION = 20_000  # crossings that are timed to say what one costs


def start_served(
    channel: Channel,
    observe: bool = False,
    setting: Setting | None = None,
    item_seeds: bool = False,
) -> Callable[[], Ended]:
    """Serve a parent.

    Args:
        channel: to it.
        observe: with observers, for a diagnosis.
        setting: what the process was started for.
        item_seeds: what is random in an item comes from seed, epoch and index.

    Returns:
        What to say when the script comes to its end.
    """
    conductor = _kind(observe)(lambda c: serve(c, channel))
    conductor.caches.seeds.on = item_seeds
    conductor.install()
    ahead(conductor, setting or {})

    def ended() -> Ended:
        return Ended(conductor.begun, conductor.backwards, conductor.steps)

    return ended


def start_followed(
    channel: Channel, seeding: Seeding, item_seeds: bool = False
) -> Callable[[], Ended]:
    """Serve a parent that verifies a plan: everything is counted from the first iteration on.

    Args:
        channel: to the parent.
        seeding: of this process.
        item_seeds: what is random in an item comes from seed, epoch and index.

    Returns:
        What to say when the script comes to its end; the whole account is sent before.
    """
    from hasten.instrument.verify.conductor import FollowingConductor

    conductor = FollowingConductor(lambda c: serve(c, channel), seeding)
    conductor.caches.seeds.on = item_seeds
    conductor.install()

    def ended() -> Ended:
        channel.send(conductor.followed(None, ended=True))
        return Ended(conductor.begun, conductor.backwards, conductor.steps)

    return ended


def start_counted(
    channel: Channel, seeding: Seeding, setting: Setting, item_seeds: bool = False
) -> Callable[[], Ended]:
    """Serve a parent that times a plan from end to end: what costs nothing is counted beside it.

    Args:
        channel: to the parent.
        seeding: of this process.
        setting: what the process was started for.
        item_seeds: what is random in an item comes from seed, epoch and index.

    Returns:
        What to say when the script comes to its end.
    """
    from hasten.instrument.verify.conductor import CountingConductor

    conductor = CountingConductor(lambda c: serve(c, channel), seeding)
    conductor.caches.seeds.on = item_seeds
    conductor.install()
    ahead(conductor, setting)

    def ended() -> Ended:
        return Ended(conductor.begun, conductor.backwards, conductor.steps)

    return ended


def _kind(observe: bool) -> type[Conductor]:
    if not observe:
        return Conductor
    from hasten.instrument.observe.conductor import ObservingConductor  # tuning never needs it

    return ObservingConductor


def start_alone(child: ChildDescription) -> None:
    """Apply a plan (mode "run"), only record ("watch") or call what was named, with no parent."""
    if child.mode == "call":
        module, _, function = child.entry.partition(":")
        getattr(importlib.import_module(module), function)(child.options)
        return
    if child.mode == "run":
        conductor = Conductor(lambda c: follow(c, child.setting, child.fingerprint))
        conductor.caches.seeds.on = child.item_seeds
        keeping.ahead(conductor.caches, child.setting, child.fingerprint)
        ahead(conductor, child.setting)
    else:
        conductor = Conductor(observe)
        if child.report is not None:
            _report_at_exit(conductor, child.report)
    conductor.install()


def _report_at_exit(conductor: Conductor, path: str) -> None:
    mine = os.getpid()

    def write() -> None:
        if os.getpid() != mine:
            return
        document = {
            "iterations": conductor.iterations,
            "crossings": conductor.recorder.crossings,
            "processor_us_per_crossing": crossing_cost(),
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    atexit.register(write)


def crossing_cost() -> float:
    """Processor microseconds that one entry into a phase and the way back take."""
    recorder = Recorder()
    recorder.begin()
    begun = time.process_time_ns()
    for _ in range(_CALIBRATION):
        recorder.enter(FORWARD)
        recorder.leave()
    return (time.process_time_ns() - begun) / _CALIBRATION / 1000
