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
TESTS = ["goldens", "ops", "pipelines"]

# What is broken, the file, the text, and what takes its place.
MUTATIONS = [
    ("erf GELU becomes tanh GELU", "src/ops/linear.rs", "Activation::Gelu => activation::gelu,", "Activation::Gelu => activation::gelu_tanh,"),
    ("tanh GELU becomes erf GELU", "src/ops/linear.rs", "Activation::GeluTanh => activation::gelu_tanh,", "Activation::GeluTanh => activation::gelu,"),
    ("ReLU becomes GELU", "src/ops/linear.rs", "Activation::Relu => activation::relu,", "Activation::Relu => activation::gelu,"),
    ("ALBERT's default activation is erf GELU", "src/model/families.rs", "activation: Activation::GeluTanh,", "activation: Activation::Gelu,"),
    ("norm eps is ignored", "src/nn/norm.rs", "            eps,\n", "            eps: eps * 0.0 + 1e-12,\n"),
    ("norm eps stands outside of the root", "src/kernels/norm.rs", "1.0 / (variance + eps).sqrt()", "1.0 / (variance.sqrt() + eps)"),
    ("variance over n - 1", "src/kernels/norm.rs", "sum(row, |x| (x - mean) * (x - mean)) / width", "sum(row, |x| (x - mean) * (x - mean)) / (width - 1.0)"),
    ("RoBERTa's positions begin at the padding id", "src/nn/ragged.rs", "let mut last = padding;", "let mut last = padding.wrapping_sub(1);"),
    ("RoBERTa counts padding inside of a text", "src/nn/ragged.rs", "true => padding,", "true => {\n                            last += 1;\n                            padding\n                        }"),
    ("positions run on from text to text", "src/nn/ragged.rs", "positions.extend(0..(bounds[1] - bounds[0]) as u32)", "positions.extend((0..(bounds[1] - bounds[0]) as u32).map(|p| (p + bounds[0] as u32) % 40))"),
    ("segments are left out", "src/nn/embeddings.rs", "tables.extend(self.token_type.iter().map(|table| (table, batch.type_ids())));", ""),
    ("every token is in the first segment", "src/nn/embeddings.rs", "(table, batch.type_ids())", "(table, &tasks[..])"),
    ("ERNIE's task row is left out", "src/nn/embeddings.rs", "tables.extend(self.task_type.iter().map(|table| (table, &tasks[..])));", ""),
    ("key scale from the hidden size", "src/ops/attention.rs", "1.0 / (self.size as f64).sqrt()", "1.0 / ((self.size * self.count) as f64).sqrt()"),
    ("key scale is left out", "src/ops/attention.rs", "1.0 / (self.size as f64).sqrt()", "1.0 + 0.0 * (self.size as f64)"),
    ("key scale is 1 / d", "src/ops/attention.rs", "1.0 / (self.size as f64).sqrt()", "1.0 / (self.size as f64)"),
    ("tokens see other texts", "src/ops/attention.rs", "let texts = offsets\n        .windows(2)\n        .map(|bounds| {\n            let split", "let offsets = &[0, offsets[offsets.len() - 1]];\n    let texts = offsets\n        .windows(2)\n        .map(|bounds| {\n            let split"),
    ("padding is not masked", "src/ops/attention.rs", "if j < n { 0.0 } else { f32::NEG_INFINITY }", "if j < n { 0.0 } else { 0.0 }"),
    ("queries and keys change places", "src/nn/attention.rs", "attention(&q, &k, &v,", "attention(&k, &q, &v,"),
    ("the residual of attention is left out", "src/nn/layer.rs", "self.attention_norm.forward_residual(self.attention.forward(x, batch, bias)?, x)?", "self.attention_norm.forward(self.attention.forward(x, batch, bias)?)?"),
    ("pre-norm in place of post-norm", "src/nn/layer.rs", "self.feed_forward_norm.forward_residual(self.feed_forward.forward(&x)?, &x)", "Ok((self.feed_forward.forward(&self.feed_forward_norm.forward(x.copy()?)?)? + &x)?)"),
    ("the norms of a layer change places", "src/nn/layer.rs", 'Norm::load(parameters, &format!("{name}.attention_norm"), width, eps)?', 'Norm::load(parameters, &format!("{name}.feed_forward_norm"), width, eps)?'),
    ("ALBERT's groups take turns", "src/nn/spec.rs", "(layer as f64 / (layers as f64 / self.groups as f64)) as usize", "layer % self.groups + 0 * layers"),
    ("a group runs its first layer only", "src/nn/encoder.rs", "for layer in &self.groups[group] {", "for layer in &self.groups[group][..1] {"),
    ("the mean counts one token more", "src/nn/pooling.rs", "Pool::Mean => rest.mean_keepdim(0),", "Pool::Mean => rest.sum_keepdim(0)? / (tokens + 1) as f64,"),
    ("CLS is the last token", "src/nn/pooling.rs", "Pool::Cls => rest.narrow(0, 0, 1),", "Pool::Cls => text.narrow(0, tokens - 1, 1),"),
    ("weights of the weighted mean begin at 0", "src/nn/pooling.rs", "Tensor::arange(prompt as u32 + 1, tokens as u32 + 1,", "Tensor::arange(prompt as u32, tokens as u32,"),
    ("the root of the length is left out", "src/nn/pooling.rs", "rest.sum_keepdim(0)? / ((tokens - prompt) as f64).sqrt()", "rest.sum_keepdim(0)? / ((tokens - prompt) as f64)"),
    ("joined poolings change places", "src/nn/pooling.rs", ".map(|pool| pool.forward(&text, prompt))", ".rev()\n                    .map(|pool| pool.forward(&text, prompt))"),
    ("relative buckets change direction", "src/nn/attention.rs", "let after = if distance > 0", "let after = if distance < 0"),
    ("far distances have too few buckets", "src/nn/attention.rs", "(share * (half - exact) as f32)", "(share * (half - exact - 1) as f32)"),
    ("the relative bias is scaled with the scores", "src/kernels/softmax.rs", "*x += bias;", "*x += bias * scale;"),
    ("MPNet's padding id is the config's", "src/model/families.rs", "padding: Some(Padding::Fixed(1)),", "padding: Some(Padding::Config(1)),"),
    ("vectors are not normalised", "src/nn/heads.rs", "values.chunks_mut(width).for_each(l2_normalize);", "values.chunks_mut(width).take(0).for_each(l2_normalize);"),
    ("the prompt is pooled", "src/nn/pooling.rs", "let rest = text.narrow(0, prompt, tokens - prompt)?;", "let rest = text.clone();"),
    ("the weighted mean counts from behind the prompt", "src/nn/pooling.rs", "(tokens * (tokens + 1) - prompt * (prompt + 1)) / 2", "(tokens * (tokens + 1)) / 2"),
    ("a text that is all prompt is pooled", "src/nn/pooling.rs", "if tokens <= prompt {", "let prompt = prompt.min(tokens - 1);\n        if tokens <= prompt {"),
    ("the special token behind the prompt counts", "src/text/tokenizer.rs", "return Ok(length - 1);", "return Ok(length);"),
    ("the residual of a dense layer is left out", "src/nn/heads.rs", "Some(Residual::Same) => (y + x)?,", "Some(Residual::Same) => y,"),
    ("a dense layer has no activation", "src/nn/heads.rs", "self.linear.forward(x, self.activation)?", "self.linear.forward(x, Activation::Identity)?"),
    ("eps of the LayerNorm module", "src/nn/heads.rs", "eps: 1e-5 }", "eps: 1e-12 }"),
    ("heads run backwards", "src/run/embedder.rs", "self.heads.iter().try_fold", "self.heads.iter().rev().try_fold"),
    ("vectors are cut before the last head", "src/run/choices.rs", "                heads.push(Head::First(n));", "                heads.insert(0, Head::First(n));"),
    ("the default prompt is not taken", "src/run/choices.rs", "(Some(PromptChoice::Name(name)), _) | (None, Some(name)) => name,\n            (None, None)", "(Some(PromptChoice::Name(name)), _) => name,\n            (None, _)"),
    ("truncation cuts the last special token", "src/text/tokenizer.rs", "saturating_sub(self.specials(pair.is_some()))", "saturating_sub(self.specials(pair.is_some()) - 1)"),
]


# Of its own: cargo would take what was built from a broken copy for what the tree itself gives.
TARGET = str(ROOT / "target" / "mutants")


def caught_by(tree):
    """The tests that fail in a tree, or None where it does not compile."""
    command = ["cargo", "test", "--release", "--locked", "--no-fail-fast"]
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
