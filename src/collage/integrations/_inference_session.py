"""A session that looks like ONNX Runtime's, so that code written for it changes one import."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from collage._errors import ArtefactError, InputError, UsageError
from collage._version import __version__
from collage.integrations._io_binding import IOBinding, array_of, c_value_of, value_of
from collage.integrations._session_descriptions import AssignedNode, AssignedSubgraph, ModelMetadata, NodeArg
from collage.integrations._session_options import (
    CPU,
    check_fixed_lengths,
    check_initializers,
    check_keywords,
    check_providers,
    check_run_options,
    check_session_options,
    fixed_lengths,
    providers_of,
)
from collage.integrations._session_profiler import SessionProfiler
from collage.options import CompileOptions, compile_options
from collage.runtime import MANIFEST, PACK, Executable, load
from collage.store import url_of
from collage.system.user_folders import cache_folder
from collage.target import TargetLike
from collage.toolchains import registry

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["InferenceSession"]


class InferenceSession:
    """Runs a model compiled by Collage, behind the methods of ONNX Runtime's class of this name.

    A model is compiled when its session is first made, which takes minutes, and kept in ``cache_dir``: the next session
    of the same model, menu and options loads it. An artefact is loaded as it is.

    Args:
        path_or_bytes: A model's file or bytes, or an artefact's folder or zip.
        sess_options: ONNX Runtime's options. ``intra_op_num_threads``, ``enable_profiling`` and overrides of a model's
            free dimensions have the same effect as there. Options without effect here cause a warning. Options whose
            effect Collage cannot provide are refused.
        providers: Execution providers. Only the CPU's is there, and others are warned of.
        provider_options: Options for them, which are warned of.
        targets: The menu; None is the result of ``choose_menu``.
        options: See ``CompileOptions``.
        cache_dir: Folder of compiled models; None is ``collage/sessions`` in the user's cache folder.
        trusted: An artefact is one of your own; see ``collage.load``.
        enable_fallback: Taken as ONNX Runtime takes it. The host stands in for kernels that fail in any case.
        others: Other keywords of ONNX Runtime's, which are refused or warned of.

    Attributes:
        executable: The executable behind the session.

    Raises:
        UsageError: An option cannot be kept to.
        CollageError: As ``collage.compile`` and ``collage.load`` do.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        targets: Iterable[TargetLike] | None = None,
        options: CompileOptions | Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        trusted: bool = False,
        enable_fallback: bool = True,
        **others: Any,
    ) -> None:
        check_keywords(others)
        check_session_options(sess_options)
        check_providers(providers, provider_options)
        self._sess_options = sess_options
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        if not isinstance(path_or_bytes, bytes) and _is_artefact(Path(path_or_bytes)):
            if targets is not None or options is not None:
                raise UsageError(f"{path_or_bytes} is compiled already: targets and options are for models")
            self.executable = load(Path(path_or_bytes), threads=threads, trusted=trusted)
            check_fixed_lengths(sess_options, self.executable.inputs)
        else:
            from collage.frontend import read_model  # late: importing this module is to cost no more than running needs

            options = compile_options(options)
            if threads is not None:
                options = replace(options, threads=threads)
            model = read_model(path_or_bytes)
            if fixed := fixed_lengths(sess_options, model):
                options = replace(options, fixed={**options.fixed, **fixed})
            check_initializers(sess_options, model)
            folder = Path(cache_dir) if cache_dir is not None else _default_cache()
            self.executable = _compiled(model, targets, options, folder)
            self._metadata = ModelMetadata.of(model)
        self._output_names = [port.name for port in self.executable.outputs]
        self._profiler = SessionProfiler(sess_options)
        self._async: tuple[int, ThreadPoolExecutor] | None = None

    def get_session_options(self) -> Any:
        """Return the options that the session was made with, or ONNX Runtime's defaults."""
        import onnxruntime

        return onnxruntime.SessionOptions() if self._sess_options is None else self._sess_options

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs, but for those that have a default."""
        return [NodeArg.of(port) for port in self.executable.inputs if port.default is None]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default: ``run`` takes them or leaves them."""
        return [NodeArg.of(port) for port in self.executable.inputs if port.default is not None]

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs."""
        return [NodeArg.of(port) for port in self.executable.outputs]

    def get_input_memory_infos(self) -> list[Any]:
        """Return a description of the CPU's memory for each input."""
        return [_cpu_memory() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[Any]:
        """Return a description of the CPU's memory for each output."""
        return [_cpu_memory() for _ in self.get_outputs()]

    def get_input_epdevices(self) -> list[Any]:
        """Return ONNX Runtime's CPU device for each input."""
        import onnxruntime

        cpu = [device for device in onnxruntime.get_ep_devices() if device.ep_name == CPU]
        return [cpu[0] for _ in self.get_inputs()] if cpu else []

    def get_providers(self) -> list[str]:
        """Return ONNX Runtime's name of the CPU."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options for the one provider."""
        return {CPU: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Accept the CPU's provider.

        Raises:
            UsageError: Another one is named.
        """
        for name, _ in providers_of(providers, provider_options):
            if name != CPU:
                raise UsageError(
                    f"collage runs on the CPU, not with {name}; name devices as targets, such as targets=['cuda']"
                )
        check_providers(providers, provider_options)

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        """Return each kernel with the target that runs it and its operators, in the order in which kernels run."""
        from collage.graph import kernels_of

        calls = {str(call.node.name): call for call in kernels_of(self._model)}
        return [
            AssignedSubgraph(
                record.target,
                tuple(
                    AssignedNode(node.name or "", node.domain, node.op_type)
                    for node in calls[record.name].function.all_nodes()
                ),
                record.name,
            )
            for record in self.executable.recipe.kernels
        ]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model's file."""
        return self._metadata

    def enable_fallback(self) -> None:
        """Do nothing: the host stands in for kernels that fail, in any case."""

    def disable_fallback(self) -> None:
        """Warn that the host still replaces kernels that fail."""
        warnings.warn(
            "the host still replaces kernels that fail, with a warning; collage.load(path, debug=True) raises instead",
            stacklevel=2,
        )

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: Names of the outputs to return, in this order; None or empty is all.
            input_feed: Tensors by name: arrays, tensors of PyTorch or of DLPack, or ``OrtValue``s.
            run_options: ONNX Runtime's; see ``sess_options``.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        check_run_options(run_options)
        wanted = self._wanted(output_names)
        outputs = self._outputs_of(input_feed)
        return [outputs[name] for name in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run the model in another thread, which then calls ``callback(results, user_data, error)``.

        The error is an empty text if there was none. Otherwise the results are empty.

        Args:
            output_names: As for ``run``.
            input_feed: As for ``run``.
            callback: Called with the results, ``user_data`` and the error.
            user_data: Any object, for the callback.
            run_options: As for ``run``.

        Raises:
            InputError: An output is unknown.
        """
        check_run_options(run_options)
        wanted = self._wanted(output_names)
        feeds = dict(input_feed)

        def work() -> None:
            try:
                outputs = self._outputs_of(feeds)
            except Exception as error:
                callback([], user_data, str(error) or type(error).__name__)
            else:
                callback([outputs[name] for name in wanted], user_data, "")

        self._threads().submit(work)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model on ``OrtValue``s, and return ``OrtValue``s that share memory with the output arrays.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        check_run_options(run_options)
        wanted = self._wanted(output_names)
        outputs = self._outputs_of(input_dict_ort_values)
        ports = {port.name: port for port in self.executable.outputs}
        return [value_of(outputs[name], ports[name]) for name in wanted]

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Any = None,
    ) -> None:
        """Run the model on an ``OrtValueVector``, and append copies of outputs to another one."""
        check_run_options(run_options)
        wanted = self._wanted(fetch_names)
        outputs = self._outputs_of(dict(zip(feed_names, feeds, strict=True)))
        ports = {port.name: port for port in self.executable.outputs}
        for name in wanted:
            fetches.push_back(c_value_of(outputs[name], ports[name]))

    def io_binding(self) -> IOBinding:
        """Return an object that inputs and outputs can be bound to."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on the bound inputs and outputs. Outputs that memory is bound to are written there.

        Raises:
            InputError: The binding is another session's, or something that is bound does not fit.
        """
        check_run_options(run_options)
        if getattr(iobinding, "session", None) is not self:
            raise InputError("an IOBinding is used with the session that made it: session.io_binding()")
        iobinding.keep(self._outputs_of(iobinding.feeds, iobinding.out))

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """Return an ``OrtValue`` on the CPU.

        Raises:
            InputError: The device is not the CPU.
        """
        import onnxruntime

        if device_type.lower() != "cpu":
            raise InputError(f"an OrtValue on {device_type} is of no use: collage's sessions run on the CPU")
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element_type, "cpu", device_id)

    def end_profiling(self) -> str:
        """Write the recorded runs to a file, and return its name.

        Raises:
            UsageError: The session was not made with ``SessionOptions.enable_profiling``.
        """
        return self._profiler.end()

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, by the clock of ``time.monotonic_ns``."""
        return self._profiler.began_ns

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: no graph is captured on the CPU."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Refuse options of execution providers.

        Raises:
            UsageError: There are some.
        """
        if options:
            raise UsageError(
                f"{next(iter(options))!r} is an option of ONNX Runtime's providers; kernels here have none"
            )

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Return none: ONNX Runtime tunes on GPUs only, and Collage keeps what it measured in its database."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Refuse results of ONNX Runtime's tuning.

        Raises:
            UsageError: There are some.
        """
        if results:
            raise UsageError(
                "ONNX Runtime's tuning results are of no use here; `collage db import` brings measurements"
            )

    def __getattr__(self, name: str) -> NoReturn:
        """Name the alternative to methods that ONNX Runtime may have in other versions."""
        raise AttributeError(
            f"collage's InferenceSession has no {name!r}: run(output_names, input_feed) takes and returns tensors of NumPy, "
            "PyTorch and DLPack, without copies where it can, and session.executable has arun() and profile()",
            name=name,
            obj=self,
        )

    @cached_property
    def _model(self) -> ir.Model:
        import onnx_ir as ir  # late: importing this module is to cost no more than running needs

        return ir.load(self.executable.workspace / self.executable.recipe.model_file)

    @cached_property
    def _metadata(self) -> ModelMetadata:
        return ModelMetadata.of(self._model)

    def _wanted(self, output_names: Sequence[str] | None) -> Sequence[str]:
        if isinstance(output_names, str):
            raise InputError(f"output_names is a list of names; write [{output_names!r}]")
        wanted = output_names or self._output_names
        if unknown := [name for name in wanted if name not in self._output_names]:
            raise InputError(f"unknown output {unknown[0]!r}; the model has {', '.join(self._output_names)}")
        return wanted

    def _outputs_of(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        values = {
            name: array_of(x) if hasattr(x, "data_ptr") and hasattr(x, "is_tensor") else x for name, x in feeds.items()
        }
        if not self._profiler.is_on:
            return self.executable.run(values, out=out)
        return self._profiler.run(self.executable, values, out)

    def _threads(self) -> ThreadPoolExecutor:
        if self._async is None or self._async[0] != os.getpid():  # A fork has none of its parent's threads.
            self._async = os.getpid(), ThreadPoolExecutor(os.cpu_count() or 1, "collage run_async")
        return self._async[1]


def _is_artefact(path: Path) -> bool:
    if path.is_dir():
        return (path / MANIFEST).is_file() or (path / PACK).is_file()
    if url_of(path) is not None:
        return True
    return path.suffix == ".zip" and path.is_file()


def _cpu_memory() -> Any:
    import onnxruntime as ort

    return ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)


def _default_cache() -> Path:
    return cache_folder("give the session a cache_dir") / "sessions"


def _compiled(
    model: ir.Model, targets: Iterable[TargetLike] | None, options: CompileOptions, cache: Path
) -> Executable:
    """Compile a model, or load the result of an earlier session."""
    # Late: a session that only runs an artefact needs none of these.
    from collage.compiler.pipeline import compile
    from collage.frontend import model_digest
    from collage.toolchains import choose_menu

    menu = choose_menu(targets, registry())
    path = cache / f"{_key(model_digest(model), [str(target) for target in menu], options)}.collage"
    if path.exists() and not options.remeasure:
        try:
            return load(path, trusted=True)
        except ArtefactError as error:
            warnings.warn(f"compiling the model again: {error}", stacklevel=4)
    executable = compile(model, menu, options=options)
    executable.save(path)
    return executable


def _key(digest: str, menu: Sequence[str], options: CompileOptions) -> str:
    """Return the cache key: a digest of the model, the menu, and all options except ``db`` and ``remeasure``."""
    # Late: a session that only runs an artefact needs neither.
    from collage.device import read_device_plan
    from collage.frontend import lengths_as_json

    decided = {field.name: getattr(options, field.name) for field in fields(options)}
    del decided["db"], decided["remeasure"]
    decided["dims"] = lengths_as_json(options.dims)
    decided["inputs"] = {name: _array_digest(value) for name, value in options.inputs.items()}
    if isinstance(options.devices, str | Path):
        decided["devices"] = read_device_plan(options.devices)
    facts = json.dumps([__version__, digest, menu, decided], sort_keys=True, default=_plain)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Return a mapping as a dictionary, and any other value as its ``repr``."""
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _array_digest(value: Any) -> str:
    array = np.ascontiguousarray(value)
    return hashlib.sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()
