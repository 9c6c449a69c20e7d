"""cuDNN's and cuBLAS's kernels, with torch's processor in the place of the device.

What torch has on CUDA only is entered for the processor, from its definition; so groups, geometry, epilogues, the order of
arguments and the contract are tested where there is no GPU. Speed, and what the libraries compute, are for ``make gpu``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.shape_inference
import onnx_ir as ir
import pytest

from collage import CollageError
from collage.graph import COMPOSITE
from collage.runtime import Step
from collage.runtime._device_chain import executor_of
from collage.target import HOST_TARGET, Target
from collage.testing._toolchain_case import _reference
from collage.testing._toolchain_kernels import COMMON, kernel
from collage.toolchains import DeviceKernel, LoadOptions, TargetError, Unsupported, registry
from collage.toolchains.tvm.kernels import import_kernel
from collage_cuda import cuda_support, extern
from collage_cuda import tvm as tvm_cuda
from collage_cuda.cublas import CublasToolchain
from collage_cuda.cuda_library import TorchCudaLibrary
from collage_cuda.cudnn import CudnnToolchain
from collage_extern.functions import ExternLibraries
from collage_extern.lowering import outlined, reader
from collage_extern.toolchain import ExternToolchain

torch = pytest.importorskip("torch")
F = torch.nn.functional
DNN, BLAS = CudnnToolchain(), CublasToolchain()


def _conv(x: Any, w: Any, pad: Any, stride: Any, dilation: Any, groups: int, *_: bool) -> Any:
    return (F.conv2d if w.ndim == 4 else F.conv3d)(x, w, None, stride, pad, dilation, groups)


def _conv_relu(x: Any, w: Any, b: Any, stride: Any, pad: Any, dilation: Any, groups: int) -> Any:
    return (F.conv2d if w.ndim == 4 else F.conv3d)(x, w, b, stride, pad, dilation, groups).relu()


def _conv_add_relu(
    x: Any, w: Any, z: Any, alpha: Any, b: Any, stride: Any, pad: Any, dilation: Any, groups: int
) -> Any:
    return (F.conv2d(x, w, b, stride, pad, dilation, groups) + alpha * z).relu()


def _transposed(x: Any, w: Any, pad: Any, extra: Any, stride: Any, dilation: Any, groups: int, *_: bool) -> Any:
    return (F.conv_transpose2d if w.ndim == 4 else F.conv_transpose3d)(x, w, None, stride, pad, extra, groups, dilation)


def _addmm_activation(b: Any, x: Any, w: Any, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False) -> Any:
    y = beta * b + alpha * (x @ w)
    return F.gelu(y, approximate="tanh") if use_gelu else y.relu()


@pytest.fixture(scope="module", autouse=True)
def cuda_calls_on_the_processor() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution", _conv, "CPU")
    library.impl("cudnn_convolution_relu", _conv_relu, "CPU")
    library.impl("cudnn_convolution_add_relu", _conv_add_relu, "CPU")
    library.impl("cudnn_convolution_transpose", _transposed, "CPU")
    with warnings.catch_warnings(action="ignore"):  # The processor's own computes GELU with erf.
        library.impl("_addmm_activation", _addmm_activation, "CPU")
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def processor_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = cuda_support.Gpu("none", (9, 0), 132, "13.0")
    monkeypatch.setattr(cuda_support, "require_gpu", lambda: gpu)
    monkeypatch.setattr(cuda_support, "cuda_device", lambda: cuda_support.TorchDevice("cpu"))


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loaded(toolchain: TorchCudaLibrary, model: ir.Model, workspace: Path, precision: str = "f32") -> DeviceKernel:
    target = Target.parse(toolchain.targets[0])
    target = target if precision == "f32" else target.with_options(precision=precision)
    made = toolchain.load(toolchain.compile(model, target, workspace), target, workspace, LoadOptions())
    assert isinstance(made, DeviceKernel) and made.capturable
    return made


def check(toolchain: TorchCudaLibrary, text: str, inputs: Sequence[Any], weights: dict[str, Any], folder: Path) -> None:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(kernel("k", text, weights))))
    for precision, tolerance in (("f32", 1e-5), ("tf32", 1e-5), ("f16", 2e-2)):
        got = loaded(toolchain, model, folder, precision)(inputs)
        for y, wanted in zip(got, _reference(model, inputs), strict=True):
            assert y.dtype == wanted.dtype and y.flags.c_contiguous
            np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


CONVOLUTIONS = {
    "plain": ("(float[2,4,9,7] x) => (float[2,6,a,b] y) {y = Conv (x, w)}", (6, 4, 3, 3)),
    "bias": ("(float[2,4,9,7] x) => (float[2,6,a,b] y) {y = Conv (x, w, b)}", (6, 4, 3, 2)),
    "relu": (
        "(float[2,4,9,7] x) => (float[2,6,a,b] y) {c = Conv <pads = [1,1,1,1]> (x, w, b) y = Relu (c)}",
        (6, 4, 3, 3),
    ),
    "relu without bias": ("(float[2,4,9,7] x) => (float[2,6,a,b] y) {c = Conv (x, w) y = Relu (c)}", (6, 4, 3, 3)),
    "strided": (
        "(float[2,4,9,7] x) => (float[2,6,a,b] y) {y = Conv <strides = [2,3], dilations = [2,1], pads = [2,1,2,1]> (x, w, b)}",
        (6, 4, 3, 3),
    ),
    "uneven": ("(float[2,4,9,7] x) => (float[2,6,a,b] y) {y = Conv <pads = [0,1,2,0]> (x, w, b)}", (6, 4, 3, 3)),
    "same": (
        '(float[2,4,9,7] x) => (float[2,6,5,4] y) {y = Conv <auto_pad = "SAME_UPPER", strides = [2,2]> (x, w, b)}',
        (6, 4, 2, 2),
    ),
    "grouped": ("(float[2,4,9,7] x) => (float[2,6,a,b] y) {y = Conv <group = 2> (x, w, b)}", (6, 2, 3, 3)),
    "one dimension": (
        "(float[2,4,20] x) => (float[2,6,a] y) {c = Conv <pads = [2,2]> (x, w, b) y = Relu (c)}",
        (6, 4, 5),
    ),
    "three dimensions": (
        "(float[1,4,5,6,7] x) => (float[1,6,a,b,c] y) {y = Conv <pads = [1,1,1,1,1,1]> (x, w, b)}",
        (6, 4, 3, 3, 3),
    ),
    "residual": (
        "(float[2,6,8,8] x, float[2,6,8,8] z) => (float[2,6,8,8] y) "
        "{c = Conv <pads = [1,1,1,1]> (x, w, b) s = Add (z, c) y = Relu (s)}",
        (6, 6, 3, 3),
    ),
    "transposed": (
        "(float[2,4,5,5] x) => (float[2,6,a,b] y) "
        "{y = ConvTranspose <strides = [2,2], pads = [1,1,1,1], output_padding = [1,0]> (x, w, b)}",
        (4, 6, 3, 3),
    ),
    "transposed, one dimension": (
        "(float[2,4,9] x) => (float[2,6,a] y) {y = ConvTranspose <strides = [3], output_padding = [2]> (x, w, b)}",
        (4, 6, 4),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, tmp_path: Path) -> None:
    text, shape = CONVOLUTIONS[name]
    inputs = [
        numbers(*map(int, part.split("]")[0].split(",")), seed=i)
        for i, part in enumerate(text.split("=>")[0].split("[")[1:])
    ]
    check(DNN, text, inputs, {"w": numbers(*shape, seed=5), "b": numbers(6, seed=6)}, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "(float[4,32] x) => (float[4,16] y) {y = MatMul (x, w)}",
        "(float[4,32] x) => (float[4,16] y) {a = MatMul (x, w) y = Add (a, b)}",
        "(float[2,4,32] x) => (float[2,4,16] y) {a = MatMul (x, w) y = Add (b, a)}",
        "(float[2,4,32] x) => (float[2,4,16] y) {a = MatMul (x, w) c = Add (b, a) y = Relu (c)}",
        '(float[2,4,32] x) => (float[2,4,16] y) {a = MatMul (x, w) c = Add (b, a) y = Gelu <approximate = "tanh"> (c)}',
        "(float[4,32] x) => (float[4,16] y) {a = MatMul (x, w) y = Relu (a)}",
        "(float[4,32] x) => (float[4,16] y) {y = Gemm (x, w, b)}",
        "(float[4,32] x) => (float[4,16] y) {a = Gemm (x, w, b) y = Relu (a)}",
        "(float[4,32] x) => (float[4,16] y) {y = Gemm <transB = 1, alpha = 0.5> (x, v, b)}",
        "(float[4,32] x) => (float[4,16] y) {a = Gemm <transB = 1> (x, v) y = Relu (a)}",
    ],
)
def test_linear_products(text: str, tmp_path: Path) -> None:
    weights = {"w": numbers(32, 16, seed=1), "b": numbers(16, seed=2), "v": numbers(16, 32, seed=3)}
    used = {name: value for name, value in weights.items() if f" {name}" in text.split("=>")[1] or f"({name}" in text}
    check(BLAS, text, [numbers(*map(int, text.split("[")[1].split("]")[0].split(",")))], used, tmp_path)


def test_products_of_two_inputs(tmp_path: Path) -> None:
    text = "(float[2,1,4,8] x, float[3,8,5] z) => (float[2,3,4,5] y) {y = MatMul (x, z)}"
    check(BLAS, text, [numbers(2, 1, 4, 8), numbers(3, 8, 5, seed=1)], {}, tmp_path)
    text = "(float[8,4] x, float[8,5] z, float[4,1] c) => (float[4,5] y) {y = Gemm <transA = 1, beta = 2.0> (x, z, c)}"
    check(BLAS, text, [numbers(8, 4), numbers(8, 5, seed=1), numbers(4, 1, seed=2)], {}, tmp_path)


def test_gelu_with_erf_is_not_the_librarys(tmp_path: Path) -> None:
    text = "(float[4,32] x) => (float[4,16] y) {a = Gemm (x, w, b) y = Gelu (a)}"
    with pytest.raises(Unsupported, match="Gelu"):
        loaded(BLAS, kernel("k", text, {"w": numbers(32, 16), "b": numbers(16)}), tmp_path)


@pytest.mark.parametrize("toolchain", [DNN, BLAS], ids=["cudnn", "cublas"])
def test_the_rest_is_refused_in_a_sentence(toolchain: TorchCudaLibrary, tmp_path: Path) -> None:
    mine = {"cudnn": {"conv_relu"}, "cublas": {"matmul"}}[toolchain.name]
    for case in COMMON:
        if case.name in mine:
            got = loaded(toolchain, case.model(), tmp_path)(case.inputs)
            np.testing.assert_allclose(got[0], _reference(case.model(), case.inputs)[0], rtol=0, atol=1e-4)
        else:
            with pytest.raises(Unsupported) as refusal:
                loaded(toolchain, case.model(), tmp_path)
            assert "\n" not in str(refusal.value)


def test_half_precision_models_are_refused(tmp_path: Path) -> None:
    text = "(float16[4,8] x, float16[8,2] z) => (float16[4,2] y) {y = MatMul (x, z)}"
    with pytest.raises(CollageError, match="f32"):
        loaded(BLAS, kernel("k", text), tmp_path)


def test_torch_is_left_as_it_was_set(tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        case = next(case for case in COMMON if case.name == "matmul")
        loaded(BLAS, case.model(), tmp_path)(case.inputs)
        assert torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.benchmark
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_both_libraries_share_a_chain(tmp_path: Path) -> None:
    weights = {"w": numbers(6, 4, 3, 3), "b": numbers(6, seed=1), "v": numbers(7, 5, seed=2), "c": numbers(5, seed=3)}
    first = "(float[2,4,9,9] x) => (float[2,6,7,7] t) {c = Conv (x, w, b) t = Relu (c)}"
    second = "(float[2,6,7,7] t) => (float[2,6,7,5] y) {a = MatMul (t, v) y = Add (a, c)}"
    models = [kernel("one", first, {k: weights[k] for k in "wb"}), kernel("two", second, {k: weights[k] for k in "vc"})]
    kernels = [loaded(DNN, models[0], tmp_path), loaded(BLAS, models[1], tmp_path)]
    steps = [Step("one", kernels[0], ("x",), ("t",)), Step("two", kernels[1], ("t",), ("y",))]
    executor = executor_of(steps, ["x"], ["y"], None)
    for run in range(3):
        x = numbers(2, 4, 9, 9, seed=run)
        wanted = _reference(models[1], _reference(models[0], [x]))
        np.testing.assert_allclose(executor.run([x])[0], wanted[0], rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("toolchain", "text", "labels"),
    [
        (
            DNN,
            "c = Conv <pads = [1,1,1,1]> (x, w, b) s = Add (c, x) y = Relu (s)",
            {"cudnn.conv_add_relu": 3, "cudnn.conv": 1},
        ),
        (DNN, "c = Conv <pads = [1,1,1,1]> (x, w, b) y = Relu (c)", {"cudnn.conv_relu": 2, "cudnn.conv": 1}),
        (
            BLAS,
            "m = MatMul (x, v) s = Add (m, d) y = Relu (s)",
            {"cublas.linear_relu": 3, "cublas.matmul_bias": 2, "cublas.matmul": 1},
        ),
    ],
)
def test_every_match_of_the_pattern_table_compiles(
    toolchain: TorchCudaLibrary, text: str, labels: dict[str, int], tmp_path: Path
) -> None:
    weights = {"w": numbers(4, 4, 3, 3), "b": numbers(4), "v": numbers(9, 9), "d": numbers(9)}
    used = {name: value for name, value in weights.items() if f" {name}" in text or f"{name})" in text}
    model = kernel("k", f"(float[2,4,9,9] x) => (float[2,4,9,9] y) {{{text}}}", used)
    found = {
        row.label: max((len(match.nodes) for match in row.pattern.find_all(model)), default=0)
        for row in toolchain.pattern_table()
    }
    assert {label: count for label, count in found.items() if count} == labels


def test_views_between_two_kernels_stay_on_the_device(tmp_path: Path) -> None:
    weights = {"v": numbers(7, 5, seed=2), "c": numbers(5, seed=3), "s": np.array([7, 14], np.int64)}
    text = "(float[2,7,7] t) => (float[2,7,5] y) {a = MatMul (t, v) y = Add (a, c)}"
    product = kernel("product", text, {k: weights[k] for k in "vc"})
    text = (
        "(float[2,7,7] t) => (float[14,7] y) {a = Transpose <perm = [1,0,2]> (t) b = Reshape (a, s) y = Transpose (b)}"
    )
    views = kernel("views", text, {"s": weights["s"]})
    last = kernel("last", "(float[14,7] t) => (float[14,5] y) {a = MatMul (t, v) y = Relu (a)}", {"v": weights["v"]})
    first = kernel("first", "(float[2,7,3] x, float[3,7] z) => (float[2,7,7] t) {t = MatMul (x, z)}")
    host = registry().for_target(HOST_TARGET)
    compiled = host.compile(views, HOST_TARGET, tmp_path)
    steps = [
        Step("first", loaded(BLAS, first, tmp_path), ("x", "z"), ("t",)),
        Step("views", host.load(compiled, HOST_TARGET, tmp_path, LoadOptions()), ("t",), ("r",)),
        Step("product", loaded(BLAS, product, tmp_path), ("t",), ("p",)),
        Step("last", loaded(BLAS, last, tmp_path), ("r",), ("y",)),
    ]
    executor = executor_of(steps, ["x", "z"], ["y", "p", "r"], None)
    assert len(executor._groups) == 1
    for run in range(3):
        x, z = numbers(2, 7, 3, seed=run), numbers(3, 7)
        t = _reference(first, [x, z])
        r = _reference(views, t)
        wanted = [*_reference(last, r), *_reference(product, t), *r]
        for y, expected in zip(executor.run([x, z]), wanted, strict=True):
            np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


NATIVE_AROUND = (
    "(float[2,4,9,9] x) => (float[2,4,9,3] y) {s = Sigmoid (x) c = Conv <pads = [1,1,1,1]> (s, w, b) r = Relu (c) "
    "t = Tanh (r) m = MatMul (t, v) y = Add (m, d)}"
)


def around() -> ir.Model:
    weights = {"w": numbers(4, 4, 3, 3), "b": numbers(4), "v": numbers(9, 3, seed=1), "d": numbers(3, seed=2)}
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(kernel("around", NATIVE_AROUND, weights))))


def libraries() -> ExternLibraries:
    found = ExternLibraries(())
    for make in (extern.cudnn, extern.cublas):
        found.add(make())
    return found


def test_functions_of_native_cuda_kernels_compute_what_they_stand_for(tmp_path: Path) -> None:
    """The same functions in native code for the processor, where there is no device for that of CUDA."""
    pytest.importorskip("tvm")
    toolchain, target = ExternToolchain(libraries()), Target.parse("llvm -libs=extern")
    compiled = toolchain.compile(around(), target, tmp_path)
    assert [label for label, _ in compiled.metadata["calls"]] == ["cudnn.conv_relu", "cublas.matmul_bias"]
    x = numbers(2, 4, 9, 9, seed=7)
    (got,) = toolchain.load(compiled, target, tmp_path, LoadOptions())([x])
    np.testing.assert_allclose(got, _reference(around(), [x])[0], rtol=0, atol=1e-4)


def test_native_cuda_kernels_call_libraries_for_labelled_parts(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    model = around()
    for node, mark in zip(model.graph, ["", "cudnn.conv#0", "native#1", "", "", ""], strict=True):
        node.metadata_props.update({COMPOSITE: mark} if mark else {})
    toolchain, target = extern.ExternOnCuda(libraries()), Target.parse("cuda -libs=extern-cuda -arch=sm_90")
    compiled = toolchain.compile(model, target, tmp_path)
    assert [label for label, _ in compiled.metadata["calls"]] == ["cudnn.conv"] and not compiled.portable
    assert b"collage.extern.0" in (tmp_path / compiled.files[0]).read_bytes()
    # The loops around the call are code for the device, and one of them is the product.
    rest, calls = outlined(model, libraries())
    built, _ = tvm_cuda.generate(import_kernel(rest, tmp_path, tvm_cuda.machine(target), reader(calls)), target)
    source = "".join(sources_of(built.mod))
    assert {"sigmoid", "tanh", "matmul"} <= set(re.findall("sigmoid|tanh|matmul|conv2d", source))
    assert "conv2d" not in source


@pytest.mark.parametrize("text", ["cuda -libs=extern-cuda -arch=ninety", "cuda -libs=extern-cuda -threads=2"])
def test_native_kernels_with_calls_take_the_options_of_native_kernels(text: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        extern.ExternOnCuda(libraries()).compile(around(), Target.parse(text), tmp_path)


def sources_of(module: Any) -> list[str]:
    own = [str(module.inspect_source())] if module.kind == "cuda" else []
    return own + [text for inner in module.imports for text in sources_of(inner)]
