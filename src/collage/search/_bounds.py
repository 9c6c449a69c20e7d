"""Bounds: what covering each node costs at least.

A **potential** gives every node a share such that no candidate costs less than the shares of its nodes together. Then the
shares of all uncovered nodes bound the way to the goal from below, whichever candidates are taken; a candidate's
**slack** (its weight without its shares) is what taking it adds to that bound. Where the slack exceeds what the best known
cover leaves, the candidate lies on no best path and is dropped.

This is the dual of the linear programme whose integer solutions are the covers, solved approximately by raising one share
after the other. For chains, raised in order, it is exact unless a kernel costs less than a part of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage.search._problem import Ints, Problem

__all__ = ["potential", "slacks"]


def slacks(problem: Problem[Any], weights: Ints, shares: Ints) -> Ints:
    """Weight of each candidate above the shares of its nodes, [candidates]; never negative for a potential."""
    return weights - problem.totals(shares)


def potential(problem: Problem[Any], weights: Ints, start: Ints | None = None) -> Ints:
    """A potential for these weights, [nodes].

    Args:
        problem: The problem. Every node is held by a candidate.
        weights: Coarse weights of all candidates, [candidates].
        start: A potential for other weights of the same problem, to begin from.
    """
    shares = np.zeros(problem.n, dtype=np.int64) if start is None else start.copy()
    slack = slacks(problem, weights, shares)
    _lower(problem, shares, slack)
    for node in range(problem.n):
        holders = problem.holders(node)
        rise = slack[holders].min()
        if rise > 0:
            shares[node] += rise
            slack[holders] -= rise
    return shares


def _lower(problem: Problem[Any], shares: Ints, slack: Ints) -> None:
    """Takes from the nodes of every candidate that costs less than their shares what they have too much."""
    for candidate in np.flatnonzero(slack < 0):
        missing = -int(slack[candidate])
        if missing <= 0:
            continue
        nodes = problem.nodes(candidate)
        each = -(-missing // len(nodes))
        shares[nodes] -= each
        for node in nodes:
            slack[problem.holders(node)] += each
