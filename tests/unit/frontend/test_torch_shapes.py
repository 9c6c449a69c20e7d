"""Names of dimensions that stay symbolic reach the ONNX model, whatever stands beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from collage._errors import UsageError
from collage.frontend import read_model
from collage.testing import executable_of

BATCH, DIM = {0: "batch"}, torch.export.Dim("batch")


class Many(torch.nn.Module):
    """Takes a tensor, a flag, something absent, nested tensors, and what else there is."""

    def forward(self, x: Any, state: Any = None, *, double: bool = False, mask: Any = None, **rest: Any) -> Any:
        y = x * 2 if double else x
        y = y if mask is None else y * mask
        y = torch.cat([y, state["h"]]) if state is not None else y
        return y + sum(rest.values())


def shapes_of(kwargs: dict[str, Any], shapes: Any, *inputs: Any) -> tuple[list[str], str]:
    model = read_model(Many(), example_inputs=inputs, example_kwargs=kwargs, dynamic_shapes=shapes)
    outputs = [str(port.shape) for port in model.graph.outputs]
    return [f"{port.name}{port.shape}" for port in model.graph.inputs], outputs[0]


X, H = torch.randn(3, 4), torch.randn(5, 4)


@pytest.mark.parametrize(
    ("inputs", "kwargs", "shapes"),
    [
        ((X,), {"double": True}, {"x": BATCH, "double": None}),
        ((X, None), {"double": True, "mask": None}, {"x": (DIM, None)}),
        ((X, None), {}, (("batch", None), None)),
    ],
)
def test_a_name_is_kept_beside_arguments_that_are_no_tensors(inputs: Any, kwargs: Any, shapes: Any) -> None:
    assert shapes_of(kwargs, shapes, *inputs) == (["x[batch,4]"], "[batch,4]")


def test_entries_in_another_order_nested_ones_and_sums_of_lengths() -> None:
    found, output = shapes_of({"mask": X[0], "x": X, "state": {"h": H}}, {"state": {"h": {0: "past"}}, "x": BATCH})
    assert found == ["x[batch,4]", "state_h[past,4]", "mask[4]"]
    assert output in ("[batch + past,4]", "[past + batch,4]")


def test_arguments_that_a_module_has_no_name_for() -> None:
    found, output = shapes_of({"shift": X, "x": X}, {"shift": BATCH, "x": BATCH})
    assert found == ["x[batch,4]", "shift[batch,4]"]
    assert output == "[batch,4]"


def test_two_lengths_that_are_one_have_the_first_name() -> None:
    assert shapes_of({"shift": X}, {"x": {0: "a"}, "shift": {0: "b"}}, X)[0] == ["x[a,4]", "shift[a,4]"]


def test_an_entry_for_no_input_is_refused() -> None:
    with pytest.raises(UsageError, match="names 'y', but the example inputs are x, double"):
        shapes_of({"double": True}, {"x": BATCH, "y": BATCH}, X)


class Caching(torch.nn.Module):
    def forward(self, x: torch.Tensor, cache: Any, use_cache: bool = True) -> dict[str, Any]:
        keys, values = cache.update(x, x + 1, 0)
        return {"y": (keys * values).sum((1, 2)), "cache": cache}


@pytest.mark.parametrize("shape", [[{2: "past"}] * 2, [[{2: "past"}, {2: "past"}]]])
def test_names_beside_a_cache(shape: Any) -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(*torch.randn(2, 1, 2, 3, 4), 0)
    model = read_model(
        Caching(),
        example_inputs=(torch.randn(1, 2, 2, 4),),
        example_kwargs={"use_cache": True, "cache": cache},
        dynamic_shapes={"cache": shape, "x": {2: "step"}, "use_cache": None},
    )
    ports = [f"{port.name}{port.shape}" for port in model.graph.inputs]
    assert ports == ["x[1,2,step,4]", "cache_0[1,2,past,4]", "cache_1[1,2,past,4]"]
    feeds = {"x": torch.ones(1, 2, 1, 4), "cache_0": torch.ones(1, 2, 7, 4), "cache_1": torch.ones(1, 2, 7, 4)}
    assert executable_of(model, "onnxruntime").run(feeds)["cache_0_out"].shape == (1, 2, 8, 4)
