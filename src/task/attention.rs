//! Attention: the weights of every layer and head for one text, their mean over heads, and attention rollout.

use std::borrow::Cow;
use std::fmt;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use candle_core::{DType, Device, Tensor};

use super::options::PromptChoice;
use super::tokens::{check_tokens, resolve_prompt};
use crate::engine::TokenizeError;
use crate::error::UsageError;
use crate::load::Loaded;
use crate::named::{Named, names};
use crate::nn::{AttentionWeights, Encoder, EncoderSpec, RaggedBatch};
use crate::sys::console::Console;
use crate::text::TokenIds;

/// Which attention to compute.
#[derive(Debug, Clone)]
pub struct AttentionOptions {
    /// The prompt before the text. `None`: the model's default prompt.
    pub prompt: Option<PromptChoice>,
    /// The layers.
    pub layers: Layers,
    /// The matrices of each layer.
    pub views: Views,
    /// With talking heads, which weights. `None`: those of the values.
    pub mixing: Option<Mixing>,
    /// Leave out the rows and columns of special tokens.
    pub without_special: bool,
}

/// A choice of layers, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// All layers.
    All,
    /// The last layer.
    Last,
    /// One layer (`--layer`).
    One(usize),
}

/// A choice of matrices for each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Views {
    /// Every head.
    Heads,
    /// One head (`--head`).
    Head(usize),
    /// The mean over the heads (`--mean`).
    Mean,
    /// The rollout up to the layer (`--rollout`).
    Rollout,
    /// Every head, the mean and the rollout.
    Everything,
}

/// A matrix of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// A head, counted from 0.
    Head(usize),
    /// The mean over the heads.
    Mean,
    /// Attention rollout (Abnar & Zuidema 2020, §3): the product over all layers up to this one of
    /// `0.5 W + 0.5 I`, where `W` is the mean of the heads' softmax.
    Rollout,
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            View::Head(head) => write!(f, "head {head}"),
            View::Mean => f.write_str("mean"),
            View::Rollout => f.write_str("rollout"),
        }
    }
}

/// The weights of talking heads, relative to the post-softmax projection (`--mixing`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// The softmax of each head: rows sum to 1.
    Before,
    /// The projected weights, by which values are summed. They can be negative, and rows need not sum to 1.
    After,
}

names!(Mixing { Before => "before", After => "after" });

/// The attention of a text of `n` tokens.
#[derive(Debug, Clone)]
pub struct AttentionMaps {
    /// The tokens of the vocabulary, with special tokens, `(n)`.
    pub tokens: Vec<String>,
    /// The tokens for a reader: [`crate::text::Tokenizer::label`].
    pub labels: Vec<String>,
    /// Whether each token is a special token.
    pub is_special: Vec<bool>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type ids: 1 for the second text of a pair, in models that distinguish them.
    pub token_type_ids: Vec<u32>,
    /// The layers, from 0, in order.
    pub layers: Vec<usize>,
    /// The matrices of each layer, in order.
    pub views: Vec<View>,
    /// Whether heads are those before or after mixing; `None` without talking heads after the softmax.
    pub mixing: Option<Mixing>,
    /// Whether special tokens are left out. The other weights are what they are with them, so that rows of
    /// probabilities sum to less than 1.
    pub without_special: bool,
    /// `(layers, views, n, n)`: row `i` of a matrix has the weight of every key for query `i`.
    pub values: Vec<f32>,
}

/// Maximum size of attention in bytes, of which a few copies are in memory.
const MAX_BYTES: usize = 4 << 30;

/// Computes the attention of a text or pair. The layers are those of `output_attentions` in transformers.
///
/// # Errors
/// If the text is empty, has more tokens than the limit or only special tokens that are left out, or the
/// model lacks the layer, head, prompt or mixing: a usage error. If the tokenizer or the encoder fails.
pub fn attend(
    loaded: &Loaded,
    text: &str,
    pair: Option<&str>,
    options: &AttentionOptions,
    console: &Console,
) -> Result<AttentionMaps> {
    let encoder = &loaded.encoders[0];
    let tokens = tokenize(loaded, text, pair, options, console)?;
    let (mixing, heads) = resolve_mixing(options.mixing, encoder.spec())?;
    let views = resolve_views(options.views, heads)?;
    let layers = resolve_layers(options.layers, encoder.attention_layers())?;
    let (n, softmax_heads) = (tokens.ids.len(), encoder.spec().softmax_heads());
    check_size(n, layers.len() * views.len(), softmax_heads.max(heads))?;
    let strings = tokens.ids.iter().map(|id| loaded.tokenizer.token(*id).unwrap_or_default());
    let strings: Vec<String> = strings.collect();
    let values = compute(encoder, &tokens, &layers, &views, mixing)?;
    let maps = AttentionMaps {
        is_special: strings.iter().map(|token| loaded.tokenizer.is_special(token)).collect(),
        labels: tokens.ids.iter().map(|id| loaded.tokenizer.label(*id)).collect(),
        tokens: strings,
        ids: tokens.ids,
        token_type_ids: tokens.token_type_ids,
        layers,
        views,
        mixing,
        without_special: false,
        values,
    };
    if options.without_special {
        without_special(maps, loaded.tokenizer.unknown_token_id())
    } else {
        Ok(maps)
    }
}

/// The attention without the rows and columns of special tokens, but with those of the unknown token, which
/// stands for a word of the text.
fn without_special(maps: AttentionMaps, unknown: Option<u32>) -> Result<AttentionMaps> {
    let n = maps.ids.len();
    let is_kept = |i: &usize| !maps.is_special[*i] || unknown == Some(maps.ids[*i]);
    let kept: Vec<usize> = (0..n).filter(is_kept).collect();
    if kept.is_empty() {
        bail!(UsageError(
            "--without-special: the text has special tokens only; leave the option out, or pass a text with a word".into()
        ));
    }
    let matrices = maps.values.chunks(n * n);
    let rows = matrices.flat_map(|matrix| kept.iter().map(move |query| &matrix[query * n..][..n]));
    Ok(AttentionMaps {
        values: rows.flat_map(|row| kept.iter().map(|key| row[*key])).collect(),
        tokens: kept.iter().map(|i| maps.tokens[*i].clone()).collect(),
        labels: kept.iter().map(|i| maps.labels[*i].clone()).collect(),
        is_special: vec![false; kept.len()],
        ids: kept.iter().map(|i| maps.ids[*i]).collect(),
        token_type_ids: kept.iter().map(|i| maps.token_type_ids[*i]).collect(),
        without_special: true,
        ..maps
    })
}

/// The tokens of a text or pair, which must not be empty or over the limit.
fn tokenize(
    loaded: &Loaded,
    text: &str,
    pair: Option<&str>,
    options: &AttentionOptions,
    console: &Console,
) -> Result<TokenIds> {
    for (argument, text) in [("TEXT", Some(text)), ("PAIR", pair)] {
        if text.is_some_and(|text| text.trim().is_empty()) {
            bail!(UsageError(format!("{argument} is empty; pass a text with at least one word")));
        }
    }
    let prompt = resolve_prompt(options.prompt.as_ref(), None, &loaded.modules.prompts, console)?;
    let prompted =
        if prompt.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(format!("{prompt}{text}")) };
    let (tokenizer, spec) = (&loaded.tokenizer, loaded.encoders[0].spec());
    let tokens = match tokenizer.encode(&prompted, pair) {
        Ok(tokens) => tokens,
        Err(error) => bail!("cannot tokenize the text ({error}); pass another text"),
    };
    if tokens.truncated_tokens > 0 {
        let (limit, positions) = (tokenizer.max_length(), spec.position_limit().unwrap_or(usize::MAX));
        let found = tokens.ids.len() + tokens.truncated_tokens;
        let remedy =
            if found <= positions { format!("pass --max-length {found}, or ") } else { String::new() };
        bail!(UsageError(format!("the text has {found} tokens, limit {limit}; {remedy}shorten the text")));
    }
    match check_tokens(&tokens, tokenizer, spec) {
        Ok(()) => Ok(tokens),
        Err(TokenizeError::Failed(reason) | TokenizeError::TooLong { reason, .. }) => {
            bail!("the text {reason}")
        }
        Err(TokenizeError::NoTokens) => bail!("the text has no tokens; pass another text"),
    }
}

/// The weights that are shown, and the number of heads that have them.
fn resolve_mixing(mixing: Option<Mixing>, spec: &EncoderSpec) -> Result<(Option<Mixing>, usize)> {
    let talking = &spec.talking_heads;
    if let (None, Some(mixing)) = (talking.post_softmax, mixing) {
        if talking.pre_softmax.is_none() {
            let name = mixing.name();
            bail!(UsageError(format!(
                "--mixing {name}: this model has no talking heads; leave the option out"
            )));
        }
        if mixing == Mixing::Before {
            bail!(UsageError(
                "--mixing before: this model mixes heads only before the softmax, so it has no probabilities before mixing; \
                 leave the option out"
                    .into()
            ));
        }
    }
    Ok(match (talking.post_softmax, mixing) {
        (None, _) => (None, spec.softmax_heads()),
        (Some(_), Some(Mixing::Before)) => (Some(Mixing::Before), spec.softmax_heads()),
        (Some(_), _) => (Some(Mixing::After), spec.value_heads()),
    })
}

fn resolve_views(views: Views, heads: usize) -> Result<Vec<View>> {
    let all = (0..heads).map(View::Head);
    Ok(match views {
        Views::Heads => all.collect(),
        Views::Everything => all.chain([View::Mean, View::Rollout]).collect(),
        Views::Head(head) if head < heads => vec![View::Head(head)],
        Views::Head(head) => bail!(UsageError(format!(
            "--head {head}: the model has {heads} heads per layer, counted from 0; pass 0 to {}",
            heads - 1
        ))),
        Views::Mean => vec![View::Mean],
        Views::Rollout => vec![View::Rollout],
    })
}

fn resolve_layers(layers: Layers, count: usize) -> Result<Vec<usize>> {
    Ok(match layers {
        Layers::All => (0..count).collect(),
        Layers::Last => vec![count - 1],
        Layers::One(layer) if layer < count => vec![layer],
        Layers::One(layer) => bail!(UsageError(format!(
            "--layer {layer}: the model has {count} layers with attention, counted from 0; pass 0 to {}",
            count - 1
        ))),
    })
}

/// Checks that `maps` matrices and the scores of all heads of a layer fit into [`MAX_BYTES`].
fn check_size(n: usize, maps: usize, heads: usize) -> Result<()> {
    let bytes = maps.max(heads).saturating_mul(n).saturating_mul(n).saturating_mul(size_of::<f32>());
    if bytes > MAX_BYTES {
        let remedy = if maps > heads {
            "choose one with --layer or --head, or shorten the text"
        } else {
            "shorten the text"
        };
        bail!(UsageError(format!(
            "the attention of {n} tokens takes {} ({} matrices); {remedy}",
            ByteSize(bytes as u64).display().si(),
            maps.max(heads)
        )));
    }
    Ok(())
}

/// `(layers, views, n, n)`.
fn compute(
    encoder: &Encoder,
    tokens: &TokenIds,
    layers: &[usize],
    views: &[View],
    mixing: Option<Mixing>,
) -> Result<Vec<f32>> {
    let n = tokens.ids.len();
    let batch = RaggedBatch::new([(&tokens.ids[..], &tokens.token_type_ids[..])])?;
    let mut values = Vec::with_capacity(layers.len() * views.len() * n * n);
    let mut rollout =
        views.contains(&View::Rollout).then(|| Tensor::eye(n, DType::F32, &Device::Cpu)).transpose()?;
    let identity = rollout.clone();
    encoder.forward_with_attention(&batch, |layer, AttentionWeights { softmax, of_values }| {
        if let (Some(product), Some(identity)) = (&mut rollout, &identity) {
            let mean = softmax.get(0)?.to_device(&Device::Cpu)?.mean(0)?;
            *product = ((mean + identity)? * 0.5)?.matmul(product)?;
        }
        if !layers.contains(&layer) {
            return Ok(());
        }
        let heads = if mixing == Some(Mixing::Before) { softmax } else { of_values };
        let heads = heads.get(0)?.to_device(&Device::Cpu)?;
        for view in views {
            let matrix = match (view, &rollout) {
                (View::Head(head), _) => heads.get(*head)?,
                (View::Rollout, Some(product)) => product.clone(),
                (View::Mean | View::Rollout, _) => heads.mean(0)?,
            };
            values.extend(matrix.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    })?;
    Ok(values)
}
