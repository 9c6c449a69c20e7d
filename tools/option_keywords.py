"""Write ``src/collage/option_keywords.py`` from the fields of ``CompileOptions``: ``python tools/option_keywords.py``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from collage.options import CompileOptions, command_options

MODULE = Path(__file__).parents[1] / "src" / "collage" / "option_keywords.py"
HEAD = '''"""The fields of ``CompileOptions`` as keywords, for type checkers. Written by ``python tools/option_keywords.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collage.cost.objective import Limit
    from collage.device import DeviceRequests
    from collage.frontend import Lengths
    from collage.fusion import FusionOptions
    from collage.plan_file import PlanFile

__all__ = ["OptionKeywords"]


class OptionKeywords(TypedDict, total=False):
    """Options of ``compile`` as keywords; see ``CompileOptions``. Options of the command line may be texts, too."""

'''


def text() -> str:
    """Return the module."""
    told, lines = command_options(), []
    for field in dataclasses.fields(CompileOptions):
        kinds = [str(field.type)]
        if (option := told.get(field.name)) is not None and option.read is not None and field.type != "Any":
            kinds += [kind for kind in ("str", *(["Sequence[str]"] if option.repeated else [])) if kind not in kinds]
        shown = " | ".join(sorted(kinds, key=lambda kind: "None" in kind)).replace("str | str | None", "str | None")
        lines.append(f"    {field.name}: {shown}\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    MODULE.write_text(text(), encoding="utf-8")
