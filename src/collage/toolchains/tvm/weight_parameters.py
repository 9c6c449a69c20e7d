"""Large constants of a module's entry function as its last parameters, so that they need not lie in the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

__all__ = ["lifting_weights"]

_LEAST_BYTES = 256 << 10
"""To read so many bytes from memory takes 10 us, and to pass one more argument 0.2."""


def lifting_weights(weights: list[np.ndarray[Any, Any]]) -> Any:
    """A pass that makes large constants of the entry function its last parameters.

    Args:
        weights: Becomes their values, in the order of the parameters.
    """

    def lift(module: Any, _: Any) -> Any:
        lifter = _Lifter(weights)
        function = lifter.visit_expr(module["main"])
        if weights:
            made = relax.Function(
                [*function.params, *lifter.parameters], function.body, function.ret_ty, function.is_pure, function.attrs
            )
            module[module.get_global_var("main")] = made
        return module

    return tvm.transform.module_pass(lift, opt_level=0)


@relax.expr_functor.mutator
class _Lifter(relax.PyExprMutator):  # type: ignore[misc]
    """Puts a parameter in the place of each large constant."""

    def __init__(self, weights: list[np.ndarray[Any, Any]]) -> None:
        super().__init__()
        weights.clear()
        self._weights = weights
        self._known: dict[Any, Any] = {}
        self.parameters: list[Any] = []

    def visit_generic_const_(self, constant: Any) -> Any:
        """Return the parameter of a constant."""
        if not isinstance(constant.ty, relax.TensorType):
            return constant
        values = constant.value.numpy()
        if values.nbytes < _LEAST_BYTES:
            return constant
        if constant not in self._known:
            self._known[constant] = relax.Var(f"weight_{len(self.parameters)}", constant.ty)
            self.parameters.append(self._known[constant])
            self._weights.append(values)
        return self._known[constant]
