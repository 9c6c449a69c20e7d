"""Compiled graphs of ``torch.compile`` on disk, so that a new process need neither export nor compile them.

The key of a graph holds everything that its results depend on: its operators and their arguments, the types and layouts
of its inputs, the values of the weights, the versions of PyTorch and of Collage, and the options. An entry is an artefact and a
file of facts beside it. A graph is not kept if it holds an object that a name does not identify.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from collage._errors import CollageError, UsageError
from collage._version import __version__
from collage.options import CompileOptions
from collage.runtime import Executable, load
from collage.system.codec import from_json, read_text

__all__ = ["GraphCache", "GraphFacts", "VariantFacts", "fingerprint"]

_KNOWN_HOMES = frozenset(("torch", "_operator", "operator", "math", "builtins"))
_SYMBOL = re.compile(r"\b[a-zA-Z_]+\d+\b")
_NO_PART = ("db", "remeasure", "inputs", "dims")
"""Options for measuring, which do not change the compiled code. The first call's lengths and integers are among them."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts of an exported graph, whatever its weights are; see ``PureGraph``.

    Attributes:
        returns: Names of its outputs.
        written: Positions of the arguments that it writes to.
        guards: Conditions on the arguments that it takes, see ``_length_guards``.
    """

    returns: tuple[str, ...]
    written: tuple[int, ...]
    guards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """Facts of a graph that was compiled with one set of weights, which its artefact does not hold.

    Attributes:
        tolerance: The tolerance.
        guards: Conditions on the arguments that it takes.
        suited: Lengths for which the program was found to fit the graph.
        raced_on: The machine and threads on which it raced with PyTorch.
        raced: Names of lengths that are alike, and if PyTorch was faster there.
        specialised: Lengths for which a plan of their own was compiled, whether it was kept or not.
    """

    tolerance: float
    guards: tuple[str, ...]
    suited: tuple[tuple[int, ...], ...] = ()
    raced_on: str = ""
    raced: tuple[tuple[tuple[int, ...], bool], ...] = ()
    specialised: tuple[tuple[int, ...], ...] = ()


class GraphCache:
    """A folder of compiled graphs. Several processes may use it at once.

    Args:
        folder: The folder, which need not exist.
        targets: The menu that graphs are compiled with.
        options: The options that they are compiled with.
    """

    def __init__(self, folder: Path, targets: Iterable[Any], options: CompileOptions) -> None:
        self._folder = folder
        decided = {field.name: repr(getattr(options, field.name)) for field in fields(options)}
        for name in _NO_PART:
            del decided[name]
        self._settings = json.dumps([[str(target) for target in targets], decided], sort_keys=True)
        self._is_read = not options.remeasure

    def graph_key(self, graph: str) -> str:
        """Return the name of a graph, by its fingerprint."""
        return hashlib.sha256(f"{__version__} {torch.__version__} {graph}".encode()).hexdigest()[:40]

    def variant_key(self, graph_key: str, positions: Sequence[int], weights: Sequence[torch.Tensor]) -> str:
        """Return the name of a graph with some weights as constants."""
        digest = hashlib.sha256(f"{graph_key} {self._settings} {list(positions)}".encode())
        for weight in weights:
            digest.update(_digest_of(weight))
        return digest.hexdigest()[:40]

    def graph(self, key: str) -> GraphFacts | None:
        """Return the known facts about a graph; None if that is nothing."""
        with contextlib.suppress(OSError, ValueError):
            return from_json(GraphFacts, read_text((self._folder / f"{key}.json").read_bytes()))
        return None

    def variant(self, key: str) -> tuple[VariantFacts, Executable] | None:
        """Return a compiled graph; None if there is none, or it does not load."""
        facts = self.facts(key) if self._is_read else None
        if facts is not None:
            with contextlib.suppress(OSError, ValueError, CollageError):
                return facts, load(self._folder / f"{key}.collage", trusted=True)
        return None

    def facts(self, key: str) -> VariantFacts | None:
        """Return the known facts about a compiled graph; None if that is nothing."""
        with contextlib.suppress(OSError, ValueError):
            return from_json(VariantFacts, read_text((self._folder / f"{key}.json").read_bytes()))
        return None

    def keep(self, key: str, executable: Executable) -> bool:
        """Keep a compiled graph, and return if that could be done; warn if the folder cannot be written to."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            executable.save(self._folder / f"{key}.collage")
        except (OSError, UsageError) as error:
            warnings.warn(f"collage cannot keep a compiled graph: {error}", RuntimeWarning, stacklevel=2)
            return False
        return True

    def note(self, key: str, facts: GraphFacts | VariantFacts) -> None:
        """Overwrite facts, at once and as a whole. If that cannot be done, they stay as they were."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{key}.", dir=self._folder)
            draft = Path(name)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(asdict(facts), file)
                draft.replace(self._folder / f"{key}.json")
            finally:
                draft.unlink(missing_ok=True)


def fingerprint(graph: torch.fx.GraphModule, weights: Iterable[int]) -> str | None:
    """Return a text that tells a graph apart from every other; None if it holds something that has no such text.

    Args:
        graph: The graph that Dynamo traced.
        weights: Positions of its arguments that are weights.
    """
    try:
        state = (torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        text = json.dumps([_graph_text(graph, {}), sorted(weights), str(state)])
    except _Unnameable:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


class _Unnameable(Exception):
    """Something in a graph has no text that tells it apart."""


def _graph_text(graph: torch.fx.GraphModule, names: dict[str, str]) -> list[Any]:
    numbers: dict[torch.fx.Node, int] = {}
    stores: dict[int, int] = {}
    lines: list[Any] = []
    for node in graph.graph.nodes:
        numbers[node] = len(numbers)
        told = [_text(value, numbers) for value in (node.args, node.kwargs)]
        lines.append([node.op, _target_text(graph, node, names), *told])
        if node.op == "placeholder":
            lines[-1] = [node.op, _fake_text(node.meta.get("example_value"), names, stores)]
        for result in _results(node):
            lines[-1].append(_fake_text(result.meta.get("example_value"), names, stores))
    return lines


def _results(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the nodes that an output node returns. The memory that they share is part of the key."""
    return list(node.all_input_nodes) if node.op == "output" else []


def _target_text(graph: torch.fx.GraphModule, node: torch.fx.Node, names: dict[str, str]) -> Any:
    target: Any = node.target
    if node.op in ("placeholder", "output", "call_method"):
        return str(target) if node.op == "call_method" else ""
    if node.op == "get_attr":
        value: Any = graph
        for part in str(target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule):
            return _graph_text(value, names)
        if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
            return _digest_of(value).hex()
        raise _Unnameable
    if node.op != "call_function":
        raise _Unnameable
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return str(target)
    home, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    short = str(getattr(target, "__name__", ""))
    if home is None and short and getattr(torch.Tensor, short, None) is target:
        return f"torch.Tensor.{short}"
    if name is None or "<" in name or str(home).partition(".")[0] not in _KNOWN_HOMES:
        raise _Unnameable
    return f"{home}.{name}"


def _text(value: Any, numbers: Mapping[torch.fx.Node, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": numbers[value]}
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(_text(item, numbers) for item in value)]
    if isinstance(value, Mapping):
        return {str(key): _text(item, numbers) for key, item in value.items()}
    if isinstance(value, slice):
        return ["slice", *(_text(item, numbers) for item in (value.start, value.stop, value.step))]
    if value is None or value is ... or type(value) in (bool, int, float, complex, str, bytes):
        return [type(value).__name__, repr(value)]
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return [type(value).__name__, str(value)]
    raise _Unnameable


def _fake_text(fake: Any, names: dict[str, str], stores: dict[int, int]) -> Any:
    """Return type, layout and place of an argument or a result; symbols are numbered in the order in which they come."""
    if isinstance(fake, torch.Tensor):
        store = stores.setdefault(fake.untyped_storage()._cdata, len(stores))
        lengths = [_length_text(n, names) for n in (*fake.shape, *fake.stride(), fake.storage_offset())]
        return [str(fake.dtype), str(fake.layout), str(fake.device), fake.ndim, lengths, store, fake.requires_grad]
    if fake is None or isinstance(fake, int | torch.SymInt):
        return _length_text(fake, names)
    raise _Unnameable


def _length_text(length: Any, names: dict[str, str]) -> str:
    if not isinstance(length, torch.SymInt):
        return str(length)
    return _SYMBOL.sub(lambda found: names.setdefault(found[0], f"length{len(names)}"), str(length.node.expr))


def _digest_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    facts = f"{plain.dtype} {tuple(plain.shape)} {tuple(tensor.stride())}"
    digest = hashlib.sha256(facts.encode())
    if plain.numel():
        digest.update(memoryview(plain.reshape(-1).view(torch.uint8).numpy()))
    return digest.digest()
