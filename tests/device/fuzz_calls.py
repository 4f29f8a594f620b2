"""One call of the fuzz: made, and judged; whether values are right is asked of the GPU once a batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import aot_gemm
import aot_gemm.torch
import torch

from tests.device.fuzz_cases import ARITY, ERROR, RIGHT, Case
from tests.device.fuzz_operations import Call
from tests.device.fuzz_tensors import POISON, Kit, build, build_out, expected_bound
from tests.device.scene import capture

GRAD = {"on": torch.enable_grad, "off": torch.no_grad, "inference": torch.inference_mode}
NEVER = (aot_gemm.CudaError, aot_gemm.NoGpuError, aot_gemm.ArchitectureError, aot_gemm.CorruptLibraryError)
"""Typed errors that no argument may give."""
COPIES = {"clone", "gradient", "computed", "inference"}
"""Kinds of operand with memory of their own, which is compared with the arena after the call."""
MAX_LINES = 40


@dataclass
class Tally:
    """What came of the calls of one process, or of all."""

    calls: int = 0
    right: int = 0
    typed: Counter = field(default_factory=Counter)
    """Errors that were due, by class."""
    refused: dict[str, str] = field(default_factory=dict)
    """A line for each kind of legal call that raised a typed error."""
    num_refused: int = 0
    wrong: list[str] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    out_of_memory: int = 0
    unbuilt: Counter = field(default_factory=Counter)
    """Calls that were not made, since this torch cannot make their operands."""

    def add(self, other: Tally) -> None:
        """Add what came of another process's calls."""
        self.calls += other.calls
        self.right += other.right
        self.typed += other.typed
        self.refused = other.refused | self.refused
        self.num_refused += other.num_refused
        self.wrong += other.wrong
        self.untyped += other.untyped
        self.out_of_memory += other.out_of_memory
        self.unbuilt += other.unbuilt


class UnbuiltError(Exception):
    """This torch cannot make an operand of that kind."""


class Judge:
    """Makes calls and judges them.

    Args:
        kit: tensors.
        reproducer: gives the command that makes call number `index` again.
    """

    def __init__(self, kit: Kit, reproducer) -> None:
        self.kit = kit
        self.tally = Tally()
        self._reproducer = reproducer
        self._pending: list[tuple[int, Case | str, str, torch.Tensor]] = []
        self._keep_alive: list[object] = []
        self.first = 0

    def line(self, index: int, case: Case | str, text: str) -> str:
        return f"{self._reproducer(index)}  # {text}; {case}"

    def run(self, index: int, case: Case) -> None:
        if not self._pending and not self._keep_alive:
            self.first = index
        self.tally.calls += 1
        with torch.cuda.stream(self.kit.streams[case.stream]):
            try:
                self._run(index, case)
            except UnbuiltError as error:
                self.tally.unbuilt[str(error)] += 1

    def run_operation(self, index: int, call: Call) -> None:
        """Make a legal call of an operation that the wheel may not have kernels for."""
        if not self._pending and not self._keep_alive:
            self.first = index
        self.tally.calls += 1
        self._keep_alive.append(call)
        package = aot_gemm.torch if call.is_of_torch else aot_gemm
        try:
            with torch.no_grad():
                result = getattr(package, call.function)(*call.arguments, **call.keywords)
                self._pending.append((index, call.text, "values are wrong", call.is_right(result)))
        except aot_gemm.UnsupportedError:
            self.tally.typed["UnsupportedError, of an operation"] += 1
        except torch.OutOfMemoryError:
            self.tally.out_of_memory += 1
        except aot_gemm.AotGemmError as error:
            self.tally.wrong.append(self.line(index, call.text, f"{type(error).__name__}: {error}"))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not typed
            self.tally.untyped.append(self.line(index, call.text, f"untyped {type(error).__name__}: {error}"))
        else:
            self.tally.right += 1

    def _run(self, index: int, case: Case) -> None:
        try:
            left, right = (build(self.kit, _inner(operand)) for operand in (case.left, case.right))
            out, bits = None, None
            if case.out is not None:
                left, out, bits = build_out(self.kit, case, left, right)
        except Exception as error:
            raise UnbuiltError(
                f"{case.left.kind}, {case.right.kind}, {case.out and case.out.kind}: {error!r}"[:150]
            ) from error
        self._keep_alive.append((left, right, out))
        try:
            result = self._call(case, left, right, out)
        except aot_gemm.AotGemmError as error:
            self._note_typed(index, case, error)
        except (MemoryError, torch.OutOfMemoryError):
            self.tally.out_of_memory += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is not typed
            if case.expected == ARITY and type(error) is TypeError:
                self.tally.typed["TypeError, of the number of arguments"] += 1
            else:
                self.tally.untyped.append(self.line(index, case, f"untyped {type(error).__name__}: {error}"))
        else:
            self._judge(index, case, result, out, (left, right))
            if bits is not None:
                bits.fill_(POISON)

    def _note_typed(self, index: int, case: Case, error: aot_gemm.AotGemmError) -> None:
        kind = type(error).__name__
        text = f"{kind}: {error}"
        if isinstance(error, NEVER):
            self.tally.wrong.append(self.line(index, case, text))
        elif case.expected == RIGHT:
            self.tally.num_refused += 1
            key = f"{kind}, {case.left.kind}, {case.right.kind}, out {case.out and case.out.kind}, grad {case.grad}"
            self.tally.refused.setdefault(f"{key}, {case.route}", self.line(index, case, text))
        else:
            self.tally.typed[kind] += 1

    def _call(self, case: Case, left: object, right: object, out: object) -> object:
        function = aot_gemm.linear if case.product == "linear" else aot_gemm.matmul
        keywords = {} if out is None else {"out": out}
        arguments = [left, right]
        if case.bias:
            bias = torch.zeros(case.shape[-1:], dtype=torch.bfloat16, device="cuda")
            arguments += [bias] if case.bias == "positional" else []
            keywords |= {"bias": bias} if case.bias == "keyword" else {}
        if case.arity:
            arguments, more = {
                "one": ([left], {}),
                "none": ([], {}),
                "four": ([left, right, None, out], {}),
                "positional_out": ([left, right, None, left], {}),
                "unknown_keyword": ([left, right], {"transpose": True}),
            }[case.arity]
            keywords = keywords | more
        with GRAD[case.grad]():
            for _ in range(case.right.kind.count("constant_")):
                arguments[1:2] = [aot_gemm.constant(arguments[1])] if len(arguments) > 1 else []
            if case.route == "vmap":
                return torch.vmap(lambda rows: function(rows, right))(left)
            if case.route == "func_grad":
                return torch.func.grad(lambda rows: function(rows, right).float().sum())(left)
            if case.route != "graph":
                return function(*arguments, **keywords)
            results = []
            graph = capture(lambda: results.append(function(*arguments, **keywords)))
            graph.replay()
            self._keep_alive.append(graph)
            return results[0]

    def _judge(self, index: int, case: Case, result: object, out: object, operands: tuple[object, object]) -> None:
        if case.expected in {ERROR, ARITY}:
            self.tally.wrong.append(self.line(index, case, "accepted; expected a typed error"))
            self.kit.restore()
            return
        fault = _fault(case, result, out, self.kit)
        if fault:
            self.tally.wrong.append(self.line(index, case, fault))
            return
        with torch.no_grad():
            got = torch.from_dlpack(result) if case.left.kind == "cupy" else result.detach()
            expected, bound = expected_bound(case, self.kit)
            is_right = ((got.float() - expected).abs() <= bound).all()  # false of a NaN
            self._pending.append((index, case, "values are wrong", is_right))
            for operand, tensor in zip((case.left, case.right), operands, strict=True):
                if _inner(operand).kind in COPIES:
                    is_kept = (tensor.detach() == self.kit.view(operand)).all()
                    self._pending.append((index, case, "an operand was written", is_kept))
        self.tally.right += 1

    def is_full(self, size: int) -> bool:
        """Say whether a batch is complete."""
        return len(self._keep_alive) >= size or self.kit.num_outs > self.kit.outs.numel() // 2

    def flush(self, last: int) -> None:
        """Wait for the batch's calls, and judge what they wrote."""
        torch.cuda.synchronize()
        flags = torch.stack([flag for *_, flag in self._pending]).tolist() if self._pending else []
        for (index, case, text, _), flag in zip(self._pending, flags, strict=True):
            if not flag:
                self.tally.right -= text.startswith("values")
                self.tally.wrong.append(self.line(index, case, text))
        count = last - self.first + 1
        for is_written, what in ((self.kit.poison(), "elements around `out`"), (self.kit.restore(), "an operand")):
            if is_written:
                again = self._reproducer(self.first).replace("--calls 1", f"--calls {count} --each")
                self.tally.wrong.append(f"{again}  # wrote {what}")
        self._pending.clear()
        self._keep_alive.clear()
        torch.cuda.synchronize()


def _inner(operand):
    """Return the operand that a handle is made of."""
    return operand.__class__(operand.kind.rsplit("constant_", maxsplit=1)[-1], operand.dtype, operand.view)


def _fault(case: Case, result: object, out: object, kit: Kit) -> str:
    """Say what is wrong with a result but its values; nothing where all is well.

    Where torch computes, as batches that a wheel has no kernels for, a subclass of an operand's is the result's, which
    is then another object than `out`, with its memory.
    """
    has_subclass = "subclass" in {_inner(case.left).kind, _inner(case.right).kind}
    if out is not None:
        is_out = result is out or (has_subclass and result.data_ptr() == out.data_ptr())
        return "" if is_out else f"returned a {type(result).__name__} that is not out"
    if case.left.kind == "cupy":
        return "" if isinstance(result, kit.cupy.ndarray) and result.shape == case.shape else f"returned {result!r:.80}"
    if type(result) is not torch.Tensor and not has_subclass:
        return f"returned a {type(result).__name__}"
    found = (tuple(result.shape), result.dtype, result.device, result.requires_grad)
    expected = (case.shape, getattr(torch, case.left.dtype), kit.outs.device, False)
    return "" if found == expected else f"returned {found}; expected {expected}"
