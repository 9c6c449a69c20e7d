"""ncnn keeps the contract, and refuses what it would be wrong of."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from collage._errors import Unsupported
from collage.target import Target
from collage.testing import ToolchainTestCase
from collage.testing._toolchain_kernels import SYMBOLIC, kernel
from collage.toolchains import LoadOptions
from collage.toolchains.ncnn.toolchain import NcnnToolchain

TARGET = Target.parse("llvm -compiler=ncnn")
WITHOUT_BATCH = frozenset({"batch_norm_pool", "gather", "topk"})
NOT_FINITE = frozenset({"not_finite", "not_finite_max"})


class TestNcnn(ToolchainTestCase):
    toolchain = NcnnToolchain()
    refuses = SYMBOLIC | WITHOUT_BATCH
    differs = NOT_FINITE


class TestNcnnInOneThread(ToolchainTestCase):
    toolchain = NcnnToolchain()
    target = "llvm -compiler=ncnn -threads=1"
    refuses = SYMBOLIC | WITHOUT_BATCH
    differs = NOT_FINITE
