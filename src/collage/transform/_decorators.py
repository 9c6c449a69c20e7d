"""Passes from functions and classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

import onnx_ir as ir

from collage._errors import ConfigError
from collage.transform._info import PassInfo
from collage.transform._pass import Pass
from collage.transform._pass_kinds import FunctionPass, FunctionTransform, ModulePass, ModuleTransform
from collage.transform._sequential import Sequential

__all__ = [
    "create_function_pass",
    "create_module_pass",
    "create_sequential_pass",
    "function_pass",
    "module_pass",
]


class PassOptions(TypedDict, total=False):
    """The fields of ``PassInfo`` as arguments of a decorator. The default name is that of the decorated object."""

    name: str
    opt_level: int
    required: Sequence[str]
    invalidates: Sequence[str]


def module_pass(transform: Any = None, **options: Unpack[PassOptions]) -> Any:
    """Make a ``ModulePass`` of a function, or of a class with the method ``transform_module``.

    ::

        @module_pass(opt_level=1)
        def drop_names(model, context):
            for node in model.graph:
                node.name = None
            return model

        model = drop_names(model)

    The function may change the model in place: it is a copy. A decorated class makes passes: its constructor has the
    parameters of the class.

    Raises:
        ConfigError: There is no ``opt_level``, or an option is of the wrong type.
    """
    return _decorate(ModulePass, "transform_module", transform, options)


def function_pass(transform: Any = None, **options: Unpack[PassOptions]) -> Any:
    """Make a ``FunctionPass`` of a function, or of a class with the method ``transform_function``.

    ::

        @function_pass(opt_level=1)
        def relu_to_identity(function, model, context):
            for node in function:
                if node.op_type == "Relu":
                    node.op_type = "Identity"
            return function

    Raises:
        ConfigError: There is no ``opt_level``, or an option is of the wrong type.
    """
    return _decorate(FunctionPass, "transform_function", transform, options)


def create_module_pass(
    name: str, opt_level: int, pass_func: ModuleTransform, required: Sequence[str] = ()
) -> ModulePass:
    """Make a module pass without a decorator.

    Args:
        name: Name of the pass.
        opt_level: The pass runs if the context's level is at least this.
        pass_func: Transforms a model, see ``module_pass``.
        required: Names of passes whose results must hold when it runs.
    """
    return ModulePass(PassInfo(name, opt_level, tuple(required)), pass_func)


def create_function_pass(
    name: str, opt_level: int, pass_func: FunctionTransform, required: Sequence[str] = ()
) -> FunctionPass:
    """Make a function pass without a decorator.

    Args:
        name: Name of the pass.
        opt_level: The pass runs if the context's level is at least this.
        pass_func: Transforms one function, see ``function_pass``.
        required: Names of passes whose results must hold when it runs.
    """
    return FunctionPass(PassInfo(name, opt_level, tuple(required)), pass_func)


def create_sequential_pass(
    name: str, opt_level: int, passes: Iterable[Pass | ir.passes.PassBase], disabled: Iterable[str] = ()
) -> Sequential:
    """Make a sequence with a name, a level and a list of disabled passes.

    Args:
        name: Name of the pass.
        opt_level: The pass runs if the context's level is at least this.
        passes: The members, in order.
        disabled: Names of passes that do not run inside the sequence.
    """
    return Sequential(passes, opt_level, name, disabled=disabled)


def _decorate(kind: type[ModulePass] | type[FunctionPass], method: str, transform: Any, options: PassOptions) -> Any:
    if "opt_level" not in options:
        raise ConfigError("a pass needs a level: @module_pass(opt_level=...), @function_pass(opt_level=...)")
    unknown = options.keys() - PassOptions.__annotations__.keys()
    if unknown:
        raise ConfigError(f"a pass has no option {min(unknown)!r}; known: {', '.join(PassOptions.__annotations__)}")

    def make(target: Any) -> Any:
        info = PassInfo(**{"name": target.__name__, **options})
        return _wrap_class(kind, method, target, info) if isinstance(target, type) else kind(info, target)

    return make if transform is None else make(transform)


def _wrap_class(kind: type[ModulePass] | type[FunctionPass], method: str, inner: type, info: PassInfo) -> type:
    """A subclass of ``kind`` whose instances hold one of ``inner`` and lend it their attributes."""
    if not callable(getattr(inner, method, None)):
        raise ConfigError(f"class {inner.__name__!r} needs a method {method!r} to be a pass")

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        self._inner = inner(*arguments, **options)
        kind.__init__(self, info, getattr(self._inner, method))

    def __getattr__(self: Any, attribute: str) -> Any:
        if attribute == "_inner":
            raise AttributeError(attribute)
        return getattr(self._inner, attribute)

    body = {"__init__": __init__, "__getattr__": __getattr__, "__doc__": inner.__doc__, "__module__": inner.__module__}
    return type(inner.__name__, (kind,), body)
