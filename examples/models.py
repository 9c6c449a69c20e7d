"""Build the models of the demo: a trained digit reader, a network of ResNet-50 size, and one that enlarges images.

::

    python examples/models.py OUTDIR

writes ``OUTDIR/mnist.onnx`` with ``OUTDIR/digits_test.npz`` (images and labels it has never seen),
``OUTDIR/resnet50.onnx`` and ``OUTDIR/enlarge.onnx``. What is already there and up to date is left alone. Needs NumPy,
onnx and scikit-learn only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Parameters = dict[str, Array]

OPSET = 17
IR_VERSION = 10
SEED = 20


# -- Writing ONNX ------------------------------------------------------------------------------------------------------


@dataclass
class GraphWriter:
    """Collects nodes and weights, and names every value after the node that makes it."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, name: str, value: Array) -> str:
        """Add an initializer and return its name."""
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of that output."""
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def model(
        self, name: str, input_shape: Sequence[int], output_shape: Sequence[int], output: str = "logits"
    ) -> onnx.ModelProto:
        """Close the graph: float32 input ``image``; what the last node makes is the output."""
        self.nodes[-1].output[0] = output
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, input_shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)],
            self.weights,
        )
        # The helper's default IR version is newer than what runtimes read.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model


# -- The digits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Digits:
    """Images [N, 1, 28, 28] in 0 … 1, float32, and labels [N], int64, of both halves of the split."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def bilinear_matrix(new: int, old: int) -> Array:
    """[new, old] matrix that resamples a line of ``old`` pixels to ``new``, pixel centres aligned, edges held."""
    centres = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(old)[None, :])).astype(np.float32)


def load_digits() -> Digits:
    """The handwritten digits that ship with scikit-learn, resized from 8x8 to 28x28; a fifth is held out."""
    from sklearn.datasets import load_digits as load_from_sklearn
    from sklearn.model_selection import train_test_split

    bunch = load_from_sklearn()
    resize = bilinear_matrix(28, 8)
    small = bunch.images.astype(np.float32) / 16
    images = np.einsum("hi,nij,wj->nhw", resize, small, resize, optimize=True)[:, None]
    split = train_test_split(
        np.ascontiguousarray(images, np.float32),
        bunch.target.astype(np.int64),
        test_size=0.2,
        random_state=SEED,
        stratify=bunch.target,
    )
    return Digits(train_images=split[0], train_labels=split[2], test_images=split[1], test_labels=split[3])


# -- Layers with their gradients ---------------------------------------------------------------------------------------
#
# Each forward function returns its result and a function from the gradient of the loss by that result to the gradients
# by its arguments, so that the backward pass below reads as the forward pass in reverse. Feature maps are [C, N, H, W]
# here: with channels outermost each convolution is one matrix product.


def windows(x: Array) -> Array:
    """[C, N, H, W] padded by two to [C * 25, N * H * W]: the images shifted to each place of a 5x5 kernel."""
    c, _, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    shifted = sliding_window_view(padded, (h, w), axis=(2, 3))
    return shifted.transpose(0, 2, 3, 1, 4, 5).reshape(c * 25, -1)


def convolution(x: Array, weight: Array, bias: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    """Same-size 5x5 convolution: x [C, N, H, W], weight [K, C, 5, 5], bias [K, 1, 1] to [K, N, H, W].

    The gradient by ``x``, which the first layer has no use for, is `convolution_input_gradient`.
    """
    channels = len(weight)
    columns = windows(x)
    y = (weight.reshape(channels, -1) @ columns).reshape(channels, *x.shape[1:]) + bias[:, None]

    def backward(dy: Array) -> tuple[Array, Array]:
        d_weight = dy.reshape(channels, -1) @ columns.T
        return d_weight.reshape(weight.shape), dy.sum(axis=(1, 2, 3)).reshape(bias.shape)

    return y, backward


def convolution_input_gradient(dy: Array, weight: Array) -> Array:
    """Again a convolution: of ``dy`` with the mirrored weights, input and output channels exchanged."""
    mirrored = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    return convolution(dy, mirrored, np.zeros((len(mirrored), 1, 1), dy.dtype))[0]


def relu(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Elementwise max(x, 0)."""
    return np.maximum(x, 0), lambda dy: dy * (x > 0)


def max_pool(x: Array, size: int) -> tuple[Array, Callable[[Array], Array]]:
    """Disjoint ``size`` x ``size`` maxima of [C, N, H, W]; rows and columns that fill no window are dropped."""
    c, n, h, w = x.shape
    rows, columns = h // size, w // size
    tiles = x[:, :, : rows * size, : columns * size].reshape(c, n, rows, size, columns, size)
    flat = tiles.transpose(0, 1, 2, 4, 3, 5).reshape(c, n, rows, columns, size * size)
    winners = flat.argmax(axis=-1)[..., None]

    def backward(dy: Array) -> Array:
        d_flat = np.zeros_like(flat)
        np.put_along_axis(d_flat, winners, dy[..., None], axis=-1)
        d_tiles = d_flat.reshape(c, n, rows, columns, size, size).transpose(0, 1, 2, 4, 3, 5)
        dx = np.zeros_like(x)
        dx[:, :, : rows * size, : columns * size] = d_tiles.reshape(c, n, rows * size, columns * size)
        return dx

    return np.take_along_axis(flat, winners, axis=-1)[..., 0], backward


def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean loss over the batch, and its gradient by the logits [N, 10]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    return -float(log_probabilities[rows, labels].mean()), gradient / len(labels)


# -- The MNIST network of the Collage RFC -----------------------------------------------------------------------------


def initial_mnist(rng: np.random.Generator) -> Parameters:
    """He-initialised weights and zero biases."""

    def he(*shape: int, fan_in: int) -> Array:
        return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    return {
        "conv1_weight": he(8, 1, 5, 5, fan_in=25),
        "conv1_bias": np.zeros((8, 1, 1), np.float32),
        "conv2_weight": he(16, 8, 5, 5, fan_in=200),
        "conv2_bias": np.zeros((16, 1, 1), np.float32),
        "dense_weight": he(256, 10, fan_in=256),
        "dense_bias": np.zeros((1, 10), np.float32),
    }


def mnist_loss(p: Parameters, images: Array, labels: Array) -> tuple[float, Parameters]:
    """Mean loss of a batch of images [N, 1, 28, 28] and its gradient by every parameter."""
    x1, back_conv1 = convolution(images.transpose(1, 0, 2, 3), p["conv1_weight"], p["conv1_bias"])
    x2, back_relu1 = relu(x1)
    x3, back_pool1 = max_pool(x2, 2)
    x4, back_conv2 = convolution(x3, p["conv2_weight"], p["conv2_bias"])
    x5, back_relu2 = relu(x4)
    x6, back_pool2 = max_pool(x5, 3)
    x7 = x6.transpose(1, 0, 2, 3).reshape(len(images), 256)
    loss, d_logits = softmax_cross_entropy(x7 @ p["dense_weight"] + p["dense_bias"], labels)

    gradient: Parameters = {"dense_weight": x7.T @ d_logits, "dense_bias": d_logits.sum(axis=0, keepdims=True)}
    d6 = (d_logits @ p["dense_weight"].T).reshape(-1, 16, 4, 4).transpose(1, 0, 2, 3)
    d4 = back_relu2(back_pool2(d6))
    gradient["conv2_weight"], gradient["conv2_bias"] = back_conv2(d4)
    d1 = back_relu1(back_pool1(convolution_input_gradient(d4, p["conv2_weight"])))
    gradient["conv1_weight"], gradient["conv1_bias"] = back_conv1(d1)
    return loss, gradient


def train_mnist(digits: Digits, epochs: int = 8, batch: int = 48, peak_rate: float = 4e-3) -> Parameters:
    """Adam with a rate that falls linearly to zero."""
    rng = np.random.default_rng(SEED)
    parameters = initial_mnist(rng)
    mean = {name: np.zeros_like(value) for name, value in parameters.items()}
    square = {name: np.zeros_like(value) for name, value in parameters.items()}
    count = len(digits.train_labels)
    steps = epochs * (count // batch)
    step = 0
    for _ in range(epochs):
        order = rng.permutation(count)
        for start in range(0, count - batch + 1, batch):
            chosen = order[start : start + batch]
            _, gradient = mnist_loss(parameters, digits.train_images[chosen], digits.train_labels[chosen])
            rate = peak_rate * (1 - step / steps)
            step += 1
            for name, g in gradient.items():
                mean[name] += 0.1 * (g - mean[name])
                square[name] += 0.001 * (g * g - square[name])
                scaled = mean[name] / (1 - 0.9**step) / (np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8)
                parameters[name] = (parameters[name] - rate * scaled).astype(np.float32)
    return parameters


def mnist_to_onnx(p: Parameters) -> onnx.ModelProto:
    """The thirteen operators of the example in the Collage RFC, [1, 1, 28, 28] to [1, 10]."""
    g = GraphWriter()
    pads = g.weight("pads", np.array([0, 0, 2, 2, 0, 0, 2, 2], np.int64))
    flat = g.weight("flat_shape", np.array([1, 256], np.int64))
    x = "image"
    for index, pool in ((1, 2), (2, 3)):
        weight = g.weight(f"conv{index}_weight", p[f"conv{index}_weight"])
        bias = g.weight(f"conv{index}_bias", p[f"conv{index}_bias"])
        x = g.op("Pad", f"pad{index}", x, pads)
        x = g.op("Conv", f"conv{index}", x, weight, kernel_shape=[5, 5])
        x = g.op("Add", f"bias{index}", x, bias)
        x = g.op("Relu", f"relu{index}", x)
        x = g.op("MaxPool", f"pool{index}", x, kernel_shape=[pool, pool], strides=[pool, pool])
    x = g.op("Reshape", "flatten", x, flat)
    x = g.op("MatMul", "dense", x, g.weight("dense_weight", p["dense_weight"]))
    g.op("Add", "dense_bias_add", x, g.weight("dense_bias", p["dense_bias"]))
    return g.model("mnist", [1, 1, 28, 28], [1, 10])


def accuracy(model_path: Path, images: Array, labels: Array) -> float:
    """Share of the images that the written model reads rightly, one at a time, as a user would run it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
    guesses = [int(session.run(None, {"image": image[None]})[0].argmax()) for image in images]
    return float(np.mean(np.array(guesses) == labels))


def build_mnist(folder: Path) -> str:
    """Train, write ``mnist.onnx`` and ``digits_test.npz``, and say how well it reads."""
    from threadpoolctl import threadpool_limits

    digits = load_digits()
    # One thread: sums are then taken in the same order every time, and the products are too small to share.
    with threadpool_limits(1):
        model = mnist_to_onnx(train_mnist(digits))
    path = folder / "mnist.onnx"
    onnx.save(model, path)
    np.savez(folder / "digits_test.npz", images=digits.test_images, labels=digits.test_labels)
    score = accuracy(path, digits.test_images, digits.test_labels)
    helper.set_model_props(model, {"test_accuracy": f"{score:.4f}"})
    onnx.save(model, path)
    return f"test accuracy {score:.1%} on {len(digits.test_labels)} held-out digits"


# -- ResNet-50 ---------------------------------------------------------------------------------------------------------


@dataclass
class ResNetWriter(GraphWriter):
    """Writes ResNet-50 v1.5 and tracks the mean square of every activation.

    He initialisation doubles the mean square of what a convolution is given; knowing it, BatchNorm gets the statistics
    that training would have left there, and activations keep their scale through all fifty layers.
    """

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    mean_square: dict[str, float] = field(default_factory=dict)

    def conv_norm(self, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """Convolution without bias, then BatchNormalization, to about zero mean and unit variance."""
        c_in, c_out = channels
        rng = self.rng
        std = np.sqrt(2 / (c_in * kernel * kernel))
        weight = (rng.standard_normal((c_out, c_in, kernel, kernel), np.float32) * std).astype(np.float32)
        x_out = self.op(
            "Conv",
            f"{name}_conv",
            x,
            self.weight(f"{name}_weight", weight),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )
        variance = 2 * self.mean_square[x]
        statistics = {
            "scale": rng.uniform(0.8, 1.2, c_out),
            "shift": rng.normal(0, 0.1, c_out),
            "mean": rng.normal(0, 0.1 * np.sqrt(variance), c_out),
            "variance": variance * rng.uniform(0.8, 1.25, c_out),
        }
        names = [self.weight(f"{name}_{key}", value.astype(np.float32)) for key, value in statistics.items()]
        y = self.op("BatchNormalization", f"{name}_norm", x_out, *names, epsilon=1e-5)
        self.mean_square[y] = 1.0
        return y

    def relu(self, name: str, x: str) -> str:
        """Relu, which halves the mean square of what is symmetric about zero."""
        y = self.op("Relu", name, x)
        self.mean_square[y] = self.mean_square[x] / 2
        return y

    def bottleneck(self, name: str, x: str, c_in: int, width: int, stride: int) -> str:
        """1x1, 3x3 (which strides: v1.5), 1x1 to four times the width, plus the shortcut."""
        c_out = 4 * width
        y = self.relu(f"{name}_relu1", self.conv_norm(f"{name}_a", x, (c_in, width), 1))
        y = self.relu(f"{name}_relu2", self.conv_norm(f"{name}_b", y, (width, width), 3, stride))
        y = self.conv_norm(f"{name}_c", y, (width, c_out), 1)
        shortcut = x if c_in == c_out else self.conv_norm(f"{name}_d", x, (c_in, c_out), 1, stride)
        total = self.op("Add", f"{name}_add", y, shortcut)
        self.mean_square[total] = self.mean_square[y] + self.mean_square[shortcut]
        return self.relu(f"{name}_relu3", total)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 v1.5, [1, 3, 224, 224] to [1, 1000], random weights, BatchNormalizations not yet folded."""
    g = ResNetWriter()
    g.mean_square["image"] = 1.0
    stem = g.relu("stem_relu", g.conv_norm("stem", "image", (3, 64), 7, 2))
    x = g.op("MaxPool", "stem_pool", stem, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    g.mean_square[x] = 2 * g.mean_square[stem]
    channels = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 1 else 1
            x = g.bottleneck(f"stage{stage}_block{block}", x, channels, width, stride)
            channels = 4 * width
    x = g.op("Flatten", "flatten", g.op("GlobalAveragePool", "pool", x))
    weight = (g.rng.standard_normal((channels, 1000), np.float32) * 0.01).astype(np.float32)
    bias = np.zeros(1000, np.float32)
    g.op("Gemm", "classifier", x, g.weight("classifier_weight", weight), g.weight("classifier_bias", bias))
    return g.model("resnet50", [1, 3, 224, 224], [1, 1000])


def build_resnet50(folder: Path) -> str:
    """Write ``resnet50.onnx`` and say how large it is."""
    model = resnet50()
    onnx.save(model, folder / "resnet50.onnx")
    parameters = sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)
    return f"{parameters / 1e6:.1f} million random parameters"


# -- Enlarging images --------------------------------------------------------------------------------------------------


def enlarging(width: int = 48, blocks: int = 8) -> onnx.ModelProto:
    """Return a network that enlarges an image by four, [1, 3, 64, 64] to [1, 3, 256, 256], random weights.

    Residual blocks of 3x3 convolutions, bicubic upsampling of the features, and a pixel shuffle; their result is added to the
    bicubic enlargement of the image.
    """
    g, rng = GraphWriter(), np.random.default_rng(SEED)

    def conv(name: str, x: str, c_in: int, c_out: int) -> str:
        std = np.sqrt(2 / (9 * c_in))
        weight = g.weight(f"{name}_weight", (rng.standard_normal((c_out, c_in, 3, 3)) * std).astype(np.float32))
        return g.op("Conv", name, x, weight, g.weight(f"{name}_bias", np.zeros(c_out, np.float32)), pads=[1] * 4)

    def prelu(name: str, x: str) -> str:
        return g.op("PRelu", name, x, g.weight(f"{name}_slope", np.full((width, 1, 1), 0.25, np.float32)))

    def bicubic(name: str, x: str, factor: int) -> str:
        scales = g.weight(f"{name}_scales", np.array([1, 1, factor, factor], np.float32))
        return g.op("Resize", name, x, "", scales, mode="cubic", coordinate_transformation_mode="half_pixel")

    strength = g.weight("strength", np.array(0.2, np.float32))
    x = conv("head", "image", 3, width)
    for block in range(blocks):
        body = prelu(f"block{block}_prelu", conv(f"block{block}_a", x, width, width))
        body = g.op("Mul", f"block{block}_scale", conv(f"block{block}_b", body, width, width), strength)
        x = g.op("Add", f"block{block}_add", x, body)
    x = prelu("refine_prelu", conv("refine", bicubic("upsample", x, 2), width, width))
    detail = g.op("DepthToSpace", "shuffle", conv("tail", x, width, 12), blocksize=2, mode="CRD")
    g.op("Add", "total", bicubic("enlarge", "image", 4), detail)
    return g.model("enlarge", [1, 3, 64, 64], [1, 3, 256, 256], "enlarged")


def build_enlarging(folder: Path) -> str:
    """Write ``enlarge.onnx`` and say how large it is."""
    model = enlarging()
    onnx.save(model, folder / "enlarge.onnx")
    return f"{sum(int(np.prod(weight.dims)) for weight in model.graph.initializer) / 1e6:.2f} million random parameters"


# -- Command line ------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, tuple[Callable[[Path], str], tuple[str, ...]]] = {
    "mnist": (build_mnist, ("mnist.onnx", "digits_test.npz")),
    "resnet50": (build_resnet50, ("resnet50.onnx",)),
    "enlarge": (build_enlarging, ("enlarge.onnx",)),
}


def version() -> str:
    """Digest of this script: a model that another version of it wrote is built again."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def digests(folder: Path, files: Sequence[str]) -> dict[str, str] | None:
    """Digest of each file, or None if one is missing."""
    paths = [folder / file for file in files]
    if not all(path.is_file() for path in paths):
        return None
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def build(name: str, folder: Path) -> str:
    """Build one model unless it is there, unchanged, from this version; return one line that says what happened."""
    builder, files = BUILDERS[name]
    stamp_path = folder / f"{name}.stamp.json"
    if stamp_path.is_file():
        stamp = json.loads(stamp_path.read_text())
        if stamp["version"] == version() and stamp["files"] == digests(folder, files):
            return f"{name}: up to date ({stamp['result']})"
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    result = builder(folder)
    stamp = {"version": version(), "files": digests(folder, files), "result": result}
    stamp_path.write_text(json.dumps(stamp, indent=2) + "\n")
    return f"{name}: built in {time.perf_counter() - started:.1f} s ({result})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Build the models of the demo.")
    parser.add_argument("folder", metavar="OUTDIR", type=Path, help="where the models go")
    parser.add_argument("--models", default=",".join(BUILDERS), help="which of them, separated by commas")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    unknown = sorted(set(names) - set(BUILDERS))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(BUILDERS)}")
    for name in names:
        print(build(name, options.folder), flush=True)


if __name__ == "__main__":
    main()
