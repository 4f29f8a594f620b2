"""Boosted trees, asked for many problems at once: what these have in common is decided in each tree before. Pure.

All of a kernel's problems agree in what is the kernel's own, and those of one modelled time agree in much besides, so
that of five steps down a tree about one is left. It is taken over numbers of bins, a byte each, instead of over values.
Sums are of the same leaves in the same order, so that every bit is as scikit-learn's `predict` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Bins = NDArray[np.uint8]
    Places = NDArray[np.int64]

PART = 4096
"""Rows of nearly one modelled time that are looked at together: in 4 to 8 parts, 20,000 rows of a kernel of the H200's
selection had 1.2 to 1.4 steps left in each tree, of 4.6; in as many parts by m 1.4 to 1.7."""

NO_MISSING = 255
"""The bin of missing values, of which there are none."""

NO_CATEGORIES = np.zeros((0, 8), dtype=np.uint32)
"""Bit sets of splits by category, of which there are none."""

MOST_LOOKED_AT = 11
"""Nodes of a tree up to which all its splits are looked at for all rows at once; more are walked row by row. Source: on
an H200's record 11 was the fastest of 1, 11, 23 and 35, by a tenth."""


def _leaves(tree: Any, bins: Bins) -> Any:
    """Return the value of each row's leaf; one number where there is one leaf."""
    splits = zip(tree["is_leaf"], tree["value"], tree["feature_idx"], tree["bin_threshold"], strict=True)
    found: list[Any] = [None] * len(tree)
    sides = list(zip(tree["left"].tolist(), tree["right"].tolist(), strict=True))
    for i, (is_leaf, value, feature, most) in reversed(list(enumerate(splits))):
        found[i] = value if is_leaf else np.where(bins[feature] <= most, *(found[side] for side in sides[i]))
    return found[0]


@dataclass(frozen=True)
class Forest:
    """The trees of a regressor in one array, and the edges of the bins of its features."""

    nodes: Any
    """(node,): scikit-learn's records, tree after tree, each tree's root first."""
    starts: Places
    """Of each tree, its root's place."""
    left: Places
    """Places in `nodes`; of a leaf its own."""
    right: Places
    is_leaf: NDArray[np.bool_]
    thresholds: Sequence[Array]
    """Of each feature, the upper edges of its bins."""
    baseline: float

    @staticmethod
    def of(regressor: Any) -> Forest:
        """Take the trees of a fitted HistGradientBoostingRegressor that has no features of categories."""
        trees = [predictors[0].nodes for predictors in regressor._predictors]  # noqa: SLF001 - there is no other way
        sizes = np.array([len(tree) for tree in trees])
        starts = np.concatenate([[0], sizes.cumsum()[:-1]])
        nodes, offsets = np.concatenate(trees), np.repeat(starts, sizes)
        is_leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
        left, right = (np.where(is_leaf, own, nodes[side] + offsets) for side in ("left", "right"))
        edges, baseline = regressor._bin_mapper.bin_thresholds_, regressor._baseline_prediction  # noqa: SLF001
        return Forest(nodes, starts, left, right, is_leaf, edges, float(np.ravel(baseline)[0]))

    def split(self, num_trees: int) -> tuple[Forest, Forest]:
        """Return the first trees, and the rest, which may be none, and whose sums go on from those of the first."""
        place = int(self.starts[num_trees]) if num_trees < len(self.starts) else len(self.nodes)
        firsts = slice(None, place), slice(None, num_trees), 0
        return self._slice(*firsts), self._slice(slice(place, None), slice(num_trees, None), place)

    def _slice(self, nodes: slice, trees: slice, first: int) -> Forest:
        """Return some trees that follow each other, and whose first node is given."""
        starts, left, right = self.starts[trees] - first, self.left[nodes] - first, self.right[nodes] - first
        kept = replace(self, nodes=self.nodes[nodes], starts=starts, left=left, right=right)
        return replace(kept, is_leaf=self.is_leaf[nodes])

    def predict(self, features: Sequence[Array], alike: Array, sums: Array | None = None) -> Array:
        """Predict, in the order of the rows.

        Args:
            features: an array of each, (row,), or () where all rows have one value.
            alike: (row,); rows that are near each other by it are looked at together.
            sums: (row,) of the trees before these, which there are none of by default.
        """
        total: Array = np.full(len(alike), self.baseline) if sums is None else sums.copy()
        bins = np.empty((len(features), len(alike)), dtype=np.uint8)
        for of_feature, edges, values in zip(bins, self.thresholds, features, strict=True):
            of_feature[:] = edges.searchsorted(values)
        if len(alike) <= PART:
            return self.within(bins).walk(bins, total)
        common, order = self.within(bins), alike.argsort(kind="stable")
        found: Array = np.empty(len(alike))
        for rows in np.array_split(order, -(-len(alike) // PART)):
            part = np.ascontiguousarray(bins[:, rows])
            found[rows] = common.within(part).walk(part, total[rows])
        return found

    def walk(self, bins: Bins, total: Array) -> Array:
        """Add each row's leaves to its sum; `bins` are (feature, row) of numbers of bins."""
        from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

        for tree in np.split(self.nodes, self.starts[1:]) if self.starts.size else ():
            if len(tree) > MOST_LOOKED_AT:
                total += TreePredictor(tree, NO_CATEGORIES, NO_CATEGORIES).predict_binned(bins.T, NO_MISSING, 1)
            else:
                total += _leaves(tree, bins)
        return total

    def within(self, bins: Bins) -> Forest:
        """Keep the nodes that rows can reach, and leave out those splits on one side of which all of them are."""
        feature, most = self.nodes["feature_idx"], self.nodes["bin_threshold"]
        goes_left = ~self.is_leaf & (bins.max(axis=1)[feature] <= most)
        goes_right = ~self.is_leaf & (bins.min(axis=1)[feature] > most)
        target = np.where(goes_left, self.left, np.where(goes_right, self.right, np.arange(len(self.nodes))))
        while (target[target] != target).any():
            target = target[target]
        left, right, front = target[self.left], target[self.right], target[self.starts]
        reached = np.zeros(len(self.nodes), dtype=bool)
        while front.size:
            reached[front] = True
            front = front[~self.is_leaf[front]]
            front = np.concatenate([left[front], right[front]])
        return self._of_nodes(np.flatnonzero(reached), left, right)

    def _of_nodes(self, kept: Places, left: Places, right: Places) -> Forest:
        """Return the forest of some nodes; a parent comes before its children in it, as it did."""
        tree = self.starts.searchsorted(kept, side="right") - 1
        starts = tree.searchsorted(np.arange(len(self.starts)))
        place = np.empty(len(self.nodes), dtype=np.int64)
        place[kept] = np.arange(len(kept))
        nodes = self.nodes[kept]
        of_left, of_right = place[left[kept]], place[right[kept]]
        nodes["left"], nodes["right"] = of_left - starts[tree], of_right - starts[tree]
        return replace(self, nodes=nodes, starts=starts, left=of_left, right=of_right, is_leaf=self.is_leaf[kept])
