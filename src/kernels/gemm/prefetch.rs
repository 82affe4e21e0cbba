//! Prefetching of the weights that a micro-kernel multiplies next.

use super::cache_line::LINE_ELEMENTS;
use crate::simd::Simd;

/// Weights that are prefetched into L2 while others are multiplied; L1 has no room for them. A few cache lines at a time: with more than
/// the core has miss buffers for, the products would wait.
pub(super) struct Prefetch {
    next: *const u32,
    /// Cache lines that are left.
    lines: usize,
    /// Cache lines per call of `advance`.
    lines_per_visit: usize,
}

impl Prefetch {
    /// Divides the weights among `visits` calls of [`Prefetch::advance`].
    pub(super) fn new(weights: &[u32], visits: usize) -> Self {
        let lines = weights.len().div_ceil(LINE_ELEMENTS);
        Prefetch { next: weights.as_ptr(), lines, lines_per_visit: lines.div_ceil(visits.max(1)) }
    }

    /// Prefetches the cache lines of one visit.
    #[inline(always)]
    pub(super) fn advance<S: Simd>(&mut self, s: S) {
        let lines = self.lines_per_visit.min(self.lines);
        self.lines -= lines;
        for _ in 0..lines {
            s.prefetch_l2(self.next);
            self.next = self.next.wrapping_add(LINE_ELEMENTS);
        }
    }
}
