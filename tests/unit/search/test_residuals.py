import numpy as np
import pytest

from aot.core.candidate import Candidate, gemm_candidate
from aot.core.element import ElementType
from aot.core.knobs import PlainKnobs
from aot.core.operation import Operation
from aot.kinds.gemm.kind import GEMM
from aot.search.residuals import Coordinates, Observed, Points, Prior, expected_errors, nearest, posterior
from tests.unit.twins import BF16, problem_of

PRIOR = Prior()
CANDIDATES = [gemm_candidate("f", 64 * 2**i, 64 * 2**j) for i in range(3) for j in range(3)]
PROBLEM = problem_of(256, 4096, 4096)


@pytest.fixture
def coordinates():
    return Coordinates(PRIOR, GEMM)


def observed(coordinates, problem, errors):
    points = coordinates.points(CANDIDATES[: len(errors)])
    return Observed(coordinates.place(problem), points, np.array(errors))


def test_without_measurements_the_model_is_believed(coordinates):
    found = posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points(CANDIDATES), [])
    assert found.mean.tolist() == [0.0] * 9
    variance = PRIOR.local**2 + PRIOR.common**2 + PRIOR.own**2 + PRIOR.level**2
    assert found.deviation == pytest.approx(np.full(9, variance**0.5))


def test_one_measurement_tells_most_of_its_neighbours(coordinates):
    found = posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points(CANDIDATES), [])
    before = found.deviation
    found.observe(0, 0.2)
    assert found.mean[0] == pytest.approx(0.2, rel=0.01)
    assert 0 < found.mean[8] < found.mean[1] < found.mean[0]
    assert np.all(found.deviation < before)
    assert found.deviation[0] < PRIOR.noise


def test_order_of_observations_does_not_matter(coordinates):
    means = []
    for order in ((0, 4, 8), (8, 0, 4)):
        found = posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points(CANDIDATES), [])
        for i in order:
            found.observe(i, 0.1 * i)
        means.append(found.mean)
    assert means[0] == pytest.approx(means[1])


def test_knobs_of_a_familys_own_have_neighbours_too(coordinates):
    others = [Candidate("own", PlainKnobs((("columns", x), ("order", "rows")))) for x in (1, 3, 63)]
    points = coordinates.points([*CANDIDATES, *others])
    found = posterior(PRIOR, coordinates.place(PROBLEM), points, [])
    found.observe(9, 0.2)
    assert 0 < max(found.mean[:9]) < found.mean[11] < found.mean[10] < found.mean[9]


def test_near_problems_say_more_than_far_ones(coordinates):
    def mean(m):
        memory = [observed(coordinates, problem_of(m, 4096, 4096), [-0.3, 0.3])]
        return posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points(CANDIDATES), memory).mean

    near, far = mean(200), mean(8192)
    assert near[0] < far[0] < 0 < far[1] < near[1]


def test_a_posterior_is_what_observing_all_at_once_gives(coordinates):
    # Two candidates measured on this very problem: by `observe`, and by the textbook's formula.
    found = posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points(CANDIDATES), [])
    covariance = found._covariance.copy()
    seen, values = [2, 5], np.array([0.1, -0.2])
    gain = covariance[:, seen] @ np.linalg.inv(covariance[np.ix_(seen, seen)] + PRIOR.noise**2 * np.eye(2))
    for i, value in zip(seen, values, strict=True):
        found.observe(i, value)
    assert found.mean == pytest.approx(gain @ values)
    assert found.deviation**2 == pytest.approx((covariance - gain @ covariance[seen]).diagonal())


def test_kinds_and_operations_are_apart(coordinates):
    one, other = coordinates.points([gemm_candidate("f", 64, 64), gemm_candidate("g", 64, 64)]).kinds
    assert (one != other).sum() == 1
    place = coordinates.place(PROBLEM)
    fp16 = coordinates.place(problem_of(256, 4096, 4096, Operation.of(ElementType.FLOAT16)))
    assert place[:3].tolist() == fp16[:3].tolist()
    assert place[3] != fp16[3]
    assert place[3] == coordinates.place(problem_of(1, 1, 1, BF16))[3]


def test_the_nearest_problems_are_taken_up_to_a_number_of_points(coordinates):
    memory = [observed(coordinates, problem_of(m, 4096, 4096), [0.0] * 4) for m in (8192, 300, 1, 256)]
    place = coordinates.place(PROBLEM)
    assert nearest(place, memory, 8) == [memory[3], memory[1]]
    assert nearest(place, memory, 2) == [memory[3]]
    assert nearest(place, [], 8) == []


def test_no_candidates_have_no_errors(coordinates):
    memory = [observed(coordinates, PROBLEM, [0.1, 0.2])]
    found = posterior(PRIOR, coordinates.place(PROBLEM), coordinates.points([]), memory)
    assert found.mean.tolist() == found.deviation.tolist() == []


def test_means_on_several_problems_are_those_of_each():
    prior, rng = Prior(), np.random.default_rng(5)
    places = [np.array([x, 1.0, 0.0]) for x in (0.0, 0.7, 2.0)]
    points = Points(rng.normal(size=(4, 2)), np.array([[0], [0], [1], [1]]))
    memory = [Observed(place, points.take([0, 1, 3]), rng.normal(size=3)) for place in places[:2]]
    found = expected_errors(prior, places, points, [*memory, Observed(places[2], points.take([]), np.empty(0))])
    assert found == pytest.approx(np.array([posterior(prior, x, points, memory).mean for x in places]))
    assert expected_errors(prior, places, points, []).tolist() == [[0.0] * 4] * 3
