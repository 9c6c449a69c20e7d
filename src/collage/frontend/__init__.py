"""The front door: every model is read, bounded, validated and canonicalised here (``docs/security.md``)."""

from __future__ import annotations

from collage.frontend._budget import Budgets
from collage.frontend._canonical import inline_functions, lift_constants, name_everything, remove_unused
from collage.frontend._checker import check_model
from collage.frontend._defaults import decode_default, default_of, default_text
from collage.frontend._demanded import demanded_lengths
from collage.frontend._digest import model_digest
from collage.frontend._given import check_given, with_lengths_of
from collage.frontend._inferable import inferable
from collage.frontend._inputs import FLOATS, RANKS, Floats, check_lengths, make_inputs
from collage.frontend._interface import (
    TensorSpec,
    bind_dims,
    describe_inputs,
    describe_outputs,
    has_telling_name,
    kind_of,
)
from collage.frontend._lengths import (
    cut,
    dimension_name,
    fix_lengths,
    free_dimensions,
    lengths_of,
    other_lengths,
    single_lengths,
)
from collage.frontend._maps import CLASSES, Classes, classes_of
from collage.frontend._misfits import shape_misfit
from collage.frontend._nodes import all_nodes, bodies_of
from collage.frontend._opset import MIN_OPSET, in_opset
from collage.frontend._original import REWRITTEN, write_original
from collage.frontend._outputs import LISTED, listed_outputs
from collage.frontend._probes import PROBES, Probe, probe_inputs
from collage.frontend._proto import forget_claims, skeleton
from collage.frontend._read import as_onnx, read_model
from collage.frontend._sandbox import infer_shapes
from collage.frontend._separate import separate_lengths
from collage.frontend._shape_profiles import Lengths, lengths_as_json, lengths_from_json, shape_profiles
from collage.frontend._similar import similar_inputs
from collage.frontend._weights import WEIGHTS_FILE, place_weights, place_weights_once
from collage.frontend.contrib_ops import (
    has_contrib_ops,
    has_standard_form,
    is_contributed,
    opset_to_write_in,
    standard_form,
)

__all__ = [
    "CLASSES",
    "FLOATS",
    "LISTED",
    "MIN_OPSET",
    "PROBES",
    "RANKS",
    "REWRITTEN",
    "WEIGHTS_FILE",
    "Budgets",
    "Classes",
    "Floats",
    "Lengths",
    "Probe",
    "TensorSpec",
    "all_nodes",
    "as_onnx",
    "bind_dims",
    "bodies_of",
    "check_given",
    "check_lengths",
    "check_model",
    "classes_of",
    "cut",
    "decode_default",
    "default_of",
    "default_text",
    "demanded_lengths",
    "describe_inputs",
    "describe_outputs",
    "dimension_name",
    "fix_lengths",
    "forget_claims",
    "free_dimensions",
    "has_contrib_ops",
    "has_standard_form",
    "has_telling_name",
    "in_opset",
    "infer_shapes",
    "inferable",
    "inline_functions",
    "is_contributed",
    "kind_of",
    "lengths_as_json",
    "lengths_from_json",
    "lengths_of",
    "lift_constants",
    "listed_outputs",
    "make_inputs",
    "model_digest",
    "name_everything",
    "opset_to_write_in",
    "other_lengths",
    "place_weights",
    "place_weights_once",
    "probe_inputs",
    "read_model",
    "remove_unused",
    "separate_lengths",
    "shape_misfit",
    "shape_profiles",
    "similar_inputs",
    "single_lengths",
    "skeleton",
    "standard_form",
    "with_lengths_of",
    "write_original",
]
