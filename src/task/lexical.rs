//! Lexical weights: the weight of each token of a text, by the arithmetic of FlagEmbedding's `M3Embedder`
//! (Chen et al. 2024, "BGE M3-Embedding", §3.2) and of the `GTEEmbedding` of gte-multilingual-base.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use candle_core::Tensor;

use crate::nn::{RaggedBatch, TaskHead, TokenHead};
use crate::text::Tokenizer;

/// The head of lexical weights.
pub(super) struct LexicalHead {
    head: TokenHead,
    /// Tokens without a weight, ascending: those that the tokenizer adds to a text, padding, and the token
    /// for what is not in the vocabulary.
    excluded: Vec<u32>,
}

impl LexicalHead {
    /// The head of a model that was loaded with one.
    pub(super) fn new(head: Option<TaskHead>, tokenizer: &Tokenizer) -> Result<Self> {
        let Some(TaskHead::TokenClassification(head)) = head else {
            bail!("the model was loaded without its lexical weights; please report this as a bug")
        };
        let mut excluded = tokenizer.encode("", None)?.ids;
        excluded.extend(tokenizer.unknown_token_id());
        excluded.extend(["<pad>", "[PAD]"].iter().filter_map(|token| tokenizer.token_id(token)));
        excluded.sort_unstable();
        excluded.dedup();
        Ok(LexicalHead { head, excluded })
    }

    /// The positive weights of the tokens of each of `N` sequences, by ascending id, from hidden states of
    /// `(T, H)`: the maximum of the logits of a token that is there several times.
    pub(super) fn weights(&self, batch: &RaggedBatch, hidden: &Tensor) -> Result<Vec<Vec<(u32, f32)>>> {
        let logits = self.head.forward(hidden)?.flatten_all()?.to_vec1::<f32>()?;
        let sequences = batch.cu_seqlens().windows(2).map(|bounds| bounds[0]..bounds[1]);
        let weights =
            sequences.map(|tokens| maxima(&batch.ids()[tokens.clone()], &logits[tokens], &self.excluded));
        Ok(weights.collect())
    }
}

/// The highest positive logit of each token that is not `excluded`, by ascending id.
fn maxima(ids: &[u32], logits: &[f32], excluded: &[u32]) -> Vec<(u32, f32)> {
    let mut weights = BTreeMap::<u32, f32>::new();
    for (&id, &logit) in ids.iter().zip(logits) {
        // NaN is kept: it is an error of the model.
        if excluded.binary_search(&id).is_err() && (logit > 0.0 || logit.is_nan()) {
            let weight = weights.entry(id).or_insert(logit);
            if logit > *weight || logit.is_nan() {
                *weight = logit;
            }
        }
    }
    weights.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::maxima;

    #[test]
    fn each_token_has_its_highest_positive_logit() {
        let (ids, logits) = ([0, 7, 5, 7, 7, 9, 2], [9.0, 1.0, 0.5, 2.0, -3.0, -1.0, 9.0]);
        assert_eq!(maxima(&ids, &logits, &[0, 1, 2]), [(5, 0.5), (7, 2.0)]);
        assert_eq!(maxima(&[7, 7], &[2.0, 1.0], &[]), [(7, 2.0)]);
        let nan = maxima(&[7, 7], &[f32::NAN, 1.0], &[]);
        assert!(nan[0].1.is_nan(), "an error of the model is not hidden");
    }
}
