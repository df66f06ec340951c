"""The script's own option for its batch size, so that it can be named, and used."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_NAMES = re.compile(
    r"--((per[-_]device[-_])?(train(ing)?[-_])?(mini[-_]?)?batch([-_]?size)?|bs|bsz)|-(b|bs)",
    re.ASCII,
)


def given(arguments: tuple[str, ...], size: int) -> str | None:
    """The option that the command line sets to this size; None: none does."""
    for name, value in _pairs(arguments):
        if _NAMES.fullmatch(name) and value == str(size):
            return name
    return None


def _pairs(arguments: tuple[str, ...]) -> list[tuple[str, str]]:
    joined = [tuple(a.split("=", 1)) for a in arguments if a.startswith("-") and "=" in a]
    apart = list(pairwise(arguments))
    return [(name, value) for name, value in (*joined, *apart) if name.startswith("-")]


def offered(script: Path | None) -> str | None:
    """The option for a batch size that a script declares; None: none is seen."""
    if script is None:
        return None
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(script.read_bytes())):
            if isinstance(node, ast.Call) and _name(node.func) in ("add_argument", "option"):
                texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                names = [t for t in texts if isinstance(t, str) and _NAMES.fullmatch(t)]
                if names:
                    return max(names, key=len)
    return None


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def passing(arguments: tuple[str, ...], option: str, size: int) -> tuple[str, ...]:
    """The command line with this option set to this size."""
    changed = list(arguments)
    for index, argument in enumerate(changed):
        if argument == option and index + 1 < len(changed):
            changed[index + 1] = str(size)
            return tuple(changed)
        if argument.startswith(f"{option}="):
            changed[index] = f"{option}={size}"
            return tuple(changed)
    return (*changed, option, str(size))
