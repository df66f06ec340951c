"""Optimisations and findings explained: their docstrings in a terminal, and as pages of docs/."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from rich.text import Text

import hasten.findings
import hasten.optimisations
from hasten.errors import HastenError
from hasten.report.machine import text as printed

OPTIMISATION, FINDING = "optimisation", "finding"
_CODE = "Example"  # the section that is shown as it is


@dataclass(frozen=True)
class Page:
    """The documentation of one optimisation or finding.

    Attributes:
        name: of it.
        kind: `OPTIMISATION` or `FINDING`.
        summary: its first sentence.
        facts: what it declares, as label and value.
        sections: title and text of each; paragraphs are separated by empty lines.
    """

    name: str
    kind: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[tuple[str, str], ...]


def pages(kind: str | None = None) -> list[Page]:
    """Every optimisation in the order of the search, then every finding by name."""
    found = []
    if kind in (None, OPTIMISATION):
        found += [_page(u, OPTIMISATION) for u in hasten.optimisations.discover().values()]
    if kind in (None, FINDING):
        found += [_page(f, FINDING) for f in hasten.findings.discover().values()]
    return found


def find(name: str) -> Page:
    """The page of this name.

    Raises:
        HastenError: there is none; says which one may have been meant.
    """
    known = {page.name: page for page in pages()}
    # As people write it: amp_bf16, AMP-bf16.
    plain = name.strip().lower().replace("_", "-")
    if plain in known:
        return known[plain]
    close = difflib.get_close_matches(plain, known, n=3, cutoff=0.5)
    close += [other for other in known if plain and plain in other and other not in close]
    hint = f"did you mean {' or '.join(close[:3])}?" if close else "hasten explain lists them all"
    raise HastenError(f"nothing is called {name!r}: {hint}", 2)


def _page(subject: Any, kind: str) -> Page:
    """The page of a unit, from the docstring of its module."""
    document = inspect.cleandoc(sys.modules[type(subject).__module__].__doc__ or "")
    head, *rest = re.split(r"^(?=\S[^\n]*\n[ ]{4})", document, flags=re.MULTILINE)
    sections = []
    for part in rest:
        title, _, body = part.partition("\n")
        sections.append((title.strip(), inspect.cleandoc(body).strip()))
    summary = " ".join(head.split())
    return Page(subject.name, kind, summary, tuple(_facts(subject, kind)), tuple(sections))


def _facts(subject: Any, kind: str) -> Iterator[tuple[str, str]]:
    if kind == FINDING:
        yield "kind", str(getattr(subject.kind, "value", subject.kind))
        if subject.fixed_by:
            yield "fixed by", ", ".join(subject.fixed_by)
        return
    yield "class", subject.numerics.value
    yield "changes", "between two iterations" if subject.live else "with a new process only"
    if subject.fixes:
        yield "fixes", ", ".join(subject.fixes)
    if subject.excludes:
        yield "not with", ", ".join(subject.excludes)


# --- in a terminal -------------------------------------------------------------------------


def listing(stream: IO[str] | None = None) -> str:
    """All names with their first sentence."""
    lines: list[Text] = []
    for kind, title in ((OPTIMISATION, "optimisations"), (FINDING, "findings")):
        found = pages(kind)
        if not found:
            continue
        lines += [Text(title, style="bold")] if not lines else [Text(), Text(title, style="bold")]
        longest = max(len(page.name) for page in found)
        lines += [
            Text.assemble("  ", (f"{p.name:<{longest}}", "cyan"), f"  {p.summary}") for p in found
        ]
    lines += [Text(), Text("hasten explain NAME tells more")]
    return printed(lines, stream or sys.stdout)


def rendered(page: Page, stream: IO[str] | None = None) -> str:
    """One page for a terminal."""
    article = "an" if page.kind == OPTIMISATION else "a"
    lines = [Text.assemble((page.name, "bold cyan"), f", {article} {page.kind}")]
    lines += [Text(page.summary, style="bold"), Text()]
    lines += [Text.assemble((f"{label:<10}", "dim"), value) for label, value in page.facts]
    for title, body in page.sections:
        lines += [Text(), Text(title, style="bold")]
        lines += [Text(f"  {line}".rstrip()) for line in body.splitlines()]
    return printed(lines, stream or sys.stdout)


# --- as files ------------------------------------------------------------------------------


def documents() -> dict[str, str]:
    """The pages of `docs/optimisations` in Markdown, by file name."""
    found = pages(OPTIMISATION)
    rows = [f"| [{p.name}]({p.name}.md) | {dict(p.facts)['class']} | {p.summary} |" for p in found]
    index = ["# Optimisations", "", _ORIGIN, "", "| name | class | what |", "|---|---|---|", *rows]
    return {"README.md": "\n".join(index) + "\n", **{f"{p.name}.md": _markdown(p) for p in found}}


_ORIGIN = "Made by `make docs` from the docstrings of `src/hasten/optimisations`."


def _markdown(page: Page) -> str:
    lines = [f"# {page.name}", "", page.summary, ""]
    lines += [f"- {label}: {value}" for label, value in page.facts]
    for title, body in page.sections:
        lines += ["", f"## {title}", ""]
        code = "\n".join(["```python", body, "```"])
        lines.append(code if title == _CODE and _is_python(body) else body)
    return "\n".join(lines) + "\n"


def _is_python(body: str) -> bool:
    try:
        compile(body, "example", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
