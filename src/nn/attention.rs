//! Multi-head self-attention (Vaswani et al. 2017, §3.2).

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::distance::{DistanceEmbeddings, DistanceProjections};
use super::linear::Linear;
use super::{Activation, Compute, Disentangled, EncoderSpec, Parameters, ScoreBias};
use crate::ops::attention::{Attention, Relative, Visible};
use crate::ops::rotary::Rotation;

/// Projections to queries, keys and values, attention within each text, and the output projection.
pub struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
    key_value_heads: usize,
    qk_head_size: usize,
    v_head_size: usize,
    scale: f64,
    rotate_values: bool,
    distances: Option<DistanceProjections>,
    compute: Compute,
    /// `(softmax heads, heads)`.
    mix_before: Option<Tensor>,
    /// `(value heads, softmax heads)`.
    mix_after: Option<Tensor>,
}

/// What the places of a batch's tokens mean for attention; the same in every layer, but for those with a window.
pub struct Context<'a> {
    /// Where each text begins, and the end of the last.
    pub offsets: &'a [usize],
    /// The same for a GPU.
    pub tiles: Option<Tensor>,
    /// The place of every token in its text, `(T)`.
    pub places: &'a [u32],
    /// How queries and keys turn.
    pub rotation: Option<Rotation>,
    /// The bias of `DistanceBias::by_distance`.
    pub bias: Option<Tensor>,
    /// The rows of `DistanceEmbeddings::rows`.
    pub distances: Option<Vec<u32>>,
    /// Which tokens a token sees.
    pub visible: Visible,
}

impl SelfAttention {
    /// Loads `NAME.{query,key,value,output}`, and as far as the spec has them `NAME.{mix_before,mix_after}.weight`
    /// and the projections of `distances`.
    pub fn load(
        parameters: &mut dyn Parameters,
        name: &str,
        spec: &EncoderSpec,
        distances: Option<&Arc<DistanceEmbeddings>>,
    ) -> Result<Self> {
        let EncoderSpec { hidden_size, heads, key_value_heads, qk_head_size, v_head_size, .. } = *spec;
        let groups = if key_value_heads < heads { key_value_heads } else { spec.value_heads() };
        let mut linear = |part: &str, inputs, outputs, bias| {
            Linear::load(parameters, &format!("{name}.{part}"), inputs, outputs, bias)
        };
        let query = linear("query", hidden_size, heads * qk_head_size, spec.bias.qkv)?;
        let key = linear("key", hidden_size, key_value_heads * qk_head_size, spec.bias.qkv)?;
        let value = linear("value", hidden_size, groups * v_head_size, spec.bias.qkv)?;
        let output =
            linear("output", spec.value_heads() * v_head_size, hidden_size, spec.bias.attention_output)?;
        let mut mix = |part: &str, to: Option<usize>, from: usize| {
            to.map(|to| parameters.tensor(&format!("{name}.{part}.weight"), &[to, from])).transpose()
        };
        Ok(SelfAttention {
            query,
            key,
            value,
            output,
            heads,
            key_value_heads,
            qk_head_size,
            v_head_size,
            scale: scale(spec),
            rotate_values: matches!(spec.positions, super::Positions::Rotary(rotary) if rotary.values),
            mix_before: mix("mix_before", spec.head_mixing.before, heads)?,
            mix_after: mix("mix_after", spec.head_mixing.after, spec.softmax_heads())?,
            compute: parameters.engine().compute(),
            distances: distances
                .map(|distances| DistanceProjections::load(parameters, name, distances, heads * qk_head_size))
                .transpose()?,
        })
    }

    /// `(T, H)` → `(T, H)`; tokens see the tokens of their own text only. A residual is added if there is one.
    pub fn forward(&self, x: &Tensor, context: &Context, residual: Option<&Tensor>) -> Result<Tensor> {
        let [mut q, mut k, mut v] = Linear::forward_each([&self.query, &self.key, &self.value], x)?;
        if let Some(rotation) = &context.rotation {
            q = rotation.forward(q, context.places, self.qk_head_size)?;
            k = rotation.forward(k, context.places, self.qk_head_size)?;
            if self.rotate_values {
                v = rotation.forward(v, context.places, self.v_head_size)?;
            }
        }
        let relative = match (&self.distances, &context.distances) {
            (Some(distances), Some(rows)) => {
                let [keys, queries] = distances.forward(&self.key, &self.query)?;
                Some(Relative { keys: keys.as_ref(), queries: queries.as_ref(), rows })
            }
            _ => None,
        };
        let attention = Attention {
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            scale: self.scale,
            bias: context.bias.as_ref(),
            relative,
            visible: context.visible,
            compute: self.compute,
            mix_before: self.mix_before.as_ref(),
            mix_after: self.mix_after.as_ref(),
            tiles: context.tiles.as_ref(),
        };
        let mixed = attention.forward(&q, &k, &v, context.offsets)?;
        self.output.forward_residual(&mixed, Activation::Identity, residual)
    }
}

/// `1 / √d` for keys of `d` columns, or of as many more as distances add products of that size to a score.
fn scale(spec: &EncoderSpec) -> f64 {
    let terms = match &spec.score_bias {
        ScoreBias::Disentangled(Disentangled { content_to_position, position_to_content, .. }) => {
            1 + usize::from(*content_to_position) + usize::from(*position_to_content)
        }
        _ => 1,
    };
    1.0 / ((spec.qk_head_size * terms) as f64).sqrt()
}
