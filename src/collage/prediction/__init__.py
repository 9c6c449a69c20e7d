"""Predictions of times and gains, learned from the timings and compilations of a database.

``measure/operator_work.py`` states the work of a kernel, which is kept beside its timing. ``train`` makes a ``Predictor``,
which is stored as data: factors on the parts of a time, and regression trees that correct their sum.
"""

from __future__ import annotations

from collage.prediction._compilation import COMPILATION, Compilation
from collage.prediction._features import Rates
from collage.prediction._predictor import (
    PREDICTOR,
    Forecast,
    Held,
    Predictor,
    Range,
    default_predictor,
    range_of,
    usual,
)
from collage.prediction._training import correction, name_of, timings_of, train

__all__ = [
    "COMPILATION",
    "PREDICTOR",
    "Compilation",
    "Forecast",
    "Held",
    "Predictor",
    "Range",
    "Rates",
    "correction",
    "default_predictor",
    "name_of",
    "range_of",
    "timings_of",
    "train",
    "usual",
]
