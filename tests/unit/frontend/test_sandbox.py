"""ONNX's compiled functions in a child process: the same results, and no more than it may take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import onnx
import onnx.shape_inference
import onnx.version_converter
import pytest
from onnx import parser

from collage._errors import ModelError
from collage.frontend import _sandbox as sandbox
from collage.frontend import infer_shapes
from collage.frontend._sandbox import convert_version

_SHAPES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[2, 3, 4] x) => (float[n, m] y) <int64[1] rest = {-1}, int64[1] first = {0}> {
    s = Shape (x)
    b = Gather <axis = 0> (s, first)
    t = Concat <axis = 0> (b, rest)
    y = Reshape (x, t)
}"""


def _vector_model(length: int) -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64[{length}] s) => (int64[n] y) {{ t = Add (s, s) y = Add (t, t) }}"""
    )


def test_shapes_are_those_that_onnx_infers():
    model = parser.parse_model(_SHAPES)
    assert infer_shapes(model) == onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_versions_are_converted_as_onnx_converts_them():
    model = parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 11]>
        g (float[2, 3] x) => (float[2, 1] y) { y = ReduceSum <axes = [1]> (x) }"""
    )
    assert convert_version(model, 13) == onnx.version_converter.convert_version(model, 13)


def test_what_onnx_cannot_convert_is_told_in_its_words():
    model = parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 9]>
        g (float[2, 3] x, float[2] s) => (float[n, m] y) { y = Upsample (x, s) }"""
    )
    with pytest.raises(RuntimeError, match="Unsupported conversion"):
        convert_version(model, 7)


@pytest.mark.parametrize("length", [2**26, 2**31])
def test_too_much_is_refused_and_the_next_model_is_served(length):
    with pytest.raises(ModelError, match="more memory or time"):
        sandbox._call("infer", _vector_model(length), 1)
    assert infer_shapes(_vector_model(5)).graph.value_info[0].type.tensor_type.shape.dim[0].dim_value == 5


def test_long_vectors_keep_their_shapes():
    (value,) = infer_shapes(_vector_model(2**31)).graph.value_info
    assert value.type.tensor_type.shape.dim[0].dim_value == 2**31


def test_memory_that_was_needed_once_is_given_back():
    for _ in range(8):
        sandbox._call("infer", _vector_model(2**18), 1)


def test_a_child_that_was_killed_is_replaced():
    infer_shapes(_vector_model(5))
    process = sandbox._child._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert infer_shapes(_vector_model(5)).graph.value_info


def test_a_request_is_made_again_of_a_child_that_is_killed_meanwhile(monkeypatch):
    def kill(file, data):
        monkeypatch.undo()
        write_all(file, data[:20])
        process = sandbox._child._process
        os.kill(process.pid, signal.SIGKILL)
        killed.append(process)

    killed: list[subprocess.Popen] = []
    write_all = sandbox.write_all
    monkeypatch.setattr(sandbox, "write_all", kill)
    assert infer_shapes(_vector_model(5)).graph.value_info
    assert killed and killed[0].returncode == -signal.SIGKILL


def test_limits_of_the_shell_are_kept():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (600, 600))\n"
        "from tests.unit.frontend import test_sandbox as t\n"
        "t.test_memory_that_was_needed_once_is_given_back(); t.test_shapes_are_those_that_onnx_infers()"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_a_fork_has_a_child_of_its_own():
    infer_shapes(_vector_model(5))
    pid = os.fork()
    if pid == 0:
        fine = sandbox._child._process is None and bool(infer_shapes(_vector_model(5)).graph.value_info)
        sandbox._child._stop()
        os._exit(0 if fine else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert infer_shapes(_vector_model(5)).graph.value_info


def test_contents_are_propagated_only_where_integers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    call = sandbox._call
    monkeypatch.setattr(sandbox, "_call", lambda *request: (asked.append(request[2]), call(*request))[1])
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[2,3] x, float[n] z) => (float[a,b] y)'
    known = parser.parse_model(head + "<int64[2] sizes = {3, 2}> { y = Reshape (x, sizes) }")
    computed = parser.parse_model(head + "{ sizes = Shape (x)  y = Reshape (z, sizes) }")
    for model, dims, arguments in ((known, [3, 2], [0]), (computed, [2, 3], [0, 1])):
        asked.clear()
        (y,) = sandbox.infer_shapes(model).graph.output
        assert [dim.dim_value for dim in y.type.tensor_type.shape.dim] == dims
        assert asked == arguments
