"""Which line of the user's gives a variable its value.

That a variable holds something is seen at run time; only its line is looked up in the source.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import CodeType

_ADDERS = ("append", "extend", "add", "update", "appendleft", "insert")
_FREE = (".item(", ".detach(", "float(", ".tolist(", ".data", ".numpy(")  # no graph is left
_NUMBERS = (".item(", "float(", "int(")  # next to nothing is left


def assigned(code: CodeType, path: str, graph: bool = True) -> tuple[str, int, str] | None:
    """The place where `path` ("total", "self.total", "losses[]") is added to or assigned.

    Args:
        code: of the function (or module) in which the variable was seen.
        path: as an expression, "[]" for any element.
        graph: what is looked for has a graph, so that a line with `detach` is hardly meant.

    Returns:
        File, line and function; a place that adds to it before one that assigns it.
    """
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    target = path.replace("[]", "")
    _, dot, last = target.rpartition(".")
    free = _FREE if graph else _NUMBERS
    begin, end = _range(code, len(lines))
    found = sorted(
        (rank, line) for rank, line in _candidates(tree, target, free) if begin <= line <= end
    ) or sorted(_candidates(tree, f".{last}", free) if dot else [])
    return (code.co_filename, found[0][1], code.co_name) if found else None


def _range(code: CodeType, length: int) -> tuple[int, int]:
    if code.co_name == "<module>":
        return 1, length
    numbers = [line for _, _, line in code.co_lines() if line is not None]
    return min(numbers), max(numbers)


def _candidates(tree: ast.AST, target: str, unlikely: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Rank (the lower the likelier) and line of what gives `target` a value that is kept."""
    for node in ast.walk(tree):
        rank = _rank(node, target)
        if rank is not None and isinstance(node, (ast.expr, ast.stmt)):
            free = any(word in ast.unparse(node) for word in unlikely)
            yield rank + 5 * free, node.lineno


def _rank(node: ast.AST, target: str) -> int | None:
    if isinstance(node, ast.AugAssign):
        return 0 if _is(node.target, target) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return 1 if node.func.attr in _ADDERS and _is(node.func.value, target) else None
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant):
        return None
    if not any(_is(part, target) for whole in node.targets for part in _flat(whole)):
        return None
    empty = isinstance(node.value, (ast.List, ast.Dict, ast.Tuple))
    return 4 if empty else 3 - _mentions(node.value, target)


def _mentions(value: ast.expr, target: str) -> int:
    return any(_is(node, target) for node in ast.walk(value) if isinstance(node, ast.expr))


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield target


def _is(node: ast.expr, target: str) -> bool:
    """Whether an expression is `target`, or for ".name" any attribute of that name."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if target.startswith("."):
        return isinstance(node, ast.Attribute) and node.attr == target[1:]
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == target
