"""ncnn with its defaults, by its own converter pnnx. It takes models of fixed shapes with one image each."""

import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import ncnn
import numpy as np
import pnnx
from _turns import serve

TYPES = {"float32": "f32", "int64": "i64", "int32": "i32"}


def prepare(model, feeds):
    folder = Path(tempfile.mkdtemp(prefix="board-ncnn-"))
    files = [f"{name}={folder / name}" for name in ("pnnxparam", "pnnxbin", "pnnxpy", "pnnxonnx", "ncnnpy")]
    shapes = ",".join(f"[{','.join(map(str, x.shape))}]{TYPES[x.dtype.name]}" for x in feeds.values())
    made = {"ncnnparam": folder / "net.param", "ncnnbin": folder / "net.bin"}
    files += [f"{name}={path}" for name, path in made.items()]
    # Half floats are on by default: all contenders compute in float32 here.
    command = [pnnx.EXEC_PATH, str(model), f"inputshape={shapes}", "fp16=0", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False
    if net.load_param(str(made["ncnnparam"])) or net.load_model(str(made["ncnnbin"])):
        raise RuntimeError("ncnn does not load what pnnx made")
    images = [ncnn.Mat(np.ascontiguousarray(x[0] if x.ndim > 1 else x)) for x in feeds.values()]

    def run():
        with net.create_extractor() as extractor:
            for name, image in zip(net.input_names(), images, strict=True):
                extractor.input(name, image)
            found = []
            for name in net.output_names():
                code, mat = extractor.extract(name)
                if code:
                    raise RuntimeError(f"ncnn does not compute {name}")
                found.append(np.array(mat)[None])
            return found

    return run, version("ncnn"), {}


serve(prepare)
