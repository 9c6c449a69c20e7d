"""A graph that goes through a file is the same graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.integrations.torch_modules import CASES

from collage._errors import CollageError
from collage.integrations._argument_copies import ArgumentCopies
from collage.integrations._graph_cache import GraphFacts, fingerprint
from collage.integrations._graph_file import read_graph, write_graph
from collage.integrations._torch_graph import PureGraph, weights_of


def taken_apart(graph: torch.fx.GraphModule, arguments: Any) -> Any:
    try:
        pure = PureGraph(graph, arguments, GraphFacts((), (), ()))
    except CollageError as error:
        return str(error)
    return pure.takes, pure.has_work, pure.lengths(arguments), pure._shared


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_same_graph(name: str, tmp_path: Path) -> None:
    count = 0

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            write_graph(graph, tmp_path / "graph")
            copy = read_graph(tmp_path / "graph")
            assert weights_of(copy, arguments) == weights_of(graph, arguments)
            weights = weights_of(graph, arguments)
            assert fingerprint(copy, weights) == fingerprint(graph, weights)
            assert taken_apart(copy, arguments) == taken_apart(graph, arguments)
            own = ArgumentCopies(arguments).made()
            torch.manual_seed(0)
            theirs = graph.forward(*arguments)
            torch.manual_seed(0)
            torch.testing.assert_close(copy.forward(*own), theirs)
            return theirs

        return call

    torch._dynamo.reset()
    module = CASES[name].make()
    compiled = torch.compile(module, backend=backend)
    with torch.no_grad():
        for arguments in CASES[name].calls():
            compiled(*arguments)
    assert count or "recurrent" in name  # PyTorch traces no such layers.
