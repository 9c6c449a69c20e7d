"""TVM: import of ONNX operators, schedules, tuning, kernels on the processor and on CUDA devices."""

__all__: list[str] = []
