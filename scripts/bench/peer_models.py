#!/usr/bin/env python3
"""Converts a BERT checkpoint to the formats of the peers and prints the directory of the converted files.

    python scripts/bench/peer_models.py MODEL_DIR

The directory is ${XDG_CACHE_HOME:-~/.cache}/sconce-peers/models/CHECKSUM, with the checksum of the weights:

    f32.onnx             exported by PyTorch                                    for OpenVINO
    fused.onnx           f32.onnx with attention, GELU and norms fused          for ONNX Runtime, f32
    int8.onnx            f32.onnx, quantised dynamically per channel            for ONNX Runtime, int8
    ct2-f32, ct2-int8                                                           for CTranslate2

Files that exist are kept. scripts/bench/peers.py calls this script.
"""

import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sconce-peers"


@functools.cache
def folder_of(model):
    """The directory of a model's converted files."""
    with open(Path(model, "model.safetensors"), "rb") as file:
        return CACHE / "models" / hashlib.file_digest(file, "sha256").hexdigest()[:16]


def export(model, target, loader=None, output="last_hidden_state"):
    """Exports one output of a model that a class of transformers loads, AutoModel by default."""
    import torch
    from transformers import AutoModel

    class OneOutput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # ONNX Runtime's optimizer recognises the operations of eager attention only.
            self.model = (loader or AutoModel).from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            inputs = dict(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return self.model(**inputs)[output]

    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]} | {"logits": {0: "batch"}}
    ones = torch.ones(2, 16, dtype=torch.long)
    torch.onnx.export(
        OneOutput(),
        (ones, ones, torch.zeros_like(ones)),
        target,
        input_names=names,
        output_names=[output],
        dynamic_axes={name: axes[name] for name in [*names, output]},
        opset_version=17,
        dynamo=False,  # the optimizer recognises the graph of the older exporter only
    )


def fuse(plain, config, target):
    from onnxruntime.transformers import optimizer

    heads, width = config["num_attention_heads"], config["hidden_size"]
    graph = optimizer.optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=1)
    fused = graph.get_fused_operator_statistics()
    if fused["Attention"] != config["num_hidden_layers"]:
        sys.exit(f"ONNX Runtime's optimizer fused {fused['Attention']} of {config['num_hidden_layers']} attention layers")
    graph.save_model_to_file(target)


def quantise(plain, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(plain, target, weight_type=QuantType.QInt8, per_channel=True)


def to_ctranslate2(model, target, quantization):
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(model).convert(target, quantization=quantization)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = sys.argv[1]
    config = json.loads(Path(model, "config.json").read_text())
    if config["model_type"] != "bert":
        sys.exit(f"the peers support model_type bert, but {model} is {config['model_type']}")
    folder = folder_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "f32.onnx"
    for name, make in [
        ("f32.onnx", lambda target: export(model, target)),
        ("fused.onnx", lambda target: fuse(plain, config, target)),
        ("int8.onnx", lambda target: quantise(plain, target)),
        ("ct2-f32", lambda target: to_ctranslate2(model, target, None)),
        ("ct2-int8", lambda target: to_ctranslate2(model, target, "int8")),
    ]:
        if (folder / name).exists():
            continue
        print(f"peer_models: writing {name}", file=sys.stderr)
        # Moved to its final name when it is complete, because existing files are kept.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            target = os.path.join(work, name)
            make(target)
            shutil.move(target, folder / name)
    print(folder)


if __name__ == "__main__":
    main()
