//! The angles of rotary positions (Su et al. 2021, §3.2.2).

use std::f64::consts::TAU;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::{EncoderSpec, Frequencies, Parameters, Positions, Rotary, RotaryLayout, RotaryScaling};
use crate::ops::rotary::Rotation;

/// Where the angles of a stack come from.
pub struct Angles {
    rotary: Rotary,
    /// Pairs of columns in a head.
    pairs: usize,
    /// `(max_positions, 2 · pairs)`: sines, then cosines.
    stored: Option<Tensor>,
}

impl Angles {
    /// Loads `rotary.weight` if the source has it and the spec lets it count.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Option<Self>> {
        let Positions::Rotary(rotary) = spec.positions else { return Ok(None) };
        let stored = match rotary.stored {
            true => parameters.optional("rotary.weight", &[spec.max_positions, spec.qk_head_size])?,
            false => None,
        };
        Ok(Some(Angles { rotary, pairs: spec.qk_head_size / 2, stored }))
    }

    /// The angles of the first `longest` places, for layers with a window or for those without.
    pub fn rotation(&self, local: bool, longest: usize, device: &Device) -> Result<Rotation> {
        let Angles { rotary, pairs, stored } = self;
        let (pairs, neighbours) = (*pairs, rotary.layout == RotaryLayout::Neighbours);
        if let Some(table) = stored {
            let table = table.narrow(0, 0, longest)?.to_dtype(DType::F32)?;
            let half = |start| table.narrow(1, start, pairs)?.contiguous();
            return Ok(Rotation { sin: half(0)?, cos: half(pairs)?, neighbours });
        }
        let frequencies = if local { rotary.local.unwrap_or(rotary.frequencies) } else { rotary.frequencies };
        let (speeds, magnitude) = frequencies.speeds(pairs);
        // The product in f32, as `transformers` has it: at places in the thousands its rounding can be seen.
        let angles = (0..longest).flat_map(|place| speeds.iter().map(move |speed| place as f32 * speed));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                ((sin * magnitude) as f32, (cos * magnitude) as f32)
            })
            .unzip();
        let table = |values| Tensor::from_vec(values, (longest, pairs), device);
        Ok(Rotation { sin: table(sin)?, cos: table(cos)?, neighbours })
    }
}

impl Frequencies {
    /// The angle by which each pair turns from one place to the next, and what the result is multiplied by.
    fn speeds(&self, pairs: usize) -> (Vec<f32>, f64) {
        let columns = 2 * pairs;
        let power = |theta: f64, i: usize| theta.powf(-((2 * i) as f64) / columns as f64);
        let plain = |i: usize| power(self.theta, i);
        let mut magnitude = 1.0;
        let speed = |i: usize| match self.scaling {
            RotaryScaling::None => plain(i),
            RotaryScaling::Linear { factor } => plain(i) / factor,
            RotaryScaling::Ntk { factor } => {
                power(self.theta * factor, i) / factor.powf(2.0 / columns as f64)
            }
            RotaryScaling::Llama3 { factor, low, high, original } => {
                // Turns over the texts that the model was trained on, as a share of the way from low to high.
                let turns = original * plain(i) / TAU;
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                plain(i) * (share + (1.0 - share) / factor)
            }
            RotaryScaling::Yarn { factor, fast, slow, original, whole, .. } => {
                // The pair that makes so many turns over the texts that the model was trained on.
                let pair =
                    |turns: f64| columns as f64 * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let (low, high) = match whole {
                    true => (pair(fast).floor(), pair(slow).ceil()),
                    false => (pair(fast), pair(slow)),
                };
                let (low, high) = (low.max(0.0), high.min(columns as f64 - 1.0));
                let high = if low == high { high + 0.001 } else { high };
                let share = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain(i) * (share + (1.0 - share) / factor)
            }
        };
        let speeds = (0..pairs).map(|i| speed(i) as f32).collect();
        if let RotaryScaling::Yarn { factor, magnitude: given, .. } = self.scaling {
            magnitude = given.unwrap_or(if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 });
        }
        (speeds, magnitude)
    }
}
