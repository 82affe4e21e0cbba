//! A batch of sequences without padding.

use anyhow::{Result, ensure};

use super::Numbering;

/// The tokens of `N` sequences, concatenated: sequence `i` has the tokens `cu_seqlens[i]..cu_seqlens[i + 1]`.
/// `T` is the number of all tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaggedBatch {
    ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    cu_seqlens: Vec<usize>,
    key_lengths: Option<Vec<usize>>,
}

impl RaggedBatch {
    /// Concatenates sequences, each given as its token ids and its token type ids.
    ///
    /// # Errors
    /// If there is no sequence, a sequence is empty, or it has not as many token type ids as tokens.
    pub fn new<'a>(sequences: impl IntoIterator<Item = (&'a [u32], &'a [u32])>) -> Result<Self> {
        let mut batch =
            RaggedBatch { ids: vec![], token_type_ids: vec![], cu_seqlens: vec![0], key_lengths: None };
        for (ids, token_type_ids) in sequences {
            ensure!(!ids.is_empty(), "a sequence in a batch has no tokens");
            ensure!(
                ids.len() == token_type_ids.len(),
                "a sequence has {} tokens, but {} token type ids",
                ids.len(),
                token_type_ids.len()
            );
            batch.ids.extend_from_slice(ids);
            batch.token_type_ids.extend_from_slice(token_type_ids);
            batch.cu_seqlens.push(batch.ids.len());
        }
        ensure!(!batch.ids.is_empty(), "a batch has no sequences");
        Ok(batch)
    }

    /// Limits the keys of attention to the first tokens of each sequence, `(N)`: no token attends to the
    /// others.
    ///
    /// # Errors
    /// If a sequence would have no key, or has not as many tokens.
    pub fn with_key_lengths(mut self, key_lengths: Vec<usize>) -> Result<Self> {
        ensure!(
            key_lengths.len() + 1 == self.cu_seqlens.len()
                && self.lengths().zip(&key_lengths).all(|(n, keys)| (1..=n).contains(keys)),
            "key lengths {key_lengths:?} do not fit the sequences of the batch"
        );
        self.key_lengths = Some(key_lengths);
        Ok(self)
    }

    /// These tokens, each as a sequence of its own: the batch for the hidden states of
    /// `Encoder::forward_selected`.
    ///
    /// # Panics
    /// If the batch does not have one of the tokens.
    pub fn select(&self, tokens: &[u32]) -> Self {
        let of = |values: &[u32]| tokens.iter().map(|token| values[*token as usize]).collect();
        RaggedBatch {
            ids: of(&self.ids),
            token_type_ids: of(&self.token_type_ids),
            cu_seqlens: (0..=tokens.len()).collect(),
            key_lengths: None,
        }
    }

    /// Token ids, `(T)`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Token type ids, `(T)`.
    pub fn token_type_ids(&self) -> &[u32] {
        &self.token_type_ids
    }

    /// Cumulative sequence lengths, `(N + 1)`: 0, then the end of each sequence.
    pub fn cu_seqlens(&self) -> &[usize] {
        &self.cu_seqlens
    }

    /// The number of tokens of each sequence that are keys of attention, its first ones, `(N)`; `None`: all
    /// tokens are.
    pub fn key_lengths(&self) -> Option<&[usize]> {
        self.key_lengths.as_deref()
    }

    /// The length of each sequence in tokens, `(N)`.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.cu_seqlens.windows(2).map(|bounds| bounds[1] - bounds[0])
    }

    /// The length of the longest sequence in tokens.
    pub fn max_seqlen(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// The factor on each token embedding in a model that was trained with token dropout, where 0.8 of 15 %
    /// of the tokens had none: 0 for the mask token, and for others of the same sequence the share of tokens
    /// with an embedding in training by that in the sequence (Rives et al. 2021).
    pub fn token_dropout(&self, mask_token: u32) -> Vec<f32> {
        const TRAINED: f32 = 1.0 - 0.15 * 0.8;
        let mut factors = Vec::with_capacity(self.ids.len());
        for range in self.cu_seqlens.windows(2) {
            let ids = &self.ids[range[0]..range[1]];
            let masks = ids.iter().filter(|id| **id == mask_token).count();
            let factor = TRAINED / (1.0 - masks as f32 / ids.len() as f32);
            factors.extend(ids.iter().map(|id| if *id == mask_token { 0.0 } else { factor }));
        }
        factors
    }

    /// Position ids, `(T)`, counted within each sequence.
    pub fn position_ids(&self, numbering: Numbering) -> Vec<u32> {
        let mut position_ids = Vec::with_capacity(self.ids.len());
        for bounds in self.cu_seqlens.windows(2) {
            match numbering {
                Numbering::FromZero => position_ids.extend(0..(bounds[1] - bounds[0]) as u32),
                Numbering::AfterPadding(padding) => {
                    let mut last = padding;
                    position_ids.extend(self.ids[bounds[0]..bounds[1]].iter().map(|id| {
                        if *id == padding {
                            return padding;
                        }
                        last += 1;
                        last
                    }));
                }
            }
        }
        position_ids
    }
}
