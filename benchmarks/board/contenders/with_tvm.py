"""TVM with its default schedules for this processor: no tuning."""

import onnx
import tvm
from _turns import serve
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def prepare(model, feeds):
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    shapes = {name: list(x.shape) for name, x in feeds.items()}
    module = from_onnx(onnx.load(model), shape_dict=shapes)
    main = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(x) for x in feeds.values()]

    def run():
        found = main(*tensors)
        return [y.numpy() for y in ([found] if hasattr(found, "numpy") else found)]

    return run, tvm.__version__, {}


serve(prepare)
