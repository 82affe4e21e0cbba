//! What a picture shows: matrices over the tokens of one text.

use super::label;

/// Matrices over the `n` tokens of one text.
#[derive(Debug, Clone)]
pub struct HeatMaps {
    /// What is shown: the name of the model.
    pub title: String,
    /// The text, or both texts of a pair.
    pub text: String,
    /// The tokens, `(n)`.
    pub tokens: Vec<Token>,
    /// The names of the rows of matrices: `layer 0`.
    pub rows: Vec<String>,
    /// The names of the columns of matrices: `head 0`, `mean`.
    pub columns: Vec<String>,
    /// `(rows, columns, n, n)`: row `i` of a matrix has the weight of every key for query `i`.
    pub values: Vec<f32>,
    /// Whether the cells of a picture have their values as numbers.
    pub has_numbers: bool,
}

/// A token of a text.
#[derive(Debug, Clone)]
pub struct Token {
    /// The text of the token. It may have any characters.
    pub text: String,
    /// Whether it is a special token, such as `[CLS]`.
    pub is_special: bool,
}

impl HeatMaps {
    /// The matrix in this row and column, `(n, n)`.
    pub(super) fn matrix(&self, row: usize, column: usize) -> &[f32] {
        let cells = self.tokens.len().pow(2);
        &self.values[(row * self.columns.len() + column) * cells..][..cells]
    }

    /// Whether there is one matrix only.
    pub(super) fn is_single(&self) -> bool {
        self.rows.len() == 1 && self.columns.len() == 1
    }

    /// The labels of the tokens, each of at most `max_chars` characters.
    pub(super) fn labels(&self, max_chars: usize) -> Vec<String> {
        self.tokens.iter().map(|token| label::shortened(&label::visible(&token.text), max_chars)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{HeatMaps, Token};

    /// Uniform attention over these tokens in one layer and head.
    pub(crate) fn uniform(tokens: &[&str]) -> HeatMaps {
        let n = tokens.len();
        let token = |text: &&str| Token { text: (*text).into(), is_special: text.starts_with('[') };
        HeatMaps {
            title: "model".into(),
            text: "the text".into(),
            tokens: tokens.iter().map(token).collect(),
            rows: vec!["layer 0".into()],
            columns: vec!["head 0".into()],
            values: vec![1.0 / n as f32; n * n],
            has_numbers: false,
        }
    }
}
