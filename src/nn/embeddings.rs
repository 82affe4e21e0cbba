//! The embedding layer: token, segment and position embeddings, summed and normalised (Devlin et al. 2019, §3).

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::norm::Norm;
use super::{EncoderSpec, Parameters, RaggedBatch, Table};
use crate::ops::lookup::lookup_sum;

/// Three tables and a norm.
pub struct Embeddings {
    token: Table,
    token_type: Table,
    position: Table,
    norm: Norm,
}

impl Embeddings {
    /// Loads `embeddings.{token,token_type,position}.weight` and `embeddings.norm`.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Self> {
        let mut table =
            |name: &str, rows| parameters.table(&format!("embeddings.{name}.weight"), rows, spec.hidden_size);
        Ok(Embeddings {
            token: table("token", spec.vocab_size)?,
            token_type: table("token_type", spec.token_types)?,
            position: table("position", spec.max_positions)?,
            norm: Norm::load(parameters, "embeddings.norm", spec.hidden_size, spec.norm_eps)?,
        })
    }

    /// The first hidden states of a batch, `(T, H)`.
    pub fn forward(&self, batch: &RaggedBatch, device: &Device) -> Result<Tensor> {
        let positions = batch.positions();
        let sum = lookup_sum(
            &[(&self.token, batch.ids()), (&self.token_type, batch.type_ids()), (&self.position, &positions)],
            device,
        )?;
        self.norm.forward(sum)
    }
}
