"""Plans: which sub-graphs of a graph become which kernels, and which kernels the bodies inside them consist of."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from collage.device import SEScope
from collage.graph import SubGraph
from collage.target import Target

__all__ = ["AnyKernel", "Identity", "Plan", "PlannedKernel", "identity_of", "leaves_of"]


class AnyKernel(Protocol):
    """A sub-graph for a target: a candidate, or a kernel of a plan."""

    @property
    def sub_graph(self) -> SubGraph:
        """Its nodes."""
        ...

    @property
    def target(self) -> Target:
        """The target that the kernel is compiled for."""
        ...

    @property
    def bodies(self) -> tuple[Plan, ...]:
        """The plan of each body of an If, a Loop or a Scan whose bodies are kernels of their own; empty for all others."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One kernel of a plan.

    Attributes:
        sub_graph: Its nodes.
        target: The target that it is compiled for.
        rule: The rule that proposed it.
        device: The device that it runs on; None if neither the search nor the plan chooses.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time. None if it is
            in none.
        cost: The measured or estimated cost when the plan was chosen, as text; None if that is not known.
        bodies: For one If, Loop or Scan: the plan of each body, in order of attribute name. Empty if a toolchain compiles
            the operator with its bodies.
    """

    sub_graph: SubGraph
    target: Target
    rule: str = field(default="", compare=False)
    device: SEScope | None = None
    branch: int | None = None
    cost: str | None = field(default=None, compare=False)
    bodies: tuple[Plan, ...] = ()

    @property
    def key(self) -> Hashable:
        """The key that tells it from other kernels of its graph, whichever rule proposed it."""
        bodies = tuple(body.key for body in self.bodies)
        return self.sub_graph.key, self.target.without_rule, self.device, self.branch, bodies


@dataclass(frozen=True, slots=True)
class Plan:
    """A disjoint, covering, acyclic choice of kernels, and of where and when each runs.

    Attributes:
        name: Name for people; empty for the plan of a body.
        kernels: Its kernels, in the order in which they begin to run.
        single: The target that runs the whole model alone, if one does.
    """

    name: str
    kernels: tuple[PlannedKernel, ...]
    single: Target | None = None

    @property
    def key(self) -> Hashable:
        """The key that plans share if they run the same nodes in the same kernels at the same places."""
        return tuple(kernel.key for kernel in self.kernels)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets of its kernels, each once."""
        return tuple(dict.fromkeys(kernel.target for kernel in self.kernels))

    @property
    def leaves(self) -> tuple[Target, ...]:
        """The targets whose toolchains it loads, each once: those of kernels in bodies too."""
        return tuple(dict.fromkeys(leaf for kernel in self.kernels for leaf in leaves_of(kernel)))

    @property
    def branches(self) -> int:
        """Number of branches that run at the same time; 0 if kernels run one after the other."""
        return len({kernel.branch for kernel in self.kernels} - {None})

    def same_kernels(self, other: Plan) -> bool:
        """Return True if both run the same nodes in the same kernels at the same places, whichever rule proposed them."""
        return self.key == other.key


Identity = tuple[SubGraph, Target, tuple[Plan, ...]]
"""The identity of a kernel among all kernels of a graph: its nodes, its target, and the plans of its bodies."""


def identity_of(kernel: AnyKernel) -> Identity:
    """Return the identity of a kernel, which its twins, with other weights, do not share."""
    return kernel.sub_graph, kernel.target, kernel.bodies


def leaves_of(kernel: AnyKernel) -> tuple[Target, ...]:
    """Return the targets whose toolchains load a kernel: its own, or those of the kernels in its bodies."""
    if not kernel.bodies:
        return (kernel.target,)
    return tuple(dict.fromkeys(leaf for body in kernel.bodies for leaf in body.leaves))
