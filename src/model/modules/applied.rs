//! Which modules run with a pooling, and the dimensions of their vectors.

use std::path::PathBuf;

use anyhow::{Result, bail};
use thiserror::Error;

use super::{Modules, PoolingModule, PostPoolingModule};
use crate::model::purpose::Purpose;
use crate::nn::{EncoderSpec, HeadKind, Pooling};

/// Vectors that do not have the dimensions of a post-pooling module's input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{} takes vectors of {expected} dimensions, found {found}; use the files of one model",
    .file.display()
)]
pub struct DimensionMismatch {
    /// The configuration of the module.
    pub file: PathBuf,
    /// Dimensions of its input.
    pub expected: usize,
    /// Dimensions of the vectors.
    pub found: usize,
}

impl Modules {
    /// Checks that the Pooling module is for hidden states of `hidden_size`.
    pub fn check_hidden_size(&self, hidden_size: usize) -> Result<()> {
        let Some(PoolingModule { embedding_dimension: Some(expected), file, .. }) = &self.pooling else {
            return Ok(());
        };
        let hidden_size = output_dimensions(&self.post_pooling[..self.before_pooling], hidden_size)?;
        if *expected != hidden_size {
            bail!(
                "{} is for hidden states of {expected} dimensions, but the model has {hidden_size}; use the files of one \
                 model",
                file.display()
            )
        }
        Ok(())
    }

    /// The kind of the head that a model of this purpose has.
    pub fn head(&self, purpose: &Purpose) -> Option<HeadKind> {
        match purpose.head() {
            Some(HeadKind::SequenceClassification) if self.logit_score.is_some() => Some(HeadKind::CausalLm),
            head => head,
        }
    }

    /// Whether the model's files say how its token vectors become the vectors of a text.
    pub fn configures_pooling(&self) -> bool {
        self.pooling.is_some() || self.multi_vector.is_some()
    }

    /// The modules after the encoder that run with `pooling`: those of a multi-vector model with its own
    /// pooling only, and without pooling those for the vectors of tokens.
    pub fn applied(&self, pooling: &Pooling) -> &[PostPoolingModule] {
        let all = 0..self.post_pooling.len();
        let applied = match pooling {
            Pooling::Text(_) if self.multi_vector.is_some() => 0..0,
            Pooling::Text(_) if pooling.needs_pooler() => self.before_pooling..all.end,
            Pooling::Text(_) | Pooling::MultiVector => all,
            Pooling::None => 0..self.before_pooling,
            Pooling::Splade | Pooling::Lexical => 0..0,
        };
        &self.post_pooling[applied]
    }

    /// How many of the modules that run with `pooling` are before it.
    pub fn applied_before(&self, pooling: &Pooling) -> usize {
        match pooling {
            Pooling::Text(_) if self.multi_vector.is_none() && !pooling.needs_pooler() => self.before_pooling,
            Pooling::None => self.before_pooling,
            _ => 0,
        }
    }

    /// The dimensions of the final vectors for `pooling` of the hidden states of an encoder, before
    /// truncation.
    pub fn output_dimensions(
        &self,
        pooling: &Pooling,
        spec: &EncoderSpec,
    ) -> Result<usize, DimensionMismatch> {
        let (before, after) = self.applied(pooling).split_at(self.applied_before(pooling));
        let width = output_dimensions(before, spec.hidden_size)?;
        output_dimensions(after, pooling.dimensions(width, &spec.pooler))
    }
}

/// The dimensions of vectors of `inputs` dimensions after these modules.
pub fn output_dimensions(modules: &[PostPoolingModule], inputs: usize) -> Result<usize, DimensionMismatch> {
    modules.iter().try_fold(inputs, |found, module| match module.spec.inputs() {
        Some(expected) if expected != found => {
            Err(DimensionMismatch { file: module.config(), expected, found })
        }
        _ => Ok(module.spec.outputs(found)),
    })
}
