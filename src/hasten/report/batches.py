"""What `hasten batch` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_BAR = 20  # characters
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes for a reader."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def bar(value: float, most: float) -> str:
    """A bar of up to twenty characters."""
    return "#" * max(1, round(_BAR * value / most)) if most > 0 and value > 0 else ""


def render(document: dict[str, Any]) -> str:
    """The report for a terminal, out of the document that `--json` prints."""
    lines = [
        *_plot(document["sizes"], document["batch_size"]),
        "",
        *_memory(document),
        *_learning(document),
        *_savings(document),
        *document["notes"],
        document["shield"],
    ]
    return "\n".join(line for line in lines if line is not None) + "\n"


def _plot(sizes: list[dict[str, Any]], own: int) -> Iterator[str]:
    good = [row for row in sizes if not row["failed"]]
    fast = max((row["samples_per_second"] for row in good), default=0.0)
    full = max((row["memory"] for row in good), default=0.0)
    head = f"{'batch':>8}  {'samples/s':>10}  {'':{_BAR}}  {'tensors':>10}  {'':{_BAR}}"
    yield f"{head}  time to a loss".rstrip()
    for row in sizes:
        name = f"{row['size']}{'*' if row['size'] == own else ' '}"
        if row["failed"]:
            yield f"{name:>8}  {row['failed']}"
            continue
        when = f"{row['time_to_loss']:.2f}x" if row["time_to_loss"] is not None else "-"
        marks = " ".join(f"<- {mark}" for mark in row["marks"])
        line = (
            f"{name:>8}  {row['samples_per_second']:>10.0f}  "
            f"{bar(row['samples_per_second'], fast):{_BAR}}  {size(row['memory']):>10}  "
            f"{bar(row['memory'], full):{_BAR}}  {when:>6}  {marks}"
        )
        yield line.rstrip()
    yield "* as the script has it; times relative to it, less is sooner"


def _memory(document: dict[str, Any]) -> Iterator[str]:
    memory = document["memory"]
    if memory is None:
        yield "memory: fewer than two sizes could be measured"
        return
    aligned = "" if memory["aligned"] else "; sizes differ in their allocations"
    yield (
        f"memory: tensors take {size(memory['fixed'])} and {size(memory['per_sample'])} a sample "
        f"(residual {memory['residual']:.1%}{aligned}), what is around them "
        f"{size(memory['around'])} and {size(memory['around_per_sample'])} a sample"
    )
    largest, limit = document["largest"], size(document["limit"])
    if largest == 0:
        yield f"not even one sample is predicted to fit into {limit} with a tenth left free"
    elif largest is not None:
        yield f"predicted to fit into {limit}, with a tenth left free: up to {largest} samples"
    if (confirmed := document["confirmed"]) is not None:
        yield _confirmed(confirmed)
    if document["stopped"]:
        yield f"no larger size was measured: {document['stopped']}"


def _confirmed(confirmed: dict[str, Any]) -> str:
    if confirmed["failed"]:
        return f"{confirmed['size']} samples could not be tried: {confirmed['failed']}"
    return (
        f"tried once with {confirmed['size']} samples: predicted {size(confirmed['predicted'])}, "
        f"measured {size(confirmed['measured'])} of tensors, {size(confirmed['taken'])} in all"
    )


def _learning(document: dict[str, Any]) -> Iterator[str]:
    noise, advice = document["noise_scale"], document["advice"]
    if document["knee"] is not None:
        yield f"knee: {document['knee']} samples give nine tenths of the best throughput"
    if noise is None or noise["samples"] is None:
        why = document["no_noise_scale"] or "the gradient's mean is lost in its noise"
        low = f"; it is above {noise['low']:.0f}" if noise is not None and noise["low"] > 1 else ""
        yield f"gradient noise scale: not known ({why}{low})"
        yield "without it, samples a second alone don't tell which batch learns soonest"
        return
    high = "no upper end" if noise["high"] is None else f"{noise['high']:.0f}"
    yield (
        f"gradient noise scale: {noise['samples']:.0f} samples ({noise['low']:.0f} to {high}), "
        f"from {noise['steps']} steps at the weights after the first iterations; it grows later on"
    )
    yield _advice(document, advice)


def _savings(document: dict[str, Any]) -> Iterator[str]:
    savings = document["savings"]
    if savings is None:
        return
    limit = size(document["limit"])
    yield f"the script as it is takes {size(savings['taken'])}, more than {limit}:"
    for row in savings["tried"]:
        name = f"  {row['name']} {row['value']}"
        if row["taken"] is None:
            yield f"{name}: {row['refused']}"
            continue
        slower = row["seconds"] / max(savings["iteration_seconds"], 1e-9)
        fits = "fits" if row["taken"] <= document["limit"] else "does not fit"
        refused = f"; refused: {row['refused']}" if row["refused"] else ""
        yield f"{name}: {size(row['taken'])}, {slower:.2f}x the time, {fits}{refused}"
    chosen = savings["setting"]
    parts = "; ".join(f"{name} {value}" for name, value in (chosen or {}).items())
    yield f"quickest that fits and is proven: {parts or 'none'}"


def _advice(document: dict[str, Any], advice: dict[str, Any]) -> str:
    if advice["batch_size"] == document["batch_size"]:
        largest = max(row["size"] for row in document["sizes"] if not row["failed"])
        more = document["noise_scale"]["samples"] > 2 * largest * document["iterations_per_step"]
        hint = f"; more than {largest}, by the noise scale, may, and were not measured"
        return (
            "advice: stay with this batch size; no other that was measured reaches a loss 5 % "
            f"sooner{hint if more and document['stopped'] else ''}"
        )
    span = {advice["low"], advice["high"]} - {advice["batch_size"]}
    range_ = f" (by the interval {advice['low']} to {advice['high']})" if span else ""
    return (
        f"advice: {advice['batch_size']} samples{range_}, a loss {advice['gain']:.2f}x sooner; "
        f"{advice['how']}; learning rate {advice['learning_rate_rule']}: "
        f"times {advice['learning_rate_factor']:.2f}"
    )
