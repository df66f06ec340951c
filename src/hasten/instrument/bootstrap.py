"""Begins hasten in the script's process: waits for torch to be imported, then puts in the seams.

Runs before the script's first line, so it imports little: a script's own `queue.py` or
`random.py` must still be the one that the script gets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Callback = Callable[[ModuleType], None]


class _ThenCall:
    """A loader that runs a callback once the module has been executed, and then is gone."""

    def __init__(self, loader: Any, callback: _Callback) -> None:
        self._loader, self._callback = loader, callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class AfterImport:
    """A finder that finds nothing itself, and calls back after chosen modules were imported."""

    def __init__(self, callback_for: Callable[[str], _Callback | None]) -> None:
        self._callback_for = callback_for
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        callback = None if name in self._busy else self._callback_for(name)
        if callback is None:
            return None
        self._busy.add(name)
        try:
            spec = _find(name, path, target, self)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenCall(spec.loader, callback)  # type: ignore[assignment]
        return spec


def _find(name: str, path: Any, target: Any, but: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not but and hasattr(finder, "find_spec"):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def begin(description: str) -> None:
    """Start hasten as `description` (JSON of a ChildDescription) says."""
    import json

    from hasten.instrument.launch import ChildDescription

    child = ChildDescription(**json.loads(description))
    patches: list[Callable[[str], _Callback | None]] = []
    if child.mode == "serve":
        from hasten.instrument.shield import redirect, trackers

        redirect.install_from(os.environ)
        patches = [trackers.patches_for, redirect.patches_for]
    seeding = None
    if child.pair is not None:
        from hasten.instrument.verify.seeding import Seeding

        seeding = Seeding(child.pair)
        seeding.begin()
        patches.append(seeding.patches_for)
    start = _starter(child, seeding)

    known = list(sys.path)  # the script's folder isn't among them yet

    def starting(torch: ModuleType) -> None:
        with own_imports(known):
            start(torch)

    def callback_for(name: str) -> _Callback | None:
        wanted = [found for patch in patches if (found := patch(name)) is not None]
        if name == "torch":
            wanted.append(starting)
        return _all_of(wanted) if wanted else None

    if "torch" in sys.modules:
        starting(sys.modules["torch"])
    sys.meta_path.insert(0, AfterImport(callback_for))


@contextmanager
def own_imports(known: list[str]) -> Iterator[None]:
    """Import what hasten needs, whatever modules of the same names lie beside the script.

    Afterwards the script still gets its own `click.py` or `resource.py`.

    Args:
        known: the search path without what the script and its start have added.
    """
    before, path = set(sys.modules), list(sys.path)
    sys.path[:] = known
    try:
        yield
    finally:
        sys.path[:] = path
        added = [entry for entry in path if entry not in known]
        fresh = set(sys.modules) - before
        tops = {name.partition(".")[0] for name in fresh}
        taken = {top for top in tops if _lies_in(top, added)}
        for name in fresh:
            if name.partition(".")[0] in taken:
                del sys.modules[name]


def _lies_in(name: str, folders: list[str]) -> bool:
    from importlib.machinery import PathFinder

    return name != "hasten" and PathFinder.find_spec(name, folders) is not None


def _all_of(callbacks: list[_Callback]) -> _Callback:
    def call(module: ModuleType) -> None:
        for callback in callbacks:
            callback(module)

    return call


def _starter(child: Any, seeding: Any = None) -> _Callback:
    """Connect to the parent now; what needs torch follows when torch is there."""
    if child.mode != "serve":

        def alone(_: ModuleType) -> None:
            from hasten.instrument import start

            start.start_alone(child)

        return alone
    import atexit

    from hasten.instrument.channel import Channel
    from hasten.records import Ended, Hello

    channel = Channel(child.socket)
    channel.send(Hello(pid=os.getpid()))
    ended: list[Callable[[], Ended]] = [
        lambda: Ended(iterations=0, backwards=0, steps=0, torch_imported=False)
    ]
    mine = os.getpid()
    # Registered before anything of the script, so it runs after everything of the script.
    atexit.register(lambda: channel.send(ended[0]()) if os.getpid() == mine else None)

    def served(_: ModuleType) -> None:
        from hasten.instrument import start

        if seeding is None:
            ended[0] = start.start_served(channel, child.observe, child.setting, child.item_seeds)
        elif child.counters_only:
            ended[0] = start.start_counted(channel, seeding, child.setting, child.item_seeds)
        else:
            ended[0] = start.start_followed(channel, seeding, child.item_seeds)

    return served
