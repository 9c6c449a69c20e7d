"""What other pass managers test of theirs, asked of ours: events, nesting, threads, tracing, contracts."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules.common import reshape_reshape_rule
from tests.unit.transform.recording import Events

from collage._errors import ConfigError, PassError
from collage.transform import (
    Attempt,
    FoldConstant,
    InferType,
    JsonLog,
    ModulePass,
    PassContext,
    PassInfo,
    PassInstrument,
    PassTimer,
    Repeat,
    Sequential,
    create_module_pass,
    create_sequential_pass,
    function_pass,
    get_pass,
    list_passes,
    model_text,
    module_pass,
    register_pass,
)

# --- gating -----------------------------------------------------------------------------------------------------------


def test_a_required_sequence_runs_but_its_members_are_gated_by_their_own_level(recorder, model):
    high = create_sequential_pass("high_sequence", 3, [recorder.make("low", 1), recorder.make("top", 3)])
    with PassContext(required_pass=["high_sequence"]):
        high(model)
    assert recorder.ran == ["low"]


def test_the_rule_is_the_same_four_sequences_deep(recorder, model):
    nested = recorder.make("deep", 3)
    for _ in range(4):
        nested = Sequential([nested])
    nested(model)
    with PassContext(required_pass=["deep"]):
        nested(model)
    with PassContext(opt_level=3, disabled_pass=["deep"]):
        nested(model)
    assert recorder.ran == ["deep"]


def test_repeat_and_attempt_are_gated_like_what_they_hold(recorder, model):
    Sequential([Attempt(recorder.make("tried", 3)), Repeat(recorder.make("repeated", 3))])(model)
    assert recorder.ran == []
    with PassContext(opt_level=3, disabled_pass=["tried"]):
        Sequential([Attempt(recorder.make("tried", 3)), Repeat(recorder.make("repeated", 3))])(model)
    assert recorder.ran == ["repeated"]


def test_an_instrument_may_refuse_but_not_what_is_required(recorder, model):
    class OnlyMine(PassInstrument):
        def should_run(self, mod, info):
            return info.name in ("mine", "sequential")

    recorder.register("needed_here")
    passes = [recorder.make("other"), recorder.make("mine", required=("needed_here",)), recorder.make("forced")]
    with PassContext(instruments=[OnlyMine()], required_pass=["forced"]):
        Sequential(passes)(model)
    assert recorder.ran == ["needed_here", "mine", "forced"]


def test_a_skip_is_reported_with_its_reason(recorder, model, tmp_path):
    reasons = {}

    class Reasons(PassInstrument):
        def should_run(self, mod, info):
            return info.name != "refused"

        def on_skip(self, mod, info, reason):
            reasons[info.name] = reason

    passes = [recorder.make("off"), recorder.make("high", 3), recorder.make("refused"), recorder.make("runs")]
    with PassContext(instruments=[Reasons()], disabled_pass=["off"]):
        Sequential(passes)(model)
    assert reasons == {
        "off": "disabled",
        "high": "its level 3 is above the context's 2",
        "refused": "an instrument refused it",
    }


# --- dependencies -----------------------------------------------------------------------------------------------------


def test_a_diamond_of_dependencies_runs_each_once_in_order(recorder, model):
    recorder.register("bottom")
    recorder.register("left", required=("bottom",))
    recorder.register("right", required=("bottom",))
    recorder.make("top", required=("left", "right"))(model)
    assert recorder.ran == ["bottom", "left", "right", "top"]


def test_a_pass_that_ran_as_a_member_is_not_run_again_as_a_requirement(recorder, model):
    base = recorder.register("base_member")
    Sequential([base, recorder.make("user", required=("base_member",))])(model)
    assert recorder.ran == ["base_member", "user"]


def test_a_requirement_that_a_sequence_disables_is_an_error(recorder, model):
    recorder.register("off_here")
    with pytest.raises(ConfigError, match="requires 'off_here', which is disabled"):
        Sequential([recorder.make("user", required=("off_here",))], disabled=["off_here"])(model)


def test_a_pass_that_requires_itself_is_a_circle(recorder, model):
    recorder.register("narcissus", required=("narcissus",))
    with pytest.raises(ConfigError, match="narcissus -> narcissus"):
        get_pass("narcissus")(model)


def test_requirements_of_a_skipped_pass_do_not_run(recorder, model):
    recorder.register("for_nothing")
    Sequential([recorder.make("skipped", 3, required=("for_nothing",))])(model)
    assert recorder.ran == []


def test_a_failed_attempt_does_not_count_as_having_run(recorder, model, caplog):
    fails = [True, False]

    def sometimes(mod, ctx):
        if fails.pop(0):
            raise ValueError("not now")
        recorder.ran.append("shaky")
        return mod

    shaky = ModulePass(PassInfo("shaky", 0), sometimes)
    register_pass("shaky", lambda: shaky, override=True)
    lost = recorder.register("lost_inside")
    broken = create_module_pass("always_breaks", 0, lambda mod, ctx: None)
    with caplog.at_level(logging.WARNING):
        Sequential(
            [
                Attempt(shaky),
                Attempt(Sequential([lost, broken], name="both")),
                recorder.make("user", required=("shaky", "lost_inside")),
            ]
        )(model)
    assert recorder.ran == ["lost_inside", "shaky", "lost_inside", "user"]
    assert "'shaky' at sequential[0] is skipped" in caplog.text


def test_a_failure_of_a_requirement_says_who_required_it(recorder, model):
    def fails(mod, ctx):
        raise ValueError("boom")

    register_pass("fails_below", lambda: create_module_pass("fails_below", 0, fails), override=True)
    with pytest.raises(PassError, match=r"at fails_below \(required at sequential\[1\]\), run after first: ValueError"):
        Sequential([recorder.make("first"), recorder.make("user", required=("fails_below",))])(model)


# --- contexts and threads ---------------------------------------------------------------------------------------------


def test_an_exception_in_the_block_leaves_contexts_in_order():
    log: list[str] = []
    with pytest.raises(KeyError), PassContext(opt_level=3, instruments=[Events("1", log)]):
        raise KeyError
    assert log == ["1.enter", "1.exit"] and PassContext.current().opt_level == 2


def test_one_context_may_be_entered_again_inside_itself(recorder, model):
    context = PassContext(opt_level=3)
    with context:
        with context:
            recorder.make("three", 3)(model)
        recorder.make("three", 3)(model)
        assert PassContext.current() is context
    assert recorder.ran == ["three", "three"] and PassContext.current() is not context


def test_an_inner_context_has_its_own_instruments(recorder, model):
    log: list[str] = []
    with PassContext(instruments=[Events("outer", log)]), PassContext(instruments=[Events("inner", log)]):
        recorder.make("p")(model)
    assert log == [
        "outer.enter",
        "inner.enter",
        "inner.should",
        "inner.before",
        "inner.after",
        "inner.exit",
        "outer.exit",
    ]


def test_one_pass_in_many_threads_each_with_its_context(model):
    @module_pass(opt_level=0)
    def name_after_level(mod, ctx):
        barrier.wait(timeout=60)
        mod.graph.name = f"level {ctx.opt_level}"
        return mod

    barrier = threading.Barrier(4)
    passes = Sequential([Sequential([name_after_level])])

    def work(level: int) -> str:
        with PassContext(opt_level=level):
            return passes(model).graph.name

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [f"level {level}" for level in range(4)]
    assert model.graph.name == "main"


def test_a_pass_may_run_passes_under_a_context_of_its_own(recorder, model):
    inner = recorder.make("inner_three", 3)

    @module_pass(opt_level=0)
    def outer(mod, ctx):
        with PassContext(opt_level=3):
            mod = inner(mod)
        return inner(mod)

    outer(model)
    assert recorder.ran == ["inner_three"]


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_of_a_sequence_enclose_those_of_its_members(recorder, model):
    log: list[tuple[str, str]] = []

    class Names(PassInstrument):
        def run_before_pass(self, mod, info):
            log.append(("before", info.name))

        def run_after_pass(self, mod, info):
            log.append(("after", info.name))

    recorder.register("dep_of_b")
    passes = Sequential([recorder.make("a"), recorder.make("b", required=("dep_of_b",))], name="s")
    with PassContext(instruments=[Names()]):
        passes(model)
    names = ["before s", "before a", "after a", "before dep_of_b", "after dep_of_b", "before b", "after b", "after s"]
    assert [" ".join(event) for event in log] == names


def test_an_error_is_reported_for_each_sequence_around_it_innermost_first(recorder, model):
    log: list[str] = []

    class Errors(PassInstrument):
        def on_error(self, mod, info, error):
            log.append(info.name)

    bad = create_module_pass("bad", 0, lambda mod, ctx: None)
    with PassContext(instruments=[Errors(), PassTimer()]), pytest.raises(PassError):
        Sequential([Sequential([recorder.make("good"), bad], name="inner")], name="outer")(model)
    assert log == ["bad", "inner", "outer"]


@pytest.mark.parametrize("event", ["skip", "error"])
def test_a_hook_that_fails_while_skipping_or_failing(recorder, model, event):
    log: list[str] = []
    first, second = Events("1", log, event), Events("2", log)
    bad = create_module_pass("bad_again", 0, lambda mod, ctx: None)
    tried = recorder.make("off_again") if event == "skip" else bad
    with (
        pytest.raises(RuntimeError, match=f"1 at {event}"),
        PassContext(instruments=[first, second], disabled_pass=["off_again"] if event == "skip" else []),
    ):
        tried(model)
    assert f"2.{event}" not in log and log[-2:] == ["1.exit", "2.exit"]


@pytest.mark.parametrize("event", ["should", "before", "after", "skip", "error"])
@pytest.mark.parametrize(
    "wrap", [lambda p: p, lambda p: Sequential([Sequential([p])]), lambda p: Attempt(Sequential([p]))]
)
def test_what_an_instrument_raises_reaches_the_user_as_it_is(recorder, model, event, wrap):
    log: list[str] = []
    bad = create_module_pass("bad_once_more", 0, lambda mod, ctx: None)
    off = recorder.make("off_once_more")

    class OnlyTheInnermost(Events):
        def _note(self, name):
            if self.raise_at == "error" or self.inside:
                super()._note(name)

        inside = False

        def should_run(self, mod, info):
            self.inside = info.name.endswith("_more")
            return super().should_run(mod, info)

        def on_skip(self, mod, info, reason):
            self.inside = True
            super().on_skip(mod, info, reason)

    tried = bad if event == "error" else off
    before = model_text(model)
    with (
        pytest.raises(RuntimeError, match=f"^1 at {event}$"),
        PassContext(
            instruments=[OnlyTheInnermost("1", log, event)], disabled_pass=["off_once_more"] if event == "skip" else []
        ),
    ):
        wrap(tried)(model)
    assert f"1.{event}" in log and model_text(model) == before


def test_an_instrument_counts_passes_by_name(recorder, model):
    class Counter(PassInstrument):
        def __init__(self):
            self.before, self.after = [], []

        def run_before_pass(self, mod, info):
            self.before.append(info.name)

        def run_after_pass(self, mod, info):
            self.after.append(info.name)

    counter = Counter()
    with PassContext(instruments=[counter]):
        Sequential([recorder.make(name) for name in "aab"])(model)
    assert counter.before == ["sequential", *"aab"] and counter.after == [*"aab", "sequential"]
    recorder.make("outside")(model)
    assert "outside" not in counter.before


def test_the_log_tells_of_errors(model, tmp_path):
    bad = create_module_pass("bad_logged", 0, lambda mod, ctx: None)
    with PassContext(instruments=[JsonLog(tmp_path / "log")]), pytest.raises(PassError):
        bad(model)
    assert '"event": "error", "pass": "bad_logged"' in (tmp_path / "log").read_text()


# --- tracing ----------------------------------------------------------------------------------------------------------


def test_tracing_sees_requirements_and_skips_what_does_not_run(recorder, model):
    seen = []
    recorder.register("traced_dep")
    passes = [recorder.make("high", 3), recorder.make("user", required=("traced_dep",))]
    with PassContext(trace=lambda mod, info, is_before: seen.append((info.name, is_before))):
        Sequential(passes)(model)
    assert seen == [("traced_dep", True), ("traced_dep", False), ("user", True), ("user", False)]


def test_tracing_sees_the_model_before_and_after(model):
    names = []

    @module_pass(opt_level=0)
    def rename(mod, ctx):
        mod.graph.name = "after"
        return mod

    with PassContext(trace=lambda mod, info, is_before: names.append(mod.graph.name)):
        rename(model)
    assert names == ["main", "after"]


def test_a_trace_that_fails_fails_the_pass_and_leaves_the_model(recorder, model):
    def trace(mod, info, is_before):
        raise RuntimeError("no trace")

    before = model_text(model)
    with PassContext(trace=trace), pytest.raises(PassError, match="RuntimeError: no trace"):
        recorder.make("p")(model)
    assert recorder.ran == [] and model_text(model) == before


# --- contracts --------------------------------------------------------------------------------------------------------


def test_a_function_pass_cannot_add_or_rename_functions(model):
    @function_pass(opt_level=0)
    def add(func, mod, ctx):
        (function,) = [f.clone() for f in mod.functions.values()][:1]
        function.name = "another"
        mod.functions[function.identifier()] = function
        return func

    @function_pass(opt_level=0)
    def rename(func, mod, ctx):
        if isinstance(func, ir.Function):
            func.name = "renamed"
        return func

    with pytest.raises(PassError, match="cannot add or delete functions"):
        add(model)
    with pytest.raises(PassError, match="'renamed' was renamed"):
        rename(model)
    assert [function.name for function in model.functions.values()] == ["f"]


@pytest.mark.parametrize("mark", ["SkipOptimization", "Primitive"])
def test_a_marked_body_is_skipped(model, mark):
    seen = []

    @function_pass(opt_level=0)
    def visit(func, mod, ctx):
        seen.append(func.name)
        return func

    branch = next(node for node in model.graph if node.op_type == "If")
    branch.attributes["then_branch"].as_graph().metadata_props[mark] = "1"
    visit(model)
    assert seen == ["main", "else_body", "f"]


def test_a_module_pass_may_add_a_function(model):
    @module_pass(opt_level=0)
    def add(mod, ctx):
        (function,) = mod.functions.values()
        copy = function.clone()
        copy.name = "g"
        mod.functions[copy.identifier()] = copy
        return mod

    assert sorted(f.name for f in add(model).functions.values()) == ["f", "g"]
    assert len(model.functions) == 1


def test_a_pass_may_return_another_model(model):
    other = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="other"), ir_version=10)
    replace = create_module_pass("replace_model", 0, lambda mod, ctx: other)
    assert Sequential([replace, InferType()])(model).graph.name == "other"


def test_a_failure_late_in_a_sequence_leaves_the_model_and_its_weights(model):
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(2, np.float32), name="w"))
    model.graph.register_initializer(weight)
    before = ir.to_proto(model).SerializeToString()

    @module_pass(opt_level=0)
    def wreck(mod, ctx):
        mod.graph.initializers.clear()
        mod.functions.clear()
        mod.opset_imports.clear()
        mod.metadata_props["wrecked"] = "1"
        for node in mod.graph:
            node.op_type = "Wreck"
            node.attributes.clear()
        raise RuntimeError("wrecked")

    with pytest.raises(PassError, match="wrecked"):
        Sequential([FoldConstant(), InferType(), wreck])(model)
    assert ir.to_proto(model).SerializeToString() == before


# --- other people's passes --------------------------------------------------------------------------------------------


def test_passes_of_onnxscript_run_in_ours_gated_by_name(model):
    rewriter = RewritePass([reshape_reshape_rule])
    ran = []
    with PassContext(trace=lambda mod, info, before: ran.append(info.name) if before else None):
        Sequential([rewriter, common.DeduplicateInitializersPass(), common.NameFixPass()])(model)
    assert ran == ["RewritePass", "DeduplicateInitializersPass", "NameFixPass"]
    with PassContext(disabled_pass=["RewritePass"], trace=lambda mod, info, before: ran.append(info.name)):
        Sequential([rewriter])(model)
    assert len(ran) == 3


def test_ours_run_in_theirs_under_the_current_context(recorder, model):
    theirs = ir.passes.Sequential(recorder.make("three", 3).to_onnx_ir(), common.InlinePass(), InferType().to_onnx_ir())
    result = theirs(model.clone())
    assert result.modified and not result.model.functions and recorder.ran == []
    with PassContext(opt_level=3):
        theirs(model.clone())
    assert recorder.ran == ["three"]


def test_theirs_that_fail_are_reported_like_ours(model):
    class Breaks(ir.passes.InPlacePass):
        def call(self, mod):
            raise ValueError("theirs")

    with pytest.raises(PassError, match=r"pass 'Breaks', at sequential\[0\].*theirs"):
        Sequential([Breaks()])(model)


def test_theirs_can_be_registered_and_required_by_name(recorder, model):
    register_pass("InlinePass", common.InlinePass)
    user = recorder.make("wants_no_functions", required=("InlinePass",))
    assert not user(model).functions and recorder.ran == ["wants_no_functions"]
    with PassContext(disabled_pass=["InlinePass"]):
        assert get_pass("InlinePass")(model) is model


# --- installed passes -------------------------------------------------------------------------------------------------

INSTALLED = """
from collage.transform import ModulePass, PassInfo, module_pass

class Renames(ModulePass):
    def __init__(self):
        super().__init__(PassInfo("Renames", opt_level=3, required=["marks"]))

    def transform_module(self, model, context):
        model.graph.name += " and renamed"
        return model

@module_pass(opt_level=0)
def marks(model, context):
    model.graph.name = "marked"
    return model
"""


def test_passes_of_an_installed_package_are_found_by_name(install, recorder, model):
    assert "Renames" not in list_passes()
    install(INSTALLED, "[collage.passes]\nRenames = third_party_package:Renames\nmarks = third_party_package:marks\n")
    assert {"Renames", "marks"} <= set(list_passes())
    for ask in (get_pass, lambda name: PassContext(disabled_pass=[name])):
        with pytest.raises(ConfigError, match="did you mean 'Renames'"):
            ask("Rename")
    with PassContext(required_pass=["Renames"]):
        assert get_pass("Renames")(model).graph.name == "marked and renamed"
    assert recorder.make("user", required=("Renames",))(model).graph.name == "marked and renamed"
    with PassContext(opt_level=3, disabled_pass=["Renames"]):
        assert get_pass("Renames")(model) is model


def test_an_installed_package_that_cannot_be_imported_is_named(install):
    install("import no_such_module_here", "[collage.passes]\nbroken = third_party_package:Broken\n")
    assert "broken" in list_passes()
    with pytest.raises(
        ConfigError, match=r"'broken' cannot be loaded from 'third_party_package:Broken'.*no_such_module"
    ):
        get_pass("broken")


# --- what is no instrument, and what leaves its place -----------------------------------------------------------------


def test_what_is_no_instrument_is_refused_at_once():
    class Half:
        def run_before_pass(self, mod, info):
            pass

    for wrong in (Half(), PassTimer, None):
        with pytest.raises(ConfigError, match="is not an instrument"):
            PassContext(instruments=[wrong])


@pytest.mark.parametrize("names", [[InferType()], InferType(), 3, "InferType"])
def test_passes_are_switched_off_by_name(names):
    with pytest.raises(ConfigError, match="disabled_pass is a list of names"):
        PassContext(disabled_pass=names)


def test_a_generator_that_outlives_the_block_around_it_takes_its_own_context_with_it():
    def inside():
        with PassContext(opt_level=3):
            yield

    generator = inside()
    with PassContext(opt_level=1):
        next(generator)
        assert PassContext.current().opt_level == 3
    assert PassContext.current().opt_level == 3
    generator.close()
    assert PassContext.current().opt_level == 2


def test_an_interrupted_pass_is_an_error_to_instruments(recorder, model):
    def interrupted(mod, ctx):
        raise KeyboardInterrupt

    log: list[str] = []
    timer = PassTimer()
    with PassContext(instruments=[timer, Events("1", log)]):
        with pytest.raises(KeyboardInterrupt):
            create_module_pass("interrupted", 0, interrupted)(model)
        recorder.make("next")(model)
    assert log == ["1.enter", "1.should", "1.before", "1.error", "1.should", "1.before", "1.after", "1.exit"]
    assert [line.split(":")[0] for line in timer.render().splitlines()] == ["interrupted", "next"]
