"""The whole model of an artefact as one kernel on ONNX Runtime, for machines that none of its plans fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from collage._errors import ArtefactError
from collage.frontend import listed_outputs, place_weights, read_model
from collage.graph import DataflowGraph, IndexSet, KernelSpec, SubGraph, kernel_model, kernels_of, partition
from collage.report import Report
from collage.runtime._manifest import MANIFEST, manifest_of
from collage.runtime._recipe import KernelRecord, Recipe
from collage.runtime._signature import Port, output_ports
from collage.toolchains import Compiled, Registry, availability_for, importing_here

__all__ = ["write_whole"]

_WHOLE = "onnxruntime"
_KERNEL = "onnxruntime_whole_model"
_MODEL_FILE = "model.onnx"


def write_whole(folder: Path, recipe: Recipe, toolchains: Registry, empty: Path) -> None:
    """Write an artefact that runs the model of another one as one kernel on ONNX Runtime, without compiled code.

    Args:
        folder: The other artefact's folder. Its model passes the checks of every model.
        recipe: Its recipe.
        toolchains: The registry with ONNX Runtime.
        empty: The folder to write to.

    Raises:
        ArtefactError: ONNX Runtime is not usable here, or the model has no operators.
    """
    target = toolchains.parse_target(_WHOLE)
    with importing_here():
        availability = availability_for(toolchains.for_target(target), target)
    if not availability.available:
        raise ArtefactError(f"no plan fits this machine, and {_WHOLE} is not usable here: {availability.reason}")
    model = place_weights(read_model(folder / recipe.model_file), empty)
    graph = DataflowGraph(model)
    if not len(graph):
        raise ArtefactError("no plan fits this machine, and its model has no operators")
    attributes = {"target": str(target), "Compiler": target.toolchain}
    spec = KernelSpec(SubGraph(graph, IndexSet.range(0, len(graph))), _KERNEL, attributes)
    partitioned = partition(model, [spec])
    ir.save(partitioned, empty / _MODEL_FILE)
    (call,) = kernels_of(partitioned)
    kernel = kernel_model(partitioned, call.node, _KERNEL).graph
    inputs, outputs = (tuple(str(value.name) for value in ports) for ports in (kernel.inputs, kernel.outputs))
    whole = Recipe(
        inputs=tuple(Port.of(value) for value in model.graph.inputs),
        outputs=output_ports(model),
        listed=listed_outputs(model),
        kernels=(
            KernelRecord(
                _KERNEL, str(target), inputs, outputs, Compiled(target.toolchain, str(target), (), inputs, outputs)
            ),
        ),
        threads=recipe.threads,
        model_file=_MODEL_FILE,
        model=recipe.model,
        builds={target.build_name: availability.build},
        report=replace(Report(), model=recipe.report.model),
    )
    files = [empty / name for name in whole.files_with_weights(empty)]
    (empty / MANIFEST).write_bytes(manifest_of(whole, files))
