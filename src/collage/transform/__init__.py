"""The pass infrastructure, after Relay's (``SOURCES.md``), and the generic passes.

::

    from collage import transform

    @transform.module_pass(opt_level=1)
    def rename(model, context):
        model.graph.name = "renamed"
        return model

    with transform.PassContext(opt_level=3, disabled_pass=["EliminateCommonSubexpr"]):
        model = transform.Sequential([transform.InferType(), transform.FoldConstant(), rename])(model)
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from collage.transform._alter_op_layout import AlterOpLayout, Layout, LayoutRequest, register_layout_request
from collage.transform._bisect import bisect_passes
from collage.transform._config import ConfigOption, config_option, list_config_options, register_config_option
from collage.transform._context import PassContext, PassInstrument, build_config
from collage.transform._decorators import (
    create_function_pass,
    create_module_pass,
    create_sequential_pass,
    function_pass,
    module_pass,
)
from collage.transform._diagnostics import Diagnostic, Severity
from collage.transform._effects import is_random
from collage.transform._eliminate_common_subexpr import EliminateCommonSubexpr
from collage.transform._eliminate_identity import EliminateIdentity
from collage.transform._expand_contributed import ExpandContributed, in_standard_operators
from collage.transform._fold_constant import FoldConstant
from collage.transform._fold_lengths import FoldLengths
from collage.transform._fold_scale_axis import BackwardFoldScaleAxis, FoldScaleAxis, ForwardFoldScaleAxis
from collage.transform._infer_type import InferType
from collage.transform._info import PassInfo
from collage.transform._inspect import inspect_passes
from collage.transform._instruments import CrashReproducer, DumpIR, JsonLog, OpCountDiff, PassTimer
from collage.transform._merge_parallel import MergeParallel
from collage.transform._pass import Pass, PassResult, get_pass, list_passes, register_pass
from collage.transform._pass_kinds import FunctionPass, ModulePass
from collage.transform._pass_names import ENTRY_POINT_GROUP
from collage.transform._pipeline import parse_pipeline, simplifying_passes
from collage.transform._prepare import code_digest, default_passes, prepare
from collage.transform._print_ir import PrintIR, model_text
from collage.transform._raise_opset import RaiseOpset
from collage.transform._recognise import (
    RecogniseAttention,
    RecogniseGelu,
    RecogniseLayerNorm,
    RecogniseOperators,
    RecogniseRMSNorm,
)
from collage.transform._resolve_sequences import ResolveSequences
from collage.transform._sequential import Attempt, Repeat, Sequential, sequential
from collage.transform._simplify_expr import SimplifyExpr
from collage.transform._simplify_inference import SimplifyInference
from collage.transform._standard import (
    DeadCodeElimination,
    InlineFunctions,
    ToANormalForm,
    TopologicalSort,
)
from collage.transform._verify import Evaluate, VerifyAfterEach

__all__ = [
    "AlterOpLayout",
    "Attempt",
    "BackwardFoldScaleAxis",
    "ConfigOption",
    "CrashReproducer",
    "DeadCodeElimination",
    "Diagnostic",
    "DumpIR",
    "EliminateCommonSubexpr",
    "EliminateIdentity",
    "Evaluate",
    "ExpandContributed",
    "FoldConstant",
    "FoldLengths",
    "FoldScaleAxis",
    "ForwardFoldScaleAxis",
    "FunctionPass",
    "InferType",
    "InlineFunctions",
    "JsonLog",
    "Layout",
    "LayoutRequest",
    "MergeParallel",
    "ModulePass",
    "OpCountDiff",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PassResult",
    "PassTimer",
    "PrintIR",
    "RaiseOpset",
    "RecogniseAttention",
    "RecogniseGelu",
    "RecogniseLayerNorm",
    "RecogniseOperators",
    "RecogniseRMSNorm",
    "Repeat",
    "ResolveSequences",
    "Sequential",
    "Severity",
    "SimplifyExpr",
    "SimplifyInference",
    "ToANormalForm",
    "TopologicalSort",
    "VerifyAfterEach",
    "bisect_passes",
    "build_config",
    "code_digest",
    "config_option",
    "create_function_pass",
    "create_module_pass",
    "create_sequential_pass",
    "default_passes",
    "function_pass",
    "get_pass",
    "in_standard_operators",
    "inspect_passes",
    "is_random",
    "list_config_options",
    "list_passes",
    "model_text",
    "module_pass",
    "parse_pipeline",
    "prepare",
    "register_config_option",
    "register_layout_request",
    "register_pass",
    "sequential",
    "simplifying_passes",
]

for _standard in (
    AlterOpLayout,
    BackwardFoldScaleAxis,
    DeadCodeElimination,
    EliminateCommonSubexpr,
    EliminateIdentity,
    ExpandContributed,
    FoldConstant,
    FoldLengths,
    FoldScaleAxis,
    ForwardFoldScaleAxis,
    InferType,
    InlineFunctions,
    MergeParallel,
    PrintIR,
    RaiseOpset,
    RecogniseAttention,
    RecogniseGelu,
    RecogniseLayerNorm,
    RecogniseOperators,
    RecogniseRMSNorm,
    ResolveSequences,
    SimplifyExpr,
    SimplifyInference,
    ToANormalForm,
    TopologicalSort,
):
    register_pass(_standard.__name__, _standard)


def __getattr__(name: str) -> Any:
    """Passes of rooms below this one, such as ``CollageFuseOps``: found by entry point, since nothing here imports them."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return entry.load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
