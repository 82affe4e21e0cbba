//! The order in which a GEMM on tiles visits the K blocks of its panels. Pure: numbers in, numbers out.

use std::ops::Range;

use super::blocking::{stays_in_l2, tile_kc};

/// The visits of the tile micro-kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileOrder {
    /// K steps of all inputs.
    k_steps: usize,
    /// K steps of a block; the last one may be shorter.
    block_steps: usize,
    k_blocks: usize,
    panels: usize,
    /// Whether all panels are visited for one K block before the next K block, or else all K blocks for one
    /// panel before the next panel.
    pub panels_inside: bool,
}

impl TileOrder {
    /// The order for `rows` rows of `x` in `parts` bf16 parts, and weights of `weight_parts`.
    pub(super) fn new(rows: usize, k_steps: usize, panels: usize, parts: usize, weight_parts: usize) -> Self {
        let block_steps = k_steps.div_ceil(k_steps.div_ceil(tile_kc(weight_parts)));
        let k_blocks = k_steps.div_ceil(block_steps);
        let panels_inside = parts > 1 && !stays_in_l2(rows, k_steps, parts);
        TileOrder { k_steps, block_steps, k_blocks, panels, panels_inside }
    }

    /// The blocks of accumulators that are in memory between the K blocks of their outputs: none if there is
    /// only one, else one for every row block, and with `panels_inside` for every panel.
    pub(super) fn partial_blocks(self, row_blocks: usize) -> usize {
        let panels = if self.panels_inside { self.panels } else { 1 };
        if self.k_blocks > 1 { row_blocks * panels } else { 0 }
    }

    /// The first of those of a panel; `None` if there are none.
    pub(super) fn first_partial_block(self, panel: usize, row_blocks: usize) -> Option<usize> {
        (self.k_blocks > 1).then_some(if self.panels_inside { panel * row_blocks } else { 0 })
    }

    /// The K steps and the panel index of each visit.
    pub(super) fn visits(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        (0..self.k_blocks * self.panels).map(move |visit| {
            let (k_block, panel) = if self.panels_inside {
                (visit / self.panels, visit % self.panels)
            } else {
                (visit % self.k_blocks, visit / self.k_blocks)
            };
            let first = k_block * self.block_steps;
            (first..self.k_steps.min(first + self.block_steps), panel)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_visited_panel_by_panel_unless_the_rows_would_leave_l2() {
        let few_rows: Vec<_> = TileOrder::new(32, 24, 2, 3, 1).visits().collect();
        assert_eq!(few_rows, [(0..12, 0), (12..24, 0), (0..12, 1), (12..24, 1)]);
        let many_rows: Vec<_> = TileOrder::new(1024, 24, 2, 3, 1).visits().collect();
        assert_eq!(many_rows, [(0..12, 0), (0..12, 1), (12..24, 0), (12..24, 1)]);
    }

    #[test]
    fn outputs_have_partial_sums_of_their_own_between_k_blocks() {
        for (rows, k_steps, blocks, firsts) in
            [(32, 12, 0, [None, None]), (32, 24, 5, [Some(0), Some(0)]), (1024, 24, 10, [Some(0), Some(5)])]
        {
            let order = TileOrder::new(rows, k_steps, 2, 3, 1);
            assert_eq!(order.partial_blocks(5), blocks, "{rows} {k_steps}");
            assert_eq!([0, 1].map(|panel| order.first_partial_block(panel, 5)), firsts, "{rows} {k_steps}");
        }
    }
}
