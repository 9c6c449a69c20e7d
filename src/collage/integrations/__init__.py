"""Interfaces of other libraries: ONNX's backend, ``torch.compile``, and ONNX Runtime's ``InferenceSession``.

::

    from collage.integrations import InferenceSession        # instead of: from onnxruntime import InferenceSession

    torch.compile(module, backend="collage")                 # found by entry point, nothing to import

    import collage.backend                                   # prepare(model).run(inputs), as onnx.backend.base has it
"""

from collage.integrations._inference_session import InferenceSession
from collage.integrations._session_descriptions import ModelMetadata, NodeArg

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]
