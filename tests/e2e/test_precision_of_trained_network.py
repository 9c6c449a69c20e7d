"""A network that is trained on data of a package: its accuracy on a test set before and after, within a largest drop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import collage
from collage.system.machine import this_machine
from tests.e2e.conftest import LENT, model_of

MAX_DROP = 0.02
TRAINING, TEST = slice(0, 800), slice(800, None)
SIDE = 24


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    """Return images of handwritten digits, enlarged so that arithmetic takes most of the time, and their classes."""
    found = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = np.kron(found.images.astype(np.float32) / 16, np.ones((SIDE // 8, SIDE // 8), np.float32))
    return images[order, np.newaxis], found.target[order].astype(np.int64)


@pytest.fixture(scope="module")
def trained(digits: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    convolutions = [torch.nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 32), (32, 64), (64, 64))]
    head = torch.nn.Linear(64, 10)
    parameters = [p for layer in (*convolutions, head) for p in layer.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    images, labels = (torch.from_numpy(array[TRAINING]) for array in digits)
    for _ in range(12):
        for batch in torch.randperm(len(labels)).split(50):
            x = images[batch]
            for layer in convolutions:
                x = torch.nn.functional.max_pool2d(torch.relu(layer(x)), 2)
            loss = torch.nn.functional.cross_entropy(head(x.mean((2, 3))), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    nodes, weights = [], {}
    for i, layer in enumerate(convolutions):
        weights |= {f"w{i}": layer.weight.detach().numpy(), f"b{i}": layer.bias.detach().numpy()}
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}", f"b{i}"], [f"c{i}"], name=f"conv_{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu_{i}"))
        pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes.append(helper.make_node("MaxPool", [f"r{i}"], [f"x{i + 1}"], name=f"pool_{i}", **pool))
    weights |= {"head": head.weight.detach().numpy(), "bias": head.bias.detach().numpy()}
    nodes += [
        helper.make_node("GlobalAveragePool", [f"x{len(convolutions)}"], ["p"], name="mean"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "head", "bias"], ["y"], name="head", transB=1),
    ]
    ports = {"x0": (TensorProto.FLOAT, [1, 1, SIDE, SIDE])}, {"y": (TensorProto.FLOAT, [1, 10])}
    path = tmp_path_factory.mktemp("trained") / "digits.onnx"
    onnx.save(model_of(nodes, *ports, weights), path)
    return path


@pytest.mark.slow
@pytest.mark.skipif(not this_machine().multiplies_bytes_at_once, reason="8-bit products are no faster here")
@pytest.mark.parametrize("menu", [["onnxruntime -precision=int8"], ["onnxruntime", "openvino"]], ids=["int8", "any"])
def test_accuracy_on_a_test_set_stays_within_the_largest_drop(
    menu: list[str], trained: Path, digits: tuple[Any, Any], tmp_path: Path
) -> None:
    images, labels = digits
    # Half of what was not trained on is given to the compilation, which never meets the other half.
    count = (len(labels) - TEST.start) // 2
    given, held_out = slice(TEST.start, TEST.start + count), slice(TEST.start + count, None)
    np.savez(tmp_path / "samples.npz", x0=images[given], label=labels[given])
    options = collage.CompileOptions(metric="top1", max_drop=MAX_DROP)
    compiled = collage.compile(trained, menu, options=options, data=tmp_path / "samples.npz", workers=LENT)

    exact = onnxruntime.InferenceSession(trained)
    before = np.mean([exact.run(None, {"x0": x[np.newaxis]})[0].argmax() for x in images[held_out]] == labels[held_out])
    after = np.mean([compiled.run({"x0": x[np.newaxis]})["y"].argmax() for x in images[held_out]] == labels[held_out])
    assert before > 0.9
    assert before - after <= MAX_DROP
    precision = compiled.report["precision"]
    if len(menu) == 1:
        assert precision["operators"] == {"Conv": {"int8": 3}, "Gemm": {"int8": 1}}
    judged = precision["metrics"].get("top1")
    if judged is not None:  # A coarser type won.
        assert judged["drop"] <= judged["interval"][1] <= MAX_DROP
        assert judged["original"] > 0.9
