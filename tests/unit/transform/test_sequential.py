"""Repetitions and attempts: the changes that they report, and contexts that are left in another thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from collage.transform import Attempt, PassContext, Repeat, Sequential, module_pass


def test_what_only_the_last_round_of_a_repetition_changes_is_in_the_result(model):
    @module_pass(opt_level=0)
    def negate(mod, ctx):
        mod.graph[0].op_type = "Neg"
        return mod

    result = Repeat(negate, max_rounds=0).run(model)
    assert result.modified and result.changed_by == ("negate",) and result.model.graph[0].op_type == "Neg"


def test_a_pass_whose_result_an_attempt_gives_up_changed_nothing(model):
    @module_pass(opt_level=0)
    def negate(mod, ctx):
        mod.graph[0].op_type = "Neg"
        return mod

    @module_pass(opt_level=0)
    def breaks(mod, ctx):
        raise ValueError("boom")

    @module_pass(opt_level=0)
    def renames(mod, ctx):
        mod.graph[0].op_type = "Exp"
        return mod

    result = Sequential([Attempt(Sequential([negate, breaks])), renames]).run(model)
    assert result.changed_by == ("renames",)


def test_a_generator_that_is_closed_in_another_thread_leaves_no_context_of_that_thread():
    def inside():
        with PassContext(opt_level=3):
            yield

    generator = inside()
    copy_context().run(next, generator)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(generator.close).result()
