"""The assumptions of a compilation in words. They are told before the work, since each changes what is returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from collage.frontend import Lengths, bind_dims, describe_inputs, shape_profiles
from collage.options import CompileOptions
from collage.system.progress import Note
from collage.target import Target

__all__ = ["assumed_lengths", "assumed_options"]

_OBJECTIVES: Mapping[str, str] = {
    "latency": "the latency of one run at a time",
    "throughput": "runs per second with several at once",
    "memory": "the largest resident set",
    "size": "the bytes of the artefact",
}
_RANKS: Mapping[str, str] = {"top1": "top-1", "top5": "top-5", "next-token": "agreement of the next token"}


def assumed_options(options: CompileOptions, menu: Iterable[Target]) -> list[Note]:
    """Return sentences on the objective, the limits, the baseline, the targets and the time."""
    baseline = {
        "none": "nothing",
        "onnxruntime": "the original file on ONNX Runtime with its defaults",
    }.get(options.baseline, f"the whole model on {options.baseline}")
    budget = "no time budget" if options.time_budget_s is None else f"a time budget of {options.time_budget_s:g} s"
    beside = "" if options.neighbour == "none" else f", beside a busy process of {options.neighbour} priority"
    return [
        Note(f"optimised: {_OBJECTIVES[options.objective]}{beside}; compared with {baseline}; {budget}"),
        Note(f"targets: {', '.join(target.short for target in menu)}"),
        Note(f"limits: {'; '.join(_limits(options))}"),
    ]


def _limits(options: CompileOptions) -> Sequence[str]:
    told = [limit.text for limit in options.bounds]
    if options.max_drop is not None:
        metric = options.metric or "top1"
        is_share = metric in _RANKS or metric == "perplexity"
        drop = _percent(options.max_drop) if is_share else f"{options.max_drop:g}"
        told.append(f"{_RANKS.get(metric, metric)} may get worse by {drop}")
    if options.accuracy_budget is not None:
        told.append(f"outputs may differ by {_percent(options.accuracy_budget)} of the largest")
    if options.max_drop is None and options.accuracy_budget is None:
        told.append("outputs may differ by rounding only")
    return told


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def assumed_lengths(model: ir.Model, dims: Lengths, given: Iterable[str]) -> Note | None:
    """Return the sentence on the lengths that everything is timed at; None if all lengths are fixed.

    Args:
        model: The prepared model.
        dims: The lengths of its symbols.
        given: Symbols whose lengths follow from the options of the user.
    """
    given = set(given)
    occasions = []
    open_names: dict[str, None] = {}
    for profile in shape_profiles(dims):
        shapes, lengths = bind_dims(model, profile.dims), dict[str, int]()
        for spec in describe_inputs(model):
            for axis, dim in enumerate(spec.shape or ()):
                if not isinstance(dim, int):
                    lengths[dim or f"{spec.name}[{axis}]"] = shapes[spec.name][axis]
        open_names |= dict.fromkeys(name for name in lengths if name not in given)
        occasions.append(", ".join(f"{name} {length}" for name, length in lengths.items()))
    if not any(occasions):
        return None
    options = f"; assumed: {', '.join(open_names)}; --dim changes it" if open_names else ""
    return Note(f"timed at {' and at '.join(occasions)}{options}")
