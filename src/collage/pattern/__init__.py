"""The dataflow pattern language: find sub-graphs of a model by writing them down.

::

    conv = is_op("Conv")(wildcard("x"), is_const(), ...)
    pattern = conv >> is_op("Relu")
    for match in pattern.find_all(model):
        print(match.nodes, match["x"])

``docs/patterns.md`` is the tutorial, ``SOURCES.md`` names the proposal that the language follows.
"""

from collage.pattern import library
from collage.pattern._base import Pattern, PatternLike, PdomSeq, Seq, attr_eq, where_all
from collage.pattern._builder import Builder, NotApplicable
from collage.pattern._constraints import NonLeafExternUse
from collage.pattern._explain import Explanation, closest, explain
from collage.pattern._function_rule import rule
from collage.pattern._match import Match, NotInMatch
from collage.pattern._nodes import (
    absent,
    any_op,
    is_const,
    is_elementwise,
    is_injective,
    is_input,
    is_op,
    is_out_fusible,
    is_reduce,
    maybe,
    repeat,
    wildcard,
)
from collage.pattern._operators import attributes as attributes_of
from collage.pattern._rewrite import Application, RewriteLoop, RewriteResult, RewriteRule, rewrite
from collage.pattern._sequence import Group, dominates, dup, fork_to, make, together
from collage.pattern._solver import MatchBudgetExceeded

__all__ = [
    "Application",
    "Builder",
    "Explanation",
    "Group",
    "Match",
    "MatchBudgetExceeded",
    "NonLeafExternUse",
    "NotApplicable",
    "NotInMatch",
    "Pattern",
    "PatternLike",
    "PdomSeq",
    "RewriteLoop",
    "RewriteResult",
    "RewriteRule",
    "Seq",
    "absent",
    "any_op",
    "attr_eq",
    "attributes_of",
    "closest",
    "dominates",
    "dup",
    "explain",
    "fork_to",
    "is_const",
    "is_elementwise",
    "is_injective",
    "is_input",
    "is_op",
    "is_out_fusible",
    "is_reduce",
    "library",
    "make",
    "maybe",
    "repeat",
    "rewrite",
    "rule",
    "together",
    "where_all",
    "wildcard",
]
