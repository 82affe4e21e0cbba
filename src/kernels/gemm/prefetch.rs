//! Prefetching of the weights that a micro-kernel multiplies next.

use super::cache_line::LINE_ELEMENTS;
use crate::simd::Simd;

/// Weights that are prefetched into L2 while others are multiplied; L1 has no room for them. A few cache
/// lines at a time: with more than the core has miss buffers for, the products would wait.
pub(super) struct Prefetch {
    next: *const u32,
    /// Calls of `advance` that are left.
    visits: usize,
    /// Cache lines per call of `advance`.
    lines_per_visit: usize,
}

impl Prefetch {
    /// Divides the weights among at most `visits` calls of [`Prefetch::advance`].
    pub(super) fn new(weights: &[u32], visits: usize) -> Self {
        let lines = weights.len().div_ceil(LINE_ELEMENTS);
        let lines_per_visit = lines.div_ceil(visits.max(1)).max(1);
        Prefetch { next: weights.as_ptr(), visits: lines.div_ceil(lines_per_visit), lines_per_visit }
    }

    /// Prefetches the cache lines of one visit; in the last one maybe some after the weights, which costs
    /// less than counting lines would.
    #[inline(always)]
    pub(super) fn advance<S: Simd>(&mut self, s: S) {
        if self.visits == 0 {
            return;
        }
        self.visits -= 1;
        for _ in 0..self.lines_per_visit {
            s.prefetch_l2(self.next);
            self.next = self.next.wrapping_add(LINE_ELEMENTS);
        }
    }
}
