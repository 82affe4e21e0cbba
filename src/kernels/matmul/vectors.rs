//! Micro-kernels over vectors: MR rows by a panel, their accumulators in registers.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use super::epilogue::{Accumulators, Epilogue, Finish};
use super::format::Format;
use super::{Block, GROUP, PackedMatrix, Rows};
use crate::kernels::isa::{Isa, Kernel};
use crate::kernels::math::Accuracy;
use crate::kernels::simd::Simd;

/// Rows of so many words that are multiplied together: they stay in L2 while all panels pass.
pub(super) fn rows_at_once(row: usize) -> usize {
    const BYTES: usize = 384 << 10;
    // Whole tiles in every set.
    (BYTES / (row.max(1) * size_of::<u32>())).clamp(48, 512) / 12 * 12
}

pub(super) struct Gemm<'a, 'b> {
    pub x: Rows<'a>,
    pub weights: &'a PackedMatrix,
    pub panels: Range<usize>,
    pub epilogue: &'a Epilogue<'a>,
    pub to: &'a mut Block<'b>,
}

impl Kernel for Gemm<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.weights.layout.format {
            Format::F32 { .. } => self.panels::<S, Words<AsF32>>(s),
            Format::Bf16 => self.panels::<S, Words<AsBf16>>(s),
            Format::Int8 => self.panels::<S, Groups>(s),
            Format::Bf16Tiles { .. } | Format::Int8Tiles => {
                unreachable!("tiles have a micro-kernel of their own")
            }
        }
    }
}

/// KC: words of a row whose products are summed in registers, before they are added to the sum of those before. The error of a sum grows
/// with the length of its parts, and a part of a panel stays in L1 while the rows pass.
const KC: usize = 192;
/// So few micro-tiles that the time goes into reading weights from L3 or memory: the next part of a panel is prefetched.
const FEW_TILES: usize = 8;
/// Lines of a matrix that L2 does not hold along with all else.
const FAR_LINES: usize = 2 << 10;

impl Gemm<'_, '_> {
    #[inline(always)]
    fn panels<S: Simd, P: Product<S>>(self, s: S) {
        let Gemm { x, weights, panels, epilogue, to } = self;
        let first_column = weights.columns(panels.clone()).start;
        let layout = weights.layout;
        let steps = (layout.panel / layout.width).div_ceil(P::step());
        let far = x.count <= FEW_TILES * S::ROWS && weights.lines.len() >= FAR_LINES;
        // In parts of one length, so that none is short.
        let depth = steps.div_ceil((steps * P::step()).div_ceil(KC));
        let parts = steps.div_ceil(depth);
        for (panel, part) in panels.flat_map(|panel| (0..parts).map(move |part| (panel, part))) {
            let steps = part * depth..steps.min((part + 1) * depth);
            let columns = weights.columns(panel..panel + 1);
            let weights = &weights.panel(panel)[..layout.panel];
            let words = steps.len() * P::step() * 2 * S::LANES;
            let next = weights.as_ptr().wrapping_add(steps.end * P::step() * 2 * S::LANES);
            let lines = if far { words.div_ceil(16).div_ceil(x.count.div_ceil(P::ROWS)) } else { 0 };
            let mut ahead = Prefetch { next, lines };
            let epilogue = (part + 1 == parts && !epilogue.is_empty()).then_some(epilogue);
            let mut row = 0;
            for (height, tiles) in tiles_of(x.count, P::ROWS).into_iter().filter(|(_, tiles)| *tiles > 0) {
                let rows = row..row + height * tiles;
                row = rows.end;
                // SAFETY: the block has these rows and the panel's columns, as `gemm` has checked.
                unsafe {
                    let stride = to.stride;
                    let to = to.data.add(rows.start * stride + columns.start - first_column);
                    let target = Target {
                        to,
                        stride,
                        row: rows.start,
                        columns: columns.clone(),
                        outputs: self.weights.outputs,
                        begins: part == 0,
                        epilogue,
                        accuracy: layout.format.accuracy(),
                        isa: self.weights.isa,
                    };
                    let (x, steps) = (x.part(rows), steps.clone());
                    macro_rules! heights {
                        ($($height:literal)*) => {
                            match height {
                                $($height if $height <= S::ROWS => {
                                    column::<S, P, $height>(s, x, weights, steps, target, &mut ahead)
                                })*
                                _ => unreachable!("a micro-tile of {height} rows"),
                            }
                        };
                    }
                    heights!(1 2 3 4 5 6 7 8 9 10 11 12)
                }
            }
        }
    }
}

/// Weights that micro-tiles prefetch for those after them.
struct Prefetch {
    next: *const u32,
    /// Cache lines that each micro-tile prefetches.
    lines: usize,
}

/// Heights of the micro-tiles that rows make up, and how many of each. The last two share what is left: low tiles wait for their own
/// sums.
fn tiles_of(rows: usize, most: usize) -> [(usize, usize); 3] {
    match (rows / most, rows % most) {
        (0, left) => [(left, 1), (0, 0), (0, 0)],
        (whole, 0) => [(most, whole), (0, 0), (0, 0)],
        (whole, left) => {
            let first = (most + left).div_ceil(2);
            [(most, whole - 1), (first, 1), (most + left - first, 1)]
        }
    }
}

/// Where micro-tiles go, and what becomes of them.
struct Target<'a> {
    to: *mut f32,
    stride: usize,
    /// The first row, as the epilogue counts them.
    row: usize,
    /// Outputs of the panel, and all there are.
    columns: Range<usize>,
    outputs: usize,
    /// Whether sums begin here, and do not go on from what lies there.
    begins: bool,
    /// What is done to the sums if these are the last parts.
    epilogue: Option<&'a Epilogue<'a>>,
    accuracy: Accuracy,
    isa: Isa,
}

/// Micro-tiles of `R` rows, one below the other.
///
/// # Safety
/// The rows make up such tiles and are for the panel, the panel has the steps, and `to` is valid for reads and writes of the
/// columns in each of the rows.
#[inline(always)]
unsafe fn column<S: Simd, P: Product<S>, const R: usize>(
    s: S,
    x: Rows,
    panel: &[u32],
    steps: Range<usize>,
    target: Target,
    ahead: &mut Prefetch,
) {
    let Target { mut to, stride, mut row, columns, outputs, begins, epilogue, accuracy, isa } = target;
    let width = columns.len();
    let mut x = Left {
        words: x.words.as_ptr(),
        stride: x.stride,
        scales: x.scales.as_ptr(),
        groups: x.groups,
        count: x.count,
    };
    while x.count > 0 {
        for _ in 0..ahead.lines {
            s.prefetch(ahead.next);
            ahead.next = ahead.next.wrapping_add(16);
        }
        let mut sums = [[s.splat(0.0); 2]; R];
        let partial = |r: usize, half: usize| match width.checked_sub(half * S::LANES) {
            // SAFETY: an earlier part has written `width` values in this row.
            Some(count) if count > 0 => unsafe { s.load_first(to.add(r * stride + half * S::LANES), count) },
            _ => s.splat(0.0),
        };
        if P::CONTINUES && !begins {
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = [partial(r, 0), partial(r, 1)];
            }
        }
        // SAFETY: `x` and the panel are as the caller says.
        let sums = unsafe { P::sums(s, x, panel, steps.clone(), sums) };
        for (r, mut sums) in sums.into_iter().enumerate() {
            if !P::CONTINUES && !begins {
                sums = [s.add(partial(r, 0), sums[0]), s.add(partial(r, 1), sums[1])];
            }
            // SAFETY: `to` is valid for writes of `width` values in this row.
            unsafe {
                let to = to.add(r * stride);
                s.store_first(to, sums[0], width);
                if width > S::LANES {
                    s.store_first(to.add(S::LANES), sums[1], width - S::LANES);
                }
            }
        }
        if let Some(epilogue) = epilogue {
            let (from, from_stride, to_stride) = (to.cast_const(), stride, stride);
            let accumulators = Accumulators { from, from_stride, to, to_stride, rows: R };
            // SAFETY: `to` is valid for reads and writes of the columns in these rows, which have just been written.
            let finish =
                unsafe { Finish::new(epilogue, accumulators, row, columns.clone(), outputs, accuracy) };
            // Called, not inlined: there is one for all heights of micro-tiles.
            isa.run(finish);
        }
        // Where none are left these may point past the end; nothing is read or written there.
        to = to.wrapping_add(R * stride);
        row += R;
        x.words = x.words.wrapping_add(R * x.stride);
        x.scales = x.scales.wrapping_add(R * x.groups);
        x.count -= R;
    }
}

/// The two registers of every row of a tile.
type Sums<S, const R: usize> = [[<S as Simd>::F; 2]; R];

/// The rows of `x` that are left.
#[derive(Clone, Copy)]
struct Left {
    words: *const u32,
    stride: usize,
    scales: *const f32,
    /// Scales of a row.
    groups: usize,
    count: usize,
}

impl Left {
    /// Where each of the next rows has its word `first`.
    ///
    /// # Safety
    /// There are `R` rows with such a word.
    #[inline(always)]
    unsafe fn starts<const R: usize>(self, first: usize) -> [*const u32; R] {
        // SAFETY: as the caller says.
        let starts = std::array::from_fn(|r| unsafe { self.words.add(r * self.stride + first) });
        // Knowing how they follow from each other, the compiler would work them out again at every step, which takes half
        // as many instructions as the products.
        black_box(starts)
    }
}

/// A format: how the sums of a micro-tile come about.
trait Product<S: Simd> {
    /// Whether the sums of a part go on from those before, and do not begin with 0.
    const CONTINUES: bool;
    /// MR: rows of a micro-tile.
    const ROWS: usize = S::ROWS;
    /// Words that are taken together.
    fn step() -> usize;

    /// Adds to the sums of `R` rows with the outputs of a panel the products of some steps.
    ///
    /// # Safety
    /// `x` has `R` rows, they and the panel are of this type and have these steps.
    unsafe fn sums<const R: usize>(
        s: S,
        x: Left,
        panel: &[u32],
        steps: Range<usize>,
        sums: Sums<S, R>,
    ) -> Sums<S, R>;
}

/// What becomes of two words that meet.
trait Dot<S: Simd> {
    type Operand: Copy;
    type Sum: Copy;
    /// Words that are taken without counting, which would take as long as some of their products; with more there would not
    /// be registers enough.
    const AT_ONCE: usize;
    fn splat(s: S, word: u32) -> Self::Operand;
    /// # Safety
    /// The pointer is good for a register of words.
    unsafe fn load(s: S, from: *const u32) -> Self::Operand;
    fn add(s: S, sum: Self::Sum, a: Self::Operand, b: Self::Operand) -> Self::Sum;
}

/// Adds to the sums of `R` rows the products of the words from number `words.start` on with those of the panel.
///
/// # Safety
/// The rows have these words, and the panel as many for each of its outputs.
#[inline(always)]
unsafe fn dots<S: Simd, D: Dot<S>, const R: usize>(
    s: S,
    rows: [*const u32; R],
    words: Range<usize>,
    mut panel: *const u32,
    mut sums: [[D::Sum; 2]; R],
) -> [[D::Sum; 2]; R] {
    let mut word = words.start;
    let whole = words.end - words.len() % D::AT_ONCE;
    macro_rules! until {
        ($end:expr, $count:expr) => {
            while word < $end {
                for step in 0..$count {
                    // SAFETY: as the caller says.
                    unsafe {
                        let weights = panel.add(step * 2 * S::LANES);
                        let weights = [D::load(s, weights), D::load(s, weights.add(S::LANES))];
                        for (row, sums) in rows.iter().zip(&mut sums) {
                            let x = D::splat(s, *row.add(word + step));
                            *sums = [D::add(s, sums[0], x, weights[0]), D::add(s, sums[1], x, weights[1])];
                        }
                    }
                }
                panel = panel.wrapping_add($count * 2 * S::LANES);
                word += $count;
            }
        };
    }
    until!(whole, D::AT_ONCE);
    until!(words.end, 1);
    sums
}

struct AsF32;

impl<S: Simd> Dot<S> for AsF32 {
    type Operand = S::F;
    type Sum = S::F;
    const AT_ONCE: usize = 4;

    #[inline(always)]
    fn splat(s: S, word: u32) -> S::F {
        s.splat(f32::from_bits(word))
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> S::F {
        // SAFETY: as the caller says; a word may be read as an f32.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    fn add(s: S, sum: S::F, a: S::F, b: S::F) -> S::F {
        s.fma(a, b, sum)
    }
}

/// Words that the instruction takes as they are.
macro_rules! dots_of_words {
    ($($name:ident: $sum:ident by $dot:ident, $at_once:literal at once;)*) => {
        $(struct $name;

        impl<S: Simd> Dot<S> for $name {
            type Operand = S::I;
            type Sum = S::$sum;
            const AT_ONCE: usize = $at_once;

            #[inline(always)]
            fn splat(s: S, word: u32) -> S::I {
                s.splat_word(word)
            }

            /// # Safety
            /// As the trait says.
            #[inline(always)]
            unsafe fn load(s: S, from: *const u32) -> S::I {
                // SAFETY: as the caller says.
                unsafe { s.load_words(from) }
            }

            #[inline(always)]
            fn add(s: S, sum: S::$sum, a: S::I, b: S::I) -> S::$sum {
                s.$dot(sum, a, b)
            }
        })*
    };
}

dots_of_words! {
    AsBf16: F by dot_bf16, 4 at once;
    AsBytes: I by dot_int8, 2 at once;
}

/// Sums to which every word adds its products.
struct Words<D>(PhantomData<D>);

impl<S: Simd, D: Dot<S, Sum = S::F>> Product<S> for Words<D> {
    const CONTINUES: bool = false;

    #[inline(always)]
    fn step() -> usize {
        1
    }

    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        x: Left,
        panel: &[u32],
        steps: Range<usize>,
        sums: Sums<S, R>,
    ) -> Sums<S, R> {
        // SAFETY: rows and panel are as long as the caller says.
        unsafe {
            let panel = panel.as_ptr().add(steps.start * 2 * S::LANES);
            dots::<S, D, R>(s, x.starts(0), steps, panel, sums)
        }
    }
}

/// Sums of groups, which are exact, by the scales of their groups.
struct Groups;

impl<S: Simd> Product<S> for Groups {
    /// Only one value a group is added.
    const CONTINUES: bool = true;
    /// A group has accumulators of its own beside those of all groups; both have to stay in registers.
    const ROWS: usize = S::ROWS / 2;

    /// A group, with its scales and what its sums begin with.
    #[inline(always)]
    fn step() -> usize {
        2 + GROUP / S::BYTES_PER_WORD
    }

    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        x: Left,
        panel: &[u32],
        steps: Range<usize>,
        mut sums: Sums<S, R>,
    ) -> Sums<S, R> {
        let words = GROUP / S::BYTES_PER_WORD;
        // SAFETY: rows, scales and panel are as long as the caller says.
        unsafe {
            let load = |from: *const u32| [s.load_words(from), s.load_words(from.add(S::LANES))];
            for g in steps {
                let scales = panel.as_ptr().add(g * (2 + words) * 2 * S::LANES);
                let begin = scales.add(2 * S::LANES);
                let exact = [load(begin); R];
                let rows = x.starts(g * words);
                let exact = dots::<S, AsBytes, R>(s, rows, 0..words, begin.add(2 * S::LANES), exact);
                let scales = [s.load(scales.cast()), s.load(scales.add(S::LANES).cast())];
                for (r, (sums, exact)) in sums.iter_mut().zip(exact).enumerate() {
                    let scale = s.splat(*x.scales.add(r * x.groups + g));
                    sums[0] = s.fma(s.to_f32(exact[0]), s.mul(scale, scales[0]), sums[0]);
                    sums[1] = s.fma(s.to_f32(exact[1]), s.mul(scale, scales[1]), sums[1]);
                }
            }
        }
        sums
    }
}
