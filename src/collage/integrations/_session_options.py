"""ONNX Runtime's options: those that Collage honours, those that change nothing here, and those that it has to refuse.

An option is found by comparing an object with a new one of its class. Nothing that was set is passed over in silence.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from collage._errors import ToolchainError, UsageError

__all__ = ["CPU", "check_providers", "check_run_options", "check_session_options", "providers_of"]

CPU = "CPUExecutionProvider"

HONOURED = frozenset(("intra_op_num_threads", "enable_profiling", "profile_file_prefix"))
"""Options of a session that do what they do in ONNX Runtime."""

REFUSED: Mapping[str, str] = {
    "optimized_model_filepath": "session.executable.save(path) writes what was made of the model",
    "use_deterministic_compute": "kernels of several toolchains give no such promise; targets=['host'] runs operators as written",
}
"""Options of a session that promise what Collage does not keep, and the way out."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "inter_op_num_threads": "kernels run one after the other; a plan of devices, --devices, runs some side by side",
    "execution_mode": "kernels run one after the other; a plan of devices, --devices, runs some side by side",
    "graph_optimization_level": "Collage chooses how each kernel is optimised; targets=['onnxruntime -opt-level=0'] turns it off",
    "enable_cpu_mem_arena": "kernels reserve their memory when they are loaded",
    "enable_mem_pattern": "kernels reserve their memory when they are loaded",
    "enable_mem_reuse": "buffers within a run are shared by lifetime",
    "use_per_session_threads": "each toolchain keeps threads of its own",
    "execution_order": "operators run in the order of the partitioned model",
    "log_severity_level": "Collage raises errors and warns, and logs nothing",
    "log_verbosity_level": "Collage raises errors and warns, and logs nothing",
    "logid": "Collage raises errors and warns, and logs nothing",
}
"""Options of a session that change nothing here, and the reason or the way out."""

RUN_REFUSED: Mapping[str, str] = {
    "training_mode": "Collage runs models for inference only",
}
RUN_WITHOUT_EFFECT: Mapping[str, str] = {
    "only_execute_path_to_fetches": "all outputs are computed; extract a model of the outputs that are wanted",
    "enable_profiling": "set enable_profiling in SessionOptions, or use session.executable.profile()",
    "log_severity_level": "Collage raises errors and warns, and logs nothing",
    "log_verbosity_level": "Collage raises errors and warns, and logs nothing",
    "logid": "Collage raises errors and warns, and logs nothing",
}

_ENTRIES = (
    "ep.context_enable",
    "ep.context_file_path",
    "ep.dynamic.workload_type",
    "memory.enable_memory_arena_shrinkage",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.inter_op.allow_spinning",
    "session.inter_op_thread_affinities",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.load_model_format",
    "session.model_external_initializers_file_folder_path",
    "session.optimized_model_external_initializers_file_name",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info",
    "session.save_model_format",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
)
"""Entries that can be looked for: ONNX Runtime lists none. The others stay unseen."""

_HARMLESS_ENTRIES: Mapping[str, tuple[str, ...]] = {
    "session.record_ep_graph_assignment_info": ("0", "1"),
    "session.disable_cpu_ep_fallback": ("0",),
    "session.set_denormal_as_zero": ("0",),
    "session.load_model_format": ("ONNX",),
}
"""Values of entries that ask for nothing that is not so anyway."""

_REFUSED_ENTRIES: Mapping[str, str] = {
    "session.disable_cpu_ep_fallback": "every kernel runs on the CPU",
    "session.set_denormal_as_zero": "kernels keep denormal numbers",
    "session.load_model_format": "Collage reads ONNX files and its own artefacts",
    "session.save_model_format": "session.executable.save(path) writes an artefact",
    "ep.context_enable": "session.executable.save(path) keeps what was compiled",
    "ep.context_file_path": "session.executable.save(path) keeps what was compiled",
}


def check_session_options(options: Any) -> None:
    """Warn of options that change nothing here.

    Args:
        options: An ``onnxruntime.SessionOptions``, or an object with some of its attributes; None is the default.

    Raises:
        UsageError: One promises what Collage does not keep, or is not known.
    """
    if options is None:
        return
    for name in _changed(options, "SessionOptions"):
        if name in REFUSED:
            raise UsageError(f"SessionOptions.{name} is not kept to: {REFUSED[name]}")
        if name in WITHOUT_EFFECT:
            warnings.warn(f"SessionOptions.{name} changes nothing: {WITHOUT_EFFECT[name]}", stacklevel=3)
        elif name not in HONOURED:
            raise UsageError(
                f"SessionOptions.{name} is not known to collage's InferenceSession; leave it at its default"
            )
    for key, value in _entries(options):
        if value in _HARMLESS_ENTRIES.get(key, ()):
            continue
        if key in _REFUSED_ENTRIES:
            raise UsageError(f"the session's entry {key}={value} is not kept to: {_REFUSED_ENTRIES[key]}")
        warnings.warn(
            f"the session's entry {key}={value} changes nothing: it is for ONNX Runtime's kernels", stacklevel=3
        )


def check_run_options(options: Any) -> None:
    """Warn of options of a run that change nothing here.

    Args:
        options: An ``onnxruntime.RunOptions``, or None.

    Raises:
        ToolchainError: ``terminate`` is set.
        UsageError: An option promises what Collage does not keep, or is not known.
    """
    if options is None:
        return
    for name in _changed(options, "RunOptions"):
        if name == "terminate":
            raise ToolchainError("the run was not begun: RunOptions.terminate is set")
        if name in RUN_REFUSED:
            raise UsageError(f"RunOptions.{name} is not kept to: {RUN_REFUSED[name]}")
        if name not in RUN_WITHOUT_EFFECT:
            raise UsageError(f"RunOptions.{name} is not known to collage's InferenceSession; leave it at its default")
        warnings.warn(f"RunOptions.{name} changes nothing: {RUN_WITHOUT_EFFECT[name]}", stacklevel=3)


def providers_of(
    providers: Sequence[Any] | None, provider_options: Sequence[Any] | None
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield names and options of execution providers, in either of the two forms that ONNX Runtime takes."""
    for position, provider in enumerate(providers or (CPU,)):
        name, own = (provider, {}) if isinstance(provider, str) else (provider[0], provider[1])
        more = provider_options[position] if provider_options and position < len(provider_options) else {}
        yield name, {**own, **more}


def check_providers(providers: Sequence[Any] | None, provider_options: Sequence[Any] | None) -> None:
    """Warn of execution providers that are not there, and of options that change nothing.

    Raises:
        UsageError: A provider is not named as ONNX Runtime takes it.
    """
    try:
        named = list(providers_of(providers, provider_options))
    except (TypeError, IndexError, KeyError, ValueError) as error:
        raise UsageError(f"providers are names, or pairs of a name and options: {error}") from None
    if missing := [name for name, _ in named if name != CPU]:
        warnings.warn(
            f"collage runs on the CPU; {', '.join(missing)} is not used. Name devices as targets, such as targets=['cuda']",
            stacklevel=3,
        )
    if options := [key for name, given in named if name == CPU for key in given]:
        warnings.warn(
            f"the option {options[0]!r} of {CPU} changes nothing: kernels reserve their own memory", stacklevel=3
        )


def _changed(options: Any, kind: str) -> Iterator[str]:
    """Yield names of options that differ from ONNX Runtime's defaults."""
    import onnxruntime

    default = getattr(onnxruntime, kind)()
    for name in dir(default):
        if name.startswith("_") or callable(value := getattr(default, name)):
            continue
        if getattr(options, name, value) != value:
            yield name


def _entries(options: Any) -> Iterator[tuple[str, str]]:
    """Yield the known entries that were added to a session's options."""
    look: Callable[[str], Any] | None = getattr(options, "get_session_config_entry", None)
    if look is None:
        return
    for key in _ENTRIES:
        with contextlib.suppress(Exception):  # ONNX Runtime raises if an entry is absent.
            yield key, str(look(key))
