"""Redaction: a page without the names of the user's model.

Names are replaced wherever they are, and texts are searched for them. A text in which something is quoted, or looks like a
path, loses that too: a toolchain's message may hold names in a form of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from collage._errors import TargetError
from collage.graph import known_operators
from collage.page._contents import KernelView, PageContents, Value
from collage.report import ModelFacts, short_name
from collage.target import Target

__all__ = ["redacted"]

_T = TypeVar("_T")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|“[^”]*”")
_TOKEN = re.compile(r"\S+")
_PARTS = re.compile(r"[\W_]+")
# Bytes in UTF-8: two characters of another script say as much as four letters.
_SHORTEST_PART = 4
_HIDDEN = "…"
_AXIS = re.compile(r"[^\W\d]\w*")
_PUNCTUATION = ".,:;!?()[]{}<>=\"'`"


def redacted(contents: PageContents) -> PageContents:
    """Return contents in which names of operators, tensors, dimensions and files are replaced."""
    names = _Names(contents)
    kernels = tuple(names.kernel(kernel) for kernel in contents.kernels)
    renamed = {old.name: new.name for old, new in zip(contents.kernels, kernels, strict=True)}
    names.keep(renamed)
    report = dataclasses.replace(names.walk(contents.report), model=ModelFacts(nodes=contents.report.model.nodes))
    return dataclasses.replace(
        contents,
        title="Redacted model",
        artefact="",
        report=report,
        kernels=kernels,
        inputs=names.walk(contents.inputs),
        outputs=names.walk(contents.outputs),
        wires=names.walk(contents.wires),
        record=names.walk(contents.record),
        notes=names.walk(contents.notes),
        is_redacted=True,
    )


class _Names:
    """The names of a model, and their replacements."""

    def __init__(self, contents: PageContents) -> None:
        self._safe = {text: text for text in _safe_texts(contents)}
        self._op_types: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._new: dict[str, str] = {}
        for name in _names_of(contents):
            if name and name not in self._safe:
                self._new.setdefault(name, f"name-{len(self._new) + 1}")
        known = {op_type.lower() for _, op_type in known_operators()}
        parts = {part.lower() for name in self._new for part in _PARTS.split(name)}
        whole = {_PARTS.sub("_", name).strip("_").lower() for name in self._new}
        words = {text.lower() for text in self._safe}
        self._secrets = {
            part
            for part in parts | whole
            if len(part.encode()) >= _SHORTEST_PART and part not in known and part not in words and not part.isdigit()
        }

    def keep(self, renamed: Mapping[str, str]) -> None:
        """Replace some names by given ones."""
        self._safe.update(renamed)

    def kernel(self, kernel: KernelView) -> KernelView:
        """Return a kernel without names. Its own name, which holds an operator type, and bodies are removed too."""
        walked = self.walk(dataclasses.replace(kernel, name="", operators=(), bodies=()))
        toolchain = _toolchain(kernel.target)
        operators = tuple(
            dataclasses.replace(
                each, name=self.text(each.name), op_type=self.op_type(each.op_type), outputs=self.walk(each.outputs)
            )
            for each in kernel.operators
        )
        return dataclasses.replace(walked, name=f"{toolchain}_{kernel.number:02}", operators=operators)

    def op_type(self, op_type: str) -> str:
        """Return the type of an operator; one that is not of a known domain is replaced."""
        domain, _, name = op_type.rpartition(".")
        if (domain, name) in known_operators():
            return op_type
        return self._op_types.setdefault(op_type, f"Custom{len(self._op_types) + 1}")

    def walk(self, value: _T) -> _T:
        """Return a value in which every text is redacted, in dataclasses, mappings and sequences too."""
        return cast(_T, self._walked(value))

    def _walked(self, value: Any) -> Any:
        if isinstance(value, str):
            # An enumeration of texts is a value of this package.
            return self.text(value) if type(value) is str else value
        if isinstance(value, Value):
            head, bracket, axes = value.type.partition("[")
            return Value(self.text(value.name), head + bracket + _AXIS.sub(lambda axis: self.text(axis[0]), axes))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            changed = {name: self._field(name, each) for name, each in fields.items()}
            return dataclasses.replace(value, **changed)
        if isinstance(value, Mapping):
            return {self._walked(key): self._walked(each) for key, each in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._walked, value))
        return [self._walked(each) for each in value] if isinstance(value, list) else value

    def _field(self, name: str, value: Any) -> Any:
        if name == "op_types":
            return tuple(map(self.op_type, value))
        return self._walked(value)

    def text(self, text: str) -> str:
        """Return a text without names."""
        found = self._safe.get(text, self._new.get(text, self._texts.get(text)))
        if found is None:
            # The last word of a text that was cut off may be half of a name.
            whole = text.rpartition(" ")[0] if text.endswith(_HIDDEN) else text
            found = self._texts[text] = _TOKEN.sub(self._token, _QUOTED.sub(_HIDDEN, whole))
        return found

    def _token(self, match: re.Match[str]) -> str:
        token = match[0]
        if token in self._safe:
            return self._safe[token]
        plain = _PARTS.sub("_", token).strip("_").lower()
        cores = token.strip(_PUNCTUATION), *_PARTS.split(token)
        is_name = any(core in self._new and not core.isdigit() for core in cores)
        is_path = "/" in token or "\\" in token
        return _HIDDEN if is_name or is_path or any(secret in plain for secret in self._secrets) else token


def _safe_texts(contents: PageContents) -> Iterable[str]:
    """Return texts that are this package's, not the model's."""
    report = contents.report
    targets = {*contents.targets, *(row.target for row in report.rows if row.target)}
    yield from targets
    yield from (row.name for row in report.rows)
    for target in targets:
        yield short_name(target)
        yield _toolchain(target)


def _toolchain(target: str) -> str:
    try:
        return Target.parse(target).toolchain
    except TargetError:  # Of a newer version.
        return "unknown"


def _names_of(contents: PageContents) -> Iterable[str]:
    report, record = contents.report, contents.record
    values = [*contents.inputs, *contents.outputs]
    for kernel in contents.kernels:
        values += [*kernel.reads, *kernel.makes]
        for operator in kernel.operators:
            yield operator.name
            values += operator.outputs
            if ("", operator.op_type) not in known_operators():
                yield operator.op_type
    for value in values:
        yield value.name
        yield from _AXIS.findall(value.type.partition("[")[2])
    yield from report.dims
    yield report.model.path
    yield report.model.sha256
    yield from (contents.title, contents.artefact)
    for row in report.kernels:
        yield from row.nodes
        for body in row.bodies:
            yield from body.nodes
    for occasion in report.occasions:
        yield from occasion.inputs
    for plan in report.specialised:
        yield from plan.lengths
    yield from (*report.numerics.unsettled, *report.numerics.nan)
    if record is not None:
        yield from record.names
