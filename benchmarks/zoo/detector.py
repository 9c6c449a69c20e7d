"""Two detectors, down to their boxes: CenterNet (peaks of a heat map, TopK) and SSD (anchors, NonMaxSuppression)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from .building import export
from .sample import Sample, noise, settle

DETECTIONS = 100


def conv(c_in: int, c_out: int, stride: int = 1) -> list[nn.Module]:
    """3x3 convolution, BatchNorm, ReLU."""
    return [nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]


class Backbone(nn.Sequential):
    """[B, 3, S, S] to [B, 256, S / 16, S / 16]."""

    def __init__(self) -> None:
        layers = conv(3, 32, 2)
        for c_in, c_out in ((32, 64), (64, 128), (128, 256)):
            layers += [*conv(c_in, c_out, 2), *conv(c_out, c_out)]
        super().__init__(*layers)


class CenterNet(nn.Module):
    """Each pixel of a heat map per class is a possible centre; the hundred best peaks become boxes."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        up = [nn.ConvTranspose2d(256, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        up += [nn.ConvTranspose2d(64, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        self.features = nn.Sequential(Backbone(), *up)
        self.heat, self.size, self.offset = (
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, c, 1)) for c in (classes, 2, 2)
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.features(image)
        heat = torch.sigmoid(self.heat(features))
        peaks = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        _, _, height, width = heat.shape
        scores, index = peaks.flatten(1).topk(DETECTIONS)
        classes, pixel = index // (height * width), index % (height * width)
        centre = torch.stack([pixel % width, pixel // width], -1).float() + at(self.offset(features), pixel)
        extent = at(self.size(features), pixel).exp() / 2
        return torch.cat([centre - extent, centre + extent], -1), scores, classes


def at(values: Tensor, pixel: Tensor) -> Tensor:
    """[B, C, H, W] read at pixels [B, K] to [B, K, C]."""
    rows = values.flatten(2).transpose(1, 2)
    return rows.gather(1, pixel[:, :, None].expand(-1, -1, rows.shape[2]))


def centernet() -> Sample:
    """[1, 3, 256, 256] to boxes [1, 100, 4], scores [1, 100] and classes [1, 100]."""
    model = settle(CenterNet(), torch.randn(2, 3, 256, 256))
    # As in the published detector, few pixels are centres; and no two scores may tie at one, or TopK's order is open.
    with torch.no_grad():
        model.heat[-1].weight *= 0.3
        model.heat[-1].bias.fill_(-2.2)
    return Sample(model, {"image": noise(1, 3, 256, 256)}, ("boxes", "scores", "classes"))


class Ssd(nn.Module):
    """Boxes and class scores of every anchor at two resolutions, before suppression."""

    def __init__(self, size: int = 256, classes: int = 20, shapes: int = 6) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = Backbone()
        self.extra = nn.Sequential(*conv(256, 256, 2))
        self.boxes = nn.ModuleList(nn.Conv2d(256, 4 * shapes, 3, padding=1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(256, (classes + 1) * shapes, 3, padding=1) for _ in range(2))
        self.register_buffer("anchors", torch.cat([anchor_grid(size // step, shapes) for step in (16, 32)]))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.backbone(image)
        maps = (fine, self.extra(fine))
        offsets = torch.cat([per_anchor(head(x), 4) for head, x in zip(self.boxes, maps, strict=True)], 1)
        logits = [per_anchor(head(x), self.classes + 1) for head, x in zip(self.scores, maps, strict=True)]
        centre = self.anchors[:, :2] + 0.1 * offsets[..., :2] * self.anchors[:, 2:]
        extent = self.anchors[:, 2:] * torch.exp(0.2 * offsets[..., 2:]) / 2
        scores = torch.cat(logits, 1).softmax(-1)[..., 1:]
        return torch.cat([centre - extent, centre + extent], -1), scores.transpose(1, 2)


def anchor_grid(cells: int, shapes: int) -> Tensor:
    """[cells * cells * shapes, 4]: centre and extent of each anchor, as shares of the image."""
    middle = (torch.arange(cells) + 0.5) / cells
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    aspect = torch.linspace(-0.7, 0.7, shapes).exp()
    extent = torch.stack([2 / cells * aspect, 2 / cells / aspect], -1)
    centre = torch.stack([x, y], -1).reshape(-1, 1, 2)
    return torch.cat([centre.expand(-1, shapes, -1), extent.expand(cells * cells, -1, -1)], -1).flatten(0, 1)


def per_anchor(x: Tensor, values: int) -> Tensor:
    """[B, shapes * values, H, W] to [B, H * W * shapes, values]."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, values)


def ssd() -> Sample:
    """[1, 3, 256, 256] to the boxes, scores and classes of as many detections as survive suppression."""
    inputs = {"image": noise(1, 3, 256, 256)}
    raw = Sample(settle(Ssd(), torch.randn(2, 3, 256, 256)), inputs, ("all_boxes", "all_scores"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ssd.onnx"
        export(raw, path, opset=17, dynamo=False)
        model = onnx.load(path)
    append_suppression(model)
    return Sample(model, inputs, ("boxes", "scores", "classes"))


def append_suppression(model: onnx.ModelProto) -> None:
    """Replace the outputs ``all_boxes`` and ``all_scores`` by those that NonMaxSuppression keeps."""
    limits = {"most": np.array([20], np.int64), "overlap": np.array([0.45], np.float32)}
    limits["least_score"] = np.array([0.2], np.float32)
    columns = {"batch_box": np.array([0, 2], np.int64), "class_column": np.array(1, np.int64)}
    graph = model.graph
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (limits | columns).items())
    graph.node.extend(
        [
            helper.make_node(
                "NonMaxSuppression", ["all_boxes", "all_scores", *limits], ["kept"], "suppress", center_point_box=0
            ),
            helper.make_node("Gather", ["kept", "batch_box"], ["kept_boxes"], "kept_boxes", axis=1),
            helper.make_node("GatherND", ["all_boxes", "kept_boxes"], ["boxes"], "boxes"),
            helper.make_node("GatherND", ["all_scores", "kept"], ["scores"], "scores"),
            helper.make_node("Gather", ["kept", "class_column"], ["classes"], "classes", axis=1),
        ]
    )
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["detections", 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["detections"]),
            helper.make_tensor_value_info("classes", TensorProto.INT64, ["detections"]),
        ]
    )
