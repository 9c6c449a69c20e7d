"""The user's choices for single operators: a target that has to run them, and targets that may not."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from collage._errors import NothingCanRun, UsageError
from collage.fusion import CandidateKernel
from collage.graph import DataflowGraph, IndexSet, SubGraph, all_nodes
from collage.option_texts import fits
from collage.target import HOST_TARGET, Target

__all__ = ["Choices"]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Operators, as bits, and a name of targets.

    Attributes:
        text: The choice as the user wrote it.
        bits: The operators that it is about.
        targets: The targets that it names.
    """

    text: str
    bits: int
    targets: frozenset[Target]


@dataclass(frozen=True, slots=True)
class Choices:
    """Rules that say which targets may run which operators.

    Attributes:
        forced: Operators that only the named targets may run.
        forbidden: Operators that the named targets may not run.
    """

    forced: tuple[_Choice, ...] = ()
    forbidden: tuple[_Choice, ...] = ()

    @classmethod
    def of(cls, graph: DataflowGraph, menu: Sequence[Target], force: Iterable[str], forbid: Iterable[str]) -> Choices:
        """Read choices such as ``/Resize:llvm`` (forced) and ``openvino:/TopK`` (forbidden).

        Args:
            graph: The prepared model.
            menu: The targets.
            force: Operators, a colon and a target. Operators are a name or a type, with ``*`` and ``?``.
            forbid: A target, a colon and operators.

        Raises:
            UsageError: A text cannot be read, names no operator of the model, or no target of the menu.
        """
        forced = [_read(graph, menu, text, *_split(text, "--force", "NODE:TARGET", last=True)) for text in force]
        forbidden = [
            _read(graph, menu, text, *reversed(_split(text, "--forbid", "TARGET:NODE", last=False)), in_bodies=True)
            for text in forbid
        ]
        for number, one in enumerate(forced):
            for other in forced[:number]:
                if one.bits & other.bits and not one.targets & other.targets:
                    node = graph.node(IndexSet(one.bits & other.bits).first)
                    raise UsageError(f"{node.name!r} is forced twice, by {other.text!r} and {one.text!r}")
        return cls(tuple(forced), tuple(forbidden))

    def __bool__(self) -> bool:
        return bool(self.forced or self.forbidden)

    def allows(self, sub_graph: SubGraph, target: Target) -> bool:
        """Return True if a target may run these operators. Tuned variants of a target count as it."""
        bits = sub_graph.inside.bits
        if any(choice.bits & bits and not _names(choice, target) for choice in self.forced):
            return False
        return not any(choice.bits & bits and _names(choice, target) for choice in self.forbidden)

    def within(self, candidates: Iterable[CandidateKernel]) -> list[CandidateKernel]:
        """Return the candidates that the choices allow."""
        return [candidate for candidate in candidates if self.allows(candidate.sub_graph, candidate.target)]

    def check(
        self, graph: DataflowGraph, candidates: Iterable[CandidateKernel], why_refused: Callable[[int], str]
    ) -> None:
        """Refuse choices that leave a forced operator without any kernel.

        Args:
            graph: The prepared model.
            candidates: All candidates that the choices allow.
            why_refused: Returns the reason why targets do not take an operator.

        Raises:
            NothingCanRun: A forced target takes one of its operators neither alone nor in a larger kernel.
        """
        covered = 0
        for candidate in candidates:
            covered |= candidate.bits
        for choice in self.forced:
            if left := choice.bits & ~covered:
                first = IndexSet(left).first
                node, told = graph.node(first), why_refused(first) or "no kernel of it was proposed"
                raise NothingCanRun(f"{node.name!r} ({node.op_type}) cannot be forced as {choice.text!r} says: {told}")


def _names(choice: _Choice, target: Target) -> bool:
    return any(
        (target.kind, target.compiler, target.libs) == (named.kind, named.compiler, named.libs)
        and set(named.options) <= set(target.options)
        for named in choice.targets
    )


def _split(text: str, option: str, form: str, *, last: bool) -> tuple[str, str]:
    """Return both sides of the colon: the last one if the name of an operator, which may hold some, comes first."""
    left, colon, right = text.rpartition(":") if last else text.partition(":")
    if not (left and colon and right):
        raise UsageError(f"cannot read {option} {text!r}; write {form}, such as {_EXAMPLES[option]}")
    return left.strip(), right.strip()


_EXAMPLES = {"--force": '"/Resize:llvm"', "--forbid": '"openvino:TopK"'}


def _read(
    graph: DataflowGraph, menu: Sequence[Target], text: str, nodes: str, target: str, *, in_bodies: bool = False
) -> _Choice:
    """Read a choice. A target that may not run an operator may not run one either that holds such an operator in a body."""
    bits = 0
    for i, node in enumerate(graph.nodes):
        meant = all_nodes([node]) if in_bodies else (node,)
        if any(fits(str(each.name), nodes) or fits(each.op_type, nodes) for each in meant):
            bits |= 1 << i
    if not bits:
        names = [str(node.name) for node in graph.nodes]
        near = difflib.get_close_matches(nodes, sorted({*names, *(node.op_type for node in graph.nodes)}), 3, 0.5)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        raise UsageError(f"{text!r}: no operator of the prepared model is called {nodes!r} or of that type{hint}")
    everything = [*menu, HOST_TARGET]
    exact = [each for each in everything if target in (str(each), each.short)]
    named = exact or [each for each in everything if target == each.toolchain]
    if not named:
        known = ", ".join(each.short for each in menu)
        raise UsageError(f"{text!r}: {target!r} is not on the menu, which is {known}")
    return _Choice(text, bits, frozenset(named))
