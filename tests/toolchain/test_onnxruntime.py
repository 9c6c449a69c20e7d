"""ONNX Runtime keeps the contract, and takes the types that only it can take."""

from __future__ import annotations

from collage.testing._toolchain_case import ToolchainTestCase
from collage.toolchains.onnxruntime import OnnxRuntimeToolchain


class TestOnnxRuntime(ToolchainTestCase):
    toolchain = OnnxRuntimeToolchain()
