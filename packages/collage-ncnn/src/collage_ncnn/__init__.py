"""ncnn: 3x3 convolutions by Winograd's algorithm, in a layout of packed channels."""

__all__: list[str] = []
