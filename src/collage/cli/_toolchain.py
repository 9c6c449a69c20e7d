"""``collage toolchain check``: the contract of toolchains, as a table, for authors of toolchains."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from collage._errors import UsageError
from collage.cli._console import print_json, progress
from collage.system.texts import counted, printable

__all__ = ["toolchain"]

toolchain = typer.Typer(name="toolchain", help="For authors of toolchains.", no_args_is_help=True)

_REASON_LENGTH = 300


@toolchain.callback()
def _group() -> None:
    """Keep ``check`` a command of its own, although there is no other."""


@toolchain.command(
    help="""Test that a toolchain keeps the contract: right results, refusals of what it computes wrongly, no writes elsewhere.

    These are the tests of `collage.testing.ToolchainTestCase`; they take minutes. Examples:

      collage toolchain check mine

      collage toolchain check mine --takes matmul --takes elementwise --json
    """
)
def check(
    name: Annotated[str, typer.Argument(help="Its name, as `collage targets` lists it.")],
    target: Annotated[str, typer.Option("--target", "-t", metavar="T", help="Its first target by default.")] = "",
    takes: Annotated[
        list[str] | None, typer.Option(metavar="KERNEL", help="It takes only these common kernels; may be repeated.")
    ] = None,
    refuses: Annotated[
        list[str] | None, typer.Option(metavar="KERNEL", help="It refuses this common kernel; may be repeated.")
    ] = None,
    differs: Annotated[
        list[str] | None, typer.Option(metavar="CASE", help="Its result differs in this edge case; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Check a toolchain."""
    _check_kernels(takes or (), refuses or ())
    facts = {
        "target": target,
        "takes": None if takes is None else frozenset(takes),
        "refuses": frozenset(refuses or ()),
        "differs": frozenset(differs or ()),
    }
    with progress(quiet=False) as say:
        found = _Checks(name, facts, say).run()
    failed = sum(row["result"] == "failed" for row in found)
    if json:
        print_json({"schema": 1, "toolchain": name, "failed": failed, "checks": found})
    else:
        _print(name, found, failed)
    if failed:
        raise typer.Exit(1)


def _check_kernels(*names: Iterable[str]) -> None:
    """Refuse names of common kernels that there are not.

    Raises:
        UsageError: One is not there.
    """
    # By name, as pytest loads them: no command depends on the tools of authors.
    common = importlib.import_module("collage.testing._toolchain_kernels").COMMON
    known = sorted(case.name for case in common)
    for name in (name for some in names for name in some):
        if name not in known:
            raise UsageError(f"there is no common kernel {name!r}", hint=f"known: {', '.join(known)}")


def _print(name: str, found: Sequence[dict[str, Any]], failed: int) -> None:
    from collage.cli._report import print_table

    rows = ((row["check"], row["result"], row["reason"] or "") for row in found)
    print_table(name, ("check", "", ""), rows)
    typer.echo(printable(f"{counted(len(found), 'check')}, {failed} failed"))


@dataclass
class _Checks:
    """One run of the contract's tests.

    Attributes:
        name: The toolchain's name.
        facts: Attributes of the test class, see ``ToolchainTestCase``.
        say: Called with the name of each check before it runs.
    """

    name: str
    facts: dict[str, Any]
    say: Any

    def run(self) -> list[dict[str, Any]]:
        """Run all checks; a row for each.

        Raises:
            UsageError: There is no such toolchain or target, it cannot be used here, or pytest is not installed.
        """
        from collage.system.scratch import scratch
        from collage.toolchains import availability_for, registry

        toolchains = registry()
        made = toolchains.get(self.name)
        target = toolchains.parse_target(self.facts["target"] or made.targets[0])
        if target.toolchain != self.name:
            raise UsageError(f"{str(target)!r} is not a target of {self.name}; it has {', '.join(made.targets)}")
        found = availability_for(made, target)
        if not found.available:
            told = "; ".join(filter(None, (found.reason, found.remedy)))
            raise UsageError(f"{self.name} cannot be checked, since it cannot be used here: {told}")
        try:
            import pytest
        except ImportError as error:
            raise UsageError("the checks need pytest, which is not installed: pip install pytest") from error
        rows: list[dict[str, Any]] = []
        with scratch() as folder:
            file = folder / "test_contract.py"
            file.write_text(_source(self.name, {**self.facts, "target": str(target)}))
            options = ["-p", "no:cacheprovider", "-p", "no:terminal", "--noconftest", "-c", os.devnull]
            options += ["--rootdir", str(folder), "--basetemp", str(folder / "runs"), "--import-mode=importlib"]
            pytest.main([*options, str(file)], plugins=[_Listener(rows, self.say, folder)])
            sys.modules.pop(file.stem, None)
        if not rows:
            raise UsageError(f"no check of {self.name} could be run")
        return rows


def _source(name: str, facts: dict[str, Any]) -> str:
    """Return a test module for a toolchain; all that is put into it is written as Python literals."""
    lines = [f"    {fact} = {value!r}" for fact, value in facts.items()]
    return "\n".join(
        [
            "import pytest",
            'pytest.register_assert_rewrite("collage.testing._toolchain_case")  # So that failures say more.',
            "from collage.testing import ToolchainTestCase",
            "from collage.toolchains import registry",
            "class TestContract(ToolchainTestCase):",
            f"    toolchain = registry().get({name!r})",
            *lines,
            "",
        ]
    )


@dataclass
class _Listener:
    """The results of tests, as pytest reports them."""

    rows: list[dict[str, Any]]
    say: Any
    folder: Path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tell which check begins."""
        self.say(_title(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the result of a check: of its body, or of the step before or after it that failed."""
        if report.when == "call" or report.outcome != "passed":
            result = "known to differ" if hasattr(report, "wasxfail") and report.skipped else report.outcome
            self.rows.append({"check": _title(report.nodeid), "result": result, "reason": self._reason(report)})

    def pytest_collectreport(self, report: Any) -> None:
        """Keep why the checks could not even be collected."""
        if report.failed:
            self.rows.append({"check": "collection", "result": "failed", "reason": self._reason(report)})

    def _reason(self, report: Any) -> str | None:
        if report.outcome == "passed":
            return None
        if isinstance(report.longrepr, tuple):
            text = str(report.longrepr[-1])
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(report.longrepr) if crash is None else crash.message
        return " ".join(text.replace(f"{self.folder}/", "").split())[:_REASON_LENGTH]


def _title(nodeid: str) -> str:
    """Return a test's name as words: ``common kernels are right [matmul]``."""
    name = nodeid.rpartition("::")[2].removeprefix("test_")
    words, bracket, case = name.partition("[")
    return words.replace("_", " ") + (f" [{case}" if bracket else "")
