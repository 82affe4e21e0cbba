//! The embedding layer: token, segment and position embeddings, summed and normalised (Devlin et al. 2019, §3).

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, EncoderSpec, Numbering, Parameters, RaggedBatch, Table};
use crate::ops::lookup::lookup_sum;

/// The tables, a norm, and the way to the hidden size where the tables are narrower.
pub struct Embeddings {
    token: Table,
    token_type: Option<Table>,
    position: Table,
    task_type: Option<Table>,
    numbering: Numbering,
    norm: Norm,
    projection: Option<Linear>,
}

impl Embeddings {
    /// Loads `embeddings.{token,token_type,position,task_type}.weight`, `embeddings.norm` and
    /// `embeddings.projection`, as far as the spec has them.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Self> {
        let width = spec.embedding_size;
        let mut table =
            |name: &str, rows| parameters.table(&format!("embeddings.{name}.weight"), rows, width);
        Ok(Embeddings {
            token: table("token", spec.vocab_size)?,
            token_type: spec.token_types.map(|rows| table("token_type", rows)).transpose()?,
            position: table("position", spec.positions.rows)?,
            task_type: spec.task_types.map(|rows| table("task_type", rows)).transpose()?,
            numbering: spec.positions.numbering,
            norm: Norm::load(parameters, "embeddings.norm", width, spec.norm)?,
            projection: (width != spec.hidden_size)
                .then(|| Linear::load(parameters, "embeddings.projection", width, spec.hidden_size, true))
                .transpose()?,
        })
    }

    /// The normalised sum of a batch's embeddings, `(T, E)`.
    pub fn forward(&self, batch: &RaggedBatch, device: &Device) -> Result<Tensor> {
        let positions = batch.positions(self.numbering);
        let tasks = vec![0; positions.len()];
        let mut tables = vec![(&self.token, batch.ids())];
        tables.extend(self.token_type.iter().map(|table| (table, batch.type_ids())));
        tables.push((&self.position, &positions));
        tables.extend(self.task_type.iter().map(|table| (table, &tasks[..])));
        self.norm.forward(lookup_sum(&tables, device)?)
    }

    /// From the embedding size to the hidden size: `(T, E)` → `(T, H)`.
    pub fn project(&self, embedded: Tensor) -> Result<Tensor> {
        match &self.projection {
            Some(projection) => projection.forward(&embedded, Activation::Identity),
            None => Ok(embedded),
        }
    }
}
