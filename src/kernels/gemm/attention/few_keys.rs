//! Attention of one head on vectors, for few keys: their packed operands stay in L1, and both GEMMs and the
//! softmax between them are computed for one micro-tile of queries after the other.

use std::f32::consts::LOG2_E;
use std::hint::black_box;

use super::head::{AttentionWindow, HeadAttention, HeadRows};
use crate::gemm::blocking::VECTOR_KC;
use crate::gemm::cache_line::{CacheLine, LINE_ELEMENTS, at_least, elements_mut};
use crate::gemm::convert::bf16_row;
use crate::gemm::dot_product::{Bf16Dot, DotProduct, F32Dot, RowPointers, dot_products};
use crate::gemm::layout::{OperandFormat, PackedLayout};
use crate::gemm::micro_panels::MicroTiles;
use crate::gemm::output::OutputBlock;
use crate::gemm::pack::{MatrixView, pack_bf16, pack_bf16_transposed, pack_f32};
use crate::isa::{Kernel, define_runners};
use crate::math::exp2_coefficients;
use crate::simd::{MAX_LANES, Simd, map_with};
use crate::softmax::{exp2_to, softmax_row};

/// Bytes of keys and values that stay in L1 beside the scores of a micro-tile.
const L1_BYTES: usize = 24 << 10;

/// The most keys of these head dims that [`AttendFewKeys`] takes. Each GEMM has one K block then, so that
/// sums have the same bits as those of a call for each GEMM.
pub(super) fn max_keys(format: OperandFormat, [qk_head_dim, v_head_dim]: [usize; 2]) -> usize {
    let value_bytes = match format {
        OperandFormat::F32 { bf16_weights: false } => size_of::<f32>(),
        OperandFormat::Bf16 => size_of::<u16>(),
        _ => return 0,
    };
    if qk_head_dim.min(v_head_dim) == 0 || qk_head_dim > VECTOR_KC {
        return 0;
    }
    VECTOR_KC.min(L1_BYTES / ((qk_head_dim + v_head_dim) * value_bytes))
}

/// The kernel of [`super::attend_head`] in f32, or with `BF16` in bf16.
pub(super) struct AttendFewKeys<'a, 'b, const BF16: bool> {
    /// The layout of the keys, which are the weights of the first GEMM, and of the values.
    pub layouts: [PackedLayout; 2],
    pub head: HeadAttention<'a>,
    pub lines: &'a mut Vec<CacheLine>,
    pub output: &'a mut OutputBlock<'b>,
}

impl<const BF16: bool> Kernel for AttendFewKeys<'_, '_, BF16> {
    type Output = ();

    const F32_ONLY: bool = !BF16;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.layouts[0].format {
            OperandFormat::F32 { .. } if !BF16 => self.attend::<S, F32Dot>(s),
            OperandFormat::Bf16 if BF16 && S::FAST_BF16 => self.attend::<S, Bf16Dot>(s),
            format => unreachable!("{format:?} is not a format of this kernel"),
        }
    }
}

/// Memory for the packed operands of a head and for one micro-tile of queries, in packed elements.
struct Operands<'a> {
    keys: &'a mut [u32],
    values: &'a mut [u32],
    /// The queries in bf16, if they are converted.
    queries: &'a mut [u32],
    /// The scores, and then the unnormalised weights.
    scores: &'a mut [f32],
    /// The weights in bf16, if they are converted.
    weights: &'a mut [u32],
}

impl<const BF16: bool> AttendFewKeys<'_, '_, BF16> {
    #[inline(always)]
    fn attend<S: Simd, D: DotProduct<S, Accumulator = S::F>>(self, s: S) {
        let AttendFewKeys { layouts: [key_layout, value_layout], head, lines, output } = self;
        let HeadAttention { queries, keys, values, .. } = head;
        // Whole panels of scores are stored, and whole vectors of bf16.
        let stride = keys.rows.next_multiple_of(key_layout.nr);
        let [query_stride, weight_stride] =
            [key_layout, value_layout].map(|layout| layout.lhs_row.next_multiple_of(S::LANES));
        let packed = |outputs: usize, layout: PackedLayout| outputs.div_ceil(layout.nr) * layout.panel;
        let operands = Operands::new(
            lines,
            [
                packed(keys.rows, key_layout),
                packed(values.dim, value_layout),
                if BF16 { S::MR * query_stride } else { 0 },
                S::MR * stride,
                if BF16 { S::MR * weight_stride } else { 0 },
            ],
        );
        let keys_from = MatrixView { data: keys.data, stride: keys.stride, transposed: false };
        pack::<S, BF16>(s, key_layout, keys_from, keys.rows, operands.keys);
        let values_from = MatrixView { data: values.data, stride: values.stride, transposed: true };
        pack::<S, BF16>(s, value_layout, values_from, values.dim, operands.values);
        prefetch_next_head(s, keys);
        prefetch_next_head(s, values);
        let softmax = Softmax::new(s, &head, stride, weight_stride);
        for (height, rows) in MicroTiles::new(queries.rows, S::MR).segments() {
            for first in rows.step_by(height) {
                let rows = queries.slice(&(first..first + height));
                prefetch_next_head(s, rows);
                let x = if BF16 {
                    for (i, to) in operands.queries.chunks_exact_mut(query_stride).take(height).enumerate() {
                        bf16_row(s, rows.row(i), to);
                    }
                    Rows { elements: operands.queries.as_ptr(), stride: query_stride, height }
                } else {
                    let length = (height - 1) * rows.stride + rows.dim;
                    Rows { elements: rows.data[..length].as_ptr().cast(), stride: rows.stride, height }
                };
                let to = Target { data: operands.scores.as_mut_ptr(), stride, columns: stride };
                // SAFETY: `x` has `height ≤ MR` rows of the elements of the layout, and there is memory for
                // as many rows of scores, whose columns are those of the panels.
                unsafe { multiply::<S, D>(s, x, key_layout, operands.keys, to, None) };
                let scores = &mut operands.scores[..height * stride];
                let factors = softmax.apply::<BF16>(s, scores, first, operands.weights);
                let x = if BF16 {
                    Rows { elements: operands.weights.as_ptr(), stride: weight_stride, height }
                } else {
                    Rows { elements: operands.scores.as_ptr().cast(), stride, height }
                };
                let data = output.data.wrapping_add(first * output.stride);
                let to = Target { data, stride: output.stride, columns: values.dim };
                // SAFETY: as above; the output has these rows, and a column for each column of the values, as
                // `attend_head` has checked.
                unsafe { multiply::<S, D>(s, x, value_layout, operands.values, to, Some(&factors)) };
            }
        }
    }
}

impl<'a> Operands<'a> {
    /// Operands of these lengths, in the order of the fields. The memory holds arbitrary values.
    fn new(lines: &'a mut Vec<CacheLine>, lengths: [usize; 5]) -> Self {
        let lengths = lengths.map(|length| length.next_multiple_of(LINE_ELEMENTS));
        let count = lengths.iter().sum::<usize>() / LINE_ELEMENTS;
        let (keys, rest) = elements_mut(at_least(lines, count)).split_at_mut(lengths[0]);
        let (values, rest) = rest.split_at_mut(lengths[1]);
        let (queries, rest) = rest.split_at_mut(lengths[2]);
        let (scores, weights) = rest.split_at_mut(lengths[3]);
        // SAFETY: f32 has the size and alignment of u32, and every bit pattern is a valid f32. The result
        // borrows the elements mutably.
        let scores = unsafe { std::slice::from_raw_parts_mut(scores.as_mut_ptr().cast(), scores.len()) };
        Operands { keys, values, queries, scores, weights }
    }
}

/// Prefetches the columns of the next head in these rows: mostly they are multiplied next, and have left L1.
#[inline(always)]
fn prefetch_next_head<S: Simd>(s: S, rows: HeadRows) {
    for row in 0..rows.rows {
        let next = rows.data.as_ptr().wrapping_add(row * rows.stride + rows.dim);
        for value in (0..rows.dim).step_by(LINE_ELEMENTS) {
            s.prefetch_l1(next.wrapping_add(value).cast());
        }
    }
}

/// Packs all panels of a matrix of `outputs` outputs.
#[inline(always)]
fn pack<S: Simd, const BF16: bool>(
    s: S,
    layout: PackedLayout,
    from: MatrixView,
    outputs: usize,
    to: &mut [u32],
) {
    for (first, to) in (0..outputs).step_by(layout.nr).zip(to.chunks_exact_mut(layout.panel)) {
        let from = from.panel(first..outputs.min(first + layout.nr), layout.inputs);
        match (BF16, from.transposed) {
            (false, _) => pack_f32(s, layout, from, false, to),
            (true, false) => pack_bf16(s, layout, from, to),
            (true, true) => pack_bf16_transposed(s, layout, from, to),
        }
    }
}

/// Rows of a left operand.
struct Rows {
    elements: *const u32,
    /// Elements from the start of one row to the start of the next.
    stride: usize,
    height: usize,
}

/// Rows that a product is written to.
struct Target {
    data: *mut f32,
    stride: usize,
    columns: usize,
}

/// Multiplies a micro-tile of rows with all panels, and each row of the product with its factor.
///
/// # Safety
/// `x` has `height` rows of `layout.lhs_row` elements, from 1 to MR. `panels` are those of `to.columns`
/// outputs in this layout. `to` is valid for writes of its columns in as many rows.
#[inline(always)]
unsafe fn multiply<S: Simd, D: DotProduct<S, Accumulator = S::F>>(
    s: S,
    x: Rows,
    layout: PackedLayout,
    panels: &[u32],
    to: Target,
    factors: Option<&[f32; MAX_LANES]>,
) {
    let panel_elements = layout.lhs_row * 2 * S::LANES;
    assert!(panels.len() >= to.columns.div_ceil(2 * S::LANES) * panel_elements, "there are all panels");
    let firsts = (0..to.columns).step_by(2 * S::LANES);
    for (first, panel) in firsts.zip(panels.chunks_exact(panel_elements)) {
        let width = to.columns - first;
        let data = to.data.wrapping_add(first);
        macro_rules! dispatch_height {
            ($($height:literal)*) => {
                match x.height {
                    // SAFETY: `x` has these rows and elements, and the panel has 2 · `LANES` u32 for each
                    // element. From `data` on there are `width` columns in each row.
                    $($height if $height <= S::MR => unsafe {
                        let rows = RowPointers::<$height>::new(x.elements, x.stride);
                        let sums = [[s.splat(0.0); 2]; $height];
                        let sums =
                            dot_products::<S, D, $height>(s, rows, 0..layout.lhs_row, panel.as_ptr(), sums, None);
                        for (r, mut sums) in sums.into_iter().enumerate() {
                            if let Some(factors) = factors {
                                let factor = s.splat(factors[r]);
                                sums = [s.mul(sums[0], factor), s.mul(sums[1], factor)];
                            }
                            let to = data.add(r * to.stride);
                            s.store_up_to(to, sums[0], width);
                            if width > S::LANES {
                                s.store_up_to(to.add(S::LANES), sums[1], width - S::LANES);
                            }
                        }
                    },)*
                    height => unreachable!("a micro-tile of {height} rows"),
                }
            };
        }
        dispatch_height!(1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

/// The softmax of scores after their bias.
struct Softmax<'a, S: Simd> {
    head: &'a HeadAttention<'a>,
    /// Values from one row of scores to the next: whole pairs of vectors.
    stride: usize,
    /// Elements from one row of converted weights to the next.
    weight_stride: usize,
    /// The factor of the scores before their bias.
    scale: S::F,
    /// Their factor in the exponent of 2.
    exponent_scale: S::F,
    coefficients: [S::F; 7],
    /// The index of each lane.
    lanes: S::F,
}

impl<'a, S: Simd> Softmax<'a, S> {
    #[inline(always)]
    fn new(s: S, head: &'a HeadAttention<'a>, stride: usize, weight_stride: usize) -> Self {
        let mut lanes = [0.0; MAX_LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = i as f32;
        }
        let remaining_scale = if head.bias.is_empty() { head.scale } else { 1.0 };
        Softmax {
            head,
            stride,
            weight_stride,
            scale: s.splat(head.scale),
            exponent_scale: s.splat(remaining_scale * LOG2_E),
            // If the compiler knew these constants, it would load each of them again for every vector.
            coefficients: black_box(exp2_coefficients(s)),
            lanes: s.load_at(&lanes, 0, 0.0),
        }
    }

    /// Replaces the scores of some queries, from `first` on, by their unnormalised weights, or writes these
    /// to `converted` in bf16. Returns the reciprocal of the sum of each row; 1 for a query that sees no key.
    #[inline(always)]
    fn apply<const BF16: bool>(
        &self,
        s: S,
        scores: &mut [f32],
        first: usize,
        converted: &mut [u32],
    ) -> [f32; MAX_LANES] {
        let [mut sums, mut factors] = [[1.0; MAX_LANES]; 2];
        for (i, (row, sum)) in scores.chunks_exact_mut(self.stride).zip(&mut sums).enumerate() {
            let converted =
                if BF16 { &mut converted[i * self.weight_stride..][..self.weight_stride] } else { &mut [] };
            *sum = self.row::<BF16>(s, row, first + i, converted);
        }
        for start in (0..MAX_LANES).step_by(S::LANES) {
            let reciprocals = s.div(s.splat(1.0), s.load_at(&sums, start, 1.0));
            s.store_at(&mut factors, start, reciprocals);
        }
        factors
    }

    /// [`Softmax::apply`] to one query; returns the sum of its weights.
    #[inline(always)]
    fn row<const BF16: bool>(&self, s: S, row: &mut [f32], query: usize, converted: &mut [u32]) -> f32 {
        let HeadAttention { keys, bias, window, first_query, .. } = *self.head;
        let position = first_query + query;
        if !bias.is_empty() {
            let bias = &bias[(bias.len() - 1) / 2 - position..][..keys.rows];
            map_with!(s, &mut row[..keys.rows], bias, |x, b| s.fma(x, self.scale, b));
        }
        if window == AttentionWindow::FULL {
            match keys.rows.div_ceil(2 * S::LANES) {
                1 => return self.whole_row::<BF16, 1>(s, row, converted),
                2 => return self.whole_row::<BF16, 2>(s, row, converted),
                _ => {}
            }
        }
        let visible = window.keys(position, keys.rows);
        let sum = if visible.is_empty() {
            row.fill(0.0);
            1.0
        } else {
            softmax_row::<S, BF16>(s, row, visible, self.exponent_scale, &self.coefficients)
        };
        if BF16 {
            bf16_row(s, row, converted);
        }
        sum
    }

    /// [`Softmax::row`] of a query that sees all keys, whose scores are `N` pairs of vectors and stay in
    /// registers.
    #[inline(always)]
    fn whole_row<const BF16: bool, const N: usize>(
        &self,
        s: S,
        row: &mut [f32],
        converted: &mut [u32],
    ) -> f32 {
        assert!(row.len() >= 2 * N * S::LANES, "the row has whole pairs of vectors");
        let keys = self.head.keys.rows;
        let mut pairs = [[s.splat(0.0); 2]; N];
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut max = lowest;
        for (i, pair) in pairs.iter_mut().enumerate() {
            for (j, x) in pair.iter_mut().enumerate() {
                let start = (2 * i + j) * S::LANES;
                // SAFETY: the row has these vectors by the assertion.
                let score = unsafe { s.load(row.as_ptr().add(start)) };
                // What follows the last key may be NaN.
                *x = s.select_less(self.lanes, s.splat(keys as f32 - start as f32), score, lowest);
                max = s.max(max, *x);
            }
        }
        let max = s.splat(s.reduce_max(max));
        let mut sum = s.splat(0.0);
        for (i, pair) in pairs.iter_mut().enumerate() {
            for x in &mut *pair {
                let exponent = s.mul(s.sub(*x, max), self.exponent_scale);
                *x = exp2_to::<S, BF16>(s, exponent, &self.coefficients);
                sum = s.add(sum, *x);
            }
            if BF16 {
                let to = &mut converted[i * S::LANES..][..S::LANES];
                // SAFETY: `to` is valid for writes of `LANES` u32, the size of `2 · LANES` u16.
                unsafe { s.store_bf16_each(to.as_mut_ptr().cast(), *pair) };
            } else {
                for (j, x) in pair.iter().enumerate() {
                    // SAFETY: the row has these vectors by the assertion.
                    unsafe { s.store(row.as_mut_ptr().add((2 * i + j) * S::LANES), *x) };
                }
            }
        }
        s.reduce_sum(sum)
    }
}
