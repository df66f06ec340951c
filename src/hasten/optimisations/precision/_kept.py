"""Values of units that run the model in a reduced format: `true`, or with modules kept in float32.

Where a proof refuses a reduced format it names the parameter with the worst error. Keeping the
module that holds it in float32 is the first thing that a user would try by hand.
"""

from __future__ import annotations

from hasten.records import Proof, Value

_KEY = "float32"
_MOST = 3  # modules that are kept; a model that needs more is left as it is


def kept(value: Value) -> tuple[str, ...]:
    """The modules that a value keeps in float32."""
    return tuple(value[_KEY]) if isinstance(value, dict) else ()


def remedies(value: Value, proof: Proof) -> tuple[Value, ...]:
    """A value that also keeps the module with the worst error in float32, or none."""
    module, _, _ = proof.worst.partition(" (")[0].rpartition(".")
    names = kept(value)
    if not module or module in names or len(names) >= _MOST:
        return ()
    return ({_KEY: [*names, module]},)


def check(value: Value) -> None:
    """Refuse any other value.

    Raises:
        ValueError: with what was expected.
    """
    if value is True:
        return
    expected = 'true, or a table such as { float32 = ["head"] }'
    if not isinstance(value, dict) or set(value) != {_KEY} or not isinstance(value[_KEY], list):
        raise ValueError(expected)
    if not value[_KEY] or not all(isinstance(n, str) and n for n in value[_KEY]):
        raise ValueError(expected)
