"""Build a model empty with transformers, where that is installed.

Nothing is downloaded and no code of a model's repository is run. Parameters are on torch's meta device, which has no
memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from aot.core.constraints import one_line
from aot.core.errors import ShapeFileError

if TYPE_CHECKING:
    from aot.models.configuration import Configuration

_AUTO = ("ForImageTextToText", "ForCausalLM", "ForSeq2SeqLM", "ForSpeechSeq2Seq", "")
"""Which class a model has whose configuration names none, by the end of transformers' name for the choice."""


def is_installed() -> bool:
    """Say whether transformers can be imported."""
    return importlib.util.find_spec("transformers") is not None


def _transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    return importlib.import_module("transformers")


def build(config: Configuration) -> tuple[Any, Any]:
    """Build a model without memory for its parameters; return it and its configuration.

    Raises:
        ShapeFileError: transformers does not know the family, or cannot build such a model.
    """
    transformers, torch = _transformers(), importlib.import_module("torch")
    kind = config.model_type
    if kind not in transformers.CONFIG_MAPPING:
        raise ShapeFileError(
            f"{config.where}: transformers {transformers.__version__} does not know the family {kind!a:.100}; a newer "
            "one may; code that comes with a model is not run"
        )
    config.check_repeats()
    architecture = config.architecture
    try:
        found = transformers.CONFIG_MAPPING[kind].from_dict(dict(config.values))
        made = getattr(transformers, architecture, None) if architecture else None
        if not (isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)):
            made = None
        mappings = [getattr(transformers, f"AutoModel{name}") for name in _AUTO]
        auto = next((x for x in mappings if type(found) in x._model_mapping), mappings[-1])  # noqa: SLF001
        with torch.device("meta"):
            return (made(found) if made is not None else auto.from_config(found, trust_remote_code=False)), found
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}", 600)
        raise ShapeFileError(
            f"{config.where}: transformers {transformers.__version__} cannot build the model: {text}; mend the "
            "configuration, or install the version of transformers that its key transformers_version names"
        ) from error
