//! Micro-kernels over tiles: 32 rows by a panel of 32 outputs, their accumulators in four tiles.
//!
//! While the tiles of one block are multiplied, the vector unit finishes the block before: some of its rows after every step of inputs.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::epilogue::{Accumulators, Epilogue, Finish};
use super::format::{Format, Layout};
use super::lines::{BF16S, MAX_PARTS};
use super::{Block, PackedMatrix, Rows};
use crate::kernels::isa::{Isa, Kernel, TileUnit};
use crate::kernels::simd::Simd;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::kernels::tiles::amx::Amx;
use crate::kernels::tiles::model::Model;
use crate::kernels::tiles::{BYTES, ROW_BYTES, ROWS, Tiles};

/// Tiles of a panel.
pub(super) const TILES: usize = 2;
/// NR: outputs of a panel.
pub(super) const NR: usize = TILES * ROWS;
/// MR: rows of a block.
const MR: usize = 2 * ROWS;
/// KC in steps of 32 inputs, by the number of parts. One part is short of what L1 delivers: so much of a panel stays in L1 while the rows
/// pass. With more, products take longer than reading both operands from L2, where the rows of so many steps stay while all panels pass.
const KC: [usize; MAX_PARTS] = [12, 36, 24];
/// Tiles of sums that the products of one step go to by turns, so that none waits for the one before.
const CHAINS: usize = 4;

/// Rows of a matrix that are multiplied together: so much of them as is taken at a time stays in L2 while all panels pass.
pub(super) fn rows_at_once(layout: Layout) -> usize {
    const L2_BYTES: usize = 5 << 18;
    let steps = layout.inputs.div_ceil(layout.format.line_inputs()).max(1);
    let row = match layout.format {
        Format::Bf16Tiles { parts } if parts > 1 => ROW_BYTES * parts * steps.min(KC[parts - 1]),
        _ => layout.row * size_of::<u32>(),
    };
    (L2_BYTES / row.max(1)).clamp(4 * MR, 16 * MR) / MR * MR
}

/// As [`super::gemm`], which has checked the operands.
pub(super) fn gemm(
    x: Rows,
    weights: &PackedMatrix,
    panels: Range<usize>,
    epilogue: &Epilogue,
    to: &mut Block,
) {
    let gemm = Gemm { x, weights, panels, epilogue, to };
    match weights.isa.tile_unit() {
        // SAFETY: there is such an `Isa` only where tiles are available, and the tiles of this thread are released before `gemm` returns.
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => weights.isa.run(On { gemm, tiles: unsafe { Amx::new() } }),
        Some(TileUnit::Model) => weights.isa.run(On { gemm, tiles: Model::default() }),
        None => unreachable!("a matrix in tiles for an instruction set without"),
    }
}

struct Gemm<'a, 'b> {
    x: Rows<'a>,
    weights: &'a PackedMatrix,
    panels: Range<usize>,
    epilogue: &'a Epilogue<'a>,
    to: &'a mut Block<'b>,
}

/// A GEMM on a set of tiles.
struct On<'a, 'b, T> {
    gemm: Gemm<'a, 'b>,
    tiles: T,
}

impl<T: Tiles> Kernel for On<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.gemm.weights.layout.format {
            Format::Bf16Tiles { parts: 1 } => self.bf16::<S, 1>(s),
            Format::Bf16Tiles { parts: 2 } => self.bf16::<S, 2>(s),
            Format::Bf16Tiles { .. } => self.bf16::<S, MAX_PARTS>(s),
            _ => self.int8(s),
        }
    }
}

impl<T: Tiles> On<'_, '_, T> {
    /// Blocks of tiles of bf16, whose sums are kept between two parts of the inputs.
    #[inline(always)]
    fn bf16<S: Simd, const P: usize>(mut self, s: S) {
        let Gemm { x, weights, panels, epilogue, to } = self.gemm;
        let mut target = Pending::new(weights, &panels, epilogue, to);
        let steps = weights.layout.inputs.div_ceil(BF16S);
        let depth = steps.div_ceil(steps.div_ceil(KC[P - 1]));
        let parts = steps.div_ceil(depth);
        let (blocks_of_rows, count) = (x.count.div_ceil(MR), panels.len());
        // All panels for one part of the inputs, or all parts for one panel.
        let all_panels = P > 1;
        let mut sums: Vec<Accumulators32> = Vec::new();
        if parts > 1 {
            sums.resize(blocks_of_rows * if all_panels { count } else { 1 }, Accumulators32([[0.0; NR]; MR]));
        }
        let mut blocks = [const { MaybeUninit::<Accumulators32>::uninit() }; 2];
        let mut turn = 0;
        for visit in 0..parts * count {
            let (part, index) =
                if all_panels { (visit / count, visit % count) } else { (visit % parts, visit / parts) };
            let panel = panels.start + index;
            let part = part * depth..steps.min((part + 1) * depth);
            let kept_from = if all_panels { index * blocks_of_rows } else { 0 };
            let mut ahead =
                Prefetch::after(weights, panel, &part, steps, all_panels, blocks_of_rows * part.len());
            for first in (0..x.count).step_by(MR) {
                let rows = MR.min(x.count - first);
                // The sums of all but the last part are kept.
                let kept =
                    sums.get_mut(kept_from + first / MR).map(|block| block.0.as_mut_ptr().cast::<u8>());
                let block = blocks[turn].as_mut_ptr().cast::<u8>();
                let to = if part.end == steps { block } else { kept.unwrap_or(block) };
                let block = Bf16Block {
                    // `gemm` has checked that whole tiles of rows are there.
                    a: x.words[first * x.stride..].as_ptr().cast(),
                    a_next: ROWS * x.stride * size_of::<u32>(),
                    b: weights.panel(panel).as_ptr().cast(),
                    steps: part.clone(),
                    sums: kept.filter(|_| part.start > 0).map(<*mut u8>::cast_const),
                    to,
                };
                // SAFETY: the rows and the panel have this format and these steps, and a block takes 32 × 32 sums.
                unsafe {
                    match rows > ROWS {
                        true => block.multiply::<S, T, P, true>(s, &mut self.tiles, &mut ahead, &mut target),
                        false => {
                            block.multiply::<S, T, P, false>(s, &mut self.tiles, &mut ahead, &mut target)
                        }
                    }
                }
                if part.end == steps {
                    target.next(to, first..first + rows, panel);
                    turn = 1 - turn;
                }
            }
        }
        target.finish(MR);
    }

    /// Blocks of tiles of 8-bit integers.
    #[inline(always)]
    fn int8<S: Simd>(mut self, s: S) {
        let Gemm { x, weights, panels, epilogue, to } = self.gemm;
        let mut target = Pending::new(weights, &panels, epilogue, to);
        let mut blocks = [Accumulators32([[0.0; NR]; MR]); 2];
        let mut turn = 0;
        let visits = x.count.div_ceil(ROWS) * TILES;
        for panel in panels {
            let mut ahead = Prefetch::after(weights, panel, &(0..x.groups), x.groups, false, visits);
            for first in (0..x.count).step_by(ROWS) {
                let rows = ROWS.min(x.count - first);
                let block = &mut blocks[turn].0;
                for tile in 0..TILES {
                    let chain = Int8Chain {
                        // `gemm` has checked that whole tiles of rows are there, and their scales.
                        a: x.words[first * x.stride..].as_ptr().cast(),
                        a_scales: x.scales[first * x.groups..].as_ptr(),
                        groups: x.groups,
                        b: weights.panel(panel).as_ptr(),
                        tile,
                    };
                    // SAFETY: the rows and the panel have this format and these groups.
                    unsafe { chain.multiply(s, &mut self.tiles, block) };
                    ahead.some(s);
                    target.finish(ROWS / TILES);
                }
                target.next(block.as_mut_ptr().cast(), first..first + rows, panel);
                turn = 1 - turn;
            }
        }
        target.finish(MR);
    }
}

/// The accumulators of a block in rows, aligned so that a row of a tile is a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Accumulators32([[f32; NR]; MR]);

/// The block that is finished while the next one is computed.
struct Pending<'a> {
    isa: Isa,
    epilogue: &'a Epilogue<'a>,
    weights: &'a PackedMatrix,
    accumulators: Accumulators,
    first_row: usize,
    columns: Range<usize>,
    /// The output, and the first column in it.
    to: *mut f32,
    first_column: usize,
}

impl<'a> Pending<'a> {
    fn new(
        weights: &'a PackedMatrix,
        panels: &Range<usize>,
        epilogue: &'a Epilogue<'a>,
        to: &mut Block,
    ) -> Self {
        let none =
            Accumulators { from: to.data, from_stride: NR, to: to.data, to_stride: to.stride, rows: 0 };
        Pending {
            isa: weights.isa,
            epilogue,
            weights,
            accumulators: none,
            first_row: 0,
            columns: 0..0,
            to: to.data,
            first_column: weights.columns(panels.clone()).start,
        }
    }

    /// Takes on the accumulators of some rows and one panel, in rows of [`NR`].
    #[inline(always)]
    fn next(&mut self, from: *const u8, rows: Range<usize>, panel: usize) {
        self.finish(MR);
        self.first_row = rows.start;
        self.columns = self.weights.columns(panel..panel + 1);
        let at = rows.start * self.accumulators.to_stride + self.columns.start - self.first_column;
        self.accumulators.from = from.cast();
        // Inside of the block, which has these rows and columns.
        self.accumulators.to = self.to.wrapping_add(at);
        self.accumulators.rows = rows.len();
    }

    /// Finishes up to so many rows.
    #[inline(always)]
    fn finish(&mut self, rows: usize) {
        let left = self.accumulators.rows;
        let rows = rows.min(left);
        if rows == 0 {
            return;
        }
        let now = Accumulators { rows, ..self.accumulators };
        let (columns, outputs) = (self.columns.clone(), self.weights.outputs);
        let accuracy = self.weights.layout.format.accuracy();
        // SAFETY: `from` has rows of NR accumulators and `to` has room for these rows and columns, as `next` was told; they are apart.
        let finish = unsafe { Finish::new(self.epilogue, now, self.first_row, columns, outputs, accuracy) };
        self.isa.run(finish);
        let Accumulators { from, from_stride, to, to_stride, .. } = now;
        self.accumulators = Accumulators {
            from: from.wrapping_add(rows * from_stride),
            to: to.wrapping_add(rows * to_stride),
            rows: left - rows,
            ..now
        };
        self.first_row += rows;
    }
}

/// The panel after the one that is multiplied, on its way from L3 or memory to L2.
struct Prefetch {
    next: *const u32,
    /// Cache lines that are left, and those of a visit.
    lines: usize,
    each: usize,
}

impl Prefetch {
    /// Of what is multiplied after some steps of a panel: the same of the next panel, or else the next steps. So many visits are left.
    fn after(
        weights: &PackedMatrix,
        panel: usize,
        part: &Range<usize>,
        steps: usize,
        all_panels: bool,
        visits: usize,
    ) -> Self {
        let layout = weights.layout;
        // Groups of integers lie beside their scales, so in words and not in tiles.
        let words = |step: usize| layout.panel * step / steps;
        let (next, from) = match all_panels || part.end == steps {
            true => (panel + 1, if all_panels { part.start } else { 0 }),
            false => (panel, part.end),
        };
        let words =
            if next < weights.panels() { words(from)..words(steps.min(from + part.len())) } else { 0..0 };
        let lines = words.len().div_ceil(16);
        let next = if lines > 0 { weights.panel(next)[words].as_ptr() } else { std::ptr::null() };
        Prefetch { next, lines, each: lines.div_ceil(visits.max(1)) }
    }

    /// One visit's lines.
    #[inline(always)]
    fn some<S: Simd>(&mut self, s: S) {
        for _ in 0..self.each.min(self.lines) {
            s.prefetch_to_l2(self.next);
            self.next = self.next.wrapping_add(16);
        }
        self.lines -= self.each.min(self.lines);
    }
}

/// 32 × 32 sums of products of bf16.
struct Bf16Block {
    /// The tiles of 16 rows, and the bytes to those of the next 16.
    a: *const u8,
    a_next: usize,
    /// The panel.
    b: *const u8,
    /// Steps of 32 inputs.
    steps: Range<usize>,
    /// Sums to begin with; else with 0.
    sums: Option<*const u8>,
    to: *mut u8,
}

/// Which parts of both operands are multiplied, the smallest products first.
const fn products(parts: usize) -> &'static [(usize, usize)] {
    match parts {
        1 => &[(0, 0)],
        2 => &[(1, 0), (0, 1), (0, 0)],
        _ => &[(2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)],
    }
}

impl Bf16Block {
    /// Multiplies `P` parts of 16 rows, or of 32 if `TWO`, by the panel, and finishes some of the block before after every step.
    ///
    /// # Safety
    /// `a` is valid for reads of whole rows, `b` of a whole panel, `sums` of 32 × 32 f32; `to` is valid for writes of as many.
    #[inline(always)]
    unsafe fn multiply<S: Simd, T: Tiles, const P: usize, const TWO: bool>(
        self,
        s: S,
        tiles: &mut T,
        ahead: &mut Prefetch,
        before: &mut Pending,
    ) {
        const ROW: usize = NR * size_of::<f32>();
        let Bf16Block { a, a_next, b, steps, sums, to } = self;
        let rows_each = MR.div_ceil(steps.len());
        // SAFETY: all addresses are in the rows, the panel and the blocks of sums, as the caller says.
        unsafe {
            match sums {
                Some(sums) => {
                    tiles.load::<0>(sums, ROW);
                    tiles.load::<1>(sums.add(ROW_BYTES), ROW);
                    if TWO {
                        tiles.load::<2>(sums.add(ROWS * ROW), ROW);
                        tiles.load::<3>(sums.add(ROWS * ROW + ROW_BYTES), ROW);
                    }
                }
                None => {
                    tiles.zero::<0>();
                    tiles.zero::<1>();
                    tiles.zero::<2>();
                    tiles.zero::<3>();
                }
            }
            for step in steps {
                let (a, b) = (a.add(step * P * BYTES), b.add(step * P * TILES * BYTES));
                let mut loaded = (P, P);
                for &(i, j) in products(P) {
                    let (a, b) = (a.add(i * BYTES), b.add(j * TILES * BYTES));
                    if loaded.1 != j {
                        tiles.load::<6>(b, ROW_BYTES);
                    }
                    if loaded.0 != i {
                        tiles.load::<4>(a, ROW_BYTES);
                    }
                    tiles.dot_bf16::<0, 4, 6>();
                    if loaded.1 != j {
                        tiles.load::<7>(b.add(BYTES), ROW_BYTES);
                    }
                    tiles.dot_bf16::<1, 4, 7>();
                    if TWO {
                        if loaded.0 != i {
                            tiles.load::<5>(a.add(a_next), ROW_BYTES);
                        }
                        tiles.dot_bf16::<2, 5, 6>();
                        tiles.dot_bf16::<3, 5, 7>();
                    }
                    loaded = (i, j);
                }
                ahead.some(s);
                before.finish(rows_each);
            }
            tiles.store::<0>(to, ROW);
            tiles.store::<1>(to.add(ROW_BYTES), ROW);
            if TWO {
                tiles.store::<2>(to.add(ROWS * ROW), ROW);
                tiles.store::<3>(to.add(ROWS * ROW + ROW_BYTES), ROW);
            }
        }
    }
}

/// The products of 16 rows and one tile of a panel, group by group.
struct Int8Chain {
    /// The tiles of the rows.
    a: *const u8,
    /// For every row the scales of its groups.
    a_scales: *const f32,
    groups: usize,
    /// The panel.
    b: *const u32,
    /// Which tile of it.
    tile: usize,
}

/// The sums of one group, which are exact.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Exact([[u32; ROWS]; ROWS]);

impl Int8Chain {
    /// Writes the sums of all groups, by their scales, into the columns of the tile.
    ///
    /// # Safety
    /// `a` is valid for reads of 16 whole rows, `a_scales` of their scales, `b` of a whole panel.
    #[inline(always)]
    unsafe fn multiply<S: Simd, T: Tiles>(&self, s: S, tiles: &mut T, to: &mut [[f32; NR]; MR]) {
        const PANEL: usize = NR + TILES * BYTES / 4;
        let mut sums = [[s.splat(0.0); ROWS]; 4];
        let registers = ROWS / S::LANES;
        let mut exact = [Exact([[0; ROWS]; ROWS]); CHAINS];
        for first in (0..self.groups).step_by(CHAINS) {
            let count = CHAINS.min(self.groups - first);
            // SAFETY: all addresses are in the rows, their scales and the panel, as the caller says.
            unsafe {
                let b = |i: usize| self.b.add((first + i) * PANEL);
                macro_rules! chains {
                    ($($i:literal: $c:literal $a:literal $b:literal)*) => {
                        $(if $i < count {
                            tiles.zero::<$c>();
                            tiles.load::<$a>(self.a.add((first + $i) * BYTES), ROW_BYTES);
                            tiles.load::<$b>(b($i).add(NR).cast::<u8>().add(self.tile * BYTES), ROW_BYTES);
                            tiles.dot_int8::<$c, $a, $b>();
                        })*
                        $(if $i < count {
                            tiles.store::<$c>(exact[$i].0.as_mut_ptr().cast(), ROW_BYTES);
                        })*
                    };
                }
                chains!(0: 0 4 6  1: 1 5 7  2: 2 4 6  3: 3 5 7);
                for (i, exact) in exact.iter().enumerate().take(count) {
                    for (register, sums) in sums.iter_mut().enumerate().take(registers) {
                        let start = register * S::LANES;
                        let scales = s.load(b(i).add(self.tile * ROWS + start).cast());
                        for (row, exact) in exact.0.iter().enumerate() {
                            let scale = s.splat(*self.a_scales.add(row * self.groups + first + i));
                            let exact = s.to_f32(s.load_words(exact.as_ptr().add(start)));
                            let sum = &mut sums[row];
                            *sum = s.fma(exact, s.mul(scale, scales), *sum);
                        }
                    }
                }
            }
        }
        for (register, sums) in sums.iter().enumerate().take(registers) {
            for (row, sum) in sums.iter().enumerate() {
                s.store_at(&mut to[row], self.tile * ROWS + register * S::LANES, *sum);
            }
        }
    }
}
