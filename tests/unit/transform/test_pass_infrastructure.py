"""The rules of the pass infrastructure: gating, dependencies, events, errors, nesting, threads, contracts."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from tests.unit.transform.recording import Events

from collage import CollageError
from collage._errors import ConfigError, NothingCanRun, PassError
from collage.target import Target
from collage.transform import (
    Attempt,
    DumpIR,
    EliminateCommonSubexpr,
    FunctionPass,
    InferType,
    JsonLog,
    ModulePass,
    OpCountDiff,
    PassContext,
    PassTimer,
    PrintIR,
    Repeat,
    Sequential,
    VerifyAfterEach,
    bisect_passes,
    build_config,
    create_function_pass,
    create_module_pass,
    create_sequential_pass,
    function_pass,
    get_pass,
    list_config_options,
    list_passes,
    model_text,
    module_pass,
    register_config_option,
    register_pass,
    sequential,
)

# --- gating -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_sequence", [False, True])
@pytest.mark.parametrize(
    ("pass_level", "context_level", "options", "runs"),
    [
        (2, 2, {}, True),
        (3, 2, {}, False),
        (0, 0, {}, True),
        (3, 0, {"required_pass": ["gated"]}, True),
        (0, 3, {"disabled_pass": ["gated"]}, False),
        (0, 3, {"disabled_pass": ["gated"], "required_pass": ["gated"]}, False),
    ],
)
def test_one_rule_decides(recorder, model, in_sequence, pass_level, context_level, options, runs):
    gated = recorder.make("gated", pass_level)
    with PassContext(opt_level=context_level, **options):
        (Sequential([gated]) if in_sequence else gated)(model)
    assert recorder.ran == (["gated"] if runs else [])


def test_default_level_is_two(recorder, model):
    Sequential([recorder.make("two", 2), recorder.make("three", 3)])(model)
    assert recorder.ran == ["two"]


def test_sequences_nest_and_each_has_a_level_and_a_disabled_list(recorder, model):
    a, b, c = (recorder.make(name) for name in "abc")
    inner = Sequential([a, b, c], name="inner", disabled=["b"])
    high = create_sequential_pass("high", 3, [a])
    Sequential([inner, high, b])(model)
    assert recorder.ran == ["a", "c", "b"]
    recorder.ran.clear()
    Sequential([Sequential([a, b])], disabled=["a"])(model)
    assert recorder.ran == ["b"]


def test_empty_sequence_returns_the_same_model(model):
    assert Sequential([])(model) is model
    assert sequential()(model) is model


def test_skipped_pass_returns_the_same_model(model):
    with PassContext(disabled_pass=["InferType"]):
        assert InferType()(model) is model


# --- dependencies -----------------------------------------------------------------------------------------------------


def test_required_passes_run_first_and_once(recorder, model):
    recorder.register("dep_base", opt_level=3)
    recorder.register("dep_middle", required=("dep_base",))
    first = recorder.make("first", required=("dep_middle", "dep_base"))
    second = recorder.make("second", required=("dep_base",))
    Sequential([first, second])(model)
    assert recorder.ran == ["dep_base", "dep_middle", "first", "second"]


def test_required_passes_run_for_direct_calls_too(recorder, model):
    recorder.register("dep_direct")
    recorder.make("alone", required=("dep_direct",))(model)
    assert recorder.ran == ["dep_direct", "alone"]


@pytest.mark.parametrize("invalidates", [("dep_valid",), ("*",)])
def test_invalidated_passes_run_again(recorder, model, invalidates):
    recorder.register("dep_valid")
    user = recorder.make("user", required=("dep_valid",))
    Sequential([user, recorder.make("spoiler", invalidates=invalidates), user])(model)
    assert recorder.ran == ["dep_valid", "user", "spoiler", "dep_valid", "user"]


def test_a_circle_is_shown(recorder, model):
    recorder.register("ring_a", required=("ring_b",))
    recorder.register("ring_b", required=("ring_a",))
    with pytest.raises(ConfigError, match="ring_a -> ring_b -> ring_a"):
        get_pass("ring_a")(model)


def test_disabled_dependency_is_an_error(recorder, model):
    recorder.register("dep_off")
    user = recorder.make("user_of_off", required=("dep_off",))
    with PassContext(disabled_pass=["dep_off"]), pytest.raises(ConfigError, match="'dep_off', which is disabled"):
        user(model)


def test_unknown_dependency_is_an_error_with_a_suggestion(recorder, model):
    with pytest.raises(ConfigError, match="did you mean 'InferType'"):
        recorder.make("user_of_typo", required=("InferTyp",))(model)


# --- contexts ---------------------------------------------------------------------------------------------------------


def test_unknown_names_are_errors_with_suggestions():
    for option in ("disabled_pass", "required_pass"):
        with pytest.raises(ConfigError, match="FoldConstant"):
            PassContext(**{option: ["FoldConstants"]})
    with pytest.raises(ConfigError, match=r"collage\.enable_collage"):
        PassContext(config={"collage.enable_colage": True})
    with pytest.raises(ConfigError, match="list of names"):
        PassContext(disabled_pass="FoldConstant")
    with pytest.raises(ConfigError, match="FoldConstant"):
        get_pass("FoldConst")


def test_config_is_typed_and_has_defaults():
    register_config_option("test.ratio", float, 0.5, "A ratio.")
    assert "test.ratio" in [option.key for option in list_config_options()]
    assert PassContext().get_config("test.ratio") == 0.5
    assert PassContext(config={"test.ratio": 2}).get_config("test.ratio") == 2
    assert PassContext().get_config("collage.enable_collage") is False
    for config in ({"collage.enable_collage": 1}, {"collage.tvm_max_depth": True}, {"collage.tvm_max_depth": "8"}):
        with pytest.raises(ConfigError, match="takes"):
            PassContext(config=config)
    with pytest.raises(ConfigError, match="already registered"):
        register_config_option("test.ratio", int, 1, "Another.")


def test_nested_contexts_replace_and_restore():
    assert PassContext.current().opt_level == 2
    with PassContext(opt_level=3, disabled_pass=["InferType"]) as outer:
        assert PassContext.current() is outer
        with build_config(opt_level=0) as inner:
            assert PassContext.current() is inner
            assert not PassContext.current().disabled_pass
        assert PassContext.current() is outer
    assert PassContext.current().opt_level == 2


def test_threads_begin_with_the_default_and_tasks_inherit():
    seen: dict[str, int] = {}

    async def task(name: str, level: int) -> None:
        seen[f"{name} before"] = PassContext.current().opt_level
        with PassContext(opt_level=level):
            await asyncio.sleep(0.01)
            seen[name] = PassContext.current().opt_level

    async def main() -> None:
        await asyncio.gather(task("one", 1), task("three", 3))

    with PassContext(opt_level=0):
        thread = threading.Thread(target=lambda: seen.update(thread=PassContext.current().opt_level))
        thread.start()
        thread.join()
        asyncio.run(main())
    assert seen == {"thread": 2, "one before": 0, "three before": 0, "one": 1, "three": 3}


def test_with_target_sets_the_current_target_for_passes(model):
    seen = []

    @module_pass(opt_level=0)
    def look(mod, ctx):
        seen.append(Target.current())
        return mod

    plain, other = Target("llvm"), Target("llvm", compiler="other")
    look(model)
    with plain:
        look(model)
        with other:
            look(model)
        look(model)
        with pytest.raises(RuntimeError), other:
            raise RuntimeError
        thread = threading.Thread(target=look, args=(model,))
        thread.start()
        thread.join()
        look(model)
    assert seen == [None, plain, other, plain, None, plain]
    assert Target.current() is None


# --- decorators and contracts -----------------------------------------------------------------------------------------


def test_a_decorated_function_is_a_pass(model):
    @module_pass(opt_level=1)
    def rename(mod, ctx):
        mod.graph.name = f"level {ctx.opt_level}"
        return mod

    assert isinstance(rename, ModulePass)
    assert (rename.info.name, rename.info.opt_level) == ("rename", 1)
    assert rename(model).graph.name == "level 2"
    assert model.graph.name == "main"


def test_a_decorated_class_makes_passes(model):
    @function_pass(opt_level=1, name="Replace")
    class ReplaceOperator:
        """Replaces operators."""

        def __init__(self, old, new="Abs"):
            self.old, self.new = old, new

        def transform_function(self, func, mod, ctx):
            for node in func:
                node.op_type = self.new if node.op_type == self.old else node.op_type
            return func

    replace = ReplaceOperator("Relu")
    assert isinstance(replace, FunctionPass) and replace.info.name == "Replace"
    assert replace.old == "Relu"
    assert "Relu" not in model_text(replace(model)) and "Relu" in model_text(model)


def test_decorators_need_a_level_and_a_method():
    with pytest.raises(ConfigError, match="level"):
        module_pass(lambda mod, ctx: mod)
    with pytest.raises(ConfigError, match="transform_module"):

        @module_pass(opt_level=1)
        class Nothing:
            pass

    with pytest.raises(ConfigError, match="list"):
        module_pass(lambda mod, ctx: mod, opt_level=1, required="InferType")


def test_create_helpers(model):
    renamed = create_module_pass("helper_module", 1, lambda mod, ctx: mod)
    touched = create_function_pass("helper_function", 1, lambda func, mod, ctx: func)
    assert renamed(model) is model
    assert model_text(touched(model)) == model_text(model)


def test_function_pass_visits_main_graph_bodies_and_functions(model):
    seen = []

    @function_pass(opt_level=0)
    def visit(func, mod, ctx):
        seen.append(func.name)
        return func

    visit(model)
    assert seen == ["main", "then_body", "else_body", "f"]


@pytest.mark.parametrize("mark", ["SkipOptimization", "Primitive"])
def test_marked_functions_are_skipped_with_their_bodies(model, mark):
    seen = []

    @function_pass(opt_level=0)
    def visit(func, mod, ctx):
        seen.append(func.name)
        return func

    model.functions[("local", "f", "")].metadata_props[mark] = "1"
    visit(model)
    assert seen == ["main", "then_body", "else_body"]
    model.graph.metadata_props[mark] = "1"
    seen.clear()
    visit(model)
    assert seen == []


def test_function_pass_cannot_add_or_delete_functions(model):
    @function_pass(opt_level=0)
    def delete(func, mod, ctx):
        mod.functions.clear()
        return func

    with pytest.raises(PassError, match="cannot add or delete functions"):
        delete(model)
    assert len(model.functions) == 1


def test_function_pass_may_replace_a_graph(model):
    @function_pass(opt_level=0)
    def copy(func, mod, ctx):
        return func.clone(allow_outer_scope_values=True) if isinstance(func, ir.Graph) else func.clone()

    assert model_text(copy(model)) == model_text(model)


@pytest.mark.parametrize("wrong", [None, 3])
def test_passes_must_return_models(model, wrong):
    with pytest.raises(PassError, match="did you forget 'return'"):
        create_module_pass("wrong_module", 0, lambda mod, ctx: wrong)(model)
    with pytest.raises(PassError, match="not a Graph"):
        create_function_pass("wrong_function", 0, lambda func, mod, ctx: wrong)(model)
    with pytest.raises(TypeError, match=r"takes an onnx_ir\.Model"):
        InferType()(wrong)


def test_registry():
    assert {"InferType", "FoldConstant", "DeadCodeElimination", "PrintIR"} <= set(list_passes())
    assert isinstance(get_pass("InferType"), InferType)
    with pytest.raises(ConfigError, match="already registered"):
        register_pass("InferType", InferType)
    itself = create_module_pass("registered_itself", 0, lambda mod, ctx: mod)
    register_pass("registered_itself", itself, override=True)
    assert get_pass("registered_itself") is itself
    register_pass("another_name", InferType, override=True)
    with pytest.raises(ConfigError, match="registered as 'another_name' is called 'InferType'"):
        get_pass("another_name")


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_pass_its_place_and_those_before(recorder, model):
    @module_pass(opt_level=0)
    def breaks(mod, ctx):
        mod.graph.name = "half done"
        raise ValueError("boom")

    before = model_text(model)
    inner = Sequential([recorder.make("fine"), breaks], name="inner")
    with pytest.raises(PassError) as failure:
        Sequential([recorder.make("first"), inner], name="outer")(model)
    message = str(failure.value)
    assert "pass 'breaks', at outer[1][1], run after first, fine: ValueError: boom" in message
    assert message.count("boom") == 1
    assert isinstance(failure.value.__cause__, ValueError)
    assert model_text(model) == before


def test_errors_can_name_a_node(model):
    @function_pass(opt_level=0)
    def refuse(func, mod, ctx):
        ctx.fail("no thank you", next(iter(func)))

    model.graph[0].name = "the_node"
    with pytest.raises(PassError, match=r"pass 'refuse'.*node 'the_node' \(Relu\): no thank you"):
        refuse(model)


def test_errors_of_ours_keep_their_class(model):
    def nothing(mod, ctx):
        raise NothingCanRun("no toolchain takes it")

    with pytest.raises(NothingCanRun) as failure:
        Sequential([create_module_pass("nothing", 0, nothing)])(model)
    assert failure.value.exit_code == 3
    assert any("pass 'nothing'" in note for note in failure.value.__notes__)


def test_an_attempt_that_fails_or_breaks_the_model_is_skipped(model):
    def breaks(mod, ctx):
        mod.graph.name = "broken"
        raise ValueError("boom")

    def invalid(mod, ctx):
        next(iter(mod.graph)).op_type = "Concat"
        return mod

    before = model_text(model)
    passes = [Attempt(create_module_pass("breaks", 0, breaks)), Attempt(create_module_pass("invalid", 0, invalid))]
    assert model_text(Sequential(passes)(model)) == before


# --- instruments and tracing ------------------------------------------------------------------------------------------


def test_events_come_in_order(recorder, model):
    log: list[str] = []
    with PassContext(instruments=[Events("1", log), Events("2", log)]):
        recorder.make("p")(model)
    assert log == [
        *("1.enter", "2.enter", "1.should", "2.should", "1.before", "2.before", "1.after", "2.after"),
        *("1.exit", "2.exit"),
    ]


def test_all_instruments_are_asked_and_one_refusal_is_enough(recorder, model):
    log: list[str] = []
    instruments = [Events("1", log, allow=False), Events("2", log)]
    with PassContext(instruments=instruments):
        assert recorder.make("p")(model) is model
    assert recorder.ran == []
    assert log[2:-2] == ["1.should", "2.should", "1.skip", "2.skip"]
    with PassContext(instruments=instruments, required_pass=["p"]):
        recorder.make("p")(model)
    assert recorder.ran == ["p"]


def test_enter_that_fails_leaves_what_was_entered(model):
    log: list[str] = []
    context = PassContext(instruments=[Events("1", log), Events("2", log, "enter"), Events("3", log)])
    with pytest.raises(RuntimeError, match="2 at enter"), context:
        pytest.fail("the block must not run")
    assert log == ["1.enter", "2.enter", "1.exit"]
    assert context.instruments == () and PassContext.current() is not context


def test_exit_that_fails_drops_the_rest(model):
    log: list[str] = []
    context = PassContext(instruments=[Events("1", log), Events("2", log, "exit"), Events("3", log)])
    with pytest.raises(RuntimeError, match="2 at exit"), context:
        pass
    assert log == ["1.enter", "2.enter", "3.enter", "1.exit", "2.exit"]
    assert context.instruments == () and PassContext.current() is not context


def test_pass_that_fails_has_no_after(model):
    log: list[str] = []

    def breaks(mod, ctx):
        raise ValueError("boom")

    with pytest.raises(PassError), PassContext(instruments=[Events("1", log), Events("2", log)]):
        create_module_pass("breaks", 0, breaks)(model)
    assert log[4:] == ["1.before", "2.before", "1.error", "2.error", "1.exit", "2.exit"]


@pytest.mark.parametrize("event", ["should", "before", "after"])
def test_hook_that_fails_stops_the_rest_and_exits(recorder, model, event):
    log: list[str] = []
    instruments = [Events("1", log), Events("2", log, event), Events("3", log)]
    with pytest.raises(RuntimeError, match=f"2 at {event}"), PassContext(instruments=instruments):
        recorder.make("p")(model)
    assert f"3.{event}" not in log
    assert log[-3:] == ["1.exit", "2.exit", "3.exit"]
    assert PassContext.current().opt_level == 2


def test_tracing_sees_members_before_and_after(recorder, model):
    seen = []
    with PassContext(trace=lambda mod, info, is_before: seen.append((info.name, is_before))):
        Sequential([recorder.make("a"), recorder.make("b")])(model)
    assert seen == [("a", True), ("a", False), ("b", True), ("b", False)]


def test_shipped_instruments(model, tmp_path):
    timer, diff = PassTimer(), OpCountDiff()
    instruments = [timer, diff, DumpIR(tmp_path / "dump"), VerifyAfterEach(), JsonLog(tmp_path / "log.jsonl")]
    with PassContext(instruments=instruments, disabled_pass=["FoldConstant"]):
        Sequential([get_pass("InlineFunctions"), InferType(), get_pass("FoldConstant")], name="seq")(model)
    assert [line.split(":")[0] for line in timer.render().splitlines()] == ["seq", "  InlineFunctions", "  InferType"]
    assert diff.changes[0] == ("InlineFunctions", {"local.f": -1})
    dumped = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert dumped == ["000_InlineFunctions.txt", "001_InferType.txt", "002_seq.txt"]
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(e["event"], e["pass"]) for e in events][-2:] == [("skip", "FoldConstant"), ("after", "seq")]


def test_verification_names_the_pass_that_broke_the_model(recorder, model):
    def rename_input(mod, ctx):
        mod.graph.inputs[0].name = "other"
        return mod

    with (
        PassContext(instruments=[VerifyAfterEach()]),
        pytest.raises(PassError, match="'renames' changed the model's int"),
    ):
        Sequential([recorder.make("fine"), create_module_pass("renames", 0, rename_input)])(model)


def test_print_ir(model, capsys):
    Sequential([PrintIR("== before"), PrintIR(only="Neg")])(model)
    full, filtered = capsys.readouterr().out.split("\ngraph main", 1)
    assert full == "== before" or full.startswith("== before")
    assert "Relu(x)" in full + filtered and "Neg(b)" in filtered
    quiet = PrintIR(only_changed=True)
    Sequential([quiet, quiet])(model)
    assert capsys.readouterr().out.count("graph main") == 1


def test_bisect_finds_the_first_pass_that_breaks_a_property(model):
    def appender(letter):
        def append(mod, ctx):
            mod.graph.name = f"{mod.graph.name}{letter}"
            return mod

        return create_module_pass(f"append_{letter}", 0, append)

    passes = [appender(letter) for letter in "abXcd"]
    assert bisect_passes(passes, model, lambda m: "X" not in m.graph.name) == 2
    assert bisect_passes(passes, model, lambda m: True) is None
    with pytest.raises(ValueError, match="before the first"):
        bisect_passes(passes, model, lambda m: False)
    stumbles = create_module_pass("stumbles", 0, lambda mod, ctx: None if "X" in mod.graph.name else mod)
    assert bisect_passes([*passes, stumbles], model, lambda m: "X" not in m.graph.name) == 2
    with pytest.raises(PassError, match="stumbles"):
        bisect_passes([*passes, stumbles], model, lambda m: True)


# --- other people's passes, convergence, cost -------------------------------------------------------------------------


def test_passes_of_onnx_ir_run_in_ours_and_ours_in_theirs(model):
    ours = Sequential([common.InlinePass(), EliminateCommonSubexpr()])(model)
    assert not ours.functions and model.functions
    theirs = ir.passes.PassManager([common.InlinePass(), EliminateCommonSubexpr().to_onnx_ir()], steps=2)
    assert model_text(theirs(model).model) == model_text(ours)
    with pytest.raises(TypeError, match="is not a pass"):
        Sequential([lambda mod: mod])
    with pytest.raises(TypeError, match=r"to_onnx_ir\(\)"):
        ir.passes.Sequential(EliminateCommonSubexpr())


def test_a_sequence_that_does_not_converge_says_so(model, caplog):
    def flip(mod, ctx):
        node = mod.graph[0]
        node.op_type = "Neg" if node.op_type == "Relu" else "Relu"
        return mod

    quiet = create_module_pass("quiet", 0, lambda mod, ctx: mod)
    repeat = Repeat(Sequential([quiet, Sequential([create_module_pass("flip", 0, flip)])]), max_rounds=4)
    repeat(model)
    assert not repeat.converged
    assert "still changes the model after 4 rounds: flip" in caplog.text
    assert repeat.changing == ("flip",)


def test_an_empty_pass_costs_less_than_a_millisecond_on_3000_nodes(recorder):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    nodes, value = [], x
    for _ in range(3000):
        nodes.append(ir.node("Relu", [value]))
        value = nodes[-1].outputs[0]
    large = ir.Model(ir.Graph([x], [value], nodes=nodes, opset_imports={"": 18}, name="large"), ir_version=10)
    empty = recorder.make("empty")
    seconds = []
    for _ in range(20):
        start = time.thread_time()
        assert empty(large) is large
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 1e-3


def test_every_error_is_one_of_ours():
    assert issubclass(PassError, CollageError) and issubclass(ConfigError, CollageError)
