"""ONNX Runtime's options: those that Collage honours, those that change nothing here, and those that it has to refuse.

An option is found by comparing an object with a new one of its class. Nothing that was set is passed over in silence.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage._errors import ToolchainError, UsageError
from collage.integrations._option_probe import check_adapters, overridden

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.runtime import Port

__all__ = [
    "CPU",
    "check_fixed_lengths",
    "check_providers",
    "check_run_options",
    "check_session_options",
    "fixed_lengths",
    "providers_of",
]

CPU = "CPUExecutionProvider"

HONOURED = frozenset(("intra_op_num_threads", "enable_profiling", "profile_file_prefix"))
"""Options of a session that have the same effect as in ONNX Runtime."""

REFUSED: Mapping[str, str] = {
    "optimized_model_filepath": "session.executable.save(path) writes the compiled model",
    "use_deterministic_compute": "kernels of several toolchains give no such promise; targets=['host'] runs operators as written",
}
"""Options of a session whose effect Collage cannot provide, each with advice."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "inter_op_num_threads": "kernels run one after the other; a plan of devices, --devices, runs some side by side",
    "execution_mode": "kernels run one after the other; a plan of devices, --devices, runs some side by side",
    "graph_optimization_level": "Collage optimises each kernel; targets=['onnxruntime -opt-level=0'] turns it off",
    "enable_cpu_mem_arena": "kernels reserve their memory when they are loaded",
    "enable_mem_pattern": "kernels reserve their memory when they are loaded",
    "enable_mem_reuse": "buffers within a run are shared by lifetime",
    "use_per_session_threads": "each toolchain keeps threads of its own",
    "execution_order": "operators run in the order of the partitioned model",
    "log_severity_level": "Collage has no such log: it raises errors and issues warnings",
    "log_verbosity_level": "Collage has no such log: it raises errors and issues warnings",
    "logid": "Collage has no such log: it raises errors and issues warnings",
}
"""Options of a session that change nothing here, and the reason or the way out."""

RUN_ENTRIES = ("disable_synchronize_execution_providers", "gpu_graph_id", "memory.enable_memory_arena_shrinkage")
"""Entries of a run that can be looked for. The others are for execution providers that are not here."""

RUN_REFUSED: Mapping[str, str] = {
    "training_mode": "Collage runs models for inference only",
}
RUN_WITHOUT_EFFECT: Mapping[str, str] = {
    "only_execute_path_to_fetches": "all outputs are computed; extract a model of the outputs that are wanted",
    "enable_profiling": "set enable_profiling in SessionOptions, or use session.executable.profile()",
    "log_severity_level": "Collage has no such log: it raises errors and issues warnings",
    "log_verbosity_level": "Collage has no such log: it raises errors and issues warnings",
    "logid": "Collage has no such log: it raises errors and issues warnings",
}

ENTRIES = (
    "ep.context_embed_mode",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_model_external_initializers_file_name",
    "ep.cuda.fpa_intb_gemm",
    "ep.cuda.fpa_intb_profile_m",
    "ep.cuda.gqa_workspace_max_total_sequence_length",
    "ep.dynamic.workload_type",
    "ep.enable_weightless",
    "memory.enable_memory_arena_shrinkage",
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "mlas.kleidiai.conv_igemm_max_work",
    "mlas.nchwc_depthwise_sliding",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.allow_released_opsets_only",
    "session.collect_node_memory_stats_to_file",
    "session.compile_only",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_model_compile",
    "session.disable_prepacking",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_cpu_mem_arena",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_mem_pattern",
    "session.enable_moe_expert_counting",
    "session.enable_moe_expert_statistics",
    "session.enable_profiling",
    "session.enable_quant_qdq_cleanup",
    "session.enable_saved_runtime_optimizations",
    "session.execution_mode",
    "session.fail_on_suboptimal_compiled_model",
    "session.force_spinning_stop",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "session.gqa_value_layout",
    "session.graph_optimization_level",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_backoff_max",
    "session.inter_op.spin_duration_us",
    "session.inter_op_num_threads",
    "session.inter_op_thread_affinities",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_backoff_max",
    "session.intra_op.spin_duration_us",
    "session.intra_op_num_threads",
    "session.intra_op_thread_affinities",
    "session.layer_assignment_settings",
    "session.load_model_format",
    "session.log_id",
    "session.log_severity_level",
    "session.log_verbosity_level",
    "session.max_shape_override",
    "session.model_external_initializers_file_folder_path",
    "session.moe_expert_counter_alpha",
    "session.moe_expert_counter_beta",
    "session.moe_expert_counter_state_file",
    "session.name_based_layer_assignment",
    "session.node_partition_config_file",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "session.optimized_model_filepath",
    "session.prepack.enable_parallel",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info",
    "session.resource_cuda_partitioning_settings",
    "session.save_external_prepacked_constant_initializers",
    "session.save_model_format",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.strict_workspace_verification",
    "session.use_deterministic_compute",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_external_initializer_file_buffers_directly",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
    "session.use_per_session_threads",
    "session.x64quantprecision",
)
"""Entries that can be looked for: ONNX Runtime lists none. A test compares them with those that its library names."""

_used: weakref.WeakSet[Any] = weakref.WeakSet()

_DENOTATIONS = ("DATA_BATCH", "DATA_CHANNEL", "DATA_TIME", "DATA_FEATURE")
"""Denotations of ONNX for dimensions of inputs."""

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
    "session.optimized_model_filepath": REFUSED["optimized_model_filepath"],
    "session.use_deterministic_compute": REFUSED["use_deterministic_compute"],
    "session.intra_op_num_threads": "set SessionOptions.intra_op_num_threads",
    "session.enable_profiling": "set SessionOptions.enable_profiling",
    "session.max_shape_override": "add_free_dimension_override_by_name fixes lengths",
    "session.save_model_format": "session.executable.save(path) writes an artefact",
    "ep.context_enable": "session.executable.save(path) keeps the compiled model",
    "ep.context_file_path": "session.executable.save(path) keeps the compiled model",
}


def check_session_options(options: Any) -> None:
    """Warn of options that change nothing here.

    Args:
        options: An ``onnxruntime.SessionOptions``, or an object with some of its attributes; None is the default.

    Raises:
        UsageError: Collage cannot provide the effect of an option, or does not know it.
    """
    if options is None:
        return
    _refuse_plain(options, "SessionOptions")
    for name in _changed(options, "SessionOptions"):
        if name in REFUSED:
            raise UsageError(f"SessionOptions.{name} is not supported: {REFUSED[name]}")
        if name in WITHOUT_EFFECT:
            warnings.warn(f"SessionOptions.{name} changes nothing: {WITHOUT_EFFECT[name]}", stacklevel=3)
        elif name not in HONOURED:
            raise UsageError(
                f"SessionOptions.{name} is not known to collage's InferenceSession; leave it at its default"
            )
    if getattr(options, "has_providers", bool)():
        warnings.warn(
            "the execution providers of SessionOptions (add_provider, add_provider_for_devices, set_provider_selection_policy) "
            "change nothing: collage runs on the CPU. Name devices as targets, such as targets=['cuda']",
            stacklevel=3,
        )
    for key, value in _entries(options, "get_session_config_entry", ENTRIES):
        if value in _HARMLESS_ENTRIES.get(key, ()):
            continue
        if key in _REFUSED_ENTRIES:
            raise UsageError(f"the session's entry {key}={value} is not supported: {_REFUSED_ENTRIES[key]}")
        warnings.warn(
            f"the session's entry {key}={value} changes nothing: it is for ONNX Runtime's kernels", stacklevel=3
        )


def check_run_options(options: Any) -> None:
    """Warn of options of a run that change nothing here; of entries once, when the options are used first.

    Args:
        options: An ``onnxruntime.RunOptions``, or None.

    Raises:
        ToolchainError: ``terminate`` is set.
        UsageError: Collage cannot provide the effect of an option, or does not know it.
    """
    if options is None:
        return
    _refuse_plain(options, "RunOptions")
    for name in _changed(options, "RunOptions"):
        if name == "terminate":
            raise ToolchainError("the run was not begun: RunOptions.terminate is set")
        if name in RUN_REFUSED:
            raise UsageError(f"RunOptions.{name} is not supported: {RUN_REFUSED[name]}")
        if name not in RUN_WITHOUT_EFFECT:
            raise UsageError(f"RunOptions.{name} is not known to collage's InferenceSession; leave it at its default")
        warnings.warn(f"RunOptions.{name} changes nothing: {RUN_WITHOUT_EFFECT[name]}", stacklevel=3)
    for key, value in _entries(options, "get_run_config_entry", RUN_ENTRIES) if _is_first_use(options) else ():
        warnings.warn(f"the run's entry {key}={value} changes nothing: it is for ONNX Runtime's kernels", stacklevel=3)
    if hasattr(options, "add_active_adapter"):
        check_adapters(options)


def fixed_lengths(options: Any, model: ir.Model) -> dict[str, int]:
    """Return the lengths of a model's dimensions that a session's options fix, as ``CompileOptions.fixed`` takes them.

    Args:
        options: An ``onnxruntime.SessionOptions``, an object with some of its attributes, or None.
        model: The model that is to be compiled.

    Raises:
        UsageError: The options put tensors in the place of weights.
    """
    import onnx_ir as ir  # late: a session that only runs an artefact needs no models

    dims = {}
    for value in model.graph.inputs:
        shape = value.shape or ir.Shape(())
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                name = f"{value.name}[{axis}]" if dim.value is None else str(dim.value)
                dims[name, shape.get_denotation(axis) or ""] = name if dim.value is not None else ""
    return _fixed(options, [(symbol, denotation, name) for (name, denotation), symbol in dims.items()])


def check_fixed_lengths(options: Any, ports: Sequence[Port]) -> None:
    """Refuse lengths that a session's options fix, for an artefact, which was compiled without.

    Args:
        options: See ``fixed_lengths``.
        ports: The inputs of the artefact.

    Raises:
        UsageError: One is fixed that is free in the artefact, or the options put tensors in the place of weights.
    """
    symbols = dict.fromkeys(dim for port in ports for dim in port.shape or () if isinstance(dim, str))
    if fixed := _fixed(options, [(symbol, "", symbol) for symbol in symbols]):
        told = " ".join(f"--fix {name}={length}" for name, length in fixed.items())
        raise UsageError(
            "SessionOptions.add_free_dimension_override_by_name is for models, and this artefact is compiled already; "
            f"compile it with {told}"
        )
    if _fixed(options, [("", denotation, denotation) for denotation in _DENOTATIONS]):
        warnings.warn(
            "SessionOptions.add_free_dimension_override_by_denotation changes nothing: an artefact has names of dimensions "
            "only; compile it with --fix NAME=LENGTH",
            stacklevel=3,
        )


def _fixed(options: Any, dims: Sequence[tuple[str, str, str]]) -> dict[str, int]:
    """Return the fixed lengths by name of the dimension; ONNX Runtime's text gives symbol, denotation and name."""
    if options is None or not hasattr(options, "add_free_dimension_override_by_name"):
        return {}
    lengths = overridden(options, [(symbol, denotation) for symbol, denotation, _ in dims])
    return {name: length for (*_, name), length in zip(dims, lengths, strict=True) if length is not None}


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


def _refuse_plain(options: Any, kind: str) -> None:
    """Raise UsageError for an object without options as attributes, which would be ignored."""
    if isinstance(options, Iterable | int | float):
        hint = "; execution providers are providers=[...]" if isinstance(options, list | tuple | str) else ""
        raise UsageError(f"options are an onnxruntime.{kind}, not {options!r:.80}{hint}")


def _is_first_use(options: Any) -> bool:
    """Return True once for each object: ONNX Runtime takes 80 µs to say that entries are absent."""
    try:
        is_known = options in _used
        _used.add(options)
    except TypeError:  # It takes no weak references.
        return True
    return not is_known


def _changed(options: Any, kind: str) -> Iterator[str]:
    """Yield names of options that differ from ONNX Runtime's defaults."""
    import onnxruntime

    default = getattr(onnxruntime, kind)()
    for name in dir(default):
        if name.startswith("_") or callable(value := getattr(default, name)):
            continue
        if getattr(options, name, value) != value:
            yield name


def _entries(options: Any, method: str, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield those of the entries that were added to options."""
    look: Callable[[str], Any] | None = getattr(options, method, None)
    if look is None:
        return
    for key in keys:
        with contextlib.suppress(Exception):  # ONNX Runtime raises if an entry is absent.
            yield key, str(look(key))
