"""NVIDIA's libraries of kernels: cuBLAS, cuDNN, CUTLASS, TensorRT."""

__all__: list[str] = []
