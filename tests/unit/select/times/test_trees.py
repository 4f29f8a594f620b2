"""Every bit of a prediction is scikit-learn's, whatever the rows have in common."""

import numpy as np
import pytest

from aot.select.times import trees
from aot.select.times.trees import Forest

NUM_FEATURES = 6


@pytest.fixture(scope="module")
def fitted():
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(0)
    rows = np.round(rng.uniform(-1, 1, (900, NUM_FEATURES)), 2)
    values = np.sin(5 * rows[:, 0]) * rows[:, 1] + (rows[:, 2] > rows[:, 3]) + 0.1 * rows[:, 4] ** 2
    regressor = HistGradientBoostingRegressor(max_iter=25, max_leaf_nodes=31, min_samples_leaf=3, early_stopping=False)
    return regressor.fit(rows, values)


@pytest.mark.parametrize("part", [50, 1000])
@pytest.mark.parametrize("most", [1, 11])
@pytest.mark.parametrize("common", [(), (0,), (1, 3, 5), tuple(range(NUM_FEATURES))])
def test_a_prediction_is_scikit_learns(fitted, monkeypatch, part, most, common):
    monkeypatch.setattr(trees, "PART", part)
    monkeypatch.setattr(trees, "MOST_LOOKED_AT", most)
    rng = np.random.default_rng(1)
    rows = np.round(rng.uniform(-1.2, 1.2, (237, NUM_FEATURES)), 2)  # some on the edges of bins, some outside
    rows[:, list(common)] = rows[0, list(common)]
    features = [rows[0, i] if i in common else rows[:, i] for i in range(NUM_FEATURES)]
    assert (Forest.of(fitted).predict(features, rows[:, 0] + rows[:, 1]) == fitted.predict(rows)).all()


@pytest.mark.parametrize("count", [1, 7, 25, 30])
def test_the_rest_of_the_trees_goes_on_from_the_first(fitted, count):
    rows = np.random.default_rng(2).uniform(-1, 1, (70, NUM_FEATURES))
    features, alike = list(rows.T), rows[:, 0]
    first, rest = Forest.of(fitted).split(count)
    assert (len(first.starts), len(rest.starts)) == (min(count, 25), max(25 - count, 0))
    begun = first.predict(features, alike)
    assert (begun == fitted.predict(rows)).all() == (count >= 25)
    assert (rest.predict(features, alike, begun) == fitted.predict(rows)).all()


def test_what_rows_have_in_common_is_decided(fitted):
    forest = Forest.of(fitted)
    bins = np.zeros((NUM_FEATURES, 2), dtype=np.uint8)
    one = forest.within(bins)
    assert len(one.nodes) == len(one.starts) == 25  # of each tree the one leaf that is reached
    bins[0] = 0, 255
    along = forest.within(bins)
    assert set(along.nodes["feature_idx"][~along.is_leaf].tolist()) == {0}
    assert 25 < len(along.nodes) < len(forest.nodes)
