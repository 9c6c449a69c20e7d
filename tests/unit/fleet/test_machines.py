"""The file of a fleet."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import UsageError
from collage.fleet.machines import options_text, read_fleet

TEXT = """
[compile]
target = ["llvm", "openvino"]
time_budget = "5m"
[machines."c7g.xl"]
fingerprint = "0123456789abcdef"
[machines.m7i]
fingerprint = "fedcba9876543210"
compile = { target = ["openvino"], threads = 4 }
"""


def test_types_share_options_and_have_their_own(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(TEXT)
    fleet = read_fleet(tmp_path / "fleet.toml")
    assert fleet["c7g.xl"].options == {"target": ["llvm", "openvino"], "time-budget": "5m"}
    assert fleet["m7i"].options == {"target": ["openvino"], "time-budget": "5m", "threads": 4}
    assert fleet["m7i"].fingerprint == "fedcba9876543210"
    with pytest.raises(UsageError, match=r"c7g\.xl, m7i"):
        fleet["other"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no table"),
        ("machines = 1", "no table"),
        ("[machines.a]", "16 hexadecimal"),
        ('[machines.a]\nfingerprint = "xyz"', "16 hexadecimal"),
        ('[machines."../a"]\nfingerprint = "0123456789abcdef"', "name of a machine type"),
        ('[machines.a]\nfingerprint = "0123456789abcdef"\nprice = 1', "nothing else"),
        ('[machines.a]\nfingerprint = "0123456789abcdef"\ncompile = { output = "/etc" }', "this machine only"),
        ('[machines.a]\nfingerprint = "0123456789abcdef"\ncompile = { plan_out = "x" }', "this machine only"),
        ('[machines.a]\nfingerprint = "0123456789abcdef"\ncompile = { a = { b = 1 } }', "plain value"),
        ("[compiler]", "not known"),
        ("[", "not TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(UsageError, match=told):
        read_fleet(tmp_path / "fleet.toml")


PLAIN = (
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), PLAIN | st.lists(PLAIN)))
def test_options_arrive_on_the_node_as_they_were(options: dict[str, object]) -> None:
    assert tomllib.loads(options_text(options)) == {"compile": options}
