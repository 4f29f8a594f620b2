"""What is no tensor, or one that cannot be read, is refused by a class of the package that says what is expected."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.runtime import torch_reference
from tests.runtime.torch_reference import random_tensor

M, N, K = 4, 8, 32
CODES = torch.zeros(N, K, dtype=torch.uint8)
FACTORS = torch.ones(N, 1, dtype=torch.bfloat16)
ELEMENTS = torch.zeros(M, K // 2, dtype=torch.uint8)

REFUSED = {
    "many of no list": (
        lambda m: m.linear_many(random_tensor(M, K), random_tensor(N, K)),
        "weights is a Tensor; expected",
    ),
    "many of nothing": (lambda m: m.linear_many(random_tensor(M, K), None), "weights is a NoneType; expected a list"),
    "many biases": (
        lambda m: m.linear_many(random_tensor(M, K), [random_tensor(N, K)], 3),
        "biases is a int; expected",
    ),
    "many of texts": (
        lambda m: m.linear_many(random_tensor(M, K), ["w"]),
        r"a weight is a builtins\.str; expected a torch",
    ),
    "many of a text": (lambda m: m.linear_many("x", [random_tensor(N, K)]), r"linear_many: x is a builtins\.str"),
    "a bias of many": (
        lambda m: m.linear_many(random_tensor(M, K), [random_tensor(N, K)], [1.0]),
        "a bias is a builtins",
    ),
    "nvfp4 of nothing": (lambda m: m.quantize(None, "nvfp4"), "quantize: x is None; expected a torch.Tensor"),
    "mxfp8 of a list": (
        lambda m: m.quantize([[1.0]], "mxfp8"),
        r"x is a builtins\.list; expected a torch\.Tensor; torch\.as",
    ),
    "elements without factors": (
        lambda m: m.dequantize(ELEMENTS),
        "scale, or the first of its pair, is None; expected",
    ),
    "a triple": (lambda m: m.dequantize(ELEMENTS, (1, 2, 3)), r"scale, or the first of its pair, is a builtins\.tuple"),
    "elements of a text": (lambda m: m.dequantize("x", FACTORS), r"dequantize: values is a builtins\.str"),
    "codes of a list": (lambda m: m.pack([[1]], FACTORS, format="int4g32"), r"pack: codes is a builtins\.list"),
    "codes of meta": (lambda m: m.pack(CODES.to("meta"), FACTORS, format="int4g32"), "codes is on the meta device"),
    "factors of meta": (lambda m: m.pack(CODES, FACTORS.to("meta"), format="int4g32"), "factors is on the meta device"),
    "sparse factors": (lambda m: m.pack(CODES, FACTORS.to_sparse(), format="int4g32"), r"layout torch\.sparse_coo"),
    "sparse elements": (
        lambda m: m.quantize(random_tensor(M, K).to_sparse(), "nvfp4"),
        r"x has the layout torch\.sparse",
    ),
    "factors of a list": (lambda m: m.pack(CODES, [1.0], format="int4g32"), r"factors is a builtins\.list"),
    "a tensor to load": (lambda m: m.load_packed(CODES), "got a Tensor; expected a dict of one weight's tensors"),
    "a model to fuse": (
        lambda m: m.fuse(torch.nn.Linear(K, N)),
        r"got a Linear; expected a torch\.export\.ExportedProgram",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_operand_is_refused(module, every_package, case):
    call, message = REFUSED[case]
    with pytest.raises(every_package.OperandError, match=message):
        call(module)


@pytest.mark.parametrize("codes", [CODES.to(torch.complex64), CODES.float(), CODES.to(torch.float8_e5m2), CODES[0]])
def test_codes_of_another_type_are_refused(module, every_package, codes):
    with pytest.raises(
        every_package.FormatError, match=r"codes are torch\..*; expected \(n, k\) of torch\.uint8 or torch\.int8"
    ):
        module.pack(codes, FACTORS, format="int4g32")


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_of_two_weights_is_compiled_and_taken_in_a_batch(module, calls, activation):
    x, weights = random_tensor(3, M, K), [random_tensor(N, K), random_tensor(N, K)]
    expected = torch_reference.gated_linear(x, weights, activation=activation)

    def gate(x):
        return module.gated_linear(x, weights, activation=activation)

    torch.testing.assert_close(gate(x), expected)
    for function in (torch.compile(gate, backend="aot_eager", fullgraph=True), torch.vmap(gate)):
        torch.testing.assert_close(function(x), expected, rtol=0.02, atol=0.02)


def test_what_a_gate_of_two_weights_has_no_operator_for_is_refused(module, every_package, calls):
    x, weights, bias = random_tensor(3, M, K), [random_tensor(N, K), random_tensor(N, K)], random_tensor(2 * N)
    with pytest.raises(every_package.UnsupportedError, match=r"got bias beside a list of weights .*torch\.cat"):
        torch.vmap(lambda x: module.gated_linear(x, weights, bias))(x)
    with pytest.raises(every_package.GradientError, match="gated_linear: an operand requires a gradient"):
        module.gated_linear(x.requires_grad_(), weights)
    with pytest.raises(every_package.GradientError, match="gated_linear: an operand requires a gradient"):
        torch.func.jvp(lambda x: module.gated_linear(x, weights), (x.detach(),), (x.detach(),))


OFFSETS = torch.tensor([1, M], dtype=torch.int32)
COUNTED = {
    "linear": (lambda m, x, w: m.linear(x, w), 2 * M * N * K),
    "a bias": (lambda m, x, w: m.linear(x, w, w.new_ones(N)), 2 * M * N * K),
    "a gate of two weights": (lambda m, x, w: m.gated_linear(x, [w, w]), 2 * M * 2 * N * K),
    "a gate of one": (lambda m, x, w: m.gated_linear(x, w, w.new_ones(N)), 2 * M * N * K),
    "groups": (lambda m, x, w: m.grouped_linear(x, torch.stack([w, w]), OFFSETS), 2 * M * N * K),
    "a list of groups": (lambda m, x, w: m.grouped_linear(x, [w, w], OFFSETS), 2 * M * N * K),
    "gathered groups": (
        lambda m, x, w: m.grouped_linear(x, [w, w], OFFSETS, index=torch.zeros(M, dtype=torch.int32)),
        2 * M * N * K,
    ),
    "groups of k": (lambda m, x, w: m.grouped_linear(x, w, torch.tensor([8, K], dtype=torch.int32)), 2 * M * N * K),
}


@pytest.mark.parametrize("case", COUNTED)
def test_operations_are_counted(module, calls, case):
    call, expected = COUNTED[case]
    with FlopCounterMode(display=False) as counter:
        call(module, random_tensor(M, K), random_tensor(N, K))
    assert counter.get_total_flops() == expected
