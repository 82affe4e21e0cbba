#!/usr/bin/env python3
"""Compares Sconce with the reference on random models: every family and variation, with random sizes and weights.

    python scripts/check/fuzz_families.py [--seeds N] [--first SEED] [--only WORD]

Each model is built by transformers (variations by plain_encoder.py), saved, and run by `sconce embed --pooling none` on texts of
all lengths; the hidden states of all tokens are compared element by element with atol 1e-4 and rtol 1e-4. So are the logits of heads
of decoder language models: of classifiers, and of one or two tokens (`sconce classify` and `sconce rerank`). Some models have a LoRA
adapter over random linear layers in their folder, as peft saves it, merged into the reference. As many models at once as there are
cores. Prints one row per family with the largest difference, and exits with 1 if a difference exceeds the tolerance. `SCONCE` is the
path of the binary [default: target/release/sconce].
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "fixtures"))
import plain_encoder  # noqa: E402
from make_fixtures import draw as draw_wide  # noqa: E402
from make_fixtures import NOMIC_MOE, see_both_sides, tokenizer  # noqa: E402

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import (  # noqa: E402
    AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, CLIPTextModel, PreTrainedTokenizerFast,
    SiglipTextModel, T5EncoderModel, UMT5EncoderModel, logging,
)
from transformers.activations import ACT2FN  # noqa: E402

logging.set_verbosity_error()
see_both_sides()
logging.disable_progress_bar()
SCONCE = os.environ.get("SCONCE", str(ROOT / "target" / "release" / "sconce"))
ATOL = RTOL = 1e-4
WORDS = "the a of to in is on and light lamp candle wick flame burn attention head key query value".split()


def draw(name, shape, generator):
    """A random weight, smaller in wide layers, where rounding in f32 would otherwise exceed the tolerance."""
    weight = draw_wide(name, shape, generator)
    return weight * min(1.0, (24 / shape[-1]) ** 0.5) if len(shape) == 2 and "embedding" not in name else weight


def sizes(r):
    """Config fields of most families."""
    heads = r.choice([1, 2, 3, 4, 6])
    return dict(
        hidden_size=heads * 2 * r.randint(2, 9), num_attention_heads=heads, num_hidden_layers=r.randint(1, 4),
        intermediate_size=r.randint(5, 90), max_position_embeddings=r.randint(40, 140), layer_norm_eps=r.choice([1e-12, 1e-5, 1e-3]),
        hidden_act=r.choice(sorted(set(ACT2FN) - {"relu2", "xielu"})), type_vocab_size=r.choice([1, 2, 3]), pad_token_id=r.choice([0, 1, 5]),
    )


def gated_sizes(r):
    return sizes(r) | dict(hidden_act=r.choice(["silu", "gelu", "relu", "gelu_new"]))


def rope(r):
    theta = r.choice([50.0, 1000.0, 10_000.0])
    return r.choice([
        None, {"rope_type": "default", "rope_theta": theta}, {"rope_type": "linear", "rope_theta": theta, "factor": 3.0},
        {"rope_type": "dynamic", "rope_theta": theta, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": 20,
         "mscale": r.choice([0.0, 0.7, 1.0]), "mscale_all_dim": r.choice([0.4, 1.0])},
        {"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
        # More factors than any head has pairs of dimensions.
        {"rope_type": "longrope", "rope_theta": theta, "original_max_position_embeddings": r.randint(3, 40),
         "short_factor": [r.uniform(0.5, 2) for _ in range(64)], "long_factor": [r.uniform(1, 9) for _ in range(64)]},
    ])


def fit_factors(config):
    """Leaves as many factors of LongRoPE as a head of this config has pairs of dimensions."""
    pairs = (config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]) // 2
    for key in ("rope_parameters", "rope_scaling"):
        parameters = config.get(key) or {}
        for each in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
            each.update({name: each[name][:pairs] for name in ("short_factor", "long_factor") if name in each})


def albert(r):
    layers, inner = r.randint(1, 6), r.randint(1, 2)
    s = sizes(r)
    embedding_size = r.choice([s["hidden_size"], r.randint(4, 30)])
    return s | dict(embedding_size=embedding_size, num_hidden_layers=layers, num_hidden_groups=r.randint(1, layers), inner_group_num=inner)


def distilbert(r):
    s = sizes(r)
    return dict(
        dim=s["hidden_size"], n_heads=s["num_attention_heads"], n_layers=s["num_hidden_layers"], hidden_dim=s["intermediate_size"],
        max_position_embeddings=s["max_position_embeddings"], activation=s["hidden_act"], pad_token_id=0,
    )


def deberta(r):
    s = sizes(r)
    s |= dict(type_vocab_size=r.choice([0, 2]), position_biased_input=r.random() < 0.5, relative_attention=r.random() < 0.8)
    if r.random() < 0.4:
        s["embedding_size"] = r.randint(4, 30)
    if r.random() < 0.3:
        s |= dict(conv_kernel_size=r.choice([1, 3, 5]), conv_act=r.choice(["tanh", "gelu"]))
    if s["relative_attention"]:
        s |= dict(
            pos_att_type=r.choice([["c2p"], ["p2c"], ["c2p", "p2c"], "p2c|c2p", ["p2c", "c2p"]]), share_att_key=r.random() < 0.5,
            norm_rel_ebd=r.choice(["none", "layer_norm"]), max_relative_positions=r.choice([-1, 20, 50]),
            position_buckets=r.choice([-1, 6, 8, 16, 256]),
        )
    return s


def first_deberta(r):
    unused = ("share_att_key", "norm_rel_ebd", "position_buckets", "conv_kernel_size", "conv_act")
    return {key: value for key, value in deberta(r).items() if key not in unused} | dict(talking_head=r.random() < 0.3)


def modernbert(r):
    s = gated_sizes(r)
    layers = s["num_hidden_layers"]
    s["hidden_activation"] = s.pop("hidden_act")
    s["norm_eps"] = s.pop("layer_norm_eps")
    del s["type_vocab_size"]
    if r.random() < 0.5:
        s["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    else:
        s["global_attn_every_n_layers"] = r.randint(1, 4)
    flags = {key: r.random() < 0.3 for key in ("norm_bias", "attention_bias", "mlp_bias")}
    return s | flags | dict(local_attention=r.choice([2, 5, 12, 128]), global_rope_theta=r.choice([900.0, 160_000.0]))


def eurobert(r):
    s = gated_sizes(r) | dict(rope_parameters=rope(r))
    s["rms_norm_eps"] = s.pop("layer_norm_eps")
    del s["type_vocab_size"]
    heads = s["num_attention_heads"]
    s["num_key_value_heads"] = r.choice([n for n in range(1, heads + 1) if heads % n == 0])
    return s | {key: r.random() < 0.3 for key in ("attention_bias", "mlp_bias")}


def decoder(r, has_head_dim=True):
    """Config fields of language models that follow Llama."""
    s = gated_sizes(r) | dict(rope_parameters=rope(r))
    s["rms_norm_eps"] = s.pop("layer_norm_eps")
    del s["type_vocab_size"]
    heads = s["num_attention_heads"]
    s["num_key_value_heads"] = r.choice([n for n in range(1, heads + 1) if heads % n == 0])
    if has_head_dim:
        s["head_dim"] = 2 * r.randint(2, 12)
    if r.random() < 0.3:
        s["is_causal"] = r.random() < 0.5
    return s


def llama(r):
    return decoder(r) | {key: r.random() < 0.3 for key in ("attention_bias", "mlp_bias")}


def mistral(r):
    return decoder(r) | dict(sliding_window=r.choice([None, 1, 2, 7, 30]))


def qwen(r, **kwargs):
    s = decoder(r, **kwargs)
    layers = s["num_hidden_layers"]
    if r.random() < 0.6:
        s |= dict(use_sliding_window=True, sliding_window=r.choice([None, 1, 3, 20]), max_window_layers=r.randint(0, layers))
        if s["sliding_window"] and r.random() < 0.5:
            s["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    return s


def gemma(r):
    return decoder(r) | dict(attention_bias=r.random() < 0.3, hidden_act=r.choice(["gelu", "gelu_pytorch_tanh"]))


def gemma2(r):
    s = decoder(r)
    s["hidden_activation"] = s.pop("hidden_act")
    if r.random() < 0.5:
        s["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(s["num_hidden_layers"])]
    return s | dict(
        query_pre_attn_scalar=r.choice([8, 24, 256]), sliding_window=r.choice([2, 3, 5, 30]), attention_bias=r.random() < 0.3,
        attn_logit_softcapping=r.choice([None, 0.5, 2.0, 50.0]), final_logit_softcapping=r.choice([None, 1.0, 30.0]),
    )


def granite(r):
    return llama(r) | dict(
        attention_multiplier=r.choice([0.05, 0.3, 1.0]), embedding_multiplier=r.choice([0.5, 12.0]),
        residual_multiplier=r.choice([0.22, 1.0, 1.5]), logits_scaling=r.choice([1.0, 8.0]),
    )


def lfm2(r):
    s = decoder(r, has_head_dim=False)
    s["norm_eps"] = s.pop("rms_norm_eps")
    del s["hidden_act"]
    layers = s["num_hidden_layers"]
    # The reference needs a layer with attention.
    attention = sorted(r.sample(range(layers), r.randint(1, layers)))
    if r.random() < 0.5:
        s["layer_types"] = ["full_attention" if layer in attention else "conv" for layer in range(layers)]
    elif r.random() < 0.7:
        s["full_attn_idxs"] = attention
    s["conv_L_cache"] = r.choice([1, 3, 5]) if s.get("is_causal") is False else r.randint(1, 6)
    if r.random() < 0.5:
        s |= dict(block_multiple_of=r.randint(1, 20), block_ffn_dim_multiplier=r.choice([1.0, 1.5, 0.7]))
    return s | dict(conv_bias=r.random() < 0.3, block_auto_adjust_ff_dim=r.random() < 0.5)


def ministral(r):
    s = decoder(r) | dict(sliding_window=r.choice([1, 2, 7, 30]))
    return s | dict(layer_types=[r.choice(["full_attention", "sliding_attention"]) for _ in range(s["num_hidden_layers"])])


def ministral3(r):
    s = mistral(r)
    if r.random() < 0.5:
        s["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": r.choice([50.0, 1e6]), "factor": r.choice([2.0, 16.0]),
            "original_max_position_embeddings": s["max_position_embeddings"], "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        }
    else:
        s["rope_parameters"] = dict(
            s.get("rope_parameters") or {"rope_type": "default", "rope_theta": 1e4}, llama_4_scaling_beta=0.0,
            original_max_position_embeddings=s["max_position_embeddings"],
        )
    return s


def gemma3(r):
    s = decoder(r)
    layers = s["num_hidden_layers"]
    s["hidden_activation"] = s.pop("hidden_act")
    del s["rope_parameters"]
    if r.random() < 0.5:
        s["rope_parameters"] = {"full_attention": rope(r) or {}, "sliding_attention": rope(r) or {}}
    else:
        s |= dict(rope_theta=r.choice([50.0, 1e6]), rope_local_base_freq=r.choice([30.0, 1e4]), rope_scaling=rope(r))
    if r.random() < 0.5:
        s["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    else:
        s["sliding_window_pattern"] = r.randint(1, 4)
    s |= dict(query_pre_attn_scalar=r.choice([8, 24, 256]), sliding_window=r.choice([2, 3, 5, 30]), attention_bias=r.random() < 0.3)
    return s | dict(use_bidirectional_attention=r.random() < 0.6) if s.get("is_causal") is not True else s


def optional_embedding(r, key, chance=0.7):
    return {key: r.randint(4, 30)} if r.random() < chance else {}


def head_dim(r):
    return {"head_dim": 2 * r.randint(2, 8)} if r.random() < 0.3 else {}


def esm(r):
    return {k: v for k, v in sizes(r).items() if k != "type_vocab_size"} | dict(
        pad_token_id=1, mask_token_id=r.choice([4, 30]), token_dropout=r.random() < 0.7, emb_layer_norm_before=r.choice([None, False, True]),
        position_embedding_type=r.choice(["absolute", "rotary"]), rope_theta=r.choice([50.0, 10_000.0]),
    )


def mobilebert(r):
    s, width = sizes(r), r.randint(1, 4) * 6
    heads = r.choice([1, 2, 3, 6])
    shared = r.random() < 0.7
    return s | dict(
        hidden_size=6 * r.randint(2, 9), num_attention_heads=heads, intra_bottleneck_size=width, embedding_size=r.randint(4, 11),
        trigram_input=r.random() < 0.7, use_bottleneck=r.random() < 0.8, key_query_shared_bottleneck=shared,
        use_bottleneck_attention=not shared or r.random() < 0.3, num_feedforward_networks=r.randint(1, 4),
        normalization_type=r.choice(["no_norm", "layer_norm"]), hidden_act=r.choice(["relu", "gelu", "silu", "tanh"]),
    )


def longformer(r):
    s = sizes(r) | dict(type_vocab_size=1, pad_token_id=1)
    # transformers has no window of two tokens.
    width = 2 * r.randint(2, 20)
    return s | dict(attention_window=r.choice([width, [width] * s["num_hidden_layers"]]))


def t5(r):
    heads, activation = r.randint(1, 5), r.choice(["relu", "gelu", "silu"])
    buckets = 2 * r.randint(2, 20)
    return dict(
        d_model=r.randint(4, 40), d_kv=r.randint(1, 16), d_ff=r.randint(4, 60), num_layers=r.randint(1, 4), num_heads=heads,
        relative_attention_num_buckets=buckets, relative_attention_max_distance=r.randint(buckets // 4 + 1, 60),
        feed_forward_proj=r.choice(["", "gated-"]) + activation, layer_norm_epsilon=r.choice([1e-6, 1e-3]), dropout_rate=0.0,
        n_positions=r.randint(8, 60),
    )


def tower(r):
    """The text tower of CLIP or SigLIP; the end of a text in CLIP is [SEP] or the highest id."""
    return {k: v for k, v in sizes(r).items() if k != "type_vocab_size"} | dict(eos_token_id=r.choice([2, 3]))


FAMILIES = {
    "bert": sizes, "roberta": sizes, "xlm-roberta": sizes, "camembert": sizes, "data2vec-text": sizes,
    "ernie": lambda r: sizes(r) | dict(task_type_vocab_size=3, use_task_id=r.random() < 0.6),
    "electra": lambda r: sizes(r) | {"embedding_size": 24} | optional_embedding(r, "embedding_size"),
    "rembert": lambda r: sizes(r) | dict(input_embedding_size=r.choice([12, 24, r.randint(4, 30)]), output_embedding_size=9),
    "albert": albert, "distilbert": distilbert,
    "mpnet": lambda r: {k: v for k, v in sizes(r).items() if k != "type_vocab_size"},
    "megatron-bert": sizes, "roberta-prelayernorm": sizes, "xlm-roberta-xl": sizes,
    "ibert": lambda r: sizes(r) | dict(pad_token_id=1, hidden_act="gelu"), "longformer": longformer,
    "mobilebert": mobilebert,
    "big_bird": lambda r: sizes(r) | dict(attention_type=r.choice(["original_full", "block_sparse"]), use_bias=r.random() < 0.7),
    "esm": esm,
    "roformer": lambda r: sizes(r) | dict(rotary_value=r.random() < 0.5) | optional_embedding(r, "embedding_size"),
    "nomic_bert": lambda r: gated_sizes(r) | dict(rope_parameters=rope(r)) | head_dim(r),
    "jina_embeddings_v3": lambda r: sizes(r) | dict(rope_parameters=rope(r)) | head_dim(r),
    "gte": lambda r: gated_sizes(r) | dict(rope_parameters=rope(r)) | head_dim(r),
    "modernbert": modernbert, "eurobert": eurobert, "deberta": first_deberta, "deberta-v2": deberta,
    "llama": llama, "mistral": mistral, "qwen2": lambda r: qwen(r, has_head_dim=False), "qwen3": lambda r: qwen(r) | dict(attention_bias=r.random() < 0.3),
    "gemma": gemma, "gemma2": gemma2, "granite": granite, "lfm2": lfm2, "ministral": ministral, "ministral3": ministral3, "gemma3_text": gemma3, "t5": t5, "mt5": t5, "umt5": t5, "clip_text_model": tower, "siglip_text_model": tower,
}


def variation(r):
    """A config for plain_encoder.py."""
    s = sizes(r) | dict(model_type="bert", hidden_act=r.choice(["gelu", "relu", "silu", "tanh"]))
    heads = s["num_attention_heads"]
    s["position_embedding_type"] = r.choice(["absolute", "sinusoidal", "rope", "alibi", "none"])
    if r.random() < 0.5:
        s["attention_key_size"] = 2 * r.randint(1, 15)
    if r.random() < 0.6:
        s["talking_heads"] = r.choice([
            {"before_softmax": r.randint(1, 7)}, {"after_softmax": r.randint(1, 7)},
            {"before_softmax": r.randint(1, 7), "after_softmax": r.randint(1, 7)}, {"before_softmax": heads, "after_softmax": heads},
        ])
        s["attention_value_size"] = r.randint(1, 12)
    if r.random() < 0.3:
        s["feed_forward_type"] = r.choice(["geglu", "reglu"])
    for key, chance in (("is_causal", 0.3), ("norm_bias", 0.3), ("attention_bias", 0.3), ("mlp_bias", 0.3), ("embedding_norm", 0.3)):
        if r.random() < chance:
            s[key] = r.random() < 0.5
    return s | dict(norm_type=r.choice(["layer_norm", "rms_norm"]), norm_placement=r.choice(["post", "pre", "pre+final"]))


def nomic_experts(r):
    """A config of nomic-embed-text-v2-moe."""
    s, experts = sizes(r), r.randint(1, 6)
    return NOMIC_MOE | dict(
        n_embd=s["hidden_size"], n_head=s["num_attention_heads"], n_layer=r.randint(1, 5), n_inner=s["intermediate_size"],
        n_positions=s["max_position_embeddings"], max_trained_positions=s["max_position_embeddings"], type_vocab_size=s["type_vocab_size"],
        num_experts=experts, moe_top_k=r.randint(1, experts), moe_every_n_layers=r.randint(1, 4),
        moe_normalize_expert_weights=r.random() < 0.3, rotary_emb_base=r.choice([50.0, 10_000.0]), qkv_proj_bias=r.random() < 0.7,
    )


def jina_code(r):
    """A config of jina-embeddings-v2-base-code."""
    return sizes(r) | dict(
        model_type="bert", position_embedding_type="alibi", feed_forward_type=r.choice(["geglu", "reglu"]),
        auto_map={"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},
    )


# Configs for plain_encoder.py.
PLAIN = {"variations": variation, "nomic-experts": nomic_experts, "jina-code": jina_code}


# Heads of decoder language models: those of classifiers, and the logits of tokens.
HEADS = [
    f"{family} {head}"
    for family in ("gemma", "gemma2", "gemma3_text", "llama", "ministral", "ministral3", "mistral", "qwen2", "qwen3")
    for head in ("classifier", "logits")
] + ["granite logits", "longformer classifier"]


# Models with a LoRA adapter.
ADAPTED = [f"{family} adapter" for family in ("bert", "deberta", "modernbert", "eurobert", "gemma3_text", "llama", "qwen2", "qwen3")]


def add_adapter(model, r, generator, folder):
    """Saves an adapter over some linear layers, and merges it into the model: W + alpha / rank · B A, or alpha / √rank."""
    rank, alpha, is_stabilized = r.randint(1, 6), r.randint(1, 8), r.random() < 0.5
    linear = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear) and "pooler" not in name]
    chosen, tensors = sorted(r.sample(linear, r.randint(1, len(linear)))), {}
    for name in chosen:
        weight = model.get_submodule(name).weight
        a = draw("lora", (rank, weight.shape[1]), generator) / 4
        b = draw("lora", (weight.shape[0], rank), generator) / 4
        weight += alpha / (rank**0.5 if is_stabilized else rank) * b.double() @ a.double()
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
    save_file({name: weight.contiguous() for name, weight in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "base_model_name_or_path": "base", "r": rank, "lora_alpha": alpha,
        "use_rslora": is_stabilized, "target_modules": chosen, "bias": "none",
    }))


def texts(r, max_length):
    lengths = [0, 1, 2, 3, max_length, max_length * 2] + [r.randint(1, max_length) for _ in range(6)]
    return [" ".join(r.choice(WORDS) for _ in range(n)) for n in lengths]


def vectors(folder, lines):
    command = [SCONCE, "embed", "--quiet", "--pooling", "none", "--no-normalize", "--model", str(folder)]
    out = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    return [torch.tensor(row["embeddings"], dtype=torch.float64) for row in rows]


@torch.no_grad()
def check(name, seed, folder):
    """The largest difference in units of the tolerance, and the config."""
    r = random.Random(f"{name} {seed}")
    generator = torch.Generator().manual_seed(seed)
    is_adapted, name = name in ADAPTED, name.removesuffix(" adapter")
    config = (PLAIN.get(name) or FAMILIES[name])(r)
    vocab_size = tokenizer(folder, 10_000, pair_token_types=False)
    if name in PLAIN:
        config["vocab_size"] = vocab_size
        (folder / "config.json").write_text(json.dumps(config))
        fields, is_own = config, plain_encoder.of_repository(config) is not None
        config = plain_encoder.of_repository(config) or config
        weights = {k: draw(k, shape, generator) for k, shape in sorted(plain_encoder.shapes(config).items())}
        saved = plain_encoder.to_repository(fields, weights) if is_own else weights
        save_file({k: weight.contiguous() for k, weight in saved.items()}, folder / "model.safetensors")
        weights = {k: weight.double() for k, weight in weights.items()}
        states = lambda ids: plain_encoder.encode(config, weights, ids, torch.zeros_like(ids))[-1]
    else:
        if "hidden_size" in config:
            fit_factors(config)
        whole = AutoConfig.for_model(name, vocab_size=vocab_size, **config)
        encoders = {
            "t5": T5EncoderModel, "mt5": T5EncoderModel, "umt5": UMT5EncoderModel, "clip_text_model": CLIPTextModel,
            "siglip_text_model": SiglipTextModel,
        }
        build = encoders[name]._from_config if name in encoders else AutoModel.from_config
        model = build(whole, attn_implementation="eager")
        for weight, parameter in sorted(model.named_parameters()):
            # Gemma's norms store their weights minus 1.
            offset = 1 if name.startswith("gemma") and weight.endswith("norm.weight") else 0
            # Without statistics in norms, states would grow from layer to layer.
            factor = 0.4 if config.get("normalization_type") == "no_norm" and parameter.dim() == 2 else 1.0
            parameter.copy_(draw(weight, parameter.shape, generator) * factor - offset)
        model.save_pretrained(folder)
        model = model.float().double().eval()
        if is_adapted:
            add_adapter(model, r, generator, folder)
        states = lambda ids: model(input_ids=ids[None]).last_hidden_state[0]
    page = subprocess.run([SCONCE, "inspect", "--json", "--model", str(folder)], capture_output=True, text=True)
    if page.returncode:
        sys.exit(f"{name}, seed {seed}: {config}\n{page.stderr}")
    limit = json.loads(page.stdout)["max_length"]
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    # SigLIP attends to padding.
    padding = "max_length" if name == "siglip_text_model" else False
    lines = texts(r, limit)
    worst = 0.0
    for line, found in zip(lines, vectors(folder, lines)):
        ids = torch.tensor(tokens(line, truncation=True, max_length=limit, padding=padding)["input_ids"])
        expected = states(ids)
        worst = max(worst, ((found - expected).abs() / (ATOL + RTOL * expected.abs())).max().item())
    return worst, config


def scores(folder, lines, command):
    """Logits of pairs of a line and the next one: of `classify` the list of each, of `rerank` one."""
    texts = [json.dumps({"text": second, "pair": first}) for first, second in zip(lines, lines[1:])]
    fields = {"rerank": ["--query-field", "pair"], "classify": ["--text-field", "pair", "--pair-field", "text", "--top-k", "0"]}[command]
    (folder / "pairs.jsonl").write_text("\n".join(texts) + "\n")
    words = [SCONCE, command, "--quiet", "--raw", "--model", str(folder), "--input", str(folder / "pairs.jsonl"), *fields]
    out = subprocess.run(words, capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    by_label = lambda row: [entry["score"] for entry in sorted(row["labels"], key=lambda entry: entry["label"])]
    return [torch.tensor([row["score"]] if command == "rerank" else by_label(row), dtype=torch.float64) for row in rows]


@torch.no_grad()
def check_head(name, seed, folder):
    """The same for logits of pairs: of a classification head, or of one or two tokens of a causal language model."""
    family, _, head = name.rpartition(" ")
    r = random.Random(f"{name} {seed}")
    generator = torch.Generator().manual_seed(seed)
    vocab_size = tokenizer(folder, 10_000, pair_token_types=False)
    # The padding token is one that no text has.
    config = FAMILIES[family](r) | dict(pad_token_id=0, num_labels=r.randint(1, 5), tie_word_embeddings=r.random() < 0.5)
    fit_factors(config)
    whole = AutoConfig.for_model(family, vocab_size=vocab_size, **config)
    build = AutoModelForCausalLM if head == "logits" else AutoModelForSequenceClassification
    model = build.from_config(whole, attn_implementation="eager")
    for weight, parameter in sorted(model.named_parameters()):
        offset = 1 if family.startswith("gemma") and weight.endswith("norm.weight") else 0
        parameter.copy_(draw(weight, parameter.shape, generator) - offset)
    model.save_pretrained(folder)
    model = model.float().double().eval()
    tokens = [r.randrange(vocab_size), r.choice([None, r.randrange(vocab_size)])]
    if head == "logits":
        (folder / "1_LogitScore").mkdir()
        (folder / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": tokens[0], "false_token_id": tokens[1]}))
        modules = [("", "Transformer"), ("1_LogitScore", "LogitScore")]
        (folder / "modules.json").write_text(json.dumps([
            {"path": path, "type": f"sentence_transformers.cross_encoder.modules.{kind}"} for path, kind in modules
        ]))
    encode = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    # The first position of Longformer is that after the one of padding.
    limit = whole.max_position_embeddings - (family == "longformer")
    lines = [line or "a" for line in texts(r, limit // 2)]
    worst = 0.0
    for first, second, found in zip(lines, lines[1:], scores(folder, lines, "rerank" if head == "logits" else "classify")):
        ids = torch.tensor(encode(first, second, truncation="longest_first", max_length=limit)["input_ids"])
        logits = model(input_ids=ids[None]).logits[0]
        if head == "logits":
            logits = logits[-1, tokens[0]].reshape(1) - (0 if tokens[1] is None else logits[-1, tokens[1]])
        worst = max(worst, ((found - logits).abs() / (ATOL + RTOL * logits.abs())).max().item())
    return worst, config | {"tokens": tokens}


def check_model(name, seed):
    """`check` or `check_head`, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        return (check_head if name in HEADS else check)(name, seed, Path(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="models per family")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--only", default="", help="only families with this word in the name")
    args = parser.parse_args()
    failed = False
    names = [name for name in [*FAMILIES, *PLAIN, *ADAPTED, *HEADS] if args.only in name]
    seeds = range(args.first, args.first + args.seeds)
    print("| family | models | largest difference / tolerance |\n|---|---|---|")
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        checks = {name: [pool.submit(check_model, name, seed) for seed in seeds] for name in names}
        for name in names:
            worst = 0.0
            for seed, (difference, config) in zip(seeds, (check.result() for check in checks[name])):
                worst = max(worst, difference)
                if not difference <= 1:
                    failed = True
                    print(f"{name}, seed {seed}: {difference:.3g} times the tolerance: {config}", file=sys.stderr)
            print(f"| {name} | {args.seeds} | {worst:.3f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
