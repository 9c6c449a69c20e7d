"""Strategies by name, and the example of the page, installed."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import collage
from collage._errors import UsageError
from collage.cli import main
from collage.search import STRATEGY_GROUP, LazyStrategy, SearchProblem, StrategyRegistry, run_strategy, strategies

from .fake_costs import FakeCosts
from .search_oracle import least_cost, random_candidates, random_costs, random_graph

PAGE = Path(__file__).parents[3] / "docs" / "fusion.md"


class Renamed(LazyStrategy):
    name = "renamed"


def test_names_are_found_by_entry_point_and_imported_late() -> None:
    point = EntryPoint("lazy", "collage.search:LazyStrategy", STRATEGY_GROUP)
    broken = EntryPoint("absent", "no_such_module:Strategy", STRATEGY_GROUP)
    other = EntryPoint("other", f"{__name__}:Renamed", STRATEGY_GROUP)
    registry = StrategyRegistry([point, broken, other])
    assert registry.names() == ("absent", "lazy", "other")
    assert isinstance(registry.get("lazy"), LazyStrategy) and registry.get("lazy") is registry.get("lazy")
    with pytest.raises(UsageError, match=r"'absent' cannot be loaded from 'no_such_module:Strategy': ModuleNotFound"):
        registry.get("absent")
    with pytest.raises(UsageError, match=r"is called 'renamed', and its entry point 'other'"):
        registry.get("other")
    registry.add(Renamed())
    assert registry.get("renamed").name == "renamed"


@pytest.mark.parametrize(
    ("name", "said"),
    [("lasy", "did you mean 'lazy'? There are exhaustive, lazy, wide"), ("zzz", "; there are exhaustive, lazy, wide")],
)
def test_unknown_names_are_usage_errors_with_a_hint(name: str, said: str) -> None:
    points = [
        EntryPoint(name, "collage.search:LazyStrategy", STRATEGY_GROUP) for name in ("wide", "lazy", "exhaustive")
    ]
    with pytest.raises(UsageError, match=rf"^there is no search strategy called '{name}'; ") as raised:
        StrategyRegistry(points).get(name)
    assert str(raised.value).endswith(said)
    with pytest.raises(UsageError, match="none is installed"):
        StrategyRegistry([]).get(name)


def test_options_and_the_command_line_refuse_unknown_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collage.CompileOptions().strategy == "lazy"
    assert collage.CompileOptions(strategy="exhaustive").strategy == "exhaustive"
    with pytest.raises(UsageError, match="did you mean 'lazy'"):
        collage.CompileOptions(strategy="lasy")
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(SystemExit) as ended:
        main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.collage"), "--strategy", "lasy"])
    assert ended.value.code == 2
    assert "did you mean 'lazy'" in capsys.readouterr().err


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example of the page as an installed package; its name."""
    section = PAGE.read_text().split("## Write a search strategy")[1].split("\n### ")[0]
    code, manifest = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "toml"))
    assert len(code) == len(manifest) == 1
    ((group, points),) = tomllib.loads(manifest[0])["project"]["entry-points"].items()
    ((name, value),) = points.items()
    assert group == STRATEGY_GROUP
    (tmp_path / f"{value.split(':')[0]}.py").write_text(code[0])
    metadata = tmp_path / "collage_random-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: collage-random\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    strategies.cache_clear()
    yield name
    strategies.cache_clear()


def test_the_example_of_the_page_finds_valid_covers(installed: str) -> None:
    found = best = 0
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, most=6)
        candidates = random_candidates(rng, graph)
        costs = random_costs(rng, candidates)
        source = FakeCosts(costs, kernels=rng.choice([4, 10**6]), batch_size=3)
        problem = SearchProblem(graph.n, tuple(candidates), graph)
        result = run_strategy(strategies().get(installed), problem, source, source)
        if result.partitioning is None:
            continue
        least_s = least_cost(graph.n, candidates, costs)
        assert result.partitioning.cost.seconds >= least_s * (1 - 1e-9)
        found += 1
        best += result.partitioning.cost.seconds <= least_s * (1 + 1e-9)
    assert found > 20 and best > 10


def test_the_installed_example_is_an_option(installed: str) -> None:
    assert installed in strategies().names()
    assert collage.CompileOptions(strategy=installed).strategy == installed
