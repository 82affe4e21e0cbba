//! The order of scores.

use std::cmp::Reverse;

/// A key that sorts greater scores first and NaN last; −0 and 0 are equal.
pub fn descending(score: f32) -> Reverse<u32> {
    Reverse(match (score + 0.0).to_bits() {
        _ if score.is_nan() => 0,
        bits if bits >> 31 == 0 => bits | 1 << 31,
        bits => !bits,
    })
}

#[cfg(test)]
mod tests {
    use super::descending;

    #[test]
    fn greater_scores_are_first_and_nan_is_last() {
        let scores = [f32::INFINITY, 3.0, 0.5, 1e-40, 0.0, -1e-40, -2.5, f32::NEG_INFINITY, f32::NAN];
        assert!(scores.map(descending).is_sorted_by(|a, b| a < b));
        assert_eq!(descending(-0.0), descending(0.0));
        assert_eq!(descending(-f32::NAN), descending(f32::NAN));
    }
}
