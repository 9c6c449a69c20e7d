"""The operators and small groups of ``single_ops.py``: kinds on which CPU toolchains differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collage.testing._toolchain_kernels import KernelCase

__all__ = ["CASES"]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return numbers(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))


def integers(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, shape)


def case(name: str, shape: Sequence[int], rank: int, body: str, **constants: np.ndarray) -> KernelCase:
    """A kernel of one input ``x`` and one output ``y`` of the given rank."""
    sizes, unknown = ",".join(map(str, shape)), ",".join("ABCDEF"[:rank])
    return KernelCase(name, f"(float[{sizes}] x) => (float[{unknown}] y) {{{body}}}", [numbers(*shape)], constants)


def open_case(name: str, shape: Sequence[int], open_shape: str, body: str, **constants: np.ndarray) -> KernelCase:
    """A kernel of one input and one output of equal shape, of which some lengths are known only when it is called."""
    text = f"(float[{open_shape}] x) => (float[{open_shape}] y) {{{body}}}"
    return KernelCase(name, text, [numbers(*shape)], constants)


def convolution(
    name: str, shape: Sequence[int], filters: Sequence[int], attributes: str, after: str = "y = Identity (c)"
) -> KernelCase:
    body = f"c = Conv <{attributes}> (x, w, b) {after}"
    return case(name, shape, len(shape), body, w=weights(*filters), b=numbers(filters[0], seed=2))


def transposed(name: str, shape: Sequence[int], filters: Sequence[int], attributes: str, after: str) -> KernelCase:
    body = f"c = ConvTranspose <{attributes}> (x, w, b) {after}"
    return case(name, shape, len(shape), body, w=weights(*filters), b=numbers(filters[1], seed=2))


def recurrent(
    name: str, op_type: str, steps: int, inner: int, hidden: int, more: str = "", batch: int = 1
) -> KernelCase:
    gates, ways = {"LSTM": 4, "GRU": 3}[op_type], 2 if "bidirectional" in more else 1
    shapes = {"w": (ways, gates * hidden, inner), "r": (ways, gates * hidden, hidden), "b": (ways, 2 * gates * hidden)}
    made = {k: numbers(*v, seed=i) / np.float32(np.sqrt(hidden)) for i, (k, v) in enumerate(shapes.items())}
    return case(name, (steps, batch, inner), 4, f"y = {op_type} <hidden_size = {hidden}{more}> (x, w, r, b)", **made)


def attention(name: str, heads: int, length: int) -> KernelCase:
    body = """t = Transpose <perm = [0,1,3,2]> (x) s = MatMul (x, t) d = Mul (s, f)
        p = Softmax <axis = -1> (d) y = MatMul (p, x)"""
    return case(name, (1, heads, length, 64), 4, body, f=np.array(0.125, np.float32))


RELU, SILU = "y = Relu (c)", "s = Sigmoid (c) y = Mul (c, s)"
SAME3, SAME3D = "pads = [1,1,1,1]", "pads = [1,1,1,1,1,1]"
YCBCR = {"k": 1.402, "m": 1.772, "n": 0.344, "p": 0.714, "low": 0, "high": 1}

CASES: Sequence[KernelCase] = (
    # Recurrent layers
    recurrent("GRU 512, 50 steps", "GRU", 50, 512, 512, ", linear_before_reset = 1"),
    recurrent("LSTM 512, 40 steps, batch 16", "LSTM", 40, 512, 512, batch=16),
    recurrent("BiLSTM 256, 80 steps", "LSTM", 80, 128, 256, ', direction = "bidirectional"'),
    # Convolutions
    convolution("conv1d 512 k3, length 1500", (1, 512, 1500), (512, 512, 3), "pads = [1,1]"),
    convolution("conv 64 3x3 56x56+ReLU", (1, 64, 56, 56), (64, 64, 3, 3), SAME3, RELU),
    # of 3D-ResNet, 3D U-Net and R(2+1)D
    convolution("conv3d 3-64 3x7x7 s2 [8,112,112]+ReLU", (1, 3, 8, 112, 112), (64, 3, 3, 7, 7),
                "pads = [1,3,3,1,3,3], strides = [1,2,2]", RELU),
    convolution("conv3d 16 [32,32,32]+ReLU", (1, 16, 32, 32, 32), (16, 16, 3, 3, 3), SAME3D, RELU),
    convolution("conv3d over time 144-64 [8,56,56]+ReLU", (1, 144, 8, 56, 56), (64, 144, 3, 1, 1), "pads = [1,0,0,1,0,0]",
                RELU),
    # of ResNeXt-50 and RegNetY-3.2GF
    convolution("conv of 32 groups 256 s2, 56x56+ReLU", (1, 256, 56, 56), (256, 8, 3, 3),
                f"{SAME3}, group = 32, strides = [2,2]", RELU),
    convolution("conv of 9 groups 216, 28x28+ReLU", (1, 216, 28, 28), (216, 24, 3, 3), f"{SAME3}, group = 9", RELU),
    convolution("depthwise 7x7, 96, 56x56", (1, 96, 56, 56), (96, 1, 7, 7), "pads = [3,3,3,3], group = 96"),
    convolution("depthwise 3x3, 144, 56x56+ReLU", (1, 144, 56, 56), (144, 1, 3, 3), f"{SAME3}, group = 144", RELU),
    convolution("grouped conv x2, 64 of 32, 56x56", (1, 32, 56, 56), (64, 1, 3, 3), f"{SAME3}, group = 32", RELU),
    convolution("filter 5x5 on one channel, 512x512", (1, 1, 512, 512), (1, 1, 5, 5), "pads = [2,2,2,2]"),
    case("filter 5x5 on one channel, then linear 1024-320", (1, 1, 512, 1024), 4,
         "c = Conv <pads = [2,2,2,2]> (x, f) r = Relu (c) m = MatMul (r, w) a = Add (m, b) y = Relu (a)",
         f=weights(1, 1, 5, 5), w=weights(1024, 320), b=numbers(320)),
    case("filter 7x7 on one channel, then linear+GELU 4096-1024", (1, 1, 512, 4096), 4,
         "c = Conv <pads = [3,3,3,3]> (x, f) r = Relu (c) m = MatMul (r, w) a = Add (m, b) y = Gelu (a)",
         f=weights(1, 1, 7, 7), w=weights(4096, 1024), b=numbers(1024)),
    transposed("conv transpose 256-128 k4 s2+ReLU", (1, 256, 16, 16), (256, 128, 4, 4), f"strides = [2,2], {SAME3}", RELU),
    transposed("conv transpose 3d 32-16 k4 s2", (1, 32, 8, 16, 16), (32, 16, 4, 4, 4), f"strides = [2,2,2], {SAME3D}",
               "y = Identity (c)"),
    # Products
    case("MatMul 16x1024x4096", (16, 1024), 2, "y = MatMul (x, w)", w=weights(1024, 4096)),
    case("linear+GELU 128x768x3072", (128, 768), 2, "m = MatMul (x, w) a = Add (m, b) y = Gelu (a)",
         w=weights(768, 3072), b=numbers(3072)),
    attention("attention, 12 heads, 256x64", 12, 256),
    attention("attention, 8 heads, 1024x64", 8, 1024),
    # Normalisation and softmax
    case("Softmax [12,512,512]", (12, 512, 512), 3, "y = Softmax (x)"),
    case("LayerNorm [197,768]", (197, 768), 2, "y = LayerNormalization (x, s, b)", s=numbers(768), b=numbers(768)),
    case("residual+LayerNorm+GELU [512,1024]", (512, 1024), 2,
         "t = Tanh (x) r = Add (x, t) n = LayerNormalization (r, s, b) y = Gelu (n)", s=numbers(1024), b=numbers(1024)),
    case("GroupNorm+SiLU [1,320,64,64]", (1, 320, 64, 64), 4,
         f"c = GroupNormalization <num_groups = 32> (x, u, b) {SILU}", u=numbers(320, seed=1), b=numbers(320, seed=2)),
    # The same where lengths vary from call to call: transformers on texts, diffusion on images of any size
    open_case("LayerNorm [any,768], 197", (197, 768), "N,768", "y = LayerNormalization (x, s, b)", s=numbers(768),
              b=numbers(768)),
    open_case("GELU [any,3072], 512", (512, 3072), "N,3072", "y = Gelu (x)"),
    open_case("GroupNorm+SiLU [1,320,any,any], 64x64", (1, 320, 64, 64), "1,320,H,W",
              f"c = GroupNormalization <num_groups = 32> (x, u, b) {SILU}", u=numbers(320, seed=1), b=numbers(320, seed=2)),
    # Elementwise
    case("GELU [512,3072]", (512, 3072), 2, "y = Gelu (x)"),
    case("chain of 6 elementwise [1,256,64,64]", (1, 256, 64, 64), 4,
         "a = Exp (x) b = Add (a, x) c = Tanh (b) d = Mul (c, x) e = Sqrt (a) y = Sub (d, e)"),
    case("SwiGLU [512,2x4096]", (512, 8192), 2,
         "a, b = Split <axis = 1, num_outputs = 2> (x) s = Sigmoid (a) m = Mul (a, s) y = Mul (m, b)"),
    case("rotary embedding [1,12,512,64]", (1, 12, 512, 64), 4,
         """a, b = Split <axis = 3, num_outputs = 2> (x) n = Neg (b) r = Concat <axis = 3> (n, a)
         c = Mul (x, u) s = Mul (r, v) y = Add (c, s)""", u=numbers(512, 64, seed=1), v=numbers(512, 64, seed=2)),
    case("YCbCr to RGB [1,3,720,1280]", (1, 3, 720, 1280), 4,
         """l, b, r = Split <axis = 1, num_outputs = 3> (x) rr = Mul (r, k) red = Add (l, rr) bb = Mul (b, m) blue = Add (l, bb)
         bg = Mul (b, n) rg = Mul (r, p) g = Add (bg, rg) green = Sub (l, g) c = Concat <axis = 1> (red, green, blue)
         y = Clip (c, low, high)""",
         **{name: np.array(value, np.float32) for name, value in YCBCR.items()}),
    case("boxes of a detector [1,3,80,80,85]", (1, 3, 80, 80, 85), 5,
         """s = Sigmoid (x) a, b, c = Split <axis = 4> (s, parts) d = Mul (a, two) e = Add (d, grid) f = Mul (e, stride)
         g = Mul (b, two) h = Mul (g, g) i = Mul (h, anchors) y = Concat <axis = 4> (f, i, c)""",
         parts=np.array([2, 2, 81]), two=np.array(2, np.float32), stride=np.array(8, np.float32),
         grid=np.moveaxis(np.indices((80, 80)), 0, -1).astype(np.float32) - np.float32(0.5), anchors=numbers(1, 3, 1, 1, 2)),
    # of bird songs and keywords: PCEN, after its running mean
    case("PCEN [1,128,4096]", (1, 128, 4096), 3,
         "e = Mul (x, x) a = Add (e, o) p = Pow (a, n) m = Mul (e, p) d = Add (m, u) r = Pow (d, q) y = Sub (r, s)",
         o=np.array(1e-6, np.float32), n=np.array(-0.98, np.float32), u=np.array(2, np.float32),
         q=np.array(0.3, np.float32), s=np.array(2**0.3, np.float32)),
    # Reductions with what surrounds them, as exporters write them out
    case("GeM pooling [8,512,28,28]", (8, 512, 28, 28), 4,
         "c = Clip (x, low) p = Pow (c, e) m = GlobalAveragePool (p) y = Pow (m, i)",
         low=np.array(1e-6, np.float32), e=np.array(2.9, np.float32), i=np.array(1 / 2.9, np.float32)),
    case("RMSNorm [512,4096]", (512, 4096), 2,
         "q = Mul (x, x) m = ReduceMean (q, k) e = Add (m, o) r = Sqrt (e) d = Div (x, r) y = Mul (d, s)",
         k=np.array([1]), o=np.array(1e-6, np.float32), s=numbers(4096)),
    case("LayerNorm over channels [1,96,56,56]", (1, 96, 56, 56), 4,
         """m = ReduceMean (x, k) c = Sub (x, m) q = Mul (c, c) v = ReduceMean (q, k) e = Add (v, o) r = Sqrt (e)
         d = Div (c, r) n = Mul (d, s) y = Add (n, b)""",
         k=np.array([1]), o=np.array(1e-6, np.float32), s=numbers(96, 1, 1), b=numbers(96, 1, 1, seed=1)),
    case("mean and deviation over time [8,1000,512]", (8, 1000, 512), 2,
         """m = ReduceMean (x, k) c = Sub (x, m) q = Mul (c, c) v = ReduceMean <keepdims = 0> (q, k) d = Sqrt (v)
         n = Squeeze (m, k) y = Concat <axis = 1> (n, d)""", k=np.array([1])),
    case("distances of 2048 points to 512", (2048, 1, 3), 2,
         "d = Sub (x, p) q = Mul (d, d) s = ReduceSum <keepdims = 0> (q, k) y = Sqrt (s)",
         p=numbers(1, 512, 3, seed=4), k=np.array([2])),
    # Layouts, gathers and scatters
    case("transpose+scale+shift [1,64,112,112] to NHWC", (1, 64, 112, 112), 4,
         "t = Transpose <perm = [0,2,3,1]> (x) m = Mul (t, u) a = Add (m, b) y = Relu (a)", u=numbers(64), b=numbers(64)),
    case("transpose+GELU by Tanh [1,96,3136]", (1, 96, 3136), 3,
         """t = Transpose <perm = [0,2,1]> (x) q = Mul (t, t) c = Mul (q, t) k = Mul (c, u) a = Add (t, k) m = Mul (a, v)
         h = Tanh (m) o = Add (h, one) p = Mul (t, o) y = Mul (p, half)""",
         u=np.array(0.044715, np.float32), v=np.array(0.7978846, np.float32), one=np.array(1, np.float32),
         half=np.array(0.5, np.float32)),
    case("window shuffle+scale [1,56,56,96]", (1, 56, 56, 96), 4,
         "r = Reshape (x, a) t = Transpose <perm = [0,1,3,2,4,5]> (r) g = Mul (t, u) y = Reshape (g, c)",
         a=np.array([1, 8, 7, 8, 7, 96]), c=np.array([64, 7, 7, 96]), u=numbers(96)),
    case("pixel shuffle x4+clip [1,64,128,128]", (1, 64, 128, 128), 4,
         "r = Reshape (x, a) t = Transpose <perm = [0,1,4,2,5,3]> (r) q = Reshape (t, c) y = Clip (q, low, high)",
         a=np.array([1, 4, 4, 4, 128, 128]), c=np.array([1, 4, 512, 512]),
         low=np.array(0, np.float32), high=np.array(1, np.float32)),
    case("transpose+tanh [1024,1024]", (1024, 1024), 2, "t = Transpose <perm = [1,0]> (x) y = Tanh (t)"),
    case("embedding of 4096 rows+scale+position", (30000, 64), 2, "g = Gather (x, i) m = Mul (g, f) y = Add (m, p)",
         i=integers(30000, 4096), f=np.array(8, np.float32), p=numbers(4096, 64, seed=3)),
    case("bags of 32 embeddings, mean of each", (20000, 64), 2, "g = Gather (x, i) y = ReduceMean <keepdims = 0> (g, k)",
         i=integers(20000, 2048, 32), k=np.array([1])),
    case("gather columns+ReLU [512,2048]", (512, 2048), 2, "g = Gather <axis = 1> (x, i) y = Relu (g)",
         i=integers(2048, 1024)),
    case("scatter add 20000x64 into 2000", (20000, 64), 2,
         'y = ScatterElements <axis = 0, reduction = "add"> (z, i, x)',
         z=np.zeros((2000, 64), np.float32), i=np.repeat(integers(2000, 20000, 1), 64, axis=1)),
    case("max over the middle axis [64,512,64]", (64, 512, 64), 2, "y = ReduceMax <keepdims = 0> (x, k)", k=np.array([1])),
    # Images, sorting, running sums
    case("GridSample [1,64,64,64]", (1, 64, 64, 64), 4, "y = GridSample (x, g)", g=np.clip(numbers(1, 64, 64, 2), -1, 1)),
    case("Resize bicubic x2 [1,64,64,64]", (1, 64, 64, 64), 4, 'y = Resize <mode = "cubic"> (x, , k)',
         k=np.array([1, 1, 2, 2], np.float32)),
    case("Resize nearest x2+add [1,64,64,64]", (1, 64, 64, 64), 4,
         'r = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , k) '
         "a = Add (r, b) y = Relu (a)", k=np.array([1, 1, 2, 2], np.float32), b=numbers(64, 1, 1)),
    case("max pool 3x3 s2 [1,64,112,112]", (1, 64, 112, 112), 4,
         f"y = MaxPool <kernel_shape = [3,3], strides = [2,2], {SAME3}> (x)"),
    case("Sort [64,4096]", (64, 4096), 2, "y, i = TopK (x, k)", k=np.array([4096])),
    case("CumSum [64,4096]", (64, 4096), 2, "y = CumSum (x, k)", k=np.array(1)),
)  # fmt: skip
