"""Probe in child processes if toolchains can share a process, once for their builds and this machine.

Runtimes clash in ways that they do not declare: symbols of one library taken for another's, static thread-local storage that
runs out, thread pools that bind the process to one core. While measuring, each toolchain has a process of its own; an
executable has one for all. So before a mixed plan is accepted, its toolchains are loaded together and run kernels in
turns. All results must be right. The verdict is a fact, kept with the builds that it holds for. If the probe itself had too
little time or memory, the verdict holds for one compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from collage._errors import ToolchainError
from collage.cost.workload_key import digest_of
from collage.database import Database, FactKind
from collage.system.machine import this_machine
from collage.system.scratch import scratch
from collage.target import Target
from collage.toolchains import Registry
from collage.workers.machine_lock import build_lock
from collage.workers.worker import Worker

__all__ = ["ProcessCompatibility", "Verdict"]

_SERVICE = "collage.measure._process_compat_worker:ProcessCompatWorker"
_TIMEOUT_S = 180.0
_COARSER = ("precision", "exempt", "floats")
"""Options under which a kernel may compute in a coarser type than the model says."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on several toolchains in one process, with the reason if they cannot share it."""

    ok: bool
    reason: str | None = None


_SHARE: FactKind[Verdict] = FactKind("share", Verdict)


class ProcessCompatibility:
    """Asks which toolchains can share a process.

    Args:
        toolchains: The registry of toolchains.
        database: The database that holds verdicts.
        build_of: The build of a target's toolchain.
        say: Called with each line of progress.
        remeasure: Do not look up verdicts in the database.
        menu: Targets that are usually asked about together. If all of these can share a process, so can some of them.
    """

    def __init__(
        self,
        toolchains: Registry,
        database: Database,
        build_of: Callable[[Target], str],
        say: Callable[[str], None] = lambda _: None,
        *,
        remeasure: bool = False,
        menu: Sequence[Target] = (),
    ) -> None:
        self._toolchains = toolchains
        self._database = database
        self._build_of = build_of
        self._say = say
        self._remeasure = remeasure
        self._menu = menu
        self._probed: dict[str, Verdict] = {}

    def verdict(self, targets: Iterable[Target]) -> Verdict:
        """Return the verdict on the toolchains of these targets in one process. One alone is always right."""
        owners = {target.toolchain: target for target in targets}
        everyone = {**{target.toolchain: target for target in self._menu}, **owners}
        if len(owners) > 1 and len(everyone) > len(owners):
            if (known := self._known([owners[name] for name in sorted(owners)])) is not None:
                return known
            if (together := self._verdict([everyone[name] for name in sorted(everyone)])).ok:
                return together
        return self._verdict([owners[name] for name in sorted(owners)])

    def can_share(self, targets: Iterable[Target]) -> bool:
        """Return True if the toolchains of these targets can share a process; report the reason if they cannot."""
        verdict = self.verdict(targets)
        if not verdict.ok:
            self._say(f"not in one process: {verdict.reason}")
        return verdict.ok

    def compatible_sets(self, targets: Sequence[Target]) -> tuple[frozenset[Target], ...]:
        """The largest sets of targets whose toolchains can share a process; together they hold every target.

        Usually all of them are one set, which takes a single probe. Otherwise ever smaller sets are tried.
        """
        owners = {target.toolchain: target for target in reversed(targets)}
        names = frozenset(owners)
        found = self._largest(names, owners)
        ordered = sorted(found, key=lambda group: (-len(group), sorted(group)))
        return tuple(frozenset(target for target in targets if target.toolchain in group) for group in ordered)

    def _largest(self, names: frozenset[str], owners: dict[str, Target]) -> set[frozenset[str]]:
        if self._verdict([owners[name] for name in sorted(names)]).ok:
            return {names}
        found = set().union(*(self._largest(names - {name}, owners) for name in names))
        return {group for group in found if not any(group < other for other in found)}

    def _verdict(self, targets: Sequence[Target]) -> Verdict:
        """Return the same as ``verdict``, from one target of each toolchain, by name."""
        if len(targets) <= 1:
            return Verdict(True)
        verdict = self._known(targets)
        if verdict is None:
            verdict, is_accident = self._probe(targets)
            name = self._name(targets)
            self._probed[digest_of(name)] = verdict
            if not is_accident:
                self._database.keep_fact(_SHARE, verdict, **name)
        return verdict

    def _known(self, targets: Sequence[Target]) -> Verdict | None:
        """Return the verdict of an earlier probe, or None."""
        name = self._name(targets)
        if (probed := self._probed.get(digest_of(name))) is not None:
            return probed
        return None if self._remeasure else self._database.fact(_SHARE, **name)

    def _name(self, targets: Sequence[Target]) -> dict[str, object]:
        builds = {target.build_name: self._build_of(target) for target in targets}
        return {"builds": builds, "machine": this_machine().fingerprint}

    def _probe(self, targets: Sequence[Target]) -> tuple[Verdict, bool]:
        """Return the verdict, and True if another probe may end otherwise."""
        names = ", ".join(target.toolchain for target in targets)
        self._say(f"testing if {names} can share a process")
        members = []
        for target in targets:
            factory, arguments = self._toolchains.factory(target.toolchain)
            # What a toolchain computes wrongly is told from what it computes right by a small tolerance.
            exact = replace(target, options=tuple(each for each in target.options if each[0] not in _COARSER))
            members.append({"factory": factory, "arguments": arguments, "target": str(exact)})
        with (
            scratch() as workspace,
            build_lock(),
            Worker(_SERVICE, {"members": members, "workspace": str(workspace)}) as worker,
        ):
            try:
                found: str | None = worker.call("probe", _TIMEOUT_S)
            except ToolchainError as error:
                return Verdict(False, f"together, {names}: {error}"), error.is_accident
        return Verdict(found is None, found), False
