"""Samples: folders, archives and iterables; faults, each one sentence; the split."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import InputError, UsageError
from collage.calibration import open_data, split_samples
from collage.frontend import read_model


@pytest.fixture(scope="module")
def model():
    text = "g (float[N, 3] x, int64[2] i) => (float[N, 3] y) { s = Cast <to = 1> (i) t = ReduceSum (s) y = Add (x, t) }"
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))


def sample(number, rows=2):
    return {"x": np.full((rows, 3), number, np.float32), "i": np.array([number, 1], np.int64)}


def folder_of(path, samples):
    path.mkdir()
    for number, arrays in enumerate(samples):
        np.savez(path / f"{number:03}.npz", **arrays)
    return path


def assert_reads(data, expected, labels=None):
    assert data.count == len(expected)
    for index, (found, wanted) in enumerate(zip(data.samples(range(data.count)), expected, strict=True)):
        assert set(found.feeds) == set(wanted)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found.feeds[name], value)
            assert found.feeds[name].dtype == value.dtype
        if labels is not None:
            np.testing.assert_array_equal(found.label, labels[index])


def test_a_folder_holds_a_sample_in_each_file(model, tmp_path):
    given_ = [sample(n, rows=n + 1) for n in range(3)]
    path = folder_of(tmp_path / "data", [{**arrays, "label": np.int64(n)} for n, arrays in enumerate(given_)])
    (path / "README.txt").write_text("not a sample")
    data = open_data(path, model, tmp_path / "work")
    assert data.has_labels
    assert_reads(data, given_, labels=[0, 1, 2])


def test_texts_as_bytes_and_labels_of_another_order_of_bytes_are_read(tmp_path):
    graph = "g (string[2] t) => (string[2] y) { y = Identity (t) }"
    texts = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}'))
    data = open_data([({"t": np.array([b"ab", b"c"])}, np.array(3, ">i8"))], texts, tmp_path)
    found = data.read(0)
    assert found.feeds["t"].tolist() == ["ab", "c"] and found.label == 3


def test_an_input_that_is_left_out_has_its_default(model, tmp_path):
    proto = ir.to_proto(model)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 8]), "i"))
    optional = read_model(proto)
    rows = np.ones((2, 3), np.float32)
    for number, source in enumerate(([{"x": rows}], folder_of(tmp_path / "data", [{"x": rows}]))):
        found = open_data(source, optional, tmp_path / str(number)).read(0)
        assert found.feeds["i"].tolist() == [7, 8]
    with pytest.raises(InputError, match="no array for input 'i'"):
        open_data([{"x": rows}], model, tmp_path / "none")


def test_samples_that_differ_in_length_are_counted_and_those_that_do_not_fit_may_be_left_out(model, tmp_path):
    given_ = [sample(n, rows) for n, rows in enumerate((2, 4, 2, 2))]
    fixed = ir.from_proto(ir.to_proto(model))
    fixed.graph.inputs[0].shape = ir.Shape([2, 3])
    for source in (folder_of(tmp_path / "data", given_), given_):
        assert open_data(source, model, tmp_path / "open").lengths == {"N": {2: 3, 4: 1}}
        with pytest.raises(InputError, match="shape"):
            open_data(source, fixed, tmp_path / "fixed")
        data = open_data(source, fixed, tmp_path / "fitting", fitting=True)
        assert data.lengths == {}
        assert_reads(data, [given_[0], given_[2], given_[3]])
        fixed_to_five = ir.from_proto(ir.to_proto(fixed))
        fixed_to_five.graph.inputs[0].shape = ir.Shape([5, 3])
        with pytest.raises(UsageError, match="has these lengths"):
            open_data(source, fixed_to_five, tmp_path / "none", fitting=True)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_holds_samples_along_its_first_axis(model, tmp_path, save):
    given_ = [sample(n) for n in range(4)]
    arrays = {name: np.stack([each[name] for each in given_]) for name in ("x", "i")}
    arrays["x"] = np.asfortranarray(arrays["x"])
    save(tmp_path / "all.npz", **arrays, labels=np.arange(4))
    data = open_data(tmp_path / "all.npz", model, tmp_path / "work")
    assert_reads(data, given_, labels=range(4))
    assert_reads(data, given_)  # As often as they are asked for.


def test_an_iterable_is_read_once(model, tmp_path):
    given_ = [sample(n) for n in range(3)]
    data = open_data(((arrays, n) for n, arrays in enumerate(given_)), model, tmp_path / "work")
    assert_reads(data, given_, labels=range(3))
    assert_reads(data, given_)
    without = open_data(iter(given_), model, tmp_path / "other")
    assert not without.has_labels
    assert without.digest != data.digest
    assert open_data(iter(given_), model, tmp_path / "again").digest == without.digest


def test_a_batch_of_one_may_be_left_out(model, tmp_path):
    data = open_data([{"x": np.ones(3, np.float32), "i": np.zeros(2, np.int64)}], model, tmp_path)
    assert data.read(0).feeds["x"].shape == (1, 3)


FAULTS = {
    "unknown name": ({**sample(0), "z": np.ones(1)}, "unknown input 'z'"),
    "missing": ({"x": np.ones((2, 3), np.float32)}, "no array for input 'i'"),
    "type": ({**sample(0), "x": np.ones((2, 3))}, "float64"),
    "shape": ({**sample(0), "x": np.ones((2, 4), np.float32)}, r"\[2, 4\]"),
    "rank": ({**sample(0), "i": np.ones((2, 2), np.int64)}, r"\[2, 2\]"),
}


@pytest.mark.parametrize(("arrays", "words"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_a_sentence_that_names_the_sample(model, tmp_path, arrays, words):
    path = folder_of(tmp_path / "data", [sample(0), arrays])
    with pytest.raises(InputError, match=words) as found:
        open_data(path, model, tmp_path / "work")
    assert "001.npz" in str(found.value)
    assert "\n" not in str(found.value)
    with pytest.raises(InputError, match=words) as found:
        open_data([sample(0), arrays], model, tmp_path / "list")
    assert "sample 1" in str(found.value)


def broken(path, content):
    path.write_bytes(content)
    return path


def archive_of(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def header_of(dtype, shape):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


BROKEN = {
    "no archive": b"text",
    "empty": b"",
    "no arrays": archive_of({"x.npy": b"text"}),
    "objects": archive_of({"x.npy": header_of("|O", (1,)) + b"cos\nsystem\n."}),
    "a header that states too much": archive_of({"x.npy": header_of("<f4", (1 << 40, 3))}),
    "cut short": archive_of({"x.npy": header_of("<f4", (2, 2, 3)), "i.npy": header_of("<i8", (2, 2))}),
    "lengths differ": archive_of({"x.npy": header_of("<f4", (2, 2, 3)), "i.npy": header_of("<i8", (3, 2))}),
    "no sample": archive_of({"x.npy": header_of("<f4", (0, 2, 3)), "i.npy": header_of("<i8", (0, 2))}),
    "a scalar": archive_of({"x.npy": header_of("<f4", ())}),
    "a negative length": archive_of({"x.npy": header_of("<f4", (2, -2, 3)), "i.npy": header_of("<i8", (2, 2))}),
    "records": archive_of({"x.npy": header_of([("a", "<f4")], (2, 2, 3)), "i.npy": header_of("<i8", (2, 2))}),
    "a header of nothing but brackets": archive_of({"x.npy": b"\x93NUMPY\x01\x00\x00\x08" + b"(" * 2048}),
    "nothing": archive_of({}),
    "more axes than NumPy has": archive_of({"x.npy": header_of("<f4", (1,) * 100) + bytes(4)}),
    "no element, and a length beyond NumPy's": archive_of({"x.npy": header_of("<f4", (1, 0, 1 << 62))}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_a_sentence(model, tmp_path, content):
    with pytest.raises(UsageError) as found:
        open_data(broken(tmp_path / "all.npz", content), model, tmp_path / "work")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("shape", [(1,) * 100, (0, 1 << 62), (0, 1 << 70)])
def test_a_folder_with_a_shape_that_numpy_lacks_is_a_sentence(model, tmp_path, shape):
    broken(tmp_path / "000.npz", archive_of({"x.npy": header_of("<f4", shape) + bytes(4)}))
    with pytest.raises(UsageError, match="NumPy's format"):
        open_data(tmp_path, model, tmp_path / "work")


COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.one_of(st.none(), st.binary(max_size=4))), min_size=1, max_size=8)


@settings(max_examples=50)
@given(compression=st.sampled_from(COMPRESSIONS), edits=EDITS)
def test_bytes_that_changed_are_a_sentence_or_a_sample(model, tmp_path_factory, compression, edits):
    out, arrays = io.BytesIO(), sample(1)
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.save(stream, array)
    content = bytearray(out.getvalue())
    for place, fresh in edits:
        at = place % (len(content) or 1)
        content[at : len(content) if fresh is None else at + 1] = fresh or b""
    path = tmp_path_factory.mktemp("changed")
    file = broken(path / "000.npz", bytes(content))
    for source in (path, file):
        try:
            open_data(source, model, path / "work").read(0)
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("dtype", ["<U0", "|S0", "<U1"])
def test_a_header_of_countless_short_texts_is_a_sentence(tmp_path, dtype):
    graph = "g (string[N] t) => (string[N] y) { y = Identity (t) }"
    texts = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}'))
    file = broken(tmp_path / "a.npz", archive_of({"t.npy": header_of(dtype, (10**9,))}))
    for source in (tmp_path, file):
        with pytest.raises(UsageError, match="its arrays take more than"):
            open_data(source, texts, tmp_path / "work")


def test_nothing_is_unpickled(model, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    objects = np.empty((2, 3), object)
    objects[:] = Trap()
    for name, content in {"in an array": objects, "bare": None}.items():
        path = tmp_path / name
        path.mkdir()
        if content is None:
            broken(path / "0.npz", archive_of({"x.npy": pickle.dumps(Trap()), "i.npy": header_of("<i8", (2,))}))
        else:
            np.savez(path / "0.npz", x=content, i=np.zeros(2, np.int64))
        for source in (path, path / "0.npz"):
            with pytest.raises(UsageError):
                open_data(source, model, tmp_path / "work")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("source", [[], iter(()), {"x": 1}, 3, [np.ones(3)], [{"x": object()}]])
def test_what_is_no_iterable_of_samples_is_a_sentence(model, tmp_path, source):
    with pytest.raises(UsageError) as found:
        open_data(source, model, tmp_path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("value", [[[1], [1, 2]], np.array([b"\xff"], object)], ids=["ragged", "bytes"])
def test_what_is_no_tensor_is_a_sentence_that_names_the_sample(model, tmp_path, value):
    with pytest.raises(InputError, match="sample 1: 'x'"):
        open_data([sample(0), {**sample(0), "x": value}], model, tmp_path)


def test_tensors_of_pytorch_are_samples(model, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array) for name, array in sample(3).items()}
    tensors["x"] = torch.nn.Parameter(tensors["x"])
    assert_reads(open_data([tensors], model, tmp_path), [sample(3)])


def test_a_folder_without_samples_and_a_path_without_a_file_are_sentences(model, tmp_path):
    with pytest.raises(UsageError, match=r"neither \.npz files nor images"):
        open_data(tmp_path, model, tmp_path / "work")
    with pytest.raises(UsageError, match="does not exist"):
        open_data(tmp_path / "nowhere", model, tmp_path / "work")


@given(st.integers(1, 3000))
def test_every_sample_serves_one_purpose(count):
    split = split_samples(count)
    parts = (split.calibrate, split.choose, split.judge)
    assert all(parts)
    assert split == split_samples(count)
    assert set().union(*parts) == set(range(count))
    if count >= 3:
        assert sum(map(len, parts)) == count
        assert 2 * len(split.judge) >= count / 2
    assert split.is_independent == (count > 1)
