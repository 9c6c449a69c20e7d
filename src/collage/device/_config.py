"""CompilationConfig: the available devices, and the completion of scopes that are given in part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collage._errors import TargetError
from collage.device._scope import ScopeLike, SEScope, as_scope, kind_of
from collage.target import Target

__all__ = ["CompilationConfig"]

_CPU = "cpu"


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """The full scopes of a compilation, preferred ones first.

    Attributes:
        scopes: The configured scopes. One device may be there with several targets.
        default: Scope of unconstrained operators.
        host: Scope of shape computations, and of control flow that is interpreted.
        is_open: True if devices may be used that are not configured: those named in annotations, with the plain target
            of their type.
    """

    scopes: tuple[SEScope, ...]
    default: SEScope
    host: SEScope
    is_open: bool = False

    @classmethod
    def of(
        cls,
        devices: Iterable[ScopeLike] = (),
        *,
        default: ScopeLike | None = None,
        host: ScopeLike | None = None,
        fallback_device: str = _CPU,
    ) -> CompilationConfig:
        """Complete the scopes, and return the configuration.

        A device without id gets the next free one of its type, a device without target the plain target of its type.

        Args:
            devices: Available devices. None at all: any device that an annotation names.
            default: Scope of unconstrained operators. None: ``fallback_device`` if it is configured, else the first.
            host: None: the host of the first target that names one, else the first CPU, else a CPU that is added.
            fallback_device: As in ``PassContext``.

        Raises:
            TargetError: A device is given twice, default or host are not configured, or the host is not a CPU.
        """
        scopes = given = _complete([as_scope(device) for device in devices])
        is_open = not given
        if host is None:
            named = next((scope.target.host for scope in scopes if scope.target and scope.target.host), None)
            cpu = next((scope for scope in scopes if scope.device_type == _CPU), None)
            host = named or cpu or _complete([SEScope(_CPU)])[0]
        wished_host = as_scope(host)
        if wished_host.device_type not in (None, _CPU):
            raise TargetError(f"the host is a CPU, not {wished_host}")
        wished_host = wished_host.join(SEScope(_CPU)) or wished_host
        if is_open or not any(scope.device_type == _CPU for scope in scopes):
            scopes += tuple(_complete([wished_host]))
        draft = cls(scopes, scopes[0], scopes[0], is_open)
        return cls(scopes, draft._default(default, fallback_device, given), draft.canonical(wished_host), is_open)

    def canonical(self, scope: SEScope) -> SEScope:
        """The full scope that is meant: free fields filled in from the first configured scope that agrees.

        A target agrees if it is the configured one or refines it.

        Raises:
            TargetError: No configured scope agrees.
        """
        for known in self.scopes:
            if _serves(known, scope):
                return scope.default(known)
        if scope.device_type is None and scope.target is None:
            # An id or a memory alone says nothing about the type of device.
            filled = SEScope(self.default.device_type, scope.virtual_device_id, None, scope.memory_scope)
            if filled != scope:
                return self.canonical(filled)
        if self.is_open and scope.device_type is not None:
            number = scope.virtual_device_id or 0
            plain = scope.target or Target(kind_of(scope.device_type))
            return SEScope(scope.device_type, number, plain, scope.memory_scope)
        known_texts = ", ".join(map(str, self.scopes))
        raise TargetError(f"no configured device is {scope}; configured: {known_texts}")

    def device_of(self, scope: SEScope) -> SEScope:
        """The device that a scope constrains. A target restricts the scope to those that are configured for that target.

        If that is some of the devices of its type, the first of them is meant.

        Raises:
            TargetError: No configured scope agrees.
        """
        self.canonical(scope)
        if scope.target is None or scope.virtual_device_id is not None:
            return scope.device
        devices = list(dict.fromkeys(known.device for known in self.scopes if _serves(known, scope)))
        others = (
            known for known in self.scopes if known.device_type == scope.device_type and known.device not in devices
        )
        return devices[0] if len(devices) == 1 or (devices and any(others)) else scope.device

    def _default(self, default: ScopeLike | None, fallback_device: str, given: tuple[SEScope, ...]) -> SEScope:
        fallback = as_scope(fallback_device)
        if default is not None or self.is_open or any(_serves(known, fallback) for known in given):
            return self.canonical(fallback if default is None else as_scope(default))
        return given[0]


def _serves(known: SEScope, wished: SEScope) -> bool:
    if wished.device_type not in (None, known.device_type):
        return False
    if wished.virtual_device_id not in (None, known.virtual_device_id):
        return False
    return wished.target is None or known.target is None or wished.target.refines(known.target)


def _complete(scopes: Iterable[SEScope]) -> tuple[SEScope, ...]:
    """The scopes with ids and targets.

    Raises:
        TargetError: A device type is missing, or a scope is given twice.
    """
    given = list(scopes)
    taken = {(scope.device_type, scope.virtual_device_id) for scope in given}
    complete: list[SEScope] = []
    for scope in given:
        if scope.device_type is None:
            raise TargetError(f"device {str(scope)!r} of the configuration has no type")
        number = scope.virtual_device_id
        if number is None:
            number = next(i for i in range(len(given) + 1) if (scope.device_type, i) not in taken)
            taken.add((scope.device_type, number))
        target = scope.target or Target(kind_of(scope.device_type))
        full = SEScope(scope.device_type, number, target, scope.memory_scope)
        if full in complete:
            raise TargetError(f"device {full} is configured twice")
        complete.append(full)
    return tuple(complete)
