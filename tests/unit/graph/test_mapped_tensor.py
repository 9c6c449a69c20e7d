"""External tensors that map their own bytes only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from collage.graph import MappedTensor, load_mapped


def saved(folder: Path, arrays: dict[str, ir.TensorProtocol]) -> Path:
    values = {name: ir.Value(name=name, const_value=tensor) for name, tensor in arrays.items()}
    graph = ir.Graph((), (), nodes=(), initializers=list(values.values()), opset_imports={"": 20})
    ir.save(ir.Model(graph, ir_version=10), folder / "m.onnx", external_data="w.bin", size_threshold_bytes=0)
    return folder / "m.onnx"


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float8_e4m3fn", "int4", "uint4", "complex64"])
@pytest.mark.parametrize("shape", [(0,), (1,), (), (7, 3), (5000,)])
def test_values_and_bytes_are_those_that_were_saved(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    numpy_type = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    tensors = {f"t{i}": ir.Tensor(random.integers(0, 2, shape).astype(numpy_type)) for i in range(3)}
    model = load_mapped(saved(tmp_path, tensors))
    for name, tensor in tensors.items():
        found = model.graph.initializers[name].const_value
        assert isinstance(found, MappedTensor) or not found.size  # Empty ones are not put into the file.
        assert found.tobytes() == tensor.tobytes()
        assert found.numpy().dtype == tensor.numpy().dtype
        assert np.array_equal(found.numpy(), tensor.numpy())
        with (tmp_path / "out").open("wb") as file:
            found.tofile(file)
        assert (tmp_path / "out").read_bytes() == tensor.tobytes()


def test_a_file_of_many_weights_fits_a_small_address_space(tmp_path: Path) -> None:
    path = saved(tmp_path, {f"t{i}": ir.Tensor(np.full(1 << 16, i, np.float32)) for i in range(256)})
    program = (
        "import resource, sys, pathlib; from collage.graph import load_mapped\n"
        "model = load_mapped(pathlib.Path(sys.argv[1]))\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        # 64 MiB of weights, and 64 MiB to spare; each weight mapped with its whole file would take 16 GiB.
        "resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20),) * 2)\n"
        "print(sum(float(v.const_value.numpy()[0]) for v in model.graph.initializers.values()))"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == str(float(sum(range(256)))), ran.stderr
