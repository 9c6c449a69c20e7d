"""The vendors' own Python interfaces, as they are used without Collage.

``WHOLE_MODEL`` holds those to a model of the zoo at a number of threads, ``SUITE_CASE`` those to a case of ONNX's backend
suite, and ``KERNEL`` those to the file that a toolchain of Collage compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.zoo import find
from benchmarks.zoo.building import make_sample

from collage.testing.onnx_suite import Runner, with_onnxruntime

Inputs = Mapping[str, np.ndarray]
Call = Callable[[], Any]


def onnxruntime_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))


def onnxruntime_bound(folder: Path, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in inputs.items():
        binding.bind_cpu_input(name, x)
    for port in session.get_outputs():
        binding.bind_output(port.name)
    return lambda: session.run_with_iobinding(binding)


def openvino_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(folder / "model.onnx", "CPU", config).create_infer_request()
    return lambda: request.infer(dict(inputs), share_inputs=True, share_outputs=True)


def tvm_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": threads})
    module = from_onnx(onnx.load(folder / "model.onnx"))
    main = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(x) for x in inputs.values()]
    return lambda: main(*tensors)


def _torch_module(folder: Path, inputs: Inputs, threads: int) -> tuple[Any, tuple[Any, ...]]:
    import torch

    torch.set_num_threads(threads)
    (entry,) = find([folder.name])
    module = make_sample(entry).model
    if not isinstance(module, torch.nn.Module):
        raise TypeError("the zoo's model is no torch module")
    return module.eval(), tuple(torch.from_numpy(x) for x in inputs.values())


def torch_eager(folder: Path, inputs: Inputs, threads: int) -> Call:
    module, tensors = _torch_module(folder, inputs, threads)
    return _without_gradients(module, tensors)


def torch_frozen(folder: Path, inputs: Inputs, threads: int) -> Call:
    import torch

    module, tensors = _torch_module(folder, inputs, threads)
    with torch.no_grad():
        traced = torch.jit.trace(module, tensors, strict=False, check_trace=False)
        return _without_gradients(torch.jit.optimize_for_inference(torch.jit.freeze(traced)), tensors)


def torch_compiled(folder: Path, inputs: Inputs, threads: int) -> Call:
    import torch
    import torch._inductor.config as inductor

    inductor.freezing = True
    module, tensors = _torch_module(folder, inputs, threads)
    return _without_gradients(torch.compile(module), tensors)


def _without_gradients(module: Any, tensors: tuple[Any, ...]) -> Call:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return call


def iree_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import iree.compiler
    import iree.runtime as rt

    tool = Path(iree.compiler.__file__).with_name("_mlir_libs") / "iree-compile"
    settings = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    with tempfile.TemporaryDirectory() as made:
        imported, module = Path(made) / "model.mlir", Path(made) / "model.vmfb"
        importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(folder / "model.onnx")]
        # Its documentation asks for this version or a later one.
        subprocess.run([*importer, "--opset-version=17", "-o", str(imported)], check=True, capture_output=True)
        compiler = [str(tool), str(imported), f"-o={module}", *settings]
        subprocess.run(
            [*compiler, "--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"], check=True, capture_output=True
        )
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        context = rt.SystemContext(config=rt.Config("local-task"))
        context.add_vm_module(rt.VmModule.copy_buffer(context.instance, module.read_bytes()))
    (entry,) = (each for name, each in context.modules.items() if name != "hal")
    (name,) = (name for name in entry.vm_module.function_names if "$" not in name and not name.startswith("__"))
    call = entry[name]
    given = [rt.asdevicearray(context.config.device, x) for x in inputs.values()]

    def run() -> Any:
        outputs = call(*given)
        return [y.to_host() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return run


WHOLE_MODEL: Mapping[str, Mapping[str, Callable[[Path, Inputs, int], Call]]] = {
    "onnxruntime": {"InferenceSession": onnxruntime_itself, "io_binding": onnxruntime_bound},
    "openvino": {"compile_model": openvino_itself},
    "onednn": {"torch eager": torch_eager, "torch frozen": torch_frozen},
    "tvm": {"tvm.compile": tvm_itself},
    "iree": {"iree-compile": iree_itself},
    "inductor": {"torch.compile": torch_compiled},
}
"""Interfaces to whole models, by toolchain. Toolchains that build fast come first."""


def reference_case(model: onnx.ModelProto) -> Runner:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    names = [value.name for value in model.graph.input]
    return lambda inputs: evaluator.run(None, dict(zip(names, inputs, strict=True)))


def openvino_case(model: onnx.ModelProto) -> Runner:
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"LOG_LEVEL": "LOG_NONE"})
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    names = {name for port in compiled.inputs for name in port.get_names()}
    given = [(i, value.name) for i, value in enumerate(model.graph.input)]
    return lambda inputs: list(compiled({name: inputs[i] for i, name in given if name in names}).values())


def tvm_case(model: onnx.ModelProto) -> Runner:
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    machine = relax.VirtualMachine(tvm.compile(from_onnx(model), target="llvm"), tvm.cpu())

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        result = machine["main"](*[tvm.runtime.tensor(np.asarray(x)) for x in inputs])
        return [y.numpy() for y in (result if len(model.graph.output) > 1 else (result,))]

    return run


def iree_case(model: onnx.ModelProto) -> Runner:
    import iree.compiler
    import iree.runtime as rt
    import onnx.shape_inference
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model, data_prop=True))
    module = info.create_module(context=Context()).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    made = iree.compiler.compile_str(str(module), target_backends=["llvm-cpu"], input_type="onnx")
    call = rt.load_vm_flatbuffer(made, driver="local-task")[model.graph.name]

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        outputs = call(*[np.asarray(x) for x in inputs])
        return [y.to_host() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return run


def torch_table_case(model: onnx.ModelProto, compile_it: Callable[[Any, Sequence[Any]], Any] | None = None) -> Runner:
    import torch

    from collage.frontend import read_model
    from collage.transform import prepare
    from collage_torch.ops import Program, from_array, to_array

    program = Program(prepare(read_model(model)))

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        tensors = [from_array(np.asarray(x)) for x in inputs]
        with torch.inference_mode():
            call = program if compile_it is None else compile_it(program, tensors)
            return [to_array(torch.as_tensor(y)) for y in call(*tensors)]

    return run


def torch_compiled_case(model: onnx.ModelProto) -> Runner:
    import torch

    return torch_table_case(model, lambda program, _: torch.compile(program, fullgraph=True))


def torch_exported_case(model: onnx.ModelProto) -> Runner:
    import torch

    def compile_it(program: Any, tensors: Sequence[Any]) -> Any:
        return torch.compile(torch.export.export(program, tuple(tensors), strict=False).module(), fullgraph=True)

    return torch_table_case(model, compile_it)


SUITE_CASE: Mapping[str, Sequence[Callable[[onnx.ModelProto], Runner]]] = {
    "host": (with_onnxruntime, reference_case),
    "tvm": (tvm_case,),
    "onnxruntime": (with_onnxruntime,),
    "openvino": (openvino_case,),
    "onednn": (torch_table_case,),
    "extern": (tvm_case,),
    "iree": (iree_case,),
    "inductor": (torch_exported_case, torch_compiled_case),
}
"""Interfaces to a case of the suite, by toolchain: a case passes if one of them gets it right."""


def onnxruntime_kernel(path: Path, inputs: list[np.ndarray]) -> Callable[[], object]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)
    feeds = dict(zip((port.name for port in session.get_inputs()), inputs, strict=True))
    return lambda: session.run(None, feeds)


def openvino_kernel(path: Path, inputs: list[np.ndarray]) -> Callable[[], object]:
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", config).create_infer_request()
    feeds = dict(enumerate(inputs))
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)


KERNEL: Mapping[str, Callable[[Path, list[np.ndarray]], Call]] = {
    "onnxruntime": onnxruntime_kernel,
    "openvino": openvino_kernel,
}
"""Interfaces to the file of a compiled kernel, by toolchain."""
