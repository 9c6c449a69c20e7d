"""What is expected of kernels that were not measured. Sets of nodes are bits, seconds are made up."""

import random

import pytest

from collage.measure.learned_model import LearnedCostModel

OPS = ("Resize", "Conv", "Relu", "Conv", "Relu", "Conv", "Add")
BASES = (3.0, 2.0, 0.0, 2.0, 0.0, 2.0, 1.0)
WHOLE = (1 << len(OPS)) - 1


def nodes(*indices: int) -> int:
    return sum(1 << i for i in indices)


def profiled(op_types=OPS, bases=BASES) -> LearnedCostModel:
    expectation = LearnedCostModel(op_types, {"a": 0.0, "b": 0.0})
    expectation.learn_profile("a", dict(enumerate(bases)))
    expectation.learn_measurement("a", (1 << len(bases)) - 1, sum(bases))
    return expectation


def test_a_profile_is_believed_but_for_some_optimism():
    expectation = profiled()
    assert expectation.expected_s("a", nodes(1, 2, 3)) == pytest.approx(4.0, rel=0.06)
    assert expectation.expected_s("a", nodes(1, 2, 3)) < 4.0


def test_a_node_computed_with_another_takes_time_without_it():
    ops, bases = ("MatMul", "Softmax", "MatMul"), (0.0, 0.0, 6.0)
    expectation = LearnedCostModel(ops, {"a": 0.0}, [1.0, 0.5, 1.0])
    expectation.learn_profile("a", dict(enumerate(bases)), {0: 2, 1: 2})
    assert expectation.expected_s("a", nodes(0, 1, 2)) == pytest.approx(6.0, rel=0.06)
    assert expectation.expected_s("a", nodes(0, 1)) == pytest.approx(1.5, rel=0.06)
    assert expectation.expected_s("a", nodes(1, 2)) == pytest.approx(6.0, rel=0.06)


def test_a_stranger_is_expected_to_be_as_good_as_the_best():
    expectation = profiled()
    assert 0.5 * 4.0 < expectation.expected_s("b", nodes(1, 2, 3)) < 4.0


def test_what_was_measured_nearby_counts_more_than_what_was_elsewhere():
    expectation = profiled()
    expectation.learn_measurement("a", nodes(1, 2), 4.0)
    near, far = nodes(1, 2, 3), nodes(5, 6)
    assert expectation.expected_s("a", near) / 4.0 > 1.1 * expectation.expected_s("a", far) / 3.0


def test_near_is_what_shares_most_of_the_time():
    many_cheap = ("Conv", *["Relu"] * 20)
    expectation = profiled(many_cheap, (10.0, *[0.001] * 20))
    cheap = ((1 << 21) - 1) & ~1
    expectation.learn_measurement("a", cheap, 0.2)  # ten times as long as inside the whole
    assert expectation.expected_s("a", cheap >> 1) > 0.05
    all_but_one = (1 << 20) - 1
    assert expectation.expected_s("a", all_but_one) == pytest.approx(10.0, rel=0.1)


def test_small_kernels_that_surprise_say_little_of_the_whole_but_one_node():
    expectation = profiled()
    for small in (nodes(1, 2), nodes(3, 4), nodes(5, 6)):
        expectation.learn_measurement("a", small, 1.5 * 2.0)
    assert expectation.expected_s("a", WHOLE & ~1) < 1.15 * 7.0


def test_a_second_measurement_takes_the_place_of_the_first():
    once, twice = profiled(), profiled()
    once.learn_measurement("a", nodes(1, 2, 3), 5.0)
    twice.learn_measurement("a", nodes(1, 2, 3), 9.0)
    for asked in (nodes(1, 2), nodes(3), WHOLE):
        twice.expected_s("a", asked)
    twice.learn_measurement("a", nodes(1, 2, 3), 5.0)
    for asked in (nodes(1, 2), nodes(3), nodes(0, 1, 6), WHOLE):
        assert twice.expected_s("a", asked) == pytest.approx(once.expected_s("a", asked))


@pytest.mark.parametrize("seed", range(20))
def test_when_something_is_asked_makes_no_difference(seed):
    """Sums are kept between questions; whoever asks only in the end is told the same."""
    source = random.Random(seed)
    bases = [source.choice((0.0, source.random())) for _ in OPS]
    early, late = profiled(OPS, bases), profiled(OPS, bases)
    asked = source.randrange(1, WHOLE + 1)
    for _ in range(6):
        measured, seconds = source.randrange(1, WHOLE + 1), source.uniform(0.1, 5.0)
        for expectation in (early, late):
            expectation.learn_measurement("a", measured, seconds)
        early.expected_s("a", asked)
    assert early.expected_s("a", asked) == pytest.approx(late.expected_s("a", asked))


def test_a_target_that_is_called_as_another_one_begins_with_nothing_measured():
    expectation = profiled()
    expectation.introduce("tuned", like="a")
    assert expectation.expected_s("tuned", WHOLE) < sum(BASES)
