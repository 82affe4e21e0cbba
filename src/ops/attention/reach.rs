//! How far a head sees with a bias on its scores: beyond some distance, ALiBi (Press et al. 2022) leaves
//! hardly any weight.

use crate::kernels::gemm::{AttentionWindow, HeadRows};

/// The logarithm of 2⁻¹²⁶, the least normal f32, rounded down. The largest weight of a row is 1 before it is
/// divided by their sum: what is smaller than this adds nothing to the sum, and is 0 where the softmax has no
/// subnormal numbers.
const MIN_LOG_WEIGHT: f32 = -87.5;

/// An upper bound of the rounding of queries and keys to bf16, and of that of norms: a factor.
const ROUNDING: f32 = 1.02;

/// The part of `window` outside of which every weight is below 2⁻¹²⁶; a side where there are no such keys is
/// that of `window`.
///
/// A query at position `i` gives its own key a score of at least `bias(0) − p` and key `j` one of at most
/// `bias(j − i) + p`, where `p` is the largest `|scale · q · k|` that the norms of all queries and keys allow
/// (Cauchy and Schwarz). So key `j` is left out if `bias(j − i) − bias(0) + 2 p` is below [`MIN_LOG_WEIGHT`].
///
/// `bias` is that of one head, element `j − i + (bias.len() − 1) / 2`; every query has the key at its own
/// position.
pub(super) fn reach(
    window: AttentionWindow,
    bias: &[f32],
    queries: HeadRows,
    keys: HeadRows,
    scale: f32,
) -> AttentionWindow {
    let Some(farthest) = keys.rows.checked_sub(1).filter(|_| !bias.is_empty()) else { return window };
    let middle = (bias.len() - 1) / 2;
    // What lies beyond the first or the last position of the sequence does not matter. The norms are not
    // needed if the farthest keys could have a weight without them.
    let (before, after) = bias[middle - farthest..=middle + farthest].split_at(farthest);
    let own = after[0];
    let is_left_out = |bias: f32, products: f32| bias - own + 2.0 * products < MIN_LOG_WEIGHT;
    if !is_left_out(before.first().copied().unwrap_or(own), 0.0) && !is_left_out(after[farthest], 0.0) {
        return window;
    }
    // NaN and infinite values leave the window as it is.
    let products = ROUNDING * scale.abs() * max_norm(queries) * max_norm(keys);
    let beyond = |bias: &&f32| is_left_out(**bias, products);
    let narrowed = |side: usize, beyond: usize| if beyond == 0 { side } else { side.min(farthest - beyond) };
    AttentionWindow {
        left: narrowed(window.left, before.iter().take_while(beyond).count()),
        right: narrowed(window.right, after.iter().rev().take_while(beyond).count()),
    }
}

/// The largest Euclidean norm of a row; infinite or NaN if a value is.
fn max_norm(rows: HeadRows) -> f32 {
    const LANES: usize = 16;
    let squares = |row: &[f32]| {
        let mut sums = [0.0; LANES];
        for values in row.chunks(LANES) {
            for (sum, x) in sums.iter_mut().zip(values) {
                *sum += x * x;
            }
        }
        sums.iter().sum::<f32>()
    };
    let rows = rows.data.chunks(rows.stride).take(rows.rows).map(|row| squares(&row[..rows.dim]));
    // Not `f32::max`, which drops NaN.
    rows.fold(0.0f32, |max, x| if x > max || x.is_nan() { x } else { max }).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: AttentionWindow = AttentionWindow::FULL;

    /// −slope · |j − i| for sequences of up to `tokens` tokens.
    fn alibi(slope: f32, tokens: usize) -> Vec<f32> {
        (0..2 * tokens - 1).map(|i| -slope * (i as f32 - (tokens - 1) as f32).abs()).collect()
    }

    fn rows(data: &[f32], rows: usize) -> HeadRows<'_> {
        HeadRows { data, stride: data.len() / rows, rows, dim: data.len() / rows }
    }

    fn reach_of(window: AttentionWindow, bias: &[f32], x: &[f32], tokens: usize) -> AttentionWindow {
        reach(window, bias, rows(x, tokens), rows(x, tokens), 0.4)
    }

    #[test]
    fn keys_are_left_out_where_norms_cannot_make_up_for_the_bias() {
        let tokens = 400;
        // Rows of norm 5: scores are at most 10, and differ by at most 20.
        let x = [3.0, -4.0].repeat(tokens);
        let AttentionWindow { left, right } = reach_of(FULL, &alibi(0.5, 500), &x, tokens);
        assert_eq!((left, right), (215, 215), "2 · (87.5 + 20 · 1.02), rounded down");
        assert_eq!(reach_of(FULL, &alibi(0.25, 500), &x, tokens), FULL);
        // Nothing is known of these keys.
        for value in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut x = x.clone();
            x[401] = value;
            assert_eq!(reach_of(FULL, &alibi(0.5, 500), &x, tokens), FULL, "{value}");
        }
    }

    #[test]
    fn a_window_only_becomes_smaller() {
        let tokens = 400;
        let x = [0.0, 0.0].repeat(tokens);
        let causal = AttentionWindow { left: usize::MAX, right: 0 };
        assert_eq!(reach_of(causal, &alibi(0.5, 400), &x, tokens), AttentionWindow { left: 175, right: 0 });
        let narrow = AttentionWindow { left: 100, right: 100 };
        assert_eq!(reach_of(narrow, &alibi(0.5, 400), &x, tokens), narrow);
        assert_eq!(reach_of(FULL, &[], &x, tokens), FULL);
        assert_eq!(reach_of(FULL, &alibi(0.5, 1), &x[..2], 1), FULL);
        // A learned bias that falls on one side only, and grows again at the end.
        let mut bias = alibi(0.5, 400);
        bias[400..].fill(0.0);
        assert_eq!(reach_of(FULL, &bias, &x, tokens), AttentionWindow { left: 175, right: usize::MAX });
        bias[0] = 0.0;
        assert_eq!(reach_of(FULL, &bias, &x, tokens), FULL);
    }
}
