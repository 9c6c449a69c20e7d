"""The codec of all files and facts: what is written comes back, and what is damaged ends in the right error."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.system.instances import any_of

import collage
from collage._errors import UsageError
from collage.database import FactKind
from collage.plan_file import PlanFile
from collage.system.codec import Within, from_json, read_text, to_json


def _kinds() -> Iterator[FactKind[Any]]:
    """Every kind of fact that a module of the package declares."""
    for module in pkgutil.walk_packages(collage.__path__, "collage."):
        if module.name.split(".")[1] in ("compiler", "database", "measure"):
            yield from (v for v in vars(importlib.import_module(module.name)).values() if isinstance(v, FactKind))


KINDS = {kind.name: kind for kind in _kinds()}
DAMAGE = st.sampled_from([None, True, -1, 1 << 70, 0.5, float("nan"), "", "x", "\ud800", [], {}, [[]], {"a": {}}])
"""Values that may stand where another one should."""


def damaged(value: Any, data: st.DataObject) -> Any:
    """JSON values of which one, somewhere, is replaced, removed, or added."""
    value = copy.deepcopy(value)
    place, key, inner = None, None, value
    while isinstance(inner, dict | list) and inner and (place is None or data.draw(st.booleans(), "deeper")):
        place, key = inner, data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        inner = place[key]
    if place is None:
        return data.draw(DAMAGE)
    change = data.draw(st.sampled_from(["replace", "remove", "add"]), "change")
    if change == "replace":
        place[key] = data.draw(DAMAGE)
    elif change == "remove":
        del place[key]
    elif isinstance(place, dict):
        place["unknown"] = data.draw(DAMAGE)
    else:
        place.append(data.draw(DAMAGE))
    return value


def test_every_kind_of_fact_is_declared_once() -> None:
    assert set(KINDS) >= {"support", "profile", "preparation", "result", "tried", "sensitivity", "ranges", "tuned"}
    forms: dict[str, Any] = {}
    for kind in _kinds():
        assert forms.setdefault(kind.name, kind.form) == kind.form


# To shrink a whole result takes minutes.
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate])
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@given(data=st.data())
def test_facts_come_back_and_damaged_ones_are_none(kind: FactKind[Any], data: st.DataObject) -> None:
    value = data.draw(any_of(kind.form))
    written = json.loads(json.dumps(kind.write(value)))
    assert kind.read(written) == value
    found = kind.read(damaged(written, data))
    if found is not None:  # The damage left a fact of the right form.
        assert kind.read(json.loads(json.dumps(kind.write(found)))) == found


@settings(max_examples=50, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(plan=any_of(PlanFile), data=st.data())
def test_plan_files_come_back_and_damaged_ones_are_usage_errors(plan: PlanFile, data: st.DataObject) -> None:
    written = json.loads(json.dumps(plan.to_json()))
    assert PlanFile.from_json(written) == plan
    try:
        again = PlanFile.from_json(damaged(written, data))
    except UsageError as error:
        assert str(error)
    else:
        assert PlanFile.from_json(again.to_json()) == again


FORMS = [
    int,
    str,
    tuple[int, ...],
    tuple[int, str],
    dict[str, float],
    set[str],
    float | None,
    int | tuple[int, ...] | None,
]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.recursive(DAMAGE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6))
def test_whatever_is_read_has_its_form_or_is_a_value_error(form: Any, data: Any) -> None:
    try:
        found: Any = from_json(form, data)
    except ValueError:
        return
    assert from_json(form, json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", "-Infinity", '{"a": 1, "a": 2}', b"\xff", "\x00"])
def test_what_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_text(text)


def test_bounds_are_those_of_numbers_and_of_lengths() -> None:
    assert from_json(Annotated[float, Within(0.0, 1.0)], 1) == 1.0
    for form, value in (
        (Annotated[float, Within(0.0, 1.0)], 1.5),
        (Annotated[int, Within(1)], 0),
        (Annotated[tuple[str, ...], Within(1)], []),
        (Annotated[str, Within(0, 2)], "abc"),
    ):
        with pytest.raises(ValueError, match="the value is"):
            from_json(form, value)
