#!/usr/bin/env python3
"""Compares Sconce with the reference on 1,000 varied texts and the real model.

    pip install -r scripts/requirements-reference.txt
    python scripts/compare.py [--sconce target/release/sconce] [--model DIR]

Two bars, both on the largest absolute difference of any element of any vector:

    1e-6   normalised sentence vectors against SentenceTransformer.encode
    1e-5   CLS vectors, not normalised, against transformers' last_hidden_state[:, 0]

Exits with 1 if a bar is missed.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = [
    "The lamp on the windowsill had been burning since the afternoon, and nobody remembered lighting it.",
    "How do I reset the password of an account whose mail address no longer exists?",
    "In 1907 the observatory recorded 412 clear nights; the following year, barely 280.",
    "fn main() { println!(\"{:?}\", std::env::args().collect::<Vec<_>>()); }",
    "SELECT id, name FROM users WHERE created_at > '2024-01-01' ORDER BY 2 DESC;",
    "Please find attached the minutes of the meeting, and correct me where I misheard.",
    "It's not that the results are wrong -- they're just not what we asked for!!!",
    "Der schnelle braune Fuchs springt über den faulen Hund, während Großväter Öl kaufen.",
    "L'été dernier, nous avons mangé des crêpes près de la forêt; c'était délicieux.",
    "El niño corrió rápidamente hacia el corazón de la montaña mañana.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "日本語の文章をトークンに分けるのは、英語ほど簡単ではありません。",
    "快速的棕色狐狸跳过了懒狗,然后在树下睡着了。",
    "다람쥐 헌 쳇바퀴에 타고파. 세종대왕은 한글을 만드셨다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णु",
    "Τάχιστη αλώπηξ βαφής ψημένη γη, δρασκελίζει υπέρ νωθρού κυνός",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "🕯️🔥 candle emoji, family 👨‍👩‍👧‍👦 and flags 🇫🇷🇯🇵 with skin tone 👍🏽",
    "e = mc², ∑ᵢ xᵢ ≤ ∞, α→β, ½ + ¼ = ¾, naïve café, ﬁne ligatures, ｆｕｌｌ ｗｉｄｔｈ",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org +49 (0)30 123456-78",
]
EMPTY_ISH = ["", " ", "\t", "   \u00a0 ", ".", "-", "\u200b", "\ufeff", "[CLS]", "[SEP] [MASK]", "a", "é", "e\u0301", "\x01\x02", "�"]


def texts(count=1000):
    rng = random.Random(20261120)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    out = EMPTY_ISH + SENTENCES
    while len(out) < count:
        kind = rng.randrange(6)
        if kind == 0:  # short
            out.append(" ".join(rng.choices(words, k=rng.randint(1, 6))))
        elif kind == 1:  # ordinary
            out.append(" ".join(rng.choices(words, k=rng.randint(7, 60))))
        elif kind == 2:  # around the limit of 256 tokens, and far past it
            out.append(" ".join(rng.choices(words, k=rng.choice([150, 180, 200, 250, 600, 3000]))))
        elif kind == 3:  # sentences of several scripts
            out.append(" ".join(rng.sample(SENTENCES, rng.randint(1, 4))))
        elif kind == 4:  # letters at random: many unknown and rare pieces
            out.append("".join(chr(rng.choice([rng.randint(33, 126), rng.randint(160, 0x2FFF)])) for _ in range(rng.randint(1, 80))))
        else:  # one word over and over, or one endless word
            word = rng.choice(words)
            out.append(rng.choice([" ".join([word] * rng.randint(1, 90)), word * rng.randint(1, 60)]))
    return out[:count]


def run(sconce, model, lines, *options):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "texts.txt"), Path(folder, "vectors.npy")
        source.write_bytes("".join(line + "\n" for line in lines).encode())
        subprocess.run([sconce, "embed", "-m", model, "-i", source, "-o", target, *options], check=True)
        return np.load(target)


@torch.no_grad()
def cls(model, lines, limit):
    tokens, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    out = []
    for start in range(0, len(lines), 25):
        batch = tokens(lines[start : start + 25], padding=True, truncation=True, max_length=limit, return_tensors="pt")
        out.append(encoder(**batch).last_hidden_state[:, 0].numpy())
    return np.concatenate(out)


@torch.no_grad()
def windows(model, text, limit):
    """The mean over a text's windows of the mean over their tokens, weighted by their lengths, scaled to unit length."""
    tokens, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    ids = tokens(text, add_special_tokens=False, verbose=False)["input_ids"]
    parts = [ids[start : start + limit - 2] for start in range(0, len(ids), limit - 2)]
    total, count = np.zeros(encoder.config.hidden_size), 0
    for part in parts:
        window = torch.tensor([[tokens.cls_token_id, *part, tokens.sep_token_id]])
        vector = encoder(input_ids=window).last_hidden_state[0].mean(0).double().numpy()
        total, count = total + vector * window.shape[1], count + window.shape[1]
    return (total / count / np.linalg.norm(total / count))[None], len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--model", help="folder of the model [default: where scripts/fetch_model.sh puts it]")
    args = parser.parse_args()
    model = args.model or subprocess.check_output(
        [args.sconce, "download", "--offline", "sentence-transformers/all-MiniLM-L6-v2"], text=True
    ).strip()
    lines = texts()
    reference = SentenceTransformer(model, device="cpu")
    failed = False
    long = " ".join(random.Random(7).choices(" ".join(lines).split(), k=40_000))
    in_windows, tokens = windows(model, long, reference.max_seq_length)
    assert tokens >= 100_000, tokens
    for what, lines, bar, expected, options in [
        ("normalised sentence vectors", lines, 1e-6, reference.encode(lines, batch_size=32), []),
        ("CLS vectors, not normalised", lines, 1e-5, cls(model, lines, reference.max_seq_length), ["--pooling", "cls", "--no-normalize"]),
        (f"a text of {tokens} tokens in windows", [long], 1e-6, in_windows, ["--on-long", "mean"]),
    ]:
        found = run(args.sconce, model, lines, *options)
        assert found.shape == expected.shape, (found.shape, expected.shape)
        difference = np.abs(found.astype(np.float64) - expected).max(axis=1)
        worst = int(difference.argmax())
        ok = bool(difference.max() <= bar)
        failed |= not ok
        print(
            f"{what}: {len(lines)} texts, largest difference {difference.max():.2e} (text {worst}), "
            f"bar {bar:.0e}: {'ok' if ok else 'MISSED'}"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
