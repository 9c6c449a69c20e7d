"""Small artefacts: a kernel in a coarser type is its own source, and no weights are stored that nothing reads.

A partitioned model holds each kernel as the user's floats. The compiled form of a reduced kernel is plain ONNX with weights of
few bits. Here it becomes the kernel's function in the model too. Kernels and model then refer to the same weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from collage.frontend import place_weights_once
from collage.graph import GLOBAL_SYMBOL, KernelCall, NameSupply, copy_model, kernels_of, remove_unused_initializers
from collage.runtime._recipe import WEIGHTS, Recipe
from collage.target import Target
from collage.toolchains import Compiled

__all__ = ["write_condensed"]

_MODEL = ".onnx"
_DATA = ".data"
"""End of the name of a file with the weights of a model whose own file would be too large."""


def write_condensed(recipe: Recipe, workspace: Path, empty: Path) -> Recipe:
    """Write the files of a recipe with as few bytes as hold what its kernels, and a rebuild of them, read.

    Args:
        recipe: The recipe.
        workspace: The folder with its files.
        empty: The folder to write to.

    Returns:
        The recipe of the new files.
    """
    names = recipe.files_with_weights(workspace)
    models = {name: ir.load(workspace / name) for name in names if name.endswith(_MODEL)}
    if not _is_known(recipe, models):
        for name in names:
            shutil.copyfile(workspace / name, empty / name)
        return recipe
    model = models[recipe.model_file]
    calls = {str(call.node.name): call for call in kernels_of(model)}
    for kernel in recipe.kernels:
        files = [name for name in kernel.compiled.files if name.endswith(_MODEL)]
        is_own = kernel.compiled.portable and not kernel.compiled.parts and Target.parse(kernel.target).is_reduced
        if is_own and len(files) == 1 and kernel.name in calls:
            _put_in(model, calls[kernel.name], models[files[0]])
    _drop_unused(model)
    for name, placed in zip(models, place_weights_once(list(models.values()), empty), strict=True):
        ir.save(placed, empty / name)
    for name in names:
        if name != WEIGHTS and not name.endswith((_MODEL, _DATA)):
            shutil.copyfile(workspace / name, empty / name)
    if not (empty / WEIGHTS).stat().st_size:
        (empty / WEIGHTS).unlink()
    kernels = [replace(kernel, compiled=_refiled(kernel.compiled, empty)) for kernel in recipe.kernels]
    return replace(recipe, kernels=tuple(kernels))


def _is_known(recipe: Recipe, models: Mapping[str, ir.Model]) -> bool:
    """Return True if only ONNX files, and no bodies in them, refer to weights. Elsewhere their places may not change."""
    leaves = [leaf for kernel in recipe.kernels for leaf in kernel.compiled.leaves if WEIGHTS in leaf.files]
    if any(not name.endswith((_MODEL, _DATA)) for leaf in leaves for name in leaf.files if name != WEIGHTS):
        return False
    return not any(
        isinstance(value.const_value, ir.ExternalTensor)
        for model in models.values()
        for graph in model.graph.subgraphs()
        for value in graph.initializers.values()
    )


def _put_in(model: ir.Model, call: KernelCall, kernel: ir.Model) -> None:
    """Make a kernel the function of a call, if the two read the same values and operator sets."""
    given = {str(value.name): value for value in call.node.inputs if value is not None}
    wanted = [str(value.name) for value in kernel.graph.inputs]
    outputs = [value.name for value in kernel.graph.outputs]
    imports = model.graph.opset_imports
    agree = all(imports.get(domain, version) == version for domain, version in kernel.graph.opset_imports.items())
    if not agree or not given.keys() >= set(wanted) or outputs != [value.name for value in call.node.outputs]:
        return
    body, weights = copy_model(kernel).graph, []
    names = NameSupply(reserved=[*given, *model.graph.initializers, *(str(v.name) for v in model.graph.inputs)])
    names.reserve(str(value.name) for node in model.graph for value in node.outputs)
    for name in list(body.initializers):
        weight = body.initializers.pop(name)
        tensor = kernel.graph.initializers[name].const_value
        assert tensor is not None
        value = ir.Value(name=names.fresh(f"{call.node.name}_{name}"), const_value=tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        model.graph.register_initializer(value)
        weight.const_value = None
        body.inputs.append(weight)
        weights.append(value)
    imports.update(kernel.graph.opset_imports)
    function = call.function
    functions = NameSupply(reserved=[name for _, name, _ in model.functions])
    name = functions.fresh(function.name)
    body.metadata_props.update({**function.metadata_props, GLOBAL_SYMBOL: name})
    made = ir.Function(function.domain, name, graph=body, attributes=())
    model.functions[made.identifier()] = made
    node = ir.Node(
        function.domain,
        name,
        [*(given[each] for each in wanted), *weights],
        num_outputs=len(outputs),
        name=call.node.name,
        metadata_props=dict(call.node.metadata_props),
    )
    for old, new in zip(call.node.outputs, node.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        new.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(
        model.graph, call.node, [call.node], [node], call.node.outputs, node.outputs
    )


def _drop_unused(model: ir.Model) -> None:
    """Drop the functions that no call is left of, and initializers that nothing reads."""
    used, waiting = set[ir.OperatorIdentifier](), [model.graph]
    while waiting:
        for node in waiting.pop().all_nodes():
            if (identifier := node.op_identifier()) in model.functions and identifier not in used:
                used.add(identifier)
                waiting.append(model.functions[identifier].graph)
    for identifier in set(model.functions) - used:
        del model.functions[identifier]
    remove_unused_initializers(model.graph)


def _refiled(compiled: Compiled, folder: Path) -> Compiled:
    """Return a kernel with the files that are there now."""
    kept = [name for name in compiled.files if name != WEIGHTS and not name.endswith(_DATA)]
    more = [WEIGHTS] if any(name.endswith(_MODEL) for name in kept) and (folder / WEIGHTS).exists() else []
    parts = tuple(_refiled(part, folder) for part in compiled.parts)
    return replace(compiled, files=(*kept, *more), parts=parts)
