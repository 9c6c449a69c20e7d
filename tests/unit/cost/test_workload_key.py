"""The key of a timing: whatever a timing depends on changes it, and nothing else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.cost.workload_key import WorkloadKey, digest_of, runtime_settings
from collage.database.database import Database
from collage.frontend import contrib_ops
from collage.graph import DataflowGraph, structural_hash
from collage.measure import session as session_module
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import structure_of, weight_bytes
from collage.measure.kernel_factory import KernelMaker
from collage.measure.session import MeasureSession
from collage.numerics.value_store import ValueStore
from collage.system import machine
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Availability, Registry
from collage.transform import prepare


@dataclass(frozen=True)
class Layer:
    """A small kernel, described by everything that its time may depend on."""

    rows: int = 4
    columns: int = 6
    dtype: str = "float32"
    operator: str = "Add"
    axis: int = 0
    epsilon: float = 0.5
    shape: tuple[int, ...] = (2, 12)
    sparse: bool = False
    opset: int = 17

    def model(self, names: Callable[[str], str] = str, doc: str = "", swap: bool = False) -> ir.Model:
        dtype = ir.DataType.from_numpy(np.dtype(self.dtype))
        weight = np.ones((self.rows, self.columns), self.dtype)
        if self.sparse:
            weight[1:] = 0
        constants = {
            "w": weight,
            "epsilon": np.full((1,), self.epsilon, self.dtype),
            "shape": np.array(self.shape, np.int64),
        }

        def value(name: str, shape: list[int] | None = None) -> ir.Value:
            kind = ir.TensorType(dtype)
            return ir.Value(name=names(name), type=kind, shape=None if shape is None else ir.Shape(shape))

        x = value("x", [self.rows, self.columns])
        inits = {k: ir.Value(name=names(k), const_value=ir.tensor(v, name=names(k))) for k, v in constants.items()}
        for init in inits.values():
            init.type, init.shape = ir.TensorType(init.const_value.dtype), init.const_value.shape
        left = ir.Node("", self.operator, [x, inits["w"]], outputs=[value("a")], name=names("left"))
        right = ir.Node("", "Mul", [x, inits["epsilon"]], outputs=[value("b")], name=names("right"))
        join = ir.Node(
            "",
            "Concat",
            [left.outputs[0], right.outputs[0]],
            {"axis": ir.Attr("axis", ir.AttributeType.INT, self.axis)},
            outputs=[value("c")],
            name=names("join"),
            doc_string=doc or None,
        )
        y = value("y", list(self.shape))
        reshape = ir.Node("", "Reshape", [join.outputs[0], inits["shape"]], outputs=[y], name=names("reshape"))
        first = [right, left] if swap else [left, right]
        graph = ir.Graph(
            [x],
            [y],
            nodes=[*first, join, reshape],
            initializers=list(inits.values()),
            opset_imports={"": self.opset},
            name=names("g"),
            doc_string=doc or None,
        )
        return ir.Model(graph, ir_version=10)


@dataclass(frozen=True)
class Setting:
    """Everything else that a key depends on."""

    target: str = "llvm -compiler=fake"
    build: str = "fake 1.0"
    threads: int = 0
    cpu: str = "a CPU"
    cores: int = 2
    environment: str = ""
    context: int = 0


LAYERS = st.builds(
    Layer,
    rows=st.sampled_from([4, 8]),
    columns=st.sampled_from([6, 12]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    operator=st.sampled_from(["Add", "Sub", "Mul"]),
    axis=st.sampled_from([0, 1]),
    epsilon=st.sampled_from([0.5, 0.25]),
    shape=st.sampled_from([(2, -1), (-1, 2), (-1,)]),
    sparse=st.booleans(),
    opset=st.sampled_from([17, 18]),
)
SETTINGS = st.builds(
    Setting,
    target=st.sampled_from(["llvm -compiler=fake", "llvm -compiler=fake -level=2", "llvm -compiler=fake -level=3"]),
    build=st.sampled_from(["fake 1.0", "fake 1.1"]),
    threads=st.sampled_from([0, 1, 2]),
    cpu=st.sampled_from(["a CPU", "another CPU"]),
    cores=st.sampled_from([1, 2]),
    environment=st.sampled_from(["", "1", "2"]),
    context=st.sampled_from([0, 8 << 20]),
)


class Keys:
    """Makes keys as a tuner does, of machines and builds that the test makes up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = Database("sqlite:///:memory:")
        self._numbers = itertools.count()
        self._toolchains = Registry(())
        self._toolchains.add(FakeToolchain())

    def of(self, model: ir.Model, setting: Setting = Setting()) -> WorkloadKey:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        measure_session = MeasureSession(self._toolchains, self._database, folder, threads=setting.threads)
        measure_session._pool._available["fake"] = Availability(True, "1", setting.build)
        for value in model.graph.inputs:
            measure_session.values.put(str(value.name), np.zeros(value.shape.numpy(), value.dtype.numpy()))
        maker = KernelMaker(DataflowGraph(model))
        target = Target.parse(setting.target)
        kernel = maker.model((1 << len(maker.graph)) - 1, target)
        estimator = MeasuringCostEstimator(measure_session, weight_bytes(kernel) + setting.context)
        real = machine.this_machine()
        fake = replace(real, cpu=setting.cpu, cores=setting.cores)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "this_machine", lambda: fake)
            if setting.environment:
                patch.setenv("OMP_NUM_THREADS", setting.environment)
            return measure_session.key(estimator.job(kernel, target))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@given(LAYERS, LAYERS, SETTINGS, SETTINGS)
def test_keys_are_equal_if_and_only_if_everything_that_counts_is(
    keys: Keys, one: Layer, other: Layer, here: Setting, there: Setting
) -> None:
    left, right = keys.of(one.model(), here), keys.of(other.model(), there)
    assert (left.digest == right.digest) == ((one, here) == (other, there))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 8},
        {"columns": 12},
        {"dtype": "float64"},
        {"operator": "Sub"},
        {"axis": 1},
        {"epsilon": 0.25},
        {"shape": (-1,)},
        {"sparse": True},
        {"opset": 18},
        {"target": "llvm -compiler=fake -level=2"},
        {"build": "fake 1.1"},
        {"threads": 1},
        {"cpu": "another CPU"},
        {"cores": 1},
        {"environment": "1"},
        {"context": 8 << 20},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_of_them_alone_changes_the_key(keys: Keys, change: dict) -> None:
    own = {field.name for field in fields(Layer)}
    if change.keys() <= own:
        assert keys.of(Layer().model()) != keys.of(Layer(**change).model())
    else:
        assert keys.of(Layer().model()) != keys.of(Layer().model(), Setting(**change))


@given(LAYERS, st.text("abz_", min_size=1, max_size=3), st.text(max_size=10), st.booleans())
def test_names_order_and_doc_strings_do_not(keys: Keys, layer: Layer, prefix: str, doc: str, swap: bool) -> None:
    assert keys.of(layer.model()) == keys.of(layer.model(lambda name: f"{prefix}_{name}", doc, swap))


def shapes_in_key(folder: Path, text: str, *occasions: tuple[dict[str, tuple[int, ...]], float]) -> str:
    """The shapes in the key of a whole model that is met with values of these shapes, each with its weight."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 17]> g {text}')
    toolchains = Registry(())
    toolchains.add(FakeToolchain())
    stores = []
    for number, (shapes, weight) in enumerate(occasions):
        store = ValueStore(folder / f"values_{number}")
        for name, shape in shapes.items():
            store.put(name, np.zeros(shape, np.float32))
        stores.append((store, weight))
    with Database("sqlite:///:memory:") as database, MeasureSession(toolchains, database, folder) as measure_session:
        measure_session._pool._available["fake"] = Availability(True, "1", "fake 1.0")
        measure_session.occasions = stores
        maker, target = KernelMaker(DataflowGraph(model)), Target.parse("llvm -compiler=fake")
        job = MeasuringCostEstimator(measure_session, 0).job(maker.model((1 << len(maker.graph)) - 1, target), target)
        return measure_session.key(job).shapes


def test_lengths_of_results_count_where_inputs_do_not_tell_them(tmp_path: Path) -> None:
    fixed, expanded = (
        "(float[2] x) => (float[2] y) {y = Neg (x)}",
        "(float[1] x, int64[1] s) => (float[n] y) {y = Expand (x, s)}",
    )
    assert shapes_in_key(tmp_path, fixed, ({"x": (2,), "y": (2,)}, 1.0)) == "(2,)float32"
    few, many = (shapes_in_key(tmp_path, expanded, ({"x": (1,), "y": (n,)}, 1.0)) for n in (3, 300))
    assert (few, many) == ("(1,)float32 ? -> (3,)float32", "(1,)float32 ? -> (300,)float32")


def test_several_lengths_count_with_their_weights_and_equal_ones_are_one(tmp_path: Path) -> None:
    text = "(float[n,2] x) => (float[n,2] y) {y = Neg (x)}"

    def met(*lengths: tuple[int, float]) -> str:
        return shapes_in_key(tmp_path, text, *(({"x": (n, 2), "y": (n, 2)}, weight) for n, weight in lengths))

    assert met((4, 0.75), (8, 0.25)) == (
        "0.75 of (4, 2)float32 -> (4, 2)float32 | 0.25 of (8, 2)float32 -> (8, 2)float32"
    )
    assert met((4, 0.5), (8, 0.25), (4, 0.25)) == met((4, 0.75), (8, 0.25)) != met((4, 0.5), (8, 0.5))
    assert met((4, 0.5), (4, 0.5)) == met((4, 1.0)) == "(4, 2)float32 -> (4, 2)float32"


def chain(layers: int) -> ir.Model:
    """Equal layers, each with weights of its own; named apart."""
    random = np.random.default_rng(0)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 8]))
    value, nodes, weights = x, [], []
    for i in range(layers):
        tensor = ir.tensor(random.standard_normal((8, 8)).astype(np.float32), name=f"w{i}")
        weight = ir.Value(name=f"w{i}", const_value=tensor, type=ir.TensorType(ir.DataType.FLOAT), shape=tensor.shape)
        weights.append(weight)
        for op_type, inputs in (("MatMul", [value, weight]), ("Tanh", None)):
            node = ir.Node(
                "", op_type, inputs or [value], outputs=[ir.Value(name=f"{op_type}{i}")], name=f"n{op_type}{i}"
            )
            nodes.append(node)
            value = node.outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 8])
    graph = ir.Graph([x], [value], nodes=nodes, initializers=weights, opset_imports={"": 17}, name="g")
    return prepare(ir.Model(graph, ir_version=10))


def test_twelve_equal_layers_are_measured_once(tmp_path: Path) -> None:
    model = chain(12)
    target = Target.parse("llvm -compiler=fake")
    toolchains = Registry(())
    toolchains.add(FakeToolchain())
    maker = KernelMaker(DataflowGraph(model))
    with (
        Database(str(tmp_path / "t.sqlite")) as database,
        MeasureSession(toolchains, database, tmp_path) as measure_session,
    ):
        x = np.zeros((1, 8), np.float32)
        for value in [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]:
            measure_session.values.put(str(value.name), x)
        estimator = MeasuringCostEstimator(measure_session, 0)
        kernels = [maker.model(0b11 << 2 * layer, target) for layer in range(12)]
        outcomes = estimator.measure([(kernel, target) for kernel in kernels])
        assert (measure_session.counters.built, measure_session.counters.measured) == (1, 1)
        assert len({id(outcome) for outcome in outcomes}) == 1
        estimator.measure([(kernel, target) for kernel in kernels])
        assert (measure_session.counters.built, measure_session.counters.measured) == (1, 1)


def test_what_contributed_operators_are_written_out_as_is_part_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(domain: str, op_type: str) -> ir.Model:
        ports = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4])) for name in "xy"]
        node = ir.Node(domain, op_type, ports[:1], outputs=ports[1:], name="n")
        opsets = {"": 17, "com.microsoft": 1}
        return ir.Model(ir.Graph(ports[:1], ports[1:], nodes=[node], opset_imports=opsets, name="g"), ir_version=10)

    plain, gelu = single("", "Relu"), single("com.microsoft", "Gelu")
    assert structure_of(plain) == structural_hash(plain)
    before = structure_of(gelu)
    assert structure_of(single("com.microsoft", "Gelu")) == before != structural_hash(gelu)
    monkeypatch.setitem(contrib_ops._DEFINITIONS, "Gelu", lambda b: [b("Relu", b.input(0))])
    assert structure_of(gelu) != before
    assert structure_of(plain) == structural_hash(plain)


def test_only_settings_that_runtimes_obey_count() -> None:
    environment = {"HOME": "/", "OMP_NUM_THREADS": "2", "TVM_NUM_THREADS": "1", "PATH": "x", "KMP_BLOCKTIME": "0"}
    assert runtime_settings(environment) == "KMP_BLOCKTIME=0 OMP_NUM_THREADS=2 TVM_NUM_THREADS=1"
    assert runtime_settings({"PATH": "x"}) == ""


def test_a_key_without_settings_is_filed_as_it_was_before_they_were_kept() -> None:
    key = WorkloadKey("k", "s", "t", "b", "m", 0, 4, method="evict-2")
    assert "settings" not in key.parts()
    assert key.digest == digest_of({"kernel": "k", "shapes": "s", "target": "t", "build": "b", "machine": "m",
                                    "threads": 0, "context": 4, "method": "evict-2"})  # fmt: skip
