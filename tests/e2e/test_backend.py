"""A sample of ONNX's backend suite: what ONNX Runtime passes alone, we pass. The whole: benchmarks/conformance.py."""

from __future__ import annotations

import pytest

from collage import backend
from collage.testing.onnx_suite import Case, cases, failure, with_onnxruntime

SAMPLE = (
    "test_add_bcast",
    "test_averagepool_2d_same_upper",
    "test_gru_seq_length",
    "test_if",
    "test_if_seq",
    "test_layer_normalization_2d_axis0",
    "test_loop11",
    "test_nllloss_NCd1d2_with_weight_reduction_mean",
    "test_nonmaxsuppression_suppress_by_IOU",
    "test_dynamicquantizelinear",
    "test_isinf_positive",
    "test_reduce_sum_empty_set",
    "test_resize_downsample_sizes_nearest_not_larger",
    "test_resize_upsample_scales_cubic",
    "test_scatter_elements_with_negative_indices",
    "test_sequence_insert_at_front",
    "test_string_split_basic",
    "test_top_k_negative_axis",
    "test_top_k_same_values_2d",
    "test_Conv2d_groups",
)
SLOW = {
    "test_add_bcast",
    "test_averagepool_2d_same_upper",
    "test_if",
    "test_isinf_positive",
    "test_layer_normalization_2d_axis0",
    "test_resize_upsample_scales_cubic",
    "test_scatter_elements_with_negative_indices",
    "test_top_k_negative_axis",
}
"""Cases of kinds that another case of the sample is of, or that other tests compile."""


@pytest.fixture(scope="module")
def suite() -> dict[str, Case]:
    return {case.name: case for case in cases()}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SAMPLE]
)
def test_no_regression_against_onnx_runtime(suite: dict[str, Case], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    assert failure(suite[name], with_onnxruntime) is None  # Or the case says nothing.
    assert failure(suite[name], lambda model: backend.prepare(model).run) is None
