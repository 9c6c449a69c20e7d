"""ONNX's backend interface under the name by which ONNX's tools look for it; see ``collage.integrations``."""

from __future__ import annotations

from collage.integrations.backend import CollageBackend, CollageRep, prepare, run_model, supports_device

__all__ = ["CollageBackend", "CollageRep", "prepare", "run_model", "supports_device"]
