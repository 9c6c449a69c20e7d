"""A model file as it stands: run by ONNX Runtime without graph optimisations, else by ONNX's reference evaluator.

Nothing of Collage's own reading or preparation takes part, so that these can be checked against it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains.onnxruntime.toolchain import from_ort, narrow_type, to_ort
from collage.toolchains.sdk.model_files import one_line

if TYPE_CHECKING:
    import onnx

    from collage.toolchains._contract import Tensor

__all__ = ["OriginalSession", "UnoptimisedModel", "repeatable_threads", "run_session"]

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_SILENT = 4


class UnoptimisedModel:
    """A model file that returns its outputs and inner values.

    Args:
        path: An ONNX file; its external data lies where it says, beside the file.

    Raises:
        Unsupported: Neither evaluator reads the file.

    Attributes:
        evaluator: The name and version of the evaluator that runs it.
        inputs: Names of its inputs.
        outputs: Names of its outputs, in order.
        values: Names of the values that it can return.
    """

    def __init__(self, path: Path) -> None:
        import onnx

        try:
            proto = onnx.load(path, load_external_data=False)
        except Exception as error:
            raise Unsupported(f"onnx: {one_line(error)}") from error
        self.outputs = [value.name for value in proto.graph.output]
        made = [name for node in proto.graph.node for name in node.output if name]
        self._evaluator: _OnnxRuntime | _Reference
        try:
            self._evaluator = _OnnxRuntime(path, proto, [name for name in made if name not in self.outputs])
        except Exception as refusal:
            try:
                self._evaluator = _Reference(path)
            except Exception as error:
                reasons = f"onnxruntime: {one_line(refusal)}; ONNX's reference evaluator: {one_line(error)}"
                raise Unsupported(reasons) from error
        self.evaluator = self._evaluator.name
        self.inputs = self._evaluator.inputs
        self.values = {*self._evaluator.more, *self.outputs}

    def run(self, feeds: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Any]:
        """Return the values with these names, for inputs by name; inputs that the file gives a default may be absent."""
        with np.errstate(all="ignore"):
            return self._evaluator.run(feeds, list(dict.fromkeys(names)))


class OriginalSession:
    """A model file on ONNX Runtime's CPU provider with its defaults, as most users run it.

    Args:
        path: An ONNX file.
        threads: Threads to use; 0 is ONNX Runtime's default.

    Attributes:
        inputs: Names of its inputs.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = threads
        try:
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise Unsupported(f"onnxruntime: {one_line(error)}") from error
        self.inputs = [port.name for port in self._session.get_inputs()]
        self._outputs = [port.name for port in self._session.get_outputs()]
        ports = (*self._session.get_inputs(), *self._session.get_outputs())
        self._narrow = {port.name: narrow for port in ports if (narrow := narrow_type(port.type)) is not None}

    def run(self, feeds: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Return the outputs by name, for inputs by name."""
        try:
            return run_session(self._session, feeds, self._outputs, self._narrow)
        except Exception as error:
            raise CompileError(f"onnxruntime: {one_line(error)}") from error


def repeatable_threads(nodes: Iterable[onnx.NodeProto]) -> int:
    """Return the threads with which ONNX Runtime runs operators repeatably; 0 is its default.

    It is 1 for a ``ScatterND``, since several threads lose updates where points are equal.
    """
    from collage.frontend import all_nodes  # Late: it imports the libraries that read models.

    return 1 if any(node.op_type == "ScatterND" for node in all_nodes(nodes)) else 0


def run_session(
    session: Any, feeds: Mapping[str, Tensor], names: Sequence[str], narrow: Mapping[str, Any]
) -> dict[str, Any]:
    """Return values of a session by name; ``narrow`` holds the types that NumPy lacks, by name."""
    if narrow.keys().isdisjoint((*feeds, *names)):
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
    given = {name: to_ort(x, narrow.get(name)) for name, x in feeds.items()}
    results = session._sess.run_with_ort_values(given, names, None)
    return {name: from_ort(value, narrow.get(name)) for name, value in zip(names, results, strict=True)}


class _OnnxRuntime:
    """A session without graph optimisations, whose outputs are all values where ONNX Runtime takes them as outputs."""

    def __init__(self, path: Path, proto: onnx.ModelProto, more: Sequence[str]) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = repeatable_threads(proto.graph.node)
        providers = ["CPUExecutionProvider"]
        self.name = f"onnxruntime {ort.__version__} without graph optimisations"
        proto.graph.output.extend(type(proto.graph.output[0])(name=name) for name in more)
        try:
            options.add_session_config_entry(_WEIGHTS_FOLDER, os.fspath(path.parent))
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=providers)
            self.more = list(more)
        except Exception:
            # Some operators declare results that they never make, and weights behind links are found from the file alone.
            options.add_session_config_entry(_WEIGHTS_FOLDER, "")
            self._session = ort.InferenceSession(path, options, providers=providers)
            self.more = []
        self._session.disable_fallback()
        self.inputs = [port.name for port in self._session.get_inputs()]
        self.inputs += [port.name for port in self._session.get_overridable_initializers()]
        ports = (*self._session.get_inputs(), *self._session.get_outputs())
        self._narrow = {port.name: narrow for port in ports if (narrow := narrow_type(port.type)) is not None}

    def run(self, feeds: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Any]:
        return run_session(self._session, feeds, names, self._narrow)


class _Reference:
    """ONNX's own implementation in Python: slow, and defined for every standard operator of every version."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load(path)
        self.name = f"onnx {onnx.__version__} reference evaluator"
        self._evaluator = ReferenceEvaluator(proto)
        self.inputs = list(self._evaluator.input_names)
        self.more = [name for node in proto.graph.node for name in node.output if name]

    def run(self, feeds: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Any]:
        found = self._evaluator.run(None, dict(feeds), intermediate=True)
        return {name: found[name] for name in names if name in found}
