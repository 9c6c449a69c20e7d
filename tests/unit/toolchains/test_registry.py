"""The registry: which toolchains there are, what is wrong with the others, and which targets make sense."""

from __future__ import annotations

import string
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import TargetError
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry, Toolchain, option_values, registry


class Good(FakeToolchain):
    """A toolchain with an option of each kind."""

    options = {"level": "how hard to try", "threads": "how many", "note": "anything"}

    def __init__(self) -> None:
        super().__init__(name="good")

    def option_values(self, target: Target) -> dict[str, tuple[str, ...] | None]:
        return {"level": ("low", "high"), "threads": None, "note": ()}


class Untold(FakeToolchain):
    """A toolchain that does not tell the values of its options."""

    options = {"level": "how hard to try"}

    def __init__(self) -> None:
        super().__init__(name="untold")


class Nameless:
    """Not a toolchain at all."""


class Raises:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence was found")


class Exits:
    """Ends the process that makes it."""

    def __init__(self) -> None:
        raise SystemExit(3)


def changed(**attributes: Any) -> type:
    """A class like ``Good`` but for some attributes of its instances."""

    class Changed(Good):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__.update(attributes)

    return Changed


OtherName = changed(name="elsewhere")
NumberAsName = changed(name=7)
TextAsTargets = changed(targets="llvm -compiler=good")
NoTargets = changed(targets=())
TargetOfAnother = changed(targets=("llvm -compiler=openvino",))
TargetIsNone = changed(targets=("llvm -compiler=good", "nonsense"))
ListOfOptions = changed(options=["level"])
OptionOfNumber = changed(options={"level": 3})
NoFlag = changed(optimises_whole_graphs="yes")
NoLoad = changed(load=None)
ShortCompile = changed(compile=lambda kernel: kernel)
LongSupports = changed(supports=lambda node, target, more: True)
KeywordsOnly = changed(load=lambda *, compiled, target, workspace, options: None)
AnyArguments = changed(load=lambda *arguments: None, supports=lambda node, target, more=None: True)


def values_raise(self: Any, target: Target) -> Any:
    raise KeyError("what?")


ValuesRaise = type("ValuesRaise", (Good,), {"option_values": values_raise})

BROKEN = {
    "Nameless": "name is missing",
    "Raises": "no licence was found",
    "Exits": "SystemExit: 3",
    "Missing": "Missing",
    "OtherName": "name is 'elsewhere'",
    "NumberAsName": "name is 7, and must be a str",
    "TextAsTargets": "must be a tuple",
    "NoTargets": "targets is empty",
    "TargetOfAnother": "not a target of good",
    "TargetIsNone": "nonsense",
    "ListOfOptions": "must be a mapping",
    "OptionOfNumber": "names to sentences",
    "NoFlag": "must be a bool",
    "NoLoad": "no method load",
    "ShortCompile": "Changed.compile(kernel) must take (kernel, target, workspace): too many",
    "LongSupports": "missing a required argument: 'more'",
    "KeywordsOnly": "must take (compiled, target, workspace, options)",
    "ValuesRaise": "what?",
}


def point(kind: str, name: str = "good") -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{kind}", "collage.toolchains")


@pytest.mark.parametrize(("kind", "said"), BROKEN.items(), ids=BROKEN)
def test_a_broken_class_is_named_and_disturbs_no_other(kind: str, said: str) -> None:
    toolchains = Registry([point(kind), point("Untold", "untold")])
    assert [toolchain.name for toolchain in toolchains] == ["untold"]
    assert said in toolchains.broken["good"]
    assert "Traceback" in toolchains.tracebacks["good"]
    assert toolchains.parse_target("untold").toolchain == "untold"
    for text in ("good", "llvm -compiler=good"):
        with pytest.raises(TargetError, match="is broken") as refusal:
            toolchains.parse_target(text)
        assert said in str(refusal.value) and "collage targets -v" in str(refusal.value)


@pytest.mark.parametrize("kind", ["Good", "AnyArguments"])
def test_a_good_class_is_not_called_broken(kind: str) -> None:
    toolchains = Registry([point(kind)])
    assert [toolchain.name for toolchain in toolchains] == ["good"]
    assert not toolchains.broken


def test_installed_toolchains_keep_the_contract() -> None:
    installed = registry()
    names = {toolchain.name for toolchain in installed}
    assert {"onnxruntime", "tvm", "openvino", "host"} <= names
    for toolchain in installed:
        for stem in toolchain.targets:
            assert set(option_values(toolchain, Target.parse(stem))) <= set(toolchain.options)


@pytest.mark.parametrize(
    "text", ["good -level=low", "good -threads=12", "good -note=a,b -level=high", "untold -level=x"]
)
def test_values_that_exist_are_taken(text: str) -> None:
    toolchains = Registry([point("Good"), point("Untold", "untold")])
    target = toolchains.parse_target(text)
    assert toolchains.parse_target(target) == target


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("good -level=lo", "-level takes low, high, not 'lo'; did you mean low?"),
        ("good -level=zzz", "-level takes low, high, not 'zzz'"),
        ("good -threads=0", "whole number of at least 1"),
        ("good -threads=two", "whole number of at least 1"),
        ("good -leve=low", "did you mean -level?"),
        ("untold -lvl=x", "it has -level"),
    ],
)
def test_values_that_do_not_exist_are_refused(text: str, said: str) -> None:
    toolchains = Registry([point("Good"), point("Untold", "untold")])
    name, _, option = text.partition(" -")
    key, _, value = option.partition("=")
    for target in (text, Target("llvm", name, options=((key, value),))):
        with pytest.raises(TargetError) as refusal:
            toolchains.parse_targets([target])
        assert said in str(refusal.value)


@given(st.text(string.ascii_letters + string.digits, min_size=1, max_size=8))
def test_of_every_installed_toolchain_only_listed_values_pass(value: str) -> None:
    toolchains = registry()
    for toolchain in toolchains:
        for stem in toolchain.targets:
            for name, values in option_values(toolchain, Target.parse(stem)).items():
                is_listed = value.isdigit() and int(value) > 0 if values is None else value in values
                if values != () and not is_listed:
                    with pytest.raises(TargetError, match=f"-{name} takes"):
                        toolchains.parse_target(f"{stem} -{name}={value}")
                elif values != ():
                    assert toolchains.parse_target(f"{stem} -{name}={value}").option(name) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "did you mean 'cuda'?"),
        ("CPU", "did you mean 'llvm'?"),
        ("openvin", "did you mean 'openvino'?"),
        ("onnxruntime,openvino", "write -t onnxruntime -t openvino"),
        ("openvino -precision=bf16, llvm", "write -t 'openvino -precision=bf16' -t llvm"),
        ("cuda -arch=volta", "sm_90"),
    ],
)
def test_what_was_probably_meant_is_said(text: str, said: str) -> None:
    with pytest.raises(TargetError) as refusal:
        registry().parse_target(text)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ("iree", "iree"),
        ("llvm -compiler=iree -threads=1", "iree"),
        ("cudnn", "cuda"),
        ("cuda:good", "cuda"),
        ("cuda -compiler=good", "cuda"),
    ],
)
def test_a_toolchain_of_a_package_that_is_absent_is_named_with_its_extra(text: str, extra: str) -> None:
    with pytest.raises(TargetError, match=rf"pip install .*(/packages/collage-{extra}|\[{extra}\])"):
        Registry([point("Good")]).parse_target(text)


@pytest.mark.parametrize("ends", [False, True])
def test_of_two_toolchains_with_one_name_that_of_another_package_counts(ends: bool) -> None:
    own = EntryPoint("good", "collage.testing:FakeToolchain", "collage.toolchains")
    toolchains = Registry([own, point("Good")][:: -1 if ends else 1])
    assert toolchains.factory("good")[0] == f"{__name__}:Good"


def test_the_contract_is_the_protocol() -> None:
    assert isinstance(Good(), Toolchain)
