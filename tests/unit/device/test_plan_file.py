"""The plan of devices that a user writes."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from tests.unit.device.simulation import copies_of, parse, simulate

from collage._errors import ConfigError, UsageError
from collage.device import (
    DevicePlan,
    PlanDevices,
    SEScope,
    asked_scope,
    planned_scope,
    planned_value_scope,
    read_device_plan,
)
from collage.target import Target

MODEL = """bert (int64[1,4] ids, int64[1,4] mask) => (float[1,4,2] logits, float[1,4,2] hidden)
    <float[10,2] table = {0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9}> {
    e = Gather(table, ids)
    hidden = Relu(e)
    n = Neg(hidden)
    logits = Sigmoid(n)
}"""


def model_of() -> ir.Model:
    model = parse(MODEL)
    for node, name in zip(model.graph, ("embeddings_gather", "layer_0_relu", "layer_0_neg", "head"), strict=True):
        node.name = name
    return model


def nodes(model: ir.Model) -> dict[str, ir.Node]:
    return {node.name: node for node in model.graph}


def test_keep_the_embedding_on_cpu_1_the_rest_may_go_anywhere() -> None:
    requests = read_device_plan(b'[operators]\nGather = "cpu:1"\n')
    model = model_of()
    requests.annotate(model)
    plan = DevicePlan(model, requests.config())
    by_name = nodes(model)
    assert plan.required(by_name["embeddings_gather"]) == SEScope("cpu", 1)
    assert all(plan.required(node).is_free for name, node in by_name.items() if name != "embeddings_gather")
    assert plan.allows(by_name["head"], Target("cuda")) and not plan.allows(
        by_name["embeddings_gather"], Target("cuda")
    )
    planned = PlanDevices(requests.config())(model)
    simulate(planned)
    assert str(planned_scope(nodes(planned)["embeddings_gather"])) == "cpu:1[llvm]"
    assert str(planned_scope(nodes(planned)["head"])) == "cpu:0[llvm]"


def test_this_output_must_be_in_host_memory() -> None:
    requests = read_device_plan(b"""
        default = "gpu"
        [devices.gpu]
        device = "cuda:0"
        [devices.main]
        device = "cpu:0"
        [outputs]
        logits = "host"
    """)
    model = model_of()
    requests.annotate(model)
    planned = PlanDevices(requests.config())(model)
    simulate(planned)
    (copy,) = copies_of(planned)
    assert copy.outputs[0] is planned.graph.outputs[0] and planned.graph.outputs[0].name == "logits"
    assert planned_value_scope(planned.graph.outputs[0]).device_type == "cpu"
    assert planned_value_scope(planned.graph.outputs[1]).device_type == "cuda"


def test_every_section(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        """
        default = "big"
        host = "cpu:0"

        [devices.big]
        device = "cpu:0"
        cores = [0, 1]
        memory_scope = "global"

        [devices.small]
        device = "cpu:1"
        target = "llvm -threads=2"
        cores = [3, 2]

        [nodes]
        "layer_0_*" = "small"
        layer_0_neg = "big"

        [operators]
        Sigmoid = "cpu:1"

        [values]
        e = "big"

        [inputs]
        ids = "host"
        """
    )
    requests = read_device_plan(path)
    assert requests.cores == {SEScope("cpu", 0): (0, 1), SEScope("cpu", 1): (3, 2)}
    model = model_of()
    requests.annotate(model)
    found = {name: str(asked_scope(node)) for name, node in nodes(model).items()}
    assert found == {
        "embeddings_gather": "cpu:0/global",
        "layer_0_relu": "cpu:1[llvm -threads=2]",
        "layer_0_neg": "cpu:0/global",
        "head": "cpu:1",
    }
    planned = PlanDevices(requests.config())(model)
    simulate(planned, "cpu:0/global")
    assert str(planned_scope(nodes(planned)["head"])) == "cpu:1[llvm -threads=2]"


def test_nothing_demanded_is_a_plan_too() -> None:
    requests = read_device_plan(b"")
    model = model_of()
    requests.annotate(model)
    assert not any(asked_scope(node) for node in model.graph)
    assert requests.default is None and str(requests.config("cuda").default) == "cuda:0[cuda]"


@pytest.mark.parametrize(
    "text, message",
    [
        ("defualt = 'cpu:0'", "did you mean 'default'"),
        ("[outptus]\nx = 'cpu'", "did you mean 'outputs'"),
        ("[devices.a]\ndevice = 'cpu:0'\ncroes = [1]", r"\[devices.a\].*did you mean 'cores'"),
        ("[devices.a]\ncores = [1]", "needs a device"),
        ("[devices]\na = 'cpu:0'", r"\[devices.a\] is a table"),
        ("[devices.host]\ndevice = 'cpu:0'", "cannot be called 'host'"),
        (
            "[devices.a]\ndevice = 'cpu:0'\ncores = [1]\n[devices.b]\ndevice = 'cpu:1'\ncores = [1]",
            "core 1 is given twice",
        ),
        ("[devices.a]\ndevice = 'cpu:0'\ncores = [1, 1]", "core 1 is given twice"),
        ("[devices.a]\ndevice = 'cpu:0'\ncores = [-1]", "-1 is not a core number"),
        ("[devices.a]\ndevice = 'cpu:0'\ncores = [true]", "True is not a core number"),
        ("[devices.a]\ndevice = 'cpu:0'\ncores = '0-3'", "list of core numbers"),
        ("[devices.a]\ndevice = 'cpu:0'\ncores = []", "list of core numbers"),
        ("[devices.a]\ndevice = 'cpu:0'\ntarget = 'cuda'", "does not fit"),
        (
            "[devices.a]\ndevice = 'cpu:0'\n[devices.b]\ndevice = 'cpu:0'",
            r"\[devices.b\] is cpu:0, which \[devices.a\] is already",
        ),
        ("[devices.a]\ndevice = 'tpu:0'", r"\[devices.a\] there is no device type 'tpu'"),
        ("[nodes]\nx = 'smal'", r"needs \[devices.smal\]"),
        ("[devices.a]\ndevice = 'cpu:0'\n[nodes]\nx = 'b'", "declared here: a"),
        ("[devices.a]\ndevice = 1", 'a text such as "cpu:1"'),
        ("[devices.small]\ndevice = 'cpu:1'\n[nodes]\nx = 'smal'", "did you mean 'small'"),
        ("[devices.small]\ndevice = 'cpu:1'\n[nodes]\nx = 'cuda'", r"\[nodes\] 'x'.*configured"),
        ("[nodes]\nx = 3", 'a text such as "cpu:1"'),
        ("[nodes]\na.b = 'cpu'", "put names with dots in quotes"),
        ("nodes = 'cpu'", r"write \[nodes\]"),
        ("default = 'host'", "name a device"),
        ("[devices.a]\ndevice = 'cpu:0'\n[devices.b]\ndevice = 'cuda'\n", None),
        ("default = 'cuda'\n[devices.a]\ndevice = 'cpu:0'", "configured"),
        ("x = ", "no TOML"),
        ("\x00", "no TOML"),
        ("a = " + "[" * 5000, "no TOML"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(text: str, message: str | None) -> None:
    if message is None:
        read_device_plan(text.encode())
        return
    with pytest.raises(ConfigError, match=message):
        read_device_plan(text.encode())


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_device_plan(tmp_path / "plan.toml")
    with pytest.raises(UsageError):
        read_device_plan(tmp_path)
    with pytest.raises(ConfigError, match="no TOML"):
        read_device_plan(b"\xff\xfe")
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="larger"):
        read_device_plan(tmp_path / "large.toml")


@pytest.mark.parametrize(
    "text, message",
    [
        ("[nodes]\nembedding_gather = 'cpu:1'", "did you mean 'embeddings_gather'"),
        ("[nodes]\n'encoder_*' = 'cpu:1'", "no node called"),
        ("[operators]\ngather = 'cpu:1'", "did you mean 'Gather'"),
        ("[outputs]\nlogit = 'host'", "did you mean 'logits'"),
        ("[inputs]\nid = 'host'", "did you mean 'ids'"),
        ("[values]\nhiden = 'host'", "did you mean 'hidden'"),
        ("[nodes]\n'layer_*' = 'cpu:0'\n'*_relu' = 'cpu:1'", "disagree"),
        ("[nodes]\nhead = 'cpu:0'\n[values]\nlogits = 'cpu:1'", "what computes it"),
    ],
)
def test_names_that_fit_nothing_are_refused_with_near_ones(text: str, message: str) -> None:
    requests = read_device_plan(text.encode())
    with pytest.raises(ConfigError, match=message):
        requests.annotate(model_of())


def test_an_exact_name_beats_a_pattern_and_a_pattern_an_operator() -> None:
    text = b"[nodes]\n'layer_*' = 'cpu:1'\nlayer_0_neg = 'cpu:2'\n[operators]\nRelu = 'cpu:3'\nSigmoid = 'cpu:3'"
    model = model_of()
    read_device_plan(text).annotate(model)
    found = {name: str(asked_scope(node)) for name, node in nodes(model).items()}
    assert found == {
        "embeddings_gather": "None",
        "layer_0_relu": "cpu:1",
        "layer_0_neg": "cpu:2",
        "head": "cpu:3",
    }


def test_names_with_brackets_are_names() -> None:
    model = model_of()
    model.graph[0].name = "embed[0]"
    read_device_plan(b"[nodes]\n'embed[0]' = 'cpu:1'").annotate(model)
    assert str(asked_scope(model.graph[0])) == "cpu:1"


def test_what_does_not_fit_the_model_names_the_file_the_section_and_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    for text, message in (
        ("[nodes]\nzz = 'cpu:1'", r"plan.toml: \[nodes\] there is no node called 'zz'"),
        (
            "[operators]\nGather = 'cpu:0'\n[values]\ne = 'cpu:1'",
            r"plan.toml: \[values\] 'e'.*leave out one of the two",
        ),
    ):
        path.write_text(text)
        model = parse("g (int64[2] i, float[4,3] t) => (float[2,3] y) { e = Gather(t, i) y = Neg(e) }")
        with pytest.raises(ConfigError, match=message):
            read_device_plan(path).annotate(model)
