"""The registry of toolchains: found by entry point, imported on first use."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from collage._errors import TargetError
from collage.target import HOST_TOOLCHAIN, Target, TargetLike
from collage.toolchains._contract import OptionValues, Toolchain
from collage.toolchains._revision import GROUP
from collage.toolchains.sdk.import_probe import install_command
from collage.toolchains.sdk.model_files import check_options

__all__ = ["GROUP", "Registry", "option_values", "registry"]

# A toolchain of these that is not installed is named in messages by the extra that installs it.
_EXTRAS = {
    "iree": "iree",
    "ncnn": "ncnn",
    **dict.fromkeys(("extern", "inductor", "onednn"), "torch"),
    **dict.fromkeys(("cublas", "cudnn", "cutlass", "extern-cuda", "tensorrt"), "cuda"),
}
_EXTRAS_OF_KINDS = {"cuda": "cuda"}

_METHODS = {
    "availability": (),
    "pattern_table": (),
    "supports": ("node", "target"),
    "compile": ("kernel", "target", "workspace"),
    "load": ("compiled", "target", "workspace", "options"),
}
"""Methods of every toolchain, with their positional parameters."""


def _reach(point: EntryPoint) -> tuple[bool, int, str]:
    """Return a key that orders toolchains of one name: the last one counts, since it extends what those before it serve.

    A package extends Collage's own toolchains, and those of the packages that it requires.
    """
    required = (point.dist.requires if point.dist is not None else None) or ()
    return not point.module.startswith("collage."), sum(each.startswith("collage") for each in required), point.value


class Registry:
    """Toolchains by name.

    A toolchain that cannot be imported or made, or whose class breaks the contract, is as good as absent.

    Attributes:
        broken: The reason why a toolchain cannot be used, by name, for toolchains that were requested so far.
        tracebacks: The traceback of each such failure, by name, for the author of the toolchain.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        points = entry_points(group=GROUP) if points is None else points
        self._points = {point.name: point for point in sorted(points, key=_reach)}
        self._loaded: dict[str, Toolchain] = {}
        self.broken: dict[str, str] = {}
        self.tracebacks: dict[str, str] = {}

    def add(self, toolchain: Toolchain) -> None:
        """Register an instance, for tests and notebooks.

        Worker processes make their own from its class, with its ``worker_arguments`` (JSON values) if it has any; so
        the class must be importable.
        """
        self._points.pop(toolchain.name, None)
        self._loaded[toolchain.name] = toolchain

    def factory(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the means to make the toolchain in another process: ``module:Class`` and its keyword arguments."""
        if name in self._points:
            return self._points[name].value, {}
        toolchain = self.get(name)
        kind = type(toolchain)
        return f"{kind.__module__}:{kind.__qualname__}", dict(getattr(toolchain, "worker_arguments", {}))

    def is_installed(self, name: str) -> bool:
        """Return True if a toolchain is of an installed distribution, and was not added by a program."""
        return name in self._points and self._points[name].dist is not None

    def names(self) -> tuple[str, ...]:
        """Names of all toolchains, sorted."""
        return tuple(sorted({*self._points, *self._loaded}))

    def get(self, name: str) -> Toolchain:
        """Return the toolchain called ``name``.

        Raises:
            TargetError: There is none, or it is broken.
        """
        if name in self.broken:
            raise TargetError(self._is_broken(name))
        if name not in self._loaded:
            point = self._points.get(name)
            if point is None:
                raise TargetError(f"no toolchain is called {name!r}; there are {', '.join(self.names())}")
            try:
                made = point.load()()
                _check_contract(made, name)
            except (Exception, SystemExit) as error:
                self.broken[name] = f"{type(error).__name__}: {error}"
                self.tracebacks[name] = traceback.format_exc()
                raise TargetError(self._is_broken(name)) from error
            self._loaded[name] = made
        return self._loaded[name]

    def _is_broken(self, name: str) -> str:
        return f"toolchain {name!r} is broken: {self.broken[name]}; `collage targets -v` shows where"

    def __iter__(self) -> Iterator[Toolchain]:
        for name in self.names():
            try:
                yield self.get(name)
            except TargetError:
                continue

    def parse_target(self, target: TargetLike) -> Target:
        """Read a target string, aliases included, or check a ``Target``.

        Raises:
            TargetError: The text names nothing or a broken toolchain, or an option or a value that its toolchain lacks.
        """
        if isinstance(target, str):
            known = {toolchain.name: toolchain.targets for toolchain in self}
            # A broken toolchain has a name all the same: its user should hear why it is not there.
            self._refuse_absent(target)
            target = Target.parse(target, {**known, **{name: (f"llvm -compiler={name}",) for name in self.broken}})
        self._refuse_kind(target.kind, target.toolchain)
        check_options(target, option_values(self.for_target(target), target))
        return target

    def _refuse_absent(self, text: str) -> None:
        """Refuse a target of a toolchain that is not installed, and say how to install it."""
        for name in re.findall(r"(?:^|:|-compiler=|-libs=)(\w+)", text):
            if name in _EXTRAS and name not in self.names():
                command = install_command(_EXTRAS[name])
                raise TargetError(f"target {text!r}: the toolchain {name} is not installed; {command}")
        kind, _, name = text.partition(" ")[0].rpartition(":")
        if name in self.names():
            self._refuse_kind(kind, name)

    def _refuse_kind(self, kind: str, name: str) -> None:
        """Refuse a kind of device for which another package would extend a toolchain, and say how to install it."""
        if kind in _EXTRAS_OF_KINDS and all(stem.split()[0] != kind for stem in self.get(name).targets):
            command = install_command(_EXTRAS_OF_KINDS[kind])
            raise TargetError(f"the toolchain {name} does not serve {kind} here; {command}")

    def parse_targets(self, targets: Iterable[TargetLike]) -> Sequence[Target]:
        """Read several targets; repeated ones count once, the order is kept (it is their priority)."""
        return tuple(dict.fromkeys(self.parse_target(target) for target in targets))

    def for_target(self, target: Target) -> Toolchain:
        """The toolchain that serves ``target``."""
        return self.get(target.toolchain)


def option_values(toolchain: Toolchain, target: Target) -> OptionValues:
    """Return the values that each option of a target takes; no values mean any text.

    Raises:
        TargetError: The target makes no sense to its toolchain.
    """
    tell: Callable[[Target], OptionValues] | None = getattr(toolchain, "option_values", None)
    return dict.fromkeys(toolchain.options, ()) if tell is None else tell(target)


def _check_contract(toolchain: Any, name: str) -> None:
    """Refuse an object that is not a toolchain, before anything relies on it.

    Args:
        toolchain: The object that the entry point made.
        name: The name of the entry point.

    Raises:
        TypeError: It lacks an attribute or a method, or one has a wrong type.
        ValueError: It has another name, or targets of another toolchain.
    """
    kind = type(toolchain).__name__
    wanted = {"name": str, "targets": tuple, "options": Mapping, "optimises_whole_graphs": bool}
    for attribute, of_type in wanted.items():
        value = getattr(toolchain, attribute, None)
        if not isinstance(value, of_type):
            found = f"is {value!r:.60}" if hasattr(toolchain, attribute) else "is missing"
            raise TypeError(f"{kind}.{attribute} {found}, and must be a {of_type.__name__.lower()}")
    if lacking := [method for method in _METHODS if not callable(getattr(toolchain, method, None))]:
        raise TypeError(f"{kind} has no method {', '.join(lacking)}")
    for method, arguments in _METHODS.items():
        signature = inspect.signature(getattr(toolchain, method))
        try:
            signature.bind(*arguments)
        except TypeError as error:
            raise TypeError(f"{kind}.{method}{signature} must take ({', '.join(arguments)}): {error}") from None
    if toolchain.name != name:
        raise ValueError(f"{kind}.name is {toolchain.name!r}, and its entry point is called {name!r}")
    if not toolchain.targets:
        raise ValueError(f"{kind}.targets is empty")
    for stem in toolchain.targets:
        if not isinstance(stem, str) or (target := Target.parse(stem)).toolchain != name:
            raise ValueError(f"{kind}.targets has {stem!r}, which is not a target of {name}")
        check_options(target, option_values(toolchain, target))
    texts = [text for option in toolchain.options.items() for text in option]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{kind}.options must map names to sentences")


@functools.cache
def registry() -> Registry:
    """The registry of this process, filled from entry points."""
    return Registry()


def choose_menu(targets: Iterable[TargetLike] | None, toolchains: Registry) -> tuple[Target, ...]:
    """Return the menu: the requested targets, or the CPU targets of every toolchain that is on the menu by default.

    Raises:
        TargetError: An unknown target, or an empty menu.
    """
    if targets is None:
        wanted = [toolchain for toolchain in toolchains if getattr(toolchain, "on_default_menu", True)]
        cpu = [stem for toolchain in wanted for stem in toolchain.targets if stem.split()[0] == "llvm"]
        targets = [stem for stem in cpu if toolchains.parse_target(stem).toolchain != HOST_TOOLCHAIN]
    menu = tuple(toolchains.parse_targets([targets] if isinstance(targets, str | Target) else targets))
    if not menu:
        raise TargetError("the menu is empty; name at least one target, such as 'onnxruntime'")
    return menu
