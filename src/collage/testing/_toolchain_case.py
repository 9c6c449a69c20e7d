"""The contract of toolchains, as a test class to inherit; for third parties' toolchains too.

::

    class TestMine(ToolchainTestCase):
        toolchain = MyToolchain()

Needs pytest. A toolchain must state correctly which operators it supports, and compute these rightly.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from collage._errors import TargetError, ToolchainError, Unsupported, WorkerTimeout
from collage.target import Target
from collage.testing import _memory_edges, _thread_use
from collage.testing._memory_edges import placed
from collage.testing._toolchain_kernels import (
    COMMON,
    DTYPES,
    DYNAMIC,
    EDGES,
    INDICES,
    SHARED,
    KernelCase,
    kernel,
)
from collage.toolchains import (
    AllocatingKernel,
    Importer,
    InPlaceKernel,
    Layout,
    LoadOptions,
    Profiler,
    Toolchain,
    aligned_bytes,
    compile_for,
    load_for,
    size_bytes,
)
from collage.workers.worker import Worker

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains import Kernel
    from collage.toolchains._contract import Tensor

__all__ = ["ToolchainTestCase"]


_CONTEXTS, _RUNS_AT_ONCE = 3, 10
"""Kernels that run at once in threads of their own, and how often each of them meets each of its inputs."""
_UNEVEN = frozenset({"conv_relu", "reduce", "topk", "layer_norm_gelu"})
"""Common kernels whose inputs and outputs do not fill whole vectors, or are read in windows."""


def _by_name(case: Any) -> str:
    return case.name if isinstance(case, KernelCase) else ""


class ToolchainTestCase:
    """Tests that a toolchain keeps the contract.

    Attributes:
        toolchain: The toolchain under test.
        target: The target to test, an alias or the full form; the toolchain's first one if empty.
        takes: Names of the common and dynamic kernels that this toolchain takes, for one of few operators; None is all
            but those that it ``refuses``. One of ``matmul`` and ``elementwise`` is the least.
        refuses: Names of common kernels that this toolchain is known to refuse.
        differs: Names of edge cases whose results are known to differ from ONNX. These tests are expected to fail.
        tolerance: Largest error allowed, relative to the largest output.
        single_threaded: It computes in the calling thread only, for every number of threads.
    """

    toolchain: ClassVar[Toolchain]
    target: ClassVar[str] = ""
    takes: ClassVar[frozenset[str] | None] = None
    refuses: ClassVar[frozenset[str]] = frozenset()
    differs: ClassVar[frozenset[str]] = frozenset()
    tolerance: ClassVar[float] = 1e-4
    single_threaded: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _only_where_available(self) -> None:
        found = self.toolchain.availability()
        if not found.available:
            pytest.skip(f"{self.toolchain.name}: {found.reason}")

    @pytest.fixture
    def parsed(self) -> Target:
        return Target.parse(self.target or self.toolchain.targets[0])

    def _refuses(self, name: str) -> bool:
        return name in self.refuses or (self.takes is not None and name not in self.takes)

    def _usual(self, *names: str) -> KernelCase:
        """A common kernel that the toolchain takes: the first of these names, or of all."""
        cases = {case.name: case for case in COMMON}
        return next(cases[name] for name in names or cases if not self._refuses(name))

    def test_is_a_toolchain_that_says_what_it_is(self, parsed: Target) -> None:
        assert isinstance(self.toolchain, Toolchain)
        assert parsed.toolchain == self.toolchain.name
        began = time.perf_counter()
        found = self.toolchain.availability()
        assert time.perf_counter() - began < 5
        assert found.version and found.version in found.build
        assert all(sentence for sentence in self.toolchain.options.values())

    @pytest.mark.parametrize("case", COMMON, ids=_by_name)
    def test_common_kernels_are_right(self, case: KernelCase, parsed: Target, tmp_path: Path) -> None:
        if self._refuses(case.name):
            with pytest.raises(Unsupported):
                _run(self.toolchain, case.model(), parsed, tmp_path, case.inputs)
            return
        compiled = self.toolchain.compile(case.model(), parsed, tmp_path)
        loaded, again = (self.toolchain.load(compiled, parsed, tmp_path, LoadOptions()) for _ in range(2))
        self._assert_right(case.model(), case.inputs, loaded(case.inputs))
        self._assert_at_home_anywhere(loaded, case)
        if isinstance(again, InPlaceKernel):
            self._assert_writes_in_place(again, case)

    @pytest.mark.parametrize("case", SHARED, ids=_by_name)
    def test_what_is_used_twice_is_not_written_over(self, case: KernelCase, parsed: Target, tmp_path: Path) -> None:
        try:
            loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        except Unsupported:
            pytest.skip(f"{self.toolchain.name} refuses it")
        self._assert_right(case.model(), case.inputs, loaded(case.inputs))
        self._assert_at_home_anywhere(loaded, case)

    @pytest.mark.parametrize("case", EDGES + DTYPES, ids=_by_name)
    def test_edges_and_types_are_right_or_refused(self, case: KernelCase, parsed: Target, tmp_path: Path) -> None:
        try:
            got = _run(self.toolchain, case.model(), parsed, tmp_path, case.inputs)
        except Unsupported as refusal:
            assert str(refusal) and "\n" not in str(refusal)
            assert case.name not in self.differs
            return
        if case.name in self.differs:
            with pytest.raises(AssertionError):
                self._assert_right(case.model(), case.inputs, got)
        else:
            self._assert_right(case.model(), case.inputs, got)

    @pytest.mark.parametrize(("case", "many"), DYNAMIC, ids=_by_name)
    def test_symbolic_dimensions(
        self, case: KernelCase, many: Sequence[Sequence[Tensor]], parsed: Target, tmp_path: Path
    ) -> None:
        if self._refuses(case.name):
            pytest.skip(f"{self.toolchain.name} is known to refuse it")
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        for inputs in many:
            may_refuse = any(x.size == 0 for x in inputs)
            with contextlib.suppress(*([ToolchainError] if may_refuse else [])):
                self._assert_right(case.model(), inputs, loaded(inputs))

    @pytest.mark.parametrize(("case", "within", "beyond"), INDICES, ids=_by_name)
    def test_indices_beyond_a_tensor_are_errors(
        self, case: KernelCase, within: Sequence[Tensor], beyond: Sequence[Tensor], parsed: Target, tmp_path: Path
    ) -> None:
        try:
            compiled = compile_for(self.toolchain, _typed(case.model()), parsed, tmp_path)
        except Unsupported:
            pytest.skip(f"{self.toolchain.name} refuses it")
        loaded = load_for(self.toolchain, compiled, parsed, tmp_path, LoadOptions())
        x = np.random.default_rng(7).standard_normal((10, 4)).astype(np.float32)
        for _ in range(2):
            for i in within:
                with contextlib.suppress(Unsupported):
                    self._assert_right(case.model(), [x, i], loaded([x, i]))
            for i in beyond:
                with pytest.raises(Exception, match=r"."):
                    loaded([x, i])

    def test_strided_and_read_only_inputs(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual("matmul", "elementwise")
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        wide = np.random.default_rng(5).standard_normal((32, 8)).astype(np.float32)
        frozen = np.ascontiguousarray(wide.T[:4])
        frozen.flags.writeable = False
        for x in (wide.T[:4], wide.T[::2], wide.T[3::-1], frozen):
            before = x.copy()
            self._assert_right(case.model(), [x], loaded([x]))
            np.testing.assert_array_equal(x, before)

    def test_inputs_may_change_in_place(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual()
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        x = case.inputs[0].copy()
        for factor in (1.0, -2.0, 0.5):
            x *= np.float32(factor)
            self._assert_right(case.model(), [x], loaded([x]))

    def test_outputs_last_unless_it_says_otherwise(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual()
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        first = loaded(case.inputs)[0]
        kept = first.copy()
        second = loaded([-case.inputs[0]])[0]
        assert not np.array_equal(kept, second)
        if not loaded.reuses_outputs:
            np.testing.assert_array_equal(first, kept)

    def test_contexts_run_at_once(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual("matmul", "elementwise")
        compiled = self.toolchain.compile(case.model(), parsed, tmp_path)
        options = LoadOptions(threads=1, streams=_CONTEXTS, shared={})
        contexts = [self.toolchain.load(compiled, parsed, tmp_path, options) for _ in range(_CONTEXTS)]
        # Each thread has inputs of its own, in turns, so that values of another context or of an earlier call show.
        given = [[case.inputs[0] * np.float32(factor) for factor in (i + 1, -i - 1)] for i in range(_CONTEXTS)]
        together = threading.Barrier(_CONTEXTS)

        def run(loaded: Kernel, inputs: list[Tensor]) -> list[list[Tensor]]:
            together.wait(60.0)
            return [[y.copy() for y in loaded([x])] for x in inputs * _RUNS_AT_ONCE]

        with ThreadPoolExecutor(_CONTEXTS) as pool:
            found = list(pool.map(run, contexts, given))
        for inputs, outputs in zip(given, found, strict=True):
            for x, got in zip(inputs * _RUNS_AT_ONCE, outputs, strict=True):
                self._assert_right(case.model(), [x], got)

    def test_writes_in_place_nowhere_else(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual()
        loaded = _load(self.toolchain, case.model(), parsed, tmp_path)
        if not isinstance(loaded, InPlaceKernel):
            pytest.skip("does not write in place")
        x = case.inputs[0].copy()
        earlier, later = ([np.empty(a.shape, a.dtype) for a in loaded.layouts] for _ in range(2))
        loaded.run_into([x], earlier)
        kept, own = [y.copy() for y in earlier], loaded([x])[0].copy()
        # The same array with other contents, and one that lies elsewhere and is not row-major.
        for changed in (np.negative(x, out=x), np.asfortranarray(x * np.float32(0.5))):
            loaded.run_into([changed], later)
            self._assert_right(case.model(), [changed], later)
            for y, before in zip(earlier, kept, strict=True):
                np.testing.assert_array_equal(y, before)
        # What was an output is the next one's input, as where kernels of one shape alternate between two buffers.
        if earlier[0].shape == x.shape:
            given = earlier[0].copy()
            loaded.run_into([earlier[0]], later)
            self._assert_right(case.model(), [given], later)
            loaded.run_into([later[0].copy()], earlier)
        np.testing.assert_array_equal(loaded(case.inputs)[0], own)

    def test_outputs_are_row_major_and_of_the_right_type(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual("attention", "elementwise", "matmul")
        for y in _run(self.toolchain, case.model(), parsed, tmp_path, case.inputs):
            assert isinstance(y, np.ndarray) and y.flags.c_contiguous and y.dtype == np.float32

    def test_writes_only_its_own_files(self, parsed: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
        workspace.mkdir()
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        monkeypatch.setenv("TMPDIR", str(elsewhere))
        monkeypatch.setattr(tempfile, "tempdir", None)
        case = self._usual()
        compiled = self.toolchain.compile(case.model(), parsed, workspace)
        self.toolchain.load(compiled, parsed, workspace, LoadOptions())(case.inputs)
        if isinstance(self.toolchain, Profiler):
            self.toolchain.profile(compiled, parsed, workspace, case.inputs, 2)
        written = {path.name for path in workspace.rglob("*")}
        assert written == set(compiled.files)
        assert all(name.startswith(case.name) for name in written)
        assert not list(elsewhere.iterdir())

    def test_says_nothing_on_standard_streams(
        self, parsed: Target, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for case in (self._usual(), *DTYPES[:3]):
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("PYTHONWARNINGS", raising=False)
                try:
                    _run(self.toolchain, case.model(), parsed, tmp_path, case.inputs)
                except Unsupported:
                    continue
        said = capfd.readouterr()
        assert (said.out, said.err) == ("", "")

    def test_compiling_is_a_function(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual()
        model = case.model()
        first, second = (self.toolchain.compile(model, parsed, tmp_path) for _ in range(2))
        assert first == second
        assert first.inputs == ("x",) and first.outputs == ("y",)
        assert json.loads(json.dumps(asdict(first)["metadata"])) == first.metadata
        loaded = [self.toolchain.load(first, parsed, tmp_path, LoadOptions()) for _ in range(2)]
        self._assert_right(case.model(), case.inputs, loaded[0](case.inputs))
        self._assert_right(case.model(), case.inputs, loaded[1](case.inputs))

    def test_weights_in_a_file_of_the_workspace(self, parsed: Target, tmp_path: Path) -> None:
        case = self._usual("matmul", "elementwise")
        model = with_weights_in_file(case, tmp_path)
        before = (tmp_path / "weights").read_bytes()
        self._assert_right(case.model(), case.inputs, _run(self.toolchain, model, parsed, tmp_path, case.inputs))
        assert (tmp_path / "weights").read_bytes() == before

    @pytest.mark.parametrize("names", [(), ("gather",)], ids=["usual", "indices"])
    def test_unusual_names(self, names: tuple[str, ...], parsed: Target, tmp_path: Path) -> None:
        if names and all(map(self._refuses, names)):
            pytest.skip(f"{self.toolchain.name} refuses {' and '.join(names)}")
        case = self._usual(*names)
        model = case.model()
        inputs = tuple(f"/{value.name}/b:{i}" for i, value in enumerate(model.graph.inputs))
        outputs = tuple(f"über {value.name}.{i}" for i, value in enumerate(model.graph.outputs))
        for value, name in zip((*model.graph.inputs, *model.graph.outputs), (*inputs, *outputs), strict=True):
            value.name = name
        for node in model.graph:
            node.name = f"{node.name}/a:b c"
        compiled = self.toolchain.compile(model, parsed, tmp_path)
        assert (compiled.inputs, compiled.outputs) == (inputs, outputs)
        got = self.toolchain.load(compiled, parsed, tmp_path, LoadOptions())(case.inputs)
        self._assert_right(case.model(), case.inputs, got)

    def test_refuses_what_it_does_not_know(self, parsed: Target, tmp_path: Path) -> None:
        odd = kernel("odd", "(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}")
        with pytest.raises(Unsupported, match=r"."):
            _run(self.toolchain, odd, parsed, tmp_path, [np.ones(2, np.float32)])
        for options in ({"no-such-option": "1"}, {name: "no-such-value" for name in self.toolchain.options}):
            if options:
                with pytest.raises(TargetError):
                    self.toolchain.compile(self._usual().model(), parsed.with_options(**options), tmp_path)

    @pytest.mark.parametrize("name", ["../escape", "", "a/b"])
    def test_stays_in_the_workspace(self, name: str, parsed: Target, tmp_path: Path) -> None:
        model = self._usual().model()
        model.graph.name = name
        inner = tmp_path / "inner"
        inner.mkdir()
        with pytest.raises(ToolchainError):
            self.toolchain.compile(model, parsed, inner)
        assert [path.name for path in tmp_path.rglob("*")] == ["inner"]

    @pytest.mark.parametrize("threads", [1, 2])
    def test_another_process_can_load_and_uses_its_threads(self, threads: int, parsed: Target, tmp_path: Path) -> None:
        size = 512
        weights = {"w": np.random.default_rng(1).standard_normal((size, size)).astype(np.float32) / size}
        if self._refuses("matmul") and self._refuses("elementwise"):
            pytest.skip("it takes neither of the kernels that work is shared out of")
        body = "a = Mul (x, w) y = Tanh (a)" if self._refuses("matmul") else "y = MatMul (x, w)"
        text = f"(float[{size},{size}] x) => (float[{size},{size}] y) {{{body}}}"
        model = kernel("product", text, weights)
        compiled = self.toolchain.compile(model, parsed, tmp_path)
        x = np.random.default_rng(2).standard_normal((size, size)).astype(np.float32)
        np.save(tmp_path / "input.npy", x)
        task = {"compiled": compiled.as_json(), "options": asdict(LoadOptions(threads))}
        seen = _in_child(self.toolchain, task, tmp_path, _thread_use)
        self._assert_right(model, [x], [np.load(tmp_path / "output.npy")])
        assert seen["busy_cores"] < threads + 0.2
        if not self.single_threaded and parsed.kind == "llvm" and parsed.option("threads") is None:
            assert seen["busy_threads"] >= min(threads, seen["cores"])
        assert seen["idle_cores"] < 0.1
        assert seen["affinity_kept"]

    def test_another_process_keeps_within_its_arrays(self, parsed: Target, tmp_path: Path) -> None:
        cases = [case for case in COMMON if case.name in _UNEVEN and not self._refuses(case.name)] or [self._usual()]
        compiled = [self.toolchain.compile(case.model(), parsed, tmp_path) for case in cases]
        for i, case in enumerate(cases):
            np.savez(tmp_path / f"inputs_{i}.npz", *case.inputs)
        _in_child(self.toolchain, {"kernels": [each.as_json() for each in compiled]}, tmp_path, _memory_edges)

    def test_a_build_that_takes_too_long_is_ended(self, parsed: Target, tmp_path: Path) -> None:
        import onnx_ir as ir  # late, as in _toolchain_kernels

        model = self._usual().model()
        ir.save(model, tmp_path / "kernel.onnx")
        kind = type(self.toolchain)
        made_by = {
            "factory": f"{kind.__module__}:{kind.__qualname__}",
            "arguments": dict(getattr(self.toolchain, "worker_arguments", {})),
        }
        job: dict[str, Any] = {"target": str(parsed), "workspace": str(tmp_path), "threads": 1}
        os.mkfifo(tmp_path / "endless.onnx")  # However slow this process is, nobody finishes reading it.
        with Worker("collage.measure._kernel_worker:KernelWorker", made_by) as worker:
            worker.call("availability", 180.0, target=str(parsed))
            began = time.perf_counter()
            with pytest.raises(WorkerTimeout):
                worker.call("build", 0.1, **job, kernel="endless.onnx")
            assert time.perf_counter() - began < 60
            assert not worker.alive
            assert worker.call("build", 180.0, **job, kernel="kernel.onnx")["outputs"] == ["y"]

    def test_profile_names_nodes_of_the_kernel(self, parsed: Target, tmp_path: Path) -> None:
        if not isinstance(self.toolchain, Profiler):
            pytest.skip("does not profile")
        for case in (self._usual(), next(case for case in EDGES if case.name == "control_flow")):
            model = case.model()
            compiled = self.toolchain.compile(model, parsed, tmp_path)
            seconds = self.toolchain.profile(compiled, parsed, tmp_path, case.inputs, 3)
            assert seconds and {place for step in seconds for place in step} <= set(range(len(model.graph)))
            assert all(0 <= value < 1 for value in seconds.values())

    def test_what_builds_can_be_imported(self, parsed: Target, tmp_path: Path) -> None:
        if not isinstance(self.toolchain, Importer):
            pytest.skip("does not import without building")
        for case in (*COMMON, *EDGES, *DTYPES, *(case for case, _ in DYNAMIC)):
            try:
                self.toolchain.check_import(case.model(), parsed, tmp_path)
            except ToolchainError:
                with pytest.raises(ToolchainError):
                    self.toolchain.compile(case.model(), parsed, tmp_path)

    def _assert_at_home_anywhere(self, loaded: Kernel, case: KernelCase) -> None:
        """Demand right results for inputs at any address. Inputs and earlier results must not change."""
        earlier: list[tuple[Tensor, Tensor]] = []
        for offset in (0, 4, 16, 0):
            inputs = placed(case.inputs, offset)
            for _ in range(2):
                got = list(loaded(inputs))
                self._assert_right(case.model(), case.inputs, got)
                for x, before in zip(inputs, case.inputs, strict=True):
                    np.testing.assert_array_equal(x, before)
                if not loaded.reuses_outputs:
                    earlier += [(y[...], y.copy()) for y in got]
                    pairs = [*combinations(got, 2), *product(got, inputs)]
                    assert not any(np.shares_memory(*pair) for pair in pairs)
                if isinstance(loaded, AllocatingKernel) and loaded.allocates_outputs:
                    assert all(y.flags.writeable for y in got)
            for x in inputs:
                x[...] = 1  # As where the next kernel writes to the same buffer.
        for y, before in earlier:
            np.testing.assert_array_equal(y, before)

    def _assert_writes_in_place(self, loaded: InPlaceKernel, case: KernelCase) -> None:
        """Demand that it writes to buffers the same as a call returns, and nothing beside them."""
        called = [y.copy() for y in loaded(case.inputs)]
        assert [(y.dtype.name, y.shape) for y in called] == [(a.dtype, tuple(a.shape)) for a in loaded.layouts]
        kept = [x.copy() for x in case.inputs]
        # A few times, in turns: kernels may remember buffers that they met before.
        buffers = [[_Guarded(layout) for layout in loaded.layouts] for _ in range(3)]
        for turn in (0, 1, 0, 2, 1):
            for buffer in buffers[turn]:
                buffer.spoil()
            loaded.run_into(case.inputs, [buffer.array for buffer in buffers[turn]])
            for buffer, y in zip(buffers[turn], called, strict=True):
                np.testing.assert_array_equal(buffer.array, y)
                assert buffer.is_whole
        for x, before in zip(case.inputs, kept, strict=True):
            np.testing.assert_array_equal(x, before)

    def _assert_right(self, model: ir.Model, inputs: Sequence[Tensor], got: Sequence[Tensor]) -> None:
        wanted = _reference(model, inputs)
        assert len(got) == len(wanted)
        for y, expected in zip(got, wanted, strict=True):
            assert y.dtype == expected.dtype and y.shape == expected.shape
            if expected.dtype.kind in "biu":  # Below, NumPy would compare them as float64.
                np.testing.assert_array_equal(y, expected)
                continue
            scale = np.abs(expected[np.isfinite(expected)].astype(np.float64)).max(initial=0)
            # A float64 has no rounding to forgive; a float16 has its own.
            share = {"f4": self.tolerance, "f2": 2e-3, "f8": 1e-14}.get(expected.dtype.str[1:], 0)
            np.testing.assert_allclose(y, expected, rtol=0, atol=share * scale)


class _Guarded:
    """A buffer of a layout, with marks before and behind it."""

    _MARGIN = 256

    def __init__(self, layout: Layout) -> None:
        # Of whole lines of the cache, the margins leave the array aligned as the executor's buffers are.
        self._block = aligned_bytes(size_bytes(layout) + 2 * self._MARGIN)
        self.array: Tensor = self._block[self._MARGIN : -self._MARGIN].view(layout.dtype).reshape(layout.shape)

    def spoil(self) -> None:
        """Fill it with values that no kernel returns, so that elements that are not written show."""
        self._block[:] = 0xA5

    @property
    def is_whole(self) -> bool:
        """Return True if the marks are still there."""
        return bool((self._block[: self._MARGIN] == 0xA5).all() and (self._block[-self._MARGIN :] == 0xA5).all())


def with_weights_in_file(case: KernelCase, workspace: Path) -> ir.Model:
    """The case's kernel with its weights as external tensors in the file ``weights`` of the workspace."""
    import onnx_ir as ir  # late, as in _toolchain_kernels

    model = case.model()
    blob, tensors = b"", {}
    for name, value in case.weights.items():
        start = len(blob)
        blob += value.tobytes()
        shape, dtype = ir.Shape(value.shape), ir.DataType.from_numpy(value.dtype)
        tensors[name] = ir.ExternalTensor(
            "weights", start, value.nbytes, dtype, shape=shape, name=name, base_dir=workspace
        )
    (workspace / "weights").write_bytes(blob)
    for name, tensor in tensors.items():
        model.graph.initializers[name].const_value = tensor
    return model


def _typed(model: ir.Model) -> ir.Model:
    """The model with the types of all its values, as kernels of a compilation have them."""
    import onnx  # late, as in _toolchain_kernels
    import onnx_ir as ir

    typed: ir.Model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))
    return typed


def _load(toolchain: Toolchain, model: ir.Model, target: Target, workspace: Path) -> Kernel:
    compiled = toolchain.compile(model, target, workspace)
    return toolchain.load(compiled, target, workspace, LoadOptions())


def _run(
    toolchain: Toolchain, model: ir.Model, target: Target, workspace: Path, inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    return _load(toolchain, model, target, workspace)(inputs)


def _reference(model: ir.Model, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    import onnx_ir as ir  # late, as in _toolchain_kernels
    from onnx.reference import ReferenceEvaluator

    feeds = {value.name: x for value, x in zip(model.graph.inputs, inputs, strict=True)}
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)]


def _in_child(toolchain: Toolchain, task: Mapping[str, Any], workspace: Path, program: ModuleType) -> dict[str, Any]:
    """Load and run kernels in a new process; return its report about them."""
    kind = type(toolchain)
    (workspace / "task.json").write_text(json.dumps({"toolchain": [kind.__module__, kind.__name__], **task}))
    command = [sys.executable, "-X", "faulthandler", "-m", program.__name__, str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | _source_path())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _source_path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
