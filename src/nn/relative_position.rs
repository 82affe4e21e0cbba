//! Relative positions in attention: score biases by bucket (Raffel et al. 2020) and by slope (ALiBi), and the
//! relative embeddings of disentangled attention (DeBERTa).

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::grown_table::GrownTable;
use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, Disentangled, EncoderSpec, LayerSharing, Positions, ScoreBias, WeightSource};
use crate::ops::gpu::synchronize;

/// A score bias for each head and relative position.
pub(super) struct RelativeBias {
    kind: BiasKind,
    by_position: GrownTable<Tensor>,
}

/// What a score bias is computed of.
enum BiasKind {
    /// A learned scalar for each bucket of relative positions: near ones have a bucket each, farther ones
    /// share buckets on a logarithmic scale (Raffel et al. 2020, §2.1).
    Bucketed {
        /// `(rows, heads)`.
        table: Tensor,
        buckets: usize,
        max_distance: usize,
    },
    /// `−slope · |key − query|`, with a slope for each head (Press et al. 2022).
    Alibi { slopes: Vec<f32> },
}

impl RelativeBias {
    /// Loads `relative_bias.weight` if the spec has one table for all layers, or
    /// `layers.GROUP.INNER.attention.relative_bias.weight` if it has one in each. Returns the bias of each
    /// layer, or one for all; none without a bias.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Vec<Self>> {
        let ScoreBias::Bucketed { rows, buckets, max_distance, per_layer } = spec.score_bias else {
            let is_alibi = spec.positions == Positions::Alibi;
            let alibi = is_alibi.then(|| BiasKind::Alibi { slopes: alibi_slopes(spec.heads) });
            return Ok(alibi.into_iter().map(|kind| Self::new(kind, spec.heads)).collect());
        };
        let mut bias = |name: &str| -> Result<Self> {
            let table = source.tensor(name, &[rows, spec.heads])?;
            Ok(Self::new(BiasKind::Bucketed { table, buckets, max_distance }, spec.heads))
        };
        if !per_layer {
            return Ok(vec![bias("relative_bias.weight")?]);
        }
        let LayerSharing { groups, inner } = spec.layer_sharing;
        let layers = (0..groups).flat_map(|group| (0..inner).map(move |inner| (group, inner)));
        layers
            .map(|(group, inner)| bias(&format!("layers.{group}.{inner}.attention.relative_bias.weight")))
            .collect()
    }

    fn new(kind: BiasKind, heads: usize) -> Self {
        RelativeBias { kind, by_position: GrownTable::new(2 * heads) }
    }

    /// The bias by relative position, `(heads, 2 · L − 1)` for sequences of up to `L` tokens, at least
    /// `max_seqlen`: column `i` is for key − query = `i + 1 − L`.
    pub(super) fn by_relative_position(&self, max_seqlen: usize, device: &Device) -> Result<Tensor> {
        self.by_position.get(max_seqlen, |length| {
            let bias = self.kind.by_relative_position(length, device)?;
            // Other threads, with CUDA streams of their own, read the result.
            synchronize(device)?;
            Ok(bias)
        })
    }
}

impl BiasKind {
    /// See [`RelativeBias::by_relative_position`].
    fn by_relative_position(&self, length: usize, device: &Device) -> Result<Tensor> {
        let length = length as i64;
        let positions = 1 - length..length;
        match self {
            BiasKind::Bucketed { table, buckets, max_distance } => {
                let rows = positions.map(|position| bucket(position, *buckets, *max_distance) as u32);
                let rows = Tensor::from_iter(rows, device)?;
                Ok(table.index_select(&rows, 0)?.t()?.contiguous()?)
            }
            BiasKind::Alibi { slopes } => {
                let rows = slopes
                    .iter()
                    .flat_map(|slope| positions.clone().map(move |position| -slope * position.abs() as f32));
                Ok(Tensor::from_iter(rows, device)?.reshape((slopes.len(), ()))?)
            }
        }
    }
}

/// The bucket of a relative position (key − query), rounded in f32 as in `transformers`.
fn bucket(position: i64, buckets: usize, max_distance: usize) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let direction = if position > 0 { half } else { 0 };
    let distance = position.unsigned_abs() as usize;
    if distance < exact {
        return direction + distance;
    }
    let log_max = (max_distance as f64 / exact as f64).ln() as f32;
    let fraction = (distance as f32 / exact as f32).ln() / log_max;
    direction + (exact + (fraction * (half - exact) as f32) as usize).min(half - 1)
}

/// The slopes of ALiBi (Press et al. 2022, §3): for `n` heads, `n` a power of two, the geometric sequence
/// from `2^(−8/n)` on with that ratio. For another `n`, the sequence of the power of two below it, then every
/// other term of that of the power above.
fn alibi_slopes(heads: usize) -> Vec<f32> {
    let sequence = |n: usize| (1..=n).map(move |i| (-8.0 * i as f64 / n as f64).exp2() as f32);
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    sequence(below).chain(sequence(2 * below).step_by(2)).take(heads).collect()
}

/// The embeddings of relative positions for disentangled attention (He et al. 2021), shared by all layers.
pub(super) struct RelativeEmbeddings {
    /// `(2 · relative_positions, H)`.
    table: Tensor,
    norm: Option<Norm>,
    spec: Disentangled,
    rows: GrownTable<Arc<[u32]>>,
}

impl RelativeEmbeddings {
    /// Loads `distances.weight` and `distances_norm` if the spec has them.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Option<Arc<Self>>> {
        let ScoreBias::Disentangled(disentangled) = &spec.score_bias else { return Ok(None) };
        let width = spec.hidden_size;
        let table = source.tensor("distances.weight", &[2 * disentangled.relative_positions, width])?;
        let norm = (disentangled.norm)
            .then(|| Norm::load(source, "distances_norm", width, spec.norm))
            .transpose()?;
        let rows = GrownTable::new(2);
        Ok(Some(Arc::new(RelativeEmbeddings { table, norm, spec: disentangled.clone(), rows })))
    }

    /// The table row of each relative position, `(2 · L − 1)` for sequences of up to `L` tokens, at least
    /// `max_seqlen`: entry `i` is for query − key = `i + 1 − L`.
    pub(super) fn rows(&self, max_seqlen: usize) -> Result<Arc<[u32]>> {
        let half = self.spec.relative_positions as i64;
        let row = |position: i64| {
            let position = match self.spec.max_distance {
                Some(max_distance) => log_bucket(position, self.spec.relative_positions, max_distance),
                None => position,
            };
            (position + half).clamp(0, 2 * half - 1) as u32
        };
        self.rows.get(max_seqlen, |length| Ok((1 - length as i64..length as i64).map(row).collect()))
    }
}

/// The bucket of a relative position: the position itself up to half the buckets, beyond that logarithmic.
/// Rounded in f32 as in `transformers` (`make_log_bucket_position`).
fn log_bucket(position: i64, buckets: usize, max_distance: usize) -> i64 {
    let middle = buckets / 2;
    if position.unsigned_abs() as usize <= middle {
        return position;
    }
    let middle = middle as f32;
    let fraction = (position.abs() as f32 / middle).ln() / ((max_distance as f32 - 1.0) / middle).ln();
    position.signum() * ((fraction * (middle - 1.0)).ceil() + middle) as i64
}

/// One layer's projections of the relative embeddings: to keys for the c2p term, to queries for the p2c term.
pub(super) struct RelativeProjections {
    embeddings: Arc<RelativeEmbeddings>,
    /// `None`: the key projection of the tokens.
    key: Option<Linear>,
    /// `None`: the query projection of the tokens.
    query: Option<Linear>,
    /// Projected keys and queries: they do not depend on the batch, so they are computed once.
    projected: OnceLock<[Option<Tensor>; 2]>,
}

impl RelativeProjections {
    /// Loads `NAME.{distance_key,distance_query}`, as far as they are not shared with the tokens; `width` is
    /// `heads · qk_head_dim`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        embeddings: &Arc<RelativeEmbeddings>,
        width: usize,
    ) -> Result<Self> {
        let Disentangled { c2p, p2c, shared_projections, key_bias, .. } = embeddings.spec;
        let hidden_size = embeddings.table.dim(1)?;
        let mut linear = |module: &str, is_used: bool, bias: bool| {
            let name = format!("{name}.{module}");
            (is_used && !shared_projections)
                .then(|| Linear::load(source, &name, hidden_size, width, bias))
                .transpose()
        };
        Ok(RelativeProjections {
            key: linear("distance_key", c2p, key_bias)?,
            query: linear("distance_query", p2c, true)?,
            embeddings: embeddings.clone(),
            projected: OnceLock::new(),
        })
    }

    /// Keys (c2p) and queries (p2c) of positions, both `(2 · relative_positions, heads · qk_head_dim)`. `key`
    /// and `query` are the projections of the tokens.
    pub(super) fn forward(&self, key: &Linear, query: &Linear) -> Result<&[Option<Tensor>; 2]> {
        if let Some(projected) = self.projected.get() {
            return Ok(projected);
        }
        let Disentangled { c2p, p2c, .. } = self.embeddings.spec;
        let table = match &self.embeddings.norm {
            Some(norm) => norm.forward(self.embeddings.table.copy()?)?,
            None => self.embeddings.table.clone(),
        };
        let project = |is_used: bool, own: &Option<Linear>, shared: &Linear| {
            let linear = own.as_ref().unwrap_or(shared);
            is_used.then(|| linear.forward(&table, Activation::Identity)).transpose()
        };
        let keys = project(c2p, &self.key, key)?;
        let queries = project(p2c, &self.query, query)?;
        // Other threads, with CUDA streams of their own, read the result.
        synchronize(self.embeddings.table.device())?;
        Ok(self.projected.get_or_init(|| [keys, queries]))
    }
}
