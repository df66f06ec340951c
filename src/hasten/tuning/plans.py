"""From an outcome to the plan that it amounts to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hasten.instrument.fingerprint import fingerprint
from hasten.plan import Plan, machine_fingerprint
from hasten.records import Outcome, Profile, Setting
from hasten.verification import Verification


def make_plan(arguments: tuple[str, ...], outcome: Outcome, item_seeds: bool = False) -> Plan:
    """The plan of an outcome.

    Args:
        arguments: the script and its arguments as Python takes them.
        outcome: of a tuning of it.
        item_seeds: whether it was tuned with them.
    """
    plan = plan_of(arguments, outcome.profile, outcome.setting)
    return replace(
        plan,
        evidence=outcome.tried,
        confirmed=outcome.confirmed,
        item_seeds=item_seeds,
        verified=_verified(outcome.verified) if outcome.verified is not None else {},
    )


def _verified(found: Verification) -> dict[str, Any]:
    """The evidence that a plan learns as well, in short."""
    short: dict[str, Any] = {"pairs": len(found.pairs), "iterations": found.iterations}
    for judged in found.judged:
        facts = {
            "": judged.verdict,
            "_as_it_is": float(f"{judged.baseline:.4g}"),
            "_planned": float(f"{judged.plan:.4g}"),
            "_margin": float(f"{judged.margin:.2g}"),
        }
        name = judged.what.replace(" ", "_")
        short |= {f"{name}{key}": value for key, value in facts.items()}
    return short


def plan_of(arguments: tuple[str, ...], profile: Profile, setting: Setting) -> Plan:
    """A plan of a setting, with what it was made on and without evidence."""
    module = arguments[0] == "-m"
    device = machine_fingerprint(profile.device)["device"]
    return Plan(
        script=" ".join(arguments[:2]) if module else arguments[0],
        arguments=arguments[2:] if module else arguments[1:],
        setting=dict(setting),
        fingerprint={**fingerprint(_resized(profile, setting)), "device": device},
    )


def _resized(profile: Profile, setting: Setting) -> Profile:
    """The profile as the plan leaves it: with the batch size that a run of it will show."""
    wanted = setting.get("batch-size")
    if not isinstance(wanted, dict) or profile.loader is None:
        return profile
    return replace(profile, loader=replace(profile.loader, batch_size=wanted["size"]))
