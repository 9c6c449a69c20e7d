"""The default preparation: the passes that ``compile()`` applies to a model before any search."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import onnx_ir as ir

from collage.transform._eliminate_common_subexpr import EliminateCommonSubexpr
from collage.transform._eliminate_identity import EliminateIdentity
from collage.transform._fold_constant import FoldConstant
from collage.transform._fold_lengths import FoldLengths
from collage.transform._fold_scale_axis import FoldScaleAxis
from collage.transform._infer_type import InferType
from collage.transform._recognise import RecogniseOperators
from collage.transform._resolve_sequences import ResolveSequences
from collage.transform._sequential import Attempt, Repeat, Sequential
from collage.transform._simplify_expr import SimplifyExpr
from collage.transform._simplify_inference import SimplifyInference
from collage.transform._standard import (
    DeadCodeElimination,
    InlineFunctions,
    TopologicalSort,
)

__all__ = ["PREPARE", "code_digest", "default_passes", "prepare"]

_MAX_ROUNDS = 5

PREPARE = "prepare"
"""Name of the default preparation in a pipeline."""


def default_passes() -> Sequential:
    """The default preparation as a sequence; a simplification that fails is skipped."""
    simplify = Sequential(
        [
            Attempt(FoldLengths()),
            Attempt(ResolveSequences()),
            Attempt(FoldConstant()),
            Attempt(SimplifyExpr()),
            Attempt(EliminateCommonSubexpr()),
            Attempt(EliminateIdentity()),
            Attempt(SimplifyInference()),
            Attempt(FoldScaleAxis()),
            Attempt(RecogniseOperators()),
            Attempt(DeadCodeElimination()),
            Attempt(InferType()),
        ],
        name="simplify",
    )
    members = [InlineFunctions(), TopologicalSort(), Attempt(InferType())]
    return Sequential([*members, Repeat(simplify, _MAX_ROUNDS)], name=PREPARE)


def prepare(model: ir.Model) -> ir.Model:
    """Simplifies a model without changing its results.

    Runs ``default_passes`` under the current ``PassContext``. Inputs and outputs keep their names and order; weights
    are shared, and never grow by folding.

    Args:
        model: A model from ``read_model``; it is not changed.

    Returns:
        A model in canonical form, with types and shapes as far as they can be inferred.
    """
    return default_passes()(model)


@functools.cache
def code_digest() -> str:
    """Return a digest of the code that reads and prepares models."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for room in ("frontend", "pattern", "transform"):
        for file in sorted((package / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
