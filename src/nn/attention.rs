//! Multi-head self-attention (Vaswani et al. 2017, §3.2).

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::norm::Norm;
use super::relative_position::{RelativeEmbeddings, RelativeProjections};
use super::rows::{PrefixTree, Rows, Selection};
use super::{Activation, Disentangled, EncoderSpec, GemmType, Positions, QkNorm, ScoreBias, WeightSource};
use crate::ops::attention::{Attention, AttentionWeights, AttentionWindow, RelativePositions};
use crate::ops::rotary::Rotation;

/// Query, key and value projections, attention within each sequence, and the output projection.
pub(super) struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Norms of the queries and of the keys.
    qk_norms: Option<[Norm; 2]>,
    heads: usize,
    key_value_heads: usize,
    qk_head_dim: usize,
    v_head_dim: usize,
    /// Factor on the scores.
    scale: f64,
    /// See [`EncoderSpec::score_cap`].
    score_cap: Option<f64>,
    rotate_values: bool,
    /// The index of this layer's score bias.
    bias_index: usize,
    relative: Option<RelativeProjections>,
    compute: GemmType,
    /// Pre-softmax projection of talking heads, `(softmax heads, heads)`.
    pre_softmax: Option<Tensor>,
    /// Post-softmax projection of talking heads, `(value heads, softmax heads)`.
    post_softmax: Option<Tensor>,
    /// The projections to queries, keys and values of global attention.
    global: Option<[Linear; 3]>,
}

/// What attention needs of a batch beside the hidden states. All layers share it, except that layers with a
/// sliding window have one of their own.
pub(super) struct AttentionContext<'a> {
    /// Cumulative sequence lengths, `(N + 1)`: sequence `i` has the tokens
    /// `cu_seqlens[i]..cu_seqlens[i + 1]`.
    pub cu_seqlens: &'a [usize],
    /// See [`super::RaggedBatch::key_lengths`].
    pub key_lengths: Option<&'a [usize]>,
    /// How many tokens of each sequence, its first ones, have global attention, `(N)`.
    pub global_tokens: Option<&'a [usize]>,
    /// The tiles of `ops::attention::tiles`, on a GPU.
    pub tiles: Option<Tensor>,
    /// The prefix tree of the batch, if sequences share prefixes: hidden states have a row for each of its
    /// `U` nodes, not of the `T` tokens.
    pub tree: Option<&'a PrefixTree>,
    /// Sines and cosines of rotary embeddings.
    pub rotation: Option<Rotation>,
    /// The row of `rotation` for every row of the hidden states: its position in its sequence, from 0, unless
    /// frequencies depend on the length of the sequence.
    pub rotation_rows: Cow<'a, [u32]>,
    /// The score biases of `RelativeBias::by_relative_position`, one for all layers or one for each; none
    /// without a bias.
    pub biases: Vec<Tensor>,
    /// The rows of `RelativeEmbeddings::rows`.
    pub relative_rows: Option<Arc<[u32]>>,
    /// Attention mask within a sequence.
    pub visible: AttentionWindow,
}

impl SelfAttention {
    /// Loads `NAME.{query,key,value,output}` and, where the spec has them, `NAME.{query_norm,key_norm}`,
    /// `NAME.{mix_before,mix_after}.weight` (talking heads), `NAME.{query,key,value}_global` and the
    /// projections of `relative` embeddings.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        relative: Option<&Arc<RelativeEmbeddings>>,
        index: usize,
    ) -> Result<Self> {
        let EncoderSpec { heads, key_value_heads, qk_head_dim, v_head_dim, .. } = *spec;
        let width = spec.sublayer_width();
        let value_heads = if key_value_heads < heads { key_value_heads } else { spec.value_heads() };
        let mut linear = |module: &str, inputs, outputs, bias| {
            Linear::load(source, &format!("{name}.{module}"), inputs, outputs, bias)
        };
        let query = linear("query", width, heads * qk_head_dim, spec.bias.query_value)?;
        let key = linear("key", width, key_value_heads * qk_head_dim, spec.bias.key)?;
        let value = linear("value", spec.value_inputs(), value_heads * v_head_dim, spec.bias.query_value)?;
        let output = linear("output", spec.value_heads() * v_head_dim, width, spec.bias.attention_output)?;
        let global = spec.global_tokens.map(|_| -> Result<_> {
            Ok([
                linear("query_global", width, heads * qk_head_dim, spec.bias.query_value)?,
                linear("key_global", width, heads * qk_head_dim, spec.bias.key)?,
                linear("value_global", width, heads * v_head_dim, spec.bias.query_value)?,
            ])
        });
        let global = global.transpose()?;
        let mut norm =
            |module: &str, width: usize| Norm::load(source, &format!("{name}.{module}"), width, spec.norm);
        let qk_norms = match spec.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some([norm("query_norm", qk_head_dim)?, norm("key_norm", qk_head_dim)?]),
            QkNorm::AllHeads => Some([
                norm("query_norm", heads * qk_head_dim)?,
                norm("key_norm", key_value_heads * qk_head_dim)?,
            ]),
        };
        let mut across_heads = |module: &str, outputs: Option<usize>, inputs: usize| {
            outputs
                .map(|outputs| source.tensor(&format!("{name}.{module}.weight"), &[outputs, inputs]))
                .transpose()
        };
        let talking = spec.talking_heads;
        Ok(SelfAttention {
            query,
            key,
            value,
            output,
            qk_norms,
            global,
            heads,
            key_value_heads,
            qk_head_dim,
            v_head_dim,
            scale: scale(spec),
            score_cap: spec.score_cap,
            bias_index: if matches!(spec.score_bias, ScoreBias::Bucketed { per_layer: true, .. }) {
                index
            } else {
                0
            },
            rotate_values: matches!(&spec.positions, Positions::Rotary(rotary) if rotary.rotate_values),
            pre_softmax: across_heads("mix_before", talking.pre_softmax, heads)?,
            post_softmax: across_heads("mix_after", talking.post_softmax, spec.softmax_heads())?,
            compute: source.backend().gemm_type(),
            relative: relative
                .map(|relative| RelativeProjections::load(source, name, relative, heads * qk_head_dim))
                .transpose()?,
        })
    }

    /// Self-attention within each sequence, plus the residual if there is one: `(T, H)` → `(T, H)`, or
    /// `(U, H)` → `(U, H)` with a prefix tree; to `(R, H)` for selected tokens. With `kept`, attention is
    /// computed by the reference path, which appends its weights. Values are projected from `values` where
    /// it is given.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        values: Option<&Tensor>,
        context: &AttentionContext,
        selection: Option<&Selection>,
        residual: Option<&Tensor>,
        kept: Option<&mut Vec<AttentionWeights>>,
    ) -> Result<Tensor> {
        let relative = match (&self.relative, &context.relative_rows) {
            (Some(projections), Some(rows)) => Some((projections.forward(&self.key, &self.query)?, rows)),
            _ => None,
        };
        let relative = relative.as_ref().map(|([keys, queries], rows)| RelativePositions {
            position_keys: keys.as_ref(),
            position_queries: queries.as_ref(),
            buckets: rows,
        });
        let mut attention = Attention {
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            scale: self.scale,
            score_cap: self.score_cap,
            bias: context.biases.get(self.bias_index),
            relative,
            window: context.visible,
            key_lengths: context.key_lengths,
            prefix_lengths: context.global_tokens,
            gemm_type: self.compute,
            pre_softmax: self.pre_softmax.as_ref(),
            post_softmax: self.post_softmax.as_ref(),
            query_tiles: context.tiles.as_ref(),
            queries: None,
        };
        // The tokens whose outputs are needed. Queries of others are not, but not every attention can do
        // without them.
        let tokens = selection.map(|selection| &selection.tokens).or(context.tree.map(|tree| &tree.tokens));
        let selects_queries =
            kept.is_none() && context.global_tokens.is_none() && attention.selects_queries(x);
        let of_query = selection.filter(|_| selects_queries).map(|selection| &selection.hidden);
        let project = |layer: &Linear, x: &Tensor| layer.forward(x, Activation::Identity);
        let [mut q, mut k, mut v] = match (of_query, values) {
            (Some(rows), None) => {
                let [k, v] = Linear::forward_each([&self.key, &self.value], x)?;
                [project(&self.query, &rows.select(x)?)?, k, v]
            }
            (None, None) => Linear::forward_each([&self.query, &self.key, &self.value], x)?,
            (rows, Some(values)) => {
                let of_queries = rows.map(|rows| rows.select(x)).transpose()?;
                let q = project(&self.query, of_queries.as_ref().unwrap_or(x))?;
                [q, project(&self.key, x)?, project(&self.value, values)?]
            }
        };
        if let Some([query_norm, key_norm]) = &self.qk_norms {
            (q, k) = (query_norm.forward_heads(q)?, key_norm.forward_heads(k)?);
        }
        if let Some(rotation) = &context.rotation {
            let of_keys = &*context.rotation_rows;
            let of_queries = of_query.map(|rows| rows.of(of_keys));
            q = rotation.forward(q, of_queries.as_deref().unwrap_or(of_keys), self.qk_head_dim)?;
            k = rotation.forward(k, of_keys, self.qk_head_dim)?;
            if self.rotate_values {
                v = rotation.forward(v, of_keys, self.v_head_dim)?;
            }
        }
        if let Some(PrefixTree { nodes, .. }) = context.tree {
            (k, v) = (nodes.select(&k)?, nodes.select(&v)?);
            if !selects_queries {
                q = nodes.select(&q)?;
            }
        }
        if selects_queries {
            attention.queries = tokens.map(|tokens| &tokens.indices[..]);
        }
        let mut attended = match kept {
            None => attention.forward(&q, &k, &v, context.cu_seqlens)?,
            Some(kept) => attention.reference_with_weights(&q, &k, &v, context.cu_seqlens, Some(kept))?,
        };
        if let (Some(projections), Some(lengths)) = (&self.global, context.global_tokens) {
            attended = self.attend_globally(projections, lengths, x, &attention, context, &attended)?;
        }
        if let Some(tokens) = tokens.filter(|_| !selects_queries) {
            attended = tokens.select(&attended)?;
        }
        self.output.forward_residual(&attended, Activation::Identity, residual)
    }

    /// `attended` of `(T, H)` with the rows of the global tokens replaced by those of global attention.
    fn attend_globally(
        &self,
        [query, key, value]: &[Linear; 3],
        lengths: &[usize],
        x: &Tensor,
        local: &Attention,
        context: &AttentionContext,
        attended: &Tensor,
    ) -> Result<Tensor> {
        let sequences = context.cu_seqlens.windows(2).zip(lengths);
        let tokens: Vec<u32> =
            sequences.flat_map(|(bounds, length)| bounds[0] as u32..(bounds[0] + length) as u32).collect();
        if tokens.is_empty() {
            return Ok(attended.clone());
        }
        let [k, v] = Linear::forward_each([key, value], x)?;
        let tokens = Rows::new(tokens, x.device())?;
        let mut attention =
            Attention { window: AttentionWindow::FULL, prefix_lengths: None, ..local.clone() };
        let global = if attention.selects_queries(x) {
            attention.queries = Some(&tokens.indices);
            let q = query.forward(&tokens.select(x)?, Activation::Identity)?;
            attention.forward(&q, &k, &v, context.cu_seqlens)?
        } else {
            let q = query.forward(x, Activation::Identity)?;
            tokens.select(&attention.forward(&q, &k, &v, context.cu_seqlens)?)?
        };
        // The row of each token in the local rows followed by the global ones.
        let count = attended.dim(0)? as u32;
        let mut rows: Vec<u32> = (0..count).collect();
        for (row, token) in (count..).zip(&tokens.indices) {
            rows[*token as usize] = row;
        }
        Rows::new(rows, x.device())?.select(&Tensor::cat(&[attended, &global], 0)?)
    }
}

/// The factor on the scores: `1 / √s` for a query scalar `s`, else `1 / √(n d)` for head dim `d` and `n`
/// terms of a score, of which disentangled attention has up to three (He et al. 2021, §3.1:
/// content-to-content, c2p, p2c).
fn scale(spec: &EncoderSpec) -> f64 {
    if let Some(scalar) = spec.query_scalar {
        return 1.0 / scalar.sqrt();
    }
    let terms = match spec.score_bias {
        ScoreBias::Disentangled(Disentangled { c2p, p2c, .. }) => 1 + usize::from(c2p) + usize::from(p2c),
        _ => 1,
    };
    1.0 / ((spec.qk_head_dim * terms) as f64).sqrt()
}
