"""Running: kernels, the executor, executables and artefacts."""

from collage.runtime._artefact import check_destination, write_condensed
from collage.runtime._bodies import BODIES_TARGET, compile_bodies, has_bodies, load_kernel
from collage.runtime._buffers import aligned_copy, same_bytes
from collage.runtime._control_flow import ControlFlowKernel
from collage.runtime._executable import Executable
from collage.runtime._executor import Executor, Step
from collage.runtime._explained import explain_artefact, kernel_rows
from collage.runtime._load import load
from collage.runtime._machines import machine_lines, machine_rows
from collage.runtime._made_on import MadeOn
from collage.runtime._manifest import MANIFEST, verify, verify_bytes
from collage.runtime._memory import page_out, trim
from collage.runtime._open import Opened, is_artefact, opened, read_inputs
from collage.runtime._pack import PACK
from collage.runtime._packing import pack, unpack_plan, verify_plans
from collage.runtime._parallel import CoreSets
from collage.runtime._profile import KernelTime, Profile
from collage.runtime._recipe import WEIGHTS, CopyRecord, DeviceLayout, KernelRecord, Recipe
from collage.runtime._signature import Port, Signature, output_ports
from collage.runtime._zip import unpack

__all__ = [
    "BODIES_TARGET",
    "MANIFEST",
    "PACK",
    "WEIGHTS",
    "ControlFlowKernel",
    "CopyRecord",
    "CoreSets",
    "DeviceLayout",
    "Executable",
    "Executor",
    "KernelRecord",
    "KernelTime",
    "MadeOn",
    "Opened",
    "Port",
    "Profile",
    "Recipe",
    "Signature",
    "Step",
    "aligned_copy",
    "check_destination",
    "compile_bodies",
    "explain_artefact",
    "has_bodies",
    "is_artefact",
    "kernel_rows",
    "load",
    "load_kernel",
    "machine_lines",
    "machine_rows",
    "opened",
    "output_ports",
    "pack",
    "page_out",
    "read_inputs",
    "same_bytes",
    "trim",
    "unpack",
    "unpack_plan",
    "verify",
    "verify_bytes",
    "verify_plans",
    "write_condensed",
]
