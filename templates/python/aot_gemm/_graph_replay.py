"""CUDA graphs of a compiled function: captured with its second call, replayed with each later one.

Weights are read where they lie, and so is what the function writes: a call is replayed where all of these lie as they
did, which are alive then, since the call itself brings them. Other inputs are copied into memory of the graph, and
results out of it, so that they are plain tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Sequence[Any]]

MOST_GRAPHS = 16
"""Graphs of one function at most; a call that needs another runs as it is."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Graph:
    """A captured call."""

    graph: Any
    inputs: tuple[Any, ...]
    """Of each argument the tensor that the graph reads, or None where it reads the argument itself."""
    results: tuple[Any, ...]

    def replay(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the call with other values."""
        for own, argument in zip(self.inputs, arguments, strict=True):
            if own is not None:
                own.copy_(argument)
        self.graph.replay()
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in self.results]


class Replayed:
    """A function of tensors by CUDA graphs.

    Args:
        function: what is captured.
        kept: the places of arguments that are read where they lie: weights, and what the function writes.
    """

    def __init__(self, function: Function, kept: frozenset[int]) -> None:
        self._function, self._kept = function, kept
        self._graphs: dict[Key, _Graph] = {}
        self._seen: set[Key] = set()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Replay the graph of such arguments; capture it where they come a second time; else run the function."""
        if torch.cuda.is_current_stream_capturing():
            return self._function(*arguments)
        key = self._key_of(arguments)
        graph = self._graphs.get(key)
        if graph is not None:
            return graph.replay(arguments)
        if key not in self._seen or len(self._graphs) >= MOST_GRAPHS:
            self._seen = {*self._seen, key} if len(self._seen) < MOST_GRAPHS else {key}
            return self._function(*arguments)
        self._graphs[key] = graph = self._capture(arguments)
        return graph.replay(arguments)

    def _is_kept(self, place: int, argument: Any) -> bool:
        """Say whether a graph reads an argument where it lies."""
        return place in self._kept or isinstance(argument, torch.nn.Parameter)

    def _key_of(self, arguments: Sequence[Any]) -> Key:
        key = []
        for place, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                key.append(argument)
                continue
            address = argument.data_ptr() if self._is_kept(place, argument) else None
            key.append((argument.shape, argument.stride(), argument.dtype, argument.device, address))
        return tuple(key)

    def _capture(self, arguments: Sequence[Any]) -> _Graph:
        are_copied = [isinstance(x, torch.Tensor) and not self._is_kept(place, x) for place, x in enumerate(arguments)]
        inputs = tuple(x.clone() if is_copied else None for x, is_copied in zip(arguments, are_copied, strict=True))
        taken = [x if own is None else own for own, x in zip(inputs, arguments, strict=True)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = tuple(self._function(*taken))
        return _Graph(graph, inputs, results)
