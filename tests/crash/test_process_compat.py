"""Which toolchains can share a process is found out by trying, in a process that may die of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from collage.database.database import Database
from collage.measure import process_compat
from collage.measure.process_compat import ProcessCompatibility
from collage.target import Target
from collage.toolchains import Registry, registry
from tests.crash._clashing import Clashing


def targets(*names: str) -> list[Target]:
    return [Target.parse(f"llvm -compiler={name}") for name in names]


def registry_of(enmities: Mapping[str, Mapping[str, str]]) -> Registry:
    toolchains = Registry(())
    for name, enemies in enmities.items():
        toolchains.add(Clashing(name, enemies))
    return toolchains


class Asked(ProcessCompatibility):
    """Counts probes."""

    def __init__(self, toolchains: Registry, database: Database, build: str = "1", **options: Any) -> None:
        self.probes: list[str] = []
        super().__init__(toolchains, database, lambda name: f"{name} {build}", self.probes.append, **options)


@pytest.mark.parametrize(
    ("what", "said"),
    [("segfault", "SIGSEGV"), ("wrong", "wrongly in the company"), ("bind", "some of its cores")],
)
def test_a_clash_is_seen_explained_and_remembered(what: str, said: str) -> None:
    if what == "bind" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one core, which cannot be lost")
    toolchains = registry_of({"a": {}, "b": {"a": what}})
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(toolchains, database)
        verdict = sharing.verdict(targets("a", "b"))
        assert not verdict.ok
        assert said in str(verdict.reason)
        assert Asked(toolchains, database).verdict(targets("b", "a")) == verdict
        assert len(sharing.probes) == 1
        newer = Asked(registry_of({"a": {}, "b": {}}), database, build="2")
        assert newer.verdict(targets("a", "b")).ok
        assert len(newer.probes) == 1


@pytest.mark.parametrize("what", ["kill", "hang"])
def test_an_accident_of_the_probe_holds_for_one_compilation(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_compat, "_TIMEOUT_S", 5.0)
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {"a": what}}), database)
        assert not any(sharing.verdict(targets("a", "b")).ok for _ in range(2))
        assert len(sharing.probes) == 1
        assert Asked(registry_of({"a": {}, "b": {}}), database).verdict(targets("a", "b")).ok


def test_measuring_again_asks_again() -> None:
    with Database("sqlite:///:memory:") as database:
        assert not Asked(registry_of({"a": {}, "b": {"a": "wrong"}}), database).verdict(targets("a", "b")).ok
        mended = registry_of({"a": {}, "b": {}})
        assert not Asked(mended, database).verdict(targets("a", "b")).ok
        again = Asked(mended, database, remeasure=True)
        assert all(again.verdict(targets("a", "b")).ok for _ in range(2))
        assert len(again.probes) == 1
        assert Asked(mended, database).verdict(targets("a", "b")).ok


def test_those_who_get_on_are_one_set_for_one_probe() -> None:
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {}, "c": {}}), database)
        menu = [*targets("c", "a", "b"), Target.parse("llvm -compiler=a -level=2")]
        assert sharing.compatible_sets(menu) == (frozenset(menu),)
        assert len(sharing.probes) == 1
        assert sharing.compatible_sets(menu[:1]) == (frozenset(menu[:1]),)
        assert len(sharing.probes) == 1


def test_one_probe_of_the_menu_answers_for_a_part_of_it() -> None:
    menu = targets("a", "b", "c")
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {}, "c": {}}), database, menu=menu)
        assert sharing.can_share(menu[:2])
        assert sharing.can_share(menu[1:])
        assert sharing.probes == ["testing if a, b, c can share a process"]
        later = Asked(registry_of({"a": {}, "b": {}, "c": {}}), database, menu=menu)
        assert later.can_share(menu[::2])
        assert not later.probes


def test_a_probe_with_the_host_answers_for_the_others() -> None:
    a, b, host = targets("a", "b", "host")
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {}, "host": {}}), database, menu=[host, a, b])
        assert sharing.can_share([host, a, b])
        assert sharing.can_share([a, b])
        assert sharing.probes == ["testing if a, b, host can share a process"]
        later = Asked(registry_of({"a": {}, "b": {}, "host": {}}), database, menu=[host, a, b])
        assert later.can_share([b, host, a])
        assert later.can_share([a, b])
        assert not later.probes


def test_a_clash_elsewhere_on_the_menu_keeps_no_others_apart() -> None:
    menu = targets("a", "b", "c")
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {}, "c": {"a": "wrong"}}), database, menu=menu)
        assert sharing.can_share(menu[:2])
        assert not sharing.can_share(menu[::2])
        assert len(sharing.probes) == 3 + 1  # Of all, of each pair, and the reason of the second.


def test_of_those_who_do_not_the_largest_sets_are_found() -> None:
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {"a": "wrong"}, "c": {}}), database)
        a, b, c = targets("a", "b", "c")
        assert sharing.compatible_sets([a, b, c]) == (frozenset({a, c}), frozenset({b, c}))


@pytest.mark.slow
def test_the_real_ones_get_on() -> None:
    menu = [Target.parse("llvm"), *targets("onnxruntime", "openvino", "host")]
    with Database("sqlite:///:memory:") as database:
        assert Asked(registry(), database).compatible_sets(menu) == (frozenset(menu),)


def test_toolchains_are_probed_in_the_models_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel in bf16 is off by more than what tells wrong from right, and would keep its toolchain from every mix."""
    asked: list[str] = []

    class Worker:
        def __init__(self, _: str, arguments: Any) -> None:
            asked.extend(member["target"] for member in arguments["members"])

        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, *_: object) -> None:
            return None

    monkeypatch.setattr(process_compat, "Worker", Worker)
    with Database("sqlite:///:memory:") as database:
        sharing = Asked(registry_of({"a": {}, "b": {}}), database)
        rough = [target.with_options(precision="bf16", level="2") for target in targets("a", "b")]
        assert sharing.verdict(rough).ok
    assert asked == [f"llvm -compiler={name} -level=2" for name in ("a", "b")]
