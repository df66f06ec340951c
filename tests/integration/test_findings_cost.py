"""Every mistake that costs time is found on a script that has exactly this one."""

from __future__ import annotations

import pytest
from diagnosing import diagnosed, line_of_mistake, one


@pytest.mark.parametrize(
    "name",
    ["debug-mode-on", "checkpoint-every-iteration"],
)
def test_it_is_found_with_its_line_and_cost(name: str) -> None:
    script = f"finding_{name.replace('-', '_')}.py"
    found = one(diagnosed(script), name)
    assert found["line"] == line_of_mistake(script)
    assert found["file"].endswith(script)
    assert found["cost_ms"] > 0 and 0.01 < found["share"] <= 1.01


def test_a_healthy_script_gets_no_finding() -> None:
    document = diagnosed("steady.py")
    assert [f["name"] for f in document["findings"] if f["kind"] != "limit"] == []
