from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from collage.graph import DataflowGraph, IndexSet, SubGraph, main_op_type
from collage.measure.kernel_factory import plan_kernel_name
from collage.target import Target


def chain(*op_types: str) -> SubGraph:
    value = helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, [2])
    nodes = [helper.make_node(op_type, [f"v{i}"], [f"v{i + 1}"]) for i, op_type in enumerate(op_types)]
    end = helper.make_tensor_value_info(f"v{len(nodes)}", onnx.TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph(nodes, "g", [value], [end]))
    return SubGraph(DataflowGraph(ir.from_proto(model)), IndexSet((1 << len(nodes)) - 1))


@pytest.mark.parametrize(
    ("number", "count", "op_types", "target", "name"),
    [
        (1, 2, ("Relu", "Conv", "Conv", "Relu", "Relu"), "llvm -compiler=openvino", "openvino_01_Conv2"),
        (12, 130, ("Relu",), "llvm", "tvm_012_Relu"),
        (3, 3, ("Sigmoid", "Tanh"), "llvm -compiler=my-own.tool", "my_own_tool_03_Sigmoid"),
    ],
)
def test_a_name_tells_toolchain_place_and_main_operator(
    number: int, count: int, op_types: tuple[str, ...], target: str, name: str
) -> None:
    assert plan_kernel_name(number, count, chain(*op_types), Target.parse(target)) == name


@pytest.mark.parametrize("count", [9, 99, 300])
def test_names_of_a_plan_differ_within_20_characters(count: int) -> None:
    target, kernel = Target.parse("llvm -compiler=onnxruntime"), chain("LogSoftmax")
    names = {plan_kernel_name(number, count, kernel, target)[:20] for number in range(1, count + 1)}
    assert len(names) == count


def test_the_main_operator_is_the_most_frequent_of_those_that_are_most_work() -> None:
    assert main_op_type(["Add", "Add", "Add", "MatMul", "Conv", "Conv"]) == "Conv"
    assert main_op_type(["Conv", "MatMul"]) == "Conv"
    assert main_op_type(["Relu", "ReduceMean", "Relu"]) == "ReduceMean"
    assert main_op_type(["Relu", "Add", "Add"]) == "Add"
    assert main_op_type([]) == ""
