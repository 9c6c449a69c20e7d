"""Modules under ``torch.compile`` do what they do without: outputs, buffers, parameters and inputs, over several calls.

What is exported runs on ONNX Runtime directly, so that many modules are tried. ``test_torch_compile.py`` compiles a few.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.unit.integrations.torch_modules import CASES, Broadcast, Counter, Normal, Rebound, Reshaping, Views

import collage.compiler.pipeline
from collage.integrations import _compiled_graph, _torch_options
from collage.runtime._tensors import as_numpy


class Directly:
    """A model on ONNX Runtime, with ``Executable``'s method."""

    def __init__(self, model: ir.Model) -> None:
        self.session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
        self.names = [port.name for port in self.session.get_inputs()]

    def run(self, inputs: list[Any]) -> dict[str, Any]:
        values = self.session.run(None, dict(zip(self.names, map(as_numpy, inputs), strict=True)))
        return dict(zip((port.name for port in self.session.get_outputs()), values, strict=True))


@pytest.fixture
def compiled_models(monkeypatch) -> list[ir.Model]:
    """What was handed to ``collage.compile``, which hands it on to ONNX Runtime."""
    models: list[ir.Model] = []

    def compile(model: ir.Model, *_: Any, **__: Any) -> Directly:
        models.append(model)
        return Directly(model)

    monkeypatch.setattr(collage.compiler.pipeline, "compile", compile)
    monkeypatch.setattr(_torch_options, "_default_cache", lambda: None)  # ``Directly`` cannot be saved.
    monkeypatch.setattr(_compiled_graph, "MOST_RACES", 0)  # PyTorch would win most of them.
    torch._dynamo.reset()
    return models


def made_twice(make: Any, seed: int) -> tuple[Any, Any]:
    both = []
    for _ in range(2):
        torch.manual_seed(seed)
        both.append(make())
    return both[0], both[1]


def assert_same(ours: Any, theirs: Any) -> None:
    """The same structure, types, numbers, and places in memory relative to each other."""
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert theirs.layout is not torch.strided or ours.stride() == theirs.stride()
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_same(ours[name], theirs[name])
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def shared_memory(values: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return pairs of tensors in the same memory, and how far apart they begin."""
    values = [value for value in values if value.layout is torch.strided]
    stores = [value.untyped_storage().data_ptr() for value in values]
    return [
        (i, j, values[j].data_ptr() - values[i].data_ptr())
        for i in range(len(values))
        for j in range(i)
        if stores[i] == stores[j] != 0
    ]


def compared(make: Any, calls: Any, *, before_call: Any = None, **options: Any) -> list[str]:
    """Call a module with and without ``torch.compile``, compare all that can be seen, and return the warnings."""
    plain, inner = made_twice(make, 0)
    plain_calls, inner_calls = made_twice(calls, 1)
    compiled = torch.compile(inner, backend="collage", options={"wait": True}, **options)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n, (theirs, ours) in enumerate(zip(plain_calls, inner_calls, strict=True)):
            results = []
            for module, function, arguments in ((plain, plain, theirs), (inner, compiled, ours)):
                if before_call is not None:
                    before_call(module, n)
                torch.manual_seed(2)
                output = function(*arguments)
                state = [*module.parameters(), *module.buffers()]
                results.append((output, state, list(arguments)))
            (their_output, their_state, _), (our_output, our_state, _) = results
            assert_same(our_output, their_output)
            assert_same(our_state, their_state)
            assert_same(list(ours), list(theirs))
            sharing = [
                shared_memory([*tensors_in(output), *state, *tensors_in(arguments)])
                for output, state, arguments in results
            ]
            assert sharing[1] == sharing[0]
    return [str(one.message) for one in caught if str(one.message).startswith("collage")]


@pytest.mark.few(12)
@pytest.mark.parametrize("name", CASES)
def test_a_module_does_what_it_does_without(name: str, compiled_models: list[ir.Model]) -> None:
    case = CASES[name]
    said = compared(case.make, case.calls)
    assert len(said) <= 1
    if case.compiled is not None:
        assert bool(compiled_models) == case.compiled
        assert bool(said) != case.compiled


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CASES)
def test_a_module_whose_weights_are_frozen_does_the_same(name: str, compiled_models: list[ir.Model]) -> None:
    case = CASES[name]
    with torch._inductor.config.patch(freezing=True):
        said = compared(case.make, case.calls)
    assert len(said) <= 1
    if case.compiled is not None:
        assert bool(compiled_models) == case.compiled


def test_a_length_that_grows_is_compiled_twice_in_all(compiled_models: list[ir.Model]) -> None:
    assert not compared(Reshaping, lambda: [(torch.randn(2, n),) for n in range(4, 20, 2)])
    assert len(compiled_models) == 2  # Once for the first length, and once for all others.
    assert not compared(Views, lambda: [(torch.randn(n, 3),) for n in range(4, 9)], dynamic=True)
    assert len(compiled_models) == 3


def test_a_length_that_the_graph_fixes_is_no_symbol(compiled_models: list[ir.Model]) -> None:
    assert not compared(Broadcast, lambda: [(torch.randn(n, 3),) for n in range(4, 7)], dynamic=True)
    assert len(compiled_models) == 1


def test_lengths_that_are_fixed_are_left_to_pytorch_after_the_second(compiled_models: list[ir.Model]) -> None:
    said = compared(lambda: Normal(False), lambda: [(torch.randn(n, 4),) for n in range(2, 7)], dynamic=False)
    assert [line for line in said if "without dynamic=False" in line]
    assert len(compiled_models) == 2


def test_a_branch_on_a_length_is_no_more_than_pytorch_made_of_it(compiled_models: list[ir.Model]) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] % 5 == 0 else x - 1

    compared(Branch, lambda: [(torch.randn(n, 2),) for n in (5, 10, 6, 15, 7)])
    assert compiled_models


def test_a_view_of_memory_that_two_arguments_share_is_pytorchs(compiled_models: list[ir.Model]) -> None:
    class Second(torch.nn.Module):
        def forward(self, x, y):
            return x * 2, y[1:]

    apart = (torch.randn(4), torch.randn(4))
    (said,) = compared(Second, lambda: [tuple(torch.randn(8).chunk(2)), apart, tuple(torch.randn(8).chunk(2))])
    assert "two arguments share" in said


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4), torch.nn.GELU()).eval()
        self.scale = 0.5

    def forward(self, x, divisor):
        return self.norms(x) * self.scale + torch.full_like(x, divisor) / divisor


def test_numbers_that_dynamo_makes_variables_are_constants(compiled_models: list[ir.Model]) -> None:
    calls = [(torch.randn(n, 4), 2.0) for n in (3, 5, 6)]
    assert not compared(Scaled, lambda: calls, dynamic=True)
    assert len(compiled_models) == 1


def test_pytorch_runs_calls_with_more_numbers_than_graphs_are_compiled_for(compiled_models: list[ir.Model]) -> None:
    divisors = [2.5, 3.5, 1.5, 4.5, 2.5, 7.0, 8.0, 3.5]
    with pytest.warns(RuntimeWarning, match="4 other sets of its numbers"):
        module = Scaled()
        compiled = torch.compile(module, backend="collage", options={"wait": True}, dynamic=True)
        with torch.no_grad():
            for divisor in divisors:
                x = torch.randn(3, 4)
                torch.testing.assert_close(compiled(x, divisor), module(x, divisor), rtol=1e-4, atol=1e-5)
    assert len(compiled_models) == 4


def fill(module: Any, n: int) -> None:
    module.total.fill_(n)


def load(module: Any, n: int) -> None:
    module.load_state_dict({name: value + n for name, value in module.state_dict().items()})


def assign(module: Any, n: int) -> None:
    module.linear.bias = torch.nn.Parameter(module.linear.bias + n)


def point_elsewhere(module: Any, n: int) -> None:
    module.linear.weight.data = module.linear.weight + n


def write_data(module: Any, n: int) -> None:
    module.linear.weight.data.add_(n)


def write_by_numpy(module: Any, n: int) -> None:
    module.linear.bias.detach().numpy()[1] += n


def step(module: Any, n: int) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    with torch.enable_grad():
        module.linear(torch.ones(2, 4)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()


@pytest.mark.parametrize(
    "change",
    [
        *(load, step, write_data),
        *(pytest.param(change, marks=pytest.mark.slow) for change in (assign, point_elsewhere, write_by_numpy)),
    ],
)
def test_weights_that_anybody_changes_are_noticed_and_become_inputs(change, compiled_models: list[ir.Model]) -> None:
    calls = 6
    said = compared(lambda: Normal(False), lambda: [(torch.randn(3, 4),)] * calls, before_call=change)
    assert not said
    assert (
        len(compiled_models) <= 4
    )  # A tensor that was replaced is noticed when it is gone, which may take another call.
    assert len(compiled_models[-1].graph.inputs) > 1


@pytest.mark.parametrize("change", [load, write_data, assign])
def test_a_change_after_calls_that_had_nothing_to_decide_is_noticed(change, compiled_models: list[ir.Model]) -> None:
    def once(module: Any, n: int) -> None:
        if n == 5:
            change(module, n)

    assert not compared(lambda: Normal(False), lambda: [(torch.randn(3, 4),)] * 8, before_call=once)
    assert len(compiled_models) == 2


@pytest.mark.parametrize("options", [{}, {"freezing": True}])
def test_of_frozen_weights_only_other_tensors_are_noticed(
    options: dict[str, bool], compiled_models: list[ir.Model]
) -> None:
    from torch._inductor import config

    module, x = Normal(False), torch.randn(3, 4)
    compiled = torch.compile(module, backend="collage", options={"wait": True, **options})
    with torch.no_grad(), config.patch(freezing=not options):
        for _ in range(3):
            before = compiled(x)
        module.linear.bias.add_(1)
        assert_same(compiled(x), before)
        module.linear.bias = torch.nn.Parameter(module.linear.bias + 1)
        for _ in range(3):
            assert_same(compiled(x), module(x))
    assert len(compiled_models) == 2


def test_a_buffer_that_is_filled_from_outside_is_noticed(compiled_models: list[ir.Model]) -> None:
    assert not compared(Rebound, lambda: [(torch.randn(2, 3),)] * 5, before_call=fill)
    assert len(compiled_models) <= 3


def test_tensors_made_in_inference_mode_are_no_constants(compiled_models: list[ir.Model]) -> None:
    with torch.inference_mode():
        module = Normal(False)
        compiled = torch.compile(module, backend="collage", options={"wait": True})
        for n in range(3):
            module.linear.bias.fill_(n)
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(compiled_models) == 1


def test_in_inference_mode_it_is_compiled(compiled_models: list[ir.Model], recwarn) -> None:
    module = Normal(False)
    with torch.inference_mode():
        x = torch.randn(3, 4)
        y = torch.compile(module, backend="collage", options={"wait": True})(x)
        torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)
    assert len(compiled_models) == 1
    assert not [one for one in recwarn if "collage" in str(one.message)]


def test_with_gradients_pytorch_runs_it(compiled_models: list[ir.Model]) -> None:
    plain, inner = made_twice(lambda: Normal(False), 0)
    compiled = torch.compile(inner, backend="collage", options={"wait": True})
    x = torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="gradients"):
        compiled(x).sum().backward()
    plain(x).sum().backward()
    for ours, theirs in zip(inner.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert not compiled_models


def test_gradients_inside_of_no_grad_stay(compiled_models: list[ir.Model], recwarn) -> None:
    weight = torch.ones(3, requires_grad=True)

    def function(x):
        with torch.enable_grad():
            return x * weight

    with torch.no_grad():
        assert torch.compile(function, backend="collage", options={"wait": True})(torch.ones(3)).requires_grad
    assert not compiled_models


def test_what_computes_something_else_is_left_to_pytorch(monkeypatch) -> None:
    torch._dynamo.reset()

    class Wrong(Directly):
        def run(self, inputs: list[Any]) -> dict[str, Any]:
            return {name: value + np.float32(0.1) for name, value in super().run(inputs).items()}

        def save(self, *_: Any, **__: Any) -> None: ...

    monkeypatch.setattr(collage.compiler.pipeline, "compile", lambda model, *_, **__: Wrong(model))
    (said,) = compared(Counter, lambda: [(torch.randn(2),)] * 3)
    assert "differ" in said
