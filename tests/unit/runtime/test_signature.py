from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collage._errors import InputError
from collage.runtime import Port, Signature

X = Port("x", "float32", (1, 3))
Y = Port("y", "int64", ("n", 2))
Z = Port("z", "int64", ("n",))


def test_by_name_in_any_order_and_by_position() -> None:
    x, y = np.ones((1, 3), "f"), np.ones((4, 2), "int64")
    for feeds in ({"y": y, "x": x}, [x, y]):
        bound = Signature([X, Y]).bind(feeds)[0]
        assert bound[0] is x
        assert bound[1] is y


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({}, "missing input 'x'"),
        ({"x": np.ones((1, 3), "f"), "q": 1}, "unknown input 'q'"),
        ({"X": np.ones((1, 3), "f")}, "missing input 'x' and unknown input 'X'"),
        ({"x": np.ones((1, 4), "f")}, r"shape \[1, 4\], but the model takes x: float32\[1, 3\]"),
        ({"x": np.ones(3, "f")}, r"shape \[3\]"),
        ({"x": np.ones((1, 3))}, "float64"),
        ({"x": "text"}, "'x' is <U4"),
        ({"x": [[1, 2], [3]]}, "not a usable tensor"),
        ({"x": [["a", "b", "c"]]}, "'x' is <U1"),
        ({"x": [[1, 2, 2**70]]}, "'x' is object"),
        ({"x": [[1, 2, {}]]}, "'x' is object"),
        ({"x": [[1, 2, 1j]]}, "'x' is complex128"),
        ([], "0 inputs given, but the model has 1"),
        (np.ones((1, 3), "f"), "a mapping from names"),
    ],
)
def test_one_sentence_says_what_is_wrong(feeds: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Signature([X]).bind(feeds)
    assert "\n" not in str(caught.value)


def test_symbols_must_agree() -> None:
    signature = Signature([Y, Z])
    signature.bind([np.ones((4, 2), "int64"), np.ones(4, "int64")])
    with pytest.raises(InputError, match="n=4"):
        signature.bind([np.ones((4, 2), "int64"), np.ones(5, "int64")])


def test_expressions_of_symbols_must_hold() -> None:
    mask, past, new = (
        Port(*port) for port in (("mask", "int64", ("p + s",)), ("past", "int64", ("p",)), ("new", "int64", ("s",)))
    )
    signature = Signature([mask, past, new])
    for p, s in ((3, 2), (0, 4), (0, 0)):
        signature.bind({"mask": np.ones(p + s, "int64"), "past": np.ones(p, "int64"), "new": np.ones(s, "int64")})
    wrong = {"mask": np.ones(6, "int64"), "past": np.ones(3, "int64"), "new": np.ones(2, "int64")}
    with pytest.raises(
        InputError, match=r"'mask' has length 6 along axis 0, .* is 5 where p=3, s=2; .* --dim 'mask\[0\]=6'"
    ):
        signature.bind(wrong)
    # Nothing is known of a symbol that no input has by itself.
    Signature([mask, new]).bind({"mask": np.ones(6, "int64"), "new": np.ones(2, "int64")})


def test_layout_is_made_row_major_and_python_numbers_take_the_type() -> None:
    strided = np.ones((3, 1), "f").T[:, ::-1]
    assert Signature([X]).bind({"x": strided})[0][0].flags.c_contiguous
    assert Signature([X]).bind({"x": [[1, 2, 3]]})[0][0].dtype == np.float32
    nan, inf = float("nan"), float("inf")
    np.testing.assert_array_equal(Signature([X]).bind({"x": [[1, nan, inf]]})[0][0], np.array([[1, nan, inf]], "f"))
    for lost in (1.5, nan, inf):
        with pytest.raises(InputError):
            Signature([Port("n", "int64", (1,))]).bind({"n": [lost]})


def test_scalars_strings_and_values_that_are_no_tensors() -> None:
    assert Signature([Port("s", "float32", ())]).bind({"s": np.float32(2)})[0][0].shape == ()
    assert Signature([Port("t", "string", (2,))]).bind({"t": np.array(["a", "b"])})[0][0].dtype == object
    for given in (np.array([b"a", b"\xc3\xa4"]), [b"a", "ä".encode()]):
        assert Signature([Port("t", "string", (2,))]).bind({"t": given})[0][0].tolist() == ["a", "ä"]
    with pytest.raises(InputError, match="'t' is not a usable tensor: 'utf-8' codec"):
        Signature([Port("t", "string", (1,))]).bind({"t": np.array([b"\xff"])})
    sequence = [np.ones(1)]
    assert Signature([Port("q", None, None)]).bind({"q": sequence})[0][0] is sequence


def test_lengths_that_are_nothing_are_said() -> None:
    anonymous = Port("a", "float32", (None, 2))
    assert not Signature([Y, anonymous]).bind([np.ones((1, 2), "int64"), np.ones((1, 2), "f")])[2]
    assert Signature([Y, anonymous]).bind([np.ones((0, 2), "int64"), np.ones((1, 2), "f")])[2]
    assert Signature([Y, anonymous]).bind([np.ones((1, 2), "int64"), np.ones((0, 2), "f")])[2]
    assert not Signature([Port("e", "float32", (0,))]).bind([np.ones(0, "f")])[2]  # The model was made for it.


def test_what_was_right_before_says_nothing_of_what_comes_next() -> None:
    signature = Signature([Y, Z])
    for n in (*range(1, 600), 0, 3):  # More lengths than are remembered.
        assert signature.bind([np.ones((n, 2), "int64"), np.ones(n, "int64")])[2] == (n == 0)
        with pytest.raises(InputError, match=rf"n={n}"):
            signature.bind([np.ones((n, 2), "int64"), np.ones(n + 1, "int64")])
    with pytest.raises(InputError, match=r"shape \[3, 2, 1\]"):
        signature.bind([np.ones((3, 2, 1), "int64"), np.ones(3, "int64")])
    with pytest.raises(InputError, match="float32"):
        signature.bind([np.ones((3, 2), "f"), np.ones(3, "int64")])


def test_lengths_of_0_are_told_unless_kernels_were_checked_there() -> None:
    ports = [Port("past", "float32", ("p", 2)), Port("x", "float32", (None, 2))]
    zero, one = np.ones((0, 2), "f"), np.ones((1, 2), "f")
    for empty, feeds, told in (
        ((), [zero, one], True),
        (("p",), [zero, one], False),
        (("p",), [zero, zero], True),
        (("p", "x[0]"), [zero, zero], False),
        (("p",), [one, zero], True),
        ((), [one, one], False),
    ):
        assert Signature(ports, empty).bind(feeds)[2] is told
