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
    "protocol": 2,
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
    "protocol",
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


#: A test for each top-level part instead of each file: thousands of tests take time of their own.
every_part = pytest.mark.parametrize("part", sorted({layer_of(path) for path in FILES}))


def files_of(part: str) -> list[Path]:
    return [path for path in FILES if layer_of(path) == part]


@every_part
def test_imports_point_down(part: str) -> None:
    assert part in LAYERS, f"{part} is in no layer: name it in this test and in ARCHITECTURE.md"
    for path in files_of(part):
        for name in names(parse(path)):
            parts = name.split(".")
            if parts[0] != "hasten" or len(parts) < 2 or parts[1] == part:
                continue
            assert LAYERS[parts[1]] < LAYERS[part], f"{path} may not import {name}"


@every_part
def test_torch_is_imported_late(part: str) -> None:
    """Only the child's side may import torch with the module; the parent never does."""
    for path in files_of(part):
        if part != "instrument":
            early = {name.partition(".")[0] for name in names(parse(path), module_level=True)}
            assert "torch" not in early, path
        if part in PARENT:
            everywhere = {name.partition(".")[0] for name in names(parse(path))}
            assert "torch" not in everywhere, path


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


@every_part
def test_only_patching_assigns_to_foreign_attributes(part: str) -> None:
    for path in files_of(part):
        if path != SOURCE / "instrument" / "patching.py":
            lines = list(foreign_assignments(parse(path)))
            assert not lines, f"{path}: use instrument.patching.replace"


def test_foreign_assignments_are_recognised() -> None:
    tree = ast.parse(
        "import os, torch.nn as nn\nfrom a import B\nx = 1\nself.y = 2\n"
        "nn.Module.z = 3\nsetattr(B, 'q', 1)\ndel os.path\n"
    )
    assert sorted(foreign_assignments(tree)) == [5, 6, 7]


@every_part
def test_sizes(part: str) -> None:
    """A file is under 400 lines, a function under 60."""
    for path in files_of(part):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines < 400, f"{path} has {lines} lines"
        for node in ast.walk(parse(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= 60, f"{path}: {node.name} has {length} lines"


def test_public_names() -> None:
    public = getattr(hasten, "__all__", [])
    assert len(public) <= 10
    assert all(hasattr(hasten, name) for name in public)
