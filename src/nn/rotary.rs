//! Rotary position embeddings (Su et al. 2021, §3.2.2): the sines and cosines by which queries and keys are
//! rotated.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::grown_table::GrownTable;
use super::{
    EncoderSpec, Frequencies, Positions, RaggedBatch, Rotary, RotaryLayout, RotaryScaling, WeightSource,
};
use crate::ops::gpu::synchronize;
use crate::ops::rotary::Rotation;

/// The source of an encoder's sines and cosines.
pub(super) struct RotaryEmbedding {
    rotary: Rotary,
    /// Pairs of dimensions that are rotated: at most half the head dim.
    pairs: usize,
    /// The checkpoint's own table, `(max_positions, 2 · pairs)`: sines, then cosines.
    table: Option<Tensor>,
    /// The rotation in layers without a window and in those with one, where the frequencies do not depend on
    /// lengths.
    computed: [GrownTable<Rotation>; 2],
}

impl RotaryEmbedding {
    /// Loads `rotary.weight` if the spec allows it and the source has it.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Option<Self>> {
        let Positions::Rotary(rotary) = &spec.positions else { return Ok(None) };
        let table = if rotary.stored_table {
            source.optional("rotary.weight", &[spec.max_positions, spec.qk_head_dim])?
        } else {
            None
        };
        let pairs = rotary.rotated_dims.unwrap_or(spec.qk_head_dim) / 2;
        let computed = [(); 2].map(|()| GrownTable::new(pairs));
        Ok(Some(RotaryEmbedding { rotary: rotary.clone(), pairs, table, computed }))
    }

    /// Whether the frequencies are the same for all sequences of a batch.
    pub(super) fn is_same_for_all(&self, batch: &RaggedBatch) -> bool {
        let is_same = |frequencies: &Frequencies| frequencies.contexts(batch).len() <= 1;
        self.table.is_some()
            || is_same(&self.rotary.frequencies) && self.rotary.local.as_ref().is_none_or(is_same)
    }

    /// Sines and cosines of `(L, pairs)` for the tokens of a batch, and the row of each token unless the rows
    /// are positions from 0 on; `is_local`: in layers with a sliding window.
    pub(super) fn rotation(
        &self,
        is_local: bool,
        batch: &RaggedBatch,
        device: &Device,
    ) -> Result<(Rotation, Option<Vec<u32>>)> {
        let frequencies = self.rotary.local.as_ref().filter(|_| is_local).unwrap_or(&self.rotary.frequencies);
        let contexts = frequencies.contexts(batch);
        if self.table.is_some() || contexts.keys().all(|context| *context == 0) {
            let rotation = self.computed[usize::from(is_local)].get(batch.max_seqlen(), |length| {
                let rotation = match &self.table {
                    Some(table) => self.stored(table, length)?,
                    None => self.of_contexts(frequencies, &BTreeMap::from([(0, length)]), device)?.0,
                };
                // Other threads, with CUDA streams of their own, read the result.
                synchronize(device)?;
                Ok(rotation)
            });
            return Ok((rotation?, None));
        }
        let (rotation, first_rows) = self.of_contexts(frequencies, &contexts, device)?;
        let rows = (contexts.len() > 1).then(|| {
            let of_sequence = |length| {
                let first = first_rows[&frequencies.context(length)];
                first..first + length as u32
            };
            batch.lengths().flat_map(of_sequence).collect()
        });
        Ok((rotation, rows))
    }

    /// The rotation of the checkpoint's table up to a length.
    fn stored(&self, table: &Tensor, length: usize) -> Result<Rotation> {
        let table = table.narrow(0, 0, length.min(table.dim(0)?))?.to_dtype(DType::F32)?;
        let half = |start| table.narrow(1, start, self.pairs)?.contiguous();
        Ok(Rotation { sin: half(0)?, cos: half(self.pairs)?, interleaved: self.is_interleaved() })
    }

    /// The rotations for each of `contexts` and its maximum length, one after the other, and the first row of
    /// each.
    fn of_contexts(
        &self,
        frequencies: &Frequencies,
        contexts: &BTreeMap<usize, usize>,
        device: &Device,
    ) -> Result<(Rotation, BTreeMap<usize, u32>)> {
        let (pairs, attention_factor) = (self.pairs, frequencies.attention_factor());
        let (mut sin, mut cos) = (Vec::new(), Vec::new());
        let mut first_rows = BTreeMap::new();
        for (context, max_seqlen) in contexts {
            first_rows.insert(*context, (sin.len() / pairs) as u32);
            let inv_freq = frequencies.inv_freq(pairs, *context);
            // Multiplied in f32 as in `transformers`: the rounding is visible at positions in the thousands.
            let angles =
                (0..*max_seqlen).flat_map(|position| inv_freq.iter().map(move |freq| position as f32 * freq));
            for angle in angles {
                let (angle_sin, angle_cos) = f64::from(angle).sin_cos();
                sin.push((angle_sin * attention_factor) as f32);
                cos.push((angle_cos * attention_factor) as f32);
            }
        }
        let shape = (sin.len() / pairs, pairs);
        let table = |values| Tensor::from_vec(values, shape, device);
        let rotation = Rotation { sin: table(sin)?, cos: table(cos)?, interleaved: self.is_interleaved() };
        Ok((rotation, first_rows))
    }

    fn is_interleaved(&self) -> bool {
        self.rotary.layout == RotaryLayout::Interleaved
    }
}

impl Frequencies {
    /// What the frequencies depend on beside the pair: the length of the sequence past a limit, else 0.
    fn context(&self, length: usize) -> usize {
        match self.scaling {
            RotaryScaling::Dynamic { original_max_positions, .. }
                if length as f64 > original_max_positions =>
            {
                length
            }
            RotaryScaling::LongRope { original_max_positions, .. } => {
                usize::from(length as f64 > original_max_positions)
            }
            _ => 0,
        }
    }

    /// The contexts of the sequences of a batch, each with the maximum length of its sequences.
    fn contexts(&self, batch: &RaggedBatch) -> BTreeMap<usize, usize> {
        let mut contexts = BTreeMap::new();
        for length in batch.lengths() {
            let longest = contexts.entry(self.context(length)).or_insert(length);
            *longest = length.max(*longest);
        }
        contexts
    }

    /// The angular frequency of each pair in radians per position, `(pairs)`, after scaling; `inv_freq` in
    /// `transformers`.
    fn inv_freq(&self, pairs: usize, context: usize) -> Vec<f32> {
        (0..pairs).map(|i| self.scaled(i, 2 * pairs, context) as f32).collect()
    }

    /// The frequency of pair `i` of a rotation of `dim` dimensions.
    fn scaled(&self, i: usize, dim: usize, context: usize) -> f64 {
        let power = |theta: f64| theta.powf(-((2 * i) as f64) / dim as f64);
        let unscaled = power(self.theta);
        match &self.scaling {
            RotaryScaling::None => unscaled,
            RotaryScaling::Linear { factor } => unscaled / factor,
            RotaryScaling::Dynamic { factor, original_max_positions } if context > 0 => {
                let ratio = factor * context as f64 / original_max_positions - (factor - 1.0);
                power(self.theta * ratio.powf(dim as f64 / (dim as f64 - 2.0)))
            }
            RotaryScaling::Dynamic { .. } => unscaled,
            RotaryScaling::LongRope { short_factors, long_factors, .. } => {
                unscaled / if context > 0 { long_factors[i] } else { short_factors[i] }
            }
            RotaryScaling::Ntk { factor } => power(self.theta * factor) / factor.powf(2.0 / dim as f64),
            RotaryScaling::NtkByParts {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                // Rotations over the original context: up to `low_freq_factor` the frequency is divided by
                // the factor, from `high_freq_factor` on it is kept.
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
                let (low, high) = (pair(*beta_fast), pair(*beta_slow));
                let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                let high = if low == high { high + 0.001 } else { high };
                let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                unscaled * (kept + (1.0 - kept) / factor)
            }
        }
    }

    /// The factor on sines and cosines: 1 except for YaRN (Peng et al. 2023, §3.4) and LongRoPE.
    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention_factor, .. }
            | RotaryScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}
