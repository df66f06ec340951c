"""`hasten tune` on the public scripts of the corpus, as they are; writes real_scripts.md.

    python benchmarks/corpus.py --root /work/corpus prepare
    python benchmarks/real_scripts.py --root /work/corpus --budget 60 [NAME ...]

Every script is tuned with the same command. The table gives the iteration as it is, the plan,
the gain that two processes in turns confirmed, and what was refused or failed, with the reason.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import corpus
import corpus_scripts

OUTPUT = Path(__file__).with_suffix(".md")
NAMES = [
    "mnist",
    "vae",
    "dcgan",
    "super_resolution",
    "time_sequence",
    "siamese",
    "regression",
    "lm_lstm",
    "lm_transformer",
    "vision_transformer",
    "imagenet",
    "nanogpt",
    "llama2",
    "mingpt_chargpt",
    "unet_amp",
    "tutorial_gan",
]
LIMIT = 420  # seconds for one script


def tune(each: corpus_scripts.Script, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one script; returns hasten's document, or {"error": its line}."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hasten", "tune", "--json", "--budget"]
        command += [str(options.budget), "--output", str(Path(folder) / "hasten.toml")]
        command += [word for name in options.skip for word in ("--skip", name)]
        command += options.extra.split() + each.argv(each.workers[0] if each.workers else None)
        begun = time.monotonic()
        done = subprocess.run(
            command,
            cwd=corpus.cwd(each, root),
            env=corpus.variables(each, root),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    lines = done.stderr.strip().splitlines() or [""]
    found = json.loads(done.stdout) if done.returncode == 0 else {"error": lines[-1]}
    found["name"], found["wall"] = each.name, time.monotonic() - begun
    found["arguments"] = shlex.join(each.argv(each.workers[0] if each.workers else None))
    found["repository"] = f"{each.repository.name}@{each.repository.commit[:10]}"
    return found


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    start = f"| {found['name']} | {found['repository']} | "
    if "error" in found:
        return start + f"- | - | - | - | - | {found['error']} |"
    plan = ", ".join(f"`{name}`" for name in found["plan"].get("settings", {})) or "none"
    confirmed = found["confirmed"]
    gain = "-"
    if confirmed:
        gain = f"{confirmed['ratio']:.2f} ({bound(confirmed['low'])} to {bound(confirmed['high'])})"
    others = [
        f"`{tried['name']}` {tried['verdict']}: {tried['reason']}"
        for tried in found["tried"]
        if tried["verdict"] in ("refused", "failed")
    ]
    machine, iteration = found["environment"], found["baseline"]["iteration_ms"]
    processor = str(machine["cpu"]).replace("(R)", "")
    figures = f"{processor} | {machine['load']:.1f} | {iteration:.1f} | {plan} | {gain} | "
    return start + figures + "<br>".join(others) + " |"


def bound(value: float | None) -> str:
    """An end of an interval, which may be open."""
    return "?" if value is None else f"{value:.2f}"


def main() -> int:
    """Tune every script that was named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--root", type=Path, default=corpus.DEFAULT_ROOT)
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--extra", default="", help="more options for hasten tune")
    parser.add_argument("--json", type=Path, required=True, help="documents; read and added to")
    options = parser.parse_args()
    options.root = options.root.resolve()
    documents = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name in options.names:
        try:
            documents[name] = tune(corpus.script(name), options.root, options)
        except subprocess.TimeoutExpired:
            documents[name] = {"name": name, "error": f"took over {LIMIT} s", "repository": "?"}
        options.json.write_text(json.dumps(documents))
        print(row(documents[name]), flush=True)
    write(documents)
    return 0


def write(documents: dict[str, Any]) -> None:
    """Write the page from what is known."""
    text = """# Public training scripts, unmodified

Written by `benchmarks/real_scripts.py`; the scripts, their commits and arguments are in
`benchmarks/corpus_scripts.py`, the stand-in data in `benchmarks/corpus_data.py`. A gain is the
ratio that two processes in turns confirmed, with its 99 % interval; "none" means that nothing was
measurably faster within the budget. The load is the machine's at the start: above 1, other work
ran beside it, and on two busy cores few differences can be told. Both processors have
avx512_bf16; on the Intel Xeon, a virtual one without amx, bfloat16 gains nothing.

| script | from | processor | load | ms an iteration | plan | confirmed gain | refused or failed |
|---|---|---|---|---|---|---|---|
"""
    old_rows, old_commands = kept(OUTPUT.read_text() if OUTPUT.exists() else "", set(documents))
    rows = old_rows + [row(found) for found in documents.values()]
    commands = old_commands
    commands += [f"{found['name']}: {found.get('arguments', '?')}" for found in documents.values()]
    shown = "\n".join(["```", *commands, "```"])
    OUTPUT.write_text(text + "\n".join(rows) + "\n\n## Arguments\n\n" + shown + "\n")


def kept(page: str, measured: set[str]) -> tuple[list[str], list[str]]:
    """Rows and arguments of a page for the scripts that were not measured again."""
    names = set(NAMES) - measured
    lines = page.splitlines()
    rows = [line for line in lines if line.startswith("| ") and line.split()[1] in names]
    return rows, [line for line in lines if line.partition(": ")[0] in names]


if __name__ == "__main__":
    sys.exit(main())
