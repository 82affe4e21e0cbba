//! Tiles: a few rows against a panel, their sums in registers.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use super::{Block, Compute, GROUP, PackedMatrix, Rows};
use crate::kernels::isa::Kernel;
use crate::kernels::simd::Simd;

/// Writes the product of rows with some panels, plus a bias for every output of the matrix if there is one. What is ready
/// is shown to `finish` while it is in the cache: the columns of a panel, and which outputs they are.
///
/// # Panics
/// If the block does not have the shape of the result, the bias not that of the outputs, or the rows are of another type.
pub fn multiply(
    x: Rows,
    weights: &PackedMatrix,
    panels: Range<usize>,
    bias: &[f32],
    to: &mut Block,
    finish: impl FnMut(&mut Block, Range<usize>),
) {
    let columns = weights.columns(panels.clone());
    assert!(panels.end <= weights.panels(), "there are such panels");
    assert_eq!((to.rows, to.columns), (x.count, columns.len()), "the result has this shape");
    assert!(bias.is_empty() || bias.len() == weights.outputs, "there is a bias an output");
    if x.count == 0 {
        return;
    }
    assert!((x.count - 1) * x.stride + weights.layout.row <= x.words.len(), "rows are whole");
    assert_eq!(x.scales.len(), x.count * weights.layout.scales(weights.compute), "rows have their scales");
    weights.isa.run(Multiply { x, weights, panels, bias, to, finish });
}

struct Multiply<'a, 'b, F> {
    x: Rows<'a>,
    weights: &'a PackedMatrix,
    panels: Range<usize>,
    bias: &'a [f32],
    to: &'a mut Block<'b>,
    finish: F,
}

impl<F: FnMut(&mut Block, Range<usize>)> Kernel for Multiply<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.weights.compute {
            Compute::Bf16 if S::FAST_BF16 => self.tiles::<S, Words<AsBf16>>(s),
            Compute::F32 | Compute::Bf16 => self.tiles::<S, Words<AsF32>>(s),
            Compute::Int8 => self.tiles::<S, Groups>(s),
        }
    }
}

/// Words of a panel, for each of its outputs, that are taken at a time: so many stay in the first cache while all rows of
/// `x` pass.
pub(super) const DEPTH: usize = 768;
/// The same where few rows meet weights that come from far: the time goes into reading them. While the rows pass over a part,
/// the next one is fetched, and more than this on its way at a time would hold up what is being read.
const SHORT_DEPTH: usize = 64;
/// So few tiles.
const FEW_TILES: usize = 8;
/// From so far: lines of a matrix that the second cache does not hold along with all else.
const FAR_LINES: usize = 2 << 10;

impl<F: FnMut(&mut Block, Range<usize>)> Multiply<'_, '_, F> {
    #[inline(always)]
    fn tiles<S: Simd, P: Product<S>>(self, s: S) {
        let Multiply { x, weights, panels, bias, to, mut finish } = self;
        let first_column = weights.columns(panels.clone()).start;
        let steps = (weights.layout.panel / weights.layout.width).div_ceil(P::step());
        let far = x.count <= FEW_TILES * S::ROWS && weights.lines.len() >= FAR_LINES;
        let most = if far { SHORT_DEPTH } else { DEPTH };
        // In parts of one length, so that none is short.
        let depth = steps.div_ceil((steps * P::step()).div_ceil(most));
        let (parts, count) = (steps.div_ceil(depth), panels.len());
        for turn in 0..parts * count {
            // Of many rows only a part stays in the second cache while all panels pass.
            let (part, panel) = if far { (turn % parts, turn / parts) } else { (turn / count, turn % count) };
            let (panel, steps) = (panels.start + panel, part * depth..steps.min((part + 1) * depth));
            let (begins, ends) = (part == 0, part + 1 == parts);
            let columns = weights.columns(panel..panel + 1);
            let bias = if bias.is_empty() || !ends { &[] } else { &bias[columns.clone()] };
            let weights = &weights.panel(panel)[..weights.layout.panel];
            let words = steps.len() * P::step() * 2 * S::LANES;
            let next = weights.as_ptr().wrapping_add(steps.end * P::step() * 2 * S::LANES);
            let lines = if far { words.div_ceil(16).div_ceil(x.count.div_ceil(S::ROWS)) } else { 0 };
            let mut ahead = Ahead { next, lines };
            let mut row = 0;
            for (height, tiles) in tiles_of(x.count, S::ROWS).into_iter().filter(|(_, tiles)| *tiles > 0) {
                let rows = row..row + height * tiles;
                row = rows.end;
                // SAFETY: the block has these rows and the panel's columns, as `multiply` has checked.
                unsafe {
                    let stride = to.stride;
                    let to = to.data.add(rows.start * stride + columns.start - first_column);
                    let target = Target { to, stride, width: columns.len(), begins, bias };
                    let (x, steps) = (x.part(rows), steps.clone());
                    macro_rules! heights {
                        ($($height:literal)*) => {
                            match height {
                                $($height if $height <= S::ROWS => {
                                    column::<S, P, $height>(s, x, weights, steps, target, &mut ahead)
                                })*
                                _ => unreachable!("a tile of {height} rows"),
                            }
                        };
                    }
                    heights!(1 2 3 4 5 6 7 8 9 10 11 12)
                }
            }
            if ends {
                finish(&mut to.part(columns.start - first_column..columns.end - first_column), columns);
            }
        }
    }
}

/// Weights that tiles fetch for those after them.
struct Ahead {
    next: *const u32,
    /// Cache lines that each tile fetches.
    lines: usize,
}

/// Heights of the tiles that rows make up, and how many of each. The last two share what is left: low tiles wait for their own sums.
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

/// Where tiles go, and what is added to them.
#[derive(Clone, Copy)]
struct Target<'a> {
    to: *mut f32,
    stride: usize,
    width: usize,
    /// Whether sums begin here, and do not go on from what lies there.
    begins: bool,
    bias: &'a [f32],
}

/// Tiles of `R` rows, one below the other.
///
/// # Safety
/// The rows make up such tiles and are for the panel, the panel has the steps, and the target room for the rows.
#[inline(always)]
unsafe fn column<S: Simd, P: Product<S>, const R: usize>(
    s: S,
    x: Rows,
    panel: &[u32],
    steps: Range<usize>,
    target: Target,
    ahead: &mut Ahead,
) {
    let Target { mut to, stride, width, begins, bias } = target;
    let part = |x: &[f32], first: usize| s.load_at(x, first, 0.0);
    let whole = width == 2 * S::LANES;
    let bias = (!bias.is_empty()).then(|| [part(bias, 0), part(bias, S::LANES)]);
    let groups = x.scales.len() / x.count.max(1);
    let mut x =
        Left { words: x.words.as_ptr(), stride: x.stride, scales: x.scales.as_ptr(), groups, count: x.count };
    while x.count > 0 {
        for _ in 0..ahead.lines {
            s.prefetch(ahead.next);
            ahead.next = ahead.next.wrapping_add(16);
        }
        let mut sums = [[s.splat(0.0); 2]; R];
        if !begins {
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the target has `width` numbers in this row, which an earlier tile has written.
                let row = unsafe { slice::from_raw_parts(to.add(r * stride), width) };
                *sums = [part(row, 0), part(row, S::LANES)];
            }
        }
        // SAFETY: as the caller says.
        let mut sums = unsafe { P::sums(s, x, panel, steps.clone(), sums) };
        if let Some(bias) = bias {
            for sums in &mut sums {
                *sums = [s.add(sums[0], bias[0]), s.add(sums[1], bias[1])];
            }
        }
        for (r, [first, second]) in sums.into_iter().enumerate() {
            // SAFETY: the target has `width` numbers in this row.
            unsafe {
                let to = to.add(r * stride);
                if whole {
                    s.store(to, first);
                    s.store(to.add(S::LANES), second);
                } else {
                    let to = slice::from_raw_parts_mut(to, width);
                    s.store_at(to, 0, first);
                    if width > S::LANES {
                        s.store_at(to, S::LANES, second);
                    }
                }
            }
        }
        // Where none are left this may point past the end; nothing is read or written there.
        to = to.wrapping_add(R * stride);
        x.words = x.words.wrapping_add(R * x.stride);
        x.scales = x.scales.wrapping_add(R * groups);
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

/// A compute type: how the sums of a tile come about.
trait Product<S: Simd> {
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
