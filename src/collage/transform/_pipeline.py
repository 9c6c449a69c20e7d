"""Pipelines as text: ``prepare, FoldScaleAxis, PrintIR{only=Conv}``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from collage._errors import ConfigError, UsageError
from collage.transform._pass import Pass, Runner, get_pass, make_pass
from collage.transform._prepare import PREPARE, default_passes
from collage.transform._sequential import Sequential

__all__ = ["parse_pipeline", "simplifying_passes"]

_KEPT = frozenset(("DeadCodeElimination", "InferType", "InlineFunctions", "TopologicalSort"))
"""Passes that only infer facts, on which the others rely."""
_MEMBER = re.compile(r"\s*(?P<name>[^\s,{}]+)\s*(?:\{(?P<options>[^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> Sequential:
    """Read a pipeline: names of passes with commas between them, each with options in braces if it takes any.

    A named pass runs regardless of its level, and so do the members of a named sequence. Passes of ``prepare``
    run by their levels.

    Args:
        text: For example ``prepare,PrintIR{only=Conv}``. ``prepare`` is the default preparation. Values are whole
            numbers, numbers, ``true``, ``false`` or text.

    Raises:
        ConfigError: A pass is unknown, or does not take an option.
        UsageError: The text cannot be read, or names no pass.
    """
    if not text.strip(", "):
        raise UsageError("name at least one pass")
    members: list[Pass] = []
    end = 0
    while end < len(text):
        found = _MEMBER.match(text, end)
        if found is None:
            raise UsageError(f"cannot read {text[end:]!r} in the passes {text!r}; write NAME,NAME{{option=value}}")
        members.append(_pass(found["name"], _options(found["options"] or "", text)))
        end = found.end()
    return _Pipeline(members, name="passes")


def simplifying_passes(pipeline: str = PREPARE) -> tuple[str, ...]:
    """Return the names of the passes of a pipeline that can be left out one by one, in order."""
    return tuple(name for name in dict.fromkeys(_single_passes(parse_pipeline(pipeline))) if name not in _KEPT)


class _Pipeline(Sequential):
    """A sequence whose members run regardless of their level."""

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run the members in order."""
        outer = runner.wanted
        try:
            for index, member in enumerate(self.passes):
                runner.wanted = outer | _names_in(member)
                model = runner.execute(member, model, f"{place}[{index}]")
        finally:
            runner.wanted = outer
        return model


def _names_in(member: Pass) -> frozenset[str]:
    """Return the names of a pass and of all passes inside of it; of the default preparation, only its own."""
    names = {member.info.name}
    if member.info.name != PREPARE:
        names.update(*map(_names_in, _inside(member)))
    return frozenset(names)


def _single_passes(member: Pass) -> Iterator[str]:
    """Return the names of the innermost passes of a pass."""
    inside = _inside(member)
    if not inside:
        yield member.info.name
    for inner in inside:
        yield from _single_passes(inner)


def _inside(member: Pass) -> tuple[Pass, ...]:
    """Return the passes that a sequence, a repetition or an attempt consists of; none for other passes."""
    return (*getattr(member, "passes", ()), *filter(None, [getattr(member, "inner", None)]))


def _pass(name: str, options: dict[str, object]) -> Pass:
    if name == PREPARE and not options:
        return default_passes()
    if not options:
        return get_pass(name)
    try:
        return make_pass(name, options)
    except TypeError as error:
        raise ConfigError(f"pass {name!r} does not take {', '.join(options)}: {error}") from error


def _options(text: str, pipeline: str) -> dict[str, object]:
    options: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"cannot read option {part!r} in the passes {pipeline!r}; write {{option=value,option=value}}"
            )
        options[key.strip()] = _value(value.strip())
    return options


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
