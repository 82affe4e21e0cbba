#!/usr/bin/env python3
"""Runs one peer; scripts/bench/peers.py starts it and talks to it over standard input and output.

    python scripts/bench/peer.py NAME TYPE --model DIR --conversions DIR [--threads 2] [--batch 32] [--pooling mean]

Loads the model and prints the version of the peer as a line of JSON. Each line of standard input is the path of a text file, one text
per line, optionally followed by a tab and the path of a .npy file for the vectors. For each it embeds the texts and prints
{"seconds": …}: the time from a list of strings to an f32 array (N, D), with tokenization, batching, pooling and normalisation.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
import warnings
from pathlib import Path


def sentence_transformers(args):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(args.threads)
    model = SentenceTransformer(str(args.model), device="cpu")
    if args.type == "bf16":
        model = model.to(torch.bfloat16)

    def embed(texts):
        vectors = model.encode(texts, batch_size=args.batch, show_progress_bar=False, convert_to_tensor=True)
        return vectors.float().numpy()

    return embed, ["sentence-transformers", "torch"]


def onnxruntime(args):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    file = args.conversions / {"f32": "fused.onnx", "int8": "int8.onnx"}[args.type]
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def hidden(ids, mask, encodings):
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        return session.run(None, {name: inputs[name] for name in names})[0]

    return by_batches(args, hidden), ["onnxruntime"]


def openvino(args):
    import openvino

    core = openvino.Core()
    if args.type == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        sys.exit("OpenVINO does not support bf16 on this processor")
    options = {
        "INFERENCE_NUM_THREADS": args.threads,
        "INFERENCE_PRECISION_HINT": args.type,
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time on all threads
    }
    model = core.compile_model(args.conversions / "f32.onnx", "CPU", options)
    names = [value.get_any_name() for value in model.inputs]

    def hidden(ids, mask, encodings):
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        return model({name: inputs[name] for name in names})[0]

    return by_batches(args, hidden), ["openvino"]


def ctranslate2(args):
    import ctranslate2
    import numpy as np

    folder = args.conversions / ("ct2-int8" if args.type == "int8" else "ct2-f32")
    wanted = {"f32": "float32", "bf16": "bfloat16", "int8": "int8_float32"}[args.type]
    model = ctranslate2.Encoder(str(folder), device="cpu", intra_threads=args.threads, compute_type=wanted)

    def hidden(ids, mask, encodings):
        # CTranslate2 pads to the longest sequence of the batch itself.
        output = model.forward_batch([encoding.ids for encoding in encodings]).last_hidden_state
        return np.array(output.to(ctranslate2.DataType.float32))

    return by_batches(args, hidden), ["ctranslate2"]


def llama_cpp(args):
    """Sequences of similar length in batches of up to 512 tokens, the default; int8 is Q8_0. Ids come from the model's tokenizer, as for
    the other peers."""
    import llama_cpp
    import numpy as np

    modes = {"mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN, "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS, "lasttoken": llama_cpp.LLAMA_POOLING_TYPE_LAST}
    model = llama_cpp.Llama(
        str(args.conversions / f"{args.type}.gguf"), embedding=True, pooling_type=modes[args.pooling], n_ctx=512, n_batch=512, n_ubatch=512,
        n_threads=args.threads, n_threads_batch=args.threads, verbose=False,
    )
    tokenizer, width = tokenizer_of(args), model.n_embd()

    def embed(texts):
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda text: -len(ids[text]))
        vectors = np.empty((len(texts), width), np.float32)
        waiting = []

        def decode():
            model._ctx.kv_cache_clear()
            model._ctx.decode(model._batch)
            model._batch.reset()
            for sequence, row in enumerate(waiting):
                pointer = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, sequence)
                vectors[row] = np.ctypeslib.as_array(pointer, (width,))
            waiting.clear()

        for row in order:
            if waiting and sum(len(ids[other]) for other in [*waiting, row]) > 512:
                decode()
            model._batch.add_sequence(ids[row], len(waiting), True)
            waiting.append(row)
        decode()
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return embed, ["llama-cpp-python"]


def sconce(args):
    """The Python package over the sconce that SCONCE_COMMAND names."""
    from sconce_embed import Embedder

    embedder = Embedder(args.model, dtype=args.type, threads=args.threads, offline=True)
    return embedder.embed, ["pyarrow"]


PEERS = {
    "sconce": sconce,
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ctranslate2": ctranslate2,
    "llama.cpp": llama_cpp,
}


def tokenizer_of(args):
    """The model's tokenizer, which truncates and does not pad."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((args.model / "sentence_bert_config.json").read_text())["max_seq_length"])
    return tokenizer


def by_batches(args, hidden):
    """Wraps `hidden(ids, mask, encodings)`, which returns hidden states (B, T, H), into a function from texts to vectors (N, H): batches
    of similar length, pooling, normalisation."""
    import numpy as np

    tokenizer = tokenizer_of(args)

    def embed(texts):
        encodings = tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda text: -len(encodings[text].ids))
        vectors = None
        for start in range(0, len(order), args.batch):
            rows = order[start : start + args.batch]
            batch = [encodings[row] for row in rows]
            ids = np.zeros((len(batch), len(batch[0].ids)), np.int64)
            mask = np.zeros_like(ids)
            for row, encoding in enumerate(batch):
                ids[row, : len(encoding.ids)] = encoding.ids
                mask[row, : len(encoding.ids)] = 1
            states = hidden(ids, mask, batch)
            if args.pooling == "cls":
                pooled = states[:, 0]
            elif args.pooling == "lasttoken":
                pooled = states[np.arange(len(batch)), mask.sum(axis=1) - 1]
            else:
                # Sum in place of the mean: normalisation gives the same vector.
                pooled = np.matmul(mask[:, None].astype(np.float32), states)[:, 0]
            if vectors is None:
                vectors = np.empty((len(texts), pooled.shape[1]), np.float32)
            vectors[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors

    return embed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("type", choices=["f32", "bf16x3", "bf16", "int8"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--conversions", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pooling", choices=["mean", "cls", "lasttoken"], default="mean")
    args = parser.parse_args()
    # Set before a library is imported and reads them.
    os.environ.update(
        OMP_NUM_THREADS=str(args.threads),
        RAYON_NUM_THREADS=str(args.threads),
        TOKENIZERS_PARALLELISM="true",
        HF_HUB_OFFLINE="1",
    )
    warnings.simplefilter("ignore")
    embed, packages = PEERS[args.name](args)
    import numpy as np

    version = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        source, _, target = line.rstrip("\n").partition("\t")
        texts = Path(source).read_text().split("\n")[:-1]
        start = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - start
        if target:
            np.save(target, vectors)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
