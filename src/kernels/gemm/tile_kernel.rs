//! The tile micro-kernel: 32 rows of `x` by a panel of 32 outputs, with the accumulators in four tiles.
//!
//! While the tile unit multiplies one block, the accumulators of the block before are stored between its
//! first dot products, and the vector unit applies the epilogue to the block before that, some rows at a
//! time:
//!
//! ```text
//!              time ──►
//! tile unit    │ multiply 1 │ multiply 2 │ multiply 3 │            │            │
//! tile stores  │            │ store 1    │ store 2    │ store 3    │            │
//! vector unit  │            │            │ epilogue 1 │ epilogue 2 │ epilogue 3 │
//! ```
//!
//! Tests compare the bits with those of `in_sequence`, which multiplies, stores and finishes one block after
//! another.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::blocking::{MAX_PARTS, TILE_MR, TILE_NR, TILES_PER_PANEL};
use super::convert::{BF16_PER_TILE_ROW, GroupScale, TILE_ROWS_PER_GROUP};
use super::epilogue::{AccumulatorRows, BlockEpilogue, Epilogue, F32Rows, Results, TileRows};
use super::layout::{INT8_TILE_GROUP, OperandFormat};
use super::lhs::Lhs;
use super::output::OutputBlock;
use super::packed_matrix::PackedMatrix;
use super::prefetch::Prefetch;
use super::visit_order::TileOrder;
use crate::activation::Activation;
use crate::isa::{Isa, Kernel, TileUnit, define_runners};
use crate::simd::Simd;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::tiles::amx::Amx;
#[cfg(feature = "emulated-tiles")]
use crate::tiles::emulated::EmulatedTiles;
use crate::tiles::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// Int8 groups in flight: each accumulates into a tile of its own, so that no dot product waits for the one
/// before.
const GROUPS_IN_FLIGHT: usize = 4;

/// Runs a GEMM on the tile unit of the ISA of `weights`. `driver::gemm` has checked the operands.
pub(super) fn gemm(
    x: Lhs,
    weights: &PackedMatrix,
    panels: Range<usize>,
    epilogue: &Epilogue,
    output: Output,
) {
    match weights.isa.tile_unit() {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => {
            // SAFETY: an `Isa` with this tile unit is made only after `amx::is_available` has returned true.
            // The tiles are released before this function returns, and the kernel calls no code that uses
            // tiles, so this thread has no other value of this type.
            let tiles = unsafe { Amx::new() };
            weights.isa.run_beside_amx(TileGemm { x, weights, panels, epilogue, output, tiles });
        }
        #[cfg(feature = "emulated-tiles")]
        Some(TileUnit::Emulated) => {
            let tiles = EmulatedTiles::default();
            TileGemm { x, weights, panels, epilogue, output, tiles }.run_portable();
        }
        None => unreachable!("a matrix is packed into tiles only for an ISA with a tile unit"),
    }
}

/// The kernel of a GEMM in an operand format of tiles.
struct TileGemm<'a, 'b, T> {
    x: Lhs<'a>,
    weights: &'a PackedMatrix,
    panels: Range<usize>,
    epilogue: &'a Epilogue<'a>,
    output: Output<'a, 'b>,
    tiles: T,
}

impl<T: Tiles> Kernel for TileGemm<'_, '_, T> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.weights.layout.format {
            OperandFormat::Bf16Tiles { parts, weight_parts } => match (parts, weight_parts) {
                (1, _) => self.bf16::<S, 1, 1>(s),
                (2, 1) => self.bf16::<S, 2, 1>(s),
                (2, _) => self.bf16::<S, 2, 2>(s),
                (_, 1) => self.bf16::<S, MAX_PARTS, 1>(s),
                (_, 2) => self.bf16::<S, MAX_PARTS, 2>(s),
                (_, _) => self.bf16::<S, MAX_PARTS, MAX_PARTS>(s),
            },
            _ => self.int8(s),
        }
    }
}

impl<T: Tiles> TileGemm<'_, '_, T> {
    /// GEMM of `P` bf16 parts of `x` and `Q` of the weights. Between the K blocks of an output its
    /// accumulators are kept in memory.
    #[inline(always)]
    fn bf16<S: Simd, const P: usize, const Q: usize>(self, s: S) {
        let TileGemm { x, weights, panels, epilogue, output, mut tiles } = self;
        let mut pending = PendingEpilogue::new(weights, x.rows, &panels, epilogue, output);
        let k_steps = weights.layout.inputs.div_ceil(BF16_PER_TILE_ROW);
        let order = TileOrder::new(x.rows, k_steps, panels.len(), P, Q);
        let row_blocks = x.rows.div_ceil(TILE_MR);
        let mut partial_sums = vec![AccumulatorBlock::ZERO; order.partial_blocks(row_blocks)];
        // One pointer for all blocks: those of the previous block are written while the next one is computed.
        let partial_blocks = partial_sums.as_mut_ptr();
        // Two blocks: the tiles are stored to one while the epilogue is applied to the other.
        let mut blocks = [const { MaybeUninit::<AccumulatorBlock>::uninit() }; 2];
        let mut current = 0;
        let mut in_tiles = InTiles { to: blocks[1].as_mut_ptr().cast(), finished: None };
        for (k_block, index) in order.visits() {
            let panel = panels.start + index;
            let first_partial = order.first_partial_block(index, row_blocks);
            let (_, calls) = pending.divide(k_block.len() * part_pairs(P, Q).len());
            let visits = row_blocks * calls;
            let mut prefetch = prefetch_next(weights, panel, &k_block, k_steps, order.panels_inside, visits);
            for first in (0..x.rows).step_by(TILE_MR) {
                let rows = TILE_MR.min(x.rows - first);
                // In bounds: there is a block for every row block, and with `panels_inside` for every panel.
                let partial = first_partial
                    .map(|block| partial_blocks.wrapping_add(block + first / TILE_MR).cast::<u8>());
                let micro_kernel = Bf16MicroKernel {
                    a: x.elements[first * x.stride..].as_ptr().cast(),
                    a_second: TILE_ROWS * x.stride * size_of::<u32>(),
                    b: weights.panel(panel).as_ptr().cast(),
                    k_steps: k_block.clone(),
                    partial_sums: partial.filter(|_| k_block.start > 0).map(<*mut u8>::cast_const),
                    previous: in_tiles.to,
                };
                // SAFETY: `driver::gemm` has checked that `x` has whole groups of 16 rows in this format, so
                // 32 rows can be read at `a` if `rows > 16`; the panel has all K steps. `partial_sums` and
                // `previous` point to `AccumulatorBlock`s, of 32 × 32 f32 each, and partial sums are read
                // only after an earlier K block has written them. The epilogue is not applied to `previous`
                // yet.
                unsafe {
                    if rows > TILE_ROWS {
                        micro_kernel.run::<S, T, P, Q, true>(s, &mut tiles, &mut prefetch, &mut pending);
                    } else {
                        micro_kernel.run::<S, T, P, Q, false>(s, &mut tiles, &mut prefetch, &mut pending);
                    }
                }
                pending.replace(in_tiles);
                // The accumulators of all but the last K block go back to memory.
                in_tiles = match partial.filter(|_| k_block.end < k_steps) {
                    Some(to) => InTiles { to, finished: None },
                    None => {
                        let to = blocks[current].as_mut_ptr().cast();
                        current = 1 - current;
                        InTiles { to, finished: Some((first..first + rows, panel)) }
                    }
                };
            }
        }
        // SAFETY: `in_tiles.to` points to an `AccumulatorBlock` that the epilogue is not applied to yet.
        unsafe { Bf16MicroKernel::store_accumulators(&mut tiles, in_tiles.to) };
        pending.replace(in_tiles);
        pending.apply(TILE_MR);
    }

    /// GEMM of int8.
    #[inline(always)]
    fn int8<S: Simd>(self, s: S) {
        let TileGemm { x, weights, panels, epilogue, output, mut tiles } = self;
        let mut pending = PendingEpilogue::new(weights, x.rows, &panels, epilogue, output);
        // Two blocks: one is written while the epilogue is applied to the other.
        let mut blocks = [AccumulatorBlock::ZERO; 2];
        let mut current = 0;
        let visits = x.rows.div_ceil(TILE_ROWS) * TILES_PER_PANEL;
        for panel in panels {
            let mut prefetch = prefetch_next(weights, panel, &(0..x.groups), x.groups, false, visits);
            for first in (0..x.rows).step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(x.rows - first);
                let block = &mut blocks[current].0;
                for tile in 0..TILES_PER_PANEL {
                    let micro_kernel = Int8MicroKernel {
                        a: x.elements[first * x.stride..].as_ptr().cast(),
                        a_scales: x.scales[first * x.groups..].as_ptr(),
                        groups: x.groups,
                        b: weights.panel(panel).as_ptr(),
                        tile,
                    };
                    // SAFETY: `driver::gemm` has checked that `x` has whole groups of 16 rows in this format,
                    // and `LhsBuffer::convert` has made a scale for each of them; the panel has all groups.
                    unsafe { micro_kernel.run(s, &mut tiles, block) };
                    prefetch.advance(s);
                    pending.apply(TILE_ROWS / TILES_PER_PANEL);
                }
                let finished = Some((first..first + rows, panel));
                pending.replace(InTiles { to: block.as_mut_ptr().cast(), finished });
                current = 1 - current;
            }
        }
        pending.apply(TILE_MR);
    }
}

/// The accumulators of 32 rows and one panel, row-major and aligned, so that every tile row is a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct AccumulatorBlock([[f32; TILE_NR]; TILE_MR]);

impl AccumulatorBlock {
    const ZERO: AccumulatorBlock = AccumulatorBlock([[0.0; TILE_NR]; TILE_MR]);
}

/// The accumulators that are in the tiles: they are stored while the next block is computed.
struct InTiles {
    /// Where they are stored: an [`AccumulatorBlock`].
    to: *mut u8,
    /// The rows and the panel, if no K block is left.
    finished: Option<(Range<usize>, usize)>,
}

/// Where a GEMM stores its results.
pub(super) enum Output<'a, 'b> {
    /// A block of f32.
    Block(&'a mut OutputBlock<'b>),
    /// Tiles of the given number of bf16 parts, a K step for each panel: the left operand of the next GEMM.
    Tiles {
        /// The first tile.
        to: *mut u16,
        /// u16 from the tiles of 16 rows to those of the next 16.
        group: usize,
        parts: usize,
    },
}

/// The block whose epilogue is applied while later blocks are computed.
struct PendingEpilogue<'a> {
    isa: Isa,
    weights: &'a PackedMatrix,
    /// The results of the first row and of the panel `first_panel`.
    to: Results,
    first_panel: usize,
    /// The current block.
    block: BlockEpilogue<'a>,
    /// Its rows that are left.
    left: Range<usize>,
    /// Maximum calls per block.
    calls: usize,
}

impl<'a> PendingEpilogue<'a> {
    fn new(
        weights: &'a PackedMatrix,
        rows: usize,
        panels: &Range<usize>,
        epilogue: &'a Epilogue<'a>,
        output: Output,
    ) -> Self {
        let to = match output {
            Output::Block(block) => Results::F32(F32Rows { to: block.data, stride: block.stride }),
            Output::Tiles { to, group, parts: 1 } => Results::Bf16(TileRows { to, group }),
            Output::Tiles { to, group, parts: 2 } => Results::Bf16x2(TileRows { to, group }),
            Output::Tiles { to, group, .. } => Results::Bf16x3(TileRows { to, group }),
        };
        let columns = weights.columns(panels.clone());
        let accumulators = AccumulatorRows { from: std::ptr::null(), stride: TILE_NR, to };
        let accuracy = weights.layout.format.accuracy();
        let block = BlockEpilogue::new(epilogue, rows, columns, weights.outputs, accuracy, accumulators);
        let (parts, _) = weights.layout.format.parts();
        let calls = epilogue_calls(epilogue.activation, parts);
        PendingEpilogue { isa: weights.isa, weights, to, first_panel: panels.start, block, left: 0..0, calls }
    }

    /// Slots from one call to the next, and calls per block, for a block with this number of slots.
    #[inline(always)]
    fn divide(&self, slots: usize) -> (usize, usize) {
        let slots_per_call = slots.div_ceil(self.calls);
        (slots_per_call, slots.div_ceil(slots_per_call))
    }

    /// The results of a block that begins with `row`, a multiple of 16. In bounds: the output has this row
    /// and panel.
    fn results(&self, row: usize, panel: usize) -> Results {
        let panel = panel - self.first_panel;
        fn tiles<const P: usize>(rows: TileRows<P>, row: usize, panel: usize) -> TileRows<P> {
            let offset = row / TILE_ROWS * rows.group + panel * P * TILE_BYTES / size_of::<u16>();
            TileRows { to: rows.to.wrapping_add(offset), ..rows }
        }
        match self.to {
            Results::F32(F32Rows { to, stride }) => {
                Results::F32(F32Rows { to: to.wrapping_add(row * stride + panel * TILE_NR), stride })
            }
            Results::Bf16(rows) => Results::Bf16(tiles(rows, row, panel)),
            Results::Bf16x2(rows) => Results::Bf16x2(tiles(rows, row, panel)),
            Results::Bf16x3(rows) => Results::Bf16x3(tiles(rows, row, panel)),
        }
    }

    /// Applies the epilogue to the rest of the current block and makes another one current, whose
    /// accumulators have been stored in rows of [`TILE_NR`].
    #[inline(always)]
    fn replace(&mut self, block: InTiles) {
        self.apply(TILE_MR);
        let Some((rows, panel)) = block.finished else { return };
        let accumulators = AccumulatorRows {
            from: block.to.cast_const().cast(),
            stride: TILE_NR,
            to: self.results(rows.start, panel),
        };
        let columns = self.weights.columns(panel..panel + 1);
        // SAFETY: `block.to` has `TILE_NR` accumulators in each of these rows, which stay unchanged until the
        // epilogue has been applied to them. The results have these rows and columns and are valid for
        // writes.
        unsafe { self.block.replace(accumulators, rows.start, rows.len(), columns) };
        self.left = 0..rows.len();
    }

    /// Applies the epilogue to up to `rows` rows.
    #[inline(always)]
    fn apply(&mut self, rows: usize) {
        if !self.left.is_empty() {
            let end = self.left.end.min(self.left.start + rows);
            // SAFETY: these rows are left, so the block has them.
            unsafe { self.block.apply(self.isa, self.left.start..end) };
            self.left.start = end;
        }
    }
}

/// Prefetches what follows a K block of a panel: with `panels_inside` the same K block of the next panel,
/// else the next K block of this panel or the first of the next one. `advance` is called `visits` times.
fn prefetch_next(
    weights: &PackedMatrix,
    panel: usize,
    k_block: &Range<usize>,
    k_steps: usize,
    panels_inside: bool,
    visits: usize,
) -> Prefetch {
    // In packed elements, not in tiles: int8 groups also store their scales.
    let offset = |step: usize| weights.layout.panel * step / k_steps;
    let (next, first) = if panels_inside || k_block.end == k_steps {
        (panel + 1, if panels_inside { k_block.start } else { 0 })
    } else {
        (panel, k_block.end)
    };
    if next == weights.panels() {
        return Prefetch::new(&[], visits);
    }
    Prefetch::new(&weights.panel(next)[offset(first)..offset(k_steps.min(first + k_block.len()))], visits)
}

/// Computes 32 × 32 accumulators of bf16 dot products.
pub(super) struct Bf16MicroKernel {
    /// The tiles of 16 rows.
    pub a: *const u8,
    /// Bytes from `a` to the tiles of the next 16 rows.
    pub a_second: usize,
    /// The panel.
    pub b: *const u8,
    /// K steps, of 32 inputs each.
    pub k_steps: Range<usize>,
    /// AccumulatorRows to start from; if there are none, they start from 0.
    pub partial_sums: Option<*const u8>,
    /// Memory for the accumulators of the previous block, which are still in the tiles.
    pub previous: *mut u8,
}

/// The pairs of parts of `x` and of the weights that are multiplied. From one pair to the next only one part
/// changes, and every part of `x` is loaded once. The order does not depend on the parts of the weights:
/// without those that are 0 the sums have the same bits.
const fn part_pairs(parts: usize, weight_parts: usize) -> &'static [(usize, usize)] {
    match (parts, weight_parts) {
        (1, _) => &[(0, 0)],
        (2, 1) => &[(1, 0), (0, 0)],
        (2, _) => &[(1, 0), (0, 0), (0, 1)],
        (_, 1) => &[(2, 0), (1, 0), (0, 0)],
        (_, 2) => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 0)],
        (_, _) => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)],
    }
}

/// Bytes of a row of an [`AccumulatorBlock`].
const BLOCK_ROW_BYTES: usize = TILE_NR * size_of::<f32>();

/// Maximum calls of the epilogue per block, for `parts` parts of `x`. A call costs some dozen cycles, so that
/// a cheap epilogue is applied in fewer of them.
fn epilogue_calls(activation: Activation, parts: usize) -> usize {
    match activation {
        Activation::Gelu => 32,
        Activation::Identity if parts == 1 => 8,
        _ => 16,
    }
}

/// What the vector unit does beside the tile unit: in *slots*, one after the dot products of every pair of
/// parts. No more than about one slot's dot products wait in the processor, so that whatever takes longer
/// than those keeps the tile unit waiting.
struct Beside<'a, 'b> {
    prefetch: &'a mut Prefetch,
    pending: &'a mut PendingEpilogue<'b>,
    /// Slots from one call of the epilogue to the next.
    slots_per_call: usize,
    rows_per_call: usize,
    /// Slots up to the next call.
    left: usize,
}

impl<'a, 'b> Beside<'a, 'b> {
    /// For a block with this number of slots.
    #[inline(always)]
    fn new(slots: usize, prefetch: &'a mut Prefetch, pending: &'a mut PendingEpilogue<'b>) -> Self {
        let (slots_per_call, calls) = pending.divide(slots);
        let rows_per_call = TILE_MR.div_ceil(calls);
        Beside { prefetch, pending, slots_per_call, rows_per_call, left: slots_per_call }
    }

    /// Uses the next slot.
    #[inline(always)]
    fn take_slot<S: Simd>(&mut self, s: S) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.slots_per_call;
            self.prefetch.advance(s);
            self.pending.apply(self.rows_per_call);
        }
    }
}

impl Bf16MicroKernel {
    /// Multiplies `P` parts of 16 rows, or of 32 if `TWO`, by the `Q` parts of the panel, and leaves the
    /// accumulators in the tiles. The accumulators of the previous block are stored between the first dot
    /// products: tile stores one after the other would keep the tile unit waiting. After some dot products
    /// rows of the pending block are finished.
    ///
    /// # Safety
    /// `a` is valid for reads of the tiles of 16 rows in all K steps, and if `TWO` also at `a_second`; `b` of
    /// a panel with these K steps. `partial_sums` is valid for reads of an initialised [`AccumulatorBlock`],
    /// once the previous accumulators are stored. `previous` is valid for writes of an [`AccumulatorBlock`],
    /// which `pending` does not read.
    #[inline(always)]
    unsafe fn run<S: Simd, T: Tiles, const P: usize, const Q: usize, const TWO: bool>(
        self,
        s: S,
        tiles: &mut T,
        prefetch: &mut Prefetch,
        pending: &mut PendingEpilogue,
    ) {
        let Range { start, end } = self.k_steps;
        let slots = (end - start) * part_pairs(P, Q).len();
        let mut beside = Beside::new(slots, prefetch, pending);
        // SAFETY: `start..end` are the K steps that the operands have by the contract of this function, which
        // is also that of `step`.
        unsafe {
            self.step::<S, T, P, Q, TWO, true>(s, tiles, start, Some(&mut beside));
            for k_step in start + 1..end {
                self.step::<S, T, P, Q, TWO, false>(s, tiles, k_step, Some(&mut beside));
            }
        }
    }

    /// [`Bf16MicroKernel::run`] without an epilogue.
    ///
    /// # Safety
    /// As [`Bf16MicroKernel::run`].
    #[inline(always)]
    pub(super) unsafe fn steps<S: Simd, T: Tiles, const P: usize, const Q: usize, const TWO: bool>(
        self,
        s: S,
        tiles: &mut T,
    ) {
        let Range { start, end } = self.k_steps;
        // SAFETY: these are the K steps that the operands have by the contract of this function.
        unsafe {
            self.step::<S, T, P, Q, TWO, true>(s, tiles, start, None);
            for k_step in start + 1..end {
                self.step::<S, T, P, Q, TWO, false>(s, tiles, k_step, None);
            }
        }
    }

    /// Multiplies one K step, and uses the slots between its dot products. With `FIRST` each accumulator tile
    /// is first stored for the previous block, and begun anew.
    ///
    /// # Safety
    /// As [`Bf16MicroKernel::run`], for this K step.
    #[inline(always)]
    unsafe fn step<S: Simd, T: Tiles, const P: usize, const Q: usize, const TWO: bool, const FIRST: bool>(
        &self,
        s: S,
        tiles: &mut T,
        k_step: usize,
        mut beside: Option<&mut Beside>,
    ) {
        // SAFETY: a K step of 16 rows has `P` tiles and one of the panel `Q · TILES_PER_PANEL`, which are
        // readable by the contract of this function; `i` is below `P` and `j` below `Q`.
        unsafe {
            let a = self.a.add(k_step * P * TILE_BYTES);
            let b = self.b.add(k_step * Q * TILES_PER_PANEL * TILE_BYTES);
            let mut loaded = (P, Q);
            for (n, &(i, j)) in part_pairs(P, Q).iter().enumerate() {
                let begin = FIRST && n == 0;
                let (a, b) = (a.add(i * TILE_BYTES), b.add(j * TILES_PER_PANEL * TILE_BYTES));
                if loaded.1 != j {
                    tiles.load::<6>(b, TILE_ROW_BYTES);
                }
                if loaded.0 != i {
                    tiles.load_streamed::<4>(a, TILE_ROW_BYTES);
                }
                if loaded.1 != j {
                    tiles.load::<7>(b.add(TILE_BYTES), TILE_ROW_BYTES);
                }
                if TWO && loaded.0 != i {
                    tiles.load_streamed::<5>(a.add(self.a_second), TILE_ROW_BYTES);
                }
                if begin {
                    self.begin::<T, 0>(tiles);
                }
                tiles.dot_bf16::<0, 4, 6>();
                if begin {
                    self.begin::<T, 1>(tiles);
                }
                tiles.dot_bf16::<1, 4, 7>();
                if begin {
                    self.begin::<T, 2>(tiles);
                }
                if TWO {
                    tiles.dot_bf16::<2, 5, 6>();
                }
                if begin {
                    self.begin::<T, 3>(tiles);
                }
                if TWO {
                    tiles.dot_bf16::<3, 5, 7>();
                }
                if let Some(beside) = &mut beside {
                    beside.take_slot(s);
                }
                loaded = (i, j);
            }
        }
    }

    /// Stores accumulator tile `C` of the previous block, and loads its partial sums or sets it to 0.
    ///
    /// # Safety
    /// As [`Bf16MicroKernel::run`].
    #[inline(always)]
    unsafe fn begin<T: Tiles, const C: usize>(&self, tiles: &mut T) {
        // SAFETY: tile `C` is a quarter of an `AccumulatorBlock`, which is writable at `previous` and
        // readable at `partial_sums` by the contract of this function.
        unsafe {
            tiles.store::<C>(self.previous.add(quarter(C)), BLOCK_ROW_BYTES);
            match self.partial_sums {
                Some(from) => tiles.load::<C>(from.add(quarter(C)), BLOCK_ROW_BYTES),
                None => tiles.zero::<C>(),
            }
        }
    }

    /// Stores the accumulator tiles.
    ///
    /// # Safety
    /// `to` is valid for writes of an [`AccumulatorBlock`].
    #[inline(always)]
    pub(super) unsafe fn store_accumulators<T: Tiles>(tiles: &mut T, to: *mut u8) {
        // SAFETY: the four tiles are the quarters of an `AccumulatorBlock`, which is writable by the contract
        // of this function.
        unsafe {
            tiles.store::<0>(to.add(quarter(0)), BLOCK_ROW_BYTES);
            tiles.store::<1>(to.add(quarter(1)), BLOCK_ROW_BYTES);
            tiles.store::<2>(to.add(quarter(2)), BLOCK_ROW_BYTES);
            tiles.store::<3>(to.add(quarter(3)), BLOCK_ROW_BYTES);
        }
    }
}

/// The byte offset of accumulator tile `tile` in an [`AccumulatorBlock`].
const fn quarter(tile: usize) -> usize {
    tile / TILES_PER_PANEL * TILE_ROWS * BLOCK_ROW_BYTES + tile % TILES_PER_PANEL * TILE_ROW_BYTES
}

/// Computes the 16 × 16 accumulators of 16 rows and one tile of a panel, group by group.
struct Int8MicroKernel {
    /// The tiles of the rows.
    a: *const u8,
    /// `(16, groups)` scales of the rows.
    a_scales: *const GroupScale,
    groups: usize,
    /// The panel.
    b: *const u32,
    /// Index of the tile in the panel.
    tile: usize,
}

/// The exact i32 sums of one group.
#[repr(C, align(64))]
struct GroupSums([[u32; TILE_ROWS]; TILE_ROWS]);

impl Int8MicroKernel {
    /// Adds the sums of all groups, multiplied by their scales, and writes them to the columns of the tile.
    ///
    /// # Safety
    /// `a` is valid for reads of the tiles of 16 rows, `a_scales` of `16 · groups` scales, `b` of a panel of
    /// `groups` groups.
    #[inline(always)]
    unsafe fn run<S: Simd, T: Tiles>(&self, s: S, tiles: &mut T, to: &mut [[f32; TILE_NR]; TILE_MR]) {
        let mut accumulators = [[s.splat(0.0); TILE_ROWS]; 4];
        let vectors = TILE_ROWS / S::LANES;
        // Not zeroed, which would take a twentieth of the time: the tiles are stored to it first.
        let mut group_sums = [const { MaybeUninit::<GroupSums>::uninit() }; GROUPS_IN_FLIGHT];
        for first in (0..self.groups).step_by(GROUPS_IN_FLIGHT) {
            let count = GROUPS_IN_FLIGHT.min(self.groups - first);
            // SAFETY: `first + i < groups` for every `i < count`, so the tiles and the scales of both
            // operands are readable by the contract of this function. A tile has been stored to
            // `group_sums[i]` before it is read.
            unsafe {
                let b = |i: usize| self.b.add((first + i) * INT8_TILE_GROUP);
                macro_rules! multiply_groups {
                    ($($i:literal: $c:literal $a:literal $b:literal)*) => {
                        // The same part of all groups, then the next part, so that no dot product waits for
                        // the one before.
                        for part in 0..TILE_ROWS_PER_GROUP {
                            $(if $i < count {
                                if part == 0 {
                                    tiles.zero::<$c>();
                                }
                                let a = self.a.add(((first + $i) * TILE_ROWS_PER_GROUP + part) * TILE_BYTES);
                                let b = b($i).add(2 * TILE_NR).cast::<u8>();
                                let b = b.add((part * TILES_PER_PANEL + self.tile) * TILE_BYTES);
                                tiles.load_streamed::<$a>(a, TILE_ROW_BYTES);
                                tiles.load::<$b>(b, TILE_ROW_BYTES);
                                tiles.dot_int8::<$c, $a, $b>();
                            })*
                        }
                        $(if $i < count {
                            tiles.store::<$c>(group_sums[$i].as_mut_ptr().cast(), TILE_ROW_BYTES);
                        })*
                    };
                }
                multiply_groups!(0: 0 4 6  1: 1 5 7  2: 2 4 6  3: 3 5 7);
                for (i, group_sums) in group_sums.iter().enumerate().take(count) {
                    let group_sums = group_sums.assume_init_ref();
                    for (vector, accumulators) in accumulators.iter_mut().enumerate().take(vectors) {
                        let start = vector * S::LANES;
                        let column = self.tile * TILE_ROWS + start;
                        let scales = s.load(b(i).add(column).cast());
                        let sums_of_weights = s.load_u32(b(i).add(TILE_NR + column));
                        for (row, sums) in group_sums.0.iter().enumerate() {
                            let GroupScale { scale, zero_point } =
                                *self.a_scales.add(row * self.groups + first + i);
                            let exact = s.load_u32(sums.as_ptr().add(start));
                            let exact = s.add_product_i16(exact, s.splat_u32(zero_point), sums_of_weights);
                            let accumulator = &mut accumulators[row];
                            // Exact, too: these are integers below 2²⁴.
                            let scale = s.mul(s.splat(scale), scales);
                            *accumulator = s.fma(s.i32_to_f32(exact), scale, *accumulator);
                        }
                    }
                }
            }
        }
        for (vector, accumulators) in accumulators.iter().enumerate().take(vectors) {
            for (row, accumulator) in accumulators.iter().enumerate() {
                s.store_at(&mut to[row], self.tile * TILE_ROWS + vector * S::LANES, *accumulator);
            }
        }
    }
}

#[cfg(all(test, feature = "emulated-tiles"))]
mod tests {
    use super::*;
    use crate::gemm::{GemmType, LhsBuffer};
    use crate::isa::Isa;

    /// A [`TileGemm`] whose blocks are multiplied, stored and finished one after another.
    struct InSequence<'a, 'b>(TileGemm<'a, 'b, EmulatedTiles>);

    impl Kernel for InSequence<'_, '_> {
        type Output = ();

        define_runners!();

        fn run<S: Simd>(self, s: S) {
            match self.0.weights.layout.format.parts() {
                (1, _) => in_sequence::<S, 1, 1>(self.0, s),
                (2, 1) => in_sequence::<S, 2, 1>(self.0, s),
                (2, _) => in_sequence::<S, 2, 2>(self.0, s),
                (_, 1) => in_sequence::<S, MAX_PARTS, 1>(self.0, s),
                (_, 2) => in_sequence::<S, MAX_PARTS, 2>(self.0, s),
                (_, _) => in_sequence::<S, MAX_PARTS, MAX_PARTS>(self.0, s),
            }
        }
    }

    /// [`TileGemm::bf16`] without overlap.
    fn in_sequence<S: Simd, const P: usize, const Q: usize>(gemm: TileGemm<EmulatedTiles>, s: S) {
        let TileGemm { x, weights, panels, epilogue, output, mut tiles } = gemm;
        let mut pending = PendingEpilogue::new(weights, x.rows, &panels, epilogue, output);
        let k_steps = weights.layout.inputs.div_ceil(BF16_PER_TILE_ROW);
        let order = TileOrder::new(x.rows, k_steps, panels.len(), P, Q);
        let row_blocks = x.rows.div_ceil(TILE_MR);
        // One for each output, whether its K blocks follow each other or not.
        let mut sums = vec![AccumulatorBlock::ZERO; row_blocks * panels.len()];
        for (k_block, index) in order.visits() {
            let panel = panels.start + index;
            for first in (0..x.rows).step_by(TILE_MR) {
                let rows = TILE_MR.min(x.rows - first);
                let sums: *mut u8 = (&raw mut sums[index * row_blocks + first / TILE_MR]).cast();
                let mut before = AccumulatorBlock::ZERO;
                let micro_kernel = Bf16MicroKernel {
                    a: x.elements[first * x.stride..].as_ptr().cast(),
                    a_second: TILE_ROWS * x.stride * size_of::<u32>(),
                    b: weights.panel(panel).as_ptr().cast(),
                    k_steps: k_block.clone(),
                    partial_sums: (k_block.start > 0).then_some(sums.cast_const()),
                    // What the tiles hold has been stored.
                    previous: (&raw mut before).cast(),
                };
                // SAFETY: `x` has whole groups of 16 rows, and the panel all K steps. `sums` and `before` are
                // `AccumulatorBlock`s.
                unsafe {
                    if rows > TILE_ROWS {
                        micro_kernel.steps::<S, EmulatedTiles, P, Q, true>(s, &mut tiles);
                    } else {
                        micro_kernel.steps::<S, EmulatedTiles, P, Q, false>(s, &mut tiles);
                    }
                    Bf16MicroKernel::store_accumulators(&mut tiles, sums);
                }
                if k_block.end == k_steps {
                    pending.replace(InTiles { to: sums, finished: Some((first..first + rows, panel)) });
                    pending.apply(TILE_MR);
                }
            }
        }
    }

    /// Values between -1 and 1.
    fn values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as i32 as f32 / i32::MAX as f32
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn overlap_does_not_change_bits() {
        let isa = Isa::emulated_tiles();
        // One row, both sides of a tile and of a block, more blocks than one; one K block and several; panels
        // outside and inside.
        for (rows, inputs, outputs) in
            [(1, 32, 32), (16, 64, 40), (17, 200, 96), (33, 900, 64), (700, 800, 64)]
        {
            for gemm_type in [GemmType::Bf16, GemmType::F32, GemmType::Bf16x3] {
                let (x, weight) = (values(rows * inputs, 1), values(outputs * inputs, 2));
                let (bias, residual) = (values(outputs, 3), values(rows * outputs, 4));
                let weights = PackedMatrix::pack(isa, gemm_type, &weight, outputs, inputs);
                let mut buffer = LhsBuffer::default();
                let x = buffer.convert(&weights, &x, inputs, rows);
                let epilogue = Epilogue {
                    bias: &bias,
                    activation: Activation::Gelu,
                    residual: &residual,
                    ..Epilogue::default()
                };
                let run = |is_in_sequence: bool| {
                    let mut data = vec![0.0; rows * outputs];
                    let mut block = OutputBlock::whole(&mut data, outputs);
                    let (panels, output) = (0..weights.panels(), Output::Block(&mut block));
                    let (weights, epilogue) = (&weights, &epilogue);
                    let tiles = EmulatedTiles::default();
                    let gemm = TileGemm { x, weights, panels, epilogue, output, tiles };
                    if is_in_sequence {
                        InSequence(gemm).run_portable()
                    } else {
                        gemm.run_portable()
                    }
                    data.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                };
                assert!(run(false) == run(true), "({rows}, {inputs}) by {outputs} outputs, {gemm_type:?}");
            }
        }
    }
}
