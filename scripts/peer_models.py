#!/usr/bin/env python3
"""Converts a BERT checkpoint for the peers that do not read it as it stands, and prints the folder of the conversions.

    python scripts/peer_models.py MODEL_DIR

The folder is named by the checksum of the weights and lies in ${XDG_CACHE_HOME:-~/.cache}/sconce-peers/models:

    f32.onnx         the graph as PyTorch exports it                        OpenVINO
    fused.onnx       the same with attention, GELU and norms fused          ONNX Runtime, f32
    int8.onnx        the graph quantised by ONNX Runtime, dynamically,
                     with a scale for each channel of the weights           ONNX Runtime, int8
    ct2-f32, ct2-int8                                                       CTranslate2

What is there already is left alone. scripts/peers.py calls this.
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
    """Where the conversions of this model lie, or will."""
    with open(Path(model, "model.safetensors"), "rb") as file:
        return CACHE / "models" / hashlib.file_digest(file, "sha256").hexdigest()[:16]


def export(model, target):
    import torch
    from transformers import AutoModel

    class LastHiddenState(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # ONNX Runtime's optimizer knows attention by the operations that the eager form is made of.
            self.encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            inputs = dict(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return self.encoder(**inputs).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ones = torch.ones(2, 16, dtype=torch.long)
    torch.onnx.export(
        LastHiddenState(),
        (ones, ones, torch.zeros_like(ones)),
        target,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,  # the fusions below look for the older exporter's graph
    )


def fuse(plain, config, target):
    from onnxruntime.transformers import optimizer

    heads, width = config["num_attention_heads"], config["hidden_size"]
    graph = optimizer.optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=1)
    fused = graph.get_fused_operator_statistics()
    if fused["Attention"] != config["num_hidden_layers"]:
        sys.exit(f"ONNX Runtime's optimizer fused {fused['Attention']} of {config['num_hidden_layers']} attentions")
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
        sys.exit(f"the peers are set up for BERT, and {model} is {config['model_type']}")
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
        print(f"peer_models: making {name}", file=sys.stderr)
        # A conversion that breaks off leaves nothing under the name.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            target = os.path.join(work, name)
            make(target)
            shutil.move(target, folder / name)
    print(folder)


if __name__ == "__main__":
    main()
