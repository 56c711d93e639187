"""Recipe keys of earlier versions.

New recipes must not contain them: the error message names the key that replaces them. The recipes that earlier versions
wrote into run folders and exports are translated, so that these runs can be loaded and resumed.
"""

from __future__ import annotations

from typing import Any

REPLACED = {
    "e_step.fresh_from": "e_step.fresh: {value: ..., first: LAP}",
    "e_step.fresh_decay": "e_step.fresh: {value: ..., halve: LAPS}",
    "train.measured_until": "train.measured: {value: ..., last: LAP}",
}

_FRESH = {"fresh": 1.0, "fresh_from": 2, "fresh_decay": None}
_MEASURED = {"measured": 0.0, "measured_until": None}
_FINAL_FRESH = {"fresh": 1.0, "fresh_decay": None}  # the defaults of `final` in these versions
_FINAL_MEASURED = {"measured": 0.0}


def translate(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the keys of earlier versions in a recipe by the current ones, with the same meaning.

    Earlier keys were set one by one, also by stages: a stage that changes one of them keeps the others. A schedule is
    one value, so every stage that changes a part of it gets all of it.

    Args:
        values: The recipe as a mapping. Malformed parts stay as they are: the schema rejects them.
    """
    if not any(key.partition(".")[2] in part for key in REPLACED for part in _parts(values, key.partition(".")[0])):
        return values
    out = dict(values)
    fresh, measured = dict(_FRESH), dict(_MEASURED)
    out |= _sections(out, fresh, measured)
    stages = out.get("stages")
    if isinstance(stages, list):
        out["stages"] = [{**s, **_sections(s, fresh, measured)} if isinstance(s, dict) else s for s in stages]
    if isinstance(final := out.get("final"), dict):
        out["final"] = {**final, **_sections(final, fresh | _FINAL_FRESH, measured | _FINAL_MEASURED)}
    return out


def _parts(values: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """Return the mappings with keys of a section: of the recipe, of the stages and of `final`."""
    stages = values.get("stages")
    holders = [values, *(stages if isinstance(stages, list) else []), values.get("final")]
    parts = [holder.get(section) for holder in holders if isinstance(holder, dict)]
    return [part for part in parts if isinstance(part, dict)]


def _sections(holder: dict[str, Any], fresh: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Translate the sections `e_step` and `train` of a recipe or stage; updates `fresh` and `measured` in place."""
    out = {}
    for name, state, translated in (("e_step", fresh, _fresh), ("train", measured, _measured)):
        section = holder.get(name)
        if not isinstance(section, dict):
            continue
        changes = {key: value for key, value in section.items() if key in state}
        state.update(changes)
        rest = {key: value for key, value in section.items() if key not in state}
        out[name] = {**rest, **(translated(state) if changes else {})}
    return out


def _fresh(state: dict[str, Any]) -> dict[str, Any]:
    value, first, halve = state["fresh"], state["fresh_from"], state["fresh_decay"]
    if halve is None and (first == 2 or value == 1):
        return {"fresh": value}
    return {"fresh": {"value": value, "first": None if first == 2 else first, "halve": halve}}


def _measured(state: dict[str, Any]) -> dict[str, Any]:
    value, last = state["measured"], state["measured_until"]
    return {"measured": value if last is None or value == 0 else {"value": value, "last": last}}
