"""``torch.compile(module, backend="collage")``, which PyTorch finds by entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from collage.integrations._background_graph import BackgroundGraph
from collage.integrations._compiled_graph import CompiledGraph
from collage.integrations._lifted_weights import lifted_weights
from collage.integrations._scalar_arguments import GraphsByNumbers, number_positions
from collage.integrations._torch_options import has_to_wait

__all__ = ["collage_backend"]


def collage_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return the function that runs a graph for ``torch.compile``. PyTorch serves while it is compiled in the background.

    Args:
        graph: The graph that Dynamo traced.
        example_inputs: Its arguments, which the first call brings again.
        options: ``targets``, ``toolchains`` and ``workers`` of ``collage.compile``, and its ``options``, or single fields of
            these, such as ``{"targets": ["llvm"], "threads": 2}``. ``say`` is called with each decision. ``cache_dir`` is the
            folder in which compiled graphs are kept, ``collage/torch`` in the user's cache folder by default. None keeps
            nothing. ``wait`` has the first call wait until it is compiled. ``specialise`` is the number of sets of lengths that
            get plans of their own, each when its calls took as long as a compilation does. ``freezing`` says that weights do not
            change, so that no call looks at them. Its default is ``torch._inductor.config.freezing``.
        mode: ``max-autotune`` tunes kernels for a minute.
    """
    kind = CompiledGraph if has_to_wait(options or {}) else BackgroundGraph

    def made(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        return kind(graph, options or {}, mode)

    lifted, weights = lifted_weights(graph)
    numbers = number_positions(lifted)
    compiled = GraphsByNumbers(lifted, numbers, made) if numbers else made(lifted)
    return partial(compiled, *weights) if weights else compiled
