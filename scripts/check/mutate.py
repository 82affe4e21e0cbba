#!/usr/bin/env python3
"""Mutation testing: breaks the source on purpose, one fault at a time, and prints which tests fail.

    python scripts/check/mutate.py [--only WORD] [--check]

Works on a copy of the tree, so it can be stopped at any time. Exits with 1 if a fault makes no test fail. `--check` only verifies that
every patch applies: that its text occurs exactly once in its file.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Modules of the integration tests; `tests::` are the unit tests of the crate.
TESTS = ["adapters::", "causal_rerankers::", "chunks::", "config_defaults::", "cuda_kernels::", "goldens::", "long_texts::", "masked_lm::", "ops::", "pipelines::", "tests::", "towers::"]

# The description of the fault, the file, the text to replace, and its replacement.
MUTATIONS = [
    # Fields that a config lacks.
    ("a default replaces a field that is there", "src/model/config.rs", "self.fields.get(key).or_else(|| self.defaults.get(key))", "self.defaults.get(key).or_else(|| self.fields.get(key))"),
    ("a misspelt field has its default", "src/model/config_defaults.rs", "> MIN_SIMILARITY", "> 1.0 + MIN_SIMILARITY"),
    ("Mistral has as many key heads as query heads", "src/model/config_defaults/classes.rs", '("num_key_value_heads", Size(8)),\n        ("max_position_embeddings", Size(131_072))', '("num_key_value_heads", Size(32)),\n        ("max_position_embeddings", Size(131_072))'),
    ("the Dense folder for --dimensions is not chosen", "src/model/modules/dense_sizes.rs", "self.path = chosen;", "drop(chosen);"),
    # Causal-LM heads and chat templates.
    ("the logit of the false token is left out", "src/nn/causal_lm.rs", "let rows = match self.false_token {", "let rows = match self.false_token.filter(|_| false) {"),
    ("logits of the LM head have no bound", "src/model/families.rs", 'logit_cap: Some("final_logit_softcapping"),\n            ..LLAMA.keys\n        },\n        defaults: Defaults {\n            positions', "logit_cap: None,\n            ..LLAMA.keys\n        },\n        defaults: Defaults {\n            positions"),
    ("the suffix of a chat template is not restored", "src/task/pair_template.rs", "if tokens.ids.len() >= tokenizer.max_length() {", "if false {"),
    ("the suffix of a chat template is always restored", "src/task/pair_template.rs", "if options.restores_suffix {", "if true {"),
    ("the prompt is no message", "src/task/pair_template.rs", "messages(prompt, query, text)", 'messages("", query, text)'),
    ("contents are never lists of parts", "src/task/pair_template.rs", "options.has_parts.unwrap_or(template.reads_parts())", "false"),
    ("rendered texts get special tokens", "src/text/tokenizer.rs", "let (mut encoding, tokens) = self.encode_at_least(text, self.max_length)?;", "let mut encoding = self.inner.encode(text, true).map_err(|error| anyhow!(\"{error}\"))?;\n        let tokens = encoding.len();"),
    ("pieces of long texts are not counted", "src/text/tokenizer.rs", "tokens += encoding.len();", "tokens = encoding.len();"),
    ("long texts are cut at any space", "src/text/pieces.rs", "before.is_some_and(is_plain) && after.is_some_and(is_plain)", "before.is_some() || after.is_some()"),
    ("the unknown token is the model's", "src/text/tokenizer.rs", "unknown: unk_token.and_then(", "unknown: tokenizer.model().unk_token().and_then("),
    ("legacy of Llama is ignored", "src/text/bpe_parts.rs", '(true, true) => "always"', '(true, true) => "first"'),
    ("lines of blocks are not trimmed", "src/text/chat_template.rs", ".trim_blocks(true)", ".trim_blocks(false)"),
    ("the prompt is not before the query", "src/task/classification.rs", 'format!("{prompt}{query}")', 'format!("{query}")'),
    ("the last token may be padding", "src/nn/classification.rs", "rposition(|id| *id != pad_token)", "rposition(|_| true)"),
    # Masked-LM heads.
    ("a decoder of its own is never used", "src/nn/masked_lm.rs", "if spec.is_tied && !source.has(&own)", "if true"),
    ("the bias of an untied decoder is the module's", "src/nn/masked_lm.rs", "if !spec.is_tied {", "if false {"),
    ("SPLADE's second logarithm is left out", "src/nn/masked_lm.rs", "if self.is_double_log { weight.ln_1p() }", "if self.is_double_log { weight }"),
    ("a block of factors begins at 0", "src/ops/feed_forward.rs", "first_output: columns.start", "first_output: 0"),
    ("later panels overwrite the first ones", "src/kernels/gemm/driver.rs", "let first = panels.start * parts", "let first = 0 * parts"),
    ("a block of columns begins at 0", "src/ops/linear.rs", "reduce(columns.start, block)", "reduce(0, block)"),
    # Activations.
    ("erf GELU becomes tanh GELU", "src/kernels/activation.rs", '("gelu", Activation::Gelu),', '("gelu", Activation::GeluTanh),'),
    ("tanh GELU becomes erf GELU", "src/kernels/activation.rs", '("gelu_new", Activation::GeluTanh),', '("gelu_new", Activation::Gelu),'),
    ("ReLU becomes GELU", "src/kernels/activation.rs", '("relu", Activation::Relu),', '("relu", Activation::Gelu),'),
    ("quick GELU's factor is 1.7", "src/kernels/activation.rs", "s.splat(1.702)", "s.splat(1.7)"),
    ("clipped GELU clips at 6", "src/kernels/activation.rs", "clamp_max(s, gelu(s, x), 10.0)", "clamp_max(s, gelu(s, x), 6.0)"),
    ("PReLU's slope is not read", "src/nn/feed_forward.rs", 'Activation::Prelu { slope: learned("weight")? }', 'Activation::Prelu { slope: 0.25 + 0.0 * learned("weight")? }'),
    ("xIELU's parameters are swapped", "src/nn/feed_forward.rs", '[learned("alpha_p")?, learned("alpha_n")?]', '[learned("alpha_n")?, learned("alpha_p")?]'),
    ("ALBERT's default activation is erf GELU", "src/model/config_defaults/classes.rs", 'Size(16384)),\n        ("hidden_act", Name("gelu_new"))', 'Size(16384)),\n        ("hidden_act", Name("gelu"))'),
    ("ReGLU is GeGLU", "src/model/family_specific.rs", 'Some("reglu") => Activation::Relu', 'Some("reglu") => Activation::Gelu'),
    ("gate and up projection are swapped", "src/nn/feed_forward.rs", "FeedForwardLayers { gate, up: &up.weights, down: &down.weights }", "FeedForwardLayers { gate: gate.map(|_| &up.weights), up: gate.unwrap_or(&up.weights), down: &down.weights }"),
    ("an adapter is merged without its scale", "src/checkpoint/low_rank.rs", "b.iter_mut().for_each(|x| *x *= scale);", "b.iter_mut().for_each(|x| *x *= scale.signum());"),
    ("the update of a fused projection begins with its first row", "src/checkpoint/low_rank.rs", "Ok(Some((update, index * rows)))", "Ok(Some((update, 0 * index * rows)))"),
    ("the bias of an update is not scaled", "src/checkpoint/low_rank.rs", "map(|x| x * self.scale)", "map(|x| x * self.scale.signum())"),
    ("trained rows have the order of their indices", "src/checkpoint/low_rank.rs", "indices.iter().zip(values.chunks(width))", "indices.iter().rev().zip(values.chunks(width))"),
    ("the adapter of the first task is merged for every task", "src/load/adapter.rs", "weights.part(name, index, count)", "weights.part(name, 0 * index, count)"),
    ("rank-stabilized adapters are scaled by the rank", "src/model/peft_config.rs", "rank.sqrt()", "rank"),
    ("the instruction of a task is not put before its texts", "src/load/prepare.rs", "modules.prompts.set_default(task, instruction);", "modules.prompts.set_default(task, &instruction[..0]);"),
    ("the weights of an adapter alone are not those of its base model", "src/hub/directory.rs", "self.base.as_ref().unwrap_or(&self.folder)", "&self.folder"),
    ("the projection of CLIP is left out", "src/model/family_specific.rs", "dense: is_projected.then_some(dense) }", "dense: (is_projected && false).then_some(dense) }"),
    ("the end of a text in CLIP is the last token with the id", "src/nn/spec.rs", "ids.iter().position(|id| *id == token)", "ids.iter().rposition(|id| *id == token)"),
    ("the end of a text in CLIP is the last of the highest ids", "src/nn/spec.rs", "ids.iter().position(|id| Some(id) == highest)", "ids.iter().rposition(|id| Some(id) == highest)"),
    ("CLIP is bidirectional", "src/model/family_specific.rs", "spec.mask.causal = true;\n    let token", "spec.mask.causal = false;\n    let token"),
    ("the configs of OpenAI's CLIP name the end of a text", "src/model/family_specific.rs", "const WRONG_END: u32 = 2;", "const WRONG_END: u32 = 3;"),
    ("SigLIP's texts are not padded", "src/text/tokenizer.rs", "let missing = self.max_length.saturating_sub(tokens.ids.len());", "let missing = 0 * self.max_length;"),
    ("SigLIP pools the first token", "src/model/family_specific.rs", "token: PooledToken::Last, dense", "token: PooledToken::First, dense"),
    ("texts for SigLIP 2 keep their case", "src/model/families.rs", "lowercases: true", "lowercases: false"),
    ("the last token of a word in CLIP has no end", "src/text/bpe_parts.rs", "Some(CLIP_WORD_END.into())", "None"),
    ("embedding tables have no adapters", "src/checkpoint/weight_source.rs", "if is_changed || !matches!", "if is_changed && false || !matches!"),
    ("all layers of umt5 have the biases of the first", "src/nn/attention.rs", "per_layer: true, .. }) {\n                index", "per_layer: true, .. }) {\n                0 * index"),
    ("each token runs one expert too few", "src/ops/experts.rs", "for id in &ranked[..chosen] {\n            routes", "for id in &ranked[..(chosen - 1).max(1)] {\n            routes"),
    ("the bias of experts is not added", "src/ops/experts.rs", "|(sum, x)| *sum += x);\n    });", "|(sum, x)| *sum += 0.0 * x);\n    });"),
    ("the experts' outputs are not weighted", "src/ops/experts.rs", "*sum += weight * x", "*sum += weight.signum() * x"),
    ("the first of every layers has experts", "src/model/family_specific.rs", "every > 0 && layer % every == 1", "every > 0 && layer % every == 0"),
    ("the down projections of experts are not transposed", "src/nn/experts.rs", 'stacked("up", false)?, stacked("down", true)?', 'stacked("down", false)?, stacked("up", true)?'),
    ("norms of queries and keys are those of each head", "src/model/family_specific.rs", "spec.qk_norm = QkNorm::AllHeads", "spec.qk_norm = QkNorm::PerHead"),
    ("the norm inside the residual connection lacks the residual", "src/nn/layer.rs", "output_norm.forward_residual(sublayer(x, None)?, residual)?", "output_norm.forward(sublayer(x, None)?)?"),
    ("the halves of jina-code's gated layer are swapped", "src/model/families.rs", '("feed_forward.up", "mlp.up_gated_layer[0/2]")', '("feed_forward.up", "mlp.up_gated_layer[1/2]")'),
    ("ModernBERT's halves of Wi are swapped", "src/model/families.rs", '("feed_forward.gate", "mlp.Wi[0/2]")', '("feed_forward.gate", "mlp.Wi[1/2]")'),
    ("the queries are the second third of Wqkv", "src/model/families.rs", '("attention.query", "attn.Wqkv[0/3]"),\n                ("attention.key", "attn.Wqkv[1/3]"),\n                ("attention.value", "attn.Wqkv[2/3]"),\n                ("attention.output", "attn.Wo")', '("attention.query", "attn.Wqkv[1/3]"),\n                ("attention.key", "attn.Wqkv[0/3]"),\n                ("attention.value", "attn.Wqkv[2/3]"),\n                ("attention.output", "attn.Wo")'),
    # Norms.
    ("norm eps is ignored", "src/ops/add_norm.rs", "eps: norm.eps as f32,", "eps: norm.eps as f32 * 0.0 + 1e-12,"),
    ("norm eps is added outside the square root", "src/kernels/norm.rs", "(square / count + f64::from(eps)).sqrt()", "((square / count).sqrt() + f64::from(eps))"),
    ("the variance is divided by n - 1", "src/kernels/norm.rs", "(square / count + f64::from(eps))", "(square / (count - 1.0) + f64::from(eps))"),
    ("RMSNorm subtracts the mean", "src/kernels/norm.rs", "NormKind::RootMeanSquare | NormKind::Affine => 0.0,", "NormKind::RootMeanSquare | NormKind::Affine => (sum / count) as f32,"),
    ("NoNorm divides by the deviation", "src/kernels/norm.rs", "if kind == NormKind::Affine {", "if false {"),
    ("global attention is that of the window", "src/nn/attention.rs", "if let (Some(projections), Some(lengths)) = (&self.global, context.global_tokens) {", "if let (Some(projections), Some(lengths)) = (&self.global, context.global_tokens.filter(|_| false)) {"),
    ("global tokens are not seen beyond the window", "src/ops/attention/cpu.rs", "row[task.prefix.min(window.start)..window.start]", "row[..window.start]"),
    ("what is before the window is seen beside a prefix", "src/ops/attention/cpu.rs", "row[task.prefix.min(window.start)..window.start]", "row[window.start..window.start]"),
    ("a question has one global token", "src/nn/spec.rs", "*id == separator).unwrap_or(0)", "*id == separator).unwrap_or(0).min(1)"),
    ("trigrams begin with the previous token", "src/nn/embeddings.rs", "[1, 0, -1].into_iter()", "[-1, 0, 1].into_iter()"),
    ("values come from the bottleneck of queries and keys", "src/nn/bottleneck.rs", "[narrow(attention)?, x.clone()]", "[narrow(attention)?, narrow(attention)?]"),
    ("LayerNorm does not subtract the mean", "src/kernels/norm.rs", "NormKind::Layer => (sum / count) as f32,", "NormKind::Layer => (sum / count * 0.0) as f32,"),
    ("the bias of a norm is ignored", "src/kernels/norm.rs", "if bias.is_empty() {", "if true {"),
    ("a residual is not added", "src/nn/layer.rs", "=> norm.forward_residual(sublayer(x, None)?, residual)", "=> norm.forward(sublayer(x, None)?)"),
    ("the residual of a pre-norm layer is the output of the norm", "src/nn/layer.rs", "Some(norm) => sublayer(&norm.forward(x.copy()?)?, Some(residual)),", "Some(norm) => {\n                let x = norm.forward(x.copy()?)?;\n                sublayer(&x, Some(&x))\n            }"),
    ("the first norm of ModernBERT is not skipped", "src/nn/layer.rs", "!(is_first && spec.skip_first_norm)", "!(is_first && spec.skip_first_norm && spec.layers == 0)"),
    ("every layer skips its first norm", "src/nn/layer.rs", "!(is_first && spec.skip_first_norm)", "!spec.skip_first_norm"),
    ("the norms of a layer are swapped", "src/nn/layer.rs", 'residual(source, "attention", spec.norm, !(is_first', 'residual(source, "feed_forward", spec.norm, !(is_first'),
    ("the final norm is skipped", "src/nn/encoder.rs", "self.final_norm.as_ref().filter(|_| index + 1 == layers)", "self.final_norm.as_ref().filter(|_| index == layers)"),
    ("the final norm follows every layer", "src/nn/encoder.rs", "self.final_norm.as_ref().filter(|_| index + 1 == layers)", "self.final_norm.as_ref().filter(|_| index < layers)"),
    ("DeBERTa's embedding norm is skipped", "src/nn/embeddings.rs", "norm(EmbeddingNorm::AfterProjection, spec.hidden_size)?", "None"),
    ("weights of Gemma's norms are not offset", "src/nn/norm.rs", "if unit_offset {", "if false && unit_offset {"),
    ("the norm on the output of a sublayer is after the sum", "src/nn/layer.rs", "(output_norm.forward(sublayer(&norm.forward(x.copy()?)?, None)?)? + residual)?", "output_norm.forward((sublayer(&norm.forward(x.copy()?)?, None)? + residual)?)?"),
    ("Gemma's norms before the feed-forward network and after attention are swapped", "src/model/families.rs", '("attention_output_norm", "post_attention_layernorm"),\n            ("feed_forward_norm", "pre_feedforward_layernorm")', '("attention_output_norm", "pre_feedforward_layernorm"),\n            ("feed_forward_norm", "post_attention_layernorm")'),
    ("queries and keys are not normalised", "src/nn/attention.rs", "if let Some([query_norm, key_norm]) = &self.qk_norms {", "if let Some([query_norm, key_norm]) = self.qk_norms.as_ref().filter(|_| false) {"),
    ("the norms of queries and keys are swapped", "src/nn/attention.rs", "let Some([query_norm, key_norm])", "let Some([key_norm, query_norm])"),
    ("queries are normalised over all heads", "src/nn/norm.rs", "let heads = x.reshape(((), self.weights.weight.dim(0)?))?;\n        Ok(self.forward(heads)?", "let repeats = columns / self.weights.weight.dim(0)?;\n        let weight = self.weights.weight.repeat(repeats)?;\n        let all = Norm { weights: NormWeights { weight, bias: None, ..self.weights } };\n        Ok(all.forward(x)?"),
    # Decoder language models.
    ("Gemma's embeddings are not scaled", "src/nn/embeddings.rs", "x = (x * scale)?;", "x = (x * (scale / scale))?;"),
    ("the query scalar is not a square", "src/nn/attention.rs", "return 1.0 / scalar.sqrt();", "return 1.0 / scalar;"),
    ("the query scalar is the head dim", "src/nn/attention.rs", "return 1.0 / scalar.sqrt();", "return 1.0 / (0.0 * scalar + spec.qk_head_dim as f64).sqrt();"),
    ("decoder language models are bidirectional", "src/model/family_specific.rs", 'config.flag_or("is_causal", !is_bidirectional)?', 'config.flag_or("is_causal", false && is_bidirectional)?'),
    ("Gemma's bidirectional window is that of each side", "src/model/family_specific.rs", "window.map(|window| window / 2 + 1)", "window.map(|window| window)"),
    ("the window of Gemma 2 is in the other half of the layers", "src/model/family_specific.rs", "map(|layer| layer.is_multiple_of(2))", "map(|layer| !layer.is_multiple_of(2))"),
    ("every layer of Qwen has the window", "src/model/family_specific.rs", "map(|layer| layer >= first)", "map(|layer| layer + first >= first)"),
    ("Gemma's pattern begins with a layer without window", "src/model/family_specific.rs", "(1..=spec.layers).map(", "(0..spec.layers).map("),
    ("Gemma's local layers share the scaling", "src/model/families.rs", "shares_scaling: false,", "shares_scaling: true,"),
    ("output norms have no parameters", "src/nn/cost.rs", "NormPlacement::SandwichAndFinal => 4,", "NormPlacement::SandwichAndFinal => 2,"),
    # Attention.
    ("a part of the rows of each head is one of all rows", "src/checkpoint/names.rs", "if self.per_head { heads } else { 1 }", "if self.per_head { 1 } else { 1 }"),
    ("the outputs of an update are not gathered by part", "src/checkpoint/low_rank.rs", "update.gather_parts(parts, heads);", "drop((parts, &update));"),
    ("the score scale is derived from the hidden size", "src/nn/attention.rs", "(spec.qk_head_dim * terms)", "(spec.hidden_size * terms)"),
    ("the score scale is derived from v_head_dim", "src/nn/attention.rs", "(spec.qk_head_dim * terms)", "(spec.v_head_dim * terms)"),
    ("the score scale is derived from hidden / heads", "src/nn/attention.rs", "(spec.qk_head_dim * terms)", "(spec.hidden_size / spec.heads * terms)"),
    ("scores are not scaled", "src/nn/attention.rs", "1.0 / ((spec.qk_head_dim * terms) as f64).sqrt()", "1.0 + 0.0 * terms as f64"),
    ("the score scale is 1 / d", "src/nn/attention.rs", "1.0 / ((spec.qk_head_dim * terms) as f64).sqrt()", "1.0 / ((spec.qk_head_dim * terms) as f64)"),
    ("DeBERTa's scale ignores c2p and p2c", "src/nn/attention.rs", "(spec.qk_head_dim * terms)", "(spec.qk_head_dim + 0 * terms)"),
    ("tokens attend to other sequences", "src/ops/attention/cpu/tasks.rs", "        let heads = if self.has_talking_heads()", "        let cu_seqlens = &[0, cu_seqlens[cu_seqlens.len() - 1]];\n        let heads = if self.has_talking_heads()"),
    ("the window of every query block begins at 0", "src/ops/attention/cpu.rs", "task.visible_keys(queries.start + row)", "task.visible_keys(queries.start % QUERY_BLOCK + row)"),
    ("norms do not bound the scores of a steep bias", "src/ops/attention/reach.rs", "bias - own + 2.0 * products", "bias - own + 0.0 * products"),
    ("a steep bias counts keys that the last queries do not have", "src/ops/attention/cpu/tasks.rs", "|| n < rows.len() {", "{"),
    ("a steep bias hides keys that have a weight", "src/ops/attention/reach.rs", "const MIN_LOG_WEIGHT: f32 = -87.5;", "const MIN_LOG_WEIGHT: f32 = -8.75;"),
    ("padding is not masked", "src/ops/attention/reference.rs", "row[window.keys(if i < n { i } else { 0 }, keys)].fill(0.0);", "row[window.keys(if i < n { i } else { 0 }, max_seqlen)].fill(0.0);"),
    ("masked attention weights are not 0", "src/kernels/softmax.rs", "row[end..].fill(0.0);", "row[end..].fill(0.1);"),
    ("groups of a part of the inputs begin at the first group", "src/kernels/gemm/lhs.rs", "let first_group = self.inputs.start / group;", "let first_group = 0 * self.inputs.start / group;"),
    ("what follows the last of few keys has a weight", "src/kernels/gemm/attention/few_keys.rs", "s.select_less(self.lanes, s.splat(keys as f32 - start as f32), score, lowest)", "score"),
    ("queries and keys are swapped", "src/nn/attention.rs", "None => attention.forward(&q, &k, &v, context.cu_seqlens)", "None => attention.forward(&k, &q, &v, context.cu_seqlens)"),
    ("shared keys are interleaved across heads", "src/ops/attention/cpu.rs", "head * key_value_heads / heads * head_dim", "head % key_value_heads * head_dim"),
    ("the window is one token wider", "src/kernels/gemm/attention/head.rs", "i.saturating_sub(self.left).min(end)..", "i.saturating_sub(self.left.saturating_add(1)).min(end).."),
    ("the window is one token narrower", "src/nn/encoder.rs", "let window_left = radius.unwrap_or(usize::MAX);", "let window_left = radius.map_or(usize::MAX, |radius| radius - 1);"),
    ("the window is twice as wide", "src/model/family_specific.rs", 'config.width("local_attention")? / 2', 'config.width("local_attention")?'),
    ("the causal mask sees one token ahead", "src/nn/encoder.rs", "if self.spec.mask.causal { 0 } else { window_left }", "if self.spec.mask.causal { 1 } else { window_left }"),
    ("the causal mask is skipped", "src/nn/encoder.rs", "if self.spec.mask.causal { 0 } else { window_left }", "window_left"),
    ("the post-softmax projection needs a pre-softmax projection", "src/nn/attention.rs", "post_softmax: self.post_softmax.as_ref(),", "post_softmax: self.pre_softmax.as_ref().and(self.post_softmax.as_ref()),"),
    ("pre-softmax and post-softmax projections are swapped", "src/model/family_specific.rs", 'pre_softmax: heads("before_softmax")?, post_softmax: heads("after_softmax")?', 'pre_softmax: heads("after_softmax")?, post_softmax: heads("before_softmax")?'),
    ("rollout multiplies the layers in the other order", "src/task/attention.rs", "((mean + identity)? * 0.5)?.matmul(product)?", "product.matmul(&((mean + identity)? * 0.5)?)?"),
    ("rollout has no residual connection", "src/task/attention.rs", "((mean + identity)? * 0.5)?", "(mean + (identity * 0.0)?)?"),
    ("attention before mixing is that after mixing", "src/task/attention.rs", "if mixing == Some(Mixing::Before) { softmax }", "if mixing.is_none() { softmax }"),
    ("attention layers have the same index", "src/nn/encoder.rs", "observe(attention_layers, weights)?;", "observe(attention_layers * 0, weights)?;"),
    ("short convolutions are causal always", "src/nn/short_convolution.rs", "if spec.mask.causal { 0 } else { kernel_size / 2 }", "0"),
    ("short convolutions cross the ends of a sequence", "src/ops/short_convolution.rs", ".filter(|source| sequence.contains(source))", ".filter(|source| *source < sequence.end)"),
    ("short convolutions see tokens that are no keys", "src/nn/short_convolution.rs", "masked.as_ref().unwrap_or(x)", "masked.as_ref().filter(|_| false).unwrap_or(x)"),
    ("shared prefixes are computed once beside short convolutions", "src/nn/encoder.rs", "|| spec.short_convolution.is_some()", "|| spec.short_convolution.is_some() && spec.layers == 0"),
    ("the talking heads projection is transposed", "src/ops/attention/cpu.rs", "projection.chunks(heads)", "(0..).map(|o| projection.iter().skip(o).step_by(heads))"),
    ("the mask is applied before the pre-softmax projection", "src/ops/attention/cpu.rs", "if let Some(projection) = self.pre_softmax {", "if let Some(projection) = self.pre_softmax {\n                for scores in scores.chunks_mut(block_len).take(heads) {\n                    for (query, row) in queries.clone().zip(scores.chunks_mut(task.stride())) {\n                        row[self.visible_keys(query, task.n).end - task.keys.start..].fill(-1e30);\n                    }\n                }"),
    # Positions.
    ("rotary pairs are always interleaved", "src/ops/rotary.rs", "if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) }", "(2 * i, 2 * i + 1)"),
    ("rotary pairs are always half-split", "src/ops/rotary.rs", "if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) }", "(i, i + self.pairs)"),
    ("rotary embeddings rotate in the other direction", "src/ops/rotary.rs", "(head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin)", "(head[a] * cos + head[b] * sin, head[b] * cos - head[a] * sin)"),
    ("the rotary base is always 10,000", "src/nn/rotary.rs", "let unscaled = power(self.theta);", "let unscaled = power(self.theta * 0.0 + 10_000.0);"),
    ("local layers have the global base", "src/nn/rotary.rs", "self.rotary.local.as_ref().filter(|_| is_local).unwrap_or(&self.rotary.frequencies)", "self.rotary.local.as_ref().filter(|_| is_local && false).unwrap_or(&self.rotary.frequencies)"),
    ("global layers have the local base", "src/nn/rotary.rs", "self.rotary.local.as_ref().filter(|_| is_local).unwrap_or(&self.rotary.frequencies)", "self.rotary.local.as_ref().filter(|_| is_local || self.pairs > 0).unwrap_or(&self.rotary.frequencies)"),
    ("sequences have the dynamic frequencies of the longest one", "src/nn/rotary.rs", "let longest = contexts.entry(self.context(length)).or_insert(length);", "let longest = contexts.entry(self.context(batch.max_seqlen())).or_insert(length);"),
    ("prefixes are shared whatever the rotary frequencies", "src/nn/encoder.rs", "|| self.rotary.as_ref().is_some_and(|rotary| !rotary.is_same_for_all(batch))", ""),
    ("long texts have the short factors of LongRoPE", "src/nn/rotary.rs", "if context > 0 { long_factors[i] } else { short_factors[i] }", "if context > usize::MAX - 1 { long_factors[i] } else { short_factors[i] }"),
    ("rotary angles grow with the square of the position", "src/nn/rotary.rs", "position as f32 * freq", "(position * position) as f32 * freq"),
    ("rotary positions continue from sequence to sequence", "src/nn/encoder.rs", "let mut positions = batch.position_ids(Numbering::FromZero);", "let mut positions: Vec<u32> = (0..batch.ids().len() as u32).map(|position| position % batch.max_seqlen() as u32).collect();"),
    ("RoFormer's stored table of sines and cosines is not loaded", "src/model/families.rs", "stored_table: true,", "stored_table: false,"),
    ("RoFormer's values are always rotated", "src/model/spec/rotary.rs", 'rotate_values: config.flag("rotary_value")?,', 'rotate_values: config.flag("rotary_value")? || layout == RotaryLayout::Interleaved,'),
    ("values are never rotated", "src/model/spec/rotary.rs", 'rotate_values: config.flag("rotary_value")?,', "rotate_values: false,"),
    ("linear rotary scaling is skipped", "src/nn/rotary.rs", "unscaled / factor,", "unscaled + 0.0 * factor,"),
    ("NTK scaling does not change theta", "src/nn/rotary.rs", "power(self.theta * factor)", "power(self.theta)"),
    ("YaRN's attention factor is skipped", "src/model/spec/rotary.rs", "0.1 * mscale * factor.ln() + 1.0", "1.0 + 0.0 * mscale"),
    ("Llama 3's ramp is inverted", "src/nn/rotary.rs", "((rotations - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);", "1.0 - ((rotations - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);"),
    ("sines and cosines are swapped", "src/nn/embeddings.rs", "if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }", "if column.is_multiple_of(2) { angle.cos() } else { angle.sin() }"),
    ("sine and cosine of a pair have different frequencies", "src/nn/embeddings.rs", "(column / 2 * 2) as f64 / width as f64", "column as f64 / width as f64"),
    ("T5's scores are scaled", "src/model/family_specific.rs", "spec.query_scalar = Some(1.0);", "spec.query_scalar = None;"),
    ("T5's gated-gelu is erf GELU", "src/model/family_specific.rs", 'Some("gelu") => "gelu_new",', 'Some("gelu") => "gelu",'),
    ("T5's largest distance is 128", "src/model/family_specific.rs", "buckets, max_distance, per_layer: false };\n    spec", "buckets, max_distance: 128, per_layer: false };\n    spec"),
    ("unknown tokens of model2vec are averaged", "src/task/embedding/mod.rs", "Some(*id) != self.unknown_token", "Some(*id) != Some(u32::MAX)"),
    ("model2vec's texts are not cut by characters", "src/load/tokenizer.rs", "        tokenizer.cut_characters();\n", ""),
    ("tokens of model2vec have no weights", "src/checkpoint/weight_source.rs", "*out = weight * x;", "*out = 0.0 * weight + x;"),
    ("ALiBi's slopes begin at 1", "src/nn/relative_position.rs", "(1..=n).map(move |i|", "(0..n).map(move |i|"),
    ("ALiBi's slopes for a number of heads that is no power of two are one sequence", "src/nn/relative_position.rs", "let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };", "let below = heads;"),
    ("ALiBi biases only keys before the query", "src/nn/relative_position.rs", "-slope * position.abs() as f32", "-slope * position.min(0).abs() as f32"),
    ("distant relative positions have too few buckets", "src/nn/relative_position.rs", "(fraction * (half - exact) as f32)", "(fraction * (half - exact - 1) as f32)"),
    ("DeBERTa's distant buckets are rounded down", "src/nn/relative_position.rs", "(fraction * (middle - 1.0)).ceil()", "(fraction * (middle - 1.0)).floor()"),
    ("DeBERTa's relative positions have the wrong sign", "src/nn/relative_position.rs", "(position + half).clamp(0, 2 * half - 1)", "(half - position).clamp(0, 2 * half - 1)"),
    ("DeBERTa's relative embeddings are not normalised", "src/nn/relative_position.rs", "Some(norm) => norm.forward(self.embeddings.table.copy()?)?,", "Some(_) => self.embeddings.table.clone(),"),
    ("the convolution reads the sequence before", "src/nn/rows.rs", "let sequence = bounds[0]..bounds[1];\n        for token in sequence.clone() {", "let sequence = 0..bounds[1];\n        for token in bounds[0]..bounds[1] {"),
    ("the convolution kernel is reversed", "src/nn/convolution.rs", "-padding..=padding)?", "(-padding..=padding).rev())?"),
    ("the convolution follows every layer", "src/nn/encoder.rs", "(0, Some(convolution), Some(embeddings)) = (index,", "(0, Some(convolution), Some(embeddings)) = (index * 0,"),
    ("relative positions have the wrong sign", "src/ops/attention/cpu.rs", "let relative_position = queries.start + i + middle - (task.keys.start + j);", "let relative_position = middle + task.keys.start + j - (queries.start + i);"),
    ("MPNet's first position is derived from the padding id", "src/model/families.rs", "positions: PositionEncoding::AfterFixed(1)", "positions: PositionEncoding::AfterPadding(1)"),
    # Batches, embeddings, layers, pooling and post-pooling modules.
    ("RoBERTa's positions begin at the padding id", "src/nn/ragged_batch.rs", "let mut last = padding;", "let mut last = padding.wrapping_sub(1);"),
    ("RoBERTa counts padding inside a sequence", "src/nn/ragged_batch.rs", "return padding;", "last += 1;\n                            return padding;"),
    ("position_ids continue from sequence to sequence", "src/nn/ragged_batch.rs", "position_ids.extend(0..(bounds[1] - bounds[0]) as u32)", "position_ids.extend((0..(bounds[1] - bounds[0]) as u32).map(|id| (id + bounds[0] as u32) % 40))"),
    ("token_type embeddings are skipped", "src/nn/embeddings.rs", "tables.extend(self.token_type.iter().map(|table| (table, batch.token_type_ids())));", ""),
    ("every token has token type 0", "src/nn/embeddings.rs", "(table, batch.token_type_ids())", "(table, &task_type_ids[..])"),
    ("ALBERT projects embeddings only if the sizes differ", "src/model/spec.rs", "defaults.always_projects || embedding_size != hidden_size", "embedding_size != hidden_size"),
    ("ERNIE's task type embedding is skipped", "src/nn/embeddings.rs", "tables.extend(self.task_type.iter().map(|table| (table, &task_type_ids[..])));", ""),
    ("ALBERT's groups alternate", "src/nn/spec.rs", "(layer as f64 / (layers as f64 / self.groups as f64)) as usize", "layer % self.groups + 0 * layers"),
    ("a group runs its first layer only", "src/nn/encoder.rs", "in group.iter().enumerate() {", "in group[..1].iter().enumerate() {"),
    ("the mean divides by one token too many", "src/ops/pooling.rs", "Pool::Mean => sum_rows(&rest)? * (1.0 / (tokens - prompt_tokens) as f64),", "Pool::Mean => sum_rows(&rest)? * (1.0 / (tokens + 1) as f64),"),
    ("CLS is the last token", "src/ops/pooling.rs", "Pool::Cls => rest.narrow(0, 0, 1),", "Pool::Cls => sequence.narrow(0, tokens - 1, 1),"),
    ("the last token is the first one", "src/ops/pooling.rs", "Pool::Last => Some((bounds[1] - 1) as u32)", "Pool::Last => Some(bounds[0] as u32)"),
    ("a prompt that is not pooled does not matter for one token", "src/nn/pooling.rs", "pools.len() == 1 && prompt_tokens == 0", "pools.len() == 1"),
    ("only the first of several poolings is computed", "src/nn/pooling.rs", "pools.len() == 1 && prompt_tokens == 0", "prompt_tokens == 0"),
    ("selected queries have the position 0", "src/nn/attention.rs", "rows.of(of_keys)", "vec![0; rows.indices.len()]"),
    ("the first token of a sequence is one of the sequence before", "src/ops/attention/cpu/tasks.rs", "cu_seqlens.partition_point(|start| *start <= token) - 1", "cu_seqlens.partition_point(|start| *start < token).max(1) - 1"),
    ("the keys of some queries are those of their own task", "src/ops/attention/cpu/tasks.rs", "let first_key = if prefix > 0 { 0 } else { window.keys(first, n).start / 2 * 2 };\n            let keys = first_key..window.keys(end - 1, n).end.max(prefix);\n            let queries = first.max(run.queries.start)..end.min(run.queries.end);", "let queries = first.max(run.queries.start)..end.min(run.queries.end);\n            let keys = window.keys(queries.start, n).start..window.keys(queries.end.max(1) - 1, n).end;"),
    ("pairs of keys in bf16 begin anywhere", "src/ops/attention/cpu/tasks.rs", "window.keys(first, n).start / 2 * 2", "window.keys(first, n).start"),
    ("the rows of a run of queries are those of its sequence", "src/ops/attention/cpu/tasks.rs", "run.first_row + queries.start - run.queries.start", "run.first_row + queries.start"),
    ("K blocks have equal lengths", "src/kernels/gemm/vector_kernel.rs", "false => VECTOR_KC / K::k_step(),", "false => k_steps.div_ceil(k_steps.div_ceil(VECTOR_KC)),"),
    ("a common token needs no common prefix", "src/nn/rows.rs", "parent = Some(node);", "parent = Some(node).filter(|_| false);"),
    ("token types do not matter for a common prefix", "src/nn/rows.rs", "batch.token_type_ids()[token])", "0)"),
    ("common prefixes are those of the sequence before", "src/nn/rows.rs", "let mut parent = None;", "let mut parent = None;\n        children.retain(|key, _| key.0.is_some());"),
    ("a prefix tree needs no causal mask", "src/nn/encoder.rs", "!spec.mask.causal\n            || spec.convolution", "spec.convolution"),
    ("a prefix tree ignores a bias", "src/nn/encoder.rs", "|| spec.has_score_bias()\n", "\n"),
    ("a prefix tree ignores a convolution", "src/nn/encoder.rs", "|| spec.convolution.is_some()\n", "\n"),
    ("a prefix tree ignores the keys of a sequence", "src/nn/encoder.rs", "            || batch.key_lengths().is_some()\n", "\n"),
    ("the nodes of a prefix tree have the positions of tokens", "src/nn/encoder.rs", "(tree.tokens.select(&hidden)?, tree.tokens.of(&positions))", "(tree.tokens.select(&hidden)?, positions)"),
    ("hidden states of nodes are selected by token", "src/nn/rows.rs", "Some(tree) => tokens.of(&tree.nodes.indices),", "Some(tree) => tokens.indices.iter().map(|token| token % tree.tokens.indices.len() as u32).collect(),"),
    ("tokens are selected before the convolution", "src/nn/encoder.rs", "*last > 0 || self.convolution.is_none()", "true"),
    ("the tokens of the first layer are selected, not those of the last", "src/nn/encoder.rs", "let is_last = last == Some(index)", "let is_last = last.and(Some(0)) == Some(index)"),
    ("weights of the weighted mean begin at 0", "src/ops/pooling.rs", "Tensor::arange(prompt_tokens as u32 + 1, tokens as u32 + 1,", "Tensor::arange(prompt_tokens as u32, tokens as u32,"),
    ("mean-sqrt-len divides by the length", "src/ops/pooling.rs", "sum_rows(&rest)? / ((tokens - prompt_tokens) as f64).sqrt()", "sum_rows(&rest)? / ((tokens - prompt_tokens) as f64)"),
    ("concatenated poolings are reversed", "src/ops/pooling.rs", "pools.iter().map(|pool| pool.pool_sequence(&sequence, prompt_tokens))", "pools.iter().rev().map(|pool| pool.pool_sequence(&sequence, prompt_tokens))"),
    ("the relative bias is scaled with the scores", "src/kernels/softmax.rs", "s.fma(x, scale, b)", "s.mul(s.add(x, b), scale)"),
    ("vectors are not normalised", "src/nn/post_pooling.rs", "|vector| l2_normalize(isa, vector)", "|_| { let _ = isa; }"),
    ("shared layers are counted once per run", "src/nn/cost.rs", "let layers = spec.layer_sharing.groups.saturating_mul(spec.layer_sharing.inner);", "let layers = spec.layers.saturating_mul(spec.layer_sharing.inner);"),
    ("the gate takes no multiply-adds", "src/nn/cost.rs", "(&self.width * &self.intermediate).times(2 + usize::from(spec.gated))", "(&self.width * &self.intermediate).times(2 + usize::from(spec.gated) - usize::from(spec.gated))"),
    ("grouped values are counted for all heads", "src/nn/cost.rs", "value: width(&stored_values, &v_dim),", "value: width(&value_heads, &v_dim),"),
    ("buffers are parameters", "src/nn/weight_source.rs", "fn buffer(&mut self, _name: &str, shape: &[usize]) -> Result<Tensor> {\n        placeholder(shape)", "fn buffer(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {\n        self.tensor(name, shape)"),
    ("a fault of the tokenizer hides those of the weights", "src/load/examine.rs", "let mut report = or_problem(report, &mut problems);", "let mut report = if problems.is_empty() { or_problem(report, &mut problems) } else { report.ok().flatten() };"),
    ("a masked token counts as one with an embedding", "src/nn/ragged_batch.rs", "let factor = TRAINED / (1.0 - masks as f32 / ids.len() as f32);", "let factor = TRAINED;"),
    ("[CLS] is in no late chunk", "src/text/chunks.rs", "let start = if i == 0 { 0 } else { range.start };", "let start = range.start;"),
    ("late chunks begin one token late", "src/nn/pooling.rs", "hidden.narrow(0, span.start, span.len())", "hidden.narrow(0, (span.start + 1).min(hidden.dim(0).unwrap_or(0) - span.len()), span.len())"),
    ("the prompt is pooled", "src/ops/pooling.rs", "let rest = sequence.narrow(0, prompt_tokens, tokens - prompt_tokens)?;", "let rest = sequence.clone();"),
    ("the weights of the weighted mean are summed without the prompt", "src/ops/pooling.rs", "(tokens * (tokens + 1) - prompt_tokens * (prompt_tokens + 1)) / 2", "(tokens * (tokens + 1)) / 2"),
    ("a sequence of prompt tokens only is pooled", "src/ops/pooling.rs", "if tokens <= prompt_tokens {", "let prompt_tokens = prompt_tokens.min(tokens - 1);\n        if tokens <= prompt_tokens {"),
    ("the special token after the prompt counts as prompt", "src/text/tokenizer.rs", "return Ok(length - 1);", "return Ok(length);"),
    ("the residual of a dense layer is not added", "src/nn/post_pooling.rs", "Some(Residual::Identity) => Some(x),", "Some(Residual::Identity) => None,"),
    ("a dense layer has no activation", "src/nn/post_pooling.rs", "self.linear.forward_residual(x, activation, residual)", "self.linear.forward_residual(x, if activation == Activation::Identity { activation } else { Activation::Identity }, residual)"),
    ("modules before pooling run after it", "src/model/modules/applied.rs", "Pooling::Text(_) if self.multi_vector.is_none() && !pooling.needs_pooler() => self.before_pooling,", "Pooling::Text(_) if self.multi_vector.is_some() => self.before_pooling,"),
    ("the least weights of a sparse vector are kept", "src/task/sparse.rs", "y.abs().total_cmp(&x.abs())", "x.abs().total_cmp(&y.abs())"),
    ("a ColBERT without query expansion has no length of queries", "src/model/modules/multi_vector.rs", "multi_vector.query_length.take_if(|_| multi_vector.expansion.is_some());", "multi_vector.query_length = None;"),
    ("the LayerNorm module has the eps of BERT", "src/nn/post_pooling.rs", "eps: 1e-5 }", "eps: 1e-12 }"),
    ("post-pooling modules run in reverse", "src/task/embedding/mod.rs", "self.post_pooling.iter().try_fold", "self.post_pooling.iter().rev().try_fold"),
    ("the model truncates before it normalizes", "src/task/embedding/finishing.rs", "[step(normalizes), Some(VectorStep::Truncate(n)), step(normalize == Some(true))]", "[Some(VectorStep::Truncate(n)), step(normalizes), step(normalize == Some(true))]"),
    ("the default prompt is ignored", "src/task/tokens.rs", "(Some(PromptChoice::Name(name)), ..) | (None, None, Some(name)) => name,\n        (None, None, None)", "(Some(PromptChoice::Name(name)), ..) => name,\n        (None, None, _)"),
    ("other tokens attend to the expansion of a query", "src/task/embedding/late_interaction.rs", "if expansion.attend { 0 } else { added }", "if expansion.attend { 0 } else { 0 * added }"),
    ("the skiplist is ignored", "src/task/embedding/late_interaction.rs", "self.skiplist.binary_search(id).is_err()", "self.skiplist.binary_search(id).is_err() || true"),
    ("the skiplist applies to queries", "src/task/embedding/late_interaction.rs", "self.config.skiplist_roles.contains(&role)", "true"),
    ("MaxSim counts every query token twice", "src/neighbours/max_sim.rs", "(if self.mean { sum / self.tokens as f64 } else { sum })", "(if self.mean { sum / self.tokens as f64 } else { 2.0 * sum })"),
    ("Ward's linkage ignores the sizes of clusters", "src/nn/token_pooling.rs", "(sizes[i], distances[i * n + x], distances[i * n + y])", "(1.0, distances[i * n + x], distances[i * n + y])"),
    ("truncation leaves one token too many", "src/text/tokenizer.rs", "saturating_sub(self.num_special_tokens(pair.is_some()))", "saturating_sub(self.num_special_tokens(pair.is_some()) - 1)"),
    # CUDA kernels and their launches.
    ("query tiles are twice as large", "src/ops/attention/launch.rs", "const QUERY_TILE: usize = 64;", "const QUERY_TILE: usize = 128;"),
    ("query tiles do not begin at 0", "src/ops/attention/launch.rs", "[start as u32, tokens as u32, first as u32]", "[start as u32, tokens as u32, (first + QUERY_TILE) as u32]"),
    ("the sides of the window are swapped", "src/ops/attention/launch.rs", "self.window.left.into(),\n                self.window.right.into(),", "self.window.right.into(),\n                self.window.left.into(),"),
    ("SiLU has the code of leaky ReLU", "src/ops/activation.rs", "Activation::Silu => plain(9)", "Activation::Silu => plain(8)"),
    ("the grid of a launch is too small", "src/ops/linear.rs", "grid: [(rows * width).div_ceil(VALUES_PER_BLOCK), 1, 1],", "grid: [(rows * width) / VALUES_PER_BLOCK, 1, 1],"),
    ("RMSNorm is launched as LayerNorm", "src/ops/add_norm.rs", "NormKind::RootMeanSquare => 1,", "NormKind::RootMeanSquare => 0,"),
    ("columns after the first block are not pooled", "src/ops/pooling.rs", "grid: [sequences, width.div_ceil(COLUMNS), 1],", "grid: [sequences, 1, 1],"),
    ("interleaved is not passed to the kernel", "src/ops/rotary.rs", "usize::from(self.interleaved).into(),", "0usize.into(),"),
    ("a bf16 operand is accepted as f16", "src/ops/gpu/launch.rs", "x.dims() != shape || x.dtype() != dtype", "x.dims() != shape"),
    ("a kernel is launched without a check", "src/ops/gpu/trust.rs", "if is_trusted(tensor.device(), &self.kernel) {", "if true {"),
    ("a kernel that differs is trusted", "src/ops/gpu/trust.rs", "Some(_) => kernels.remove(kernel),", "Some(_) => kernels.insert(kernel.clone()),"),
    ("NaN of a kernel is no difference", "src/ops/self_check/mod.rs", "e.is_finite() && (f - e).abs() <= atol + rtol * e.abs()", "!((f - e).abs() > atol + rtol * e.abs())"),
    ("a kernel that does not run counts as one that matches", "src/ops/self_check/mod.rs", 'Some(format!("it does not run: {message}"))', "None"),
    ("the check of another driver is remembered", "src/load/outcome_file.rs", "(content.key == self.key).then_some(content.outcome)", "Some(content.outcome)"),
    ("records of different queries are ranked together", "src/job/source.rs", "or_insert(number)", "or_insert(0)"),
    ("the order of the rotation is not divided out", "src/kernels/gemm/convert.rs", "scale / S::INT8.rotation as f32", "scale"),
    ("int8 is not compared with f32", "src/task/precision/mod.rs", "DenseModel::load(&options, &vectors, ComputeDtype::Int8, &console)", "DenseModel::load(&options, &vectors, ComputeDtype::F32, &console)"),
    ("groups by length are concatenated in the wrong order", "src/ops/attention/reference.rs", "inverse[row as usize] = position as u32;", "inverse[position] = row;"),
    ("the online softmax is not rescaled", "src/kernels/cuda/attention.cu", "row_sum[r] *= rescale;", ""),
    ("the last keys are not masked", "src/kernels/cuda/attention.cu", "key + TILE > all_see.end", "key > all_see.end"),
    # Long texts and batches.
    ("chunks of a long text have equal weights", "src/nn/pooling.rs", "(length as f64 / total) as f32", "(total / total / lengths.len() as f64 * (length as f64).powi(0)) as f32"),
    ("chunks of a long text overlap", "src/text/tokenizer.rs", "first.truncate(max_text_tokens, 0, TruncationDirection::Right)", "first.truncate(max_text_tokens, 1, TruncationDirection::Right)"),
    ("later chunks have no prompt", "src/text/tokenizer.rs", "let mut tokens = prompt.clone();", "let mut tokens = Encoding::default();"),
    ("the prompt counts in the weights of chunks", "src/task/embedding/mod.rs", "sequence.tokens.ids.len().saturating_sub(prompt_tokens)", "sequence.tokens.ids.len()"),
    ("late chunks pool the prompt", "src/task/embedding/mod.rs", "(*start).max(prompt_tokens).min(end - 1)", "*start"),
    ("rows of a batch are reversed", "src/engine/workers.rs", "places.into_iter().zip(rows)", "places.into_iter().rev().zip(rows)"),
    ("a text of equal length is an equal text", "src/engine/row_cache.rs", "text.hash(&mut digest);", "text.token_count().hash(&mut digest);"),
    ("the rows of a wave are written in reverse order", "src/job/collector/mod.rs", "items.into_iter().enumerate()", "items.into_iter().rev().enumerate()"),
    # Resuming a run.
    ("every second record is left out of the digest", "src/job/cursor.rs", "digest: hasher.digest().to_string()", "digest: if self.entries % 2 == 1 { self.digest.clone() } else { hasher.digest().to_string() }"),
    ("the digest is that of the last record", "src/job/cursor.rs", "add_part(&self.digest)", "add_part(\"\")"),
    ("the text of a record is not in the digest", "src/job/cursor.rs", "add_part(&record.text)", "add_part(\"\")"),
    ("the second text of a pair is not in the digest", "src/job/cursor.rs", 'record.pair.as_deref().unwrap_or("\\0")', '""'),
    ("the id of a record is not in the digest", "src/job/cursor.rs", 'record.id.as_ref().map_or("\\0".into(), Value::to_string)', '""'),
    ("kept fields are not in the digest", "src/job/cursor.rs", "add_part(value.json().to_string())", "add_part(\"\")"),
    ("unreadable records are not in the digest", "src/job/cursor.rs", "add_part(&bad.reason)", "add_part(\"\")"),
    ("the rows of a batch of an Arrow stream wait for the next one", "src/job/collector/mod.rs", "if ends_batch && self.schema.follows_batches", "if false"),
    ("a batch without rows gives no batch", "src/formats/arrow/write.rs", "let batch = self.rows.take()?;\n        self.write_message", "if self.rows.rows() == 0 {\n            return Ok(());\n        }\n        let batch = self.rows.take()?;\n        self.write_message"),
    # Output.
    ("logits are not pooled per token", "src/nn/classification.rs", "if self.spec.pools_logits {", "if false {"),
    ("the head has no norm", "src/nn/head_transform.rs", "Some(norm) => norm.forward(x),", "Some(_) => Ok(x),"),
    ("the head's dense layer has tanh always", "src/nn/head_transform.rs", "self.dense.forward(x, self.activation)?", "self.dense.forward(x, Activation::Tanh)?"),
    ("ModernBERT's head of tokens is a linear layer", "src/model/families.rs", "token_head: token_head::prediction_head,", "token_head: token_head::linear,"),
    ("every token begins a word", "src/text/windows.rs", "encoding.get_tokens()[i].chars().count() != end - start", "false"),
    ("an unknown token may continue a word", "src/text/windows.rs", "if unknown == Some(encoding.get_ids()[i])", "if unknown == Some(u32::MAX)"),
    ("windows do not overlap", "src/text/windows.rs", "step_by(room - stride)", "step_by(room)"),
    ("offsets of RoBERTa's tokens have the space", "src/text/tokenizer_class.rs", "let trims = template == Template::Roberta;", "let trims = false;"),
    ("B- does not begin an entity", "src/task/entities.rs", "!begins && next == tag(&last.label).1", "next == tag(&last.label).1"),
    ("max takes the first token of a word", "src/task/entities.rs", "labelled(word, &word[best(&scores)].scores, labels)", "labelled(word, &word[0].scores, labels)"),
    ("of overlapping entities the first is kept", "src/task/entities.rs", "if rank(&entity) > rank(last) {", "if false {"),
    ("the question may be the answer", "src/task/answers.rs", "span.is_some() || spans[0].is_none() && *id == tokens.ids[0]", "span.is_some() || *id > 0"),
    ("an answer may end before its start", "src/task/answers.rs", "ends.iter().enumerate().skip(first).take(max_tokens)", "ends.iter().enumerate().take(max_tokens)"),
    ("no answer is a probability of the last window", "src/task/answers.rs", "fold(f64::INFINITY, f64::min)", "fold(f64::INFINITY, |_, last| last)"),
    ("the scores of the same answer are not added", "src/task/answers.rs", "if raw { known.max(score) } else { *known + score }", "known.max(score)"),
    ("raw scores of the same answer are added", "src/task/answers.rs", "if raw { known.max(score) } else { *known + score }", "*known + score"),
    ("the raw score of an answer is that of its first token", "src/task/answers.rs", "f64::from(logits[2 * last + 1])", "f64::from(logits[2 * first + 1])"),
    ("special tokens have lexical weights", "src/task/lexical.rs", "excluded.binary_search(&id).is_err() && ", ""),
    ("a lexical weight is that of the last token", "src/task/lexical.rs", "if logit > *weight || logit.is_nan() {", "if logit > 0.0 {"),
    ("a cross-encoder reads the text first", "src/task/classification.rs", "self.model.tokenize(query, Some(document), input)", "self.model.tokenize(document, Some(query), input)"),
    ("only the first text of a pair is truncated", "src/text/tokenizer.rs", "(TruncationStrategy::OnlySecond, Some((\"second\", second_tokens)))", "(TruncationStrategy::OnlyFirst, Some((\"first\", first_tokens)))"),
    ("one row too many is ranked", "src/job/collector/ranking.rs", "rows.pop_last();", "rows.len();"),
    ("labels are not sorted", "src/task/classification.rs", "order.sort_by_key(|&label| descending(scores[label]));", ""),
    ("the Euclidean distance is squared", "src/neighbours/similarity.rs", ".sqrt(),\n            Similarity::Manhattan", ",\n            Similarity::Manhattan"),
    ("verify ignores the bound on the difference", "src/task/precision/bounds.rs", "comparison.max_difference.value > *bound", "comparison.max_difference.value > *bound + 1.0"),
    ("verify ignores the bound on the cosine", "src/task/precision/bounds.rs", "comparison.min_cosine.value < self.min_cosine", "comparison.min_cosine.value < -1.0"),
    ("verify ignores the bound on neighbours", "src/task/precision/bounds.rs", "*share < self.min_neighbours", "*share < 0.0"),
    ("NaN in a reference is accepted", "src/run/verify/reference.rs", "vector.iter().any(|x| !x.is_finite())", "false"),
    ("int8 rounds down", "src/rows/dtype.rs", ".round_ties_even()", ".floor()"),
    # Threads.
    ("threads of a pool share CPUs", "src/sys/threads.rs", ".skip(index).step_by(threads)", ".skip(0 * index).step_by(1)"),
    ("more threads than CPUs are kept apart", "src/sys/threads.rs", "threads > 1 && threads <= cpus.len()", "threads > 1"),
]


# A separate target directory: cargo would reuse artifacts of a mutated copy for the tree itself.
TARGET = str(ROOT / "target" / "mutants")


def failing_tests(tree):
    """The tests that fail in a tree, or None if it does not compile."""
    # The tiny models run fast without optimisation; compiling with it would take longer.
    quick = ["profile.release.package.sconce.opt-level=0", "profile.release.package.sconce-kernels.opt-level=1", "profile.release.incremental=true"]
    command = ["cargo", "test", "--release", "--locked", "--no-fail-fast", "--lib", "--test", "integration"]
    command += [word for setting in quick for word in ("--config", setting)]
    command += ["--", *TESTS]
    out = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=os.environ | {"CARGO_TARGET_DIR": TARGET})
    if "error: could not compile" in out.stderr:
        print(out.stderr[-2000:], file=sys.stderr)
        return None
    return re.findall(r"^test (\S+) \.\.\. FAILED", out.stdout, re.M)


def unapplicable():
    """A message for every patch whose text does not occur exactly once in its file."""
    messages = []
    for fault, name, text, _ in MUTATIONS:
        path = ROOT / name
        found = path.read_text().count(text) if path.exists() else None
        if found != 1:
            where = f"{name} does not exist" if found is None else f"its text occurs {found} times in {name}"
            messages.append(f"{fault}: {where}")
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only faults whose description contains WORD", metavar="WORD")
    parser.add_argument("--check", action="store_true", help="only verify that every patch applies")
    args = parser.parse_args()
    messages = unapplicable()
    if messages:
        sys.exit("\n".join(messages))
    if args.check:
        return
    uncaught = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "sconce"
        # Copied with new modification times, so that cargo rebuilds what an earlier run has built.
        ignored = shutil.ignore_patterns(".git", "target", ".venv")
        shutil.copytree(ROOT, tree, ignore=ignored, copy_function=shutil.copy)
        if failing_tests(tree) != []:
            sys.exit("the tests must pass without a mutation")
        print("| fault | caught by |\n|---|---|")
        for fault, name, text, replacement in (mutation for mutation in MUTATIONS if args.only in mutation[0]):
            path = tree / name
            source = path.read_text()
            path.write_text(source.replace(text, replacement))
            caught = failing_tests(tree)
            path.write_text(source)
            uncaught += not caught
            shown = "does not compile" if caught is None else ", ".join(sorted(caught)) or "NOTHING"
            print(f"| {fault} | {shown} |", flush=True)
    sys.exit(uncaught > 0)


if __name__ == "__main__":
    main()
