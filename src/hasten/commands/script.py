"""Checks of the script before anything is started; nothing of it is run."""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path

import hasten
from hasten.errors import HastenError

_OURS = str(hasten.__file__)


def check(argv: tuple[str, ...]) -> None:
    """Make sure that there is a script, that it is Python, and that hasten can start beside it.

    Raises:
        HastenError: there is none, it has a syntax error (in the detail, as Python shows it), or
            a module of its own is called hasten.
    """
    path = find(argv)
    if path is not None:
        _check_syntax(path)
    check_name(argv)


def check_name(argv: tuple[str, ...]) -> None:
    """Make sure that the script has no module of its own that is called hasten.

    In the script's process there is one module of each name, and it would be ours.

    Raises:
        HastenError: it has.
    """
    path = Path.cwd() if argv[0] == "-m" else Path(argv[0]).resolve()
    beside = path if path.is_dir() else path.parent
    spec = importlib.machinery.PathFinder.find_spec("hasten", [str(beside)])
    if spec is None or spec.origin is None or Path(spec.origin).samefile(_OURS):
        return
    raise HastenError(
        f"{os.path.relpath(spec.origin)} has the name of hasten itself, so the script would import "
        "the wrong one of the two: rename it"
    )


def find(argv: tuple[str, ...]) -> Path | None:
    """The file that would be run; None for a module that is not a Python source file.

    Raises:
        HastenError: there is none.
    """
    return _find_module(argv[1]) if argv[0] == "-m" else _find_script(argv[0])


def folder(argv: tuple[str, ...]) -> Path:
    """Where the plan belongs: beside the script, and for a module in the current directory."""
    return Path.cwd() if argv[0] == "-m" else Path(argv[0]).parent


def _find_script(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        raise HastenError(f"{name} is a directory, not a script")
    if not path.exists():
        raise HastenError(f"no such script: {name}{_similar(path)}")
    if not os.access(path, os.R_OK):
        raise HastenError(f"the script {name} may not be read")
    return path


def _similar(path: Path) -> str:
    """A hint at a file of nearly the same name."""
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".py"]
    except OSError:
        return f": there is no directory {path.parent}"
    found = _closest(path.name, names) or _closest(f"{path.name}.py", names)
    return f"; did you mean {path.with_name(found)}?" if found else ""


def _closest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def _find_module(name: str) -> Path | None:
    """Look a module up as `python -m` would, but without importing its packages."""
    top, *parts = name.split(".")
    spec = _top(top)
    if spec is None:
        raise HastenError(f"no module named {top}")
    for depth, part in enumerate([*parts, "__main__"], start=2):
        places = spec.submodule_search_locations
        if places is None:
            if depth <= len(parts) + 1:
                raise HastenError(f"no module named {name}")
            break
        inner = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{part}", list(places))
        if inner is None and part == "__main__":
            raise HastenError(f"{name} is a package without __main__, which can't be run")
        if inner is None:
            raise HastenError(f"no module named {spec.name}.{part}")
        spec = inner
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _top(name: str) -> ModuleSpec | None:
    """The spec of a top-level module, with the current directory first, as after `-m`."""
    sys.path.insert(0, os.getcwd())
    try:
        importlib.invalidate_caches()
        return importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.pop(0)


def _check_syntax(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            detail = "".join(traceback.format_exception_only(error))
            raise HastenError(f"{path} has a syntax error", detail=detail) from None
        except ValueError as error:  # null bytes
            raise HastenError(f"{path} is not Python: {error}") from None
