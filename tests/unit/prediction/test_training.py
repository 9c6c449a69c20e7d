"""Training on databases whose law of times is known: it is recovered, and no model helps to predict itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from collage._errors import UsageError
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.cost.workload_key import METHOD, WorkloadKey, digest_of
from collage.database import Database, FactKind
from collage.database._schema import timing
from collage.measure.operator_work import WORK, OperatorWork, WorkByOperator
from collage.measure.roofline import Peak, known_rates
from collage.prediction import (
    COMPILATION,
    PREDICTOR,
    Compilation,
    Predictor,
    Rates,
    correction,
    default_predictor,
    range_of,
    timings_of,
    train,
)
from collage.status import Status
from collage.system.codec import from_json, to_json
from collage.system.machine import this_machine

PEAK = Peak(1e11, 1e10)
SLOWNESS = {"llvm": (3.0, 1.0), "llvm -compiler=openvino": (1.5, 2.0)}
MODELS = 6


def work(random: np.random.Generator, size: float, model: str) -> WorkByOperator:
    flops, nbytes = float(random.uniform(0.5, 2) * size), float(random.uniform(0.5, 2) * size / 20)
    count = int(random.integers(1, 20))
    return WorkByOperator(
        {"Conv": OperatorWork(count, flops, nbytes, nbytes), "Relu": OperatorWork(count, 0, nbytes, nbytes)}, 0, model
    )


def seconds(each: WorkByOperator, target: str, noise: float = 1.0) -> float:
    conv, relu = each.operators["Conv"], each.operators["Relu"]
    cores = this_machine().cores
    by_flops, by_bytes = SLOWNESS[target]
    nbytes = sum(o.read_bytes + o.written_bytes for o in (conv, relu))
    return noise * (
        by_flops * conv.flops / PEAK.flops_per_s / cores + by_bytes * nbytes / PEAK.bytes_per_s / cores + 1e-6
    )


def fill(database: Database, *, slower: str = "", models: int = MODELS, kernels: int = 9) -> None:
    """Fill a database with kernels and compilations of models that follow the law. One model may be ten times slower."""
    random, machine = np.random.default_rng(0), this_machine().fingerprint
    database.keep_fact(FactKind("peak", Peak), PEAK, machine=machine)
    for number in range(models):
        model = f"m{number}"
        factor = 10.0 if model == slower else 1.0
        whole = work(random, 1e10, model)
        others = [work(random, 10 ** random.uniform(7, 10), model) for _ in range(8)]
        for i, each in enumerate([whole, *others][:kernels]):
            database.keep_fact(WORK, each, kernel=f"{model}{i}", shapes="")
            for target in SLOWNESS:
                time_s = factor * seconds(each, target, float(random.uniform(0.97, 1.03)))
                outcome = Outcome(Status.OK, None, Summary(time_s, time_s, time_s, 9, 0.0))
                database.record(WorkloadKey(f"{model}{i}", "", target, "1", machine, 0, 0, METHOD), outcome)
        singles = {target: factor * seconds(whole, target) for target in SLOWNESS}
        gain = factor * (1.0 + 0.02 * number)
        found = Compilation(model, whole, singles, (gain, gain, gain), False, 20, 0, 30.0 + number)
        database.keep_fact(COMPILATION, found, model=model, machine=machine)


@pytest.fixture(scope="module")
def learned() -> tuple[Predictor, Predictor]:
    """The predictors of two databases that differ in one model only."""
    found = []
    for slower in ("", "m3"):
        with Database("sqlite://") as database:
            fill(database, slower=slower)
            found.append(train(database, "a test"))
    return found[0], found[1]


def test_the_law_is_recovered_on_models_that_were_left_out(learned: tuple[Predictor, Predictor]) -> None:
    pairs = [pair for held in learned[0].held for pair in held.singles_s.values()]
    assert len(pairs) == MODELS * len(SLOWNESS)
    assert all(predicted == pytest.approx(true, rel=0.2) for predicted, true in pairs)


def test_no_model_helps_to_predict_itself(learned: tuple[Predictor, Predictor]) -> None:
    usual, other = (next(h for h in each.held if h.model == "m3") for each in learned)
    assert [p for p, _ in other.singles_s.values()] == [p for p, _ in usual.singles_s.values()]
    assert other.gain == pytest.approx(10 * usual.gain)
    # The others do learn from it.
    assert learned[0].held[0].singles_s != learned[1].held[0].singles_s


def test_a_model_that_gains_like_no_other_is_outside_its_range(learned: tuple[Predictor, Predictor]) -> None:
    assert learned[0].score()[1] == MODELS
    assert learned[1].score()[0] < MODELS


def test_training_twice_and_storing_change_nothing(learned: tuple[Predictor, Predictor]) -> None:
    with Database("sqlite://") as database:
        fill(database)
        again = train(database, "a test")
        database.keep_local_fact(PREDICTOR, again)
        assert to_json(database.local_fact(PREDICTOR)) == to_json(again) == to_json(learned[0])


def test_a_machine_that_is_slower_than_its_rates_is_corrected(learned: tuple[Predictor, Predictor]) -> None:
    with Database("sqlite://") as database:
        for number in range(MODELS):
            fill(database, slower=f"m{number}", models=number + 1)
        timings = [timing for timing in timings_of(database) if timing.work.model == f"m{MODELS - 1}"]
    factors = correction(learned[0], timings)
    assert set(factors) == {"tvm", "openvino"}
    assert all(4 < factor < 10 for factor in factors.values())


def test_too_few_models_are_refused() -> None:
    with Database("sqlite://") as database:
        fill(database, models=3)
        with pytest.raises(UsageError, match="3 models"):
            train(database, "a test")


@pytest.mark.parametrize(
    ("change", "is_left_out"),
    [
        ({"threads": "all"}, True),
        ({"threads": -4}, True),
        ({"target": "llvm -threads=0"}, False),
        ({"target": "llvm -threads=²"}, False),
        ({"target": "::"}, False),
    ],
    ids=str,
)
def test_rows_of_another_form_cost_nothing_else(change: dict[str, Any], is_left_out: bool) -> None:
    with Database("sqlite://") as database:
        fill(database)
        count = len(timings_of(database))
        row = next(iter(database.rows(timing)))
        parts = {**json.loads(row["parts"]), **change}
        database.write(timing, [{**row, "parts": json.dumps(parts), "digest": digest_of(parts)}])
        database.keep_fact(WORK, WorkByOperator({}), kernel=["k"])
        assert len(timings_of(database)) == count + (not is_left_out)
        assert train(database, "a test").timings >= count


@pytest.mark.parametrize("kernels", [0, 2])
def test_compilations_with_too_few_timings_are_refused(kernels: int) -> None:
    """Two kernels of each model are enough to learn from, and too few without those of the model that is predicted."""
    with Database("sqlite://") as database:
        fill(database, kernels=kernels)
        with pytest.raises(UsageError, match="too few timings"):
            train(database, "a test")


def test_strange_operators_machines_and_sizes_are_named(learned: tuple[Predictor, Predictor]) -> None:
    predictor, (rates,) = learned[0], learned[0].machines
    usual = work(np.random.default_rng(1), 1e9, "")
    targets = {"llvm": ("tvm", rates.threads), "nothing": ("unknown", rates.threads)}
    found = predictor.forecast(usual, targets, rates, {})
    assert found.unlike == ()
    assert list(found.singles_s) == ["llvm"]
    strange = WorkByOperator(
        {**usual.operators, "NonMaxSuppression": OperatorWork(1, 0, 8, 8), "Relu": OperatorWork(1, 0, 1e15, 8)}, 1
    )
    other = Rates(rates.flops_per_s * 9, rates.bytes_per_s, rates.threads)
    told = " ".join(predictor.forecast(strange, targets, other, {}).unlike)
    assert all(word in told for word in ("NonMaxSuppression", "lengths", "machine", "longer"))
    assert predictor.forecast(usual, {}, rates, {}).gain is None


def test_a_range_holds_four_of_five_errors() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        *pairs, (predicted, true) = [(1.0, float(each)) for each in np.exp(random.normal(size=20))]
        inside += true in range_of(predicted, pairs)
    assert 0.75 < inside / 400 < 0.95


def test_the_shipped_predictor_is_read_and_damaged_ones_are_not() -> None:
    shipped = default_predictor()
    assert shipped.timings > 0
    data = json.loads(json.dumps(to_json(shipped)))
    assert from_json(Predictor, data) == shipped
    data["trees"][-1]["feature"][0] = 10_000
    with pytest.raises(ValueError, match="feature"):
        from_json(Predictor, data)
    assert PREDICTOR.read(data) is None


def test_rates_are_known_only_where_they_were_measured() -> None:
    with Database("sqlite://") as database:
        assert known_rates(database, "another") is None
        database.keep_fact(FactKind("peak", Peak), PEAK, machine="another")
        assert known_rates(database, "another") is None
