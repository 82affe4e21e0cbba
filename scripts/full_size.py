#!/usr/bin/env python3
"""Runs models of full size with random weights and compares them with transformers, given the same weights.

    python scripts/full_size.py [--only WORD]

For every config, in f32 and stored as f16 where that is what is asked: the largest difference of any element of the last
hidden states of a few texts, and the peak memory of the whole process beside the size of the weights in f32. Needs some
gigabytes of disk and memory. Exits with 1 where a difference is over atol 1e-4, rtol 1e-4, or memory over the weights in
f32 and 300 MB.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from make_fixtures import tokenizer

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast, logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
ROOT = Path(__file__).resolve().parent.parent
SCONCE = os.environ.get("SCONCE", str(ROOT / "target" / "release" / "sconce"))
MODELS = [
    ("bert-base-uncased", torch.float32), ("bert-large-uncased", torch.float32), ("roberta-base", torch.float32),
    ("xlm-roberta-base", torch.float32), ("xlm-roberta-base", torch.float16), ("albert-base-v2", torch.float32),
    ("modernbert-base", torch.float32), ("deberta-v3-base", torch.float32),
]
TEXTS = ["the candle burns", "a", "", "query key value " * 30, "attention head " * 160]


def run(folder):
    """The rows of `embed`, and the peak memory of its process in bytes."""
    with tempfile.TemporaryFile() as texts, tempfile.TemporaryFile() as rows:
        texts.write("\n".join(TEXTS).encode() + b"\n")
        texts.seek(0)
        command = [SCONCE, "embed", "--quiet", "--pooling", "none", "--no-normalize", "--batch-tokens", "64"]
        process = subprocess.Popen([*command, "--model", str(folder)], stdin=texts, stdout=rows)
        # The kernel's own mark; that of wait4 would begin with the memory of this process, before the exec.
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


@torch.no_grad()
def check(name, dtype):
    fields = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    torch.manual_seed(1)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        limit = min(config.max_position_embeddings - 2, 512)
        tokenizer(folder, limit, second_segment=False)
        model.to(dtype).save_pretrained(folder, max_shard_size="100GB")
        model = model.float()
        found, memory = run(folder)
        tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        worst = allowed = 0.0
        for text, vectors in zip(TEXTS, found):
            ids = torch.tensor([tokens(text, truncation=True, max_length=limit)["input_ids"]])
            expected = model(input_ids=ids).last_hidden_state[0]
            difference = (vectors - expected).abs()
            worst = max(worst, difference.max().item())
            allowed = max(allowed, (difference / (1e-4 + 1e-4 * expected.abs())).max().item())
    bytes_in_f32 = 4 * sum(weight.numel() for weight in model.parameters())
    return worst, allowed, memory, bytes_in_f32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="configs whose name has this word")
    only = parser.parse_args().only
    failed = False
    print("| config | stored as | largest difference | of what is allowed | peak memory | weights in f32 |\n|---|---|---|---|---|---|")
    for name, dtype in [model for model in MODELS if only in model[0]]:
        worst, allowed, memory, weights = check(name, dtype)
        failed |= not allowed <= 1 or memory > weights + 300e6
        stored = str(dtype).removeprefix("torch.")
        print(f"| {name} | {stored} | {worst:.1e} | {allowed:.2f} | {memory / 1e6:.0f} MB | {weights / 1e6:.0f} MB |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
