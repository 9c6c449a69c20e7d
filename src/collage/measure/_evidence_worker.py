"""Gathers evidence on what float arithmetic makes of a model, and judges outputs by it. Runs in the child."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from collage._errors import ToolchainError
from collage.numerics.judge import Difference, Evidence, judge, tolerance_of
from collage.numerics.value_store import ValueStore
from collage.toolchains import OriginalSession, Perturbation, StepwiseModel

__all__ = ["MARGIN", "EvidenceService", "Witness", "settled"]

# The truth often settles it alone. Two runs show the size of the noise. Ties are seen in half of the runs each, so after 16
# hardly one is missed.
_ROUNDS = (0, 2, 2, 4, 8)
_MOST_S = 10.0
_LONGEST_S = 90.0
# Two runs halve the number of ties that were not seen twice. Where fewer than a quarter of the doubts go, more runs are no use.
_LEFT = 0.75
# Decisions, such as ArgMax, meet floats that may be this far off in any right kernel: the tolerance of float32.
MARGIN = 1e-4
# Of what was computed on inputs before; a truth and the runs of a picture of 640 x 480 take 20 MB.
_MOST_BYTES = 1 << 28


@dataclass(slots=True)
class _Testimony:
    """Values of a model on one set of inputs, as several runs computed them, by name.

    Attributes:
        truth: The values in higher precision; empty if they cannot be had.
        unperturbed: The answers of right runs without perturbation.
        perturbed: The answers of further runs, in the order of their numbers.
        decided: Names of values that follow from decisions, see ``StepwiseModel``.
    """

    truth: dict[str, Any] = field(default_factory=dict)
    unperturbed: list[dict[str, Any]] = field(default_factory=list)
    perturbed: list[dict[str, Any]] = field(default_factory=list)
    decided: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        runs = (self.truth, *self.unperturbed, *self.perturbed)
        return sum(int(getattr(value, "nbytes", 0)) for run in runs for value in run.values())


class _Memory:
    """Keeps testimonies: several toolchains are judged on the same inputs. The oldest make room for new ones."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Testimony] = {}

    def about(self, key: Hashable) -> _Testimony | None:
        """Return what is known of some values on some inputs."""
        return self._known.get(key)

    def keep(self, key: Hashable, testimony: _Testimony) -> None:
        """Keep a testimony, which may still grow."""
        while self._known and sum(each.nbytes for each in self._known.values()) > _MOST_BYTES:
            del self._known[next(iter(self._known))]
        self._known[key] = testimony


class Witness:
    """Gathers evidence on one model file.

    Args:
        path: The file.
        is_original: It is the user's own: ONNX Runtime with its defaults is one of the right runs.
        memory: Keeps what was computed.
    """

    def __init__(self, path: Path, *, is_original: bool, memory: _Memory | None = None) -> None:
        self._path, self._is_original = path, is_original
        # A file of the user's may have all weights in it, and no kernel is the same.
        self._identity = _state_of(path) if is_original else _identity_of(path)
        self._memory = memory or _Memory()
        self._model = StepwiseModel(path)
        self._feeds: Mapping[str, Any] = {}
        self._margin = 0.0
        self._known = _Testimony()
        self._heard = 0

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the model's inputs."""
        return self._model.inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the model's outputs."""
        return self._model.outputs

    @property
    def has_evidence(self) -> bool:
        """True if the truth is known, or the answer of a right run."""
        return bool(self._known.truth or self._answers)

    @property
    def _answers(self) -> list[dict[str, Any]]:
        return [*self._known.unperturbed, *self._known.perturbed[: self._heard]]

    def hear(
        self, feeds: Mapping[str, Any], names: Sequence[str], margin: float, ends_at: float, about: Hashable = None
    ) -> None:
        """Compute the truth of some values. Perturbed runs do not count until ``run_more`` asks for them.

        Args:
            feeds: Inputs by name.
            names: Names of the values.
            margin: See ``Perturbation``.
            ends_at: Value of ``time.monotonic()`` at which it gives up.
            about: Tells these inputs from others of this model. What was computed of them before is used again. With None,
                everything is computed.
        """
        self._feeds, self._margin, self._heard = feeds, margin, 0
        key = (self._identity, self._is_original, about, tuple(names), margin)
        known = None if about is None else self._memory.about(key)
        if known is not None:
            self._known = known
            return
        self._known = _Testimony()
        with contextlib.suppress(ToolchainError):  # The answers of perturbed runs stand for it.
            self._known.truth = self._run(names, None, ends_at)
        if self._is_original:
            with contextlib.suppress(ToolchainError, KeyError):
                self._known.unperturbed.append(dict(OriginalSession(self._path, self._model.threads).run(feeds)))
        if about is not None:
            self._memory.keep(key, self._known)

    def run_more(self, names: Sequence[str], count: int, ends_at: float) -> None:
        """Hear of more perturbed runs; ToolchainError if the model cannot be run, or if the time is up."""
        for _ in range(count):
            if self._heard == len(self._known.perturbed):
                perturbation = Perturbation(len(self._answers), self._margin)
                self._known.perturbed.append(self._run(names, perturbation, ends_at))
            self._heard += 1

    def _run(self, names: Sequence[str], perturbation: Perturbation | None, ends_at: float) -> dict[str, Any]:
        try:
            return self._model.run(self._feeds, names, perturbation, ends_at)
        finally:
            self._known.decided |= self._model.decided

    def evidence(self, name: str, expected: Any, tolerance: float, **sides: Any) -> Evidence:
        """Return the evidence on a value; ``sides`` go to ``judge``."""
        answers = tuple(answer[name] for answer in self._answers if isinstance(answer.get(name), np.ndarray))
        answers = tuple(answer for answer in answers if answer.dtype == expected.dtype)
        truth, is_decided = self._known.truth.get(name), name in self._known.decided
        if not isinstance(truth, np.ndarray) or truth.shape != expected.shape or expected.dtype.kind != "f":
            return Evidence(answers, is_decided=is_decided)
        # A truth that float arithmetic cannot reach is a fault of the evaluator, and would excuse everything.
        with np.errstate(all="ignore"):
            narrow = truth.astype(expected.dtype)
        is_near = judge(narrow, expected, tolerance, evidence=Evidence(answers, None, is_decided), **sides).ok
        return Evidence(answers, truth if is_near else None, is_decided)


def settled(
    witness: Witness,
    feeds: Mapping[str, Any],
    outputs: Mapping[str, Any],
    right: Mapping[str, Any],
    tolerance: float,
    usual: Mapping[str, Any],
    margin: float = MARGIN,
    by_norm: bool = False,
    beside: Mapping[str, Any] = MappingProxyType({}),
    about: Hashable = None,
) -> dict[str, Difference]:
    """Judge outputs by evidence, and gather more of it until they are right or enough was gathered.

    Args:
        witness: Gathers the evidence.
        feeds: Inputs of the model.
        outputs: The outputs to judge.
        right: The reference outputs of the same names.
        tolerance: See ``judge``.
        usual: Outputs on ordinary inputs, as far as they are known.
        margin: See ``Perturbation``.
        by_norm: See ``judge``.
        beside: Outputs on other inputs, see ``judge``.
        about: See ``Witness.hear``.

    Raises:
        ToolchainError: There is no evidence.
    """
    names = list(outputs)
    witness.hear(feeds, names, margin, time.monotonic() + _MOST_S, about)
    # The first runs are needed, however long they take. More are made as long as there is time.
    ends_at = time.monotonic() + _LONGEST_S
    found: dict[str, Difference] = {}
    wrong = float("inf")
    for count in _ROUNDS:
        try:
            witness.run_more(names, count, ends_at)
        except ToolchainError:
            if not witness.has_evidence:
                raise
            break
        if count:
            ends_at = min(ends_at, time.monotonic() + _MOST_S)
        for name in names:
            sides: dict[str, Any] = {"usual": usual.get(name), "beside": beside.get(name)}
            evidence = witness.evidence(name, right[name], tolerance, **sides)
            found[name] = judge(outputs[name], right[name], tolerance, evidence=evidence, by_norm=by_norm, **sides)
        left = sum(each.wrong for each in found.values())
        if all(each.ok for each in found.values()) or left > _LEFT * wrong:
            break
        wrong = left if count else wrong
    return found


class EvidenceService:
    """Serves one model file at a time."""

    def __init__(self) -> None:
        self._opened: tuple[Any, Witness] | None = None
        self._memory = _Memory()

    def drop(self) -> None:
        """Forget the model. What is known of it stays."""
        self._opened = None

    def _witness(self, model: str, is_original: bool) -> Witness:
        path = Path(model)
        key = _state_of(path), is_original
        if self._opened is None or self._opened[0] != key:
            self._opened = key, Witness(path, is_original=is_original, memory=self._memory)
        return self._opened[1]

    def settle(self, model: str, doubt: Mapping[str, Any]) -> dict[str, Any]:
        """Judge outputs that the tolerance does not show to be right.

        Args:
            model: The file of the model, or kernel, that they are outputs of.
            doubt: See ``Findings.look``.

        Returns:
            The reason why an output is wrong, or None; the largest relative error that is not excused; the largest noise;
            and the shares of elements that noise excuses on ordinary inputs, by output.
        """
        store, outputs = ValueStore(Path(doubt["values"])), ValueStore(Path(doubt["outputs"]))
        usual = ValueStore(Path(doubt["usual"]))
        reasons, tolerance = dict(doubt["reasons"]), float(doubt["tolerance"])
        names = list(reasons)
        right = {name: store.right(name) if doubt["is_original"] else store.get(name) for name in names}
        is_usual, other = usual.folder == store.folder, ValueStore(Path(doubt["other"]))
        usually = {name: usual.get(name) for name in names if not is_usual and name in usual}
        beside = {name: other.get(name) for name in names if is_usual and name in other}
        try:
            witness = self._witness(model, bool(doubt["is_original"]))
            judged = {name: outputs.get(name) for name in names}
            by_norm = bool(doubt["by_norm"])
            found = settled(
                witness,
                _feeds(witness, store),
                judged,
                right,
                tolerance,
                usually,
                by_norm=by_norm,
                beside=beside,
                about=_state_of(store.folder),
            )
        except ToolchainError as error:
            reason = f"{doubt['where']}output {names[0]!r}: {reasons[names[0]]} (no evidence: {error})"
            return {"wrong": reason, "error": 0.0, "noise": None, "excused": {}}
        wrong = next(((name, each) for name, each in found.items() if not each.ok), None)
        return {
            "wrong": None if wrong is None else f"{doubt['where']}output {wrong[0]!r}: {wrong[1].reason}",
            "error": max((each.max_rel for each in found.values() if each.max_rel < np.inf), default=0.0),
            "noise": max((each.noise or 0.0 for each in found.values()), default=0.0),
            "excused": {name: each.excused for name, each in found.items() if each.excused and is_usual},
        }

    def differs_from_itself(self, model: str, values: str) -> str | None:
        """Return how two runs of a model on ONNX Runtime differ; None if they are alike."""
        store, witness = ValueStore(Path(values)), self._witness(model, True)
        feeds = _feeds(witness, store)
        first, second = (OriginalSession(Path(model)).run(feeds) for _ in range(2))
        for name, right in first.items():
            found = judge(second[name], right, tolerance_of([str(np.asarray(right).dtype)]))
            if not found.ok and (name not in store or store.is_repeatable(name)):
                return f"output {name!r}: {found.reason}"
        return None

    def noise(self, model: str, values: str, limit_s: float) -> dict[str, float]:
        """Return what float arithmetic errs on a model's outputs, relative to their sizes, by name.

        Args:
            model: The file of the original model.
            values: Folder of a ``ValueStore`` with the model's inputs and outputs.
            limit_s: Seconds after which no further run is made.
        """
        store = ValueStore(Path(values))
        ends_at = time.monotonic() + limit_s
        witness = self._witness(model, True)
        names = [name for name in witness.outputs if name in store and store.dtype(name).startswith(("float", "bf"))]
        witness.hear(_feeds(witness, store), names, 0.0, ends_at, _state_of(store.folder))
        with contextlib.suppress(ToolchainError):
            witness.run_more(names, 2, ends_at)
        found = {}
        for name in names:
            right = store.right(name)
            evidence = witness.evidence(name, right, 0.0)
            if evidence.answers and (noise := judge(right, right, 0.0, evidence=evidence).noise) is not None:
                found[name] = noise
        return found


def _identity_of(path: Path) -> Hashable:
    """Return what kernels of the same operators on the same weights share, whichever toolchain they are for."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    proto.graph.name = ""
    return str(path.parent), hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()


def _state_of(path: Path) -> Hashable:
    """Return what tells a file or folder from a later one of the same name, and from itself after a change."""
    stat = path.stat()
    return str(path), stat.st_ino, stat.st_mtime_ns


def _feeds(witness: Witness, store: ValueStore) -> dict[str, Any]:
    return {name: store.input(name) for name in witness.inputs if store.holds_input(name)}
