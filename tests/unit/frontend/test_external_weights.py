"""Weights in files: whatever their size, behind links of caches, and never from anywhere but the model's folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from tests.unit.transform.graphs import run

import collage
from collage._errors import ModelError
from collage.frontend import _places, model_digest, place_weights, read_model, write_original

ARRAYS = {
    "nothing": np.zeros((0, 4), np.float32),
    "axes": np.array([0], np.int64),
    "one": np.array(2, np.float32),
    "row": np.arange(4, dtype=np.float32),
    "just_kept": np.arange(256, dtype=np.float32).reshape(64, 4),
    "just_larger": np.arange(260, dtype=np.float32).reshape(65, 4),
    "large": np.linspace(-1, 1, 4096, dtype=np.float32).reshape(-1, 4),
}


def sums() -> onnx.ModelProto:
    """All arrays, one below the other, times what a branch says, which has constants too."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Mul", ["all", f"{name}_w"], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.full((1, size), 3, np.float32), f"{name}_w")],
        )
        for name, size in (("then", 1), ("else", 4))
    }
    nodes = [
        helper.make_node("Unsqueeze", ["row", "axes"], ["r"]),
        helper.make_node("Concat", ["x", "nothing", "r", "just_kept", "just_larger", "large"], ["c"], axis=0),
        helper.make_node("Mul", ["c", "one"], ["all"]),
        helper.make_node("If", ["condition"], ["y"], **branches),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in ARRAYS.items()],
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


INPUTS = {"x": np.ones((2, 4), np.float32), "condition": np.array(False)}


def externally(proto: onnx.ModelProto, folder: Path, *, one_file: bool = True) -> Path:
    """Writes a model all of whose tensors lie in files, those of bodies too, each at an odd place."""
    external = onnx.ModelProto.FromString(proto.SerializeToString())
    graphs = [external.graph, *(a.g for node in external.graph.node for a in node.attribute if a.HasField("g"))]
    for graph in graphs:
        for tensor in graph.initializer:
            data, file = bytes(tensor.raw_data), folder / ("all.bin" if one_file else f"{tensor.name}.bin")
            with file.open("ab") as out:
                out.write(b"#")
                offset = out.tell()
                out.write(data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", file.name), ("offset", str(offset)), ("length", str(len(data)))):
                tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(external.SerializeToString())
    return path


@pytest.mark.parametrize("one_file", [True, False])
def test_where_tensors_lie_makes_no_difference(tmp_path: Path, one_file: bool) -> None:
    proto = sums()
    path = externally(proto, tmp_path, one_file=one_file)
    inline, model = read_model(proto), read_model(path)
    assert model_digest(model) == model_digest(inline)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    placed = place_weights(model, workspace)
    for file in tmp_path.glob("*.bin"):
        file.unlink()
    for name, value in placed.graph.initializers.items():
        tensor = value.const_value
        assert isinstance(tensor, ir.ExternalTensor) == (ARRAYS[name].nbytes >= 1024)
        np.testing.assert_array_equal(tensor.numpy(), ARRAYS[name])
        assert tensor.tobytes() == ARRAYS[name].tobytes()
    ir.save(placed, workspace / "m.onnx")
    (y,) = InferenceSession(workspace / "m.onnx").run(None, INPUTS)
    np.testing.assert_array_equal(y, run(proto, INPUTS)[0])


def test_small_tensors_count_for_shapes_wherever_they_lie(tmp_path: Path) -> None:
    proto = sums()
    assert [str(v.shape) for v in collage.transform.prepare(read_model(externally(proto, tmp_path))).graph.outputs] == [
        str(v.shape) for v in collage.transform.prepare(read_model(proto)).graph.outputs
    ]


def test_small_tensors_of_a_model_in_memory_are_placed_too(tmp_path: Path) -> None:
    for number, count in enumerate((0, 1, 255, 256)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "w.bin").write_bytes(b"####" + np.arange(count, dtype=np.float32).tobytes())
        shape = ir.Shape([count])
        tensor = ir.ExternalTensor("w.bin", 4, 4 * count, ir.DataType.FLOAT, shape=shape, name="w", base_dir=folder)
        value = ir.Value(name="w", const_value=tensor)
        model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], name="g"), ir_version=10)
        placed = place_weights(model, tmp_path).graph.initializers["w"].const_value
        (folder / "w.bin").unlink()
        assert placed is not None
        np.testing.assert_array_equal(placed.numpy(), np.arange(count, dtype=np.float32))


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4, ir.DataType.UINT2])
@pytest.mark.parametrize("count", [3, 6001])
def test_elements_of_every_width_are_read(tmp_path: Path, dtype: ir.DataType, count: int) -> None:
    array = (np.arange(count) % 3).astype(dtype.numpy())
    data = ir.Tensor(array, dtype=dtype).tobytes()
    (tmp_path / "w.bin").write_bytes(b"#" + data)
    shape = ir.Shape([count])
    value = ir.Value(
        name="w",
        const_value=ir.ExternalTensor("w.bin", 1, len(data), dtype, shape=shape, name="w", base_dir=tmp_path),
        type=ir.TensorType(dtype),
        shape=shape,
    )
    node = ir.node("Shape", [value])
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[value], name="g", opset_imports={"": 25})
    tensor = read_model(ir.Model(graph, ir_version=13)).graph.initializers["w"].const_value
    assert tensor is not None and tensor.dtype == dtype and tensor.tobytes() == data
    np.testing.assert_array_equal(tensor.numpy(), array)


def cache(folder: Path) -> Path:
    """A model and its weights as a hub caches them: links into a folder of blobs, which has other names."""
    blobs, snapshot = folder / "net" / "blobs", folder / "net" / "snapshots" / "0a1b" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    externally(sums(), blobs).rename(blobs / "m")
    (blobs / "all.bin").rename(blobs / "d")
    (snapshot / "model.onnx").symlink_to("../../../blobs/m")
    (snapshot / "all.bin").symlink_to("../../../blobs/d")
    return snapshot / "model.onnx"


def check(path: Path) -> None:
    model = read_model(path)
    tensor = model.graph.initializers["large"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy(), ARRAYS["large"])
    assert model_digest(model) == model_digest(read_model(sums()))


def test_weights_behind_links_of_a_cache_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache(tmp_path)
    check(path)
    (tmp_path / "all").symlink_to("net/snapshots")
    check(tmp_path / "all" / "0a1b" / "onnx" / "model.onnx")
    monkeypatch.chdir(path.parent)
    check(Path("model.onnx"))
    model = read_model("model.onnx")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(model.graph.initializers["large"].const_value.numpy(), ARRAYS["large"])


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    path = externally(sums(), tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "all.bin").rename(tmp_path / "real" / "w")
    (tmp_path / "all.bin").symlink_to("real/w")
    check(path)


def test_hard_links_are_read(tmp_path: Path) -> None:
    path = externally(sums(), tmp_path)
    os.link(tmp_path / "all.bin", tmp_path / "another")
    check(path)


def test_hard_links_to_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may write to the folder may link others' files into it, on systems that allow that."""
    path = externally(sums(), tmp_path)
    os.link(tmp_path / "all.bin", tmp_path / "another")
    place = _places.Place.of(path, path.stat())
    monkeypatch.setattr(_places.Place, "of", lambda *_: _places.Place(place.folder, place.target, place.owner + 1))
    with pytest.raises(ModelError, match="second hard link and belongs to another user"):
        read_model(path)


def test_a_link_that_leads_out_is_refused_with_the_reason_and_the_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = externally(sums(), folder)
    (folder / "all.bin").rename(tmp_path / "all.bin")
    (folder / "all.bin").symlink_to("../all.bin")
    with pytest.raises(ModelError, match=r"through a link to '.*/all.bin', outside the folder .* put the file"):
        read_model(path)


def test_a_model_that_is_a_link_does_not_lend_its_place_to_another_file(tmp_path: Path) -> None:
    """The link was changed between the reading of the model and the search for its weights."""
    path = cache(tmp_path)
    other = tmp_path / "elsewhere" / "m"
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    assert _places.Place.of(path, path.stat()).target == (tmp_path / "net" / "blobs").resolve()
    assert _places.Place.of(path, other.stat()).target is None


def test_weights_are_those_that_were_checked(tmp_path: Path) -> None:
    def replace(by: bytes) -> None:
        (tmp_path / "new").write_bytes(by)
        (tmp_path / "new").rename(tmp_path / "all.bin")

    path = externally(sums(), tmp_path)
    data = (tmp_path / "all.bin").read_bytes()
    for read in (ir.ExternalTensor.numpy, lambda t: t.tobytes(), lambda t: t.tofile((tmp_path / "out").open("wb"))):
        tensor = read_model(path).graph.initializers["large"].const_value
        replace(data)
        with pytest.raises(ModelError, match="replaced since"):
            read(tensor)
        tensor = read_model(path).graph.initializers["large"].const_value
        (tmp_path / "all.bin").rename(tmp_path / "moved.bin")
        (tmp_path / "all.bin").symlink_to("moved.bin")
        with pytest.raises(ModelError, match="cannot be read any more"):
            read(tensor)
        replace(data)


def test_a_link_put_in_while_the_file_is_checked_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = externally(sums(), folder)
    (folder / "all.bin").rename(tmp_path / "secret.bin")
    (folder / "all.bin").write_bytes(bytes(2**16))
    resolve = os.path.realpath

    def resolve_and_swap(name: str, *, strict: bool = False) -> str:
        resolved = resolve(name, strict=strict)
        if str(name).endswith("all.bin"):
            (folder / "all.bin").unlink()
            (folder / "all.bin").symlink_to("../secret.bin")
        return str(resolved)

    monkeypatch.setattr(os.path, "realpath", resolve_and_swap)
    with pytest.raises(ModelError, match="cannot be opened"):
        read_model(path)


def test_a_location_that_is_not_unicode_is_read_as_latin_1(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights = np.arange(4096, dtype=np.float32)
    (tmp_path / "wÿ").write_bytes(weights.tobytes())
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4096], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w~")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[4096] x) => (float[4096] y) { y = Add (x, w) }'
    )
    model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"w~", b"w\xff"))
    with pytest.warns(RuntimeWarning, match="Latin-1"):
        (weight,) = read_model(path).graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), weights)
    original = onnx.load(write_original(path, tmp_path_factory.mktemp("copy"), is_rewritten=True))
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(original.graph.initializer[0]), weights)
