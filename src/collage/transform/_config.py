"""Typed, documented configuration keys of passes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage._errors import ConfigError

__all__ = ["ConfigOption", "check_config", "config_option", "list_config_options", "register_config_option"]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One key of ``PassContext.config``.

    Attributes:
        key: Its name, such as ``collage.tvm_max_depth``.
        type: The Python type of its values.
        default: Its value where the context has none; None if it has no default.
        doc: One sentence for people.
    """

    key: str
    type: type
    default: Any
    doc: str


_OPTIONS: dict[str, ConfigOption] = {}


def register_config_option(key: str, type: type, default: Any, doc: str) -> ConfigOption:
    """Register a configuration key of passes. The same registration twice has no further effect.

    Args:
        key: Name of the key, such as ``collage.enable_collage``.
        type: Python type of its values.
        default: Value of a context that does not set it; None if there is none.
        doc: A sentence for people.

    Raises:
        ConfigError: The key is known with another type or default, or the default is not of the type.
    """
    option = ConfigOption(key, type, default, doc)
    if default is not None:
        _check(option, default)
    known = _OPTIONS.setdefault(key, option)
    if (known.type, known.default) != (type, default):
        raise ConfigError(f"configuration key {key!r} is already registered as {known.type.__name__}")
    return known


def config_option(key: str) -> ConfigOption:
    """The option of a key.

    Raises:
        ConfigError: Nothing registered it; near names are suggested.
    """
    if key not in _OPTIONS:
        near = difflib.get_close_matches(key, _OPTIONS, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(sorted(_OPTIONS))}"
        raise ConfigError(f"unknown configuration key {key!r}; {hint}")
    return _OPTIONS[key]


def list_config_options() -> tuple[ConfigOption, ...]:
    """Every known key, by name."""
    return tuple(option for _, option in sorted(_OPTIONS.items()))


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A checked copy of a configuration.

    Raises:
        ConfigError: A key is unknown, or a value is not of its type.
    """
    for key, value in config.items():
        _check(config_option(key), value)
    return dict(config)


def _check(option: ConfigOption, value: Any) -> None:
    fits = isinstance(value, option.type) and (option.type is bool or not isinstance(value, bool))
    if option.type is float and isinstance(value, int) and not isinstance(value, bool):
        fits = True
    if not fits:
        raise ConfigError(
            f"configuration key {option.key!r} takes {option.type.__name__}, not {value!r} ({type(value).__name__})"
        )


register_config_option("collage.enable_collage", bool, False, "Let Collage choose the kernels instead of fixed rules.")
register_config_option("collage.tvm_max_depth", int, None, "Most operators on a path through a kernel of native code.")
register_config_option("collage.byoc_max_depth", int, None, "Most operators on a path through a toolchain's kernel.")
