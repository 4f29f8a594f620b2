from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.families import signature


def words(operation, **parts):
    candidate = gemm_candidate(**{"family": "sm90_quack", "tile_m": 64, "tile_n": 16, "schedule": "pingpong", **parts})
    return " ".join(signature(KernelKey(operation, candidate)))


def test_arguments_stand_in_one_order():
    split = {"split_k": 2, "split_k_mode": SplitK.SERIAL}
    assert words(Operation.BF16_KK) == "a b d tile_order stream"
    assert words(Operation.BF16_KK, **split) == "a b d workspace tile_order stream"
    assert words(Operation.FP16_KK_BIAS, **split) == "a b d bias workspace tile_order stream"
    assert words(Operation.BF16_KK, family="sm90_prefetch_b") == "a b d prefetch_b tile_order stream"
    bias = words(Operation.BF16_KK_BIAS, family="sm90_prefetch_b", **split)
    assert bias == "a b d bias workspace prefetch_b tile_order stream"
    assert words(Operation.BF16_KK_BIAS, family="simt", schedule="") == "a b d bias stream"


def test_groups_have_offsets_and_a_permutation_an_index():
    assert words(Operation.BF16_KK_BATCHED) == "a b d tile_order stream"
    assert words(Operation.BF16_KK_GROUPED, family="sm90_grouped") == "a b d offsets b_of_groups places stream"
    assert words(Operation.BF16_MN_KGROUPED, family="sm90_grouped") == "a b d offsets stream"
    gathered = words(Operation.E4M3_BF16_KK_GATHERED, family="sm90_grouped")
    assert gathered == "a b d scale_a scale_b bias offsets index b_of_groups places stream"
