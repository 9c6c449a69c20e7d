"""Loop nests that several kernels have are compiled once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.toolchain.tvm_cases import PAD, agrees, convolution

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains.tvm.toolchain import TvmToolchain

loop_objects = pytest.importorskip("collage.toolchains.tvm.loop_objects")

_CHAIN = "a = Relu (c) d = Conv (a, k) e = Sigmoid (d) y = Mul (d, e)"


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> dict[object, bytes]:
    """The object files, of which there are none at first."""
    objects: dict[object, bytes] = {}
    monkeypatch.setattr(loop_objects, "_made", objects)
    return objects


def _chain(after: str = _CHAIN) -> KernelCase:
    case = convolution(12, 16, 32, 3, 1, PAD, after)
    weights = {**case.weights, "k": np.random.default_rng(3).standard_normal((16, 32, 3, 3)).astype(np.float32)}
    return KernelCase("chain", case.text, case.inputs, weights)


def test_a_second_kernel_makes_only_the_nests_in_which_it_differs(made: dict[object, bytes], tmp_path: Path) -> None:
    agrees(_chain(), tmp_path / "first", within=1e-2)
    known = set(made)
    agrees(_chain(), tmp_path / "same", within=1e-2)
    assert set(made) == known
    agrees(
        _chain(_CHAIN.replace("y = Mul", "z = Mul") + " y = Softmax <axis = 3> (z)"), tmp_path / "longer", within=1e-2
    )
    assert 0 < len(set(made) - known) < len(known)


def test_a_nest_has_the_name_of_its_content_in_any_kernel(made: dict[object, bytes], tmp_path: Path) -> None:
    toolchain, target = TvmToolchain(), Target.parse("llvm")

    def names(case: KernelCase, folder: Path) -> set[str]:
        folder.mkdir()
        return {name for name, _ in toolchain.compile(case.model(), target, folder).metadata["calls"]}

    first = names(_chain(), tmp_path / "first")
    swapped = _chain("b0 = Sigmoid (c) z = Mul (c, b0) y = Conv (z, k)")
    assert any("conv2d" in name for name in first)
    assert 0 < len(first) <= len(made)
    assert first != names(swapped, tmp_path / "swapped")
    assert first == names(_chain(), tmp_path / "again")


def test_objects_do_not_depend_on_the_number_of_threads(made: dict[object, bytes], tmp_path: Path) -> None:
    found = []
    for options in ("", " -threads=1", " -threads=5"):
        made.clear()
        TvmToolchain().compile(_chain("y = Relu (c)").model(), Target.parse(f"llvm{options}"), tmp_path)
        found.append({key[0].key.attrs["global_symbol"]: content for key, content in made.items()})
    for name in set.intersection(*map(set, found)):
        assert len({each[name] for each in found}) == 1
    assert set.intersection(*map(set, found))
