"""OpenVINO, on the processor."""

__all__: list[str] = []
