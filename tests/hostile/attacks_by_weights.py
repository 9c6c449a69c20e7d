"""Attacks by weights: files that are not the model's to read, and tensors that are not what they say."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hostile.corpus import attack, model, save


def external(location: str, *, elements: int = 4, **entries: str) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "w"], ["y"], name="add")], initializers=[tensor])


def secret(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}-secret.bin"
    path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    return path


@attack
def parent_path(folder):
    return save(external(f"../{secret(folder).name}"), folder)


@attack
def path_that_is_not_unicode(folder):
    path = folder / "model.onnx"
    path.write_bytes(external("weights").SerializeToString().replace(b"weights", b"w\xffights"))
    return path


@attack
def huge_lengths_of_a_tensor_without_elements(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 2**40, 2**40], raw_data=b"")
    return save(model([helper.make_node("Add", ["w", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def hidden_parent_path(folder):
    (folder / "a").mkdir()
    return save(external(f"a/../../{secret(folder).name}"), folder)


@attack
def absolute_path(folder):
    return save(external(str(secret(folder))), folder)


@attack
def proc_environment(folder):
    return save(external("/proc/self/environ"), folder)


@attack
def backslash_path(folder):
    return save(external(f"..\\{secret(folder).name}"), folder)


@attack
def empty_location(folder):
    return save(external(""), folder)


@attack
def private_marker(folder):
    return save(external("*/_ORT_MEM_ADDR_/*", offset="140000000000", length="16"), folder)


@attack
def missing_file(folder):
    return save(external("nothing.bin"), folder)


@attack
def linked_file(folder):
    (folder / "w.bin").symlink_to(secret(folder))
    return save(external("w.bin"), folder)


@attack
def linked_folder(folder):
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(16))
    (folder / "a").symlink_to(outside)
    return save(external("a/w.bin"), folder)


@attack
def linked_in_a_circle(folder):
    (folder / "w.bin").symlink_to("v.bin")
    (folder / "v.bin").symlink_to("w.bin")
    return save(external("w.bin"), folder)


@attack
def link_to_nothing(folder):
    (folder / "w.bin").symlink_to("nothing.bin")
    return save(external("w.bin"), folder)


@attack
def link_to_the_folder(folder):
    (folder / "w.bin").symlink_to(".")
    return save(external("w.bin"), folder)


@attack
def link_to_the_environment(folder):
    (folder / "w.bin").symlink_to("/proc/self/environ")
    return save(external("w.bin"), folder)


@attack
def link_to_a_device(folder):
    (folder / "w.bin").symlink_to("/dev/zero")
    return save(external("w.bin"), folder)


@attack
def link_to_a_pipe_inside(folder):
    os.mkfifo(folder / "pipe")
    (folder / "w.bin").symlink_to("pipe")
    return save(external("w.bin"), folder)


def in_a_cache(folder: Path, target: str) -> Path:
    """A model that is a link into a folder of blobs, beside a link to whatever else."""
    blobs = folder / "blobs"
    snapshot = folder / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save(external("w.bin"), blobs).rename(blobs / "m")
    (snapshot / "model.onnx").symlink_to("../../blobs/m")
    (snapshot / "w.bin").symlink_to(target)
    return snapshot / "model.onnx"


@attack
def cached_model_with_a_link_elsewhere(folder):
    secret(folder / "blobs")
    return in_a_cache(folder, "../../blobs-secret.bin")


@attack
def cached_model_with_a_link_through_another_one(folder):
    outside = folder / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(16))
    path = in_a_cache(folder, "../../blobs/w.bin")
    (folder / "blobs" / "w.bin").symlink_to("../outside/w.bin")
    return path


@attack
def cached_model_with_a_parent_path(folder):
    path = in_a_cache(folder, "../../blobs/w.bin")
    (folder / "w.bin").write_bytes(bytes(16))
    save(external("../w.bin"), folder).rename(folder / "blobs" / "m")
    return path


@attack
def pipe_as_weights(folder):
    os.mkfifo(folder / "w.bin")
    return save(external("w.bin"), folder)


@attack
def folder_as_weights(folder):
    (folder / "w.bin").mkdir()
    return save(external("w.bin"), folder)


def _with_weights(folder: Path, **entries: str) -> Path:
    (folder / "w.bin").write_bytes(bytes(16))
    return save(external("w.bin", **entries), folder)


@attack
def negative_offset(folder):
    return _with_weights(folder, offset="-4", length="16")


@attack
def huge_length(folder):
    return _with_weights(folder, length=str(2**50))


@attack
def wrapping_offset(folder):
    return _with_weights(folder, offset=str(2**63 - 8))


@attack
def past_the_end(folder):
    return _with_weights(folder, offset="8", length="16")


@attack
def unknown_external_key(folder):
    return _with_weights(folder, **{"__class__": "x"})


@attack
def external_in_attribute(folder):
    tensor = external(f"../{secret(folder).name}").graph.initializer[0]
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    return save(model(nodes), folder)


@attack
def huge_initializer(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**31, 2**31, 2**31])
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def wrapping_dimensions(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**62, 4], raw_data=bytes(0))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def negative_dimension(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4, -1], raw_data=bytes(16))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def too_little_data(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(8))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def unknown_element_type(folder):
    tensor = TensorProto(name="w", data_type=99, dims=[4], raw_data=bytes(16))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def many_dimensions(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 100_000, raw_data=bytes(4))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def socket_as_weights(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "w.bin"))
    return save(external("w.bin"), folder)


def sparse(dims: list[int], indices: np.ndarray, count: int = 2) -> onnx.ModelProto:
    made = model([helper.make_node("Add", ["x", "w"], ["y"], name="add")])
    values = helper.make_tensor("w", TensorProto.FLOAT, [count], [1.0] * count)
    places = onnx.numpy_helper.from_array(indices, "places")
    made.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=places, dims=dims))
    return made


@attack
def sparse_index_beyond_the_end(folder):
    return save(sparse([4], np.array([0, 4])), folder)


@attack
def sparse_index_below_zero(folder):
    return save(sparse([2, 2], np.array([[0, 0], [0, -1]])), folder)


@attack
def sparse_index_beyond_one_axis(folder):
    return save(sparse([2, 2], np.array([[0, 0], [0, 2]])), folder)


@attack
def sparse_with_too_few_indices(folder):
    return save(sparse([4], np.array([0])), folder)


@attack
def sparse_indices_of_another_type(folder):
    return save(sparse([4], np.array([0, 1], np.int32)), folder)


@attack
def sparse_of_many_gigabytes(folder):
    return save(sparse([2**20, 2**20], np.array([0, 1])), folder)


@attack
def sparse_of_an_overflowing_size(folder):
    return save(sparse([2**32, 2**32], np.array([0, 1])), folder)


@attack
def many_sparse_of_half_a_gigabyte(folder):
    made = sparse([2**27], np.array([0, 1]))
    for number in range(5):
        made.graph.sparse_initializer.append(made.graph.sparse_initializer[0])
        made.graph.sparse_initializer[-1].values.name = f"w{number}"
    return save(made, folder)


@attack
def sparse_of_the_name_of_another(folder):
    made = sparse([4], np.array([0, 1]))
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4))
    return save(made, folder)
