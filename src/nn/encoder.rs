//! The whole stack.

use std::fmt;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};

use super::attention::RelativeBias;
use super::embeddings::Embeddings;
use super::layer::Layer;
use super::{EncoderSpec, Parameters, RaggedBatch};

/// Embeddings and layers.
pub struct Encoder {
    spec: EncoderSpec,
    embeddings: Embeddings,
    relative_bias: Option<RelativeBias>,
    /// Each set of weights once, by group: layers that share them run the same ones.
    groups: Vec<Vec<Layer>>,
    device: Device,
}

/// A place on the way through the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// After the embedding layer, at the hidden size.
    Embeddings,
    /// After this layer, counted from 0.
    Layer(usize),
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Embeddings => write!(f, "embeddings"),
            Stage::Layer(index) => write!(f, "layer.{index}"),
        }
    }
}

impl Encoder {
    /// Builds the stack that `spec` describes from `parameters`.
    ///
    /// # Errors
    /// If the spec contradicts itself, or the source of the weights fails.
    pub fn load(spec: &EncoderSpec, parameters: &mut dyn Parameters) -> Result<Self> {
        Ok(Encoder {
            spec: spec.clone(),
            embeddings: Embeddings::load(parameters, spec)?,
            relative_bias: RelativeBias::load(parameters, spec)?,
            groups: (0..spec.layer_sharing.groups)
                .map(|group| {
                    (0..spec.layer_sharing.inner)
                        .map(|inner| Layer::load(parameters, &format!("layers.{group}.{inner}"), spec))
                        .collect()
                })
                .collect::<Result<_>>()?,
            device: Device::Cpu,
        })
    }

    /// What this stack computes.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// The last hidden states of a batch of `T` tokens, `(T, H)`.
    ///
    /// # Errors
    /// If a token or segment id has no row in its table, or a text is longer than the positions reach.
    pub fn forward(&self, batch: &RaggedBatch) -> Result<Tensor> {
        self.forward_observed(batch, |_, _| Ok(()))
    }

    /// [`Encoder::forward`], showing the hidden states after every stage to `observe`.
    pub fn forward_observed(
        &self,
        batch: &RaggedBatch,
        mut observe: impl FnMut(Stage, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        self.check(batch)?;
        let mut hidden = self.embeddings.forward(batch, &self.device)?;
        hidden = self.embeddings.project(hidden)?;
        observe(Stage::Embeddings, &hidden)?;
        let longest = batch.lengths().max().unwrap_or(1);
        let bias = self.relative_bias.as_ref().map(|bias| bias.by_distance(longest)).transpose()?;
        for index in 0..self.spec.layers {
            let group = self.spec.layer_sharing.group(index, self.spec.layers);
            for layer in &self.groups[group] {
                hidden = layer.forward(&hidden, batch, bias.as_ref())?;
            }
            observe(Stage::Layer(index), &hidden)?;
        }
        Ok(hidden)
    }

    fn check(&self, batch: &RaggedBatch) -> Result<()> {
        let largest = |ids: &[u32]| ids.iter().copied().max().unwrap_or(0) as usize;
        let id = largest(batch.ids());
        let longest = batch.lengths().max().unwrap_or(0);
        let spec = &self.spec;
        ensure!(id < spec.vocab_size, "token id {id} is past the vocabulary of {}", spec.vocab_size);
        if let Some(types) = spec.token_types {
            let type_id = largest(batch.type_ids());
            ensure!(type_id < types, "segment id {type_id}, but the model has {types} segments");
        }
        let most = spec.positions.longest();
        ensure!(longest <= most, "a text of {longest} tokens, but the model has {most} positions");
        Ok(())
    }
}
