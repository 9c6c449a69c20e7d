"""Where users are: ONNX's backend interface, ``torch.compile``, and code written for ONNX Runtime's sessions.

::

    from collage.integrations import InferenceSession        # instead of: from onnxruntime import InferenceSession

    torch.compile(module, backend="collage")                 # found by entry point, nothing to import

    import collage.backend                                   # prepare(model).run(inputs), as onnx.backend.base has it
"""

from collage.integrations._inference_session import InferenceSession, ModelMetadata, NodeArg

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]
