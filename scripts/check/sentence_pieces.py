#!/usr/bin/env python3
"""Compares the token ids of SentencePiece models with those of `AutoTokenizer` of transformers, on texts that are hard to tokenize.

    python scripts/check/sentence_pieces.py [--sconce target/release/sconce] [--texts 2000] [--seed 1] [--only WORD]

Trains small models with each character map of SentencePiece, with and without pieces for bytes and user-defined symbols, and puts each
beside the settings of a tokenizer class and a tiny BERT. One `sconce serve` has all of them, and its `/tokenize` is asked for the ids of
each text. Prints a line per model, and exits with 1 if any ids differ.
"""

import argparse
import io
import json
import os
import random
import sys
import tempfile
import urllib.request
from pathlib import Path

import sentencepiece
from clients import ROOT, Server

sys.path.insert(0, str(ROOT / "scripts" / "fixtures"))
from make_tokenizer_fixtures import SPM_ALBERT, SPM_DEBERTA, SPM_GEMMA, SPM_LLAMA, SPM_T5, added_token, token  # noqa: E402
from sample_texts import EMPTY_ISH, SENTENCES  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoTokenizer, BertConfig, BertModel, logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
BATCH = 32

SPECIAL = """<s> </s> <pad> <unk> <mask> [CLS] [SEP] [MASK] [PAD] [UNK] <bos> <eos> <extra_id_0> <extra_id_2> <extra_id_99> <sep> <n> [NEW] the
    <s>NOTUSED <unk>NOTUSED <0x41> <0xE4> lamp ▁the""".split()
ODD = [
    *"▁ \u3000\u00a0\u1680\u2003\u2028\u205f\t\n\r\x07\x7f\x85\u00ad\u061c\u180e\u200b\u200d\u202e\ufeff\u0301\u0308İıßΣςǅﬁＡ①½㍿ﷺ`´\"“–—‑…𝒜𐍈",
    "  ", "   ", "\r\n", "\n\n", "▁▁", "▁ ▁", "``", "''", "🕯️", "👩‍🚀", "🇫🇷", "한", "e\u0301", "ｶﾞ", "\u0915\u093f", "\U0010ffff", "\ue000", "\ufffd",
]


def texts(count, seed):
    """Sentences, and mixtures of parts of them with special tokens, rare characters and white space."""
    r = random.Random(seed)
    known = SENTENCES + EMPTY_ISH

    def part():
        match r.choice("sentence special odd odd any".split()):
            case "sentence":
                sentence = r.choice(known)
                start = r.randint(0, len(sentence))
                return sentence[start : start + r.randint(0, 25)]
            case "special":
                return r.choice(SPECIAL)
            case "odd":
                return "".join(r.choices(ODD, k=r.randint(1, 4)))
            case _:
                return "".join(chr(r.randint(1, 0x2FFF)) for _ in range(r.randint(1, 4)))

    mixed = ("".join(part() + r.choice(["", "", " ", "  "]) for _ in range(r.randint(1, 7))) for _ in range(count))
    return [text for text in known + list(mixed) if text][:count]


def train(rules, **options):
    """A SentencePiece model of the sentences and shuffled words of them."""
    r = random.Random(1)
    words = " ".join(SENTENCES).split()
    shuffled = [" ".join(r.sample(words, 12)) for _ in range(300)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3 + shuffled), model_writer=model, normalization_rule_name=rules, minloglevel=2,
        **options | {"vocab_size": 700, "character_coverage": 0.98, "num_threads": 1, "hard_vocab_limit": False},
    )
    return model.getvalue()


def folders():
    """The files of each folder: the name of the SentencePiece file with its content, and those with settings."""
    symbols = {"user_defined_symbols": "<sep>,lamp,▁▁,<n>"}
    roberta = train("nmt_nfkc")
    bytes_too = train("identity", byte_fallback=True, **symbols)
    albert, albert_symbols = train("nmt_nfkc_cf", **SPM_ALBERT), train("nfkc", **SPM_ALBERT)
    t5, t5_bytes = train("nmt_nfkc", **SPM_T5), train("nmt_nfkc", byte_fallback=True, **SPM_T5)
    deberta, deberta_symbols = train("nmt_nfkc", **SPM_DEBERTA), train("identity", **SPM_DEBERTA, **symbols)
    llama, llama_symbols = train("identity", **SPM_LLAMA), train("identity", **SPM_LLAMA | symbols | {"byte_fallback": False})
    gemma = train("identity", **SPM_GEMMA)
    mask = added_token("<mask>", lstrip=True)
    extra = [f"<extra_id_{i}>" for i in range(100)]
    bpe, spiece, spm, tokenizer = "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"
    return {
        "xlm-roberta": (bpe, roberta, {}),
        "xlm-roberta-settings": (bpe, bytes_too, {"add_prefix_space": False, "mask_token": mask, "additional_special_tokens": ["<extra>", "<n>"]}),
        "xlm-roberta-names": (bpe, bytes_too, {"bos_token": "[CLS]", "pad_token": "[PAD]", "eos_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}),
        "camembert": (bpe, roberta, {}),
        "camembert-settings": (tokenizer, bytes_too, {"add_prefix_space": False, "mask_token": added_token("<mask>", rstrip=True)}),
        "albert": (spiece, albert, {}),
        "albert-settings": (spiece, albert_symbols, {"do_lower_case": False, "keep_accents": True, "mask_token": added_token("[MASK]", lstrip=True)}),
        "albert-split": (spiece, albert_symbols, {"add_prefix_space": False, "split_special_tokens": True}),
        "t5": (spiece, t5, {}),
        "t5-settings": (spiece, t5_bytes, {"extra_ids": 100, "additional_special_tokens": extra}),
        "t5-few": (spiece, t5_bytes, {"extra_ids": 3}),
        "mt5": (spiece, t5_bytes, {"extra_ids": 0, "additional_special_tokens": None}),
        "deberta-v2": (spm, deberta, {"added_tokens_decoder": {"700": token("[MASK]", special=True)}}),
        "deberta-v2-settings": (spm, deberta_symbols, {"do_lower_case": True, "split_by_punct": True}),
        "deberta-v2-prefix": (spm, deberta_symbols, {"add_prefix_space": False, "mask_token": "[NEW]"}),
        "llama": (tokenizer, llama, {"add_bos_token": True, "legacy": False}),
        "llama-legacy": (tokenizer, llama, {"add_bos_token": True, "add_eos_token": True, "legacy": True}),
        "llama-settings": (tokenizer, llama_symbols, {"add_prefix_space": False, "legacy": None, "pad_token": "[PAD]"}),
        "gemma": (tokenizer, gemma, {"add_bos_token": True}),
        "gemma-settings": (tokenizer, gemma, {"add_eos_token": True, "extra_special_tokens": ["[NEW]"]}),
    }


CLASSES = {
    "xlm": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer", "albert": "AlbertTokenizer", "t5": "T5Tokenizer", "mt5": "T5Tokenizer",
    "deberta": "DebertaV2TokenizerFast", "llama": "LlamaTokenizer", "gemma": "GemmaTokenizer",
}


def make(folder, name, file, model, settings):
    """Writes a folder, and returns the tokenizer that transformers reads in it."""
    config = BertConfig(vocab_size=2000, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)
    (folder / file).write_bytes(model)
    settings = settings | {"tokenizer_class": CLASSES[name.split("-")[0]]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return AutoTokenizer.from_pretrained(folder)


def ids(url, model, inputs):
    """The ids of texts, from a server."""
    body = json.dumps({"model": model, "inputs": inputs}).encode()
    request = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return [[one["id"] for one in text] for text in json.load(answer)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce", type=Path)
    parser.add_argument("--texts", default=2000, type=int)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    inputs = texts(args.texts, args.seed)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        cases = {name: case for name, case in folders().items() if args.only in name}
        reference = {name: make(Path(scratch) / name, name, *case) for name, case in cases.items()}
        with Server(args.sconce, *(f"{name}={scratch}/{name}" for name in cases)) as server:
            for name, tokenizer in reference.items():
                different = []
                for start in range(0, len(inputs), BATCH):
                    batch = inputs[start : start + BATCH]
                    pairs = zip(batch, ids(server.url, name, batch), tokenizer(batch)["input_ids"])
                    different += [row for row in pairs if row[1] != row[2]]
                print(f"{name:24} {type(tokenizer).__name__:24} {len(inputs)} texts, {len(different)} different", flush=True)
                for text, found, expected in different[:3]:
                    print(f"    {text!r}\n    found    {found}\n    expected {expected}")
                failed += bool(different)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
