"""ONNX Runtime with its defaults; with ``--plain`` without graph optimisations, as the reference of errors."""

import sys

import onnxruntime as ort
from _turns import serve


def prepare(model, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if "--plain" in sys.argv:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds), ort.__version__, {}


serve(prepare)
