"""The plan of devices that a user writes: TOML in, annotations out.

::

    default = "cpu:0"                 # where the rest goes; free for a search where it is left out
    host = "cpu:0"

    [devices.main]                    # a name of your own
    device = "cpu:0"
    cores = [0, 1]

    [devices.small]
    device = "cpu:1"
    target = "llvm -threads=2"
    cores = [2, 3]

    [nodes]                           # by name; * and ? stand for other characters
    "embeddings/*" = "small"

    [operators]                       # by type
    Gather = "cpu:1"

    [values]
    hidden_states = "main"

    [inputs]
    ids = "host"

    [outputs]
    logits = "host"
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import ConfigError, TargetError, UsageError
from collage.device._annotations import asked_scope, on_device, require_output, unknown_name
from collage.device._config import CompilationConfig
from collage.device._scope import SEScope
from collage.graph import constant_tensor
from collage.option_texts import fits
from collage.target import Target

__all__ = ["DeviceRequests", "read_device_plan"]

HOST = "host"
"""The name of the host's scope."""

_MAX_BYTES = 1 << 20
_MAX_CORE = 4096
_SECTIONS = ("nodes", "operators", "values", "inputs", "outputs")
_KEYS = ("default", "host", "devices", *_SECTIONS)
_DEVICE_KEYS = ("device", "target", "cores", "memory_scope")
_WILD = "*?"


@dataclass(frozen=True, slots=True)
class DeviceRequests:
    """The demands of a user on devices.

    Attributes:
        devices: The scopes that are declared, by name.
        cores: The core set of each declared device that has one.
        default: Scope of unconstrained operators; None if the plan leaves it open.
        host: Scope of shape computations; None if the plan leaves it open.
        rules: For each section (``nodes``, ``operators``, ``values``, ``inputs``, ``outputs``) patterns and scopes; None
            is the host's.
        source: The file, with which messages begin.
    """

    devices: Mapping[str, SEScope] = field(default_factory=dict)
    cores: Mapping[SEScope, tuple[int, ...]] = field(default_factory=dict)
    default: SEScope | None = None
    host: SEScope | None = None
    rules: Mapping[str, Mapping[str, SEScope | None]] = field(default_factory=dict)
    source: str = "the plan of devices"

    def config(self, fallback_device: str = "cpu") -> CompilationConfig:
        """The configuration of devices.

        Args:
            fallback_device: As in ``PassContext``; counts where there is no ``default``.

        Raises:
            TargetError: Default or host are none of the devices.
        """
        devices = self.devices.values()
        return CompilationConfig.of(devices, default=self.default, host=self.host, fallback_device=fallback_device)

    def annotate(self, model: ir.Model) -> None:
        """Annotates a model in place.

        An exact name beats a pattern, a pattern beats a type of operator.

        Raises:
            ConfigError: A name or pattern fits nothing in the model, or two of equal rank fit one thing and disagree.
        """
        try:
            self._annotate(model)
        except ConfigError as error:
            raise ConfigError(f"{self.source}: {error}") from None

    def _annotate(self, model: ir.Model) -> None:
        nodes = [node for node in _all_nodes(model) if constant_tensor(node.outputs[0]) is None]
        by_type = _assign("operators", self._rules("operators"), [(node.op_type, node) for node in nodes])
        by_name = _assign("nodes", self._rules("nodes"), [(str(node.name), node) for node in nodes])
        results = [(str(value.name), value) for node in nodes for value in node.outputs]
        weights = [(str(name), value) for graph in model.graphs() for name, value in graph.initializers.items()]
        by_value = _assign("values", self._rules("values"), [*results, *weights])
        inputs = _assign("inputs", self._rules("inputs"), [(str(value.name), value) for value in model.graph.inputs])
        outputs = [(str(value.name), str(value.name)) for value in model.graph.outputs]
        for node, scope in {**by_type, **by_name}.items():
            on_device(node, scope)
        for value, scope in by_value.items():
            asked = asked_scope(value)
            if asked is not None and asked.join(scope) is None:
                raise ConfigError(
                    f"[values] {value.name!r} is to be in {scope}, but what computes it in {asked}; a value lies where it "
                    "is computed, so leave out one of the two, or demand it where it is read"
                )
            on_device(value, scope)
        for value, scope in inputs.items():
            on_device(value, scope)
        for name, scope in _assign("outputs", self._rules("outputs"), outputs).items():
            require_output(model, name, scope)

    def _rules(self, section: str) -> dict[str, SEScope]:
        host = self.config().host
        return {name: scope or host for name, scope in self.rules.get(section, {}).items()}


def read_device_plan(source: str | Path | bytes) -> DeviceRequests:
    """Read a plan of devices.

    Args:
        source: The path of a TOML file, or its content as bytes.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: It is not TOML, or has keys, types or devices that make no sense; near names are suggested.
    """
    place, content = (
        ("the plan of devices", source) if isinstance(source, bytes) else (str(source), _read(Path(source)))
    )
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{place}: no TOML: {error}") from None
    try:
        return replace(_requests(data), source=place)
    except TargetError as error:
        raise ConfigError(f"{place}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{path}: larger than {_MAX_BYTES} bytes")
    return content


def _requests(data: Mapping[str, Any]) -> DeviceRequests:
    _check_keys("", data, _KEYS)
    devices: dict[str, SEScope] = {}
    cores: dict[SEScope, tuple[int, ...]] = {}
    owner: dict[int, str] = {}
    for name, entry in _table("devices", data).items():
        if name == HOST:
            raise ConfigError(f"a device cannot be called {HOST!r}: that is the host's scope")
        scope = devices[name] = _device(name, entry)
        twin = next((other for other in devices if other != name and devices[other] == scope), None)
        if twin is not None:
            raise ConfigError(f"[devices.{name}] is {scope}, which [devices.{twin}] is already")
        if "cores" in entry:
            cores[scope.device] = _cores(name, entry["cores"], owner)
    requests = DeviceRequests(
        devices,
        cores,
        _optional_scope("default", data, devices),
        _optional_scope("host", data, devices),
        {section: _scopes(section, _table(section, data), devices) for section in _SECTIONS},
    )
    config = requests.config()
    for section, rules in requests.rules.items():
        for name, rule in rules.items():
            try:
                config.canonical(rule or config.host)
            except TargetError as error:
                raise ConfigError(f"[{section}] {name!r}: {error}") from None
    return requests


def _device(name: str, entry: Any) -> SEScope:
    place = f"devices.{name}"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"[{place}] is a table, with device, target, cores or memory_scope")
    _check_keys(f"[{place}]", entry, _DEVICE_KEYS)
    texts = {key: _text(f"[{place}] {key}", entry[key]) for key in ("device", "target", "memory_scope") if key in entry}
    try:
        scope = SEScope.parse(texts.get("device", "?"))
        target = SEScope(target=Target.parse(texts["target"]) if "target" in texts else None)
        memory = SEScope(memory_scope=texts.get("memory_scope"))
    except TargetError as error:
        raise ConfigError(f"[{place}] {error}") from None
    for part in (target, memory):
        joined = scope.join(part)
        if joined is None:
            raise ConfigError(f"[{place}]: {part} does not fit {scope}")
        scope = joined
    if scope.device_type is None:
        raise ConfigError(f"[{place}] needs a device, such as 'cpu:1', or a target")
    return scope if scope.virtual_device_id is not None else SEScope(scope.device_type, 0).join(scope) or scope


def _cores(name: str, given: Any, owner: dict[int, str]) -> tuple[int, ...]:
    """A core set; no core may belong to two devices."""
    place = f"[devices.{name}] cores"
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{place} is a list of core numbers, not {given!r}")
    for core in given:
        if isinstance(core, bool) or not isinstance(core, int) or not 0 <= core < _MAX_CORE:
            raise ConfigError(f"{place}: {core!r} is not a core number")
        if owner.setdefault(core, name) != name or given.count(core) > 1:
            raise ConfigError(f"{place}: core {core} is given twice, here and for {owner[core]!r}")
    return tuple(given)


def _optional_scope(key: str, data: Mapping[str, Any], devices: Mapping[str, SEScope]) -> SEScope | None:
    if key not in data:
        return None
    scope = _scope(key, data[key], devices)
    if scope is None:
        raise ConfigError(f"{key} = {HOST!r}: name a device")
    return scope


def _scopes(section: str, table: Mapping[str, Any], devices: Mapping[str, SEScope]) -> dict[str, SEScope | None]:
    return {name: _scope(f"[{section}] {name!r}", given, devices) for name, given in table.items()}


def _scope(place: str, given: Any, devices: Mapping[str, SEScope]) -> SEScope | None:
    """A scope by the name of a declared device, or its text; None for ``host``."""
    text = _text(place, given)
    if text in devices:
        return devices[text]
    if text == HOST:
        return None
    try:
        return SEScope.parse(text)
    except TargetError as error:
        near = difflib.get_close_matches(text, [*devices, HOST], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        declared = f"declared here: {', '.join(devices)}" if devices else f"a name of your own needs [devices.{text}]"
        raise ConfigError(f"{place}: {error}; {declared}{hint}") from None


def _table(key: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{key} is a table: write [{key}]")
    return table


def _text(place: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ConfigError(f'{place} is a text such as "cpu:1", not {given!r}; put names with dots in quotes')
    return given


def _check_keys(place: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{place} {unknown_name('key', key, list(known))}".strip())


def _assign(section: str, rules: Mapping[str, SEScope], things: list[tuple[str, Any]]) -> dict[Any, SEScope]:
    """The scope of everything that a rule fits."""
    assigned: dict[Any, SEScope] = {}
    by: dict[Any, tuple[str, bool]] = {}
    for pattern, scope in sorted(rules.items(), key=lambda rule: _is_wild(rule[0], things)):
        wild = _is_wild(pattern, things)
        fitting = [thing for name, thing in things if (fits(name, pattern) if wild else name == pattern)]
        if not fitting:
            raise ConfigError(f"[{section}] {unknown_name(section[:-1], pattern, sorted({n for n, _ in things}))}")
        for thing in fitting:
            before = by.setdefault(thing, (pattern, wild))
            if before == (pattern, wild):
                assigned[thing] = scope
            elif before[1] and assigned[thing] != scope:
                raise ConfigError(f"[{section}] {before[0]!r} and {pattern!r} fit the same {section[:-1]} and disagree")
    return assigned


def _is_wild(pattern: str, things: list[tuple[str, Any]]) -> bool:
    """Return True if a key is a pattern. Names that contain such characters are names."""
    return any(mark in pattern for mark in _WILD) and all(name != pattern for name, _ in things)


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()
