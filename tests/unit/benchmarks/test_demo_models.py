from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from examples import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, built once; the digit reader is trained for one epoch instead of eight."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "train_mnist", functools.partial(models.train_mnist, epochs=1))
        models.main([str(folder)])
    return folder


def float64_problem() -> tuple[models.Parameters, models.Array, models.Array]:
    rng = np.random.default_rng(3)
    parameters = {name: value.astype(np.float64) for name, value in models.initial_mnist(rng).items()}
    for name in ("conv1_bias", "conv2_bias", "dense_bias"):
        parameters[name] = 0.1 * rng.standard_normal(parameters[name].shape)
    return parameters, rng.random((3, 1, 28, 28)), np.array([1, 4, 9])


@pytest.mark.parametrize("name", list(models.initial_mnist(np.random.default_rng(0))))
def test_gradient_is_the_slope_of_the_loss(name: str) -> None:
    parameters, images, labels = float64_problem()
    _, gradient = models.mnist_loss(parameters, images, labels)
    direction = np.random.default_rng(4).standard_normal(parameters[name].shape)
    step = 1e-6
    above, below = (
        models.mnist_loss({**parameters, name: parameters[name] + sign * step * direction}, images, labels)[0]
        for sign in (1, -1)
    )
    assert gradient[name].shape == parameters[name].shape
    assert np.vdot(gradient[name], direction) == pytest.approx((above - below) / (2 * step), rel=1e-5)


def test_convolution_is_onnx_convolution() -> None:
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(5)
    x, w = rng.random((1, 2, 6, 7), np.float32), rng.random((3, 2, 5, 5), np.float32)
    b = rng.random((3, 1, 1), np.float32)
    node = onnx.parser.parse_graph(
        "g (float[1,2,6,7] x, float[3,2,5,5] w, float[3] b) => (float[1,3,6,7] y) { y = Conv<pads=[2,2,2,2]>(x, w, b) }"
    )
    model = onnx.helper.make_model(node, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "w": w, "b": b.reshape(3)})
    result, _ = models.convolution(x.transpose(1, 0, 2, 3), w, b)
    np.testing.assert_allclose(result.transpose(1, 0, 2, 3), expected, rtol=1e-5)


def test_resizing_keeps_constants_and_ramps() -> None:
    matrix = models.bilinear_matrix(28, 8)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-6)
    ramp = matrix @ np.arange(8)
    np.testing.assert_allclose(np.diff(ramp)[2:-2], 8 / 28, rtol=1e-4)


@pytest.mark.slow
def test_mnist_reads_digits_it_has_never_seen(tmp_path: Path) -> None:
    models.main([str(tmp_path), "--models", "mnist"])
    test = np.load(tmp_path / "digits_test.npz")
    assert models.accuracy(tmp_path / "mnist.onnx", test["images"], test["labels"]) > 0.95


def test_one_epoch_teaches_most_digits(folder: Path) -> None:
    test = np.load(folder / "digits_test.npz")
    assert test["images"].shape == (360, 1, 28, 28)
    assert test["images"].dtype == np.float32
    score = models.accuracy(folder / "mnist.onnx", test["images"], test["labels"])
    assert score > 0.7
    stored = {prop.key: prop.value for prop in onnx.load(folder / "mnist.onnx").metadata_props}
    assert float(stored["test_accuracy"]) == pytest.approx(score, abs=1e-4)


def test_held_out_digits_were_not_trained_on() -> None:
    digits = models.load_digits()
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    trained = {image.tobytes() for image in digits.train_images}
    assert not any(image.tobytes() in trained for image in digits.test_images)


def test_mnist_is_the_network_of_the_rfc(folder: Path) -> None:
    model = onnx.shape_inference.infer_shapes(onnx.load(folder / "mnist.onnx"))
    half = ["Pad", "Conv", "Add", "Relu", "MaxPool"]
    assert [node.op_type for node in model.graph.node] == [*half, *half, "Reshape", "MatMul", "Add"]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    assert shapes["pool1_out"] == [1, 8, 14, 14]
    assert shapes["pool2_out"] == [1, 16, 4, 4]
    assert shapes["flatten_out"] == [1, 256]


def test_resnet50_is_whole_and_calm(folder: Path) -> None:
    model = onnx.load(folder / "resnet50.onnx")
    counts = {op: sum(node.op_type == op for node in model.graph.node) for op in ("Conv", "BatchNormalization", "Add")}
    assert counts == {"Conv": 53, "BatchNormalization": 53, "Add": 16}
    session = onnxruntime.InferenceSession(folder / "resnet50.onnx", providers=["CPUExecutionProvider"])
    image = np.random.default_rng(6).standard_normal((1, 3, 224, 224), np.float32)
    (logits,) = session.run(None, {"image": image})
    assert logits.shape == (1, 1000)
    assert 0.1 < logits.std() < 100


def test_the_enlarging_network_enlarges_by_four(folder: Path) -> None:
    session = onnxruntime.InferenceSession(folder / "enlarge.onnx", providers=["CPUExecutionProvider"])
    image = np.random.default_rng(6).standard_normal((1, 3, 64, 64), np.float32)
    (enlarged,) = session.run(["enlarged"], {"image": image})
    assert enlarged.shape == (1, 3, 256, 256)
    assert 0.1 < enlarged.std() < 100


@pytest.mark.parametrize("name", ["mnist", "resnet50", "enlarge"])
def test_models_are_in_the_format_the_menu_reads(folder: Path, name: str) -> None:
    model = onnx.load(folder / f"{name}.onnx")
    assert model.ir_version == 10
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]


def test_what_is_there_is_left_alone_and_what_was_changed_is_built_again(folder: Path, tmp_path: Path) -> None:
    assert "up to date" in models.build("resnet50", folder)
    for file in folder.glob("resnet50*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    original = (folder / "resnet50.onnx").read_bytes()
    (tmp_path / "resnet50.onnx").write_bytes(original[:-1])
    assert "built" in models.build("resnet50", tmp_path)
    assert (tmp_path / "resnet50.onnx").read_bytes() == original


def test_unknown_model_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        models.main([str(tmp_path), "--models", "vgg"])
    assert "vgg" in capsys.readouterr().err
