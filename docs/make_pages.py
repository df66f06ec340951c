"""Write docs/optimisations from the docstrings of the units; --check says what is not current."""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.report.explanation import documents

FOLDER = Path(__file__).parent / "optimisations"


def stale(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Names of pages that are missing, not current, or of nothing."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(n for n in {*there, *wanted} if there.get(n) != wanted.get(n))


def main(arguments: list[str]) -> int:
    """Write the pages, or only look; the exit status."""
    wanted = documents()
    names = stale(FOLDER, wanted)
    if "--check" in arguments:
        if names:
            print(f"not current (make docs): {', '.join(names)}", file=sys.stderr)
        return 1 if names else 0
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
