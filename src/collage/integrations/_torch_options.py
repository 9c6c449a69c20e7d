"""The options of ``torch.compile(backend="collage")`` as arguments of ``collage.compile``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.options import CompileOptions, compile_options
from collage.system.user_folders import cache_folder
from collage.toolchains import registry

__all__ = ["torch_settings"]

_TUNE_S = 60.0
"""Seconds of tuning in the mode ``max-autotune``."""

_OWN_OPTIONS = ("targets", "options", "toolchains", "workers", "say", "cache_dir")


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
    # The lengths of the first call need not be frequent.
    options = replace(options, specialise=bool(options.specialise))
    if mode == "max-autotune":
        options = replace(options, tune_s=options.tune_s or _TUNE_S)
    elif mode not in (None, "default"):
        raise UsageError(f"mode {mode!r}: backend='collage' has 'default' and 'max-autotune'")
    own["targets"] = choose_menu(own.get("targets"), own.get("toolchains") or registry())
    folder = own.get("cache_dir", _default_cache())
    if not isinstance(folder, str | Path | None):
        raise UsageError(f"the option 'cache_dir' is a folder or None, not {folder!r}")
    is_kept = folder is not None and "toolchains" not in own  # A registry of the user's own has no name.
    return {**own, "options": options, "cache_dir": Path(folder) if is_kept and folder is not None else None}


def _default_cache() -> Path | None:
    """Return the folder of the user's caches; None if the user has none."""
    with suppress(UsageError):
        return cache_folder("give the option cache_dir") / "torch"
    return None
