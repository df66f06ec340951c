"""Puts a page together from the templates beside this file."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hasten.report.html.plots import Bar
from hasten.report.phrases import GIB, MIB

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Tile:
    """A figure that stands for itself: what it is, the figure, and what to know of it."""

    name: str
    value: str
    note: str = ""


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES, encoding="utf-8"),
        autoescape=True,  # of every value: paths, code and messages are the user's
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


def breakable(path: str) -> Markup:
    """A path that may go on in a new line after each of its parts."""
    return Markup(re.sub(r"([/_.])(?=\w)", r"\1<wbr>", str(escape(path))))


def render(template: str, **context: Any) -> str:
    """A page, whole.

    Args:
        template: name of a file in the folder of templates.
        context: what it names.
    """
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    made = datetime.now(timezone.utc)
    page = _environment().get_template(template)
    return page.render(
        style=style,
        version=importlib.metadata.version("hasten"),
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        made_exactly=made.isoformat(timespec="seconds"),
        **context,
    )


def size(number: float) -> str:
    """Bytes as a person would say them."""
    if number >= 10 * GIB:
        return f"{number / GIB:.0f} GiB"
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def sizes(parts: list[tuple[str, float, str]]) -> list[Bar]:
    """Bars of memory: name, bytes and the class of the colour."""
    longest = max((number for _, number, _ in parts), default=0.0)
    known = [part for part in parts if part[1]]
    return [Bar(name, number / longest, size(number), kind) for name, number, kind in known]


def conditions(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The machine as name and value, from `Environment.describe()`."""
    cores = f"{facts.get('usable_cores', facts.get('cores', 1)):g} usable"
    if facts.get("logical_cores"):
        cores += f" of {facts['logical_cores']}"
    found = [
        ("processor", str(facts.get("cpu") or "unknown")),
        ("cores", cores),
        ("GPU", ", ".join(gpu["name"] for gpu in facts.get("gpus", ())) or "none"),
        ("memory", f"{size(facts.get('usable_memory', 0))} usable"),
        ("system", str(facts.get("system", ""))),
        ("Python", str(facts.get("python", ""))),
        ("torch", str(facts.get("torch") or "not installed")),
    ]
    if facts.get("load") is not None:
        found.append(("load", f"{facts['load']:.1f} in the minute before"))
    return [(name, value) for name, value in found if value]
