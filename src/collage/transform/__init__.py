"""The pass infrastructure and the generic passes. Specification 002."""

from __future__ import annotations

from collage.transform._prepare import prepare

__all__ = ["prepare"]
