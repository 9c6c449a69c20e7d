"""Recurrent layers, which TVM's importer lacks: ``RNN``, ``GRU`` and ``LSTM``.

What the gates make of the input is one product for all steps. The steps are loops of their own: the matrix of the state lies as
the loops read it, so that a tile of sums stays in registers. With one sequence, a step is as fast as its matrix is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage._errors import Unsupported
from collage.toolchains.tvm.convolutions import is_known
from collage.toolchains.tvm.lengths import Length, ceil_div, f32, i64, numbers_of
from collage.toolchains.tvm.processor import Processor, Tile
from collage.toolchains.tvm.products import sums_of_tile

__all__ = ["RECURRENT", "recurrent"]

RECURRENT: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""The number of gates of each operator, the new state included."""

_SUMS = 8
"""Sums that a processor adds to at a time: two in each cycle, of which each takes four."""
_STEP_WORK = 48 << 10
"""Products of a step from which threads share it. A GRU with a state of 64 takes 0.97 us a step, alone 0.85; of 128 2.3, alone
2.7; an LSTM of 180 5.3, alone 7.1.
"""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A recurrent layer.

    Attributes:
        op_type: The operator.
        hidden: Elements of the state.
        reversed: For each direction, True if it begins with the last step.
        resets_after: True of a GRU that resets the product of the state, False if it resets the state before.
        activation: The function of an RNN.
        steps: Number of steps.
        batch: Number of sequences.
        rows: Sequences of a tile.
        vectors: Vectors of a tile for each gate.
        lanes: Elements of a vector.
        threads: Number of threads.
    """

    op_type: str
    hidden: int
    reversed: tuple[bool, ...]
    resets_after: bool
    activation: Callable[[Any], Any]
    steps: Length
    batch: Length
    rows: int
    vectors: int
    lanes: int
    threads: int

    @property
    def gates(self) -> int:
        """Return the number of gates."""
        return RECURRENT[self.op_type]

    @property
    def panel(self) -> int:
        """Return the elements of the state that a tile computes."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Return the number of tiles that cover the state."""
        return int(ceil_div(self.hidden, self.panel))

    @property
    def width(self) -> int:
        """Return the elements of the state, with those that fill the last tile."""
        return self.panels * self.panel

    @property
    def groups(self) -> Length:
        """Return the number of tiles below each other: whole ones, and then single sequences."""
        return self.batch // self.rows + self.batch % self.rows

    @property
    def shares_steps(self) -> bool:
        """Return True if threads share each step, False if each has sequences or directions of its own."""
        tasks = len(self.reversed) * (self.groups if isinstance(self.groups, int) else 1)
        rows = self.batch if isinstance(self.batch, int) else 1
        return tasks < self.threads and rows * self.gates * self.hidden**2 >= _STEP_WORK


def recurrent(
    bb: Any, processor: Processor | None, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Any:
    """Return the outputs of a recurrent layer as ONNX orders them: of all steps, the last state, and an LSTM's last cell.

    Args:
        bb: Relax's builder.
        processor: The processor that runs the loops; None for another device.
        op_type: A key of ``RECURRENT``.
        inputs: Its inputs, None where one is not given.
        attributes: Its attributes.

    Raises:
        Unsupported: A matrix is not constant, or the loops are for another device.
    """
    x, w, r, b, _, state, cell, _ = [*inputs, *[None] * 8][:8]
    if processor is None:
        raise Unsupported(f"tvm has no {op_type} but for processors")
    if not all(is_known(each) for each in (w, r, b) if each is not None):
        raise Unsupported(f"tvm's loops of {op_type} take constant matrices only")
    layer = _layer_of(op_type, x, attributes, processor)
    matrix, bias, of_state, of_reset = _packed(layer, w, r, b)
    rows = bb.normalize(relax.op.add(bb.normalize(relax.op.matmul(x, matrix)), bias))
    shape = [i64(len(layer.reversed)), x.ty.shape.values[1], i64(layer.hidden)]
    zeros = None if state is not None and (cell is not None or op_type != "LSTM") else _zeros(bb, shape)
    given = [rows, of_state, of_reset, zeros if state is None else state]
    types = [
        relax.TensorType(relax.ShapeExpr(lengths), "float32") for lengths in ([x.ty.shape.values[0], *shape], shape)
    ]
    if op_type == "LSTM":
        given.append(zeros if cell is None else cell)
        types.append(types[-1])
    function = bb.add_func(_loops(layer), op_type.lower())
    made = bb.emit(relax.call_tir(function, given, types), attributes["tvm_custom"]["name"])
    return relax.Tuple([bb.normalize(relax.TupleGetItem(made, i)) for i in range(len(types))])


def _zeros(bb: Any, shape: Sequence[Any]) -> Any:
    return bb.normalize(relax.op.zeros(relax.ShapeExpr(shape), "float32"))


def _layer_of(op_type: str, x: Any, attributes: Mapping[str, Any], processor: Processor) -> _Layer:
    direction = attributes.get("direction", b"forward").decode()
    steps, batch, _ = numbers_of(x.ty.shape.values)
    hidden, gates = int(attributes["hidden_size"]), RECURRENT[op_type]
    most = max(1, processor.registers // 2 // gates)
    rows = min(most, batch) if isinstance(batch, int) else most
    vectors = min(max(1, _SUMS // (gates * rows)), int(ceil_div(hidden, processor.lanes)))
    named = [name.decode().lower() for name in attributes.get("activations", [b"Tanh"])]
    return _Layer(
        op_type,
        hidden,
        {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction],
        bool(attributes.get("linear_before_reset", 0)),
        tirx.tanh if named[0] == "tanh" else lambda value: tirx.max(value, f32(0.0)),
        steps if isinstance(steps, int) else tirx.Var("steps", "int64"),
        batch if isinstance(batch, int) else tirx.Var("batch", "int64"),
        max(1, rows),
        vectors,
        processor.lanes,
        processor.threads,
    )


def _packed(layer: _Layer, w: Any, r: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Return constants: the input's matrix and bias, the state's matrix by tiles, and its bias in the new state of a GRU.

    Shapes, with D directions and G gates: ``[inputs, D * G * width]``, ``[D * G * width]``, ``[D, panels, hidden, G, panel]``
    and ``[D, width]``.
    """
    of_input, of_state = (each.value.numpy() for each in (w, r))
    directions, gates, hidden, width = len(layer.reversed), layer.gates, layer.hidden, layer.width
    biases = np.zeros((2, directions, gates, hidden), np.float32)
    if b is not None:
        biases[:] = b.value.numpy().reshape(directions, 2, gates, hidden).swapaxes(0, 1)
    reset = np.zeros((directions, hidden), np.float32)
    if layer.op_type == "GRU" and layer.resets_after:
        reset, biases[1, :, -1] = biases[1, :, -1].copy(), 0

    def wide(array: Any, axis: int) -> Any:
        pads = [(0, width - hidden if i == axis else 0) for i in range(array.ndim)]
        return np.pad(array, pads)

    matrix = wide(of_input.reshape(directions, gates, hidden, -1), 2).reshape(directions * gates * width, -1).T
    tiles = wide(of_state.reshape(directions, gates, hidden, hidden), 2)
    tiles = tiles.reshape(directions, gates, layer.panels, layer.panel, hidden).transpose(0, 2, 4, 1, 3)
    flat = wide(biases.sum(0), 2).reshape(-1)
    arrays = (matrix, flat, tiles, wide(reset, 1))
    matrix, flat, tiles, reset = (relax.const(np.ascontiguousarray(array, np.float32)) for array in arrays)
    return matrix, flat, tiles, reset


def _loops(layer: _Layer) -> Any:
    """Return the loops over the steps, as a function without a schedule to come."""
    directions, hidden = i64(len(layer.reversed)), i64(layer.hidden)
    steps, batch, width = i64(layer.steps), i64(layer.batch), i64(layer.width)
    tiles = (directions, i64(layer.panels), hidden, i64(layer.gates), i64(layer.panel))
    state = (directions, batch, hidden)
    is_lstm = layer.op_type == "LSTM"
    inputs = {"rows": (steps, batch, i64(len(layer.reversed) * layer.gates * layer.width)), "matrix": tiles}
    inputs |= {"reset": (directions, width), "first": state} | ({"first_cell": state} if is_lstm else {})
    outputs = {"all": (steps, *state), "last": state} | ({"last_cell": state} if is_lstm else {})
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name(layer.op_type.lower())
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        buffers = {
            name: build.arg(name, build.buffer(shape, "float32", layout=None))
            for name, shape in (inputs | outputs).items()
        }
        with build.sblock("root"):  # Passes that come before those of schedules take functions for blocks.
            _Steps(layer, buffers).write()
    return builder.get()


class _Steps:
    """Writes the loops of one layer into the function that is being built."""

    def __init__(self, layer: _Layer, buffers: Mapping[str, Any]) -> None:
        self._layer, self._buffers = layer, buffers
        shape = (i64(len(layer.reversed)), i64(layer.batch), i64(layer.width))

        def scratch(*more: int) -> Any:
            return build.alloc_buffer((*map(i64, more), *shape), "float32", layout=None)

        self._states: Any = scratch(2)
        self._cell: Any = scratch() if layer.op_type == "LSTM" else None
        # A GRU that resets the state before its product needs all of it before the product can begin.
        is_split = layer.op_type == "GRU" and not layer.resets_after
        self._reset: Any = scratch() if is_split else None
        self._update: Any = scratch() if is_split else None

    def write(self) -> None:
        """Write all loops."""
        layer = self._layer
        panels = i64(layer.panels)
        rows = i64(len(layer.reversed)) * layer.groups
        self._copy_states("first", 0, to_output=False)
        if layer.shares_steps:
            with build.serial(i64(layer.steps)) as step:
                for part in self._parts():
                    with build.parallel(rows * panels) as task:
                        self._by_rows(task // panels, functools.partial(part, step, task % panels))
        else:
            with build.parallel(rows) as group, build.serial(i64(layer.steps)) as step:
                for part in self._parts():
                    with build.serial(panels) as panel:
                        self._by_rows(group, functools.partial(part, step, panel))
        self._copy_states("last", i64(layer.steps) % 2, to_output=True)

    def _parts(self) -> Sequence[Callable[..., None]]:
        """Return the parts of a step, each of which needs all of the one before."""
        return (self._write_gates, self._write_new) if self._reset is not None else (self._write_step,)

    def _copy_states(self, name: str, time: Any, *, to_output: bool) -> None:
        """Copy states, and cells, from inputs or to outputs, with the states of an even or an odd time."""
        layer = self._layer
        with build.serial(i64(len(layer.reversed))) as direction, build.serial(i64(layer.batch)) as row:
            copies: list[tuple[Any, Any, Sequence[Any]]] = [(self._buffers[name], self._states, (time, direction, row))]
            if self._cell is not None:
                copies.append((self._buffers[f"{name}_cell"], self._cell, (direction, row)))
            for outside, inside, at in copies:
                with build.serial(i64(layer.hidden)) as i:
                    here, there = [*at, i], [direction, row, i]
                    if to_output:
                        build.buffer_store(outside, inside[*here], there)
                    else:
                        build.buffer_store(inside, outside[*there], here)

    def _by_rows(self, group: Any, write: Callable[[Any, Any, int], None]) -> None:
        """Write the statements for a tile of sequences: with its direction, its first sequence and their number."""
        layer = self._layer
        groups, whole = layer.groups, layer.batch // layer.rows
        direction = build.bind(group // groups)
        place = build.bind(group % groups)
        if isinstance(layer.batch, int) and layer.batch % layer.rows == 0:
            write(direction, build.bind(place * layer.rows), layer.rows)
            return
        with build.If(place < whole):
            with build.Then():
                write(direction, build.bind(place * layer.rows), layer.rows)
            with build.Else():
                write(direction, build.bind(place + whole * (layer.rows - 1)), 1)

    def _sums(self, gates: Sequence[int], source: Callable[[int, Any], Any], place: Sequence[Any], rows: int) -> Any:
        """Add up products of a state and its matrix, in registers. Return a buffer with the sums of each sequence and gate."""
        layer = self._layer
        tile = Tile(rows * len(gates), layer.vectors, layer.lanes)
        with sums_of_tile(tile) as (each, kept), build.serial(i64(layer.hidden)) as k:

            def add(i: int, total: Any, at: Any) -> None:
                row, gate = divmod(i, len(gates))
                value = source(row, k) * self._buffers["matrix"][*place, k, gates[gate], at]
                build.buffer_store(total, total[at] + value, [at])

            each(add)
        return kept

    def _write_step(self, step: Any, panel: Any, direction: Any, row: Any, rows: int) -> None:
        """Write a tile of the next state."""
        layer = self._layer
        sums = self._sums(range(layer.gates), self._state_at(step, direction, row), (direction, panel), rows)

        def finish(i: Any, at: Any, element: Any) -> None:
            def gate(number: int) -> Any:
                return self._of_input(step, direction, row + i, number, element) + sums[i * layer.gates + number, at]

            where = [direction, row + i, element]
            if layer.op_type == "RNN":
                self._keep(step, where, layer.activation(gate(0)))
            elif layer.op_type == "LSTM":
                cell = self._cell[*where]
                new = tirx.sigmoid(gate(2)) * cell + tirx.sigmoid(gate(0)) * tirx.tanh(gate(3))
                build.buffer_store(self._cell, new, where)
                self._keep(step, where, tirx.sigmoid(gate(1)) * tirx.tanh(self._cell[*where]))
            else:
                of_state = sums[i * layer.gates + 2, at] + self._buffers["reset"][direction, element]
                of_input = self._of_input(step, direction, row + i, 2, element)
                # A gate that is stored first: of a function within another one TVM takes minutes to simplify the conditions.
                build.buffer_store(sums, tirx.sigmoid(gate(1)), [i * layer.gates + 1, at])
                new = tirx.tanh(of_input + sums[i * layer.gates + 1, at] * of_state)
                build.buffer_store(sums, new, [i * layer.gates + 2, at])
                build.buffer_store(sums, tirx.sigmoid(gate(0)), [i * layer.gates, at])
                self._keep(
                    step, where, self._mixed(step, where, sums[i * layer.gates, at], sums[i * layer.gates + 2, at])
                )

        self._finish(step, direction, row, rows, panel, finish)

    def _write_gates(self, step: Any, panel: Any, direction: Any, row: Any, rows: int) -> None:
        """Write a tile of the gates of a GRU, and the state that it resets."""
        sums = self._sums((0, 1), self._state_at(step, direction, row), (direction, panel), rows)

        def finish(i: Any, at: Any, element: Any) -> None:
            where = [direction, row + i, element]
            update, reset = (
                tirx.sigmoid(self._of_input(step, direction, row + i, number, element) + sums[i * 2 + number, at])
                for number in (0, 1)
            )
            build.buffer_store(self._update, update, where)
            build.buffer_store(self._reset, reset * self._states[step % 2, *where], where)

        self._each(rows, panel, finish)

    def _write_new(self, step: Any, panel: Any, direction: Any, row: Any, rows: int) -> None:
        """Write a tile of the next state of a GRU, of the state that was reset."""
        sums = self._sums((2,), lambda i, k: self._reset[direction, row + i, k], (direction, panel), rows)

        def finish(i: Any, at: Any, element: Any) -> None:
            where = [direction, row + i, element]
            new = tirx.tanh(self._of_input(step, direction, row + i, 2, element) + sums[i, at])
            build.buffer_store(sums, new, [i, at])
            self._keep(step, where, self._mixed(step, where, self._update[*where], sums[i, at]))

        self._finish(step, direction, row, rows, panel, finish)

    def _mixed(self, step: Any, where: Sequence[Any], update: Any, new: Any) -> Any:
        return (f32(1.0) - update) * new + update * self._states[step % 2, *where]

    def _of_input(self, step: Any, direction: Any, row: Any, gate: int, element: Any) -> Any:
        """Return what a gate makes of the input at a step."""
        layer = self._layer
        column = (direction * layer.gates + gate) * layer.width + element
        return self._buffers["rows"][self._time(step, direction), row, column]

    def _time(self, step: Any, direction: Any) -> Any:
        """Return the place of a step: from the end where its direction is reversed."""
        layer = self._layer
        if layer.reversed == (False,):
            return step
        from_end = layer.steps - 1 - step
        return from_end if layer.reversed == (True,) else tirx.Select(direction == 0, step, from_end)

    def _state_at(self, step: Any, direction: Any, row: Any) -> Callable[[int, Any], Any]:
        return lambda i, k: self._states[step % 2, direction, row + i, k]

    def _keep(self, step: Any, where: Sequence[Any], value: Any) -> None:
        build.buffer_store(self._states, value, [(step + 1) % 2, *where])

    def _each(self, rows: int, panel: Any, write: Callable[[Any, Any, Any], None]) -> None:
        """Write the statements for each element of a tile: with its sequence, and its place in the tile and in the state."""
        layer = self._layer
        lanes = i64(layer.lanes)
        with build.serial(i64(rows)) as i, build.serial(i64(layer.vectors)) as vector, build.vectorized(lanes) as lane:
            at = vector * layer.lanes + lane
            write(i, at, panel * layer.panel + at)

    def _finish(self, step: Any, direction: Any, row: Any, rows: int, panel: Any, write: Callable[..., None]) -> None:
        """Write a tile of the next state, and store it as the output of the step."""
        layer = self._layer
        self._each(rows, panel, write)
        first = panel * layer.panel
        with build.serial(i64(rows)) as i, build.serial(tirx.min(i64(layer.panel), layer.hidden - first)) as k:
            element = self._states[(step + 1) % 2, direction, row + i, first + k]
            build.buffer_store(
                self._buffers["all"], element, [self._time(step, direction), direction, row + i, first + k]
            )
