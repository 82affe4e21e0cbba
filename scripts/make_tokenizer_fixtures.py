#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers: vocabularies as model folders have them, and what transformers reads from them.

    pip install -r scripts/requirements-reference.txt
    python scripts/make_tokenizer_fixtures.py

A folder holds the files of one tokenizer, without a `tokenizer.json` or with one and what stands beside it, the part of
`config.json` by which transformers chooses its class, and `goldens.json`: the token and segment ids of each text and pair
of `texts.json`, in its order.
The vocabularies are invented. Running this again changes no byte.
"""

import json
import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "tokenizers"
LONG = "a" * 25

TEXTS = [
    ("the lamp burns", None),
    ("", None),
    (" ", None),
    ("The LAMP burns, Ünïcödé Élan!", None),
    ("e\u0301lan u\u0308ber \u00c5ngstro\u0308m \u0130", None),
    ("灯火lamp灯 火", None),
    ("ランプ 램프 лампа", None),
    ("[MASK] [SEP] the[MASK]lamp [CLS] [mask] [PAD][UNK]", None),
    ("the <mask> burns <mask>. </s><s>lamp</s> <pad> <unk> <MASK>", None),
    ("the  <mask>  lamp <|endoftext|> burns", None),
    ("wick<extra> <extra>WICK [own] [OWN] [NEW] <new> the", None),
    ("<unk_> <cls_> lamp <sep_> the <mask_>burns", None),
    (f"{LONG * 4} the", None),
    (f"{LONG * 4}a the", None),
    ("the\tlamp\nburns\r\non\u00a0wick\u3000lamp", None),
    ("  the lamp  ", None),
    ("the\x00 la\x07mp\ufffd bu\u200brns \x7f\x85x", None),
    ("🕯 lamp🕯️ 👩‍🚀", None),
    ("lamp's don't 1234 -- (wick)", None),
    ("##s s##", None),
    ("zzz ¿the?", None),
    ("the lamp", "a wick Burns"),
    ("", "lamp"),
    ("lamp", ""),
    ("", ""),
    ("Élan <mask> 灯", " the [SEP] </s> lamp "),
]

WORDS = "the lamp a wick burns on elan uber angstrom é élan über ##n ö ##ö å ##ng ##str ##m The LAMP Élan Ünï ##cöd ##é"
MARKS = "s ##s x # , . ! ' - ( ) [ ] < > / _ | 灯 火 ##火 ##lamp ##灯 🕯 e ##l ##an u ##b ##er mask mp la own MASK extra"


def words(*specials):
    vocab = [*specials, *WORDS.split(), *MARKS.split(), LONG, f"##{LONG}", "##a", "don", "t", "12", "##34", "new"]
    return "\n".join(dict.fromkeys(vocab)) + "\n"


def byte_pairs(*specials):
    """A byte-level vocabulary: every byte but that of `z`, and what a few merges make."""
    merges = "l a|m p|la mp|Ġ lamp|t h|th e|Ġ the|Ġ t|Ġ w|i c|ic k|Ġw ick|b u|r n|rn s|bu rns|Ġ burns|a a|Ġ Ġ|Ã ©"
    letters = [letter for letter in bytes_to_unicode().values() if letter != "z"]
    vocab = [*specials, *letters, *("".join(merge.split()) for merge in merges.split("|"))]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(vocab))}
    return {
        "vocab.json": json.dumps(vocab),
        "merges.txt": "#version: 0.2\n" + merges.replace("|", "\n") + "\n",
    }


def token(content, **flags):
    plain = {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return plain | flags


def added(content, **flags):
    return {"__type": "AddedToken"} | token(content, **flags)


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET = ("<s>", "<pad>", "</s>", "[UNK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

TOKENIZERS = {
    "bert-plain": {"vocab.txt": words(*BERT), "config.json": {"model_type": "bert"}},
    # Lines may end as on Windows.
    "bert-uncased": {
        "vocab.txt": words(*BERT).replace("\n", "\r\n"),
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None},
    },
    "bert-cased": {
        "vocab.txt": words(*BERT),
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
    },
    "bert-strip-accents": {
        "vocab.txt": words(*BERT),
        "tokenizer_config.json": {
            "tokenizer_class": "ElectraTokenizer", "do_lower_case": False, "strip_accents": True,
            "tokenize_chinese_chars": False,
        },
    },
    "bert-keep-accents": {
        "vocab.txt": words(*BERT),
        "tokenizer_config.json": {
            "tokenizer_class": "DistilBertTokenizer", "strip_accents": False,
            "mask_token": {"__type": "AddedToken", "content": "[MASK]"},
        },
    },
    # Special tokens by other names, and tokens that were added later: the form of old releases …
    "bert-added": {
        "vocab.txt": words("<pad_>", "<unk_>", "<cls_>", "<mask_>"),
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer", "cls_token": "<not>", "additional_special_tokens": ["[OWN]"],
        },
        "special_tokens_map.json": {
            "pad_token": "<pad_>", "unk_token": "<unk_>", "cls_token": "<cls_>", "sep_token": "<sep_>",
            "mask_token": token("<mask_>", lstrip=True),
        },
        "added_tokens.json": {"[NEW]": 1000, "<extra>": 999, "[OWN]": 998, "<sep_>": 997},
    },
    # A special token that only the class knows for one.
    "bert-added-mask": {
        "vocab.txt": words(*BERT), "config.json": {"model_type": "bert"}, "added_tokens.json": {"[MASK]": 4},
    },
    # … and of newer ones, which wins.
    "bert-added-decoder": {
        "vocab.txt": words(*BERT),
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer", "extra_special_tokens": ["<extra>", added("<new>", single_word=True)],
            "own_token": "[own]",
            "added_tokens_decoder": {
                "1000": token("[NEW]", normalized=True),
                "4": token("[MASK]", rstrip=True, special=True),
                "0": token("[PAD]", special=True),
            },
        },
        "special_tokens_map.json": {"cls_token": "[MASK]"},
        "added_tokens.json": {"the": 7},
    },
    "bert-split-specials": {
        "vocab.txt": words(*BERT),
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "split_special_tokens": True},
    },
    "mpnet": {
        "vocab.txt": words(*MPNET) + "<mask>\n",
        "tokenizer_config.json": {
            "tokenizer_class": "MPNetTokenizer", "do_lower_case": True, "bos_token": "<s>", "mask_token": "<mask>",
        },
    },
    # The class by the model's own config.
    "mpnet-plain": {"vocab.txt": words(*MPNET, "<mask>"), "config.json": {"model_type": "mpnet"}},
    "mpnet-class": {
        "vocab.txt": words(*MPNET, "<mask>"),
        "config.json": {"model_type": "bert", "tokenizer_class": "MPNetTokenizer"},
        "tokenizer_config.json": {
            "do_lower_case": False, "mask_token": added("<mask>", normalized=True), "sep_token": "<pad>",
        },
    },
    "roberta": {
        **byte_pairs(*ROBERTA),
        "tokenizer_config.json": {
            "tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "trim_offsets": True,
            "bos_token": added("<s>", normalized=True), "cls_token": added("<s>", normalized=True),
            "mask_token": added("<mask>", lstrip=True),
        },
        "special_tokens_map.json": {"unk_token": "<unk>"},
    },
    "roberta-plain": {**byte_pairs(*ROBERTA), "config.json": {"model_type": "roberta"}},
    # As releases since 4.34 write it: the flags are in the list.
    "roberta-decoder": {
        **byte_pairs(*ROBERTA),
        "tokenizer_config.json": {
            "tokenizer_class": "RobertaTokenizer", "mask_token": "<mask>",
            "added_tokens_decoder": {
                str(i): token(name, lstrip=name == "<mask>", normalized=True, special=True)
                for i, name in enumerate(ROBERTA)
            },
        },
    },
    "roberta-prefix-space": {
        **byte_pairs(*ROBERTA),
        "tokenizer_config.json": {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True},
        "special_tokens_map.json": {"mask_token": token("<mask>", lstrip=True, rstrip=True)},
    },
    "gpt2": {
        **byte_pairs("<|endoftext|>"),
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "pad_token": None},
    },
    "gpt2-ends": {
        **byte_pairs("<|endoftext|>", "<s>"),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "add_bos_token": True, "add_eos_token": True,
        },
    },
}


SPM = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPM_BERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
DEBERTA = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


def saved(model, normalizer, pre_tokenizer, ends, added, pair_type=1):
    """A tokenizer.json: `ends` stand around a text, `added` are its special tokens (a dict is of an AddedToken)."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    for one in added:
        fields = {"content": one} if isinstance(one, str) else dict(one)
        tokenizer.add_special_tokens([AddedToken(**fields)])
    if ends:
        first, last = ends
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=f"{first} $A {last} $B:{pair_type} {last}:{pair_type}",
            special_tokens=[(end, tokenizer.token_to_id(end)) for end in ends],
        )
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def word_pieces(specials=None, unknown="[UNK]", ends=("[CLS]", "[SEP]"), added=None, longest=100, **casing):
    specials = BERT if specials is None else specials
    vocab = {token: i for i, token in enumerate(words(*specials).split("\n")[:-1])}
    model = models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=longest)
    normalizer = normalizers.BertNormalizer(**casing)
    return saved(model, normalizer, pre_tokenizers.BertPreTokenizer(), ends, specials if added is None else added)


def byte_level(specials, prefix, ends=None, added=None, normalizer=None):
    files = byte_pairs(*specials)
    vocab = json.loads(files["vocab.json"])
    merges = [tuple(line.split(" ")) for line in files["merges.txt"].splitlines()[1:]]
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    added = specials if added is None else added
    return saved(models.BPE(vocab=vocab, merges=merges), normalizer, pre_tokenizer, ends, added, pair_type=0)


def pieces(specials, ends, normalizer=None, prefix="always", unknown=0, pair_type=0):
    """SentencePiece: pieces with scores, and bytes for what is unknown, which transformers leaves out."""
    texts = "the lamp a wick burns on elan uber angstrom é élan Élan über la mp ic k bu rns LAMP The 灯 火 ( ) , . ! ' s don t 12 34"
    whole = [f"▁{word}" for word in texts.split()] + texts.split()
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyABCDELMPTW1234<>/_[]"]
    vocab = [(token, 0.0) for token in specials]
    vocab += [(piece, -2 - i / 8) for i, piece in enumerate(dict.fromkeys(whole))]
    known = {token for token, _ in vocab}
    vocab += [(letter, -12.5 - i / 4) for i, letter in enumerate(letters) if letter not in known]
    model = models.Unigram(vocab, unk_id=unknown, byte_fallback=False)
    pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prefix)
    return saved(model, normalizer, pre_tokenizer, ends, specials, pair_type)


def beside(file, config=None, **more):
    """A tokenizer.json and what stands beside it."""
    files = {"tokenizer.json": file, "config.json": {"model_type": config} if isinstance(config, str) else config}
    names = {"said": "tokenizer_config.json", "special_map": "special_tokens_map.json", "added": "added_tokens.json"}
    files |= {names[key]: value for key, value in more.items()}
    return {name: content for name, content in files.items() if content is not None}


def make(name, files):
    folder = FOLDER / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        if not isinstance(content, str):
            content = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / file).write_bytes(content.encode())
    tokens = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text, pair in TEXTS:
        # As a batch of one: outside of a batch, transformers takes an empty pair for none.
        encoded = tokens([text], None if pair is None else [pair], return_token_type_ids=True)
        rows.append({"ids": encoded["input_ids"][0], "type_ids": encoded["token_type_ids"][0]})
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (folder / "goldens.json").write_text(f"[\n{lines}\n]\n")


def json_tokenizers():
    lower = word_pieces(lowercase=True)
    cased = word_pieces(lowercase=False, strip_accents=False)
    nfkc = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    bert = {"tokenizer_class": "BertTokenizer"}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    decoder = {
        "0": token("[PAD]", special=True), "4": token("[MASK]", lstrip=True, rstrip=True, special=True),
        "1000": token("[NEW]", normalized=True), "1001": token("<extra>", single_word=True, special=True),
    }
    return {
        # The class rebuilds the tokenizer from its vocabulary: what the file says of casing and splitting is left aside.
        "json-bert": beside(lower, "bert", said=bert),
        "json-bert-cased": beside(lower, "bert", said=bert | {"do_lower_case": False, "strip_accents": None}),
        "json-bert-bare": beside(cased, "bert"),
        "json-bert-config-class": beside(cased, {"model_type": "roberta", "tokenizer_class": "BertTokenizerFast"}),
        "json-bert-accents": beside(
            lower, "nomic_bert", said=bert | {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
        ),
        "json-bert-other-file": beside(
            word_pieces(unknown="x", longest=5, ends=("[SEP]", "[CLS]"), lowercase=True), "bert", said=bert,
        ),
        "json-bert-special-map": beside(
            lower, "bert", said=bert | {"additional_special_tokens": ["<extra>"], "own_token": "[own]"},
            special_map={"cls_token": "[MASK]", "sep_token": token("x"), "mask_token": token("wick", lstrip=True)},
        ),
        "json-bert-added": beside(
            lower, "bert", said=bert | {"additional_special_tokens": ["[OWN]"]},
            added={"[NEW]": 1000, "<extra>": 999, "[OWN]": 998},
        ),
        "json-bert-decoder": beside(
            lower, "bert", said=bert | {"extra_special_tokens": ["<new>"], "added_tokens_decoder": decoder},
            special_map={"cls_token": "[MASK]"}, added={"the": 7},
        ),
        "json-bert-split-specials": beside(lower, "bert", said=bert | {"split_special_tokens": True}),
        "json-distilbert": beside(cased, "distilbert", said={"tokenizer_class": "DistilBertTokenizer"}),
        "json-mpnet": beside(
            word_pieces((*MPNET, "<mask>"), ends=("<s>", "</s>"), lowercase=False), "mpnet",
            said={"tokenizer_class": "MPNetTokenizer", "mask_token": "<mask>"},
        ),
        "json-roberta": beside(byte_level(ROBERTA, True, ("</s>", "<s>")), "roberta", said={"tokenizer_class": "RobertaTokenizer"}),
        "json-roberta-prefix": beside(
            byte_level(ROBERTA, False, ("<s>", "</s>"), normalizer=nfkc), "roberta",
            said={"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True, "mask_token": added("<mask>", lstrip=True)},
        ),
        "json-gpt2": beside(
            byte_level(("<|endoftext|>",), True), {"model_type": "gpt2"},
            said={"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True},
        ),
        "json-gpt2-ends": beside(
            byte_level(("<|endoftext|>", "<s>"), False, ("<s>", "<|endoftext|>")), {"model_type": "gpt2"},
            said={"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        ),
        "json-xlm-roberta": beside(
            pieces(SPM, ("</s>", "<s>"), nfkc, unknown=1), "xlm-roberta", said={"tokenizer_class": "XLMRobertaTokenizer"},
        ),
        "json-xlm-roberta-no-prefix": beside(
            pieces(SPM, ("<s>", "</s>"), unknown=3), "new",
            said={
                "tokenizer_class": "XLMRobertaTokenizerFast", "add_prefix_space": False, "bos_token": "<pad>",
                "additional_special_tokens": ["<extra>"],
            },
        ),
        "json-camembert": beside(pieces(SPM, ("<s>", "</s>"), nfkc, "first"), "camembert"),
        "json-albert": beside(pieces(SPM_BERT, ("[CLS]", "[SEP]"), pair_type=1), "albert"),
        "json-albert-cased": beside(
            pieces(SPM_BERT, None, nfkc), "albert",
            said={"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True, "add_prefix_space": False},
        ),
        "json-deberta-v2": beside(
            pieces(DEBERTA, ("[SEP]", "[CLS]"), nfkc), "deberta-v2",
            said={"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False},
        ),
        "json-deberta-v2-lower": beside(
            pieces(DEBERTA, ("[CLS]", "[SEP]")), "deberta-v2",
            said={
                "tokenizer_class": "DebertaV2TokenizerFast", "do_lower_case": True, "split_by_punct": True,
                "add_prefix_space": False,
            },
        ),
        "json-rembert": beside(pieces(SPM_BERT, ("[CLS]", "[SEP]"), nfkc), "rembert", said={"do_lower_case": True, "keep_accents": False}),
        # These classes take the file as it is, and only add tokens to it.
        "json-as-is": beside(
            word_pieces(unknown="x", longest=5, ends=("[SEP]", "[CLS]"), lowercase=False), "bert",
            said=fast | {"do_lower_case": True, "add_prefix_space": True, "cls_token": "[CLS]", "pad_token": "<pad>"},
        ),
        "json-as-is-added": beside(
            lower, "bert", said=fast | {"additional_special_tokens": ["<extra>"], "added_tokens_decoder": decoder},
        ),
        "json-as-is-split-specials": beside(lower, "bert", said=fast | {"split_special_tokens": True}),
        "json-as-is-unknown-class": beside(cased, "eurobert", said={"tokenizer_class": "NoSuchTokenizer", "do_lower_case": True}),
        "json-as-is-modernbert": beside(cased, "modernbert", said=bert | {"do_lower_case": True}),
        "json-as-is-frameless": beside(word_pieces(ends=None), "bert", said=fast),
    }


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, files in (TOKENIZERS | json_tokenizers()).items():
        make(name, files)
    texts = [{"text": text, "pair": pair} for text, pair in TEXTS]
    (FOLDER / "texts.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    main()
