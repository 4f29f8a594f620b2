"""config.json: what is read, and what is refused."""

import math

import pytest

from aot.core.element import ElementType
from aot.core.errors import ShapeFileError
from aot.models.configuration import Configuration, read_configuration


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0); mend the file"),
        (b"\xff", "not UTF-8 text: byte 0 is 0xff; mend the file"),
        (b"[1]", "expected an object with the key model_type, got [1]; mend the file"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice in one object; mend the file"),
        (b"[" * 100_000, "not JSON that can be read: nested too deeply; mend the file"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON that can be read: a whole number of thousands of digits; mend"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ShapeFileError) as caught:
        read_configuration(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.slow
def test_a_file_of_a_gigabyte_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ShapeFileError, match="more than 268435456 bytes, which no file of ours has; mend the file"):
        read_configuration(path)


def test_links_in_a_circle_and_models_that_are_only_named_are_refused(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ShapeFileError, match=rf"{loop}: .*give the path of a config.json or of its folder; no model's"):
        read_configuration(loop)
    with pytest.raises(ShapeFileError, match=r"No such file or directory; give the path of a config.json or of its"):
        read_configuration(tmp_path / "org" / "model-8b")


def test_what_published_files_hold_beyond_json_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"time_step_limit": [0.0, Infinity], "least": -Infinity}')
    assert read_configuration(path).values == {"time_step_limit": [0.0, math.inf], "least": -math.inf}
    path.write_text('{"hidden_size": NaN, "num_layers": NaN}')
    config = read_configuration(path)
    with pytest.raises(ShapeFileError, match="hidden_size: expected a whole number from 1 to 2147483647, got nan"):
        config.number("hidden_size")
    with pytest.raises(ShapeFileError, match="num_layers: expected at most 10000, got nan; mend"):
        config.check_repeats()


def test_a_folder_holds_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert read_configuration(tmp_path) == Configuration({"model_type": "llama"}, str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("values", "element"),
    [
        ({"torch_dtype": "float16"}, ElementType.FLOAT16),
        ({"dtype": "torch.bfloat16"}, ElementType.BFLOAT16),
        ({"text_config": {"torch_dtype": "float16"}}, ElementType.FLOAT16),
        ({"torch_dtype": "float32"}, None),
        ({"torch_dtype": 5}, None),
        ({}, None),
    ],
)
def test_the_type_of_the_weights(values, element):
    assert Configuration(values, "c.json").element == element


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision": [{"depths": [2, 10_001]}]}, "vision[0].depths[1]: expected at most 10000, got 10001; mend"),
        ({"n_routed_experts": 1e300}, "n_routed_experts: expected at most 10000, got 1e+300; mend"),
        ({"n_layer": float("inf")}, "n_layer: expected at most 10000, got inf; mend"),
    ],
)
def test_no_model_stands_for_millions_of_layers(values, message):
    with pytest.raises(ShapeFileError) as caught:
        Configuration(values, "c.json").check_repeats()
    assert str(caught.value).startswith(f"c.json: {message}")
    deep = {"num_layers": 2}
    for _ in range(5000):
        deep = {"x": deep}
    Configuration(deep, "c.json").check_repeats()
    usual = {"vocab_size": 10**6, "num_layers": 80, "use_layers": True, "vision_feature_layer": [-2, -5]}
    Configuration(usual, "c.json").check_repeats()
