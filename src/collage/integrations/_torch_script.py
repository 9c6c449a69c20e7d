"""A script of PyTorch, unchanged, with its top modules compiled: those that users put ``torch.compile`` around.

A top module is one that a script calls outside of any other module. It is compiled at its first call in evaluation mode and
without gradients. All other calls are PyTorch's own.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from collage.integrations._background_graph import BackgroundGraph
from collage.integrations._compiled_graph import CompiledGraph
from collage.integrations.torch_compile import collage_backend

__all__ = ["TopModules", "print_summary"]


_FIRST, _COMPILED, _LEFT = "in first calls of graphs", "in compiled graphs", "in graphs left to PyTorch"
_MODULES = "in modules"


class _Here(threading.local):
    is_inside = False


class TopModules:
    """Compiles the top modules of the calls that it sees.

    Args:
        options: Options of ``torch.compile(backend="collage")``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._here = _Here()
        self._spent_s = dict.fromkeys((_FIRST, _COMPILED, _LEFT, _MODULES), 0.0)
        self._graphs: list[CompiledGraph] = []
        self._began = time.perf_counter()

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Have calls of top modules run compiled until the end of the context."""
        plain = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Dynamo knows this condition, and traces nothing of this function but the call.
            if torch.compiler.is_compiling():
                return plain(module, *args, **kwargs)
            is_ours = _is_compiled_in(module)
            if not is_ours and getattr(module._compiled_call_impl, "is_of_collage", False):
                plain_call = module._call_impl
            else:
                plain_call = partial(plain, module)
            if self._here.is_inside:
                return plain_call(*args, **kwargs)
            return self._top(plain_call, module if is_ours else None, args, kwargs)

        torch.nn.Module.__call__ = call
        try:
            # What Dynamo cannot trace runs as it did, and what traces by FX meets the modules as they were.
            with torch._dynamo.config.patch(suppress_errors=True, error_on_nested_fx_trace=False):
                yield
        finally:
            torch.nn.Module.__call__ = plain

    def _top(self, call: Callable[..., Any], module: torch.nn.Module | None, args: Any, kwargs: Any) -> Any:
        if module is not None and module._compiled_call_impl is None:  # The script may have compiled it itself.
            torch.nn.Module.compile(module, backend=self._backend)  # Its class may have a method of this name.
            vars(module)["_compiled_call_impl"].is_of_collage = True
        began, self._here.is_inside = time.perf_counter(), True
        try:
            return call(*args, **kwargs)
        finally:
            self._here.is_inside = False
            self._spent_s[_MODULES] += time.perf_counter() - began

    def _backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled = collage_backend(graph, example_inputs, options=self._options)
        assert isinstance(compiled, CompiledGraph)
        self._graphs.append(compiled)
        calls = itertools.count()

        def run(*arguments: Any) -> Any:
            began, is_first = time.perf_counter(), next(calls) == 0
            results = compiled.run_compiled(arguments)
            is_left = results is None
            try:
                return graph.forward(*arguments) if is_left else results
            finally:
                part = _FIRST if is_first else _LEFT if is_left else _COMPILED
                self._spent_s[part] += time.perf_counter() - began

        return run

    def summary(self, *, has_profile: bool) -> list[str]:
        """Return lines for the end of the script.

        Args:
            has_profile: True if they say where the time went.
        """
        waiting = sum(isinstance(graph, BackgroundGraph) and graph.is_being_compiled for graph in self._graphs)
        lines = []
        if waiting:
            lines.append(f"the script ended before {waiting} of {len(self._graphs)} graphs were compiled: --wait waits")
        if not has_profile:
            return lines
        all_s = time.perf_counter() - self._began
        parts = {name: self._spent_s[name] for name in (_FIRST, _COMPILED, _LEFT)}
        parts["in modules, outside of graphs"] = self._spent_s[_MODULES] - sum(parts.values())
        parts["outside of modules"] = all_s - self._spent_s[_MODULES]
        lines += [f"{name:<30} {part_s:9.3f} s {part_s / all_s:6.1%}" for name, part_s in parts.items()]
        return [*lines, f"{'the whole script':<30} {all_s:9.3f} s"]


def _is_compiled_in(module: torch.nn.Module) -> bool:
    """Return True if a call is one of evaluation, which TorchScript neither runs nor traces."""
    is_trained = torch.is_grad_enabled() or module.training
    return not (is_trained or torch.jit.is_tracing() or isinstance(module, torch.jit.ScriptModule))


def print_summary(modules: TopModules, *, has_profile: bool) -> None:
    """Print the lines on standard error."""
    for line in modules.summary(has_profile=has_profile):
        print(f"collage: {line}", file=sys.stderr)
