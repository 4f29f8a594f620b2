"""Which modules of experts `quantize` of a model takes, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from ._torch_activations import is_rounding
from ._torch_expert_kinds import WEIGHTS, Kind, are_experts, kind_of
from ._torch_quantized_experts import QuantizedExperts, experts_state, kernels_of, round_experts

if TYPE_CHECKING:
    from collections.abc import Callable


class Chosen(NamedTuple):
    """A module of experts that is quantized."""

    module: Any
    kind: Kind

    @property
    def weights(self) -> dict[str, Any]:
        """Return the parameters that are packed."""
        return {x: self.module._parameters[x] for x in WEIGHTS}  # noqa: SLF001


def choose_experts(
    model: Any, name: str, activation_format: str, where: Callable[[str, Any], bool] | None
) -> tuple[dict[str, Chosen], dict[str, str]]:
    """Return the modules of experts that may be quantized, by name, and why others may not.

    Args:
        model: the model.
        name: of the format.
        activation_format: as `quantize` has it.
        where: as `quantize` has it.
    """
    chosen, left = {}, {}
    for key, module in model.named_modules():
        if isinstance(module, QuantizedExperts) or not _are_any(module):
            continue
        found = "where= does not choose it" if where is not None and not where(key, module) else kind_of(module)
        if is_rounding(activation_format):
            found = (
                "inputs of experts are rounded by factors of a calibration, which a model in memory has not; expected "
                'activation_format "16-bit", or "auto" of Linears; or load_quantized of a checkpoint that has an '
                "input_scale of each expert, packed as nvfp4rows, and set activation_format of its modules"
            )
        if isinstance(found, Kind):
            held = module._parameters  # noqa: SLF001
            has_bias = held.get(f"{WEIGHTS[0]}_bias") is not None
            reason = kernels_of(name, found, held[WEIGHTS[0]].dtype, has_bias=has_bias).reason
            found = reason or found
        if isinstance(found, Kind):
            chosen[key] = Chosen(module, found)
        else:
            left[key] = found
    return chosen, left


def _are_any(module: Any) -> bool:
    """Say whether a module has experts' weights in tensors of three dimensions, whatever they are called."""
    held = module._parameters.values()  # noqa: SLF001
    return are_experts(module) or (hasattr(module, "num_experts") and any(x is not None and x.ndim == 3 for x in held))


def experts_states(chosen: dict[str, Chosen], name: str) -> dict[str, dict[str, Any]]:
    """Round the weights of modules of experts to a format; return what each module is to have.

    Raises:
        FormatError: a weight has a number that is not finite.
    """
    found = {}
    for key, (module, kind) in chosen.items():
        weights = {}
        for weight in WEIGHTS:
            held, shape = module._parameters[weight], kind.shape_of(weight)  # noqa: SLF001
            try:
                weights[weight] = round_experts(name, held, shape, transposed=kind.transposed)
            except errors.FormatError as error:
                raise errors.FormatError(not_finite(f"{key}.{weight}", error)) from error
        found[key] = experts_state(module, kind, weights)
    return found


def not_finite(name: str, error: Exception) -> str:
    """Say of a weight whose extents fit a format that a number of it does not."""
    return (
        f"quantize: the weight of {name or 'the model'} has a number that is not finite ({error}); expected finite "
        "ones; mend it, or leave that module by where="
    )
