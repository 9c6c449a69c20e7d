"""Calibration: samples of real inputs, metrics of answers, and the ranges of activations that 8-bit kernels need."""

from collage.calibration.judge import Judge
from collage.calibration.metrics import BUILT_IN, Estimate, Metric, PythonMetric, find_metric, least_samples
from collage.calibration.ranges import (
    Ranges,
    annotate_ranges,
    collect_ranges,
    mean_axes,
    runs_worker,
    share_outside,
    touches_unbounded,
)
from collage.calibration.samples import CalibrationData, Sample, Split, files_for, open_data, put_values, split_samples
from collage.calibration.weight_rounding import round_weights

__all__ = [
    "BUILT_IN",
    "CalibrationData",
    "Estimate",
    "Judge",
    "Metric",
    "PythonMetric",
    "Ranges",
    "Sample",
    "Split",
    "annotate_ranges",
    "collect_ranges",
    "files_for",
    "find_metric",
    "least_samples",
    "mean_axes",
    "open_data",
    "put_values",
    "round_weights",
    "runs_worker",
    "share_outside",
    "split_samples",
    "touches_unbounded",
]
