"""The figures of docs/results.md and of the README are those of the committed results."""

import math
from pathlib import Path

import pytest

from research.bench.atlas_summary import figures, joined, ranges
from research.bench.compact import read_result

ROOT = Path(__file__).parents[3]
PAGE, README = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/results.md", "README.md"))
SHOWN = ("1", "4", "16", "32", "64", "128")
"""Rows of x that the table of layers shows."""
PROMPT = {"decode": "decoding, batch", "prefill": "prompt of"}


def result(name):
    return read_result(ROOT / "research" / "bench" / "results" / f"{name}.json")


def atlas(name):
    """Return the figures back to back and behind another kernel, by range of m."""
    rows = ranges(joined([result(name)])["rows"])
    columns = ("speedup", "speedup_behind")
    return {m: (len(found), *(figures([row[x] for row in found]) for x in columns)) for m, found in rows.items()}


def test_the_table_of_sizes():
    for m, (count, alone, behind) in atlas("h200_20261130_atlas").items():
        cells = (alone["geomean"], alone["worst"], behind["geomean"], behind["worst"])
        assert f"| {m} | {count} | {' | '.join(f'{x:.3f}' for x in cells)} |\n" in PAGE
        if m == "all":
            text = " ".join(README.split())
            assert f"is {cells[0]:.3f}x as fast as `torch.mm` in the geometric mean, and {cells[2]:.3f}x with" in text
            assert f"{alone['below_0.98']:.1%} and {behind['below_0.98']:.1%} of them are below 0.98x" in text
            assert f"and the worst are {cells[1]:.3f}x and {cells[3]:.3f}x." in text
            shares = f"{alone['below_0.93']:.1%} and {behind['below_0.93']:.1%} are below 0.93"
            assert shares in " ".join(PAGE.split())


@pytest.mark.parametrize(("name", "device"), [("h200_20261130_atlas", "H200"), ("h100_20261128_atlas", "H100")])
def test_the_table_of_devices(name, device):
    _, alone, _ = atlas(name)["all"]
    (line,) = [x for x in PAGE.splitlines() if x.startswith(f"| {device}")]
    assert f"| {alone['geomean']:.3f}, {alone['below_0.98']:.1%}, {alone['worst']:.3f} |" in line


def test_the_table_of_layers():
    runs = [
        {(x["layer"], x["m"]): x["torch_us"] / x["wheel_us"] for x in result(f"h200_20261126_layers_run{i}")["rows"]}
        for i in (1, 2)
    ]
    speeds = {key: math.sqrt(runs[0][key] * runs[1][key]) for key in runs[0]}
    layers = dict.fromkeys(layer for layer, _ in speeds)
    lines = [f"| {' | '.join(f'{speeds[layer, int(m)]:.2f}' for m in SHOWN)} |" for layer in layers]
    start = PAGE.index(f"| layer | {' | '.join(SHOWN)} |")
    table = PAGE[start:].split("\n\n")[0].splitlines()[2:]
    assert [x[x.index(" | ") + 1 :] for x in table] == lines


def test_the_tables_of_whole_layers():
    for row in result("h200_20261126_model")["rows"]:
        kind, _, number = row["row"].partition("-")
        name = f"{PROMPT[kind]} {number}{' tokens' if kind == 'prefill' else ''}"
        times = [row[f"{x}_us"] for x in ("stock", "wheel", "compiled", "compiled_wheel")]
        (line,) = [x for x in PAGE.splitlines() if x.startswith(f"| {name} |") and x.endswith("% |")]
        for us in times:
            assert f"{us:.0f} us" in line


def best(row):
    """Return the better time of torch's own two."""
    return min(row["stock_us"], row["compiled_us"])


def test_the_tables_of_what_is_fused_on_the_graph():
    for row in result("h200_20261130_graph")["rows"]:
        kind, _, number = row["row"].partition("-")
        eager, compiled, hooks, backend = (row[f"{x}_us"] for x in ("stock", "compiled", "inductor", "backend"))
        name = f"{PROMPT[kind]} {number}{' tokens' if kind == 'prefill' else ''}"
        times = f"{hooks:.0f} us, {compiled / hooks:.2f}x | {backend:.0f} us, {compiled / backend:.2f}x"
        assert f"| {name} | {eager:.0f} us | {compiled:.0f} us | {times} | {eager / backend:.2f}x |\n" in PAGE
        assert f"{name} | {compiled:.0f} us | {hooks:.0f} us | {compiled / hooks:.2f}x" in README


def test_the_tables_of_whole_models():
    rows = result("h200_20261128_models")["rows"]
    for model in dict.fromkeys(x["model"] for x in rows):
        pairs = ((best(x) / x["inductor_us"], x["stock_us"] / x["backend_us"]) for x in rows if x["model"] == model)
        assert f" | {' | '.join(f'{y:.2f}' for x in pairs for y in x)} |\n" in PAGE
    over = [x["compiled_us"] / x["backend_us"] for x in rows]
    assert f"the backend was {min(over):.2f} to {max(over):.2f} in these models on the 28th" in " ".join(PAGE.split())
    later = [x for x in result("h200_20261130_models")["rows"] if x["row"] != "prefill-1500"]
    for model in dict.fromkeys(x["model"] for x in later):
        pairs = ((best(x) / x["inductor_us"], x["stock_us"] / x["backend_us"]) for x in later if x["model"] == model)
        assert f", later | {' | '.join(f'{y:.2f}' for x in pairs for y in x)} |\n" in PAGE
    check_models_of_the_readme([x for x in rows if x["model"] not in {y["model"] for y in later}], later)


def check_models_of_the_readme(rows, later):
    def told(kind, some):
        found = [best(x) / x["inductor_us"] for x in some if x["row"].startswith(kind)]
        least, most = f"{min(found):.2f}", f"{max(found):.2f}"
        return f"{most}x" if least == most else f"{least} to {most}x"

    text = " ".join(README.split())
    vision, experts = ([x for x in rows if ("vision" in x["model"]) == is_it] for is_it in (True, False))
    assert f"models are {told('decode', later)} as fast in decoding and {told('prefill', later)} with prompts" in text
    assert f"a mixture of experts {told('decode', experts)} and {told('prefill', experts)}, " in text
    assert f"a vision tower {told('', vision)}." in text


def test_what_two_steps_brought_to_the_graph():
    for step in ("caches", "order"):
        for variant in ("inductor", "backend"):
            before, after = (
                ", ".join(f"{x['compiled_us'] / x[f'{variant}_us']:.2f}" for x in result(name)["rows"] if x["m"] <= 32)
                for name in (f"h200_20261130_graph_{step}_before", f"h200_20261130_graph_{step}")
            )
            assert f"| {before} to {after} |" in PAGE


def test_every_file_that_the_page_names_is_there():
    names = {x for x in PAGE.split("`") if x.endswith(".json")}
    assert len(names) > 15
    assert [x for x in names if not (ROOT / "research" / "bench" / "results" / x).exists()] == []
