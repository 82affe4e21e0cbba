#!/usr/bin/env python3
"""Makes the tiny models under tests/fixtures and their goldens with the reference implementation.

    pip install -r scripts/requirements-reference.txt
    python scripts/make_fixtures.py

Every folder is a model as sentence-transformers saves it, with weights wide enough that a wrong activation,
eps, offset or norm shows, and beside it:

    goldens.json          the texts (and pairs), and the token and segment ids of each
    goldens.safetensors   hidden states of all texts, one after another, after every stage (embeddings,
                          layer.0, …), and the vectors of each pooling; computed in float64, stored as float32

Seeds are fixed: running this again changes no byte under the versions that requirements-reference.txt names.
`all-MiniLM-L6-v2.*` are vectors of the real model, for which `scripts/fetch_model.sh` has to have run.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import plain_encoder
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertTokenizerFast, PreTrainedTokenizerFast

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the a of to in is on and light lamp candle wick flame burn ##s ##ing ##ed ##er attention head key query value".split()

TEXTS = [
    ("the candle burns", None),
    ("", None),
    ("A lamp, a wick and a flame: burning!", None),
    ("Ünïcödé 灯 lamp 🕯 ok", None),
    (" ".join(["attention head key query value"] * 12), None),
    ("the lamp is on", "a candle is burning in the light"),
    ("query", " ".join(["key value"] * 30)),
    (" ".join(["lamp"] * 40), " ".join(["wick"] * 40)),
]


# The flags of releases before 5.4, in the order in which they were joined.
OLD_SCHEMA = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean", "lasttoken": "lasttoken",
}
POOLINGS = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean-sqrt-len", "weightedmean": "weighted-mean",
    "lasttoken": "last",
}


def tokenizer(folder, limit, second_segment):
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    digits = [str(d) for d in range(10)]
    vocab = SPECIALS + letters + digits + [f"##{c}" for c in letters] + list(".,:;!?'-") + WORDS + ["灯"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(vocab))}
    fast = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    fast.normalizer = BertNormalizer(lowercase=True)
    fast.pre_tokenizer = BertPreTokenizer()
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if second_segment else "[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    BertTokenizerFast(tokenizer_object=fast, model_max_length=limit, do_lower_case=True).save_pretrained(folder)
    fast.save(str(folder / "tokenizer.json"))
    if not second_segment:
        # The class of BERT has a template of its own, with two segments.
        path = folder / "tokenizer_config.json"
        path.write_text(path.read_text().replace('"BertTokenizer"', '"PreTrainedTokenizerFast"'))
    return len(vocab)


def draw(name, shape, generator):
    """A weight: matrices and tables normal, norms around 1, biases not zero."""
    if re.search(r"(norm\d?|ln)\.weight$", name.lower()):
        return torch.rand(shape, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 0.25)


def widen(model, seed, kept=()):
    """Draws every weight anew, but those that are kept."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if not name.endswith(kept):
                weight.copy_(draw(name, weight.shape, generator))


def make(
    name, *, seed, config, limit, pooling="mean", normalize=True, model_type="bert", masked_lm=False, dtype=torch.float32,
    omit=(), old_schema=False, left_out=(), rewrite=None, frequencies=None, native=False,
):
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    segments = config.get("type_vocab_size", 0)
    vocab_size = tokenizer(folder, config["max_position_embeddings"], second_segment=segments > 1)
    config = AutoConfig.for_model(model_type, vocab_size=vocab_size, **config)
    model = (AutoModelForMaskedLM if masked_lm else AutoModel).from_config(config)
    widen(model, seed, left_out)
    model.to(dtype).save_pretrained(folder / "plain")

    # As sentence-transformers saves it: its own files around the model's.
    transformer = Transformer(str(folder / "plain"), tokenizer_name_or_path=str(folder), max_seq_length=limit)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)]
    modules += [Normalize()] if normalize else []
    saved = folder / "saved"
    SentenceTransformer(modules=modules, device="cpu").save(str(saved), create_model_card=False)
    for path in sorted(saved.rglob("*")):
        if path.is_file() and path.suffix == ".json" and path.name not in ("special_tokens_map.json", "tokenizer.json"):
            target = folder / path.relative_to(saved)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    # The checkpoint as transformers writes it, with its prefix, head and storage type.
    for file in ("config.json", "model.safetensors"):
        shutil.copy(folder / "plain" / file, folder / file)
    if native:
        # transformers names some models by their first code when it saves them, but not inside.
        save_file({name: weight.contiguous() for name, weight in model.state_dict().items()}, folder / "model.safetensors")
    if left_out:
        # Tensors that some checkpoints go without.
        weights = load_file(folder / "model.safetensors")
        weights = {name: weight for name, weight in weights.items() if not name.endswith(left_out)}
        save_file(weights, folder / "model.safetensors")
    # Fields that older configs leave to the defaults.
    fields = json.loads((folder / "config.json").read_text())
    fields = {key: value for key, value in fields.items() if key not in omit}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    if old_schema:
        path = folder / "1_Pooling" / "config.json"
        modes = json.loads(path.read_text())["pooling_mode"]
        flags = {f"pooling_mode_{old}": new in modes for old, new in OLD_SCHEMA.items()}
        path.write_text(json.dumps({"word_embedding_dimension": 0, **flags}, indent=2) + "\n")
    # The pipeline as older releases write it, which is what most models on the hub have.
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": limit, "do_lower_case": False}, indent=2) + "\n"
    )
    shutil.rmtree(folder / "plain")
    shutil.rmtree(saved)
    goldens(folder, limit, frequencies)
    if rewrite:
        # The config as the model's first code has it, which transformers cannot run.
        (folder / "config.json").write_text(json.dumps(rewrite(fields), indent=2) + "\n")


@torch.no_grad()
def goldens(folder, limit, frequencies=None):
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).double().eval()
    takes_segments = getattr(model.config, "type_vocab_size", 0) > 0 and model.config.model_type != "distilbert"
    reference = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).double()
    if frequencies:
        for encoder in (model, reference[0].auto_model):
            encoder.rotary_emb.inv_freq.copy_(frequencies(encoder.rotary_emb.inv_freq))

    def states_of(encoded):
        inputs = {k: v for k, v in encoded.items() if takes_segments or k != "token_type_ids"}
        out = model(**inputs, output_hidden_states=True)
        # ALBERT shows the layers inside of a group, too.
        states = list(out.hidden_states[:: getattr(model.config, "inner_group_num", 1)])
        assert len(states) == model.config.num_hidden_layers + 1
        # With the final norm, where there is one.
        states[-1] = out.last_hidden_state
        return [state[0] for state in states]

    singles = [text for text, pair in TEXTS if pair is None]
    save_goldens(folder, limit, tokens, states_of, lambda _: reference.encode(singles))


def save_goldens(folder, limit, tokens, states_of, sentence_vectors):
    """Stages by `states_of(encoding)`, poolings by sentence-transformers' own module, and the vectors that the command
    has to give by `sentence_vectors(means)`."""
    rows, stages, pooled = [], {}, {}
    for text, pair in TEXTS:
        encoded = tokens(
            text, pair, truncation="longest_first", max_length=limit, return_tensors="pt", return_token_type_ids=True
        )
        states = states_of(encoded)
        for i, hidden in enumerate(states):
            stages.setdefault("embeddings" if i == 0 else f"layer.{i - 1}", []).append(hidden)
        last = states[-1]
        for mode, name in POOLINGS.items():
            features = {"token_embeddings": last[None], "attention_mask": torch.ones(1, len(last), dtype=torch.long)}
            vector = Pooling(last.shape[1], pooling_mode=mode)(features)["sentence_embedding"][0]
            pooled.setdefault(name, []).append(vector)
        rows.append(
            {
                "text": text,
                "pair": pair,
                "ids": encoded["input_ids"][0].tolist(),
                "type_ids": encoded["token_type_ids"][0].tolist(),
            }
        )
    tensors = {name: torch.cat(parts).float().contiguous() for name, parts in stages.items()}
    tensors |= {f"pooled.{name}": torch.stack(parts).float().contiguous() for name, parts in pooled.items()}
    means = [vector for vector, (_, pair) in zip(pooled["mean"], TEXTS) if pair is None]
    tensors["sentence"] = torch.from_numpy(np.asarray(sentence_vectors(means), dtype=np.float32))
    save_file(tensors, folder / "goldens.safetensors")
    (folder / "goldens.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")


def make_plain(name, *, seed, config, limit, dtype=torch.float32, prefix=""):
    """A model that transformers does not have; its reference is plain_encoder.py, its pooling the mean."""
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vocab_size = tokenizer(folder, limit, second_segment=config.get("type_vocab_size", 2) > 1)
    config = {
        "model_type": "bert", "vocab_size": vocab_size, "hidden_size": 24, "num_attention_heads": 3,
        "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 40, "type_vocab_size": 2,
        "hidden_act": "gelu", "layer_norm_eps": 1e-4,
    } | config
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generator = torch.Generator().manual_seed(seed)
    shapes = sorted(plain_encoder.shapes(config).items())
    weights = {name: draw(name, shape, generator).to(dtype) for name, shape in shapes}
    save_file({prefix + name: weight for name, weight in weights.items()}, folder / "model.safetensors")

    weights = {name: weight.double() for name, weight in weights.items()}
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    states_of = lambda encoded: plain_encoder.encode(
        config, weights, encoded["input_ids"][0], encoded["token_type_ids"][0]
    )
    save_goldens(folder, limit, tokens, states_of, lambda means: [mean.numpy() for mean in means])


def activations():
    """`f(x)` of every activation that configs name, from PyTorch in float64."""
    from transformers.activations import ACT2FN, XIELUActivation

    x = torch.cat([torch.linspace(-12, 12, 961), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4])])
    # Its weights are in bf16 as they begin.
    functions = {name: ACT2FN[name] for name in sorted(ACT2FN)} | {"xielu": XIELUActivation(dtype=torch.float64)}
    tensors = {name: f.double()(x.double()).detach().float().clone() for name, f in functions.items()}
    save_file({"x": x, **tensors}, FIXTURES / "activations.safetensors")


def real_model():
    """Vectors of all-MiniLM-L6-v2 for the hand-written texts of compare.py and two that are too long."""
    from compare import EMPTY_ISH, SENTENCES

    folder = subprocess.check_output([FIXTURES.parent.parent / "scripts" / "fetch_model.sh"], text=True).strip()
    reference = SentenceTransformer(folder, device="cpu")
    texts = EMPTY_ISH + SENTENCES + [" ".join(SENTENCES), "lamp " * 1000]
    vectors = torch.from_numpy(np.asarray(reference.encode(texts), dtype=np.float32))
    save_file({"sentence": vectors}, FIXTURES / "all-MiniLM-L6-v2.safetensors")
    (FIXTURES / "all-MiniLM-L6-v2.json").write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    real_model()
    small = dict(
        hidden_size=36, num_attention_heads=3, num_hidden_layers=2, intermediate_size=52, max_position_embeddings=40,
        type_vocab_size=2,
    )
    make("bert-tiny", seed=1, config=small, limit=24, pooling="mean", normalize=True)
    make(
        "bert-masked-lm", seed=2, limit=32, pooling="cls", normalize=False, masked_lm=True, dtype=torch.float16,
        config=dict(
            hidden_size=64, num_attention_heads=4, num_hidden_layers=3, intermediate_size=48,
            max_position_embeddings=32, type_vocab_size=3, hidden_act="gelu_new", layer_norm_eps=1e-3,
        ),
    )
    make(
        "bert-relu", seed=3, limit=40, pooling="max", normalize=True, dtype=torch.bfloat16,
        config=dict(small, hidden_act="relu", hidden_size=40, num_attention_heads=1, num_hidden_layers=1, layer_norm_eps=1e-5),
    )
    families()
    pre_norm_and_rotary()
    first_code()
    variations()
    activations()


def families():
    """A tiny model of every family, each with sizes of its own."""
    sizes = dict(
        hidden_size=24, num_attention_heads=2, num_hidden_layers=2, intermediate_size=40, max_position_embeddings=40,
        layer_norm_eps=1e-4,
    )
    make("roberta", seed=10, model_type="roberta", limit=36, config=dict(sizes, type_vocab_size=1))
    make(
        "xlm-roberta", seed=11, model_type="xlm-roberta", limit=30, masked_lm=True,
        config=dict(sizes, type_vocab_size=1, pad_token_id=7, num_attention_heads=4, hidden_act="gelu_new"),
    )
    make("camembert", seed=12, model_type="camembert", limit=38, pooling="weightedmean", config=dict(sizes, type_vocab_size=2, hidden_size=26))
    make("data2vec-text", seed=13, model_type="data2vec-text", limit=34, masked_lm=True, config=dict(sizes, type_vocab_size=1))
    make(
        "ernie", seed=14, model_type="ernie", limit=40, pooling=("cls", "mean"), old_schema=True,
        config=dict(sizes, type_vocab_size=4, task_type_vocab_size=3, use_task_id=True, hidden_act="relu"),
    )
    make("electra", seed=15, model_type="electra", limit=40, pooling=("lasttoken", "mean", "cls"), config=dict(sizes, type_vocab_size=2, embedding_size=17))
    make(
        "electra-same-size", seed=16, model_type="electra", limit=40, masked_lm=True,
        config=dict(sizes, type_vocab_size=2, embedding_size=24),
    )
    make(
        "albert", seed=17, model_type="albert", limit=40, omit=("hidden_act", "layer_norm_eps"),
        config=dict(sizes, type_vocab_size=2, embedding_size=10, num_hidden_layers=5),
    )
    make(
        "albert-groups", seed=18, model_type="albert", limit=40, masked_lm=True,
        config=dict(
            sizes, type_vocab_size=2, embedding_size=24, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2,
            hidden_act="gelu",
        ),
    )
    make(
        "mpnet", seed=20, model_type="mpnet", limit=60, pooling="max",
        config=dict(sizes, max_position_embeddings=160, relative_attention_num_buckets=36, pad_token_id=5),
    )
    make(
        "bert-prelu", seed=21, limit=40, masked_lm=True,
        config=dict(sizes, type_vocab_size=2, hidden_act="prelu"),
    )
    make("bert-xielu", seed=22, limit=40, config=dict(sizes, type_vocab_size=2, hidden_act="xielu"))
    make(
        "distilbert", seed=19, model_type="distilbert", limit=40, masked_lm=True, pooling=("mean_sqrt_len_tokens", "max"),
        normalize=False,
        config=dict(dim=24, n_heads=3, n_layers=3, hidden_dim=44, max_position_embeddings=40),
    )


def pre_norm_and_rotary():
    """The families whose layers differ from BERT's."""
    sizes = dict(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=3, intermediate_size=40, max_position_embeddings=40,
        layer_norm_eps=1e-4, pad_token_id=0,
    )
    make("megatron-bert", seed=30, model_type="megatron-bert", limit=40, masked_lm=True, config=dict(sizes, type_vocab_size=2))
    make(
        "roberta-prelayernorm", seed=31, model_type="roberta-prelayernorm", limit=36, masked_lm=True,
        config=dict(sizes, type_vocab_size=2, pad_token_id=1, hidden_act="gelu_new"),
    )
    make(
        "xlm-roberta-xl", seed=32, model_type="xlm-roberta-xl", limit=36, masked_lm=True, omit=("layer_norm_eps",),
        config=dict(sizes, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5),
    )
    make(
        "rembert", seed=33, model_type="rembert", limit=40, pooling="cls",
        config=dict(sizes, type_vocab_size=2, input_embedding_size=18, output_embedding_size=20),
    )
    make("roformer", seed=34, model_type="roformer", limit=40, config=dict(sizes, type_vocab_size=2, embedding_size=14, hidden_act="relu"))
    make(
        "roformer-values", seed=35, model_type="roformer", limit=40, masked_lm=True, left_out=("embed_positions.weight",),
        config=dict(sizes, type_vocab_size=2, rotary_value=True),
    )
    make("nomic-bert", seed=36, model_type="nomic_bert", limit=40, config=dict(sizes, type_vocab_size=2))

    def older(fields):
        """Without the list of layers and the parameters of each kind, as the models on the hub have it."""
        fields = {key: value for key, value in fields.items() if key not in ("layer_types", "rope_parameters")}
        return fields | {"global_attn_every_n_layers": 2, "global_rope_theta": 700.0, "local_rope_theta": 60.0}

    make(
        "modernbert", seed=37, model_type="modernbert", limit=40, masked_lm=True, pooling="cls", omit=("norm_eps",),
        rewrite=older,
        config=dict(
            without_eps(sizes), num_hidden_layers=4, local_attention=7, global_attn_every_n_layers=2,
            rope_parameters={"full_attention": {"rope_theta": 700.0}, "sliding_attention": {"rope_theta": 60.0}},
        ),
    )
    make(
        "modernbert-biases", seed=38, model_type="modernbert", limit=40, dtype=torch.bfloat16,
        config=dict(
            without_eps(sizes), norm_bias=True, attention_bias=True, mlp_bias=True, norm_eps=1e-3, local_attention=10,
            hidden_activation="silu", layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 50.0},
            },
        ),
    )
    make(
        "eurobert", seed=39, model_type="eurobert", limit=40, pooling="lasttoken",
        config=dict(without_eps(sizes), num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-3),
    )
    make(
        "eurobert-yarn", seed=40, model_type="eurobert", limit=40, masked_lm=True,
        config=dict(
            without_eps(sizes), head_dim=10, attention_bias=True, mlp_bias=True, hidden_act="gelu",
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 16,
                "beta_fast": 4.0, "beta_slow": 0.5,
            },
        ),
    )
    make(
        "jina-embeddings-v3", seed=41, model_type="jina_embeddings_v3", limit=40,
        config=dict(
            sizes, type_vocab_size=1,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    )
    make("gte", seed=42, model_type="gte", limit=40, masked_lm=True, config=dict(sizes, type_vocab_size=2))
    make(
        "deberta-v2", seed=43, model_type="deberta-v2", limit=60, masked_lm=True,
        config=dict(
            sizes, type_vocab_size=0, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
            norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, max_relative_positions=-1,
            max_position_embeddings=90,
        ),
    )
    make(
        "deberta-v2-c2p", seed=44, model_type="deberta-v2", limit=40, omit=("layer_norm_eps",),
        config=dict(
            sizes, type_vocab_size=2, relative_attention=True, pos_att_type="c2p", max_relative_positions=9,
            embedding_size=16, layer_norm_eps=1e-7, conv_kernel_size=3, conv_act="gelu",
        ),
    )
    make(
        "deberta-v2-p2c", seed=45, model_type="deberta-v2", limit=40,
        config=dict(
            sizes, type_vocab_size=2, relative_attention=True, pos_att_type=["p2c"], position_buckets=12,
            max_relative_positions=33, position_biased_input=False, conv_kernel_size=5,
        ),
    )


def first_code():
    """Models on the hub whose config is that of code of their own."""
    sizes = dict(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40, max_position_embeddings=40,
        layer_norm_eps=1e-4, pad_token_id=0,
    )

    def nomic(fields):
        return {
            "model_type": "nomic_bert", "vocab_size": fields["vocab_size"], "n_embd": 24, "n_head": 3, "n_layer": 2,
            "n_inner": 40, "n_positions": 40, "layer_norm_epsilon": 1e-4, "type_vocab_size": 2,
            "activation_function": "geglu", "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
            "mlp_fc2_bias": False, "rotary_emb_base": 70.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
            "rotary_scaling_factor": None, "use_rms_norm": False,
        }

    make(
        "nomic-bert-first-code", seed=46, model_type="nomic_bert", limit=40, rewrite=nomic,
        config=dict(sizes, type_vocab_size=2, hidden_act="gelu", rope_parameters={"rope_type": "default", "rope_theta": 70.0}),
    )

    for seed, kind, types in ((65, "nomic_bert", 3), (66, "gte", 1), (67, "jina_embeddings_v3", 2)):
        name = f"{kind.replace('_', '-')}-native"
        make(name, seed=seed, model_type=kind, limit=40, native=True, config=dict(sizes, type_vocab_size=types))

    def new(fields):
        kept = [
            "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "hidden_act",
            "max_position_embeddings", "layer_norm_eps", "pad_token_id", "type_vocab_size",
        ]
        return {key: fields[key] for key in kept} | {
            "model_type": "new", "position_embedding_type": "rope", "rope_theta": 90.0, "pack_qkv": True,
            "rope_scaling": {"type": "ntk", "factor": 2.0}, "layer_norm_type": "layer_norm", "logn_attention_scale": False,
        }

    make(
        "new", seed=47, model_type="gte", limit=40, masked_lm=True, rewrite=new,
        # The factor raises theta, and slows all pairs by its power of 2/d.
        frequencies=lambda speeds: ((2 * 90.0) ** (-torch.arange(0, 8, 2) / 8) / 2 ** (2 / 8)).to(speeds),
        config=dict(sizes, type_vocab_size=1, rope_parameters={"rope_type": "default", "rope_theta": 90.0}),
    )


def without_eps(sizes):
    """Sizes for families that have no eps of that name and no segments."""
    return {key: value for key, value in sizes.items() if key != "layer_norm_eps"}


def variations():
    """What no family has: by the config fields of configs/README.md."""
    make_plain("enlarged-keys", seed=50, limit=40, config=dict(attention_key_size=21))
    make_plain("talking-heads-before", seed=51, limit=40, config=dict(talking_heads={"before_softmax": 3}))
    make_plain("talking-heads-after", seed=52, limit=40, config=dict(talking_heads={"after_softmax": 3}))
    make_plain(
        "talking-heads-both", seed=53, limit=40, dtype=torch.float16, prefix="bert.",
        config=dict(talking_heads={"before_softmax": 5, "after_softmax": 4}, is_causal=True, attention_key_size=10),
    )
    make_plain("pre-norm", seed=54, limit=40, config=dict(norm_placement="pre", embedding_norm=False))
    make_plain("pre-norm-final", seed=55, limit=40, config=dict(norm_placement="pre+final", hidden_act="silu"))
    make_plain("norm-without-bias", seed=56, limit=40, config=dict(norm_bias=False, attention_bias=False))
    make_plain("rms-norm", seed=57, limit=40, config=dict(norm_type="rms_norm", layer_norm_eps=1e-2, mlp_bias=False))
    make_plain("sinusoidal", seed=58, limit=40, config=dict(position_embedding_type="sinusoidal", hidden_size=21))
    make_plain("no-positions", seed=59, limit=40, config=dict(position_embedding_type="none", type_vocab_size=0))
    make_plain("causal", seed=60, limit=40, config=dict(is_causal=True, attention_value_size=5))
    make_plain("rotary", seed=61, limit=40, config=dict(position_embedding_type="rope", rope_theta=77.0))
    make_plain("alibi", seed=62, limit=40, config=dict(position_embedding_type="alibi", num_attention_heads=6))
    make_plain(
        "jina-bert-v2", seed=63, limit=40, dtype=torch.bfloat16,
        config=dict(position_embedding_type="alibi", feed_forward_type="geglu", num_attention_heads=4, hidden_act="relu"),
    )
    make_plain(
        "jina-bert-v2-reglu", seed=64, limit=40, prefix="bert.",
        config=dict(position_embedding_type="alibi", feed_forward_type="reglu"),
    )


if __name__ == "__main__":
    main()
