"""In a training that counts, what promises the same bits is proven before its first block."""

from __future__ import annotations

from hasten.optimisations import discover
from hasten.records import Proof, Prove
from hasten.tuning.proving import Proofs, exact_ones_proven


def test_what_is_refused_gets_no_block() -> None:
    units = discover()
    workers = [(units["loader-workers"], {"workers": n, "prefetch": 2}) for n in (2, 1)]
    candidates = [(units["retain-heap"], True), *workers, (units["amp-bf16"], True)]
    told: list[tuple[str, str]] = []
    steps = exact_ones_proven(
        Proofs(frozenset()), candidates, lambda u, r: told.append((u.name, r))
    )
    asked: list[str] = []
    answer = None
    try:
        while True:
            command = steps.send(answer)
            assert isinstance(command, Prove)
            asked.append(command.name)
            good = command.name != "loader-workers"
            answer = Proof(
                command.name,
                "exact" if good else "statistics",
                good,
                0.0,
                0.0,
                "",
                "" if good else "random",
            )
    except StopIteration as end:
        kept = [unit.name for unit, _ in end.value]
    assert asked == ["retain-heap", "loader-workers", "loader-workers"]
    assert kept == ["retain-heap", "amp-bf16"]
    assert told == [("loader-workers", "random")]
