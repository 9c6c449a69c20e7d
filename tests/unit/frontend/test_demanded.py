"""Free dimensions that have one length only, by the weights and attributes of operators."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from collage.frontend import demanded_lengths, read_model

CONV = "float[8,3,3,3] w = {" + ",".join(["0"] * 216) + "}"
MATRIX = "float[5,2] w = {" + ",".join(["1"] * 10) + "}"


def demanded(text: str) -> dict[str, int]:
    header = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> '
    return demanded_lengths(read_model(onnx.parser.parse_model(header + text)))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        (f"g (float[N,C,H,W] x) => (float[N,8,P,Q] y) <{CONV}> {{y = Conv (x, w)}}", {"C": 3}),
        (f"g (float[N,C,H,W] x) => (float[N,8,P,Q] y) <{CONV}> {{c = Clip (x) y = Conv <group = 1> (c, w)}}", {"C": 3}),
        (f"g (float[N,K] x) => (float[N,2] y) <{MATRIX}> {{y = MatMul (x, w)}}", {"K": 5}),
        (f"g (float[K,N] x) => (float[N,2] y) <{MATRIX}> {{y = Gemm <transA = 1> (x, w)}}", {"K": 5}),
        (f"g (float[N,K] x) => (float[N,5] y) <{MATRIX}> {{y = Gemm <transB = 1> (x, w)}}", {"K": 2}),
        (f"g (float[2,N] x) => (float[N,2] y) <{MATRIX}> {{y = MatMul (x, w)}}", {"N": 5}),
        # Nothing is demanded by what is computed, or by a weight that a caller may replace.
        ("g (float[N,K] x, float[K,2] w) => (float[N,2] y) {y = MatMul (x, w)}", {}),
        # A branch may never run.
        (f"g (float[N,K] x, bool c) => (float[P,Q] y) <{MATRIX}> {{y = If (c) <then_branch = t () => "
         "(float[P,Q] p) {p = MatMul (x, w)}, else_branch = e () => (float[P,Q] q) {q = Neg (x)}>}", {}),
        # Two lengths are demanded.
        (f"g (float[N,K] x, float[K,N] z) => (float[N,2] y, float[N,5] v) <{MATRIX}> "
         "{y = MatMul (x, w) v = Gemm <transB = 1, transA = 1> (z, w)}", {}),
    ],
)  # fmt: skip
def test_lengths(text: str, lengths: dict[str, int]) -> None:
    assert demanded(text) == lengths


@pytest.mark.parametrize("heads", ["query, key, value", "joint, , "])
def test_the_width_of_a_head_follows_from_queries(heads: str) -> None:
    """ONNX Runtime's builder of language models gives the width of caches a symbol."""
    attention = "com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>"
    body = f"y, pk, pv = {attention} ({heads}, past, past, lengths, total)"
    text = (
        "g (float[N,S,32] query, float[N,S,16] key, float[N,S,16] value, float[N,S,64] joint, float[N,2,P,D] past, "
        f"int32[N] lengths, int32 total) => (float[N,S,32] y, float[N,2,T,D] pk, float[N,2,T,D] pv) {{{body}}}"
    )
    assert demanded(text) == {"D": 8}
