"""The power of the judge: planted faults that it finds, and healthy libraries that it accuses.

    python -m benchmarks.judge MODEL.onnx ... [--with factor=2] [--with gap=inf] [--with margin=0]
    python -m benchmarks.judge --folder DIR "text detector 4" notes nudity ...

The second form takes models of ``benchmarks.real_models``, on the inputs there. Where a fault changes no output by more than the
tolerance, there is nothing to find.

Each fault is planted in one operator of a model. The model runs operator by operator on every set of checking inputs. The
outputs of that operator are judged as kernels are. Beside it stands the yardstick before evidence: 1e-4 of the largest output
of that set. ONNX Runtime with its defaults and OpenVINO run each model as a whole: they are healthy. ``--with`` gives a constant
of the judge another value, which shows what it buys.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from benchmarks.real_models import MODELS, fetched

from collage.frontend import PROBES, free_dimensions, make_inputs, probe_inputs, read_model
from collage.measure import _evidence_worker
from collage.measure._evidence_worker import Witness, settled
from collage.numerics import judge as rules
from collage.numerics import sizes
from collage.numerics.judge import judge
from collage.toolchains import OriginalSession, Perturbation, StepwiseModel

Array = np.ndarray[Any, Any]
Run = Callable[[onnx.NodeProto, Mapping[str, Any]], dict[str, Any]]
TOLERANCE = 1e-4
PLAIN = Perturbation(0)  # Of float32; a planted model perturbs nothing.
NORMALISATIONS = ("BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization")
PRODUCTS = ("Conv", "MatMul", "Gemm")
CONSTANTS = {
    "factor": (rules, "NOISE_FACTOR"),
    "gap": (sizes, "_SLICE_GAP"),
    "margin": (_evidence_worker, "MARGIN"),
}
"""Constants of the judge, and the modules that hold them."""


class Planted(StepwiseModel):
    """A model with a fault in one operator."""

    fault: Callable[[Run, onnx.NodeProto, Mapping[str, Any], int], dict[str, Any]] | None = None
    place: onnx.NodeProto | None = None
    calls = 0
    seen: Mapping[str, Any] = {}

    def _run_node(
        self, node: onnx.NodeProto, operands: Mapping[str, Any], is_computed: bool, run: Any
    ) -> dict[str, Any]:
        if node is not self.place or self.fault is None:
            return self._kernel(node, operands)
        self.seen = dict(operands)
        self.calls += 1
        return self.fault(self._kernel, node, operands, self.calls)


def _with(node: onnx.NodeProto, **attributes: Any) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [attribute for attribute in copy.attribute if attribute.name not in attributes]
    del copy.attribute[:]
    copy.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in attributes.items())])
    return copy


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == name), None)


def _changed(
    run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], change: Callable[[Array], Array]
) -> dict[str, Any]:
    return {name: change(np.array(value)) for name, value in run(node, operands).items()}


def _shifted(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    pads = list(_attribute(node, "pads"))
    half = len(pads) // 2
    return run(_with(node, pads=[pads[0] + 1, *pads[1:half], pads[half] - 1, *pads[half + 1 :]]), operands)


def _narrowed(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    def narrow(x: Any) -> Any:
        return x.astype(ml_dtypes.bfloat16).astype(np.float32) if x.dtype == np.float32 else x

    return run(node, {name: narrow(x) for name, x in operands.items()})


def _stale(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    def change(x: Array) -> Array:
        x[:, :1] = x[:, -1:]
        return x

    return _changed(run, node, operands, change)


def _tail(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    def change(x: Array) -> Array:
        x.reshape(-1)[-3:] = 0.0
        return x

    return _changed(run, node, operands, change)


def _exponential(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    return _changed(run, node, operands, lambda x: x * (1 + 1e-3 * np.sin(1e4 * x).astype(x.dtype)))


def _least_part(run: Run, node: onnx.NodeProto, operands: Mapping[str, Any], call: int) -> dict[str, Any]:
    least = min(operands, key=lambda name: np.abs(operands[name]).max(initial=0))
    return run(node, {**operands, least: operands[least].astype(ml_dtypes.bfloat16).astype(operands[least].dtype)})


FAULTS: Mapping[str, tuple[Callable[[onnx.NodeProto], bool], Callable[..., dict[str, Any]]]] = {
    "epsilon dropped": (
        lambda node: node.op_type in NORMALISATIONS,
        lambda run, node, operands, call: run(_with(node, epsilon=0.0), operands),
    ),
    "padding off by one": (
        lambda node: (
            node.op_type == "Conv" and any(_attribute(node, "pads") or ()) and _attribute(node, "pads")[-1] > 0
        ),
        _shifted,
    ),
    "axis off by one": (
        lambda node: node.op_type in ("Softmax", "LogSoftmax"),
        lambda run, node, operands, call: run(_with(node, axis=1 if _attribute(node, "axis") != 1 else 0), operands),
    ),
    "bf16 in place of f32": (lambda node: node.op_type in PRODUCTS, _narrowed),
    "exponential of 1e-3": (
        lambda node: node.op_type in ("Exp", "Sigmoid", "Softmax", "Tanh", "HardSigmoid"),
        _exponential,
    ),
    "half a pixel": (
        lambda node: node.op_type == "Resize" and _attribute(node, "mode") == b"linear",
        lambda run, node, operands, call: run(_with(node, coordinate_transformation_mode="align_corners"), operands),
    ),
    "one channel stale": (lambda node: node.op_type == "Conv", _stale),
    "bf16 in the smallest part": (lambda node: node.op_type == "Concat", _least_part),
    "tail not written": (lambda node: node.op_type in PRODUCTS, _tail),
    "wrong at the second call": (
        lambda node: node.op_type in PRODUCTS,
        lambda run, node, operands, call: _changed(run, node, operands, lambda x: x * (1.01 if call > 1 else 1)),
    ),
}


def sets_of(path: Path, dims: Sequence[str], real: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield inputs: ordinary ones, which may be real, others unless they are, and all kinds of probing inputs."""
    model = read_model(path)
    free = free_dimensions(model, (), ())
    told = dict(each.split("=", 1) for each in dims)
    lengths = {name: int(length) for name, length in told.items() if name in free}
    first = make_inputs(model, 0, lengths) if real is None else dict(real)
    yield first
    if real is None:
        yield make_inputs(model, 3, lengths)
    for kind in PROBES:
        if (made := probe_inputs(model, kind, first)) is not None:
            yield made


def takes(path: Path, feeds: Mapping[str, Any]) -> bool:
    """Return True if ONNX Runtime runs a model on inputs: probing ones may be such as no model takes."""
    try:
        OriginalSession(path).run(feeds)
    except Exception:
        return False
    return True


def kernel_file(folder: Path, path: Path, node: onnx.NodeProto, operands: Mapping[str, Any]) -> Path:
    """Write one operator as a model of its own."""
    proto = onnx.load(path, load_external_data=False)
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype) for name, x in operands.items()}
    inputs = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "kernel", inputs, outputs)
    made = onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    onnx.save(made, folder / "kernel.onnx")
    return folder / "kernel.onnx"


def why_wrong(
    path: Path,
    feeds: Mapping[str, Any],
    made: Mapping[str, Any],
    right: Mapping[str, Any],
    usual: Mapping[str, Any],
    original: bool,
    beside: Mapping[str, Any],
) -> str | None:
    """Judge as Collage does: by the tolerance, and by evidence where that does not decide."""
    doubtful = [
        name
        for name in right
        if name in made
        and not judge(made[name], right[name], TOLERANCE, usual=usual.get(name), beside=beside.get(name)).ok
    ]
    if not doubtful:
        return None
    witness = Witness(path, is_original=original)
    outputs, references = {n: made[n] for n in doubtful}, {n: right[n] for n in doubtful}
    found = settled(witness, feeds, outputs, references, TOLERANCE, usual, _evidence_worker.MARGIN, beside=beside)
    return next((each.reason for each in found.values() if not each.ok), None)


def by_the_largest(made: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return True if the yardstick before evidence calls outputs wrong."""
    for name, value in right.items():
        if "float" in value.dtype.name and made[name].shape == value.shape:
            with np.errstate(all="ignore"):
                gap, size = np.abs(made[name] - value).max(initial=0), np.abs(value).max(initial=0)
            if not gap <= TOLERANCE * size:
                return True
    return False


def planted(
    path: Path, feeds: Sequence[Mapping[str, Any]], name: str, folder: Path
) -> tuple[str, bool, bool, float] | None:
    """Return the last operator that can hold a fault, if the judge and the old yardstick find it, and what it changes at most.

    A change is relative to the output's size. None if no operator can hold the fault.
    """
    can_hold, fault = FAULTS[name]
    model = Planted(path)
    places = [node for node in model._nodes if can_hold(node)]
    if not places:
        return None
    model.place = node = places[-1]
    names, usual = [each for each in node.output if each], dict[str, Any]()
    model.fault = lambda run, node, operands, call: run(node, operands)
    beside = model.run(feeds[1], names, PLAIN) if len(feeds) > 1 else {}
    is_found, was_found, change = False, False, 0.0
    for number, each in enumerate(feeds):
        model.fault = lambda run, node, operands, call: run(node, operands)
        right = model.run(each, names, PLAIN)
        operands = model.seen
        made = fault(model._kernel, node, operands, number + 1)
        was_found = was_found or by_the_largest(made, right)
        differences = [judge(made[output], right[output], np.inf, usual=usual.get(output)).max_rel for output in names]
        change = max([change, *differences])
        file = kernel_file(folder, path, node, operands)
        is_found = is_found or why_wrong(file, operands, made, right, usual, False, beside) is not None
        usual = usual or right
    return f"{node.op_type} {node.name or node.output[0]}", is_found, was_found, change


def _openvino(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(dict(feeds))
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.output]
    return {name: np.array(found[port]) for name, port in zip(names, compiled.outputs, strict=True)}


HEALTHY: Mapping[str, Callable[[Path, Mapping[str, Any]], Mapping[str, Any]]] = {
    "onnxruntime": lambda path, feeds: OriginalSession(path).run(feeds),
    "openvino": _openvino,
}


def main() -> None:
    """Print a row for each fault and model, and one for each healthy library and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="files, or names of real models")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "collage-real-models")
    parser.add_argument("--dim", action="append", default=[], help="SYMBOL=LENGTH")
    parser.add_argument("--with", action="append", default=[], dest="changed", metavar="CONSTANT=VALUE")
    told = parser.parse_args()
    for name, _, value in (each.partition("=") for each in told.changed):
        module, attribute = CONSTANTS[name]
        setattr(module, attribute, float(value))
    counts = {"found": 0, "found before": 0, "planted": 0, "accused": 0, "accused before": 0, "healthy": 0}
    print(
        "| model | planted, or healthy | found or accused | by the old yardstick | change and operator, or reason |\n"
        "|---|---|---|---|---|"
    )
    for named in told.models:
        real, title = MODELS.get(named), Path(named).stem
        path = Path(named) if real is None else fetched(real, told.folder)
        feeds = [each for each in sets_of(path, told.dim, None if real is None else real.feeds()) if takes(path, each)]
        with tempfile.TemporaryDirectory() as folder:
            for name in FAULTS:
                if (found := planted(path, feeds, name, Path(folder))) is not None:
                    place, is_found, was_found, change = found
                    is_visible = change > TOLERANCE or is_found
                    counts["planted"] += is_visible
                    counts["found"] += is_found
                    counts["found before"] += was_found
                    verdict = _word(is_found) if is_visible else "nothing to find"
                    print(
                        f"| {title} | {name} | {verdict} | {_word(was_found)} | {change:.0e}: {place[:60]} |",
                        flush=True,
                    )
        model = Planted(path)
        for name, run in HEALTHY.items():
            reason, before, usual = None, False, dict[str, Any]()
            beside = model.run(feeds[1], model.outputs, PLAIN) if len(feeds) > 1 else {}
            for each in feeds:
                right = model.run(each, model.outputs, PLAIN)
                try:
                    made = run(path, each)
                except Exception as error:
                    print(f"| {title} | {name} | does not run | | {str(error)[:60]!r} |", flush=True)
                    break
                before = before or by_the_largest(made, right)
                reason = reason or why_wrong(path, each, made, right, usual, True, beside)
                usual = usual or right
            else:
                counts["healthy"] += 1
                counts["accused"] += reason is not None
                counts["accused before"] += before
                print(
                    f"| {title} | {name} | {_word(reason is not None)} | {_word(before)} | {reason or ''} |",
                    flush=True,
                )
    print(
        f"\n{' '.join(told.changed) or 'as it is'}: {counts['found']} of {counts['planted']} planted faults found "
        f"({counts['found before']} by the old yardstick); {counts['accused']} of {counts['healthy']} healthy runs accused "
        f"({counts['accused before']})"
    )


def _word(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    main()
