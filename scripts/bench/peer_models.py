#!/usr/bin/env python3
"""Converts a checkpoint to the formats of the peers and prints the directory of the converted files.

    python scripts/bench/peer_models.py MODEL_DIR [NAME ...]

Without names, the model is a BERT, and all files but those for llama.cpp are written. The directory is
${XDG_CACHE_HOME:-~/.cache}/sconce-peers/models/CHECKSUM, with the checksum of the weights:

    f32.onnx             exported by PyTorch                                    for OpenVINO
    fused.onnx           f32.onnx with attention, GELU and norms fused          for ONNX Runtime, f32
    fused.json           the operators of fused.onnx that the optimizer made
    int8.onnx            f32.onnx, quantised dynamically per channel            for ONNX Runtime, int8
    ct2-f32, ct2-int8                                                           for CTranslate2
    f32.gguf, bf16.gguf, int8.gguf    of Qwen3 only; int8 is Q8_0               for llama.cpp

The weights of an .onnx file that would exceed 2 GB, the limit of the format, are in a file NAME.data beside it. Files that exist are kept.
scripts/bench/peers.py and full_size_peers.py call this script.
"""

import functools
import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sconce-peers"


# Bytes of weights from which they are stored in a file of their own.
LARGE = 1.9e9
# Names of ONNX Runtime's optimizer; model types that it does not know have BERT's sublayers at least in parts.
OPTIMIZERS = {"qwen3": "qwen3"}
# Model types of which every attention layer has to be fused.
FUSED = {"bert", "xlm-roberta"}


@functools.cache
def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@functools.cache
def folder_of(model):
    """The directory of a model's converted files."""
    return CACHE / "models" / checksum(Path(model, "model.safetensors"))


def is_large(model):
    return Path(model, "model.safetensors").stat().st_size > LARGE


def export(model, target, loader=None, output="last_hidden_state"):
    """Exports one output of a model that a class of transformers loads, AutoModel by default."""
    import torch
    from transformers import AutoModel

    # ONNX Runtime's optimizer recognises the operations of eager attention only.
    loaded = (loader or AutoModel).from_pretrained(model, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in inspect.signature(loaded.forward).parameters and getattr(loaded.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    loaded.config.use_cache = False

    class OneOutput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = loaded

        def forward(self, *values):
            return self.model(**dict(zip(names, values)))[output]

    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]} | {"logits": {0: "batch"}}
    ones = torch.ones(2, 16, dtype=torch.long)
    values = {"input_ids": ones, "attention_mask": ones, "token_type_ids": torch.zeros_like(ones)}
    torch.onnx.export(
        OneOutput(),
        tuple(values[name] for name in names),
        target,
        input_names=names,
        output_names=[output],
        dynamic_axes={name: axes[name] for name in [*names, output]},
        opset_version=17,
        dynamo=False,  # the optimizer recognises the graph of the older exporter only
    )
    if is_large(model):
        # The exporter writes a file for each weight.
        import onnx

        graph = onnx.load(target)
        for path in Path(target).parent.iterdir():
            path.unlink()
        onnx.save(graph, target, save_as_external_data=True, location=Path(target).name + ".data")


def fuse(model, plain, target):
    from onnxruntime.transformers import optimizer

    config = json.loads(Path(model, "config.json").read_text())
    large, kind = is_large(model), config["model_type"]
    graph = optimizer.optimize_model(
        str(plain),
        model_type=OPTIMIZERS.get(kind, "bert"),
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        # ONNX Runtime's own optimization first, which cannot store a graph of more than 2 GB.
        opt_level=0 if large else 1,
    )
    fused = graph.get_fused_operator_statistics()
    if kind in FUSED and fused["Attention"] != config["num_hidden_layers"]:
        sys.exit(f"ONNX Runtime's optimizer fused {fused['Attention']} of {config['num_hidden_layers']} attention layers")
    Path(target).with_suffix(".json").write_text(json.dumps({name: count for name, count in fused.items() if count}))
    graph.save_model_to_file(target, use_external_data_format=large)


def quantise(model, plain, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(plain, target, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=is_large(model))


def to_gguf(model, target, type):
    """Writes what the converter of llama.cpp writes, without the tokenizer: matrices of a type, norms in f32. Ids come from the caller."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    config = json.loads(Path(model, "config.json").read_text())
    if config["model_type"] != "qwen3":
        sys.exit(f"only Qwen3 is converted for llama.cpp, not {config['model_type']}")
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    kind = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0}[type]
    with safe_open(Path(model, "model.safetensors"), "np") as weights:
        for name in weights.keys():
            weight = weights.get_tensor(name).astype(np.float32)
            chosen = kind if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), gguf.quants.quantize(weight, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def to_ctranslate2(model, target, quantization):
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(model).convert(target, quantization=quantization)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    model, names = sys.argv[1], sys.argv[2:]
    config = json.loads(Path(model, "config.json").read_text())
    if not names and config["model_type"] != "bert":
        sys.exit(f"the peers support model_type bert, but {model} is {config['model_type']}")
    folder = folder_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "f32.onnx"
    makes = {
        "f32.onnx": lambda target: export(model, target),
        "fused.onnx": lambda target: fuse(model, plain, target),
        "int8.onnx": lambda target: quantise(model, plain, target),
        "ct2-f32": lambda target: to_ctranslate2(model, target, None),
        "ct2-int8": lambda target: to_ctranslate2(model, target, "int8"),
        **{f"{type}.gguf": lambda target, type=type: to_gguf(model, target, type) for type in ("f32", "bf16", "int8")},
    }
    for name in names or [name for name in makes if not name.endswith(".gguf")]:
        if (folder / name).exists():
            continue
        print(f"peer_models: writing {name}", file=sys.stderr)
        # Moved to its final name when it is complete, because existing files are kept.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            target = os.path.join(work, name)
            makes[name](target)
            for path in sorted(os.listdir(work), key=lambda path: path == name):
                shutil.move(os.path.join(work, path), folder / path)
    print(folder)


if __name__ == "__main__":
    main()
