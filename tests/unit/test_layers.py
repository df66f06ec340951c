"""Imports point down, patches live in one place, and the public names are few."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import hasten

SOURCE = Path(hasten.__file__).parent

#: Which layer a top-level module is in; imports may only go to a lower one, or stay inside.
LAYERS = {
    "errors": 0,
    "diagnosis": 0,
    "batching": 0,
    "verification": 0,
    "records": 1,
    "environment": 2,
    "statistics": 2,
    "findings": 3,
    "optimisations": 3,
    "instrument": 4,
    "plan": 5,
    "report": 6,
    "tuning": 6,
    "commands": 7,
    "notebook": 7,
    "__main__": 8,
    "__init__": 8,
}
#: The parent's side never imports torch, not even inside a function.
PARENT = {
    "errors",
    "batching",
    "diagnosis",
    "records",
    "environment",
    "statistics",
    "plan",
    "report",
    "tuning",
    "commands",
}
FILES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def names(tree: ast.AST, module_level: bool = False) -> Iterator[str]:
    """Full names of imported modules; those in `if TYPE_CHECKING` don't count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (
                f"{module}.{alias.name}" if module == "hasten" else module for alias in node.names
            )
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif not (module_level and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from names(node, module_level)


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    assert own in LAYERS, f"{own} is in no layer: name it in this test and in ARCHITECTURE.md"
    for name in names(parse(path)):
        parts = name.split(".")
        if parts[0] != "hasten" or len(parts) < 2 or parts[1] == own:
            continue
        assert LAYERS[parts[1]] < LAYERS[own], f"{own} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_is_imported_late(path: Path) -> None:
    """Only the child's side may import torch with the module; the parent never does."""
    own = layer_of(path)
    if own != "instrument":
        early = {name.partition(".")[0] for name in names(parse(path), module_level=True)}
        assert "torch" not in early
    if own in PARENT:
        assert "torch" not in {name.partition(".")[0] for name in names(parse(path))}


def foreign_assignments(tree: ast.Module) -> Iterator[int]:
    """Lines that assign to an attribute of something that was imported."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }

    def base(node: ast.expr) -> str | None:
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("setattr", "delattr")
        ):
            targets = [ast.Attribute(node.args[0], "", ast.Store())]
        for target in targets:
            if isinstance(target, ast.Attribute) and base(target) in imported:
                yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_patching_assigns_to_foreign_attributes(path: Path) -> None:
    if path == SOURCE / "instrument" / "patching.py":
        return
    assert not list(foreign_assignments(parse(path))), "use instrument.patching.replace"


def test_foreign_assignments_are_recognised() -> None:
    tree = ast.parse(
        "import os, torch.nn as nn\nfrom a import B\nx = 1\nself.y = 2\n"
        "nn.Module.z = 3\nsetattr(B, 'q', 1)\ndel os.path\n"
    )
    assert sorted(foreign_assignments(tree)) == [5, 6, 7]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes(path: Path) -> None:
    """A file is under 400 lines, a function under 60."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


def test_public_names() -> None:
    public = getattr(hasten, "__all__", [])
    assert len(public) <= 10
    assert all(hasattr(hasten, name) for name in public)
