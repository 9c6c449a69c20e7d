"""Which models the zoo holds, how each is written to ONNX, and why so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Exporter = Literal["torchscript", "dynamo", "direct"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: The folder it is built into, and the name of the function in its family's file that makes it.
        family: The file of this package that holds it.
        exporter: PyTorch's TorchScript exporter, its dynamo exporter, or ``direct``: the family writes ONNX itself.
        opset: Version of the default operator set.
        why: Why this exporter and opset.
        paper: Whether it is one of the five that the Collage paper measures.
    """

    name: str
    family: str
    exporter: Exporter
    opset: int
    why: str
    paper: bool = False


CATALOGUE: tuple[Entry, ...] = (
    Entry("bert", "bert", "dynamo", 18, "what a user of today gets: LayerNormalization kept whole, erf GELU", True),
    Entry("dcgan", "dcgan", "torchscript", 13, "oldest opset that we promise; ConvTranspose and BatchNorm apart", True),
    Entry("nasnet", "nasnet", "torchscript", 17, "BatchNorms folded by the exporter, wide cells as Concat", True),
    Entry("resnet3d50", "resnet", "torchscript", 17, "five-dimensional convolutions, as older exports have them", True),
    Entry("resnext50", "resnet", "dynamo", 18, "grouped convolutions through the newer exporter", True),
    Entry("resnet50", "resnet", "torchscript", 17, "the form in which most ResNets in the wild were exported"),
    Entry("mobilenet_v2", "mobile", "torchscript", 14, "an older opset; ReLU6 as Clip"),
    Entry(
        "efficientnet",
        "mobile",
        "torchscript",
        17,
        "global pools as AveragePool, one wider than its map: not every tool takes it",
    ),
    Entry("inception_v3", "inception", "torchscript", 17, "many branches per block, asymmetric kernels"),
    Entry("gpt2", "gpt2", "dynamo", 18, "causal attention decomposed by the exporter; embeddings are external data"),
    Entry("vit", "vit", "dynamo", 20, "newest opset that we promise: Gelu as one operator"),
    Entry("swin", "swin", "torchscript", 17, "rolls and window partitions as Slice, Concat, Transpose"),
    Entry("convnext", "convnext", "dynamo", 18, "channels-last LayerNorm around large depthwise convolutions"),
    Entry("unet", "unet", "dynamo", 18, "GroupNorm as the newer exporter writes it, cross-attention, skips"),
    Entry("speech", "speech", "torchscript", 17, "keeps GRU as one operator; two-dimensional convolutions before it"),
    Entry(
        "lip_reading", "lip_reading", "torchscript", 17, "Conv3d, then GRU: toolchains disagree which is the easy part"
    ),
    Entry("ocr", "ocr", "torchscript", 17, "keeps bidirectional LSTM as one operator"),
    Entry("centernet", "detector", "torchscript", 16, "TopK, GatherElements and integer arithmetic after a backbone"),
    Entry("ssd", "detector", "direct", 17, "NonMaxSuppression, whose output shape depends on the data"),
    Entry(
        "quantised", "quantised", "direct", 17, "QuantizeLinear and DequantizeLinear pairs by ONNX Runtime's quantiser"
    ),
    Entry("llama_f16", "llama", "dynamo", 18, "float16 throughout; RMSNorm and rotary embeddings in small operators"),
    Entry(
        "graph_network", "graph_network", "torchscript", 16, "ScatterElements with reduction, which opset 16 brought"
    ),
    Entry("super_resolution", "super_resolution", "torchscript", 17, "bicubic Resize and DepthToSpace"),
)


def find(names: Sequence[str]) -> tuple[Entry, ...]:
    """The entries of these names, in their order.

    Raises:
        KeyError: If the zoo holds no such model; its argument is the name.
    """
    by_name = {entry.name: entry for entry in CATALOGUE}
    return tuple(by_name[name] for name in names)
