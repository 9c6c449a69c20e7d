"""``collage explain``: questions about an artefact, answered as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.cli._console import print_json
from collage.explain import Explanation, as_plain
from collage.system.texts import printable

__all__ = ["print_explanation", "show_explanation"]

_SCHEMA = 1


def show_explanation(artefact: Path, node: str | None, against: str | None, target: str | None, *, json: bool) -> None:
    """Print the answer to one question about an artefact.

    Raises:
        UsageError: An operator or target that the artefact does not know, or options that do not go together.
        ArtefactError: The artefact cannot be read.
    """
    from collage.runtime import explain_artefact, machine_lines, machine_rows

    if against is not None and node is None:
        raise UsageError("--against goes with --node")
    if node is not None and target is not None:
        raise UsageError("--node and --target are two questions; --node NAME --against TARGET asks both")
    explanation = explain_artefact(artefact)
    if json:
        told = {"schema": _SCHEMA, "artefact": str(artefact), **_as_json(explanation, node, against, target)}
        rows = machine_rows(artefact)
        print_json({**told, **({"machines": rows["plans"]} if rows["pack"] else {})})
        return
    if node is None and target is None:
        for line in machine_lines(artefact):
            print(printable(line))
    if node is not None:
        print(printable(str(explanation.node(node, against))))
    elif target is not None:
        print(printable("\n\n".join(map(str, explanation.target(target)))))
    else:
        print_explanation(explanation)


def print_explanation(explanation: Explanation) -> None:
    """Print an explanation as text."""
    print(printable(str(explanation)))


def _as_json(explanation: Explanation, node: str | None, against: str | None, target: str | None) -> dict[str, Any]:
    if node is not None:
        return {"node": as_plain(explanation.node(node, against))}
    if target is not None:
        return {"targets": as_plain(explanation.target(target))}
    record = explanation.record
    operators = [list(pair) for pair in zip(record.names, record.op_types, strict=True)]
    return {"explanation": explanation.to_json(), "operators": operators, "tried": as_plain(record.tried)}
