//! What an answer says about texts that were truncated.

use serde::Serialize;

/// A text that was truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Truncated {
    /// The index of the text in the request, from 0.
    pub index: usize,
    /// Tokens of the whole text, including special tokens.
    pub tokens: usize,
    /// Tokens that were encoded.
    pub kept: usize,
}

/// Maximum entries of the header. The field of a body has all.
const MAX_ENTRIES: usize = 32;

/// The value of the header `x-truncated`: the first 32 texts, each as `index:tokens>kept`.
pub fn truncated_header(truncated: &[Truncated]) -> String {
    let entries = truncated.iter().take(MAX_ENTRIES);
    let entries = entries.map(|Truncated { index, tokens, kept }| format!("{index}:{tokens}>{kept}"));
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_first_texts() {
        let truncated = |index| Truncated { index, tokens: 1038, kept: 512 };
        assert_eq!(truncated_header(&[]), "");
        assert_eq!(truncated_header(&[truncated(0), truncated(7)]), "0:1038>512,7:1038>512");
        let many: Vec<Truncated> = (0..40).map(truncated).collect();
        let header = truncated_header(&many);
        assert!(header.ends_with(",31:1038>512"), "{header}");
        assert_eq!(header.split(',').count(), 32);
    }
}
