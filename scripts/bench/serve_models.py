#!/usr/bin/env python3
"""Makes the models of serve.py of all-MiniLM-L6-v2 that no registry has.

    python scripts/bench/serve_models.py MODEL_DIR OUT_DIR

    reranker          a cross-encoder: its encoder and tokenizer, and a random classifier with one label
    long              the embedder with 8,192 positions: its 512 position embeddings, repeated
    embedder.onnx     last_hidden_state of the embedder, exported by PyTorch
    reranker.onnx     logits of the cross-encoder, exported by PyTorch

Files that exist are kept. The speed of a model does not depend on the values of its weights.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from peer_models import export

LONG = 8192


def copy_tokenizer(model, target):
    # As it is: older versions of transformers do not read what newer ones write.
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(Path(model, name), target)


def reranker(model, target):
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(model, num_labels=1).save_pretrained(target)
    copy_tokenizer(model, target)


def long(model, target):
    embedder = AutoModel.from_pretrained(model)
    weights = embedder.embeddings.position_embeddings.weight.data
    state = embedder.state_dict()
    state["embeddings.position_embeddings.weight"] = weights.repeat(LONG // len(weights), 1)
    embedder.config.max_position_embeddings = LONG
    longer = AutoModel.from_config(embedder.config)
    longer.load_state_dict(state)
    longer.save_pretrained(target)
    copy_tokenizer(model, target)
    shutil.copy(Path(model, "modules.json"), target)
    shutil.copytree(Path(model, "1_Pooling"), target / "1_Pooling")
    Path(target, "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONG, "do_lower_case": False}))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    makes = {
        "reranker": lambda target: reranker(model, target),
        "long": lambda target: long(model, target),
        "embedder.onnx": lambda target: export(model, target),
        "reranker.onnx": lambda target: export(out / "reranker", target, AutoModelForSequenceClassification, "logits"),
    }
    for name, make in makes.items():
        if (out / name).exists():
            continue
        # Moved to its final name when it is complete, because existing files are kept.
        with tempfile.TemporaryDirectory(dir=out) as work:
            make(Path(work, name))
            shutil.move(Path(work, name), out / name)


if __name__ == "__main__":
    main()
