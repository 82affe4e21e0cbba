//! The task head for sequence classification: a pooled hidden state, a dense layer, and a linear layer with a
//! logit for each label (Devlin et al. 2019, §4.1; Liu et al. 2019).

use anyhow::Result;
use candle_core::Tensor;

use super::head_transform::{HeadTransform, TransformSpec, on_cpu};
use super::linear::Linear;
use super::{Activation, Matrix, Pool, RaggedBatch, WeightSource};
use crate::ops::pooling::{pool, select};

/// The computation of a sequence-classification head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassificationSpec {
    /// The pooling of hidden states.
    pub pool: Pool,
    /// The padding token, if pooling by the last token takes the last one that is another.
    pub pad_token: Option<u32>,
    /// Whether logits are computed for each token and pooled after that.
    pub pools_logits: bool,
    /// Whether the dense layer is the encoder's own pooler.
    pub dense_is_pooler: bool,
    /// The layers before the last one.
    pub transform: Option<TransformSpec>,
    /// Whether the last layer has a bias.
    pub bias: bool,
    /// Number of labels: logits per sequence.
    pub labels: usize,
}

/// A sequence-classification head with its weights. Each sequence is computed from itself alone, so that its
/// logits do not depend on its batch.
pub struct ClassificationHead {
    spec: ClassificationSpec,
    transform: Option<HeadTransform>,
    classifier: Linear,
    /// The bound of the logits of tokens, whose difference is the logit of the only label.
    logit_cap: Option<f64>,
}

impl ClassificationHead {
    /// Loads `head.dense`, or `pooler`, of `(H, H)` and `head.norm` of `(H)` if the spec has them, and the
    /// module `last` of `(labels, H)`.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(
        source: &mut dyn WeightSource,
        last: &str,
        spec: &ClassificationSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let dense = if spec.dense_is_pooler { "pooler" } else { "head.dense" };
        let transform = spec.transform.map(|transform| {
            HeadTransform::load(source, [dense, "head.norm"], &transform, hidden_size, hidden_size)
        });
        Ok(ClassificationHead {
            spec: *spec,
            transform: transform.transpose()?,
            classifier: Linear::load(source, last, hidden_size, spec.labels, spec.bias)?,
            logit_cap: None,
        })
    }

    /// A head with one label: a linear layer of `(1, H)` without bias at the last token; with a bound of
    /// logits, of `(1, H)` or `(2, H)`, the first logit or the difference of both.
    ///
    /// # Errors
    /// If the matrix cannot be packed.
    pub(super) fn at_last_token(classifier: Matrix, logit_cap: Option<f64>) -> Result<Self> {
        let spec = ClassificationSpec {
            pool: Pool::Last,
            pad_token: None,
            pools_logits: false,
            dense_is_pooler: false,
            transform: None,
            bias: false,
            labels: 1,
        };
        Ok(ClassificationHead { spec, transform: None, classifier: Linear::new(classifier)?, logit_cap })
    }

    /// The logits of the `N` sequences of a batch from their hidden states: `(T, H)` → `(N, labels)`, in f32
    /// on the CPU.
    ///
    /// # Errors
    /// If `hidden` has not the tokens of the batch.
    pub fn forward(&self, hidden: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        if let Some(tokens) = self.pooled_tokens(batch) {
            return self.logits(&on_cpu(&select(hidden, batch.cu_seqlens(), &tokens)?)?);
        }
        let pooled = |x: &Tensor| pool(x, batch.cu_seqlens(), &[self.spec.pool], 0);
        if self.spec.pools_logits {
            return Ok(pooled(&self.logits(&on_cpu(hidden)?)?)?);
        }
        self.logits(&on_cpu(&pooled(hidden)?)?)
    }

    /// The token of each sequence whose hidden state the head takes, as a row of the batch, `(N)`; `None` if
    /// it pools several.
    pub fn pooled_tokens(&self, batch: &RaggedBatch) -> Option<Vec<u32>> {
        match self.spec.pad_token.filter(|pad_token| batch.ids().contains(pad_token)) {
            Some(pad_token) => Some(last_tokens(batch, pad_token)),
            None => self.spec.pool.tokens(batch.cu_seqlens()),
        }
    }

    /// `(N, H)` → `(N, labels)`.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let logits = match &self.transform {
            Some(transform) => self.classifier.forward(&transform.forward(x)?, Activation::Identity)?,
            None => self.classifier.forward(x, Activation::Identity)?,
        };
        let Some(cap) = self.logit_cap else { return Ok(logits) };
        let logits = ((logits / cap)?.tanh()? * cap)?;
        match logits.dim(1)? {
            1 => Ok(logits),
            _ => Ok((logits.narrow(1, 0, 1)? - logits.narrow(1, 1, 1)?)?),
        }
    }
}

/// The index of the last token of each sequence that is not the padding token, which a text may contain; of
/// the first one if all are.
fn last_tokens(batch: &RaggedBatch, pad_token: u32) -> Vec<u32> {
    let last = |bounds: &[usize]| {
        let tokens = &batch.ids()[bounds[0]..bounds[1]];
        (bounds[0] + tokens.iter().rposition(|id| *id != pad_token).unwrap_or(0)) as u32
    };
    batch.cu_seqlens().windows(2).map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::{RaggedBatch, last_tokens};

    #[test]
    fn the_last_token_is_none_of_the_padding() {
        let sequences: [&[u32]; 4] = [&[5, 7, 0], &[0, 0], &[3, 0, 4], &[6]];
        let batch = RaggedBatch::new(sequences.map(|ids| (ids, &[0; 3][..ids.len()]))).unwrap();
        assert_eq!(last_tokens(&batch, 0), [1, 3, 7, 8]);
    }
}
