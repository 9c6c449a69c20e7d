from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import TargetError
from collage.device import ANYWHERE, CompilationConfig, SEScope, VirtualDevice, as_scope
from collage.target import Target

TARGETS = [None, *map(Target.parse, ["llvm", "llvm -compiler=some", "llvm -threads=2", "cuda", "cuda -libs=other"])]


@st.composite
def scopes(draw: st.DrawFn) -> SEScope:
    target = draw(st.sampled_from(TARGETS))
    device = draw(st.sampled_from([None, "cpu", "cuda"])) if target is None else None
    memory = draw(st.sampled_from([None, "global", "global.texture"]))
    return SEScope(device, draw(st.sampled_from([None, 0, 1])), target, memory)


@given(scopes())
def test_what_is_printed_can_be_read(scope: SEScope) -> None:
    assert SEScope.parse(str(scope)) == scope == as_scope(str(scope))


@given(scopes(), scopes())
def test_join_has_the_constraints_of_both(one: SEScope, other: SEScope) -> None:
    joined = one.join(other)
    assert joined == other.join(one)
    assert (joined is None) == (one.conflict(other) is not None)
    if joined is not None:
        assert joined.join(one) == joined.join(other) == joined


@given(scopes(), scopes())
def test_default_fills_free_fields_and_changes_no_other(scope: SEScope, filler: SEScope) -> None:
    filled = scope.default(filler)
    for name in ("device_type", "virtual_device_id", "target", "memory_scope"):
        if getattr(scope, name) is not None:
            assert getattr(filled, name) == getattr(scope, name)
    assert ANYWHERE.default(filler) == filler


def test_a_scope_may_hold_a_device_type_only() -> None:
    scope = SEScope("cuda")
    assert (scope.virtual_device_id, scope.target, scope.memory_scope) == (None, None, None)
    assert not scope.is_free


def test_the_device_type_must_be_the_targets() -> None:
    assert SEScope(target=Target("cuda")).device_type == "cuda"
    with pytest.raises(TargetError, match="for device 'cpu', not 'cuda'"):
        SEScope("cuda", target=Target("llvm"))


def test_targets_are_compared_by_value_and_a_refinement_wins() -> None:
    plain, fine = SEScope(target=Target("llvm")), SEScope(target=Target("llvm", compiler="some"))
    assert plain.join(SEScope(target=Target("llvm"))) == plain
    assert plain.join(fine) == fine.join(plain) == fine
    assert fine.join(SEScope(target=Target("llvm", compiler="other"))) is None


def test_defaults_of_another_device_are_not_taken() -> None:
    filler = SEScope.parse("cpu:0[llvm]/global")
    assert SEScope("cuda").default(filler) == SEScope("cuda")
    assert SEScope("cpu", 1).default(filler) == SEScope("cpu", 1)
    assert SEScope("cpu").default(filler) == filler


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cpu:1", SEScope("cpu", 1)),
        ("cuda", SEScope("cuda")),
        ("llvm", SEScope(target=Target("llvm"))),
        ("llvm -compiler=some", SEScope(target=Target("llvm", "some"))),
        ("cuda:0/global.texture", SEScope("cuda", 0, memory_scope="global.texture")),
        ("?/global", SEScope(memory_scope="global")),
    ],
)
def test_plain_device_names_and_targets_are_scopes(text: str, expected: SEScope) -> None:
    assert as_scope(text) == expected
    assert VirtualDevice is SEScope


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpu:", "cpu:x", "cpu:-1", "cuda[llvm]", "cpu/", "cpu/a b", "cpu:1:2", "cpu]"]
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(TargetError):
        as_scope(text)


def test_devices_of_other_libraries_are_scopes() -> None:
    assert as_scope(SimpleNamespace(type="cuda", index=1)) == SEScope("cuda", 1)  # As a torch.device is.
    assert as_scope(SimpleNamespace(type="cpu", index=None)) == SEScope("cpu")
    assert as_scope(np.zeros(1).__dlpack_device__()) == SEScope("cpu", 0)


def test_what_is_no_scope_at_all_is_refused() -> None:
    for wrong in (3, None, True, np.dtype("f4"), (99, 0), (1,), (1, -1)):
        with pytest.raises(TargetError):
            as_scope(wrong)  # type: ignore[arg-type]
    with pytest.raises(TargetError):
        SEScope("cpu", True)


# Configurations


def test_the_first_configured_scope_that_agrees_fills_the_rest_in() -> None:
    config = CompilationConfig.of(["cpu:0[llvm -threads=1]", "cpu:1[llvm -threads=4]", "cuda:0/global"])
    assert str(config.canonical(as_scope("cpu"))) == "cpu:0[llvm -threads=1]"
    assert str(config.canonical(as_scope("cpu:1"))) == "cpu:1[llvm -threads=4]"
    assert str(config.canonical(as_scope("llvm -threads=4"))) == "cpu:1[llvm -threads=4]"
    assert str(config.canonical(as_scope("llvm -threads=4 -compiler=some"))) == (
        "cpu:1[llvm -compiler=some -threads=4]"
    )
    assert str(config.canonical(as_scope("cuda"))) == "cuda:0[cuda]/global"
    assert str(config.canonical(as_scope("cuda:0/other"))) == "cuda:0[cuda]/other"


def test_what_is_not_configured_is_refused() -> None:
    config = CompilationConfig.of(["cpu:0", "cpu:1"])
    for text in ("cuda", "cpu:2"):
        with pytest.raises(TargetError, match="configured: cpu:0"):
            config.canonical(as_scope(text))


def test_rules_for_host_and_default() -> None:
    two = CompilationConfig.of(["cuda:0", "cpu:0[llvm -threads=2]"])
    assert (str(two.host), str(two.default)) == ("cpu:0[llvm -threads=2]", "cpu:0[llvm -threads=2]")
    assert str(CompilationConfig.of(["cuda:0", "cpu:0"], fallback_device="cuda").default) == "cuda:0[cuda]"
    lonely = CompilationConfig.of(["cuda"])
    assert (str(lonely.default), str(lonely.host)) == ("cuda:0[cuda]", "cpu:0[llvm]")
    named = Target("cuda", host=Target("llvm", options=(("threads", "1"),)))
    assert str(CompilationConfig.of([named]).host) == "cpu:0[llvm -threads=1]"


def test_devices_without_id_are_numbered() -> None:
    config = CompilationConfig.of(["cpu", "cpu", "cpu:0"])
    assert [scope.virtual_device_id for scope in config.scopes] == [1, 2, 0]


def test_configurations_that_contradict_themselves_are_refused() -> None:
    for devices, options in (
        (["cpu:0", "cpu:0"], {}),
        (["?"], {}),
        (["cpu:0"], {"default": "cuda"}),
        (["cpu:0", "cuda"], {"host": "cuda"}),
        (["cpu:0"], {"host": "cpu:7"}),
    ):
        with pytest.raises(TargetError):
            CompilationConfig.of(devices, **options)
