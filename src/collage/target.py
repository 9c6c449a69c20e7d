"""Targets: the device that a kernel is compiled for, and the toolchain that compiles it.

A target is written the way TVM writes it: a kind, then attributes.

* ``llvm``, ``cuda``: the native code generator of that kind;
* ``llvm -compiler=openvino``: a bring-your-own-codegen toolchain;
* ``cuda -libs=cudnn``: a library;
* ``llvm -compiler=openvino -precision=bf16``: the same toolchain with other options is another target.

A bare toolchain name is an alias (``openvino`` is ``llvm -compiler=openvino``); ``cuda:onnxruntime`` forces the kind.
``with target:`` makes a target the current one, for passes and predicates that ask ``Target.current()``.
``fusion.gather_fusion_specs`` turns targets into fusion rules. ``Target.refines`` defines "T refines U".
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from collage._errors import TargetError

__all__ = [
    "DEVICE_TYPES",
    "HOST_TARGET",
    "HOST_TOOLCHAIN",
    "NATIVE_TOOLCHAIN",
    "FusionRuleLike",
    "Target",
    "TargetLike",
    "canonical",
    "check_head",
    "register_device_type",
]

_DEVICE_TYPES = {"llvm": "cpu", "cuda": "cuda"}

DEVICE_TYPES: Mapping[str, str] = MappingProxyType(_DEVICE_TYPES)
"""Target kinds, and the type of the devices that each is for. Toolchains may add to them, see `register_device_type`."""

NATIVE_TOOLCHAIN = "tvm"
"""The toolchain that serves a target with neither ``-compiler`` nor ``-libs``."""

HOST_TOOLCHAIN = "host"
"""The toolchain of operators that stay on the host: views, and operators that no target of the menu takes."""

_NAMES = ("compiler", "libs")

_KIND = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")

_CURRENT: ContextVar[tuple[Target, ...]] = ContextVar("collage_targets", default=())


def register_device_type(kind: str, device_type: str) -> None:
    """Make a kind of target known, and the type of devices that it is for; the same registration twice is once.

    A toolchain calls this in its module, so that every process that imports the toolchain knows the kind.

    Args:
        kind: First word of targets of this kind, such as ``npu`` in ``npu -compiler=mine``.
        device_type: Device type in scopes, such as ``npu`` in ``npu:0``. Kinds may share one.

    Raises:
        TargetError: A name that cannot be written in a target, or a kind that is registered for other devices.
    """
    for name in (kind, device_type):
        if not _KIND.fullmatch(name):
            raise TargetError(
                f"{name!r} is not a name of a kind or a device type; use small letters, digits, '_' and '-' between them"
            )
    known = _DEVICE_TYPES.setdefault(kind, device_type)
    if known != device_type:
        raise TargetError(f"target kind {kind!r} is registered for {known!r} devices, not {device_type!r}")


class FusionRuleLike(Protocol):
    """A rule that a target may carry; ``collage.fusion.FusionRule`` is the base of those that there are."""

    def find(self, graph: Any, report: Any) -> Iterable[Any]:
        """Find the sub-graphs that may become one kernel."""


@dataclass(frozen=True)
class Target:
    """One entry of the menu: a device kind, a toolchain, and its options.

    Attributes:
        kind: A kind in ``DEVICE_TYPES``: ``llvm``, ``cuda``, or one that a toolchain registered.
        compiler: Name of a toolchain that compiles sub-graphs, or None.
        libs: Name of a library of operators, or None. Exclusive with ``compiler``.
        options: All other attributes, sorted by name; part of the identity.
        host: Target of the code that drives this one's kernels; None means ``llvm``. A plan of devices in which the target
            occurs computes shapes there, unless it names a host itself.
        fusion_spec: A fusion rule to use instead of the one derived from the target. It says which kernels there are, not
            how they are compiled, so it is not part of the printed form. Targets with different rules are different.

    Raises:
        TargetError: The kind is unknown, or it has both a compiler and a library.
    """

    kind: str
    compiler: str | None = None
    libs: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    host: Target | None = None
    fusion_spec: FusionRuleLike | None = field(default=None, compare=False, repr=False)
    _rule: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        # Rules need not be hashable, and two rules are the same if they are one object.
        object.__setattr__(self, "_rule", 0 if self.fusion_spec is None else id(self.fusion_spec))
        if self.kind not in DEVICE_TYPES:
            hint = "; Target.parse reads a text with attributes" if " " in self.kind else ""
            raise TargetError(f"unknown target kind {self.kind!r}; known kinds are {', '.join(DEVICE_TYPES)}{hint}")
        if self.compiler and self.libs:
            raise TargetError(f"target {self} has both -compiler and -libs; a target has one toolchain")
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @classmethod
    def parse(
        cls, text: str, toolchains: Mapping[str, Iterable[str]] | None = None, *, host: Target | None = None
    ) -> Target:
        """Read a target string or an alias.

        Args:
            text: For example ``llvm -compiler=openvino -threads=1``, or the alias ``openvino``.
            toolchains: Installed toolchains: name to target stems such as ``llvm -compiler=openvino``. With
                it, aliases are understood and unknown toolchains refused; without it, only full forms are read.
            host: Target of the code that drives the kernels.

        Raises:
            TargetError: The text names nothing, repeats an attribute, or contradicts itself.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise TargetError(f"cannot read target {text!r}: {error}") from None
        if not words:
            raise TargetError("an empty target; write for example 'llvm' or 'onnxruntime'")
        known = {name: tuple(stems) for name, stems in (toolchains or {}).items()}
        _refuse_several(text, known)
        head, *rest = words
        head = _canonical(head, known)
        wanted_kind, _, alias = head.rpartition(":")
        if head not in DEVICE_TYPES:
            stems = known.get(alias, ())
            matching = [s for s in stems if not wanted_kind or s.split()[0] == wanted_kind]
            if not matching:
                raise TargetError(_unknown(text, head, known))
            head, *implied = matching[0].split()
            rest = implied + rest
        attributes: dict[str, str] = {}
        for word in rest:
            name, equals, value = word.removeprefix("-").partition("=")
            if not word.startswith("-") or not equals or not name or not value:
                raise TargetError(f"cannot read {word!r} in target {text!r}; attributes are written -name=value")
            if name in attributes:
                raise TargetError(f"target {text!r} gives -{name} twice")
            attributes[name] = value
        compiler, libs = (attributes.pop(name, None) for name in _NAMES)
        target = cls(head, compiler, libs, tuple(attributes.items()), host)
        if toolchains is not None and target.toolchain not in known:
            raise TargetError(_unknown(text, target.toolchain, known))
        return target

    @staticmethod
    def current() -> Target | None:
        """The innermost target whose ``with`` block this thread or task is in; None outside of all."""
        stack = _CURRENT.get()
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        _CURRENT.set((*_CURRENT.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.set(_CURRENT.get()[:-1])

    @property
    def toolchain(self) -> str:
        """Name of the toolchain that serves this target."""
        return self.compiler or self.libs or NATIVE_TOOLCHAIN

    @property
    def build_name(self) -> str:
        """Key under which a build of the toolchain is stored: its name, and the kind if that is not ``llvm``.

        One toolchain depends on other things where it serves another kind of device.
        """
        return self.toolchain if self.kind == "llvm" else f"{self.kind}:{self.toolchain}"

    @property
    def is_native(self) -> bool:
        """True if the kind's own code generator serves this target."""
        return self.compiler is None and self.libs is None

    def option(self, name: str, default: str | None = None) -> str | None:
        """Value of the option ``name``, or ``default``."""
        return dict(self.options).get(name, default)

    def with_options(self, **options: str) -> Target:
        """The same target with some options set."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    def without_option(self, name: str) -> Target:
        """The same target without the option ``name``."""
        return replace(self, options=tuple(option for option in self.options if option[0] != name))

    def refines(self, other: Target) -> bool:
        """Return True if this target may run operators that were planned for ``other``.

        True if the two are equal, or where this one names a toolchain or a fusion spec, ``other`` does
        not, and they agree on everything else, options included.
        """
        if self == other:
            return True
        named = not self.is_native or self.fusion_spec is not None
        plain = other.is_native and other.fusion_spec is None
        same = self.kind == other.kind and self.options == other.options
        return named and plain and same and (other.host is None or self.host == other.host)

    @property
    def without_rule(self) -> Target:
        """This target without its fusion rule: the one that its kernels are compiled for."""
        return self if self.fusion_spec is None else replace(self, fusion_spec=None)

    @property
    def title(self) -> str:
        """The printed form, with the name of the fusion rule if it has one. It is unique on a menu."""
        if self.fusion_spec is None:
            return str(self)
        return f"{self} (rule {getattr(self.fusion_spec, 'name', type(self.fusion_spec).__name__)})"

    @property
    def is_reduced(self) -> bool:
        """True if kernels may compute in a coarser type than the model says (``-precision=bf16``)."""
        return self.option("precision", "f32") != "f32"

    @property
    def is_calibrated(self) -> bool:
        """True if kernels quantise by ranges that calibration saw (``-precision=int8``)."""
        return self.option("precision") == "int8"

    @property
    def short(self) -> str:
        """The shortest text that still names the toolchain and its options, for tables."""
        name = self.kind if self.is_native else self.toolchain
        if not self.is_native and self.kind != "llvm":
            name = f"{self.kind}:{name}"
        return " ".join([name, *(f"-{k}={v}" for k, v in self.options)])

    def __str__(self) -> str:
        words = [self.kind]
        words += [f"-{name}={value}" for name in _NAMES if (value := getattr(self, name))]
        words += [f"-{name}={value}" for name, value in self.options]
        return " ".join(words)


TargetLike = str | Target

HOST_TARGET = Target("llvm", compiler=HOST_TOOLCHAIN)
"""The target that runs operators that no target on the menu takes."""


_MEANT = {"cpu": "llvm", "gpu": "cuda", "nvidia": "cuda"}
"""Common names of kinds of devices that are not close to the right spelling."""

_ALIASES: Mapping[str, str] = {
    "ort": "onnxruntime",
    "onnx": "onnxruntime",
    "onnx-runtime": "onnxruntime",
    "cpuexecutionprovider": "onnxruntime",
    "cudaexecutionprovider": "cuda:onnxruntime",
    "ov": "openvino",
    "openvinoexecutionprovider": "openvino",
    "dnnl": "onednn",
    "dnnlexecutionprovider": "onednn",
    "trt": "tensorrt",
    "tensorrtexecutionprovider": "tensorrt",
    "tvm": NATIVE_TOOLCHAIN,
}
"""Other names of toolchains, in small letters: of people, and of the execution providers of ONNX Runtime."""


def canonical(text: str) -> str:
    """Return a target text with its first word as Collage writes it: ``ort`` is ``onnxruntime``."""
    head, space, rest = text.strip().partition(" ")
    return _ALIASES.get(head.lower(), head) + space + rest


def _canonical(head: str, known: Iterable[str]) -> str:
    if head in DEVICE_TYPES or head.rpartition(":")[2] in known:
        return head
    small = _ALIASES.get(head.lower(), head.lower())
    return small if small in DEVICE_TYPES or small.rpartition(":")[2] in known else head


def check_head(text: str, toolchains: Iterable[str]) -> None:
    """Refuse a target text whose first word names nothing, given the names of toolchains only.

    Raises:
        TargetError: It is neither a kind, nor a toolchain, nor another name of one.
    """
    known = {name: () for name in toolchains}
    _refuse_several(text, known)
    for word in text.split()[:1]:
        head = _canonical(word, known)
        if head not in DEVICE_TYPES and head.rpartition(":")[2] not in known:
            raise TargetError(_unknown(text, head, known))


def _refuse_several(text: str, known: Iterable[str]) -> None:
    """Refuse targets that are written as one, with commas between them.

    Raises:
        TargetError: The text is several targets.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    names = {*DEVICE_TYPES, *known}
    if len(parts) > 1 and all(part.split()[0].rpartition(":")[2] in names for part in parts):
        repeated = " ".join(f"-t {shlex.quote(part)}" for part in parts)
        raise TargetError(f"unknown target {text!r}: give one at a time; write {repeated}")


def _unknown(text: str, name: str, known: Mapping[str, Iterable[str]]) -> str:
    names = sorted({*DEVICE_TYPES, *known} - {NATIVE_TOOLCHAIN, HOST_TOOLCHAIN})
    near = [_MEANT[name.lower()]] if _MEANT.get(name.lower()) in names else difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown target {text!r}: nothing is called {name!r}{hint} Known: {', '.join(names)}"
