//! The embedding layer: token, token type and position embeddings, summed and normalised (Devlin et al. 2019,
//! §3).

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::rows::unfold;
use super::{
    Activation, Backend, EmbeddingNorm, EmbeddingTable, EncoderSpec, Numbering, Positions,
    ProjectedEmbeddings, RaggedBatch, WeightSource,
};
use crate::ops::lookup::lookup_sum;

/// Embedding tables, a norm, and a projection to the hidden size where the tables are narrower.
pub(super) struct Embeddings {
    token: EmbeddingTable,
    token_type: Option<EmbeddingTable>,
    position: Option<EmbeddingTable>,
    task_type: Option<EmbeddingTable>,
    positions: Positions,
    /// Columns of the tables.
    width: usize,
    /// Factor on the sum of the tables.
    scale: Option<f64>,
    token_dropout: Option<u32>,
    /// On the sum of the tables.
    norm: Option<Norm>,
    projection: Option<Linear>,
    projected: ProjectedEmbeddings,
    /// On the projected embeddings.
    projected_norm: Option<Norm>,
}

impl Embeddings {
    /// Bytes of the tables whose rows are read from a mapped file as tokens need them.
    pub(super) fn stored_bytes(&self) -> usize {
        let tables =
            [Some(&self.token), self.token_type.as_ref(), self.position.as_ref(), self.task_type.as_ref()];
        tables.into_iter().flatten().map(EmbeddingTable::mapped_bytes).sum()
    }

    /// Loads `embeddings.{token,token_type,position,task_type}.weight`, `embeddings.norm` and
    /// `embeddings.projection`, those that the spec has.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Self> {
        let width = spec.embedding_size;
        let mut table_of =
            |name: &str, rows, width| source.table(&format!("embeddings.{name}.weight"), rows, width);
        let learned = matches!(spec.positions, Positions::Learned(_)).then_some(spec.max_positions);
        let token = table_of("token", spec.vocab_size, width)?;
        let mut table = |name: &str, rows| table_of(name, rows, spec.other_embedding_size());
        let token_type = spec.token_types.map(|rows| table("token_type", rows)).transpose()?;
        let position = learned.map(|rows| table("position", rows)).transpose()?;
        let task_type = spec.task_types.map(|rows| table("task_type", rows)).transpose()?;
        let mut norm = |placement, width| {
            (spec.embedding_norm == placement)
                .then(|| Norm::load(source, "embeddings.norm", width, spec.output_norm()))
                .transpose()
        };
        let table_norm = norm(EmbeddingNorm::BeforeProjection, width)?;
        let projected_norm = norm(EmbeddingNorm::AfterProjection, spec.hidden_size)?;
        let projection = (spec.embedding_projection)
            .then(|| {
                let bias = spec.bias.projection;
                let inputs = spec.projection_inputs();
                Linear::load(source, "embeddings.projection", inputs, spec.hidden_size, bias)
            })
            .transpose()?;
        let positions = spec.positions.clone();
        Ok(Embeddings {
            token,
            token_type,
            position,
            task_type,
            positions,
            width,
            scale: spec.embedding_scale,
            token_dropout: spec.token_dropout,
            norm: table_norm,
            projection,
            projected: spec.projected,
            projected_norm,
        })
    }

    /// The means of the token embeddings of sequences, each given by its ids, `(N, width)`; zeros for one
    /// without ids.
    ///
    /// # Errors
    /// If an id has no row in the table.
    pub(super) fn means<I: Iterator<Item = u32>>(
        &self,
        sequences: impl ExactSizeIterator<Item = I>,
    ) -> Result<Tensor> {
        let count = sequences.len();
        let mut means = vec![0f32; count * self.width];
        for (ids, mean) in sequences.zip(means.chunks_exact_mut(self.width)) {
            self.token.mean_rows(ids, mean)?;
        }
        Ok(Tensor::from_vec(means, (count, self.width), &Device::Cpu)?)
    }

    /// The embeddings of the tokens of a batch, `(T, H)`.
    ///
    /// # Errors
    /// If an id has no row in its table.
    pub(super) fn forward(&self, batch: &RaggedBatch, backend: &Backend) -> Result<Tensor> {
        let numbering = match self.positions {
            Positions::Learned(numbering) => numbering,
            _ => Numbering::FromZero,
        };
        let position_ids = batch.position_ids(numbering);
        let task_type_ids = vec![0; position_ids.len()];
        let sinusoids = match self.positions {
            Positions::Sinusoidal => Some(sinusoidal_table(batch.max_seqlen(), self.width, backend)?),
            _ => None,
        };
        let mut tables = vec![(&self.token, batch.ids())];
        tables.extend(self.token_type.iter().map(|table| (table, batch.token_type_ids())));
        tables.extend(self.position.iter().chain(&sinusoids).map(|table| (table, &position_ids[..])));
        tables.extend(self.task_type.iter().map(|table| (table, &task_type_ids[..])));
        let (norm, device) = (self.norm.as_ref(), backend.device());
        // What is added after the projection.
        let mut others = None;
        let mut x = match self.token_dropout {
            None if self.projected != ProjectedEmbeddings::Sum => {
                others = (tables.len() > 1).then(|| lookup_sum(&tables[1..], None, &device)).transpose()?;
                let x = lookup_sum(&tables[..1], None, &device)?;
                match self.projected {
                    ProjectedEmbeddings::Trigram => unfold(&x, batch, [1, 0, -1].into_iter())?,
                    _ => x,
                }
            }
            None => lookup_sum(&tables, norm.map(Norm::weights), &device)?,
            Some(mask_token) => {
                let factors = batch.token_dropout(mask_token);
                let factors = backend.transfer(Tensor::new(factors, &Device::Cpu)?.unsqueeze(1)?)?;
                let tokens = lookup_sum(&tables[..1], None, &device)?.broadcast_mul(&factors)?;
                let sum = match &tables[1..] {
                    [] => tokens,
                    others => (tokens + lookup_sum(others, None, &device)?)?,
                };
                norm.map_or(Ok(sum.clone()), |norm| norm.forward(sum))?
            }
        };
        if let Some(scale) = self.scale {
            x = (x * scale)?;
        }
        x = match (&self.projection, &others) {
            (Some(projection), others) => {
                projection.forward_residual(&x, Activation::Identity, others.as_ref())?
            }
            (None, Some(others)) => (x + others)?,
            (None, None) => x,
        };
        match &self.projected_norm {
            Some(norm) => norm.forward(x),
            None => Ok(x),
        }
    }
}

/// The position encoding of Vaswani et al. 2017 (§3.5), a table of `(max_seqlen, width)`:
/// `sin(p / 10000^(i / width))` in even columns `i`, the cosine of the same angle in the next.
fn sinusoidal_table(max_seqlen: usize, width: usize, backend: &Backend) -> Result<EmbeddingTable> {
    let value = |position: usize, column: usize| {
        let exponent = (column / 2 * 2) as f64 / width as f64;
        let angle = position as f64 / 10_000f64.powf(exponent);
        (if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    let values = (0..max_seqlen).flat_map(|position| (0..width).map(move |column| value(position, column)));
    let table = Tensor::from_iter(values, &Device::Cpu)?.reshape((max_seqlen, width))?;
    Ok(EmbeddingTable::resident(backend.transfer(table)?)?)
}
