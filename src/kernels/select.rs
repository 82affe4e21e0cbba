//! Selecting the few scores of many that reach a threshold.

use super::isa::{Isa, Kernel, define_runners};
use super::simd::Simd;

/// Vectors that are compared before a branch: nearly always none of their scores reaches its threshold.
const VECTORS_PER_BRANCH: usize = 8;

/// Appends to `found` every `i` for which `scores[i] · scale + offset` is not below `thresholds[i]`; NaN is
/// not below. Rounding may decide either way where the two are equal.
///
/// # Panics
/// If the lengths differ.
pub fn reaching_each(
    isa: Isa,
    scores: &[f32],
    (scale, offset): (f32, f32),
    thresholds: &[f32],
    found: &mut Vec<u32>,
) {
    assert_eq!(scores.len(), thresholds.len(), "there is a threshold for every score");
    isa.run(ReachingEach { scores, scale, offset, thresholds, found });
}

struct ReachingEach<'a> {
    scores: &'a [f32],
    scale: f32,
    offset: f32,
    thresholds: &'a [f32],
    found: &'a mut Vec<u32>,
}

impl Kernel for ReachingEach<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { scores, scale, offset, thresholds, found } = self;
        let (scales, offsets) = (s.splat(scale), s.splat(offset));
        for start in (0..scores.len()).step_by(VECTORS_PER_BRANCH * S::LANES) {
            let end = scores.len().min(start + VECTORS_PER_BRANCH * S::LANES);
            let mut reached = s.splat(0.0);
            for at in (start..end).step_by(S::LANES) {
                let score = s.fma(s.load_at(scores, at, 0.0), scales, offsets);
                let threshold = s.load_at(thresholds, at, f32::INFINITY);
                reached = s.max(reached, s.select_less(score, threshold, s.splat(0.0), s.splat(1.0)));
            }
            if s.reduce_max(reached) > 0.0 {
                let reaches = |i: &usize| {
                    let below = scores[*i] * scale + offset < thresholds[*i];
                    !below
                };
                found.extend((start..end).filter(reaches).map(|i| i as u32));
            }
        }
    }
}

/// Appends to `found` every `i` for which `scores[i] · scales[i] + offsets[i]` is not below `threshold`; NaN
/// is not below. Rounding may decide either way where the two are equal.
///
/// # Panics
/// If the lengths differ.
pub fn reaching(
    isa: Isa,
    scores: &[f32],
    (scales, offsets): (&[f32], &[f32]),
    threshold: f32,
    found: &mut Vec<u32>,
) {
    assert_eq!((scores.len(), scores.len()), (scales.len(), offsets.len()), "the lengths are equal");
    isa.run(Reaching { scores, scales, offsets, threshold, found });
}

struct Reaching<'a> {
    scores: &'a [f32],
    scales: &'a [f32],
    offsets: &'a [f32],
    threshold: f32,
    found: &'a mut Vec<u32>,
}

impl Kernel for Reaching<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { scores, scales, offsets, threshold, found } = self;
        let thresholds = s.splat(threshold);
        for start in (0..scores.len()).step_by(VECTORS_PER_BRANCH * S::LANES) {
            let end = scores.len().min(start + VECTORS_PER_BRANCH * S::LANES);
            let mut reached = s.splat(0.0);
            for at in (start..end).step_by(S::LANES) {
                let (scale, offset) = (s.load_at(scales, at, 0.0), s.load_at(offsets, at, f32::NEG_INFINITY));
                let score = s.fma(s.load_at(scores, at, 0.0), scale, offset);
                reached = s.max(reached, s.select_less(score, thresholds, s.splat(0.0), s.splat(1.0)));
            }
            if s.reduce_max(reached) > 0.0 {
                let reaches = |i: &usize| {
                    let below = scores[*i] * scales[*i] + offsets[*i] < threshold;
                    !below
                };
                found.extend((start..end).filter(reaches).map(|i| i as u32));
            }
        }
    }
}
