"""Arrays in .npy files come back as they were written."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from collage._errors import UsageError
from collage.cli._arrays import read_arrays, write_array

NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float4_e2m1fn"]
TYPES = ["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", *NARROW]
TEXTS = st.text().filter(lambda text: not text.endswith("\0"))


def there_and_back(array: np.ndarray, folder: Path) -> np.ndarray:
    file = folder / "x.npy"
    write_array(file, array)
    return read_arrays({"x": str(file)})["x"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), st.sampled_from(TYPES), st.integers(0, 99))
def test_numbers_of_every_type_come_back(tmp_path: Path, shape: tuple[int, ...], name: str, seed: int) -> None:
    array = np.asarray(np.random.default_rng(seed).uniform(0, 7, shape)).astype(name)
    found = there_and_back(array, tmp_path)
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays.arrays(object, arrays.array_shapes(min_dims=0, max_dims=2, min_side=0), elements=TEXTS))
def test_texts_come_back(tmp_path: Path, array: np.ndarray) -> None:
    found = there_and_back(array, tmp_path)
    assert found.dtype.kind == "U" and found.shape == array.shape and found.tolist() == array.tolist()


def test_a_view_that_is_not_row_major_comes_back(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4).astype("bfloat16").T[::2]
    np.testing.assert_array_equal(there_and_back(array, tmp_path), array)


def test_what_a_file_cannot_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="null character"):
        write_array(tmp_path / "x.npy", np.array(["a\0"], object))


def test_elements_of_no_type_are_taken_for_what_the_model_reads(tmp_path: Path) -> None:
    array = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)
    file = tmp_path / "x.npy"
    np.save(file, array)
    found = read_arrays({"x": str(file)}, {"x": "bfloat16"})["x"]
    assert found.dtype == array.dtype and found.tolist() == array.tolist()
    for dtype in (None, "float16", "float8_e5m2"):
        with pytest.raises(UsageError, match=r"have no type.*np\.save"):
            read_arrays({"x": str(file)}, {"x": dtype})


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"PK\x03\x04" + bytes(100), b"\x93NUMPY\x01\x00\x00\x08" + b"(" * 2048],
    ids=["empty", "text", "archive", "brackets"],
)
def test_a_file_of_something_else_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"not a \.npy file"):
        read_arrays({"x": str(file)})


def test_a_file_that_states_more_than_the_memory_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    with file.open("wb") as out:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
        np.lib.format.write_array_header_1_0(out, header)
    with pytest.raises(UsageError, match="memory"):
        read_arrays({"x": str(file)})
