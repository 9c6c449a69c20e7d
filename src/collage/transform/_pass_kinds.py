"""Passes on whole models, and passes on one function at a time.

The functions of a model are the main graph, the model-local functions, and the bodies of control flow.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from collage._errors import CollageError, PassError
from collage.transform._context import PassContext
from collage.transform._draft import bodies_of, functions_of, main_graph_of, source
from collage.transform._info import PassInfo
from collage.transform._marks import is_marked
from collage.transform._pass import Pass, Runner

__all__ = ["FunctionLike", "FunctionPass", "FunctionTransform", "ModulePass", "ModuleTransform"]

FunctionLike = ir.Graph | ir.Function
"""The scope of a function pass: the main graph or a body (a Graph), or a model-local function."""

ModuleTransform = Callable[[ir.Model, PassContext], ir.Model]
FunctionTransform = Callable[[FunctionLike, ir.Model, PassContext], FunctionLike]


class ModulePass(Pass):
    """A pass on whole models; it may add and delete functions.

    Made from a function by ``module_pass``, or subclassed with ``transform_module``.
    """

    def __init__(self, info: PassInfo, transform: ModuleTransform | None = None) -> None:
        super().__init__(info)
        self._module_transform = transform

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Transform a model, in place or not, and return the result."""
        if self._module_transform is None:
            raise NotImplementedError(f"pass {self.info.name!r} has no transform_module")
        return self._module_transform(model, context)

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run ``transform_module``."""
        return self.transform_module(model, runner.context)


class FunctionPass(Pass):
    """A pass on one function at a time: the main graph, its bodies, then each model-local function with its bodies.

    Functions, graphs and bodies whose metadata mark them ``SkipOptimization`` or ``Primitive`` are skipped with all
    bodies inside. Functions cannot be added or deleted.

    Made from a function by ``function_pass``, or subclassed with ``transform_function``.
    """

    def __init__(self, info: PassInfo, transform: FunctionTransform | None = None) -> None:
        super().__init__(info)
        self._function_transform = transform

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Transform a graph or function, in place or not, and return the result, of the same kind."""
        if self._function_transform is None:
            raise NotImplementedError(f"pass {self.info.name!r} has no transform_function")
        return self._function_transform(function, model, context)

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run ``transform_function`` on every function that is not marked."""
        graph = main_graph_of(model)
        result = self._transform(graph, model, runner.context, f"graph {source(graph).name!r}")
        if result is not graph:
            assert isinstance(result, ir.Graph)
            model.graph = result
        for function in functions_of(model):
            name, identifier = source(function).name, source(function).identifier()
            result = self._transform(function, model, runner.context, f"function {name!r}")
            assert isinstance(result, ir.Function)
            if source(result).identifier() != identifier:
                raise PassError(f"function {result.name!r} was renamed, which a function pass cannot do")
            if result is not function:
                model.functions[identifier] = result
        return model

    def _transform(self, function: FunctionLike, model: ir.Model, context: PassContext, place: str) -> FunctionLike:
        if is_marked(source(function).metadata_props):
            return function
        known = list(source(model).functions)
        try:
            result = self.transform_function(function, model, context)
        except CollageError:
            raise
        except Exception as error:
            raise PassError(f"in {place}: {type(error).__name__}: {error}") from error
        expected = ir.Function if isinstance(function, ir.Function) else ir.Graph
        if not isinstance(result, expected):
            raise PassError(f"in {place}: it returned {type(result).__name__}, not a {expected.__name__}")
        if list(source(model).functions) != known:
            raise PassError(f"in {place}: a function pass cannot add or delete functions; use a module pass")
        for body in bodies_of(result):
            replacement = self._transform(body.graph, model, context, f"body {body.name!r} of node {body.node.name!r}")
            if replacement is not body.graph:
                assert isinstance(replacement, ir.Graph)
                body.replace_by(replacement)
        return result
