"""Small modules with all that a function without effects is not: state, views, aliases, training, odd inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps.add_(1)
        return x * self.steps


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 6, 4))

    def forward(self, x, position):
        self.keys.index_copy_(1, position, x)
        return self.keys.sum(1)


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x):
        before = self.last.clone()
        self.last.copy_(x)
        self.last[0] = 7
        return before + x


class Rebound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total = self.total + x.sum(0)
        return x + self.total


class WritesItsInput(nn.Module):
    def forward(self, x, y):
        x.mul_(2)
        y[:, 0] = x[:, 1]
        return x + y


class WritesByOut(nn.Module):
    def forward(self, x, y):
        torch.add(x, 1, out=y)
        return y * 2


class WritesThroughAView(nn.Module):
    def forward(self, x):
        x.view(-1)[::2].add_(1)
        x.t()[0].zero_()
        return x.sum()


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.weight.mul_(2)
        return x * self.weight


class ReturnsItsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x):
        self.steps.add_(1)
        return self.steps, self.steps[1:], x + 1


class WritesInside(nn.Module):
    def forward(self, x):
        y = x + 1
        y[0] = 0
        y.relu_()
        return y


class Views(nn.Module):
    def forward(self, x):
        y = x * 2
        return x.t(), x[:, 1:], y, y.view(-1), y[1:].t()


class Chunks(nn.Module):
    def forward(self, x):
        return (x + 1).chunk(3, 1)


class Transposed(nn.Module):
    def forward(self, x):
        return (x + 1).t()


class OnlyViews(nn.Module):
    def forward(self, x):
        return x.t(), x.view(-1)


class SameTwice(nn.Module):
    def forward(self, x):
        y = x + 1
        return y, x, y


class Nested(nn.Module):
    def forward(self, x):
        return {"a": x + 1, "b": (x * 2, None, [x - 1, {"c": x.sum()}]), "d": 3, "e": x.shape[0]}


class Scalars(nn.Module):
    def forward(self, x, n, share, flag):
        return (x * n + share) if flag else (x - n)


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8))

    def forward(self, x, position: int):
        self.keys[:, position : position + 1] = x
        return self.keys * position


class Optional(nn.Module):
    def forward(self, x, mask=None):
        return x + 1 if mask is None else torch.where(mask, x, 0.0)


class Grid(nn.Module):
    def forward(self, x):
        return torch.arange(x.shape[1], dtype=torch.float32) + x, x.argmax(1), x > 0


class Dropout(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, self.training) + 1


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Normal(nn.Module):
    def __init__(self, training: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean.add_(0.5)
        self.linear = nn.Linear(4, 4)
        self.train(training)

    def forward(self, x):
        return self.norm(self.linear(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


class ViewOfAnotherType(nn.Module):
    def forward(self, x):
        return x.view(torch.int32), x + 1


class ChangesShape(nn.Module):
    def forward(self, x):
        x.t_()
        return x + 1


class Sparse(nn.Module):
    def forward(self, x):
        return (x + 1).to_sparse()


class Broadcast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return x + self.total, x.shape[1]


class Reshaping(nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0] * 2, -1).sum(1), x.shape[1]


@dataclass(frozen=True)
class Case:
    """A module and what it is called with.

    Attributes:
        make: Makes the module, the same every time.
        calls: Makes the arguments of each call, the same every time.
        compiled: Collage computes it; None is whatever comes.
    """

    make: Callable[[], nn.Module]
    calls: Callable[[], list[tuple[Any, ...]]]
    compiled: bool | None = True


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _times(count: int, *shapes: tuple[int, ...]) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [tuple(_x(*shape) for shape in shapes) for _ in range(count)]


def _overlapping() -> list[tuple[Any, ...]]:
    base = _x(4, 3)
    return [(base[:2], base[1:3]), (base[2:], base[:2])]


CASES = {
    "counter": Case(Counter, _times(3, (2,))),
    "cache": Case(Cache, lambda: [(_x(1, 1, 4), torch.tensor([i])) for i in range(3)]),
    "assigned": Case(Assigned, _times(3, (2, 3))),
    "writes its input": Case(WritesItsInput, _times(2, (2, 3), (2, 3))),
    "writes its input, which is another one too": Case(WritesItsInput, _overlapping, None),
    "the same tensor twice": Case(WritesItsInput, lambda: [(x, x) for x in (_x(2, 3), _x(2, 3))], None),
    "writes by out=": Case(WritesByOut, _times(2, (2, 3), (2, 3))),
    "writes through a view": Case(WritesThroughAView, _times(2, (2, 3))),
    "writes a strided input": Case(WritesItsInput, lambda: [(_x(3, 2).t(), _x(2, 6)[:, ::2]) for _ in range(2)]),
    "writes a parameter": Case(WritesParameter, _times(3, (2, 3))),
    "returns its state": Case(ReturnsItsState, _times(2, (2, 3))),
    "writes inside": Case(WritesInside, _times(2, (2, 3))),
    "chunks": Case(Chunks, _times(2, (2, 6))),
    "transposed": Case(Transposed, _times(2, (2, 3))),
    "only views": Case(OnlyViews, _times(2, (2, 3)), None),
    "the same output twice": Case(SameTwice, _times(2, (2, 3))),
    "nested": Case(Nested, _times(2, (2, 3))),
    "scalars": Case(
        Scalars,
        lambda: [(_x(2), 3, 0.5, True), (_x(2), 4, 0.5, True), (_x(2), 5, 0.7, False), (_x(2), 6, 0.9, True)],
        None,
    ),
    "position": Case(Position, lambda: [(_x(2, 1), i) for i in range(5)], None),
    "optional": Case(Optional, lambda: [(_x(2, 3),), (_x(2, 3), torch.tensor([[True], [False]]))]),
    "grid": Case(Grid, _times(2, (2, 3))),
    "dropout in training": Case(lambda: Dropout().train(), _times(2, (4, 5)), False),
    "dropout in evaluation": Case(lambda: Dropout().eval(), _times(2, (4, 5))),
    "noise": Case(Noise, _times(2, (4, 5)), False),
    "recurrent in training": Case(lambda: Recurrent().train(), _times(2, (2, 3, 4)), None),
    "recurrent in evaluation": Case(lambda: Recurrent().eval(), _times(2, (2, 3, 4)), None),
    "normal in training": Case(lambda: Normal(True), _times(3, (8, 4)), None),
    "attention in training": Case(lambda: Attention().train(), _times(1, (2, 3, 8)), False),
    "attention in evaluation": Case(lambda: Attention().eval(), _times(2, (2, 3, 8)), None),
    "view of another type": Case(ViewOfAnotherType, _times(1, (2, 3)), False),
    "changes shape": Case(ChangesShape, _times(1, (2, 3)), None),
    "state and lengths that grow": Case(Rebound, lambda: [(_x(n, 3),) for n in (2, 3, 4, 5)]),
    "no elements": Case(Views, lambda: [(_x(0, 3),), (_x(4, 3),), (_x(5, 3),)], None),
    "a sparse output": Case(Sparse, lambda: [(torch.eye(3),)], None),
    "a length that broadcasting fixes": Case(Broadcast, lambda: [(_x(n, 3),) for n in (2, 4, 5)]),
    "views and lengths that grow": Case(Views, lambda: [(_x(n, 3),) for n in (2, 3, 4, 5)]),
}
