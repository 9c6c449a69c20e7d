from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from collage.integrations._eager_evidence import eager_evidence
from collage.integrations._torch_graph import PureGraph
from collage.numerics.judge import Evidence, judge


def pure(*written: int) -> PureGraph:
    """Tell apart the results of a graph whose outputs are new tensors."""
    return cast(PureGraph, SimpleNamespace(written=written, outputs_of=list))


def evidence_of(module: torch.nn.Module, *arguments: torch.Tensor) -> tuple[list[Any], list[Evidence]]:
    results = module(*arguments)
    return results, list(eager_evidence(module.forward, pure(), arguments, results))


class Cancels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [(x - x.mean(-1, keepdim=True)).sum(-1)]


class Decides(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [(x - x.mean(-1, keepdim=True)).sum(-1) > 0]


class Larger(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(-1) > 45]


def test_other_rounding_of_what_cancels_is_right_and_a_fault_is_not() -> None:
    x = torch.rand(64, 100, generator=torch.Generator().manual_seed(1))
    (result,), (evidence,) = evidence_of(Cancels(), x)
    answer = result.numpy()
    reversed_sum = (x - x.mean(-1, keepdim=True)).flip(-1).sum(-1).numpy()
    assert np.abs(evidence.truth).max() < 1e-10 < np.abs(answer).max()
    assert judge(reversed_sum, answer, 1e-4, evidence=evidence).ok
    assert not judge(answer + np.float32(0.01), answer, 1e-4, evidence=evidence).ok


def test_a_decision_on_what_cancels_is_a_tie() -> None:
    x = torch.rand(64, 100, generator=torch.Generator().manual_seed(1))
    (result,), (evidence,) = evidence_of(Decides(), x)
    answers, answer = np.stack(evidence.answers), result.numpy()
    ties = answers.any(0) & ~answers.all(0)
    assert ties.sum() > 10
    assert judge(answer ^ ties, answer, 0.0, evidence=evidence).ok
    (certain,), (evidence,) = evidence_of(Larger(), x)
    assert not judge(~certain.numpy(), certain.numpy(), 0.0, evidence=evidence).ok


def test_arguments_are_not_written_to() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.mul_(2) + 1]

    x = torch.ones(3)
    written, output = torch.full((3,), 2.0), torch.full((3,), 3.0)
    first, second = eager_evidence(Writes().forward, pure(0), (x,), [written, output])
    assert torch.equal(x, torch.ones(3))
    np.testing.assert_array_equal(first.truth, written.double().numpy())
    np.testing.assert_array_equal(second.truth, output.double().numpy())


def test_a_graph_that_runs_in_no_other_type_has_the_perturbed_answers() -> None:
    class Single(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x @ torch.ones(3, 3)]

    _, (evidence,) = evidence_of(Single(), torch.ones(2, 3))
    assert evidence.truth is None
    assert len(evidence.answers) == 5


def test_a_graph_that_fails_with_other_rounding_has_fewer_answers() -> None:
    class Looks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [torch.nn.functional.embedding(x.long(), torch.ones(4, 2))]

    _, (evidence,) = evidence_of(Looks(), torch.tensor([4 - 2**-22]))
    assert 1 <= len(evidence.answers) < 5

    class Widens(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.float()]

    _, (evidence,) = evidence_of(Widens(), torch.ones(3).to(torch.float8_e4m3fn))
    assert len(evidence.answers) == 1
