"""Build a model empty with transformers or diffusers, where these are installed.

Nothing is downloaded and no code of a model's repository is run. Parameters are on torch's meta device, which has no
memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aot.core.constraints import one_line
from aot.core.errors import ShapeFileError
from aot.models.configuration import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.models.configuration import Configuration

_AUTO = ("ForImageTextToText", "ForCausalLM", "ForSeq2SeqLM", "ForSpeechSeq2Seq", "")
"""Which class a model has whose configuration names none, by the end of transformers' name for the choice."""


def library_of(config: Configuration) -> str:
    """Return the library that builds a model."""
    return "diffusers" if config.diffusers_class else "transformers"


def is_installed(library: str = "transformers") -> bool:
    """Say whether a library that builds models can be imported."""
    return importlib.util.find_spec(library) is not None


def is_known(config: Configuration) -> bool:
    """Say whether what builds the model is installed and knows its family."""
    library = library_of(config)
    if not is_installed(library):
        return False
    return library == "diffusers" or config.model_type in _transformers().CONFIG_MAPPING


def _transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    return importlib.import_module("transformers")


def build(config: Configuration) -> tuple[Any, Any]:
    """Build a model without memory for its parameters; return it and its configuration.

    Raises:
        ShapeFileError: the library does not know the family or class, or cannot build such a model.
    """
    config.check_repeats()
    return _of_diffusers(config) if config.diffusers_class else _of_transformers(config)


def _is_class(found: Any, base: Any) -> bool:
    return isinstance(found, type) and issubclass(found, base)


def _of_diffusers(config: Configuration) -> tuple[Any, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "critical")
    diffusers = importlib.import_module("diffusers")
    made: Any = getattr(diffusers, config.diffusers_class, None)
    if not _is_class(made, diffusers.ModelMixin):
        raise ShapeFileError(
            f"{config.where}: diffusers {diffusers.__version__} has no model {config.diffusers_class!a:.100}; a newer "
            f"one may; {RECORD}"
        )
    with _explained(config, f"diffusers {diffusers.__version__}", "_diffusers_version"):
        model = made.from_config(dict(config.values))
    return model, model.config


@contextmanager
def _explained(config: Configuration, library: str, key: str) -> Iterator[None]:
    """Build on the meta device; whatever a library raises becomes a ShapeFileError in one line."""
    try:
        with importlib.import_module("torch").device("meta"):
            yield
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}", 600)
        mend = f"mend the configuration, or install the version that its key {key} names"
        next_step = "install what is missing beside aot" if isinstance(error, ImportError) else mend
        raise ShapeFileError(
            f"{config.where}: {library} cannot build the model: {text}; {next_step}; {RECORD}"
        ) from error


def _without_types(value: Any) -> Any:
    """Leave out the types of weights, which have no memory: libraries know fewer than files name, such as "auto"."""
    if isinstance(value, dict):
        return {key: _without_types(x) for key, x in value.items() if key not in ("dtype", "torch_dtype")}
    return value


def _of_transformers(config: Configuration) -> tuple[Any, Any]:
    transformers = _transformers()
    kind = config.model_type
    if kind not in transformers.CONFIG_MAPPING:
        raise ShapeFileError(
            f"{config.where}: transformers {transformers.__version__} does not know the family {kind!a:.100}; a newer "
            f"one may; code that comes with a model is not run; {RECORD}"
        )
    architecture = config.architecture
    with _explained(config, f"transformers {transformers.__version__}", "transformers_version"):
        found = transformers.CONFIG_MAPPING[kind].from_dict(_without_types(config.values))
        named: Any = getattr(transformers, architecture, None) if architecture else None
        made = named if _is_class(named, transformers.PreTrainedModel) else None
        mappings = [getattr(transformers, f"AutoModel{name}") for name in _AUTO]
        auto = next((x for x in mappings if type(found) in x._model_mapping), mappings[-1])  # noqa: SLF001
        model = made(found) if made is not None else auto.from_config(found, trust_remote_code=False)
    return model, found
