"""``collage inspect MODEL --passes``, from the shell."""

from __future__ import annotations

import json

import onnx
import pytest
from onnx import parser

from collage.cli import main
from collage.frontend import read_model
from collage.transform import Attempt, Sequential, inspect_passes, module_pass, register_pass

MODEL = """<ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y)
    <float two = {2}, float three = {3}> {
    c = Add (two, three)   d = Add (two, three)   a = Mul (x, c)   b = Mul (x, d)   y = Sub (a, b)
}"""


@pytest.fixture
def path(tmp_path):
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def collage(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_text(capsys, path):
    code, out, _ = collage(
        capsys, "inspect", path, "--passes", "FoldConstant, EliminateCommonSubexpr", "--print-after", "FoldConstant"
    )
    assert code == 0
    printed, table = out.split("\n}\n", 1)
    assert (
        printed.startswith("# after FoldConstant\ngraph g")
        and "c = float[] {5.0" in out
        and "Mul(x, c)" in printed
        and "Add" not in printed
    )
    assert "FoldConstant" in table and "Add -2" in table and "Mul -1" in table and " ms" not in table
    assert " ms" in collage(capsys, "inspect", path, "--passes", "FoldConstant", "--time")[1]


def test_json(capsys, path):
    code, out, _ = collage(
        capsys, "inspect", path, "--passes", "prepare", "--print-before", "simplify", "--time", "--verify", "--json"
    )
    document = json.loads(out)
    assert code == 0
    assert set(document) == {"schema", "model", "nodes", "operators", "diagnostics", "passes", "printed"}
    assert document["schema"] == 1 and document["model"] == {"path": str(path), "nodes": 5}
    assert document["operators"] == {"Mul": 1, "Sub": 1} and document["nodes"] == 2
    assert {"pass": "simplify", "when": "before"}.items() <= document["printed"][0].items()
    first = document["passes"][0]
    assert set(first) == {"name", "depth", "nodes", "change", "time_us", "skipped"}
    assert (first["name"], first["depth"]) == ("prepare", 0)
    folded = next(row for row in document["passes"] if row["name"] == "FoldConstant")
    assert folded["change"] == {"Add": -2} and folded["depth"] == 3 and folded["time_us"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--passes", "FoldConstants"], "did you mean 'FoldConstant'"),
        (["--passes", "InferType", "--print-after", "InferTyp"], "did you mean 'InferType'"),
        (["--passes", ","], "name at least one pass"),
        (["--time"], "go with --passes"),
        (["--print-after", "InferType"], "go with --passes"),
    ],
)
def test_usage_errors(capsys, path, options, message):
    code, _, err = collage(capsys, "inspect", path, *options)
    assert code == 2 and message in err


def test_a_pass_that_breaks_the_model_is_named(capsys, path):
    @module_pass(opt_level=0, name="inspected_break")
    def swap(model, context):
        model.graph[-1].op_type = "Add"
        return model

    register_pass("inspected_break", lambda: swap, override=True)
    code, _, err = collage(capsys, "inspect", path, "--passes", "InferType,inspected_break", "--verify")
    assert code == 1 and "pass 'inspected_break' changed the results of the model" in err
    assert inspect_passes(read_model(path), ["inspected_break"])["operators"]["Add"] == 3


def test_a_failure_that_an_attempt_catches_is_not_mixed_up_with_the_passes_around_it(path):
    @module_pass(opt_level=0, name="inspected_failure")
    def fails(model, context):
        raise ValueError("boom")

    register_pass("inspected_attempt", lambda: Attempt(Sequential([fails], name="inspected_attempt")), override=True)
    runs = inspect_passes(read_model(path), "inspected_attempt,FoldConstant")["passes"]
    assert [(run["name"], run["depth"], run["change"], run["skipped"]) for run in runs] == [
        ("inspected_attempt", 0, {}, None),
        ("inspected_failure", 1, {}, "it failed"),
        ("FoldConstant", 0, {"Add": -2}, None),
    ]


def test_members_of_a_sequence_that_is_named_run_whatever_their_level(capsys, path):
    _, out, _ = collage(capsys, "inspect", path, "--passes", "FoldConstant,FoldScaleAxis,prepare", "--json")
    runs = json.loads(out)["passes"]
    assert [run["skipped"] for run in runs if run["name"] == "BackwardFoldScaleAxis"] == [None]
    inside = [run for run in runs if run["name"] == "FoldScaleAxis" and run["depth"] > 0]
    assert inside and all("above the context's 2" in run["skipped"] for run in inside)


def test_a_pass_that_is_switched_off_by_its_option_says_so(capsys, path):
    code, out, _ = collage(capsys, "inspect", path, "--passes", "CollageFuseOps")
    assert code == 0 and "warning: nothing is done, since collage.enable_collage is not set" in out
