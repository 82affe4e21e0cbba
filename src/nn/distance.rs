//! What the distance of two tokens adds to their score.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, Disentangled, EncoderSpec, Parameters, Positions, ScoreBias};
use crate::ops::gpu::finish;

/// A bias by distance and head, the same in every layer.
pub enum DistanceBias {
    /// Near distances have a bucket each, farther ones share them on a logarithmic scale (Raffel et al. 2020,
    /// §2.1).
    Bucketed {
        /// `(rows, heads)`.
        table: Tensor,
        buckets: usize,
        max_distance: usize,
    },
    /// Distances count against a pair of tokens, at each head's own rate (Press et al. 2022).
    Linear { slopes: Vec<f32> },
}

impl DistanceBias {
    /// Loads `relative_bias.weight` if the spec has a table.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Option<Self>> {
        Ok(match spec.score_bias {
            ScoreBias::Bucketed { rows, buckets, max_distance } => {
                let table = parameters.tensor("relative_bias.weight", &[rows, spec.heads])?;
                Some(DistanceBias::Bucketed { table, buckets, max_distance })
            }
            _ if spec.positions == Positions::Alibi => {
                Some(DistanceBias::Linear { slopes: slopes(spec.heads) })
            }
            _ => None,
        })
    }

    /// The bias of every distance in texts of up to `longest` tokens: `(heads, 2 · longest − 1)`, key − query from
    /// `1 − longest` on.
    pub fn by_distance(&self, longest: usize, device: &Device) -> Result<Tensor> {
        let longest = longest as i64;
        let distances = 1 - longest..longest;
        match self {
            DistanceBias::Bucketed { table, buckets, max_distance } => {
                let rows = distances.map(|distance| bucket(distance, *buckets, *max_distance) as u32);
                let rows = Tensor::from_iter(rows, device)?;
                Ok(table.index_select(&rows, 0)?.t()?.contiguous()?)
            }
            DistanceBias::Linear { slopes } => {
                let rows = slopes
                    .iter()
                    .flat_map(|slope| distances.clone().map(move |distance| -slope * distance.abs() as f32));
                Ok(Tensor::from_iter(rows, device)?.reshape((slopes.len(), ()))?)
            }
        }
    }
}

/// The bucket of key − query, with the rounding of `transformers` in f32.
fn bucket(distance: i64, buckets: usize, max_distance: usize) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let after = if distance > 0 { half } else { 0 };
    let distance = distance.unsigned_abs() as usize;
    if distance < exact {
        return after + distance;
    }
    let farthest = (max_distance as f64 / exact as f64).ln() as f32;
    let share = (distance as f32 / exact as f32).ln() / farthest;
    after + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
}

/// The rate of each head: a geometric sequence from 2^(−8/n) on for n heads. Where n is no power of two, that of the
/// power below it, filled up with every other one of the power above.
fn slopes(heads: usize) -> Vec<f32> {
    let sequence = |n: usize| (1..=n).map(move |i| (-8.0 * i as f64 / n as f64).exp2() as f32);
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    sequence(below).chain(sequence(2 * below).step_by(2)).take(heads).collect()
}

/// The embeddings of distances, for attention in which they meet queries and keys (He et al. 2021).
pub struct DistanceEmbeddings {
    /// `(2 · span, H)`.
    table: Tensor,
    norm: Option<Norm>,
    spec: Disentangled,
}

impl DistanceEmbeddings {
    /// Loads `distances.weight` and `distances_norm` if the spec has them.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Option<Arc<Self>>> {
        let ScoreBias::Disentangled(disentangled) = &spec.score_bias else { return Ok(None) };
        let width = spec.hidden_size;
        let table = parameters.tensor("distances.weight", &[2 * disentangled.span, width])?;
        let norm = (disentangled.norm)
            .then(|| Norm::load(parameters, "distances_norm", width, spec.norm))
            .transpose()?;
        Ok(Some(Arc::new(DistanceEmbeddings { table, norm, spec: disentangled.clone() })))
    }

    /// The row of every distance in texts of up to `longest` tokens, query − key from `1 − longest` on.
    pub fn rows(&self, longest: usize) -> Vec<u32> {
        let (longest, span) = (longest as i64, self.spec.span as i64);
        let row = |distance: i64| {
            let distance = match self.spec.max_distance {
                Some(max_distance) => log_bucket(distance, self.spec.span, max_distance),
                None => distance,
            };
            (distance + span).clamp(0, 2 * span - 1) as u32
        };
        (1 - longest..longest).map(row).collect()
    }
}

/// Distances up to half the buckets are as they are, farther ones grow with their logarithm, with the rounding of
/// `transformers` in f32.
fn log_bucket(distance: i64, buckets: usize, max_distance: usize) -> i64 {
    let middle = buckets / 2;
    if distance.unsigned_abs() as usize <= middle {
        return distance;
    }
    let middle = middle as f32;
    let share = (distance.abs() as f32 / middle).ln() / ((max_distance as f32 - 1.0) / middle).ln();
    distance.signum() * ((share * (middle - 1.0)).ceil() + middle) as i64
}

/// What one layer makes of the embeddings of distances: keys that its queries meet, and queries that its keys meet.
pub struct DistanceProjections {
    embeddings: Arc<DistanceEmbeddings>,
    key: Option<Linear>,
    query: Option<Linear>,
    /// Both, projected: the same for every text.
    projected: OnceLock<[Option<Tensor>; 2]>,
}

impl DistanceProjections {
    /// Loads `NAME.{distance_key,distance_query}`, as far as they are not those of the tokens.
    pub fn load(
        parameters: &mut dyn Parameters,
        name: &str,
        embeddings: &Arc<DistanceEmbeddings>,
        width: usize,
    ) -> Result<Self> {
        let Disentangled { content_to_position, position_to_content, shared, .. } = embeddings.spec;
        let hidden_size = embeddings.table.dim(1)?;
        let mut linear = |part: &str, wanted: bool| {
            let name = format!("{name}.{part}");
            (wanted && !shared).then(|| Linear::load(parameters, &name, hidden_size, width, true)).transpose()
        };
        Ok(DistanceProjections {
            key: linear("distance_key", content_to_position)?,
            query: linear("distance_query", position_to_content)?,
            embeddings: embeddings.clone(),
            projected: OnceLock::new(),
        })
    }

    /// Keys and queries of the distances, both `(2 · span, heads · d)`; `key` and `query` are the projections of the
    /// tokens.
    pub fn forward(&self, key: &Linear, query: &Linear) -> Result<&[Option<Tensor>; 2]> {
        if let Some(projected) = self.projected.get() {
            return Ok(projected);
        }
        let Disentangled { content_to_position, position_to_content, .. } = self.embeddings.spec;
        let table = match &self.embeddings.norm {
            Some(norm) => norm.forward(self.embeddings.table.copy()?)?,
            None => self.embeddings.table.clone(),
        };
        let project = |wanted: bool, own: &Option<Linear>, tokens: &Linear| {
            let linear = own.as_ref().unwrap_or(tokens);
            wanted.then(|| linear.forward(&table, Activation::Identity)).transpose()
        };
        let keys = project(content_to_position, &self.key, key)?;
        let queries = project(position_to_content, &self.query, query)?;
        // Other threads will use them, too.
        finish(self.embeddings.table.device())?;
        Ok(self.projected.get_or_init(|| [keys, queries]))
    }
}
