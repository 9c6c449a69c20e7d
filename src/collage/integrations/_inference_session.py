"""A session that looks like ONNX Runtime's, so that code that runs models changes one import."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from collage._errors import ArtefactError, InputError, UsageError
from collage._version import __version__
from collage.integrations._io_binding import IOBinding, array_of, value_of
from collage.integrations._session_descriptions import ModelMetadata, NodeArg
from collage.integrations._session_errors import like_onnxruntime
from collage.integrations._session_options import (
    CPU,
    check_run_options,
    check_session_options,
    fixed_lengths,
    free_dims,
)
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
    """Runs a model compiled by Collage, behind the methods of ONNX Runtime's class of this name that run models.

    A model is compiled when its session is first made, which takes minutes, and kept in ``cache_dir``: the next session
    of the same model, menu and options loads it. An artefact is loaded as it is. Handlers of ONNX Runtime's errors catch
    those of a session.

    Args:
        path_or_bytes: A model's file or bytes, or an artefact's folder or zip.
        sess_options: ONNX Runtime's options. ``intra_op_num_threads`` and overrides of a model's free dimensions have the
            same effect as there. One warning names the others.
        providers: Execution providers. Only the CPU's is there, and others are warned of.
        provider_options: Options for them, which are warned of.
        targets: The menu; None is the result of ``choose_menu``.
        options: See ``CompileOptions``.
        cache_dir: Folder of compiled models; None is ``collage/sessions`` in the user's cache folder.
        trusted: An artefact is one of your own; see ``collage.load``.
        others: Other keywords of ONNX Runtime's, which are warned of.

    Attributes:
        executable: The executable behind the session.

    Raises:
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
        **others: Any,
    ) -> None:
        with like_onnxruntime():
            idle = [*others, *(["provider_options"] if any(provider_options or ()) else ())]
            check_session_options(sess_options, providers, idle)
            self._sess_options = sess_options
            threads = getattr(sess_options, "intra_op_num_threads", 0) or None
            if not isinstance(path_or_bytes, bytes) and _is_artefact(Path(path_or_bytes)):
                if targets is not None or options is not None:
                    raise UsageError(f"{path_or_bytes} is compiled already: targets and options are for models")
                self.executable = load(Path(path_or_bytes), threads=threads, trusted=trusted)
                symbols = {
                    dim: (dim, "")
                    for port in self.executable.inputs
                    for dim in port.shape or ()
                    if isinstance(dim, str)
                }
                if fixed := fixed_lengths(sess_options, symbols):
                    told = " ".join(f"--fix {name}={length}" for name, length in fixed.items())
                    raise UsageError(f"{path_or_bytes} is compiled already, with free lengths; compile it with {told}")
            else:
                self.executable = self._compile(path_or_bytes, targets, compile_options(options), threads, cache_dir)
        self._output_names = list(self.executable.recipe.listed) or [port.name for port in self.executable.outputs]

    def _compile(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        targets: Iterable[TargetLike] | None,
        options: CompileOptions,
        threads: int | None,
        cache_dir: str | os.PathLike[str] | None,
    ) -> Executable:
        from collage.frontend import read_model  # late: importing this module is to cost no more than running needs

        model = read_model(path_or_bytes)
        self._metadata = ModelMetadata.of(model)
        if threads is not None:
            options = replace(options, threads=threads)
        if fixed := fixed_lengths(self._sess_options, free_dims(model)):
            options = replace(options, fixed={**options.fixed, **fixed})
        return _compiled(model, targets, options, Path(cache_dir) if cache_dir is not None else _default_cache())

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
        ports = {port.name: port for port in self.executable.outputs}
        return [NodeArg.of(ports[name]) for name in self._output_names]

    def get_providers(self) -> list[str]:
        """Return ONNX Runtime's name of the CPU."""
        return [CPU]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model's file."""
        return self._metadata

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: Names of the outputs to return, in this order; None or empty is all.
            input_feed: Tensors by name: arrays, tensors of PyTorch or of DLPack, or ``OrtValue``s.
            run_options: ONNX Runtime's, which are warned of.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        with like_onnxruntime():
            check_run_options(run_options)
            wanted = self._wanted(output_names)
            outputs = self._outputs_of(input_feed)
        return [outputs[name] for name in wanted]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model on ``OrtValue``s, and return ``OrtValue``s that share memory with the output arrays.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        ports = {port.name: port for port in self.executable.outputs}
        names = output_names or self._output_names
        outputs = self.run(names, input_dict_ort_values, run_options)
        return [value_of(value, ports[name]) for name, value in zip(names, outputs, strict=True)]

    def io_binding(self) -> IOBinding:
        """Return an object that inputs and outputs can be bound to, in memory of the CPU."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on the bound inputs and outputs. Outputs that memory is bound to are written there.

        Raises:
            InputError: The binding is another session's, or something that is bound does not fit.
        """
        with like_onnxruntime():
            check_run_options(run_options)
            if getattr(iobinding, "session", None) is not self:
                raise InputError("an IOBinding is used with the session that made it: session.io_binding()")
            if not iobinding.wanted:
                raise InputError("at least one output is to be bound: binding.bind_output(name)")
            iobinding.keep(self._outputs_of(iobinding.feeds, iobinding.out))

    def __getattr__(self, name: str) -> NoReturn:
        """Name the alternative to ONNX Runtime's other methods."""
        raise AttributeError(
            f"collage's InferenceSession runs models and has no {name!r}; use onnxruntime.InferenceSession for it. "
            "session.executable has arun() and profile()",
            name=name,
            obj=self,
        )

    @cached_property
    def _metadata(self) -> ModelMetadata:
        import onnx_ir as ir  # late: importing this module is to cost no more than running needs

        return ModelMetadata.of(ir.load(self.executable.workspace / self.executable.recipe.model_file))

    def _wanted(self, output_names: Sequence[str] | None) -> Sequence[str]:
        if isinstance(output_names, str):
            raise InputError(f"output_names is a list of names; write [{output_names!r}]")
        wanted = output_names or self._output_names
        if unknown := [name for name in wanted if name not in self._output_names]:
            raise InputError(
                f"unknown output {unknown[0]!r}; the model has {', '.join(dict.fromkeys(self._output_names))}"
            )
        return wanted

    def _outputs_of(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        values = {
            name: array_of(x) if hasattr(x, "data_ptr") and hasattr(x, "is_tensor") else x for name, x in feeds.items()
        }
        return self.executable.run(values, out=out)


def _is_artefact(path: Path) -> bool:
    if path.is_dir():
        return (path / MANIFEST).is_file() or (path / PACK).is_file()
    if url_of(path) is not None:
        return True
    return path.suffix == ".zip" and path.is_file()


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
    try:
        executable.save(path)
    except UsageError as error:  # The session has taken minutes, and runs without.
        warnings.warn(f"the next session compiles the model again: {error}", stacklevel=4)
    return executable


def _key(digest: str, menu: Sequence[str], options: CompileOptions) -> str:
    """Return the cache key: a digest of the model, the menu, and all options except ``db`` and ``remeasure``."""
    # Late: a session that only runs an artefact needs none of these.
    from collage.device import read_device_plan
    from collage.frontend import lengths_as_json
    from collage.plan_file import read_plan

    decided = {field.name: getattr(options, field.name) for field in fields(options)}
    del decided["db"], decided["remeasure"]
    decided["dims"] = lengths_as_json(options.dims)
    decided["inputs"] = {name: _array_digest(value) for name, value in options.inputs.items()}
    if isinstance(options.devices, str | Path):
        decided["devices"] = read_device_plan(options.devices)
    if isinstance(options.plan, str | Path):
        decided["plan"] = read_plan(options.plan)
    if isinstance(options.data, str | os.PathLike):
        decided["data"] = str(options.data), _files_of(Path(options.data))
    facts = json.dumps([__version__, digest, menu, decided], sort_keys=True, default=_plain)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Return a mapping as a dictionary, a digest of an array, and any other value as its ``repr``."""
    if hasattr(value, "__array__"):
        return _array_digest(value)  # The text of a long array leaves out most of it.
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _files_of(path: Path) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of a file, or of each file in a folder."""
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    return [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _array_digest(value: Any) -> str:
    array = np.ascontiguousarray(value)
    return hashlib.sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()
