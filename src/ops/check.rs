//! Checks of operands that several operations share.

use candle_core::Result;

/// Checks that `cu_seqlens` divides `tokens` tokens into sequences.
///
/// # Errors
/// If the offsets do not begin with 0, decrease, or do not end with `tokens`.
pub(super) fn check_cu_seqlens(cu_seqlens: &[usize], tokens: usize) -> Result<()> {
    if cu_seqlens.first() != Some(&0) || cu_seqlens.last() != Some(&tokens) || !cu_seqlens.is_sorted() {
        candle_core::bail!(
            "cu_seqlens must begin with 0, not decrease and end with the number of tokens, {tokens}"
        );
    }
    Ok(())
}

/// Checks that all indices are rows of a table of `rows` rows.
///
/// # Errors
/// If an index is not below `rows`.
pub(super) fn check_indices(indices: &[u32], rows: usize) -> Result<()> {
    match indices.iter().find(|index| **index as usize >= rows) {
        Some(index) => candle_core::bail!("index {index} is out of range for a table of {rows} rows"),
        None => Ok(()),
    }
}
