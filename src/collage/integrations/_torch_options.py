"""The options of ``torch.compile(backend="collage")`` as arguments of ``collage.compile``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.options import CompileOptions, compile_options
from collage.system.user_folders import cache_folder
from collage.toolchains import registry

__all__ = ["has_to_wait", "portable", "torch_settings"]

_TUNE_S = 60.0
"""Seconds of tuning in the mode ``max-autotune``."""

_OWN_OPTIONS = ("targets", "options", "toolchains", "workers", "say", "cache_dir", "wait", "specialise", "freezing")
_HERE_ONLY = ("say", "cache_dir", "wait", "freezing")
"""Options about calls, which another process that compiles has none of."""

_IN_PROCESS = ("toolchains", "workers")
"""Options whose values cannot be sent to another process."""


def torch_settings(given: Mapping[str, Any], mode: str | None) -> dict[str, Any]:
    """Return keyword arguments of ``collage.compile``.

    Raises:
        UsageError: An option or a mode that there is not, or an unknown target.
    """
    from collage.toolchains import choose_menu  # Late: PyTorch imports this to list its backends.

    own = {name: given[name] for name in given if name in _OWN_OPTIONS}
    names = [field.name for field in fields(CompileOptions)]
    for name in given:
        if name not in own and name not in names:
            near = difflib.get_close_matches(str(name), [*_OWN_OPTIONS, *names], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join([*_OWN_OPTIONS, *names])}"
            raise UsageError(f"torch.compile with backend='collage' has no option {name!r}; {hint}")
    options = own.get("options", CompileOptions(baseline="none"))  # No report is shown that would name a gain.
    options = replace(compile_options(options), **{name: given[name] for name in given if name not in own})
    own["freezing"] = bool(own.get("freezing", _is_freezing()))
    own["specialise"] = _sets_of_lengths(own.get("specialise", options.specialise), options)
    # The lengths of the first call need not be frequent. A user who waits for it has chosen them.
    options = replace(options, specialise=bool(own["specialise"]) and has_to_wait(given))
    if mode == "max-autotune":
        options = replace(options, tune_s=options.tune_s or _TUNE_S)
    elif mode not in (None, "default"):
        raise UsageError(f"mode {mode!r}: backend='collage' has 'default' and 'max-autotune'")
    if not own.get("wait", True) and portable(given) is None:
        raise UsageError("options that cannot be sent to another process, such as 'toolchains', need {'wait': True}")
    own["targets"] = choose_menu(own.get("targets"), own.get("toolchains") or registry())
    folder = own.get("cache_dir", _default_cache())
    if not isinstance(folder, str | Path | None):
        raise UsageError(f"the option 'cache_dir' is a folder or None, not {folder!r}")
    is_kept = folder is not None and "toolchains" not in own  # A registry of the user's own has no name.
    return {**own, "options": options, "cache_dir": Path(folder) if is_kept and folder is not None else None}


def _is_freezing() -> bool:
    """Return True if the user has told PyTorch that weights are frozen."""
    from torch._inductor import config  # Late: PyTorch imports this module to list its backends.

    return bool(config.freezing)


def _sets_of_lengths(told: Any, options: CompileOptions) -> int:
    """Return the number of sets of lengths of a graph that get a plan of their own."""
    if told is None:
        return 0
    if not isinstance(told, int) or told < 0:
        raise UsageError(f"the option 'specialise' is the number of sets of lengths that get a plan, not {told!r}")
    if told and not options.finals:
        raise UsageError("the option 'specialise' keeps plans that are faster end to end: it needs 'finals'")
    return int(told)


def has_to_wait(given: Mapping[str, Any]) -> bool:
    """Return True if the first call waits until the graph is compiled: if told so, or if another process cannot do it."""
    return bool(given["wait"]) if "wait" in given else portable(given) is None


def portable(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return options as JSON values, without those for the first process only; None if there are others that have none."""
    if any(name in given for name in _IN_PROCESS):
        return None
    plain = {name: value for name, value in given.items() if name not in _HERE_ONLY}
    if isinstance(options := plain.get("options"), CompileOptions):
        default = CompileOptions()
        names = [field.name for field in fields(CompileOptions)]
        plain["options"] = {n: v for n in names if (v := getattr(options, n)) != getattr(default, n)}
    if isinstance(targets := plain.get("targets"), list | tuple):
        plain["targets"] = [str(target) for target in targets]
    with suppress(TypeError, ValueError):
        text = json.dumps(plain)
        return plain if json.loads(text) == plain else None
    return None


def _default_cache() -> Path | None:
    """Return the folder of the user's caches; None if the user has none."""
    with suppress(UsageError):
        return cache_folder("give the option cache_dir") / "torch"
    return None
