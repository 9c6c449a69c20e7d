"""A session that looks like ONNX Runtime's, so that code written for it changes one import."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from collage._errors import ArtefactError, InputError
from collage._version import __version__
from collage.options import CompileOptions
from collage.runtime import MANIFEST, Executable, Port, load
from collage.target import TargetLike
from collage.toolchains import registry

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

_CPU = "CPUExecutionProvider"
_TYPES = {"float32": "float", "float64": "double"}
"""Where ONNX Runtime's name of a type is not NumPy's."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes it.

    Attributes:
        name: Its name.
        shape: Lengths, symbols, or None where nothing is known.
        type: Such as ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, port: Port) -> NodeArg:
        """Describe a port."""
        kind = "" if port.dtype is None else f"tensor({_TYPES.get(port.dtype, port.dtype)})"
        return cls(port.name, list(port.shape or ()), port.kind or kind)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model's file says about the model, as ONNX Runtime names it.

    Attributes:
        producer_name: Who made the file.
        graph_name: Name of its main graph.
        domain: Whose model it is.
        description: Of the model.
        graph_description: Of its main graph.
        version: Of the model.
        custom_metadata_map: What its makers noted, such as names of classes.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> ModelMetadata:
        """What a model says about itself."""
        return cls(
            model.producer_name or "",
            model.graph.name or "",
            model.domain or "",
            model.doc_string or "",
            model.graph.doc_string or "",
            model.model_version or 0,
            dict(model.metadata_props),
        )


class InferenceSession:
    """Runs a model compiled by Collage, behind the methods of ONNX Runtime's class of this name.

    A model is compiled when its session is first made, which takes minutes, and kept in ``cache_dir``: the next session
    of the same model, menu and options loads it. An artefact is loaded as it is.

    Args:
        path_or_bytes: A model's file or bytes, or an artefact's folder or zip.
        sess_options: ONNX Runtime's options; ``intra_op_num_threads`` is honoured, the rest means nothing here.
        providers: Execution providers; only the CPU's is there, and a list without it is warned of.
        provider_options: Ignored.
        targets: The menu; None is what ``choose_menu`` says.
        options: See ``CompileOptions``.
        cache_dir: Where compiled models are kept; None is ``collage/sessions`` in the user's cache folder.

    Attributes:
        executable: What runs.

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
        options: CompileOptions | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        named = [provider if isinstance(provider, str) else provider[0] for provider in providers or (_CPU,)]
        if _CPU not in named:
            warnings.warn(f"collage runs on the CPU; {', '.join(named)} is not there", stacklevel=2)
        options = options or CompileOptions()
        if threads := getattr(sess_options, "intra_op_num_threads", 0):
            options = replace(options, threads=threads)
        if not isinstance(path_or_bytes, bytes) and _is_artefact(Path(path_or_bytes)):
            import onnx_ir as ir  # late: importing this module is to cost no more than running needs

            self.executable = load(Path(path_or_bytes))
            model = ir.load(self.executable.workspace / self.executable.recipe.model_file)
        else:
            from collage.frontend import read_model  # late, as onnx_ir above

            model = read_model(path_or_bytes)
            folder = Path(cache_dir) if cache_dir is not None else _default_cache()
            self.executable = _compiled(model, targets, options, folder)
        self._metadata = ModelMetadata.of(model)
        self._output_names = [port.name for port in self.executable.outputs]

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, but for those that have a default."""
        return [NodeArg.of(port) for port in self.executable.inputs if port.default is None]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default: ``run`` takes them or leaves them."""
        return [NodeArg.of(port) for port in self.executable.inputs if port.default is not None]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs."""
        return [NodeArg.of(port) for port in self.executable.outputs]

    def get_providers(self) -> list[str]:
        """The CPU's, under ONNX Runtime's name for it."""
        return [_CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """No options for the one provider."""
        return {_CPU: {}}

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says about the model."""
        return self._metadata

    def __getattr__(self, name: str) -> NoReturn:
        """Says what there is instead of the rest of ONNX Runtime's methods."""
        raise AttributeError(
            f"collage's InferenceSession has no {name!r}: run(output_names, input_feed) takes and returns tensors of NumPy, "
            "PyTorch and DLPack, without copies where it can, and session.executable has arun() and profile()",
            name=name,
            obj=self,
        )

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the model.

        Args:
            output_names: Which outputs to return, in which order; None or empty is all.
            input_feed: Tensors by name.
            run_options: Ignored.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        if isinstance(output_names, str):
            raise InputError(f"output_names is a list of names; write [{output_names!r}]")
        wanted = output_names or self._output_names
        if unknown := [name for name in wanted if name not in self._output_names]:
            raise InputError(f"unknown output {unknown[0]!r}; the model has {', '.join(self._output_names)}")
        outputs = self.executable.run(input_feed)
        return [outputs[name] for name in wanted]


def _is_artefact(path: Path) -> bool:
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return path.suffix == ".zip" and path.is_file()


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "collage" / "sessions"


def _compiled(
    model: ir.Model, targets: Iterable[TargetLike] | None, options: CompileOptions, cache: Path
) -> Executable:
    """Compiles a model, or loads what an earlier session compiled of it."""
    # Late: a session that only runs an artefact needs none of these.
    from collage.compiler.pipeline import compile
    from collage.frontend import model_digest
    from collage.toolchains import choose_menu

    menu = choose_menu(targets, registry())
    path = cache / f"{_key(model_digest(model), [str(target) for target in menu], options)}.collage"
    if path.exists() and not options.remeasure:
        try:
            return load(path)
        except ArtefactError as error:
            warnings.warn(f"compiling the model again: {error}", stacklevel=4)
    executable = compile(model, menu, options=options)
    executable.save(path)
    return executable


def _key(digest: str, menu: Sequence[str], options: CompileOptions) -> str:
    """What a compiled model depends on: all options but where timings are kept, and whether they are believed."""
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
    """A mapping as JSON has it; other values by what they are written as."""
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _array_digest(value: Any) -> str:
    array = np.ascontiguousarray(value)
    return hashlib.sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()
