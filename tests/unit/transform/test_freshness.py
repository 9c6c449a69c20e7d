"""Requirements hold when a pass runs, whatever ran before; what passes report; whether they changed anything."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx_ir as ir
import pytest

from collage._errors import ConfigError, PassError, UsageError
from collage.transform import (
    Attempt,
    CrashReproducer,
    InferType,
    ModulePass,
    PassContext,
    PassInfo,
    Sequential,
    Severity,
    inspect_passes,
    model_text,
    module_pass,
    parse_pipeline,
    register_pass,
)

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[2, 3] x) => (float[2, 3] y) <float[3] b = {1.0, 2.0, 3.0}> { h = Add (x, b) y = Relu (h) }
"""


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(TEXT)


class Counting(ModulePass):
    """Counts its runs."""

    runs = 0

    def __init__(self) -> None:
        super().__init__(PassInfo("CountingAnalysis", opt_level=0))

    def transform_module(self, model, context):
        type(self).runs += 1
        return model


register_pass("CountingAnalysis", Counting, override=True)


@module_pass(opt_level=0, name="needs_it", required=["CountingAnalysis"])
def needs_it(model, context):
    return model


def append_identity(model, context):
    node = ir.Node("", "Identity", [model.graph.outputs[0]], name="more")
    model.graph.append(node)
    model.graph.outputs[0] = node.outputs[0]
    return model


def adding(**info) -> ModulePass:
    return ModulePass(PassInfo("adds", 0, **info), append_identity)


def runs_of(members, model) -> int:
    Counting.runs = 0
    Sequential(members)(model)
    return Counting.runs


def test_a_result_holds_until_the_model_changes(model):
    assert runs_of([needs_it, needs_it, needs_it], model) == 1
    assert runs_of([needs_it, adding(), needs_it], model) == 2
    assert runs_of([Counting(), needs_it, adding(), adding(), needs_it], model) == 2


def test_a_pass_that_looks_and_changes_nothing_costs_nothing(model):
    looks = ModulePass(PassInfo("looks", 0), lambda model, context: model.graph and model)
    assert runs_of([needs_it, looks, needs_it], model) == 1


@pytest.mark.parametrize("preserves", [["CountingAnalysis"], ["*"]])
def test_a_pass_may_say_what_it_preserves(model, preserves):
    assert runs_of([needs_it, adding(preserves=preserves), needs_it], model) == 1


def test_a_pass_of_onnx_ir_cannot_say_it_and_need_not(model):
    class Appends(ir.passes.InPlacePass):
        def call(self, model):
            append_identity(model, None)
            return ir.passes.PassResult(model, True)

    assert runs_of([needs_it, Appends(), needs_it], model) == 2


def test_another_pass_of_a_registered_name_does_not_stand_for_it(model):
    pretender = ModulePass(PassInfo("CountingAnalysis", 0), lambda model, context: model)
    assert runs_of([pretender, needs_it], model) == 1


def test_types_are_inferred_again_for_what_was_added(model):
    seen = []

    @module_pass(opt_level=0, name="reads_types", required=["InferType"])
    def reads_types(model, context):
        seen.append([value.dtype for node in model.graph for value in node.outputs])
        return model

    Sequential([InferType(), adding(), reads_types])(model)
    assert seen and None not in seen[0]


def test_several_errors_of_one_run_are_told_together(model):
    def strict(model, context):
        for node in model.graph:
            context.error("not allowed here", node)
        return model

    with pytest.raises(PassError, match=r"'?.*Add.*not allowed here; .*Relu.*not allowed here"):
        ModulePass(PassInfo("strict", 0), strict)(model)
    assert Sequential([Attempt(ModulePass(PassInfo("strict", 0), strict))])(model) is model


def test_warnings_and_remarks_are_collected(model, caplog):
    def talks(model, context):
        context.warn("look at this", model.graph.node(0))
        context.remark("nothing to do")
        return model

    talking = ModulePass(PassInfo("talks", 0), talks)
    result = talking.run(model)
    assert [(d.severity, d.pass_name, d.op_type) for d in result.diagnostics] == [
        (Severity.WARNING, "talks", "Add"),
        (Severity.REMARK, "talks", None),
    ]
    assert not caplog.records
    talking(model)
    assert "look at this" in caplog.text and "nothing to do" not in caplog.text
    register_pass("talks", talking, override=True)
    assert [each["pass"] for each in inspect_passes(model, "talks")["diagnostics"]] == ["talks", "talks"]


def test_whether_a_pass_changed_anything_is_told(model):
    changed = Sequential([needs_it, adding()]).run(model)
    assert changed.modified and changed.changed_by == ("adds",)
    assert len(model.graph) == 2
    same = Sequential([needs_it]).run(model)
    assert not same.modified and same.model is model and same.changed_by == ()


def test_constants_are_printed(model):
    assert "b = float[3] {1.0, 2.0, 3.0}" in model_text(model)
    assert "b = " not in model_text(model, only="Relu")
    large = ir.from_onnx_text(TEXT)
    large.graph.initializers["b"].const_value = ir.tensor([0.0] * 5000)
    assert "b = float[5000]\n" in model_text(large)


def test_a_failing_pass_leaves_what_it_takes_to_fail_again(model, tmp_path: Path):
    @module_pass(opt_level=0, name="fails_on_more")
    def fails_on_more(model, context):
        raise ValueError("no Identity, please") if len(model.graph) > 2 else ValueError("too early")

    register_pass("fails_on_more", fails_on_more, override=True)
    reproducer = CrashReproducer(tmp_path / "crash")
    with PassContext(opt_level=1, instruments=[reproducer]), pytest.raises(PassError):
        Sequential([adding(), fails_on_more])(model)
    assert reproducer.written == tmp_path / "crash"
    again = ir.load(tmp_path / "crash" / "model.onnx")
    assert [node.op_type for node in again.graph] == ["Add", "Relu", "Identity"]
    text = (tmp_path / "crash" / "pipeline.txt").read_text()
    assert "--passes fails_on_more --opt-level 1" in text and "no Identity, please" in text
    with pytest.raises(PassError, match="no Identity"):
        inspect_passes(again, "fails_on_more")


class WithOptions(ModulePass):
    def __init__(self, times: int = 1, word: str = "", loud: bool = False) -> None:
        super().__init__(PassInfo("WithOptions", opt_level=3))
        self.seen = (times, word, loud)

    def transform_module(self, model, context):
        context.remark(repr(self.seen))
        return model


register_pass("WithOptions", WithOptions, override=True)


class FailsBeyond(ModulePass):
    def __init__(self, times: int = 1, word: str = "", check: object = None) -> None:
        super().__init__(PassInfo("FailsBeyond", opt_level=0))
        self.times, self.word = times, word

    def transform_module(self, model, context):
        raise ValueError(f"failed {self.times} times {self.word}")


register_pass("FailsBeyond", FailsBeyond, override=True)


@pytest.mark.parametrize(
    "make", [lambda: FailsBeyond(2, word="so"), lambda: parse_pipeline("FailsBeyond{times=2,word=so}")]
)
def test_a_failing_pass_keeps_its_options(model, make, tmp_path: Path):
    reproducer = CrashReproducer(tmp_path / "crash")
    with PassContext(instruments=[reproducer]), pytest.raises(PassError):
        make()(model)
    command = shlex.split((tmp_path / "crash" / "pipeline.txt").read_text().splitlines()[0])
    pipeline = command[command.index("--passes") + 1]
    assert pipeline == "FailsBeyond{times=2,word=so}"
    with pytest.raises(PassError, match="failed 2 times so"):
        inspect_passes(model, pipeline)


def test_options_that_are_no_text_are_named(model, tmp_path: Path):
    with PassContext(instruments=[CrashReproducer(tmp_path / "crash")]), pytest.raises(PassError):
        FailsBeyond(check=print)(model)
    assert "the option check of FailsBeyond cannot be written" in (tmp_path / "crash" / "pipeline.txt").read_text()


def test_pipelines_are_read_from_text(model):
    pipeline = parse_pipeline("prepare, WithOptions{times=3, word=a, loud=true},WithOptions")
    assert [member.info.name for member in pipeline.passes] == ["prepare", "WithOptions", "WithOptions"]
    assert [member.seen for member in pipeline.passes[1:]] == [(3, "a", True), (1, "", False)]
    told = inspect_passes(model, "WithOptions{times=2}")
    assert told["diagnostics"] == [{"pass": "WithOptions", "text": "remark: (2, '', False)"}]


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("WithOption", ConfigError, "did you mean 'WithOptions'"),
        ("WithOptions{size=3}", ConfigError, "does not take size"),
        ("WithOptions{times}", UsageError, "cannot read option 'times'"),
        ("WithOptions{", UsageError, "cannot read"),
        ("", UsageError, "name at least one pass"),
        ("InferType,,InferType", UsageError, "cannot read"),
    ],
)
def test_what_is_no_pipeline_is_refused(text, error, match):
    with pytest.raises(error, match=match):
        parse_pipeline(text)


def test_inspecting_prepare_shows_what_compile_does(model):
    def names(**options):
        context = PassContext(**options)
        told = inspect_passes(model, "prepare", context=context)["passes"]
        return {row["name"]: row["skipped"] for row in told}

    assert names()["RecogniseOperators"]
    assert names(opt_level=3)["RecogniseOperators"] is None
    assert names(disabled_pass=["FoldConstant"])["FoldConstant"] == "disabled"


def test_a_node_without_a_name_is_called_by_its_output(model):
    def names_outputs(model, context):
        context.warn("look", model.graph.node(0))
        return model

    def fails(model, context):
        context.fail("no", model.graph.node(1))

    for node in model.graph:
        node.name = ""
    told = ModulePass(PassInfo("names_outputs", 0), names_outputs).run(model).diagnostics
    assert str(told[0]) == "warning: node 'h' (Add): look"
    with pytest.raises(PassError, match=r"node 'y' \(Relu\): no"):
        ModulePass(PassInfo("fails", 0), fails)(model)


def test_a_requirement_that_changes_the_model_does_not_make_those_before_it_stale(model):
    seen = []

    @module_pass(opt_level=0, name="counts_operators")
    def counts(mod, ctx):
        mod.graph.metadata_props["operators"] = ",".join(node.op_type for node in mod.graph)
        return mod

    @module_pass(opt_level=0, name="turns_relu_into_abs")
    def turns(mod, ctx):
        mod.graph[-1].op_type = "Abs"
        return mod

    @module_pass(opt_level=0, name="needs_both", required=["counts_operators", "turns_relu_into_abs"])
    def needs_both(mod, ctx):
        seen.append(mod.graph.metadata_props["operators"])
        return mod

    for each in (counts, turns):
        register_pass(each.info.name, each, override=True)
    needs_both(model)
    assert seen == ["Add,Abs"]
