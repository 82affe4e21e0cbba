//! The order in which a GEMM visits the K blocks of its panels. Pure: numbers in, numbers out.

use std::ops::Range;

use super::blocking::{VECTOR_KC, VECTOR_L2_KC, stays_in_l2, tile_kc};

/// The visits of the vector micro-kernel. The K blocks are in *groups*, whose inputs stay in L2: all panels
/// are visited for a group before the next one, and all K blocks of a group for a panel before the next
/// panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct VectorOrder {
    /// K steps of all inputs.
    k_steps: usize,
    /// K steps of a block; the last one may be shorter.
    block_steps: usize,
    k_blocks: usize,
    /// K blocks of a group; the last one may have fewer.
    group: usize,
}

impl VectorOrder {
    /// `step_elements`: packed elements of a K step of an output. K blocks begin at the same inputs whatever
    /// follows, so that the sums of attention over the first keys of a sequence do not depend on how many
    /// there are. With `blocks_are_equal`, for sums that do not depend on the blocks, these have equal
    /// lengths.
    pub(super) fn new(k_steps: usize, step_elements: usize, blocks_are_equal: bool) -> Self {
        let block_steps = match blocks_are_equal {
            true => k_steps.div_ceil((k_steps * step_elements).div_ceil(VECTOR_KC)),
            false => VECTOR_KC / step_elements,
        };
        let k_blocks = k_steps.div_ceil(block_steps);
        let group = (VECTOR_L2_KC / (block_steps * step_elements)).max(1);
        VectorOrder { k_steps, block_steps, k_blocks, group }
    }

    /// The K blocks of each group.
    pub(super) fn groups(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.k_blocks).step_by(self.group).map(move |first| first..self.k_blocks.min(first + self.group))
    }

    /// The visits of a group to `panels`, in order: panel and K block, and those of the visit after it.
    pub(super) fn visits(
        self,
        panels: Range<usize>,
        group: Range<usize>,
    ) -> impl Iterator<Item = ((usize, usize), Option<(usize, usize)>)> {
        let next_group = (group.end < self.k_blocks).then_some((panels.start, group.end));
        let (count, blocks) = (panels.len() * group.len(), group.len());
        let visit = move |at: usize| (panels.start + at / blocks, group.start + at % blocks);
        (0..count).map(move |at| (visit(at), if at + 1 < count { Some(visit(at + 1)) } else { next_group }))
    }

    /// The K steps of a K block.
    pub(super) fn k_steps_of(self, k_block: usize) -> Range<usize> {
        k_block * self.block_steps..self.k_steps.min((k_block + 1) * self.block_steps)
    }

    /// The K steps of a group.
    pub(super) fn k_steps_of_group(self, group: &Range<usize>) -> Range<usize> {
        self.k_steps_of(group.start).start..self.k_steps_of(group.end - 1).end
    }

    /// Whether a K block is the last one of its outputs.
    pub(super) fn is_last(self, k_block: usize) -> bool {
        k_block + 1 == self.k_blocks
    }
}

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

    /// Panel and K block.
    type Block = (usize, usize);

    /// All visits of a vector order, and for each the one that it names as the next.
    fn visits(order: VectorOrder, panels: Range<usize>) -> Vec<(Block, Option<Block>)> {
        order.groups().flat_map(|group| order.visits(panels.clone(), group)).collect()
    }

    #[test]
    fn k_blocks_cover_all_k_steps_once() {
        for (step_elements, blocks_are_equal) in [(1, false), (18, true)] {
            for k_steps in [1, 2, 95, 96, 97, 191, 192, 193, 384, 385, 1000] {
                let order = VectorOrder::new(k_steps, step_elements, blocks_are_equal);
                let blocks: Vec<Range<usize>> =
                    order.groups().flatten().map(|block| order.k_steps_of(block)).collect();
                assert!(blocks.iter().cloned().flatten().eq(0..k_steps), "{k_steps}: {blocks:?}");
                assert!(blocks.iter().all(|steps| steps.len() * step_elements < VECTOR_KC + step_elements));
                let groups = order.groups().map(|group| order.k_steps_of_group(&group));
                assert!(groups.flatten().eq(0..k_steps), "{k_steps}");
                let last = order.groups().flatten().filter(|&block| order.is_last(block));
                assert!(last.eq([blocks.len() - 1]));
            }
        }
    }

    #[test]
    fn k_blocks_begin_at_the_same_inputs_or_have_equal_lengths() {
        let lengths = |order: VectorOrder| {
            order.groups().flatten().map(|block| order.k_steps_of(block).len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(VectorOrder::new(200, 1, false)), [192, 8]);
        assert_eq!(lengths(VectorOrder::new(200, 1, true)), [100, 100]);
    }

    #[test]
    fn a_group_passes_all_panels_before_the_next_one() {
        // Four K blocks in two groups.
        let order = VectorOrder::new(768, 1, false);
        let visited: Vec<(usize, usize)> = visits(order, 5..7).into_iter().map(|(visit, _)| visit).collect();
        assert_eq!(visited, [(5, 0), (5, 1), (6, 0), (6, 1), (5, 2), (5, 3), (6, 2), (6, 3)]);
    }

    #[test]
    fn a_visit_names_the_next_one() {
        for k_steps in [1, 192, 193, 1000] {
            let visits = visits(VectorOrder::new(k_steps, 1, false), 2..5);
            let next = visits.iter().skip(1).map(|(visit, _)| Some(*visit)).chain([None]);
            assert!(visits.iter().map(|(_, next)| *next).eq(next), "{k_steps}: {visits:?}");
        }
    }

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
