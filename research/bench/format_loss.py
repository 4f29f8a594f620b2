"""What a format costs a model: the loss of a language model whose Linears are in it, beside the model of bfloat16.

    python -m research.bench.format_loss -o format_loss.json

needs a GPU, transformers, and a wheel that has the operations of the formats. Trains a Llama on bytes of text first: by
default the Python sources of the packages beside torch, a tenth of whose files is kept out. The loss is that of those,
in nats a byte; the divergence is the mean over bytes of Kullback and Leibler's of the model's probabilities from those
of the model of bfloat16, and "same" how often the most probable byte is that one's.

The formats of `quantize(model, ...)` run by the wheel's kernels. Where x is rounded to NVFP4 and the MX formats too,
which a Hopper has no instructions for, torch multiplies the rounded values of both in float32, which the file says. The
head and the embedding stay in bfloat16. Weights are rounded to nearest: nothing is calibrated.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

from research.bench.host import clocks
from research.bench.options import write

WEIGHTS = (
    "fp8", "fp8_block", "int8", "fp8_weight_only", "int8_weight_only", "int4g128", "int4g64", "int4g32", "int4g128z",
    "nvfp4", "mxfp4",
)  # fmt: skip
"""Formats of `quantize(model, ...)`; the first three round x too, by rows or by blocks of 128."""
BOTH = ("mxfp8", "nvfp4", "mxfp4")
"""Formats that x is rounded to as well."""
MIXED = (("mxfp8", "mxfp4"), ("mxfp8", "nvfp4"))
"""Formats of x and of the weight that differ."""
LENGTH = 512
"""Bytes of a sequence."""


class Text:
    """Bytes of files on the device: those to train on, and those kept out, by the hash of their names."""

    def __init__(self, folder: Path, most: int) -> None:
        """Read the .py files below a folder, `most` bytes at most."""
        parts: tuple[list[bytes], list[bytes]] = [], []
        size = 0
        for path in sorted(folder.rglob("*.py"), key=lambda x: sha256(str(x.relative_to(folder)).encode()).digest()):
            found = path.read_bytes()
            digest = sha256(str(path.relative_to(folder)).encode()).digest()
            parts[digest[0] % 10 == 0].append(found + b"\0")
            size += len(found)
            if size > most:
                break
        self.train, self.heldout = (
            torch.frombuffer(bytearray(b"".join(x)), dtype=torch.uint8).to("cuda") for x in parts
        )

    @staticmethod
    def take(text: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draw sequences (count, LENGTH + 1)."""
        starts = torch.randint(len(text) - LENGTH - 1, (count, 1), generator=generator, device="cuda")
        return text[starts + torch.arange(LENGTH + 1, device="cuda")].long()


def trained(text: Text, options: argparse.Namespace) -> tuple[nn.Module, dict[str, Any]]:
    """Train a Llama in bfloat16 with weights kept in float32, and return it in bfloat16, with what was done."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 128,
        vocab_size=256,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).cuda()
    step = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator("cuda").manual_seed(0)
    start, done, steps, loss = time.monotonic(), 0.0, 0, math.nan
    while done < 1:
        done = (time.monotonic() - start) / options.seconds
        rate = 1e-3 * min(1.0, (steps + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens = text.take(text.train, options.batch, generator)
        with torch.autocast("cuda", torch.bfloat16):
            logits = step(tokens[:, :-1]).logits
        found = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 50 == 0:
            loss = found.item()
            print(f"{steps} steps, {done:.0%}: {loss:.4f}", flush=True)
    parameters = sum(x.numel() for x in model.parameters())
    told = {"parameters": parameters, "steps": steps, "bytes_seen": steps * options.batch * LENGTH, "train_loss": loss}
    return model.bfloat16().eval().requires_grad_(False), told


@dataclass(frozen=True)
class Scored:
    """What the model of bfloat16 gives: sequences, and its log-probabilities of each byte."""

    batches: list[torch.Tensor]
    logs: list[torch.Tensor]

    def row(self, model: nn.Module) -> dict[str, float]:
        """Return loss, divergence and agreement of a model."""
        sums = torch.zeros(3, dtype=torch.float64, device="cuda")
        count = 0
        for tokens, own in zip(self.batches, self.logs, strict=True):
            logs = functional.log_softmax(model(tokens[:, :-1]).logits.float(), -1)
            sums[0] -= logs.gather(-1, tokens[:, 1:, None]).sum(dtype=torch.float64)
            sums[1] += (own.exp() * (own - logs)).sum(dtype=torch.float64)
            sums[2] += (own.argmax(-1) == logs.argmax(-1)).sum()
            count += tokens[:, 1:].numel()
        return dict(zip(("loss", "divergence", "same"), (sums / count).tolist(), strict=True))


def logs_of(model: nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a model's log-probabilities of sequences."""
    return [functional.log_softmax(model(x[:, :-1]).logits.float(), -1) for x in batches]


class Rounded(nn.Module):
    """A Linear whose input and weight are rounded to formats of blocks, and multiplied by torch."""

    def __init__(self, gemm: Any, linear: nn.Linear, of_x: str, of_weight: str) -> None:
        super().__init__()
        self.gemm, self.of_x = gemm, of_x
        self.weight = self.rounded(linear.weight, of_weight)

    def rounded(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return what a tensor's elements and factors stand for."""
        result: torch.Tensor = self.gemm.dequantize(*self.gemm.quantize(x.flatten(0, -2), name), torch.float32)
        return result.view(x.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in float32, and round once, as the kernels do."""
        return functional.linear(self.rounded(x, self.of_x), self.weight).to(x.dtype)


def linears(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """List the Linears of a model but its head, with the modules that hold them."""
    found = [(parent, name, x) for parent in model.modules() for name, x in parent.named_children()]
    return [(parent, name, x) for parent, name, x in found if type(x) is nn.Linear and name != "lm_head"]


def rows(gemm: Any, model: nn.Module, scored: Scored) -> list[dict[str, Any]]:
    """Score a model in each format."""
    found: list[dict[str, Any]] = [{"x": "bf16", "weight": "bf16", "by": "torch", **scored.row(model)}]
    for name in WEIGHTS:
        narrow = copy.deepcopy(model)
        try:
            gemm.quantize(narrow, name, where=lambda path, _: path != "lm_head")
        except Exception as error:  # noqa: BLE001 - a wheel without the format
            print(f"{name}: {error}", flush=True)
            continue
        left = len(linears(narrow))
        if left:
            print(f"{name}: {left} Linears stay as they are", flush=True)
            continue
        of_x = {"fp8": "e4m3 by row", "fp8_block": "e4m3 by 128", "int8": "int8 by row"}.get(name, "bf16")
        found.append({"x": of_x, "weight": name, "by": "the wheel", **scored.row(narrow)})
        print(found[-1], flush=True)
    for of_x, of_weight in (*((x, x) for x in BOTH), *MIXED):
        narrow = copy.deepcopy(model)
        for parent, name, linear in linears(narrow):
            setattr(parent, name, Rounded(gemm, linear, of_x, of_weight))
        found.append({"x": of_x, "weight": of_weight, "by": "torch, of rounded values", **scored.row(narrow)})
        print(found[-1], flush=True)
    return found


def main() -> int:
    """Train, score and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument(
        "--text", type=Path, default=Path(torch.__file__).parents[1], help="folder of .py files (that torch is in)"
    )
    parser.add_argument("--seconds", type=float, default=150, help="of training (150)")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model, a multiple of 512 (1024)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (8)")
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step (64)")
    parser.add_argument("--megabytes", type=int, default=200, help="of text, at most (200)")
    options = parser.parse_args()
    gemm = import_module(f"{options.package}.torch")
    text = Text(options.text, options.megabytes * 10**6)
    print(f"{len(text.train)} bytes to train on, {len(text.heldout)} kept out", flush=True)
    model, told = trained(text, options)
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        batches = [text.take(text.heldout, 16, generator) for _ in range(16)]
        found = rows(gemm, model, Scored(batches, logs_of(model, batches)))
    sizes = {"train_bytes": len(text.train), "heldout_bytes": len(text.heldout)}
    shape = {"hidden": options.hidden, "layers": options.layers, "length": LENGTH, "seconds": options.seconds}
    write(options.out, {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **shape, **sizes, **told,
                        "scored_bytes": 16 * 16 * LENGTH, "rows": found, "clocks_after": clocks()})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
