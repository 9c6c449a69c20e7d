"""The file of a fleet: its types of machines, and the options of its compilations."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.system.machine import this_machine

__all__ = ["LOCAL", "Fleet", "MachineType", "check_options", "local_fleet", "options_text", "read_fleet"]

LOCAL = "local"
"""The name of this machine's type where no file names one, and of the cluster that is started here."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_MAX_BYTES = 1 << 20
_PLAIN = (str, int, float, bool)
_NOT_SENT = frozenset(
    "config data db devices dry-run explain help input json machine on output plan plan-out quiet verbose".split()  # noqa: SIM905
)
"""Options that name files here, or say what a command prints: they mean nothing on another machine."""


@dataclass(frozen=True, slots=True)
class MachineType:
    """A type of machines whose timings are comparable.

    Attributes:
        name: Its name. A node of this type has the Ray resource ``machine:NAME``.
        fingerprint: The fingerprint that each of its nodes must state, see ``Machine.fingerprint``.
        options: Options of ``collage compile`` on these machines, by their long names.
    """

    name: str
    fingerprint: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines of a fleet, by the names of their types."""

    machines: Mapping[str, MachineType]

    def __getitem__(self, name: str) -> MachineType:
        """Return the type of this name.

        Raises:
            UsageError: There is none.
        """
        if name not in self.machines:
            raise UsageError(f"no machine type {name!r} in the fleet; there are {', '.join(sorted(self.machines))}")
        return self.machines[name]


def local_fleet(options: Mapping[str, Any] | None = None) -> Fleet:
    """Return the fleet that consists of this machine."""
    return Fleet({LOCAL: MachineType(LOCAL, this_machine().fingerprint, options or {})})


def read_fleet(path: Path) -> Fleet:
    """Read the file of a fleet.

    Raises:
        UsageError: It cannot be read, or its content is not valid.
    """
    data = _read(path)
    if unknown := sorted(set(data) - {"compile", "machines"}):
        raise UsageError(f"{path}: {unknown[0]!r} is not known; there are the tables [compile] and [machines.NAME]")
    common = check_options(data.get("compile", {}), f"{path}: [compile]")
    machines = data.get("machines")
    if not isinstance(machines, dict) or not machines:
        raise UsageError(f"{path}: there is no table [machines.NAME], so no machine to compile for")
    return Fleet({name: _machine(path, name, told, common) for name, told in machines.items()})


def check_options(options: Any, where: str) -> dict[str, Any]:
    """Return options of ``collage compile`` by their long names, as they are sent to another machine.

    Raises:
        UsageError: They form no table of plain values, or one names a file here.
    """
    if not isinstance(options, Mapping):
        raise UsageError(f"{where} is not a table")
    checked = {}
    for name, value in options.items():
        name = str(name).replace("_", "-")
        values = value if isinstance(value, list) else [value]
        if name in _NOT_SENT:
            raise UsageError(f"{where}: {name} is an option for this machine only; remove it")
        if not all(isinstance(each, _PLAIN) for each in values):
            raise UsageError(f"{where}: {name} is neither a plain value nor a list of them")
        checked[name] = value
    return checked


def options_text(options: Mapping[str, Any]) -> str:
    """Return options as the file that ``collage compile --config`` reads."""
    lines = [f"{_toml(name)} = {_toml(value)}" for name, value in sorted(options.items())]
    return "\n".join(["[compile]", *lines]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # Strings of JSON are strings of TOML if no character is written as two surrogates.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _machine(path: Path, name: str, told: Any, common: Mapping[str, Any]) -> MachineType:
    where = f"{path}: [machines.{name}]"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a name of a machine type is letters, digits, '.', '_' and '-'")
    if not isinstance(told, dict) or set(told) - {"fingerprint", "compile"}:
        raise UsageError(f"{where} holds a fingerprint, and perhaps a table of options, compile; nothing else")
    fingerprint = told.get("fingerprint")
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise UsageError(
            f"{where}: fingerprint is not 16 hexadecimal digits; `collage env --json` on that machine prints it"
        )
    own = check_options(told.get("compile", {}), f"{where}: compile")
    return MachineType(name, fingerprint, {**common, **own})


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"{path} is too large for the file of a fleet")
        return tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {str(error)[:200]}") from error
