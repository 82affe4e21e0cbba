#!/usr/bin/env python3
"""Makes the goldens of late chunking (Günther et al. 2024) under tests/fixtures/late-chunks with PyTorch and transformers.

    pip install -r scripts/requirements-reference.txt
    python scripts/make_chunk_fixtures.py

    goldens.json          cases: a model of make_fixtures.py or make_pipeline_fixtures.py, a text, the options of `sconce embed`, and for each
                          chunk its first character, the one after its last, and its number of tokens
    goldens.safetensors   for each case, the vectors of its chunks, computed in float64

The chunks of a text are its paragraphs: the options leave no room for two. A vector is the mean of the hidden states of a chunk's
tokens in the whole text; the first chunk has [CLS] and the prompt, the last one [SEP], as in `_extend_special_tokens` of
https://github.com/jina-ai/late-chunking. A text over the limit is encoded in windows of whole paragraphs, after as many sentences of
the text before them as have at most a quarter of the limit.
"""

import json
import shutil

import torch
from make_fixtures import FIXTURES
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModel, PreTrainedTokenizerFast

FOLDER = FIXTURES / "late-chunks"
SHORT = "The lamp burns.\n\nA wick, dry!\n\nThe flame: light."
CASES = [
    ("bert-tiny", SHORT, 9, {}),
    ("bert-tiny", SHORT, 9, {"normalize": False}),
    ("bert-tiny", "Ünïcödé 灯 key.\n\n\r\n\n灯 😀 the lamp\r\n\r\nwick the lamp, a flame key", 12, {}),
    ("bert-tiny", SHORT, 10, {"prompt": "a "}),
    ("bert-tiny", "the lamp burns", 24, {}),
    ("roberta", SHORT, 9, {}),
    ("modernbert", SHORT, 9, {"pooling": "mean"}),
    ("deberta-v2", SHORT, 9, {}),
    ("mpnet", SHORT, 9, {"pooling": "mean"}),
    ("pipelines/dense", SHORT, 9, {}),
    # Over the limit of 24 tokens: 4 tokens a paragraph, and 1 of context.
    ("bert-tiny", "\n\n".join(["The lamp the.", "A lamp a.", "The wick the.", "The flame a."] * 4), 7, {}),
    ("bert-tiny", "\n\n".join(["The lamp the.", "A lamp a.", "The wick the.", "The flame a."] * 4), 9, {"prompt": "the lamp of "}),
]


def paragraphs(text):
    """The first character of each paragraph and the one after its last."""
    spans, start = [], 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            begin = start + len(line) - len(line.lstrip())
            spans.append((begin, start + len(line.rstrip())))
        start += len(line)
    return spans


def windows(fast, prompt, text, spans, limit):
    """The sequences that encode a text: the first character of each, and its chunks."""
    def tokens(part, special=True):
        return len(fast(part, add_special_tokens=special)["input_ids"])

    first = 0
    while first < len(spans):
        start = spans[first][0]
        for i in reversed(range(first)):
            if tokens(text[spans[i][0]:spans[first][0]], False) <= limit // 4:
                start = spans[i][0]
        end = first + 1
        while end < len(spans) and tokens(prompt + text[start:spans[end][1]]) <= limit:
            end += 1
        yield start, range(first, end)
        first = end


@torch.no_grad()
def vectors(name, text, options):
    folder = FIXTURES / name
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).double().eval()
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    limit = settings.get("max_seq_length") or json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]
    prompt, spans = options.get("prompt", ""), paragraphs(text)
    chunks, rows = [], []
    for start, inside in windows(fast, prompt, text, spans, limit):
        part = prompt + text[start:spans[inside[-1]][1]]
        encoded = fast(part, return_tensors="pt", return_offsets_mapping=True, return_special_tokens_mask=True)
        inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
        hidden = model(**inputs).last_hidden_state[0]
        offsets, special = encoded["offset_mapping"][0].tolist(), encoded["special_tokens_mask"][0].tolist()
        shift = len(prompt) - start
        for i in inside:
            begin, end = spans[i]
            own = [
                token for token, (a, b) in enumerate(offsets)
                if not special[token] and b > begin + shift and a < end + shift
            ]
            first = 0 if i == 0 else own[0]
            last = len(offsets) if i + 1 == len(spans) else own[-1] + 1
            rows.append(hidden[first:last].mean(dim=0))
            chunks.append((begin, end, last - first))
    rows = torch.stack(rows)
    if (folder / "2_Dense").exists():
        dense = {key: value.double() for key, value in load_file(folder / "2_Dense/model.safetensors").items()}
        rows = torch.tanh(rows @ dense["linear.weight"].T + dense["linear.bias"])
    if options.get("normalize", True):
        rows = functional.normalize(rows, dim=1)
    return chunks, rows.float()


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    cases, tensors = [], {}
    for i, (name, text, tokens, options) in enumerate(CASES):
        words = ["--chunk", str(tokens)]
        for option in ("prompt", "pooling"):
            words += [f"--{option}", options[option]] if option in options else []
        words += ["--no-normalize"] if not options.get("normalize", True) else []
        spans, tensors[f"case.{i}"] = vectors(name, text, options)
        cases.append({"model": name, "text": text, "options": words, "spans": spans, "vectors": f"case.{i}"})
    save_file(tensors, FOLDER / "goldens.safetensors")
    (FOLDER / "goldens.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
