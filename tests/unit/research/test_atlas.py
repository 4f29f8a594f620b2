"""research/bench/atlas.py without a GPU: its tables, and its run with the wheel, the graphs and the clock replaced."""

import itertools
import json
import sys
import types

import pytest
import torch

from research.bench.atlas_summary import joined, ranges, speedups, summary

TIMES = ("wheel_us", "torch_us", "wheel_behind_us", "torch_behind_us")
RUN = {
    "device": "NVIDIA H200",
    "torch": "2.11.0",
    "wheel": "0.1.0+h200",
    "date": "2026-11-22",
    "shapes": "atlas_heldout",
    "dtype": "bfloat16",
    "layout": "kk",
    "num_problems": 4,
    "failures": [],
}


def row(m, *times, error=0.002):
    found = {"m": m, "n": 64, "k": 32, "kernel": f"kernel_{m}", "error": error, **dict(zip(TIMES, times, strict=True))}
    return found | speedups(found)


ROWS = [row(1, 10.0, 12.0, 12.0, 10.2), row(16, 10.0, 10.0, 10.0, 9.5), row(20000, 10.0, 9.0, 10.0, 9.5)]


def test_the_mixed_speed_is_of_one_launch_of_each():
    found = speedups(dict(zip(TIMES, (10.0, 12.0, 30.0, 27.0), strict=True)))
    assert found == {"speedup": 1.2, "speedup_behind": 0.9, "speedup_mixed": 0.975}


def test_ranges_of_m_hold_each_row_once():
    found = ranges([row(m, 1, 1, 1, 1) for m in (1, 2, 16, 17, 16384, 16385)])
    assert {name: [x["m"] for x in rows] for name, rows in found.items()} == {
        "1": [1],
        "2 to 16": [2, 16],
        "17 to 64": [17],
        "4097 to 16384": [16384],
        "above 16384": [16385],
        "all": [1, 2, 16, 17, 16384, 16385],
    }


def test_the_tables_have_shares_below_and_the_worst_first():
    text = summary(RUN | {"rows": ROWS, "failures": [{"m": 3, "n": 4, "k": 5, "reason": "CudaError: no"}]})
    lines = text.splitlines()
    assert lines[:2] == [
        "NVIDIA H200, torch 2.11.0, wheel 0.1.0+h200, 2026-11-22, one run",
        "bfloat16, 3 of the 4 problems of atlas_heldout",
    ]
    assert "| 1 | 1 | 1.200, 0.0%, 0.0%, 1.200 | 0.850, 100.0%, 100.0%, 0.850 | 1.009, 0.0%, 0.0%, 1.009 |" in lines
    assert (
        "| all | 3 | 1.026, 33.3%, 33.3%, 0.900 | 0.915, 100.0%, 33.3%, 0.850 | 0.969, 66.7%, 33.3%, 0.925 |" in lines
    )
    worst = [line.split(" | ")[0] for line in lines if "kernel_" in line]
    assert worst == ["| 20000, 64, 32", "| 16, 64, 32", "| 1, 64, 32"]
    assert lines[-1] == "failed: m3 n4 k5: CudaError: no"


def test_several_runs_join_to_medians_of_what_all_have():
    runs = [RUN | {"rows": [row(1, us, 12.0, us, 12.0, error=us / 1e4), *ROWS[1:]]} for us in (10.0, 8.0, 12.0)]
    runs[2]["rows"].pop()
    found = joined(runs)
    assert [x["m"] for x in found["rows"]] == [1, 16]
    assert [found["rows"][0][name] for name in ("wheel_us", "speedup", "error")] == [10.0, 1.2, 0.0012]
    assert "medians of 3 runs" in summary(found)
    with pytest.raises(ValueError, match="give runs of one kind"):
        joined([runs[0], runs[1] | {"dtype": "float16", "layout": "kk"}])
    with pytest.raises(ValueError, match="no row in common"):
        joined([RUN | {"rows": ROWS[:1]}, RUN | {"rows": ROWS[1:]}])


class RefusedError(Exception):
    pass


@pytest.fixture
def atlas(monkeypatch):
    """Import the bench with a wheel of torch's products, of which those of n 24 are wrong and of n 40 refused."""

    def linear(x, weight, out):
        if len(weight) == 40:
            raise RefusedError("no")
        return torch.mm(x, weight.t(), out=out).add_(1.0 if len(weight) == 24 else 0.0)

    wheel = types.ModuleType("aot_gemm")
    wheel.AotGemmError, wheel.linear, wheel.__version__ = RefusedError, linear, "1"
    wheel.plan = lambda m, n, k, dtype, layout: types.SimpleNamespace(kernel=f"{dtype}_{layout}_{n}")
    monkeypatch.setitem(sys.modules, "aot_gemm", wheel)
    monkeypatch.delitem(sys.modules, "research.bench.atlas", raising=False)
    import research.bench.atlas as module

    pool = module.Pool

    def capture(call, sets):
        call(*sets[0])
        return call, 1

    # Two rounds, of which the second takes 1 us longer for all.
    times = {"wheel": 10.0, "torch": 12.0, "wheel_behind": 15.0, "torch_behind": 16.0, "elementwise": 2.0}
    monkeypatch.setattr(module, "Pool", lambda sizes, dtype, layout: pool(sizes, dtype, "cpu", layout))
    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "interleave", lambda graphs: {name: [times[name], times[name] + 1] for name in graphs})
    monkeypatch.setattr(module, "elementwise", lambda: (torch.ones(4), (None, 1)))
    monkeypatch.setattr(module, "clocks", lambda: "none")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield module
    sys.modules.pop("research.bench.atlas", None)


def test_a_run_times_both_columns_and_takes_the_kernel_in_front_off(atlas):
    result = {"dtype": "bfloat16", "layout": "kk", "rows": [], "failures": []}
    atlas.run(result, [(16, 8, 4)], ["plain", "behind"], 100, print)
    (found,) = result["rows"]
    assert {name: found[name] for name in TIMES} == dict(zip(TIMES, (10.5, 12.5, 13.0, 14.0), strict=True))
    assert (found["m"], found["n"], found["k"], found["kernel"], found["error"]) == (4, 16, 8, "bfloat16_kk_16", 0.0)
    assert found["speedup_mixed"] == round(26.5 / 23.5, 4)
    assert result["failures"] == []


@pytest.mark.parametrize("layout", ["kk", "kn", "mk", "mn"])
def test_operands_lie_apart_and_aligned_and_inputs_stay_as_they_were_drawn(atlas, layout):
    sizes = [(16, 8, 4), (64, 40, 33)]
    pool = atlas.Pool(sizes, torch.bfloat16, layout=layout)
    drawn = pool.inputs.clone()
    assert len(pool.sets(4, 16, 8)) == 2  # with no L2 to exceed
    assert 0.9 < float(drawn.float().std()) < 1.1
    for n, k, m in sizes:
        found = pool.sets(m, n, k)
        assert [tuple(x.shape) for x in found[0]] == [(m, k), (n, k), (m, n)]
        majors = ["k" if x.is_contiguous() else "m" for x in found[0][:2]]
        assert majors == ["k" if x == "k" else "m" for x in layout]
        spans = sorted((x.data_ptr(), x.nbytes) for operands in found for x in operands)
        bases = (pool.inputs, pool.inputs, pool.outputs)
        starts = [x.data_ptr() - base.data_ptr() for operands in found for x, base in zip(operands, bases, strict=True)]
        assert all(start % 512 == 0 for start in starts)
        assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(spans))
        for _, _, out in found:
            out.fill_(7)
    assert torch.equal(pool.inputs, drawn)


def test_a_column_that_is_left_out_has_the_others_times(atlas):
    result = {"dtype": "float16", "layout": "kk", "rows": [], "failures": []}
    atlas.run(result, [(16, 8, 4)], ["behind"], 100, print)
    assert [result["rows"][0][name] for name in TIMES] == [13.0, 14.0, 13.0, 14.0]


def test_wrong_and_refused_products_are_failures_and_the_run_goes_on(atlas):
    result = {"dtype": "bfloat16", "layout": "kk", "rows": [], "failures": []}
    atlas.run(result, [(40, 8, 4), (24, 8, 4), (16, 8, 4)], ["plain"], 100, print)
    assert [x["n"] for x in result["rows"]] == [24, 16]
    refused, wrong = result["failures"]
    assert (refused["n"], refused["reason"]) == (40, "RefusedError: no")
    assert wrong["n"] == 24
    assert wrong["reason"].startswith("bfloat16_kk_24: relative error 0.")


def test_a_run_ends_when_its_time_is_over(atlas):
    result, lines = {"dtype": "bfloat16", "layout": "kk", "rows": [], "failures": []}, []
    atlas.run(result, [(16, 8, 4)] * 3, ["plain"], -1, lines.append)
    assert result["rows"] == []
    assert lines == ["operands: 0.0 GiB", "-1 s are over: 3 problems are left out"]


def test_the_command_writes_json_and_joins_it(atlas, monkeypatch, tmp_path, capsys):
    shapes, out = tmp_path / "x.toml", tmp_path / "new" / "x.json"
    head = 'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [4]\n'
    shapes.write_text(head + '[[model]]\nname = "x"\nweights = [{ name = "y", n = 16, k = 8 }]\n')
    monkeypatch.setattr(sys, "argv", ["atlas", "--shapes", str(shapes), "--out", str(out)])
    assert atlas.main() == 0
    assert json.loads(out.read_text())["figures"]["speedup"]["geomean"] == pytest.approx(12.5 / 10.5, abs=1e-4)
    first = capsys.readouterr().out
    assert "| all | 1 | 1.190, 0.0%, 0.0%, 1.190 |" in first
    monkeypatch.setattr(sys, "argv", ["atlas", "--table", str(out), str(out)])
    assert atlas.main() == 0
    assert capsys.readouterr().out == first.replace("one run", "medians of 2 runs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    other = tmp_path / "other.json"
    other.write_text("{}")
    for words, message in (
        (["--shapes", "nothing"], "give a path or one of: atlas, atlas_heldout"),
        (["--limit", "0"], "argument --limit: invalid positive value: '0'"),
        (["--table", str(shapes)], "error: Expecting value"),
        (["--table", str(other)], "a file of --table has no 'device'; give what --out wrote"),
        (["--shapes", str(shapes)], "torch finds no GPU here; run this where there is one, or give --table"),
    ):
        monkeypatch.setattr(sys, "argv", ["atlas", *words])
        with pytest.raises(SystemExit):
            atlas.main()
        assert message in capsys.readouterr().err
