"""The choice among the plans of a pack, against the rules said plainly, for machines of all kinds."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from collage.runtime import KernelRecord, Recipe
from collage.runtime._choice import choose
from collage.runtime._made_on import MadeOn
from collage.runtime._pack import PackedPlan
from collage.system.machine import Machine
from collage.toolchains import Availability, Compiled

FLAGS = ("avx2", "avx512f", "fma", "sse2")
SYSTEMS = ("Linux x86_64", "Linux aarch64")
TOOLCHAINS = ("tvm", "onnxruntime", "missing")


class Toolchain:
    def __init__(self, name: str) -> None:
        self.name = name

    def availability(self) -> Availability:
        return Availability(self.name != "missing", build="1", reason="it is not installed")


class Toolchains:
    def get(self, name: str) -> Any:
        return Toolchain(name)


def isa_of(flags: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16]


def kernel(number: int, toolchain: str, is_built: bool) -> KernelRecord:
    target = "llvm" if toolchain == "tvm" else f"llvm -compiler={toolchain}"
    files = (f"k{number}",) if is_built else ()
    compiled = Compiled(toolchain, target, files, ("x",), ("y",), portable=toolchain != "tvm")
    return KernelRecord(f"k{number}", target, ("x",), ("y",), compiled)


@st.composite
def plans(draw: st.DrawFn) -> PackedPlan:
    flags = tuple(sorted(draw(st.sets(st.sampled_from(FLAGS)))))
    cores = draw(st.integers(1, 4))
    system = draw(st.sampled_from(SYSTEMS))
    names = draw(st.lists(st.tuples(st.sampled_from(TOOLCHAINS), st.booleans()), min_size=1, max_size=2))
    kernels = tuple(kernel(number, *name) for number, name in enumerate(names))
    told = draw(st.booleans())
    made_on = MadeOn(
        system,
        isa_of(flags),
        cores,
        fingerprint=f"{system}{flags}{cores}",
        flags=frozenset(flags) if told else frozenset(),
    )
    return PackedPlan("", {}, Recipe((), (), kernels, 0, "", {}, {}), made_on)


def machine(flags: tuple[str, ...], cores: int) -> Machine:
    system = SYSTEMS[0]

    class Here(Machine):
        fingerprint = f"{system}{flags}{cores}"

    return Here("", isa_of(flags), flags, cores, cores, None, 1 << 30, system)


@given(
    st.lists(plans(), min_size=1, max_size=6, unique_by=lambda plan: plan.machine),
    st.sets(st.sampled_from(FLAGS)).map(lambda flags: tuple(sorted(flags))),
    st.integers(1, 4),
)
def test_the_choice_keeps_the_rules(given_plans: list[PackedPlan], flags: tuple[str, ...], cores: int) -> None:
    here = machine(flags, cores)
    choice = choose(given_plans, Toolchains(), here)  # type: ignore[arg-type]

    def usable(plan: PackedPlan) -> bool:
        return all(kernel.compiled.toolchain != "missing" for kernel in plan.recipe.kernels)

    def level(plan: PackedPlan) -> int:
        if plan.made_on.system != here.system:
            return 3
        if plan.made_on.fingerprint == here.fingerprint:
            return 0
        if plan.made_on.isa == here.isa:
            return 1
        return 2 if plan.made_on.flags and plan.made_on.flags < set(flags) else 3

    fitting = [plan for plan in given_plans if usable(plan) and level(plan) < 3]
    singles = [
        plan
        for plan in given_plans
        if usable(plan)
        and len(plan.recipe.kernels) == 1
        and plan.recipe.kernels[0].is_built
        and plan.recipe.kernels[0].compiled.portable
    ]
    if fitting:
        best = min(map(level, fitting))
        assert not choice.is_whole and usable(choice.plan) and level(choice.plan) == best
        if best == 2:
            most = max(len(plan.made_on.flags) for plan in fitting if level(plan) == 2)
            assert len(choice.plan.made_on.flags) == most
        assert (choice.note is None) == (best == 0)
    elif singles:
        assert choice.plan in singles and not choice.is_whole and choice.note is not None
    else:
        assert choice.is_whole and choice.note is not None and "onnxruntime" in choice.note
    # Native code is used only where every one of its instructions is.
    if not choice.is_whole and any(not kernel.compiled.portable for kernel in choice.plan.recipe.kernels):
        assert choice.plan.made_on.system == here.system
        assert choice.plan.made_on.isa == here.isa or choice.plan.made_on.flags <= set(flags)
