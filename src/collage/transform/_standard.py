"""The standard passes that libraries already implement, with our names, levels and guarantees."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from collage.frontend import remove_unused
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._marks import is_marked, marked_functions_hidden
from collage.transform._pass_kinds import ModulePass
from collage.transform._sequential import Sequential

__all__ = [
    "DeadCodeElimination",
    "InlineFunctions",
    "ToANormalForm",
    "TopologicalSort",
]


class DeadCodeElimination(ModulePass):
    """Drops nodes, initializers, functions and optional outputs that no output depends on, in bodies too."""

    def __init__(self) -> None:
        super().__init__(PassInfo("DeadCodeElimination", opt_level=1))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Drop in place."""
        with marked_functions_hidden(model):
            remove_unused(model)
        common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
        return model


class InlineFunctions(ModulePass):
    """Expands calls of model-local functions that are not marked ``Primitive`` or ``SkipOptimization``."""

    def __init__(self) -> None:
        super().__init__(PassInfo("InlineFunctions", opt_level=1, invalidates=("InferType",)))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Expand in place."""
        common.InlinePass(lambda function: not is_marked(function.metadata_props))(model)
        return model


class TopologicalSort(ModulePass):
    """Sorts the nodes of every graph so that each comes after the producers of its inputs."""

    def __init__(self, name: str = "TopologicalSort") -> None:
        super().__init__(PassInfo(name, opt_level=0))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Sorts in place, stably."""
        common.TopologicalSortPass()(model)
        return model


def ToANormalForm() -> Sequential:
    """Every operator bound to a name, in order. A sorted ONNX graph with names has this form."""
    return Sequential([TopologicalSort(), common.NameFixPass()], name="ToANormalForm")
