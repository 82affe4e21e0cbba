#!/usr/bin/env python3
"""Breaks the maths on purpose, one fault at a time, and prints which test notices.

    python scripts/mutate.py [--only WORD]

Works on a copy of the tree, so it can be stopped at any time. Exits with 1 if a fault goes unnoticed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["goldens", "ops", "pipelines", "chunks", "cuda_kernels"]

# What is broken, the file, the text, and what takes its place.
MUTATIONS = [
    # Activations.
    ("erf GELU becomes tanh GELU", "src/ops/activation.rs", "(\"gelu\", Activation::Gelu),", "(\"gelu\", Activation::GeluTanh),"),
    ("tanh GELU becomes erf GELU", "src/ops/activation.rs", "(\"gelu_new\", Activation::GeluTanh),", "(\"gelu_new\", Activation::Gelu),"),
    ("ReLU becomes GELU", "src/ops/activation.rs", "(\"relu\", Activation::Relu),", "(\"relu\", Activation::Gelu),"),
    ("quick GELU's factor is 1.7", "src/kernels/activation.rs", "s.splat(1.702)", "s.splat(1.7)"),
    ("clipped GELU clips at 6", "src/kernels/activation.rs", "at_most(s, gelu(s, x), 10.0)", "at_most(s, gelu(s, x), 6.0)"),
    ("PReLU's slope is not read", "src/nn/feed_forward.rs", 'Activation::Prelu { slope: number("weight", &[1])? }', 'Activation::Prelu { slope: 0.25 + 0.0 * number("weight", &[1])? }'),
    ("xIELU's weights change places", "src/nn/feed_forward.rs", '[number("alpha_p", &[1])?, number("alpha_n", &[1])?]', '[number("alpha_n", &[1])?, number("alpha_p", &[1])?]'),
    ("ALBERT's default activation is erf GELU", "src/model/families.rs", "activation: Activation::GeluTanh,", "activation: Activation::Gelu,"),
    ("ReGLU is GeGLU", "src/model/own_fields.rs", "Some(\"reglu\") => Activation::Relu", "Some(\"reglu\") => Activation::Gelu"),
    ("gate and up change places", "src/nn/feed_forward.rs", "gate.forward(x, self.activation)? * self.up.forward(x, Activation::Identity)?", "gate.forward(x, Activation::Identity)? * self.up.forward(x, self.activation)?"),
    ("ModernBERT's halves of Wi change places", "src/model/families.rs", '("feed_forward.gate", "mlp.Wi[0/2]")', '("feed_forward.gate", "mlp.Wi[1/2]")'),
    ("the queries are the second part of Wqkv", "src/model/families.rs", '("attention.query", "attn.Wqkv[0/3]"),\n                ("attention.key", "attn.Wqkv[1/3]"),\n                ("attention.value", "attn.Wqkv[2/3]"),\n                ("attention.output", "attn.Wo")', '("attention.query", "attn.Wqkv[1/3]"),\n                ("attention.key", "attn.Wqkv[0/3]"),\n                ("attention.value", "attn.Wqkv[2/3]"),\n                ("attention.output", "attn.Wo")'),
    # Norms.
    ("norm eps is ignored", "src/ops/add_norm.rs", "norm.eps as f32);", "norm.eps as f32 * 0.0 + 1e-12);"),
    ("norm eps stands outside of the root", "src/kernels/norm.rs", "(square / columns + eps).sqrt()", "((square / columns).sqrt() + eps)"),
    ("variance over n - 1", "src/kernels/norm.rs", "(square / columns + eps)", "(square / (columns - 1.0) + eps)"),
    ("RMSNorm takes the mean off", "src/kernels/norm.rs", "NormKind::RootMeanSquare => 0.0,", "NormKind::RootMeanSquare => sum!(s, row, 0.0, |sum, x| s.add(sum, x)) / columns,"),
    ("LayerNorm leaves the mean", "src/kernels/norm.rs", "/ columns,\n                NormKind::RootMeanSquare", "/ columns * 0.0,\n                NormKind::RootMeanSquare"),
    ("the bias of a norm is left out", "src/kernels/norm.rs", "if !bias.is_empty() {", "if false {"),
    ("pre-norm in place of post-norm", "src/nn/layer.rs", "Some(norm) if self.norm_after =>", "Some(norm) if !self.norm_after =>"),
    ("a residual is left out", "src/nn/layer.rs", "norm.forward_residual(sublayer(x, None)?, x)", "norm.forward(sublayer(x, None)?)"),
    ("a pre-norm residual is that of the norm", "src/nn/layer.rs", "Some(norm) => sublayer(&norm.forward(x.copy()?)?, Some(x)),", "Some(norm) => {\n                let x = norm.forward(x.copy()?)?;\n                sublayer(&x, Some(&x))\n            }"),
    ("the first norm of ModernBERT is not skipped", "src/nn/layer.rs", "!(first && spec.skip_first_norm)", "!(first && spec.skip_first_norm && spec.layers == 0)"),
    ("every layer skips its first norm", "src/nn/layer.rs", "!(first && spec.skip_first_norm)", "!spec.skip_first_norm"),
    ("the norms of a layer change places", "src/nn/layer.rs", 'residual("attention", !(first', 'residual("feed_forward", !(first'),
    ("the final norm is left out", "src/nn/encoder.rs", "self.final_norm.as_ref().filter(|_| index + 1 == self.spec.layers)", "self.final_norm.as_ref().filter(|_| index == self.spec.layers)"),
    ("the final norm stands after every layer", "src/nn/encoder.rs", "self.final_norm.as_ref().filter(|_| index + 1 == self.spec.layers)", "self.final_norm.as_ref().filter(|_| index < self.spec.layers)"),
    ("DeBERTa's embedding norm is left out", "src/nn/embeddings.rs", "norm(EmbeddingNorm::After, spec.hidden_size)?", "None"),
    # Attention.
    ("key scale from the hidden size", "src/nn/attention.rs", "(spec.qk_head_size * terms)", "(spec.hidden_size * terms)"),
    ("key scale from the size of the values", "src/nn/attention.rs", "(spec.qk_head_size * terms)", "(spec.v_head_size * terms)"),
    ("key scale from hidden / heads", "src/nn/attention.rs", "(spec.qk_head_size * terms)", "(spec.hidden_size / spec.heads * terms)"),
    ("key scale is left out", "src/nn/attention.rs", "1.0 / ((spec.qk_head_size * terms) as f64).sqrt()", "1.0 + 0.0 * terms as f64"),
    ("key scale is 1 / d", "src/nn/attention.rs", "1.0 / ((spec.qk_head_size * terms) as f64).sqrt()", "1.0 / ((spec.qk_head_size * terms) as f64)"),
    ("DeBERTa's scale does not count its terms", "src/nn/attention.rs", "(spec.qk_head_size * terms)", "(spec.qk_head_size + 0 * terms)"),
    ("tokens see other texts", "src/ops/attention/flow.rs", "        let mut tasks = Vec::new();\n", "        let mut tasks = Vec::new();\n        let offsets = &[0, offsets[offsets.len() - 1]];\n"),
    ("blocks of queries begin at 0", "src/ops/attention/flow.rs", "let first = queries.start;", "let first = queries.start % QUERIES;"),
    ("padding is not masked", "src/ops/attention/reference.rs", "row[self.visible.of(if i < n { i } else { 0 }, n)].fill(0.0);", "row[self.visible.of(if i < n { i } else { 0 }, longest)].fill(0.0);"),
    ("masked weights are not 0", "src/kernels/softmax.rs", "row[visible.end..].fill(0.0);", "row[visible.end..].fill(0.1);"),
    ("queries and keys change places", "src/nn/attention.rs", "attention.forward(&q, &k, &v, context.offsets)", "attention.forward(&k, &q, &v, context.offsets)"),
    ("shared keys serve every other head", "src/ops/attention/flow.rs", "head * key_value_heads / heads * self.qk_size", "head % key_value_heads * self.qk_size"),
    ("the window is one token wider", "src/ops/attention.rs", "i.saturating_sub(self.before)..", "i.saturating_sub(self.before.saturating_add(1)).."),
    ("the window is one token narrower", "src/nn/encoder.rs", "let before = reach.unwrap_or(usize::MAX);", "let before = reach.map_or(usize::MAX, |reach| reach - 1);"),
    ("the window is as wide as the config's number", "src/model/spec.rs", 'config.width("local_attention")? / 2', 'config.width("local_attention")?'),
    ("windows stand where there are none", "src/model/spec.rs", "map(|layer| !layer.is_multiple_of(every))", "map(|layer| layer.is_multiple_of(every))"),
    ("the causal mask looks ahead by one", "src/nn/encoder.rs", "if self.spec.mask.causal { 0 } else { before }", "if self.spec.mask.causal { 1 } else { before }"),
    ("the causal mask is left out", "src/nn/encoder.rs", "if self.spec.mask.causal { 0 } else { before }", "before"),
    ("weights are mixed only where scores are", "src/nn/attention.rs", "mix_after: self.mix_after.as_ref(),", "mix_after: self.mix_before.as_ref().and(self.mix_after.as_ref()),"),
    ("mixing before and after change places", "src/model/own_fields.rs", 'before: heads("before_softmax")?, after: heads("after_softmax")?', 'before: heads("after_softmax")?, after: heads("before_softmax")?'),
    ("the mixing matrix is transposed", "src/ops/attention/flow.rs", "mix.chunks(heads)", "(0..).map(|o| mix.iter().skip(o).step_by(heads))"),
    ("the mask stands before the mixing", "src/ops/attention/flow.rs", "if let Some(mix) = self.mix_before {", "if let Some(mix) = self.mix_before {\n                for scores in scores.chunks_mut(size).take(heads) {\n                    for (query, row) in queries.clone().zip(scores.chunks_mut(task.stride())) {\n                        row[self.visible(query, task.n).end - task.keys.start..].fill(-1e30);\n                    }\n                }"),
    # Positions.
    ("rotary pairs are neighbours", "src/ops/rotary.rs", "if self.neighbours { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) }", "(2 * i, 2 * i + 1)"),
    ("rotary pairs are halves", "src/ops/rotary.rs", "if self.neighbours { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) }", "(i, i + self.pairs)"),
    ("rotary turns the other way", "src/ops/rotary.rs", "(head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin)", "(head[a] * cos + head[b] * sin, head[b] * cos - head[a] * sin)"),
    ("rotary base is 10,000", "src/nn/rotary.rs", "let plain = |i: usize| power(self.theta, i);", "let plain = |i: usize| power(self.theta * 0.0 + 10_000.0, i);"),
    ("local layers have the global base", "src/nn/rotary.rs", "if local { rotary.local.unwrap_or(rotary.frequencies) } else { rotary.frequencies }", "if local { rotary.frequencies } else { rotary.frequencies }"),
    ("global layers have the local base", "src/nn/rotary.rs", "if local { rotary.local.unwrap_or(rotary.frequencies) } else { rotary.frequencies }", "rotary.local.filter(|_| local || longest > 0).unwrap_or(rotary.frequencies)"),
    ("rotary angles grow with the square of the place", "src/nn/rotary.rs", "place as f32 * speed", "(place * place) as f32 * speed"),
    ("places run on from text to text", "src/nn/encoder.rs", "let places = batch.positions(Numbering::FromZero);", "let places: Vec<u32> = (0..batch.ids().len() as u32).map(|place| place % batch.longest() as u32).collect();"),
    ("RoFormer's own angles are not read", "src/model/families.rs", "stored: true,", "stored: false,"),
    ("RoFormer's values turn always", "src/model/spec.rs", 'values: config.flag("rotary_value")?,', 'values: config.flag("rotary_value")? || layout == RotaryLayout::Neighbours,'),
    ("values never turn", "src/model/spec.rs", 'values: config.flag("rotary_value")?,', "values: false,"),
    ("linear scaling is left out", "src/nn/rotary.rs", "plain(i) / factor,", "plain(i) + 0.0 * factor,"),
    ("NTK scaling leaves theta", "src/nn/rotary.rs", "power(self.theta * factor, i)", "power(self.theta, i)"),
    ("YaRN's magnitude is left out", "src/nn/rotary.rs", "0.1 * factor.ln() + 1.0", "1.0"),
    ("Llama 3's ramp is the other way round", "src/nn/rotary.rs", "let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);", "let share = 1.0 - ((turns - low) / (high - low)).clamp(0.0, 1.0);"),
    ("sines and cosines change places", "src/nn/embeddings.rs", "if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }", "if column.is_multiple_of(2) { angle.cos() } else { angle.sin() }"),
    ("each sine has a wave of its own", "src/nn/embeddings.rs", "(column / 2 * 2) as f64 / width as f64", "column as f64 / width as f64"),
    ("ALiBi's rates begin at 1", "src/nn/distance.rs", "(1..=n).map(move |i|", "(0..n).map(move |i|"),
    ("ALiBi's rates for odd numbers of heads are one sequence", "src/nn/distance.rs", "let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };", "let below = heads;"),
    ("ALiBi looks back only", "src/nn/distance.rs", "-slope * distance.abs() as f32", "-slope * distance.min(0).abs() as f32"),
    ("relative buckets change direction", "src/nn/distance.rs", "let after = if distance > 0", "let after = if distance < 0"),
    ("far distances have too few buckets", "src/nn/distance.rs", "(share * (half - exact) as f32)", "(share * (half - exact - 1) as f32)"),
    ("DeBERTa's far distances are rounded down", "src/nn/distance.rs", "(share * (middle - 1.0)).ceil()", "(share * (middle - 1.0)).floor()"),
    ("DeBERTa's distances count from the key", "src/nn/distance.rs", "(distance + span).clamp(0, 2 * span - 1)", "(span - distance).clamp(0, 2 * span - 1)"),
    ("DeBERTa's distances are not normalised", "src/nn/distance.rs", "Some(norm) => norm.forward(self.embeddings.table.copy()?)?,", "Some(_) => self.embeddings.table.clone(),"),
    ("the convolution sees the text before", "src/nn/convolution.rs", "(bounds[0] + before..bounds[1] + before)", "(before..bounds[1] + before)"),
    ("the convolution is turned round", "src/nn/convolution.rs", "rows.extend((0..self.width).map(", "rows.extend((0..self.width).rev().map("),
    ("the convolution follows every layer", "src/nn/encoder.rs", "(0, Some(convolution), Some(embedded)) = (index,", "(0, Some(convolution), Some(embedded)) = (index * 0,"),
    ("keys meet the distances of queries", "src/ops/attention/flow.rs", "let distance = queries.start + i + middle - (task.keys.start + j);", "let distance = middle + task.keys.start + j - (queries.start + i);"),
    ("MPNet's padding id is the config's", "src/model/families.rs", "places: Places::AfterFixed(1)", "places: Places::AfterPadding(1)"),
    # Batches, embeddings, layers, pooling and what follows.
    ("RoBERTa's positions begin at the padding id", "src/nn/ragged.rs", "let mut last = padding;", "let mut last = padding.wrapping_sub(1);"),
    ("RoBERTa counts padding inside of a text", "src/nn/ragged.rs", "true => padding,", "true => {\n                            last += 1;\n                            padding\n                        }"),
    ("positions run on from text to text", "src/nn/ragged.rs", "positions.extend(0..(bounds[1] - bounds[0]) as u32)", "positions.extend((0..(bounds[1] - bounds[0]) as u32).map(|p| (p + bounds[0] as u32) % 40))"),
    ("segments are left out", "src/nn/embeddings.rs", "tables.extend(self.token_type.iter().map(|table| (table, batch.type_ids())));", ""),
    ("every token is in the first segment", "src/nn/embeddings.rs", "(table, batch.type_ids())", "(table, &tasks[..])"),
    ("ALBERT projects only where it has to", "src/model/spec.rs", "maths.always_projects || embedding_size != hidden_size", "embedding_size != hidden_size"),
    ("ERNIE's task row is left out", "src/nn/embeddings.rs", "tables.extend(self.task_type.iter().map(|table| (table, &tasks[..])));", ""),
    ("ALBERT's groups take turns", "src/nn/spec.rs", "(layer as f64 / (layers as f64 / self.groups as f64)) as usize", "layer % self.groups + 0 * layers"),
    ("a group runs its first layer only", "src/nn/encoder.rs", "for layer in &self.groups[group] {", "for layer in &self.groups[group][..1] {"),
    ("the mean counts one token more", "src/ops/pooling.rs", "Pool::Mean => rest.mean_keepdim(0),", "Pool::Mean => rest.sum_keepdim(0)? / (tokens + 1) as f64,"),
    ("CLS is the last token", "src/ops/pooling.rs", "Pool::Cls => rest.narrow(0, 0, 1),", "Pool::Cls => text.narrow(0, tokens - 1, 1),"),
    ("weights of the weighted mean begin at 0", "src/ops/pooling.rs", "Tensor::arange(prompt as u32 + 1, tokens as u32 + 1,", "Tensor::arange(prompt as u32, tokens as u32,"),
    ("the root of the length is left out", "src/ops/pooling.rs", "rest.sum_keepdim(0)? / ((tokens - prompt) as f64).sqrt()", "rest.sum_keepdim(0)? / ((tokens - prompt) as f64)"),
    ("joined poolings change places", "src/ops/pooling.rs", "pools.iter().map(|pool| pool.of(&text, prompt))", "pools.iter().rev().map(|pool| pool.of(&text, prompt))"),
    ("the relative bias is scaled with the scores", "src/kernels/softmax.rs", "s.fma(x, scale, b)", "s.mul(s.add(x, b), scale)"),
    ("vectors are not normalised", "src/nn/heads.rs", "|row| l2_normalize(Isa::best(), row)", "|_| ()"),
    ("[CLS] is in no late chunk", "src/text/chunks.rs", "let start = if i == 0 { 0 } else { span.start };", "let start = span.start;"),
    ("late chunks begin one token late", "src/nn/pooling.rs", "hidden.narrow(0, span.start, span.len())", "hidden.narrow(0, (span.start + 1).min(hidden.dim(0).unwrap_or(0) - span.len()), span.len())"),
    ("the prompt is pooled", "src/ops/pooling.rs", "let rest = text.narrow(0, prompt, tokens - prompt)?;", "let rest = text.clone();"),
    ("the weighted mean counts from behind the prompt", "src/ops/pooling.rs", "(tokens * (tokens + 1) - prompt * (prompt + 1)) / 2", "(tokens * (tokens + 1)) / 2"),
    ("a text that is all prompt is pooled", "src/ops/pooling.rs", "if tokens <= prompt {", "let prompt = prompt.min(tokens - 1);\n        if tokens <= prompt {"),
    ("the special token behind the prompt counts", "src/text/tokenizer.rs", "return Ok(length - 1);", "return Ok(length);"),
    ("the residual of a dense layer is left out", "src/nn/heads.rs", "Some(Residual::Same) => Some(x),", "Some(Residual::Same) => None,"),
    ("a dense layer has no activation", "src/nn/heads.rs", "self.linear.forward_residual(x, self.activation, residual)", "self.linear.forward_residual(x, Activation::Identity, residual)"),
    ("eps of the LayerNorm module", "src/nn/heads.rs", "eps: 1e-5 }", "eps: 1e-12 }"),
    ("heads run backwards", "src/run/embedder.rs", "self.heads.iter().try_fold", "self.heads.iter().rev().try_fold"),
    ("vectors are cut before the last head", "src/run/choices.rs", "                heads.push(Head::First(n));", "                heads.insert(0, Head::First(n));"),
    ("the default prompt is not taken", "src/run/choices.rs", "(Some(PromptChoice::Name(name)), _) | (None, Some(name)) => name,\n            (None, None)", "(Some(PromptChoice::Name(name)), _) => name,\n            (None, _)"),
    ("truncation cuts the last special token", "src/text/tokenizer.rs", "saturating_sub(self.specials(pair.is_some()))", "saturating_sub(self.specials(pair.is_some()) - 1)"),
    # Kernels for GPUs, as they are launched and in themselves.
    ("tiles of queries are twice as far apart", "src/ops/attention.rs", "const TILE: usize = 64;", "const TILE: usize = 128;"),
    ("tiles begin anywhere but at 0", "src/ops/attention.rs", "[start as u32, tokens as u32, first as u32]", "[start as u32, tokens as u32, (first + TILE) as u32]"),
    ("before and after change places", "src/ops/attention.rs", "self.visible.before.into(),\n                self.visible.after.into(),", "self.visible.after.into(),\n                self.visible.before.into(),"),
    ("silu has the number of leaky ReLU", "src/ops/activation.rs", "Activation::Silu => plain(9)", "Activation::Silu => plain(8)"),
    ("a launch does too few blocks", "src/ops/linear.rs", "grid: [(rows * width).div_ceil(PER_BLOCK), 1, 1],", "grid: [(rows * width) / PER_BLOCK, 1, 1],"),
    ("RMSNorm is launched as LayerNorm", "src/ops/add_norm.rs", "NormKind::RootMeanSquare => 1,", "NormKind::RootMeanSquare => 0,"),
    ("columns past the first block are not pooled", "src/ops/pooling.rs", "grid: [texts, width.div_ceil(COLUMNS), 1],", "grid: [texts, 1, 1],"),
    ("neighbours are not told to the kernel", "src/ops/rotary.rs", "usize::from(self.neighbours).into(),", "0usize.into(),"),
    ("a bf16 operand passes for f16", "src/ops/gpu/mod.rs", "x.dims() != shape || x.dtype() != dtype", "x.dims() != shape"),
    ("parts by length come back in the wrong order", "src/ops/attention/reference.rs", "back[row as usize] = at as u32;", "back[at] = row;"),
    ("the softmax is not rescaled", "src/kernels/cuda/attention.cu", "total[r] *= shrink;", ""),
    ("the last keys are not masked", "src/kernels/cuda/attention.cu", "key + TILE > all.end", "key > all.end"),
    # What happens to long texts and batches.
    ("windows weigh the same", "src/nn/pooling.rs", "(length as f64 / total) as f32", "(total / total / lengths.len() as f64 * (length as f64).powi(0)) as f32"),
    ("windows of a text overlap", "src/text/tokenizer.rs", "first.truncate(room, 0, TruncationDirection::Right)", "first.truncate(room, 1, TruncationDirection::Right)"),
    ("later windows have no prompt", "src/text/tokenizer.rs", "let mut tokens = prompt.clone();", "let mut tokens = Encoding::default();"),
    ("batches change places", "src/run/embed/flow.rs", "self.slots.into_iter().zip(rows)", "self.slots.into_iter().rev().zip(rows)"),
    ("int8 rounds down", "src/output/dtype.rs", ".round_ties_even()", ".floor()"),
]


# Of its own: cargo would take what was built from a broken copy for what the tree itself gives.
TARGET = str(ROOT / "target" / "mutants")


def caught_by(tree):
    """The tests that fail in a tree, or None where it does not compile."""
    # The tiny models are fast as it is; the compiler is not.
    quick = ["profile.release.package.sconce.opt-level=0", "profile.release.incremental=true"]
    command = ["cargo", "test", "--release", "--locked", "--no-fail-fast"]
    command += [word for setting in quick for word in ("--config", setting)]
    command += [word for test in TESTS for word in ("--test", test)]
    out = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=os.environ | {"CARGO_TARGET_DIR": TARGET})
    if "error: could not compile" in out.stderr:
        print(out.stderr[-2000:], file=sys.stderr)
        return None
    return re.findall(r"^test (\S+) \.\.\. FAILED", out.stdout, re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose description has this word")
    only = parser.parse_args().only
    for what, name, text, _ in MUTATIONS:
        found = (ROOT / name).read_text().count(text)
        if found != 1:
            sys.exit(f"{what}: the text to replace stands {found} times in {name}")
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "sconce"
        # With times of now: what an earlier run has built is not up to date.
        ignored = shutil.ignore_patterns(".git", "target", ".venv")
        shutil.copytree(ROOT, tree, ignore=ignored, copy_function=shutil.copy)
        if caught_by(tree) != []:
            sys.exit("the tests have to pass before anything is broken")
        print("| fault | caught by |\n|---|---|")
        for what, name, text, replacement in (mutation for mutation in MUTATIONS if only in mutation[0]):
            path = tree / name
            source = path.read_text()
            path.write_text(source.replace(text, replacement))
            caught = caught_by(tree)
            path.write_text(source)
            unnoticed += not caught
            shown = "does not compile" if caught is None else ", ".join(sorted(caught)) or "NOTHING"
            print(f"| {what} | {shown} |", flush=True)
    sys.exit(unnoticed > 0)


if __name__ == "__main__":
    main()
