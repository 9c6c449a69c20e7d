"""Passes: functions from model to model, on whole models or function by function.

Specification 002, "Pass Constructs". The module of the specification is an ``onnx_ir.Model``; its functions are the
main graph, the model-local functions, and the bodies of control flow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import onnx_ir as ir

from collage._errors import CollageError, PassError
from collage.transform._context import PassContext
from collage.transform._draft import Draft, bodies_of, functions_of, main_graph_of, source
from collage.transform._info import PassInfo
from collage.transform._marks import is_marked
from collage.transform._registry import note_name
from collage.transform._runner import Runner, run

__all__ = ["FunctionLike", "FunctionPass", "ModulePass", "Pass", "as_pass"]

FunctionLike = ir.Graph | ir.Function
"""What a function pass works on: the main graph or a body (a Graph), or a model-local function."""

ModuleTransform = Callable[[ir.Model, PassContext], ir.Model]
FunctionTransform = Callable[[FunctionLike, ir.Model, PassContext], FunctionLike]


class Pass(ABC):
    """A function from model to model, with a name and a level.

    Calling a pass leaves the model that it is given unchanged: the pass works on a copy that shares the weights. If
    the context switches the pass off, or the pass looks at nothing, the same model is returned.
    """

    is_traced = True
    """Whether tracing functions see it; sequences are not traced, their members are."""

    def __init__(self, info: PassInfo) -> None:
        note_name(info.name)
        self.info = info

    def __call__(self, model: ir.Model) -> ir.Model:
        """Runs the pass, and what it requires, under the current context.

        Raises:
            PassError: It failed; the message names the pass and its place. Errors of Collage keep their class.
            ConfigError: A required pass is unknown, disabled, or part of a circle.
        """
        return run(self, model)

    @abstractmethod
    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Transforms a model that belongs to the pass, in place or not; called by the runner."""

    @property
    def in_place(self) -> NoReturn:
        """What onnx_ir asks its passes first; ours return a model, theirs a ``PassResult``."""
        raise TypeError(f"use {self.info.name} in a sequence of onnx_ir's by its method to_onnx_ir()")

    def to_onnx_ir(self) -> ir.passes.FunctionalPass:
        """This pass for use inside ``onnx_ir.passes.Sequential`` and ``PassManager``."""
        return _ForOnnxIr(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name!r}, opt_level={self.info.opt_level})"


class ModulePass(Pass):
    """A pass on whole models; it may add and delete functions.

    Made from a function by ``module_pass``, or subclassed with ``transform_module``.
    """

    def __init__(self, info: PassInfo, transform: ModuleTransform | None = None) -> None:
        super().__init__(info)
        self._module_transform = transform

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Transforms a model, in place or not, and returns the result."""
        if self._module_transform is None:
            raise NotImplementedError(f"pass {self.info.name!r} has no transform_module")
        return self._module_transform(model, context)

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Runs ``transform_module``."""
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
        """Transforms a graph or function, in place or not, and returns the result, of the same kind."""
        if self._function_transform is None:
            raise NotImplementedError(f"pass {self.info.name!r} has no transform_function")
        return self._function_transform(function, model, context)

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Runs ``transform_function`` on every function that is not marked."""
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


class _OnnxIrPass(ModulePass):
    """A pass of onnx_ir or onnxscript, used as it is."""

    def __init__(self, inner: ir.passes.PassBase) -> None:
        super().__init__(PassInfo(type(inner).__name__, opt_level=0))
        self._inner = inner

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        return self._inner(model).model


class _ForOnnxIr(ir.passes.FunctionalPass):
    """One of our passes as one of onnx_ir's."""

    def __init__(self, inner: Pass) -> None:
        self._inner = inner

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        result = self._inner(model)
        if result is model:
            draft = Draft(model)
            draft.fill()
            return ir.passes.PassResult(draft, modified=False)
        return ir.passes.PassResult(result, modified=True)


def as_pass(candidate: Any) -> Pass:
    """A pass of ours, or of onnx_ir or onnxscript, as a pass of ours.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(candidate, Pass):
        return candidate
    if isinstance(candidate, ir.passes.PassBase):
        return _OnnxIrPass(candidate)
    raise TypeError(f"{candidate!r} is no pass; decorate functions with module_pass or function_pass")
