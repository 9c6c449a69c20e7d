"""TorchInductor, on the processor and on CUDA devices."""

__all__: list[str] = []
