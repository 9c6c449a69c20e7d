"""Artefacts of earlier compilations, kept whole: the same command again starts no toolchain and runs no model.

``ResultStore`` keeps a plan, to build it again and to race it again where it may have been another one. What is kept here needs
neither: the comparison was not in doubt, and nothing has changed since. Artefacts lie beside the database, which knows their
names, so that a new database measures.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CollageError
from collage.compiler.opening import told_path
from collage.compiler.preparation import preparation_fact
from collage.compiler.problem import Part
from collage.cost.workload_key import METHOD, digest_of, runtime_settings
from collage.database import Database, FactKind
from collage.frontend import model_digest, read_model
from collage.measure.bench_findings import faster_targets
from collage.measure.tuning_records import tuned_digest
from collage.options import CompileOptions
from collage.runtime import Executable, verify_bytes
from collage.system.installation import installation_digest
from collage.system.machine import this_machine
from collage.system.scratch import make_scratch, remove_scratch
from collage.system.user_folders import is_own
from collage.target import Target
from collage.toolchains import Registry

__all__ = ["KeptArtefact"]

_FOLDER: FactKind[str] = FactKind("artefact", str)
_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}")
_MOST_BYTES = 2 << 30
"""Bytes of all artefacts that are kept. Those that were not used for longest go first."""
_NO_PART = ("db", "dims", "fixed", "inputs", "remeasure", "specialise")
"""Options that do not count, or that are part of ``preparation_fact``."""
_NOT_GIVEN = ("data", "devices", "front", "plan", "plan_out", "tune_s")
"""Options with which nothing is looked up: they name files, which may have changed, or ask for more than an artefact."""


@dataclass(frozen=True, slots=True)
class KeptArtefact:
    """The place of one compilation's artefact.

    Attributes:
        database: Knows its folder.
        name: Everything that the artefact depends on.
        is_open: It may be another artefact now: the user measures again, or ``collage bench`` found a faster target.
    """

    database: Database
    name: Mapping[str, Any]
    is_open: bool

    @classmethod
    def of(
        cls,
        database: Database,
        source: Any,
        menu: Sequence[Target],
        options: CompileOptions,
        toolchains: Registry,
        part: Part,
        *,
        is_named: bool,
    ) -> KeptArtefact | None:
        """Return the place of a compilation's artefact; None beside a server's database, or if a name identifies no options.

        Args:
            database: Beside which the model is compiled.
            source: The model, see ``compile``.
            menu: The targets.
            options: The options.
            toolchains: The registry of toolchains.
            part: Its share of the limits, and the plan to beat.
            is_named: True if the user named the targets.

        Raises:
            ModelError: The source is not a valid model.
        """
        usual = CompileOptions()
        is_plain = database.file is not None and options.is_plain and options.passes == usual.passes
        is_plain &= all(np.asarray(value).dtype != object for value in options.inputs.values())
        is_plain &= all(toolchains.is_installed(target.toolchain) for target in menu)
        if not is_plain or any(_is_given(options, usual, each) for each in _NOT_GIVEN):
            return None
        digest = model_digest(read_model(source))
        decided = {field.name: repr(getattr(options, field.name)) for field in fields(options)}
        for each in _NO_PART:
            del decided[each]
        name = {
            **preparation_fact(digest, options, installation_digest()),
            "method": METHOD,
            "path": told_path(source),
            "menu": [is_named, *([target.title, toolchains.factory(target.toolchain)] for target in menu)],
            "machine": this_machine().fingerprint,
            "settings": runtime_settings(),
            "options": decided,
            "part": [
                part.budget,
                part.search,
                None if part.rival is None else part.rival.digest,
                None if part.plan is None else part.plan.to_json(),
                sorted(part.refused),
            ],
            "tuned": tuned_digest(database) if options.use_tuned else None,
        }
        return cls(database, name, options.remeasure or bool(faster_targets(database, digest)))

    def load(self, toolchains: Registry, wall_s: float) -> Executable | None:
        """Return the executable; None if there is none, it is to be measured again, or it does not load.

        Args:
            toolchains: The registry of toolchains.
            wall_s: Seconds that this compilation took until now, for the report.
        """
        if self.is_open:
            self.forget()
        if (folder := self._folder()) is None:
            return None
        home = make_scratch()
        try:
            recipe, _ = verify_bytes(folder)
            for file in recipe.files_with_weights(folder):
                shutil.copyfile(folder / file, home / file)
            os.utime(folder)
            search = replace(recipe.report.search, built=0, measured=0, raced=False, wall_s=wall_s)
            recipe = replace(recipe, report=replace(recipe.report, search=search))
            return Executable(recipe, home, owns_workspace=True, toolchains=toolchains)
        except (CollageError, OSError):
            remove_scratch(home)
            self.forget()
            return None

    def forget(self) -> None:
        """Remove the artefact, if there is one: what is compiled now may be another one."""
        if (folder := self._folder()) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, executable: Executable) -> None:
        """Keep the executable of a compilation in place of an earlier one. Without a folder to write to, it is not kept."""
        recipe, workspace = executable.recipe, executable.workspace
        size = sum((workspace / file).stat().st_size for file in recipe.files_with_weights(workspace))
        self.forget()
        home, name = self._home(), f"{digest_of(self.name)}.{secrets.token_hex(8)}"
        with suppress(CollageError, OSError):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if size <= _MOST_BYTES and is_own(home, stat.S_ISDIR):
                executable.save(home / name)
                self.database.keep_local_fact(_FOLDER, name, **self.name)
                _remove_oldest(home)

    def _home(self) -> Path:
        """Return the folder of all artefacts: beside the database if that is a file of this machine."""
        file = self.database.file
        assert file is not None
        return file.with_name(f"{file.name}.artefacts")

    def _folder(self) -> Path | None:
        found = self.database.local_fact(_FOLDER, **self.name)
        # A database may come from anywhere, and name any folder. This one has to be of this compilation, and this user's alone.
        is_of_this = found is not None and _NAME.fullmatch(found) and found.startswith(digest_of(self.name))
        folders = [self._home(), self._home() / found] if found is not None and is_of_this else []
        return folders[-1] if folders and all(is_own(folder, stat.S_ISDIR) for folder in folders) else None


def _is_given(options: CompileOptions, usual: CompileOptions, name: str) -> bool:
    given = getattr(options, name)
    return given is not None and given != getattr(usual, name)


def _remove_oldest(home: Path) -> None:
    """Remove the artefacts that were not used for longest, until the others are as small as all may be."""
    folders = {entry: _size_of(entry) for entry in home.iterdir() if entry.is_dir()}
    for folder in sorted(folders, key=lambda entry: entry.stat().st_mtime_ns):
        if sum(folders.values()) <= _MOST_BYTES:
            return
        shutil.rmtree(folder, ignore_errors=True)
        del folders[folder]


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
