#!/usr/bin/env python3
"""Makes the pipelines under tests/fixtures/pipelines and their goldens with sentence-transformers.

    pip install -r scripts/requirements-reference.txt
    python scripts/make_pipeline_fixtures.py

Every folder is a model that sentence-transformers has saved, some of them rewritten as releases before 5.4 wrote
them. Beside it lie

    goldens.json          the texts, and cases: the options of `sconce embed`, and the name of a tensor
    goldens.safetensors   for each case, the vectors that `SentenceTransformer.encode` gives for the folder as it is

`poolers.safetensors` has the `pooler_output` of transformers for some of the models of make_fixtures.py.

Seeds are fixed: running this again changes no byte under the versions that requirements-reference.txt names.
"""

import json
import shutil

import numpy as np
import torch
from make_fixtures import FIXTURES, OLD_SCHEMA, tokenizer, widen
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

PIPELINES = FIXTURES / "pipelines"
WIDTH = 16
LIMIT = 24
TEXTS = ["the candle burns", "", "A lamp, a wick and a flame: burning!", "lamp " * 40, "Ünïcödé 灯 key"]
ALL_MODES = tuple(OLD_SCHEMA.values())
# The largest of no tokens is no number.
OF_NOTHING = tuple(mode for mode in ALL_MODES if mode != "max")


def options(kwargs):
    """The options of `sconce embed` that stand for arguments of `encode`."""
    flags = {
        "prompt": "--prompt", "prompt_name": "--prompt-name", "truncate_dim": "--dimensions",
        "normalize_embeddings": "--normalize",
    }
    return [word for key, value in kwargs.items() for word in ([flags[key]] if value is True else [flags[key], str(value)])]


def make(name, seed, pooling, heads=(), *, old=False, cases=({},), texts=TEXTS, template=None, flags=None, **settings):
    """Builds and saves a pipeline, rewrites it if it is to be an old one, and lets it embed the texts."""
    folder, work = PIPELINES / name, PIPELINES / f"{name}.work"
    work.mkdir(parents=True)
    vocab_size = tokenizer(work, LIMIT, second_segment=True)
    if template:
        fast = Tokenizer.from_file(str(work / "tokenizer.json"))
        fast.post_processor = template(fast)
        fast.save(str(work / "tokenizer.json"))
    config = AutoConfig.for_model(
        "bert", vocab_size=vocab_size, hidden_size=WIDTH, num_attention_heads=2, num_hidden_layers=1, intermediate_size=20,
        max_position_embeddings=LIMIT, type_vocab_size=2,
    )
    encoder = AutoModel.from_config(config)
    widen(encoder, seed)
    encoder.save_pretrained(work)
    transformer = Transformer(str(work), max_seq_length=LIMIT)
    for i, head in enumerate(heads):
        widen(head, seed * 100 + i)
    model = SentenceTransformer(modules=[transformer, pooling, *heads], device="cpu", **settings)
    model.save(str(folder), create_model_card=False)
    if template or old:
        shutil.copy(work / "tokenizer.json", folder / "tokenizer.json")
    if template:
        # The class of BERT has a template of its own.
        edit(folder / "tokenizer_config.json", lambda fields: fields | {"tokenizer_class": "PreTrainedTokenizerFast"})
    shutil.rmtree(work)
    if old:
        as_before(folder, flags)
    reference = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    rows, tensors = [], {}
    for i, kwargs in enumerate(cases):
        vectors = np.asarray(reference.encode(texts, **kwargs), dtype=np.float32)
        tensors[f"case.{i}"] = torch.from_numpy(vectors)
        rows.append({"options": options(kwargs), "vectors": f"case.{i}"})
    save_file(tensors, folder / "goldens.safetensors")
    (folder / "goldens.json").write_text(json.dumps({"texts": texts, "cases": rows}, ensure_ascii=False, indent=1) + "\n")


def edit(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2) + "\n")


def as_before(folder, flags):
    """Rewrites a pipeline as releases before 5.4 wrote it."""
    for module in json.loads((folder / "modules.json").read_text()):
        kind, path = module["type"].rsplit(".", 1)[1], module["path"]
        if kind == "Pooling":
            edit(folder / path / "config.json", lambda fields: old_pooling(fields) | (flags or {}))
        elif kind == "Dense":
            kept = ("in_features", "out_features", "bias", "activation_function")
            edit(folder / path / "config.json", lambda fields: {key: fields[key] for key in kept})
        elif kind == "Normalize":
            # It was saved as an empty folder, which a repository does not keep.
            shutil.rmtree(folder / path)
    edit(folder / "modules.json", lambda modules: [old_type(module) for module in modules])
    versions = {"sentence_transformers": "2.2.2", "transformers": "4.26.0", "pytorch": "1.13.1"}
    kept = ("prompts", "default_prompt_name", "truncate_dim")
    edit(
        folder / "config_sentence_transformers.json",
        lambda fields: {"__version__": versions} | {key: fields[key] for key in kept if key in fields},
    )
    settings = {"max_seq_length": LIMIT, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def old_type(module):
    return module | {"type": "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]}


def old_pooling(fields):
    modes = fields["pooling_mode"]
    modes = [modes] if isinstance(modes, str) else modes
    flags = {f"pooling_mode_{old}": new in modes for old, new in OLD_SCHEMA.items()}
    include = {} if fields["include_prompt"] else {"include_prompt": False}
    return {"word_embedding_dimension": fields["embedding_dimension"], **flags, **include}


def only(*parts):
    """A template of these parts."""
    def template(fast):
        specials = [part for part in parts if part.startswith("[")]
        return TemplateProcessing(single=" ".join(parts), special_tokens=[(part, fast.token_to_id(part)) for part in specials])

    return template


def without_normalize():
    """Cases for a pipeline that does not end in Normalize."""
    return [{}, {"normalize_embeddings": True}, {"truncate_dim": 5}, {"truncate_dim": 5, "normalize_embeddings": True}]


@torch.no_grad()
def poolers():
    tensors = {}
    for name in ("bert-tiny", "roberta", "ernie", "albert", "mpnet"):
        folder = FIXTURES / name
        fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).double().eval()
        limit = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
        rows = []
        for text in TEXTS:
            encoded = fast(text, truncation=True, max_length=limit, return_tensors="pt")
            inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
            rows.append(model(**inputs).pooler_output[0])
        tensors[name] = torch.stack(rows).float()
    save_file(tensors, PIPELINES / "poolers.safetensors")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shutil.rmtree(PIPELINES, ignore_errors=True)
    make("dense", 41, Pooling(WIDTH, "mean"), [Dense(WIDTH, 12), Normalize()])
    make(
        "two-denses", 42, Pooling(WIDTH, ("cls", "mean")), old=True, cases=without_normalize(),
        heads=[
            Dense(2 * WIDTH, 20, bias=False, activation_function=nn.Identity()),
            Dense(20, 8, activation_function=nn.GELU()),
        ],
    )
    make("layer-norm", 43, Pooling(WIDTH, "max"), [LayerNorm(WIDTH)], cases=without_normalize())
    make(
        "normalize-around", 44, Pooling(WIDTH, "mean_sqrt_len_tokens"), old=True,
        heads=[
            Normalize(), Dropout(0.5), Dense(WIDTH, 10, bias=False, activation_function=nn.Sigmoid()), LayerNorm(10),
            Normalize(),
        ],
    )
    make(
        "residuals", 45, Pooling(WIDTH, ("weightedmean", "lasttoken")), cases=without_normalize(),
        heads=[
            Dense(2 * WIDTH, 2 * WIDTH, activation_function=nn.SiLU(), use_residual=True),
            Dropout(0.1),
            Dense(2 * WIDTH, 6, bias=False, activation_function=nn.ReLU(), use_residual=True),
        ],
    )
    prompts = {"query": "query: ", "passage": "the lamp of a ", "none": ""}
    named = [{}, {"prompt_name": "passage"}, {"prompt_name": "none"}, {"prompt": "key"}, {"prompt": ""}]
    make(
        "prompts", 46, Pooling(WIDTH, "mean"), [Normalize()], prompts=prompts, default_prompt_name="query", cases=named,
    )
    # A text of a prompt's own last word: it goes on where the prompt ends.
    joining = TEXTS + ["s on the wick"]
    make(
        "prompts-left-out", 47, Pooling(WIDTH, ALL_MODES, include_prompt=False), prompts=prompts, texts=joining,
        cases=[*named, {"prompt": "lamp"}, {"prompt": "a " * 40}, {"prompt": "a [SEP]"}],
    )
    # Without a special token at the end, and without any: "p" and the prompt "lam" are one token, less than the prompt.
    make(
        "prompts-left-out-cls", 48, Pooling(WIDTH, OF_NOTHING, include_prompt=False), [Dense(5 * WIDTH, 9)], old=True,
        texts=joining, prompts=prompts, default_prompt_name="passage", template=only("[CLS]", "$A"), cases=named,
    )
    make(
        "prompts-left-out-bare", 49, Pooling(WIDTH, OF_NOTHING, include_prompt=False),
        texts=["p", "p on", "candle"], template=only("$A"), cases=[{}, {"prompt": "lam"}, {"prompt": "the "}],
    )
    make(
        "truncated", 50, Pooling(WIDTH, "cls"), [Normalize()], truncate_dim=7,
        cases=[{}, {"normalize_embeddings": True}],
    )
    make("no-flags", 51, Pooling(WIDTH, "mean"), [Normalize()], old=True, flags={"pooling_mode_mean_tokens": False})
    poolers()


if __name__ == "__main__":
    main()
