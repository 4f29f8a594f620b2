"""Which rows a mixture's experts get: tokens in the order of their experts, and the weighted sum that leads back."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Routes(NamedTuple):
    """Which experts each token goes to, and where its rows lie. `rows` is tokens times choices."""

    weights: torch.Tensor
    """(tokens, choices): what a token's rows are multiplied by."""
    token_of: torch.Tensor
    """(rows), int32: the token of each row, rows in the order of the experts."""
    offsets: torch.Tensor
    """(experts), int32: where the rows of each expert end."""
    places: torch.Tensor
    """(tokens, choices): the row of each token's choice."""


def routes_of(chosen: torch.Tensor, weights: torch.Tensor, experts: int) -> Routes:
    """Put the rows of tokens into the order of their experts. Nothing waits for the device.

    Args:
        chosen: (tokens, choices), the experts of each token.
        weights: (tokens, choices), what these count for.
        experts: how many there are.
    """
    tokens, choices = chosen.shape
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(experts, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    token_of, offsets = (order // choices).to(torch.int32), counts.cumsum(0, dtype=torch.int32)
    return Routes(weights, token_of, offsets, places.view(tokens, choices))


def combine(rows: torch.Tensor, routes: Routes) -> torch.Tensor:
    """Sum each token's rows (rows, hidden), times their weights, in float32; gives (tokens, hidden).

    torch.compile makes one kernel of it, and few of `routes_of`; without, each step of it goes through memory.
    """
    return (rows[routes.places].float() * routes.weights[..., None]).sum(1).to(rows.dtype)
