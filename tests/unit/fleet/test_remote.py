"""One model on a node of another machine: lost nodes, and nodes that are not what they say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.fleet.artefacts import MACHINE
from tests.unit.fleet.fake_ray import ERRORS, FakeRay, Reference

from collage._errors import CollageError
from collage.fleet.answers import Answer
from collage.fleet.remote import _sent

JOB = {"machine": "small", "fingerprint": MACHINE.fingerprint}


def sent(ends: Any, nodes: dict[str, str]) -> tuple[Answer, FakeRay]:
    ray = FakeRay(ends, nodes)
    return _sent(ray, {}, JOB, 60.0, 0.0, lambda _: None), ray


def test_of_a_lost_node_the_next_one_takes_over() -> None:
    def ends(reference: Reference) -> Any:
        if len(ray.started) < 3:
            raise ERRORS.NodeDiedError("gone")
        return {"kind": "done", "node": reference.node, "artefact": b"", "took_s": 1.0}

    ray = FakeRay(ends, {"a": "small"})
    assert _sent(ray, {}, JOB, 60.0, 0.0, lambda _: None).kind == "done"
    assert len(ray.started) == 3


@pytest.mark.parametrize(("error", "tries"), [("WorkerCrashedError", 3), ("RayTaskError", 1)])
def test_tries_are_bounded_and_an_error_of_the_work_has_one(error: str, tries: int) -> None:
    def ends(_: Reference) -> Any:
        raise getattr(ERRORS, error)("again")

    ray = FakeRay(ends, {"a": "small"})
    with pytest.raises(CollageError, match="the node was lost: again"):
        _sent(ray, {}, JOB, 60.0, 0.0, lambda _: None)
    assert len(ray.started) == tries


def test_a_node_of_another_fingerprint_is_refused_and_the_next_one_is_asked() -> None:
    def ends(reference: Reference) -> Any:
        if reference.node == "a":
            return {"kind": "refused", "node": "a", "reason": "another fingerprint"}
        return {"kind": "done", "node": "b", "artefact": b"", "took_s": 1.0}

    answer, ray = sent(ends, {"a": "small", "b": "small"})
    assert answer.kind == "done" and [node for node, _ in ray.started] == ["a", "b"]
    with pytest.raises(CollageError, match="no node of type small came"):
        sent(ends, {"a": "small"})
