"""The encoder in plain PyTorch, written from the formulas: the reference for what no model of transformers computes.

It reads the config fields that configs/README.md lists, and knows weights by the names of BERT checkpoints. One text at
a time, no padding, no dropout; the precision is that of the weights.

    attention            Vaswani et al. 2017, equation 1
    key size             Bhojanapalli et al. 2020: heads of d columns whatever the hidden size, scores over √d
    talking heads        Shazeer et al. 2020: scores and weights mixed over heads, the mask between
    norms                Ba et al. 2016; Zhang & Sennrich 2019; before or after a sublayer: Xiong et al. 2020
    positions            Devlin et al. 2019; Vaswani et al. 2017, §3.5; Su et al. 2021; Press et al. 2022
    gated feed-forward   Shazeer 2020
"""

import math

import torch
from transformers.activations import ACT2FN


def sizes(config):
    """Heads and their columns: heads of the scores, of the softmax, of the values, columns of keys and of values."""
    heads = config["num_attention_heads"]
    mixing = config.get("talking_heads") or {}
    softmax = mixing.get("before_softmax", heads)
    values = mixing.get("after_softmax", softmax)
    d = config.get("attention_key_size") or config["hidden_size"] // heads
    e = config.get("attention_value_size") or config["hidden_size"] // values
    return heads, softmax, values, d, e


def gated(config):
    return config.get("feed_forward_type") in ("geglu", "reglu")


def shapes(config):
    """The name and shape of every weight."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, softmax, values, d, e = sizes(config)
    biased = config.get("norm_bias", config.get("norm_type") != "rms_norm")

    def norm(name):
        return {f"{name}.weight": (hidden,)} | ({f"{name}.bias": (hidden,)} if biased else {})

    def linear(name, outputs, inputs, bias):
        return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})

    out = {"embeddings.word_embeddings.weight": (config["vocab_size"], hidden)}
    if config["type_vocab_size"]:
        out["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], hidden)
    if config.get("position_embedding_type", "absolute") == "absolute":
        out["embeddings.position_embeddings.weight"] = (config["max_position_embeddings"], hidden)
    if config.get("embedding_norm", True):
        out |= norm("embeddings.LayerNorm")
    attention_bias, up_bias = config.get("attention_bias", True), config.get("mlp_bias", not gated(config))
    for i in range(layers):
        name = f"encoder.layer.{i}"
        out |= linear(f"{name}.attention.self.query", heads * d, hidden, attention_bias)
        out |= linear(f"{name}.attention.self.key", heads * d, hidden, attention_bias)
        out |= linear(f"{name}.attention.self.value", values * e, hidden, attention_bias)
        mixing = config.get("talking_heads") or {}
        if "before_softmax" in mixing:
            out[f"{name}.attention.self.mix_before.weight"] = (softmax, heads)
        if "after_softmax" in mixing:
            out[f"{name}.attention.self.mix_after.weight"] = (values, softmax)
        out |= linear(f"{name}.attention.output.dense", hidden, values * e, attention_bias)
        out |= norm(f"{name}.attention.output.LayerNorm")
        if gated(config):
            out |= linear(f"{name}.mlp.gated_layers", 2 * inner, hidden, up_bias)
            out |= linear(f"{name}.mlp.wo", hidden, inner, config.get("mlp_bias", True))
            out |= norm(f"{name}.mlp.layernorm")
        else:
            out |= linear(f"{name}.intermediate.dense", inner, hidden, up_bias)
            out |= linear(f"{name}.output.dense", hidden, inner, config.get("mlp_bias", True))
            out |= norm(f"{name}.output.LayerNorm")
    if config.get("norm_placement") == "pre+final":
        out |= norm("encoder.LayerNorm")
    return out


def slopes(heads):
    """ALiBi's rates: 2^(-8/n), 2^(-16/n), … for a power of two; else those of the power below, and every other one of
    the power above."""

    def powers(n):
        return [2.0 ** (-8 * (i + 1) / n) for i in range(n)]

    below = 2 ** math.floor(math.log2(heads))
    return powers(below) + powers(2 * below)[::2][: heads - below]


def rotate(x, theta):
    """Turns (heads, n, d): column i and column i + d/2 by the angle place · theta^(-2i/d)."""
    _, n, d = x.shape
    speed = theta ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = torch.arange(n, dtype=x.dtype)[:, None] * speed
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def sinusoids(n, width, dtype):
    place = torch.arange(n, dtype=dtype)[:, None]
    angle = place / 10_000 ** (torch.arange(0, width, 2, dtype=dtype) / width)
    out = torch.zeros(n, width, dtype=dtype)
    out[:, 0::2] = angle.sin()
    out[:, 1::2] = angle.cos()[:, : width // 2]
    return out


def encode(config, w, ids, type_ids):
    """The hidden states of one text after the embeddings and after every layer, the last after the final norm."""
    heads, _, values, d, e = sizes(config)
    n, hidden, eps = len(ids), config["hidden_size"], config["layer_norm_eps"]
    kind = config.get("position_embedding_type", "absolute")
    placement = config.get("norm_placement", "post")
    activation = {"geglu": "gelu", "reglu": "relu"}.get(config.get("feed_forward_type"), config["hidden_act"])

    def norm(name, x):
        if config.get("norm_type") == "rms_norm":
            x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        else:
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return x * w[f"{name}.weight"] + w.get(f"{name}.bias", 0)

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def attention(name, x):
        def split(x, heads):
            return x.view(n, heads, -1).transpose(0, 1)

        q, k = split(linear(f"{name}.self.query", x), heads), split(linear(f"{name}.self.key", x), heads)
        v = split(linear(f"{name}.self.value", x), values)
        if kind == "rope":
            q, k = (rotate(x, config.get("rope_theta", 10_000.0)) for x in (q, k))
        scores = q @ k.transpose(1, 2) / math.sqrt(d)
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        if kind == "alibi":
            scores = scores - torch.tensor(slopes(heads), dtype=x.dtype)[:, None, None] * distance.abs()
        if f"{name}.self.mix_before.weight" in w:
            scores = torch.einsum("oh,hij->oij", w[f"{name}.self.mix_before.weight"], scores)
        if config.get("is_causal"):
            scores = scores.masked_fill(distance > 0, -math.inf)
        weights = scores.softmax(-1)
        if f"{name}.self.mix_after.weight" in w:
            weights = torch.einsum("oh,hij->oij", w[f"{name}.self.mix_after.weight"], weights)
        return linear(f"{name}.output.dense", (weights @ v).transpose(0, 1).reshape(n, values * e))

    def feed_forward(name, x):
        if gated(config):
            gate, up = linear(f"{name}.mlp.gated_layers", x).chunk(2, -1)
            return linear(f"{name}.mlp.wo", ACT2FN[activation](gate) * up)
        return linear(f"{name}.output.dense", ACT2FN[activation](linear(f"{name}.intermediate.dense", x)))

    x = w["embeddings.word_embeddings.weight"][ids]
    if config["type_vocab_size"]:
        x = x + w["embeddings.token_type_embeddings.weight"][type_ids]
    if kind == "absolute":
        x = x + w["embeddings.position_embeddings.weight"][:n]
    if kind == "sinusoidal":
        x = x + sinusoids(n, hidden, x.dtype)
    if config.get("embedding_norm", True):
        x = norm("embeddings.LayerNorm", x)
    states = [x]
    for i in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{i}"
        first = f"{name}.attention.output.LayerNorm"
        second = f"{name}.mlp.layernorm" if gated(config) else f"{name}.output.LayerNorm"
        if placement == "post":
            x = norm(first, x + attention(f"{name}.attention", x))
            x = norm(second, x + feed_forward(name, x))
        else:
            x = x + attention(f"{name}.attention", norm(first, x))
            x = x + feed_forward(name, norm(second, x))
        if placement == "pre+final" and i + 1 == config["num_hidden_layers"]:
            x = norm("encoder.LayerNorm", x)
        states.append(x)
    return states
