"""Read a Hugging Face configuration, config.json: its numbers, checked as they are asked for."""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.core.constraints import MAX_EXTENT
from aot.core.element import ElementType
from aot.core.errors import ShapeFileError
from aot.core.operation import ELEMENTS
from aot.core.strict_json import DecodeError, Place, parse_json, read_content, shown

FILE = "config.json"
MATRIX, MAX_LABEL = 2, 80
"""Dimensions of a weight's block, and most characters of what is shown of a file."""
MAX_DEPTH = 4
"""Most configurations within each other: a model of towers, of which one has an encoder and a decoder."""
MAX_REPEATS = 10_000
"""Most layers, experts or labels: ten times the largest of public models."""
_REPEATS = ("layers", "layer", "experts", "blocks", "depth", "depths", "num_labels", "n_group")
"""How keys end whose number says how often something stands in a model."""

MEND = "mend the file, or give the config.json that the model was published with"
RECORD = "`aot shapes record` takes the shapes of any program that runs"


@dataclass(frozen=True)
class Configuration:
    """An object of a config.json: a model, or one tower of it."""

    values: dict[str, Any]
    where: str
    """The file, for messages."""
    place: Place = ()
    """The keys that lead to the object."""

    def error(self, key: str, problem: str, next_step: str = MEND) -> ShapeFileError:
        """Return an error about a key."""
        return ShapeFileError(f"{self.where}: {DecodeError(problem, (*self.place, key))}; {next_step}")

    def beside(self, name: str) -> dict[str, Any] | None:
        """Read a file of JSON in the folder of a config.json; None where there is none, or no such folder.

        Raises:
            ShapeFileError: it cannot be read, or holds no object.
        """
        path = Path(self.where)
        if path.name != FILE or not path.with_name(name).is_file():
            return None
        return read_configuration(path.with_name(name)).values

    @property
    def model_type(self) -> str:
        """Return the family.

        Raises:
            ShapeFileError: the key is missing, or no text.
        """
        value = self.values.get("model_type")
        if not isinstance(value, str):
            expected = f'expected the name of a family, such as "llama", got {shown(value)}'
            raise self.error("model_type", expected, f"{MEND}; {RECORD}")
        return value

    @property
    def diffusers_class(self) -> str:
        """Return the class of a model of diffusers, which name no family; empty of any other."""
        value = self.values.get("_class_name")
        return value if isinstance(value, str) and value.isidentifier() and not self.has("model_type") else ""

    @property
    def name(self) -> str:
        """Return what the model is called: its family, or its class (ShapeFileError where it has neither)."""
        return self.diffusers_class or self.model_type

    def has(self, key: str) -> bool:
        """Say whether a key has a value other than null."""
        return self.values.get(key) is not None

    def number(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            ShapeFileError: it is missing and has no default, or is no number from `least` to 2147483647.
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, f"expected a whole number from {least} to {MAX_EXTENT}, but the key is missing")
        if type(value) is not int or not least <= value <= MAX_EXTENT:
            raise self.error(key, f"expected a whole number from {least} to {MAX_EXTENT}, got {shown(value)}")
        return value

    def repeats(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """Return how often something stands in the model (ShapeFileError as for `number`)."""
        value = self.number(key, default, least=least)
        if value > MAX_REPEATS:
            raise self.error(key, f"expected at most {MAX_REPEATS}, got {value}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false (ShapeFileError where it is neither)."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {shown(value)}")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a text (ShapeFileError where it is none)."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"expected a text, got {shown(value)}")
        return value or default

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers, empty where it is missing (ShapeFileError where it is something else)."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(x) is not int for x in value):
            raise self.error(key, f"expected a list of whole numbers, got {shown(value)}")
        return value

    def divided(self, key: str, by: int, meaning: str) -> int:
        """Return a number divided by another (ShapeFileError where that leaves a rest)."""
        value = self.number(key)
        if value % by:
            raise self.error(key, f"expected a multiple of {by}, {meaning}, got {value}")
        return value // by

    def within(self, key: str) -> Configuration:
        """Return the configuration of a tower.

        Raises:
            ShapeFileError: there is none, or there are too many within each other.
        """
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.error(key, f"expected the object of a tower's configuration, got {shown(value)}")
        if len(self.place) >= MAX_DEPTH:
            raise self.error(key, f"expected at most {MAX_DEPTH} configurations within each other, this is one more")
        return Configuration(value, self.where, (*self.place, key))

    @property
    def architecture(self) -> str:
        """Return the class of the model, such as `LlamaForCausalLM`; empty where it is not stated.

        Raises:
            ShapeFileError: `architectures` is no list of names.
        """
        value = self.values.get("architectures")
        if value is None or value == []:
            return ""
        if not isinstance(value, list) or not all(isinstance(x, str) and x.isidentifier() for x in value):
            raise self.error("architectures", f"expected a list of names of classes, got {shown(value)}")
        return str(value[0])

    @property
    def stated_dtype(self) -> str:
        """Return the type of the weights as it is written, empty where none is."""
        towers = (self.values, *(self.values.get(key) for key in ("text_config", "decoder")))
        found = (x.get(key) for x in towers if isinstance(x, dict) for key in ("dtype", "torch_dtype"))
        return next((x.removeprefix("torch.") for x in found if isinstance(x, str)), "")

    @property
    def element(self) -> ElementType | None:
        """Return the type of the weights where it is one that kernels of a Linear are tuned for."""
        return next((x for x in ELEMENTS if x.value == self.stated_dtype), None)

    def check_repeats(self) -> None:
        """Refuse more layers, experts and labels than any model has, wherever they stand (ShapeFileError)."""
        left: list[tuple[Place, Any]] = [((), self.values)]
        while left:
            place, value = left.pop()
            if isinstance(value, dict):
                left += [((*place, key), item) for key, item in value.items()]
            elif isinstance(value, list):
                left += [((*place, i), item) for i, item in enumerate(value)]
            elif isinstance(value, int | float) and not isinstance(value, bool):
                self._check_number(place, value)

    def _check_number(self, place: Place, value: float) -> None:
        named = next((x for x in reversed(place) if isinstance(x, str)), "")
        # A negative number counts from the end, as in LLaVA's vision_feature_layer, or stands for none.
        if named.endswith(_REPEATS) and not value <= MAX_REPEATS:
            problem = DecodeError(f"expected at most {MAX_REPEATS}, got {shown(value)}", place)
            raise ShapeFileError(f"{self.where}: {problem}; {MEND}")


def read_configuration(path: Path) -> Configuration:
    """Read a config.json, or that of a folder.

    Raises:
        ShapeFileError: it cannot be read, or holds no object of JSON. A model's name is no path: nothing is loaded.
    """
    try:
        file = path / FILE if path.is_dir() else path
        # Published files hold Infinity, such as Mamba's time_step_limit, and some a byte order mark.
        values = parse_json(read_content(file).removeprefix(BOM_UTF8), is_finite=False)
    except (OSError, ValueError) as error:
        hint = MEND if path.exists() else "give the path of a config.json or of its folder; no model's name is loaded"
        raise ShapeFileError(f"{path}: {error}; {hint}") from error
    if not isinstance(values, dict):
        raise ShapeFileError(f"{file}: expected an object with the key model_type, got {shown(values)}; {MEND}")
    return Configuration(values, str(file))
