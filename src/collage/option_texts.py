"""Readers of options that are written as text: on the command line, in files, and in Python.

All raise UsageError for wrong values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from collage._errors import UsageError
from collage.system.texts import is_whole_number

__all__ = [
    "as_name",
    "fits",
    "read_budget",
    "read_dims",
    "read_drop",
    "read_files",
    "read_lengths",
    "read_pairs",
    "read_penalties",
    "read_precision",
    "read_seconds",
    "read_share",
    "read_whole",
]

# A network that loses more than a tenth of its answers is of no use: a larger number is most probably meant in percent.
_LARGEST_PLAIN_DROP = 0.1


def as_name(text: str) -> str:
    """Return an argument as the name of something in a model, which is in UTF-8 whatever the locale is."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def fits(name: str, pattern: str) -> bool:
    """Return True if a name fits a pattern with ``*`` and ``?``. Brackets stand for themselves, as names have some."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def read_pairs(items: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    """Read ``NAME=VALUE``; names may hold further equals signs."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.rpartition("=")
        if not equals or not name or not value:
            raise UsageError(f"cannot read {option} {item!r}; write {form}")
        _add(pairs, as_name(name), value, option)
    return pairs


def read_files(items: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    """Read ``NAME=FILE``; both may hold further equals signs, and the sign is meant after which a file is there.

    If there is none, or several such signs, it is the last one, or the first of these.
    """
    pairs: dict[str, str] = {}
    for item in items or ():
        ends = [place for place, letter in enumerate(item) if letter == "=" and place]
        end = next((place for place in ends if Path(item[place + 1 :]).is_file()), None)
        told = read_pairs([item], option, form) if end is None else {as_name(item[:end]): item[end + 1 :]}
        for name, file in told.items():
            _add(pairs, name, file, option)
    return pairs


def _add(pairs: dict[str, str], name: str, value: str, option: str) -> None:
    if pairs.setdefault(name, value) != value:
        raise UsageError(f"{option} gives {name!r} twice: {pairs[name]} and {value}")


def read_dims(items: Sequence[str] | None, option: str = "--dim") -> dict[str, int]:
    """Read ``seq=128``."""
    return {name: _length(option, name, text) for name, text in read_pairs(items, option, "NAME=LENGTH").items()}


def read_lengths(items: Sequence[str] | None) -> dict[str, int | Mapping[int, float]]:
    """Read ``seq=128``, and ``seq=32:3,512:1`` for three runs at 32 for each at 512."""
    lengths: dict[str, dict[int, float]] = {}
    for item in items or ():
        for name, text in read_pairs([item], "--dim", "NAME=LENGTH or NAME=LENGTH:WEIGHT,LENGTH:WEIGHT").items():
            for part in text.split(","):
                length, colon, weight = part.partition(":")
                try:
                    lengths.setdefault(name, {})[_length("--dim", name, length)] = float(weight) if colon else 1.0
                except ValueError:
                    raise UsageError(f"--dim {name}={text}: {weight!r} is not a weight") from None
    return {name: next(iter(told)) if [*told.values()] == [1.0] else told for name, told in lengths.items()}


def _length(option: str, name: str, text: str) -> int:
    least = 0 if option == "--dim" else 1
    if not is_whole_number(text) or int(text) < least:
        raise UsageError(f"{option} {name}={text}: {text!r} is not a length of at least {least}")
    return int(text)


def read_whole(text: str, option: str = "") -> int:
    """Read ``90``: a whole number from 0 up."""
    if not is_whole_number(text):
        raise UsageError(f"cannot read {option} {text!r}", hint="write a whole number")
    return int(text)


def read_seconds(text: str | None) -> float | None:
    """Read ``90``, ``90s``, ``5m`` or ``1h``."""
    if text is None:
        return None
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    number = text[:-1] if factor else text
    try:
        value = float(number) * (factor or 1.0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"cannot read the time {text!r}", hint="write for example 90s, 5m or 1h")
    return value


def read_budget(text: str) -> float:
    """Read the time of a whole compilation, which is not nothing."""
    if not (seconds := read_seconds(text)):
        raise UsageError(f"a time budget of {text} leaves no time", hint="leave the option out for no limit")
    return seconds


def read_share(text: str, option: str = "") -> float:
    """Read ``0.005`` or ``0.5%``: a share."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 1:
        raise UsageError(f"cannot read {option} {text!r}", hint="write a share, such as 0.005, or 0.5%")
    return value


def read_drop(text: str) -> float:
    """Read the largest drop of a metric, and ask back if a plain number is more than a tenth."""
    value = read_share(text, "--max-drop")
    if value > _LARGEST_PLAIN_DROP and "%" not in text:
        raise UsageError(
            f"--max-drop {text} allows a drop of {value:.0%}",
            hint=f"for {value:g} % write --max-drop {value:g}%; for {value:.0%} write --max-drop {value * 100:g}%",
        )
    return value


def read_precision(text: str) -> str:
    """Read ``int8``; other names of types get a hint at the limit that admits them."""
    name = text.lower().replace("_", "").replace("-", "")
    if name in ("int8", "i8", "8bit"):
        return "int8"
    hint = "--precision int8, or --accuracy-budget 1%, which admits kernels in 16 bits too"
    raise UsageError(f"--precision {text} names no precision that can be asked for", hint=hint)


def read_penalties(items: Sequence[str]) -> dict[str, float]:
    """Read ``openvino=20``, in microseconds, as seconds."""
    penalties = {}
    for name, text in read_pairs(items, "--launch-penalty", "TOOLCHAIN=MICROSECONDS").items():
        try:
            penalties[name] = float(text) * 1e-6
        except ValueError:
            raise UsageError(f"--launch-penalty {name}={text}: {text!r} is not a number of microseconds") from None
        if not 0 <= penalties[name] < float("inf"):
            raise UsageError(f"--launch-penalty {name}={text}: it is not a number from zero up")
    return penalties
