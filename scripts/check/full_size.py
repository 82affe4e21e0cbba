#!/usr/bin/env python3
"""Compares full-size models with random weights with transformers, and measures their memory.

    python scripts/check/full_size.py [--only WORD] [--out benches/full-size.md]
    python scripts/check/full_size.py --float64 [--out benches/accuracy.md] [--isa SET ...]

For every config of MODELS: the maximum absolute difference over all elements of the last hidden states of a few texts, and the peak
memory of the process next to the size of its file and of the weights as `sconce inspect` counts them: packed for f32 on this processor,
without embedding tables. Needs a few gigabytes of disk and memory. Prints a table, and writes a page with --out. Exits with 1 if a
difference exceeds atol 1e-4, rtol 1e-4, or if memory exceeds the packed weights by more than 300 MB.

With --float64: a model of the shape of gte-large-en-v1.5, whose matmuls have the largest inner dimension of all configs. Compares
Sconce in f32, under every instruction set (ISA) of the processor, and PyTorch in f32 with PyTorch in float64. Prints a table, and
writes a page with --out. Exits with 1 if an error of Sconce is larger than PyTorch's.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "fixtures"))
import plain_encoder  # noqa: E402
from make_fixtures import tokenizer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast, T5EncoderModel, logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
SCONCE = os.environ.get("SCONCE", str(ROOT / "target" / "release" / "sconce"))
MODELS = [
    ("bert-base-uncased", torch.float32), ("bert-large-uncased", torch.float32), ("roberta-base", torch.float32),
    ("xlm-roberta-base", torch.float32), ("xlm-roberta-base", torch.float16), ("albert-base-v2", torch.float32),
    ("modernbert-base", torch.float32), ("deberta-v3-base", torch.float32), ("Qwen3-Embedding-0.6B", torch.bfloat16),
    ("embeddinggemma-300m", torch.float32), ("embeddinggemma-300m", torch.bfloat16), ("bge-m3", torch.float32),
    ("bge-m3", torch.float16), ("gtr-t5-base", torch.float32), ("nomic-embed-text-v2-moe", torch.float32),
    ("jina-embeddings-v2-base-code", torch.float32),
]
TEXTS = ["the candle burns", "a", "", "query key value " * 30, "attention head " * 160]


def run(folder):
    """The hidden states (T, H) of every text from `sconce embed`, and the peak memory of its process in bytes."""
    with tempfile.TemporaryFile() as texts, tempfile.TemporaryFile() as rows:
        texts.write("\n".join(TEXTS).encode() + b"\n")
        texts.seek(0)
        command = [SCONCE, "embed", "--quiet", "--pooling", "none", "--no-normalize", "--batch-tokens", "64"]
        process = subprocess.Popen([*command, "--model", str(folder)], stdin=texts, stdout=rows)
        # VmHWM, not the maximum of wait4: that includes the memory of this Python process before the exec.
        memory = 0
        while process.poll() is None:
            marks = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            memory = max([memory, *(1024 * int(mark) for mark in marks)])
            time.sleep(0.002)
        if process.returncode:
            sys.exit(f"{folder}: sconce failed")
        rows.seek(0)
        vectors = [torch.tensor(json.loads(line)["embeddings"]) for line in rows]
    return vectors, memory


def initial(name, shape):
    """Weights as BERT's are initialised."""
    if name.endswith(".bias"):
        return torch.zeros(shape)
    return torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape)


def save_plain(folder, fields, dtype):
    """Saves a model of plain_encoder.py; returns its hidden states as a function."""
    config = plain_encoder.of_repository(fields)
    (folder / "config.json").write_text(json.dumps(fields))
    weights = {name: initial(name, shape).to(dtype) for name, shape in sorted(plain_encoder.shapes(config).items())}
    saved = plain_encoder.to_repository(fields, weights)
    save_file({name: weight.contiguous() for name, weight in saved.items()}, folder / "model.safetensors")
    weights = {name: weight.float() for name, weight in weights.items()}
    return lambda ids: plain_encoder.encode(config, weights, ids[0], torch.zeros_like(ids[0]))[-1]


@torch.no_grad()
def check_plain(fields, dtype):
    """As `check`, with plain_encoder.py as the reference."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        tokenizer(folder, 512, pair_token_types=False)
        states = save_plain(folder, fields, dtype)
        found, memory = run(folder)
        return *compare(folder, found, states, 512), memory, *sizes(folder)


def compare(folder, found, states, limit):
    """The largest difference of hidden states, and the largest in units of the tolerance."""
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    worst = allowed = 0.0
    for text, vectors in zip(TEXTS, found):
        expected = states(torch.tensor([tokens(text, truncation=True, max_length=limit)["input_ids"]]))
        difference = (vectors - expected).abs()
        worst = max(worst, difference.max().item())
        allowed = max(allowed, (difference / (1e-4 + 1e-4 * expected.abs())).max().item())
    return worst, allowed


def random_model(fields):
    """A model of a class of transformers with random weights, and that class."""
    torch.manual_seed(1)
    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    of_config, kind = AutoModel.from_config, AutoModel
    if config.model_type == "t5":
        of_config, kind = T5EncoderModel._from_config, T5EncoderModel
    return of_config(config, attn_implementation="eager", dtype=torch.float32).eval(), kind


@torch.no_grad()
def check(name, dtype):
    fields = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    if plain_encoder.of_repository(fields):
        return check_plain(fields, dtype)
    model, kind = random_model(fields)
    config = model.config
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        limit = min(getattr(config, "max_position_embeddings", 514) - 2, 512)
        tokenizer(folder, limit, pair_token_types=False)
        model.to(dtype).save_pretrained(folder, max_shard_size="100GB")
        # Loaded again: a conversion to 16 bits and back would leave the rotary frequencies and other buffers rounded.
        model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        found, memory = run(folder)
        worst, allowed = compare(folder, found, lambda ids: model(input_ids=ids).last_hidden_state[0], limit)
        return worst, allowed, memory, *sizes(folder)


def sizes(folder):
    """The bytes of the file, and of the weights as Sconce packs them for f32."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    inspected = subprocess.run([SCONCE, "inspect", "--json", "--model", str(folder)], check=True, capture_output=True)
    return stored, next(use["weights"] for use in json.loads(inspected.stdout)["memory"] if use["dtype"] == "f32")


SIZES = """# Full-size models

Random weights, f32; the last hidden states of every token of {texts} texts, compared with transformers {transformers} in f32. The packed
weights are those of all matrices in the operand format of the processor, without the embedding tables, which stay in the mapped
file. Written by `scripts/check/full_size.py` on {machine}.

{table}"""


# The shape of gte-large-en-v1.5, in the fields of transformers' own class.
WIDE = dict(
    vocab_size=30528, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    hidden_act="gelu", layer_norm_eps=1e-12, max_position_embeddings=8192, type_vocab_size=2, pad_token_id=0,
    rope_parameters={"rope_type": "default", "rope_theta": 160000.0},
)
LIMIT = 1024
LONG = [*TEXTS, "The lamp burns, and the wick is in the candle. " * 60]
PAGE = """# Rounding at full size

Absolute error of f32 with respect to PyTorch {torch} in float64, per element, maximum and root mean square. The model has the shape of
gte-large-en-v1.5 ({layers} layers, hidden size 1,024, gated feed-forward of 4,096) and random weights; {texts} texts, {tokens:,} tokens. Vectors
are mean-pooled and normalised. Written by `scripts/check/full_size.py --float64` on {machine}.

{table}
The largest absolute value of the last hidden states is {largest:.1f}.
"""


def instruction_sets():
    """The ISAs of this processor, from the error that lists them."""
    command = [SCONCE, "embed", "x"]
    error = subprocess.run(command, env={**os.environ, "SCONCE_ISA": "unknown"}, capture_output=True, text=True).stderr
    names = r"amx|avx512-bf16|avx512-vnni|avx512|avx2|neon-dotprod|neon|portable"
    return list(dict.fromkeys(re.findall(names, error)))


def embed(folder, isa, *options):
    """The rows of `sconce embed` under an ISA."""
    command = [SCONCE, "embed", "--quiet", "--input-format", "jsonl", "--input", "-", "--model", str(folder), *options]
    texts = "".join(json.dumps({"text": text}) + "\n" for text in LONG)
    result = subprocess.run(command, env={**os.environ, "SCONCE_ISA": isa}, input=texts, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{isa}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def widen(model):
    """Draws weights with the variance of trained ones, so that attention is not uniform and activations are not linear."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.1 * drawn if "norm" in name.lower() and name.endswith("weight") else 0.04 * drawn)


@torch.no_grad()
def against_float64(sets, layers):
    """The lines of the table, the tokens of all texts, the largest absolute hidden state, and whether any error of Sconce exceeds
    PyTorch's."""
    config = AutoConfig.for_model("gte", **dict(WIDE, num_hidden_layers=layers))
    model = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    widen(model)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        tokenizer(folder, LIMIT, pair_token_types=False)
        model.save_pretrained(folder, max_shard_size="100GB")
        tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        ids = [torch.tensor([tokens(text, truncation=True, max_length=LIMIT)["input_ids"]]) for text in LONG]

        def states(model):
            return [model(input_ids=text).last_hidden_state[0] for text in ids]

        def pooled(states):
            return [torch.nn.functional.normalize(text.mean(0), dim=0) for text in states]

        theirs = states(model)
        exact = states(model.double())

        def errors(found, exact):
            difference = torch.cat([(f.double() - e).flatten().abs() for f, e in zip(found, exact)])
            return difference.max().item(), difference.square().mean().sqrt().item()

        def row(name, hidden, vectors):
            figures = [*errors(hidden, exact), *errors(vectors, pooled(exact))]
            lines.append(f"| {name} | " + " | ".join(f"{figure:.2e}" for figure in figures) + " |")
            print(lines[-1], flush=True)
            return figures

        lines = ["| f32 of | hidden states, maximum | RMS | vectors, maximum | RMS |"]
        lines.append("|---|---:|---:|---:|---:|")
        print("\n".join(lines))
        torch_figures = row("PyTorch", theirs, pooled(theirs))
        failed = False
        for isa in sets:
            rows = embed(folder, isa, "--pooling", "none", "--no-normalize", "--max-length", str(LIMIT))
            hidden = [torch.tensor(row["embeddings"], dtype=torch.float32) for row in rows]
            rows = embed(folder, isa, "--pooling", "mean", "--normalize", "--max-length", str(LIMIT))
            figures = row(f"Sconce, {isa}", hidden, [torch.tensor(row["embedding"]) for row in rows])
            failed |= any(found > theirs for found, theirs in zip(figures, torch_figures))
    largest = max(text.abs().max().item() for text in exact)
    return lines, sum(text.shape[1] for text in ids), largest, failed


def machine():
    """The processor, as Linux names it."""
    fields = dict(re.findall(r"^(.+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    name = fields.get("model name", platform.machine())
    return f"{name}, family {fields.get('cpu family')}, model {fields.get('model')}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only configs whose name contains WORD", metavar="WORD")
    parser.add_argument("--float64", action="store_true", help="compare f32 with float64")
    parser.add_argument("--isa", nargs="+", help="instruction sets to run [default: all of the processor]")
    parser.add_argument("--layers", type=int, default=WIDE["num_hidden_layers"], help="layers of the model of --float64")
    parser.add_argument("--out", type=Path, help="page to write")
    args = parser.parse_args()
    if args.float64:
        lines, tokens, largest, failed = against_float64(args.isa or instruction_sets(), args.layers)
        if args.out:
            args.out.write_text(PAGE.format(
                layers=args.layers, texts=len(LONG), tokens=tokens, machine=machine(), torch=torch.__version__.split("+")[0],
                table="\n".join(lines) + "\n", largest=largest,
            ))
        sys.exit(failed)
    only = args.only
    failed = False
    lines = [
        "| config | stored as | maximum difference | / tolerance | peak memory | file | packed weights |", "|---|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for name, dtype in [model for model in MODELS if only in model[0]]:
        worst, allowed, memory, *sizes = check(name, dtype)
        failed |= not allowed <= 1 or memory > sizes[1] + 300e6
        stored = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[str(dtype).removeprefix("torch.")]
        megabytes = " | ".join(f"{size / 1e6:,.0f} MB" for size in [memory, *sizes])
        lines.append(f"| {name} | {stored} | {worst:.1e} | {allowed:.2f} | {megabytes} |")
        print(lines[-1], flush=True)
    if args.out:
        version = transformers.__version__
        table = "\n".join(lines) + "\n"
        args.out.write_text(SIZES.format(texts=len(TEXTS), transformers=version, machine=machine(), table=table))
    sys.exit(failed)


if __name__ == "__main__":
    main()
