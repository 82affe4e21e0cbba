//! The task head of rerankers that are causal language models: the logit of a token such as "yes" as the next
//! one, or its difference from that of another token, the log-odds of the two (Nogueira et al. 2020;
//! `LogitScore` of sentence-transformers).

use anyhow::Result;
use candle_core::Tensor;

use super::{Backend, ClassificationHead, Matrix, WeightSource};

/// The computation of a causal-LM head for the logits of one or two tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CausalLmSpec {
    /// The token whose logit is the score.
    pub true_token: u32,
    /// The token whose logit is subtracted from it.
    pub false_token: Option<u32>,
    /// Whether the matrix of the LM head is that of the token embeddings.
    pub is_tied: bool,
    /// What logits are divided by, before they are bounded.
    pub logit_divisor: f64,
    /// The bound `c` of logits, which are `c tanh(x / c)`; `None`: logits are not bounded.
    pub logit_cap: Option<f64>,
    /// Rows of the matrix.
    pub vocab_size: usize,
}

impl CausalLmSpec {
    /// Loads the rows of the tokens from `LAST.weight`, or `embeddings.token.weight`, of `(V, H)`. The
    /// difference of two logits is the product with the difference of their rows, so that the head is a
    /// linear layer of `(1, H)` at the last token; logits with a bound are computed each.
    ///
    /// # Errors
    /// If the source fails, or a token is not below `V`.
    pub(super) fn load(
        &self,
        source: &mut dyn WeightSource,
        last: &str,
        hidden_size: usize,
    ) -> Result<ClassificationHead> {
        let own = format!("{last}.weight");
        let name = if self.is_tied { "embeddings.token.weight" } else { own.as_str() };
        let table = source.table(name, self.vocab_size, hidden_size)?;
        let row = table.row(self.true_token)?.reshape((1, hidden_size))?;
        let rows = match self.false_token {
            None => row,
            Some(token) => {
                let other = table.row(token)?.reshape((1, hidden_size))?;
                if self.logit_cap.is_some() { Tensor::cat(&[row, other], 0)? } else { row.sub(&other)? }
            }
        };
        let rows = rows.affine(1.0 / self.logit_divisor, 0.0)?;
        ClassificationHead::at_last_token(Matrix::new(rows, &Backend::default())?, self.logit_cap)
    }
}
