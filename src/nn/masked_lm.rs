//! The task head for masked language modelling: a dense layer with activation and norm, and a decoder with a
//! logit for each token of the vocabulary (Devlin et al. 2019, §3.1); and SPLADE, which pools these logits to
//! weights of the vocabulary (Formal et al. 2021).

use anyhow::Result;
use candle_core::Tensor;

use super::head_transform::{HeadTransform, TransformSpec, on_cpu};
use super::linear::Linear;
use super::{Activation, Matrix, WeightSource, placeholder};
use crate::ops::linear::COLUMN_BLOCK_VALUES;

/// The computation of a masked-LM head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaskedLmSpec {
    /// Canonical names of the module with the layers before the decoder: the first one that a checkpoint has.
    pub modules: &'static [&'static str],
    /// The layers before the decoder.
    pub transform: Option<TransformSpec>,
    /// Inputs of the decoder.
    pub width: usize,
    /// Rows of the decoder.
    pub vocab_size: usize,
    /// Inputs of the decoder beyond those of the token embeddings, which have a matrix of their own,
    /// `(inputs, V)`.
    pub further_inputs: usize,
    /// Whether the matrix of the decoder is that of the token embeddings, unless a checkpoint has both.
    pub is_tied: bool,
    /// Whether the decoder has a bias.
    pub bias: bool,
}

/// How logits of tokens become weights of the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpladeSpec {
    /// Whether the weights of tokens are added up; otherwise their maximum is taken.
    pub sums: bool,
    /// Whether weights are `log(1 + log(1 + relu(x)))`; otherwise `log(1 + relu(x))`.
    pub is_double_log: bool,
}

/// A masked-LM head with its weights, in f32 on the CPU. Each token is computed from itself alone, so that
/// its logits do not depend on its batch.
pub struct MaskedLmHead {
    transform: Option<HeadTransform>,
    decoder: Linear,
    spec: MaskedLmSpec,
}

/// Tokens whose logits are in memory at a time.
const TOKENS: usize = 48;

impl MaskedLmHead {
    /// Loads `MODULE.dense` of `(width, H)`, `MODULE.norm` of `(width)`, `MODULE.decoder.weight` or
    /// `embeddings.token.weight` of `(V, width)`, or less `MODULE.further.weight` of `(further inputs,
    /// V)`, and `MODULE.bias` or `MODULE.decoder.bias` of `(V)`. The packed matrix of the decoder takes `V
    /// · width` values of memory; embeddings are read from the file, so that a tied matrix is in memory
    /// once.
    ///
    /// # Errors
    /// If the source fails.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        spec: &MaskedLmSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let is_present = |module: &&&str| source.has(&format!("{module}.dense.weight"));
        let module = spec.modules.iter().find(is_present).unwrap_or(&spec.modules[0]);
        let names = [format!("{module}.dense"), format!("{module}.norm")];
        let transform = spec.transform.map(|transform| {
            let names = [names[0].as_str(), names[1].as_str()];
            HeadTransform::load(source, names, &transform, hidden_size, spec.width)
        });
        let transform = transform.transpose()?;
        let own = format!("{module}.decoder.weight");
        let weight = if spec.is_tied && !source.has(&own) { "embeddings.token.weight" } else { own.as_str() };
        // Of a tied decoder, the bias of the module is in use; otherwise that of the decoder.
        let mut biases = [format!("{module}.bias"), format!("{module}.decoder.bias")];
        if !spec.is_tied {
            biases.reverse();
        }
        let bias = biases.iter().find(|bias| source.has(bias)).unwrap_or(&biases[0]);
        let bias = spec.bias.then_some(bias.as_str());
        let decoder = match spec.further_inputs {
            0 => Linear::load_tensors(source, weight, bias, spec.width, spec.vocab_size)?,
            further => {
                let names = [weight, &format!("{module}.further.weight")];
                let matrix = side_by_side(source, names, spec.vocab_size, [spec.width - further, further])?;
                let bias = bias.map(|bias| source.tensor(bias, &[spec.vocab_size])).transpose()?;
                Linear::with_bias(matrix, bias)?
            }
        };
        Ok(MaskedLmHead { transform, decoder, spec: *spec })
    }

    /// The memory of [`MaskedLmHead::map_logits`] in bytes: the logits of a block of tokens, as a tensor and
    /// as vectors, and what becomes of those of one token: powers in f64, scores, and indices.
    pub fn logits_bytes(&self) -> usize {
        let of_token = size_of::<f64>() + size_of::<f32>() + size_of::<usize>();
        (2 * TOKENS * size_of::<f32>() + of_token).saturating_mul(self.spec.vocab_size)
    }

    /// The memory of [`MaskedLmHead::splade`] in bytes, per token and beside that: the inputs of the decoder
    /// before and after their conversion; a block of logits, and weights of the vocabulary.
    pub fn splade_bytes(&self) -> (usize, usize) {
        let weights = size_of::<(u32, f32)>().saturating_mul(self.spec.vocab_size);
        let of_token = (3 * size_of::<f32>()).saturating_mul(self.spec.width);
        (of_token, weights.saturating_add(COLUMN_BLOCK_VALUES * size_of::<f32>()))
    }

    /// Applies `reduce` to the logits of each token, `(V)`, and returns the results in order. `hidden` is
    /// `(T, H)`.
    ///
    /// # Errors
    /// If `hidden` has another shape.
    pub fn map_logits<R>(&self, hidden: &Tensor, reduce: impl Fn(&[f32]) -> R) -> Result<Vec<R>> {
        let tokens = hidden.dim(0)?;
        let mut results = Vec::with_capacity(tokens);
        for first in (0..tokens).step_by(TOKENS) {
            let block = hidden.narrow(0, first, TOKENS.min(tokens - first))?;
            let x = self.transform(&on_cpu(&block)?)?;
            let logits = self.decoder.forward(&x, Activation::Identity)?.to_vec2::<f32>()?;
            results.extend(logits.iter().map(|logits| reduce(logits)));
        }
        Ok(results)
    }

    /// The positive weights of the vocabulary for each of `N` sequences, by ascending index, from hidden
    /// states of `(T, H)` and `cu_seqlens` of `(N + 1)`. The logits are computed and pooled in blocks of the
    /// vocabulary, so that neither those of all tokens nor dense weights are in memory.
    ///
    /// # Errors
    /// If `hidden` has another shape.
    pub fn splade(
        &self,
        hidden: &Tensor,
        cu_seqlens: &[usize],
        spec: SpladeSpec,
    ) -> Result<Vec<Vec<(u32, f32)>>> {
        let x = self.transform(&on_cpu(hidden)?)?;
        let tokens = x.dim(0)?;
        let blocks = self.decoder.forward_by_columns(&x, |first, logits| {
            let width = logits.len() / tokens;
            let sequences = cu_seqlens.windows(2).map(|bounds| &logits[bounds[0] * width..bounds[1] * width]);
            let weights = sequences.map(|logits| {
                let weights = spec.pool(logits, width).into_iter().zip(first as u32..);
                weights.filter(|(weight, _)| *weight != 0.0).map(|(weight, index)| (index, weight)).collect()
            });
            weights.collect::<Vec<Vec<(u32, f32)>>>()
        })?;
        let mut sequences = vec![Vec::new(); cu_seqlens.len() - 1];
        for block in blocks {
            sequences.iter_mut().zip(block).for_each(|(sequence, weights)| sequence.extend(weights));
        }
        Ok(sequences)
    }

    fn transform(&self, x: &Tensor) -> Result<Tensor> {
        match &self.transform {
            Some(transform) => transform.forward(x),
            None => Ok(x.clone()),
        }
    }
}

/// The matrix of `(rows, left + right)` whose right part is stored transposed.
fn side_by_side(
    source: &mut dyn WeightSource,
    names: [&str; 2],
    rows: usize,
    [left, right]: [usize; 2],
) -> Result<Matrix> {
    let parts = [source.tensor(names[0], &[rows, left])?, source.tensor(names[1], &[right, rows])?];
    // A placeholder, whose sizes no file has confirmed, takes no memory only as it is.
    if parts.iter().any(|part| !part.is_contiguous()) {
        return Ok(Matrix::Tensor(placeholder(&[rows, left.saturating_add(right)])?));
    }
    let matrix = Tensor::cat(&[&parts[0], &parts[1].t()?], 1)?.contiguous()?;
    Ok(Matrix::new(matrix, source.backend())?)
}

impl SpladeSpec {
    /// The pooling and the function, for messages and metadata.
    pub fn describe(self) -> &'static str {
        match (self.sums, self.is_double_log) {
            (false, false) => "maximum of log(1 + relu(x))",
            (false, true) => "maximum of log(1 + log(1 + relu(x)))",
            (true, false) => "sum of log(1 + relu(x))",
            (true, true) => "sum of log(1 + log(1 + relu(x)))",
        }
    }

    /// The weights of `width` vocabulary entries from the logits of a sequence, `(n, width)`.
    fn pool(self, logits: &[f32], width: usize) -> Vec<f32> {
        let mut pooled = vec![0f32; width];
        for logits in logits.chunks_exact(width) {
            for (pooled, &logit) in pooled.iter_mut().zip(logits) {
                // NaN is kept, unlike by f32::max: it is an error of the model.
                match self.sums {
                    true if logit <= 0.0 => {}
                    true => *pooled += self.weight(logit),
                    false if logit > *pooled || logit.is_nan() => *pooled = logit,
                    false => {}
                }
            }
        }
        if !self.sums {
            // The weight is a monotonic function of the logit.
            pooled.iter_mut().filter(|x| **x != 0.0).for_each(|x| *x = self.weight(*x));
        }
        pooled
    }

    /// The weight of a logit.
    fn weight(self, logit: f32) -> f32 {
        let weight = if logit.is_nan() { logit } else { logit.max(0.0).ln_1p() };
        if self.is_double_log { weight.ln_1p() } else { weight }
    }
}

#[cfg(test)]
mod tests {
    use super::SpladeSpec;

    #[test]
    fn weights_are_pooled_logarithms_of_positive_logits() {
        let logits = [1.0, -1.0, f32::NAN, 3.0, -2.0, 1.0];
        let max = SpladeSpec::default().pool(&logits, 3);
        assert_eq!(max[..2], [3f32.ln_1p(), 0.0]);
        assert!(max[2].is_nan(), "an error of the model is not hidden");
        let sum = SpladeSpec { sums: true, is_double_log: true }.pool(&logits, 3);
        assert_eq!(sum[0], 1f32.ln_1p().ln_1p() + 3f32.ln_1p().ln_1p());
        assert!(sum[2].is_nan());
    }
}
