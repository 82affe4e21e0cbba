//! Rotary position embeddings (Su et al. 2021, §3.2.2): the sines and cosines by which queries and keys are rotated.

use std::f64::consts::TAU;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::{EncoderSpec, Frequencies, Positions, Rotary, RotaryLayout, RotaryScaling, WeightSource};
use crate::ops::rotary::Rotation;

/// The source of an encoder's sines and cosines.
pub(super) struct RotaryEmbedding {
    rotary: Rotary,
    /// Pairs of dimensions in a head: half the head dim.
    pairs: usize,
    /// The checkpoint's own table, `(max_positions, 2 · pairs)`: sines, then cosines.
    table: Option<Tensor>,
}

impl RotaryEmbedding {
    /// Loads `rotary.weight` if the spec allows it and the source has it.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Option<Self>> {
        let Positions::Rotary(rotary) = spec.positions else { return Ok(None) };
        let table = if rotary.stored_table {
            source.optional("rotary.weight", &[spec.max_positions, spec.qk_head_dim])?
        } else {
            None
        };
        Ok(Some(RotaryEmbedding { rotary, pairs: spec.qk_head_dim / 2, table }))
    }

    /// Sines and cosines of `(max_seqlen, pairs)` for positions from 0 on; `is_local`: in layers with a sliding window.
    pub(super) fn rotation(&self, is_local: bool, max_seqlen: usize, device: &Device) -> Result<Rotation> {
        let RotaryEmbedding { rotary, pairs, table } = self;
        let (pairs, interleaved) = (*pairs, rotary.layout == RotaryLayout::Interleaved);
        if let Some(table) = table {
            let table = table.narrow(0, 0, max_seqlen)?.to_dtype(DType::F32)?;
            let half = |start| table.narrow(1, start, pairs)?.contiguous();
            return Ok(Rotation { sin: half(0)?, cos: half(pairs)?, interleaved });
        }
        let frequencies =
            if is_local { rotary.local.unwrap_or(rotary.frequencies) } else { rotary.frequencies };
        let (inv_freq, attention_factor) = (frequencies.inv_freq(pairs), frequencies.attention_factor());
        // Multiplied in f32 as in `transformers`: the rounding is visible at positions in the thousands.
        let angles =
            (0..max_seqlen).flat_map(|position| inv_freq.iter().map(move |freq| position as f32 * freq));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                ((sin * attention_factor) as f32, (cos * attention_factor) as f32)
            })
            .unzip();
        let table = |values| Tensor::from_vec(values, (max_seqlen, pairs), device);
        Ok(Rotation { sin: table(sin)?, cos: table(cos)?, interleaved })
    }
}

impl Frequencies {
    /// The angular frequency of each pair in radians per position, `(pairs)`, after scaling; `inv_freq` in `transformers`.
    fn inv_freq(&self, pairs: usize) -> Vec<f32> {
        (0..pairs).map(|i| self.scaled(i, 2 * pairs) as f32).collect()
    }

    /// The frequency of pair `i` of a rotation of `dim` dimensions.
    fn scaled(&self, i: usize, dim: usize) -> f64 {
        let power = |theta: f64| theta.powf(-((2 * i) as f64) / dim as f64);
        let unscaled = power(self.theta);
        match self.scaling {
            RotaryScaling::None => unscaled,
            RotaryScaling::Linear { factor } => unscaled / factor,
            RotaryScaling::Ntk { factor } => power(self.theta * factor) / factor.powf(2.0 / dim as f64),
            RotaryScaling::NtkByParts {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                // Rotations over the original context: up to `low_freq_factor` the frequency is divided by the factor, from
                // `high_freq_factor` on it is kept.
                let rotations = original_max_positions * unscaled / TAU;
                let kept =
                    ((rotations - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                unscaled * (kept + (1.0 - kept) / factor)
            }
            RotaryScaling::Yarn {
                factor, beta_fast, beta_slow, original_max_positions, truncate, ..
            } => {
                // The pair that makes this many rotations over the original context (Peng et al. 2023, §3.2).
                let pair = |rotations: f64| {
                    dim as f64 * (original_max_positions / (rotations * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (low, high) = (pair(beta_fast), pair(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                let high = if low == high { high + 0.001 } else { high };
                let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                unscaled * (kept + (1.0 - kept) / factor)
            }
        }
    }

    /// The factor on sines and cosines: 1 except for YaRN (Peng et al. 2023, §3.4).
    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention_factor: Some(attention_factor), .. } => attention_factor,
            RotaryScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * factor.ln() + 1.0,
            _ => 1.0,
        }
    }
}
