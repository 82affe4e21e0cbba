//! The vector micro-kernel: MR rows of `x` by a panel of two vectors of outputs, with the accumulators in
//! registers.

use std::cell::Cell;
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use super::blocking::{VECTOR_KC, VECTOR_L2_KC};
use super::convert::GroupScale;
use super::dot_product::{Bf16Dot, DotProduct, F32Dot, Int8Dot, MicroPanel, RowPointers, dot_products};
use super::epilogue::{AccumulatorRows, BlockEpilogue, Epilogue};
use super::layout::OperandFormat;
use super::lhs::Lhs;
use super::micro_panels::{MicroTiles, pack_micro_panels};
use super::output::OutputBlock;
use super::packed_matrix::PackedMatrix;
use super::prefetch::Prefetch;
use crate::activation::Activation;
use crate::isa::{Isa, Kernel, define_runners};
use crate::math::Accuracy;
use crate::simd::{INT8_PER_LANE, MAX_LANES, Simd};

/// The kernel of a GEMM in an operand format of vectors: f32, or with `DOT_PRODUCTS` bf16 or int8.
/// `driver::gemm` has checked the operands.
pub(super) struct VectorGemm<'a, 'b, const DOT_PRODUCTS: bool> {
    /// The left-hand side: `(rows, inputs)`.
    pub x: Lhs<'a>,
    /// The weights: `(outputs, inputs)`.
    pub weights: &'a PackedMatrix,
    /// The panels of the weights to multiply with.
    pub panels: Range<usize>,
    /// The operations on the products before they are stored.
    pub epilogue: &'a Epilogue<'a>,
    /// The output: the rows of `x`, and the outputs of the panels as columns.
    pub output: &'a mut OutputBlock<'b>,
}

impl<const DOT_PRODUCTS: bool> Kernel for VectorGemm<'_, '_, DOT_PRODUCTS> {
    type Output = ();

    const F32_ONLY: bool = !DOT_PRODUCTS;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.weights.layout.format {
            OperandFormat::F32 { .. } if !DOT_PRODUCTS => self.panels::<S, Direct<F32Dot>>(s),
            OperandFormat::Bf16 if DOT_PRODUCTS && S::FAST_BF16 => self.panels::<S, Direct<Bf16Dot>>(s),
            OperandFormat::Int8 if DOT_PRODUCTS => self.panels::<S, GroupScaled>(s),
            format => unreachable!("{format:?} is not a format of this kernel"),
        }
    }
}

/// Cache lines of a matrix that does not fit in L2 beside everything else: the next K block is prefetched.
const MIN_PREFETCHED_LINES: usize = 2 << 10;

/// Panels with which packing the rows of `x` takes less time than it saves.
const MIN_PANELS_OF_MICRO_PANELS: usize = 8;

thread_local! {
    /// Memory for the micro-panels of a thread, reused from call to call.
    static MICRO_PANELS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

impl<const DOT_PRODUCTS: bool> VectorGemm<'_, '_, DOT_PRODUCTS> {
    #[inline(always)]
    fn panels<S: Simd, K: MicroKernel<S>>(self, s: S) {
        let VectorGemm { x, weights, panels, epilogue, output } = self;
        let first_column = weights.columns(panels.clone()).start;
        let layout = weights.layout;
        // Packed elements of a K step of a panel.
        let step = K::k_step() * 2 * S::LANES;
        let k_steps = (layout.panel / layout.nr).div_ceil(K::k_step());
        // K blocks of KC, in groups whose inputs stay in L2. They begin at the same inputs whatever follows:
        // the sums of attention over the first keys of a sequence do not depend on how many there are. Where
        // sums do not depend on blocks, these have equal lengths.
        let block_steps = match K::STARTS_FROM_PARTIAL_SUMS {
            true => k_steps.div_ceil((k_steps * K::k_step()).div_ceil(VECTOR_KC)),
            false => VECTOR_KC / K::k_step(),
        };
        let k_blocks = k_steps.div_ceil(block_steps);
        let k_steps_of = |k_block: usize| k_block * block_steps..k_steps.min((k_block + 1) * block_steps);
        let group = (VECTOR_L2_KC / (block_steps * K::k_step())).max(1);
        let prefetches = weights.lines.len() >= MIN_PREFETCHED_LINES;
        // Bias and, if nothing comes in between, divisors are applied in registers.
        let (bias, mut divisors) = (epilogue.bias, epilogue.divisors);
        assert!(bias.is_empty() || bias.len() == weights.outputs, "the bias has one value per output");
        assert!(divisors.is_empty() || divisors.len() >= x.rows, "there is one divisor per row");
        let mut epilogue = Epilogue { bias: &[], ..*epilogue };
        if epilogue.activation == Activation::Identity {
            epilogue.divisors = &[];
        } else {
            divisors = &[];
        }
        let tiles = MicroTiles::new(x.rows, K::MR);
        let packs_rows = K::PACKS_ROWS && panels.len() >= MIN_PANELS_OF_MICRO_PANELS;
        let mut packed = if packs_rows { MICRO_PANELS.take() } else { Vec::new() };
        for first in (0..k_blocks).step_by(group) {
            let group = first..k_blocks.min(first + group);
            let group_steps = k_steps_of(group.start).start..k_steps_of(group.end - 1).end;
            if packs_rows {
                pack_micro_panels(s, x, group_steps.clone(), tiles, &mut packed);
            }
            let next_group = (group.end < k_blocks).then_some((panels.start, group.end));
            let mut blocks =
                panels.clone().flat_map(|panel| group.clone().map(move |k_block| (panel, k_block)));
            let mut next = blocks.next();
            while let Some((panel, k_block)) = next {
                next = blocks.next();
                // After its last panel a thread mostly goes on with the panel behind it, in its next task.
                let next_task = (panel + 1 < weights.panels()).then_some((panel + 1, 0));
                let block = |(panel, k_block): (usize, usize)| {
                    let k_steps = k_steps_of(k_block);
                    &weights.panel(panel)[k_steps.start * step..k_steps.end * step]
                };
                let k_steps = k_steps_of(k_block);
                let visits = tiles.count() * (k_steps.len() / K::UNROLL);
                let next = next.or(next_group).or(next_task).filter(|_| prefetches);
                let mut prefetch = Prefetch::new(next.map_or(&[], block), visits);
                let block = block((panel, k_block));
                let columns = weights.columns(panel..panel + 1);
                let is_last_k_block = k_block + 1 == k_blocks;
                let bias = if is_last_k_block { bias.get(columns.clone()).unwrap_or_default() } else { &[] };
                let divisors = if is_last_k_block { divisors } else { &[] };
                let epilogue = (is_last_k_block && !epilogue.is_identity()).then_some(&epilogue);
                for (height, rows) in tiles.segments() {
                    let x = if packs_rows {
                        LhsCursor::micro_panels(&packed, &group_steps, k_steps.start, height, &rows)
                    } else {
                        LhsCursor::rows(x.slice(rows.clone()), k_steps.start, K::lhs_elements())
                    };
                    // SAFETY: the output has these rows and the columns of this panel, as `driver::gemm` has
                    // checked, so the offset is inside the output, which is valid for these rows and columns.
                    // `x` has these rows in the format of the panel, and both have these K steps. The rows
                    // are whole micro-tiles of `height` rows.
                    unsafe {
                        let stride = output.stride;
                        let target = Target {
                            output: output.data.add(rows.start * stride + columns.start - first_column),
                            stride,
                            row: rows.start,
                            writable: output.columns - (columns.start - first_column),
                            columns: columns.clone(),
                            outputs: weights.outputs,
                            is_first_k_block: k_block == 0,
                            bias,
                            divisors,
                            epilogue,
                            accuracy: layout.format.accuracy(),
                            isa: weights.isa,
                        };
                        macro_rules! dispatch_height {
                            ($($height:literal)*) => {
                                match height {
                                    $($height if $height <= K::MR => if packs_rows {
                                        tile_column::<S, K, true, $height>(s, x, block, target, &mut prefetch)
                                    } else {
                                        tile_column::<S, K, false, $height>(s, x, block, target, &mut prefetch)
                                    },)*
                                    _ => unreachable!("a micro-tile of {height} rows"),
                                }
                            };
                        }
                        dispatch_height!(1 2 3 4 5 6 7 8 9 10 11 12)
                    }
                }
            }
        }
        if packs_rows {
            MICRO_PANELS.set(packed);
        }
    }
}

/// The output of a column of micro-tiles, and the epilogue of their accumulators.
struct Target<'a> {
    output: *mut f32,
    stride: usize,
    /// The first row, as the epilogue counts rows.
    row: usize,
    /// Columns of the output from the first one of the panel on.
    writable: usize,
    /// Outputs of the panel.
    columns: Range<usize>,
    /// Outputs of the whole matrix.
    outputs: usize,
    /// Whether accumulators start from 0, not from the partial sums in the output.
    is_first_k_block: bool,
    /// The bias of these columns if this is the last K block; empty otherwise, or if there is none. It is
    /// added in registers.
    bias: &'a [f32],
    /// The divisors of all rows, likewise.
    divisors: &'a [f32],
    /// The rest of the epilogue, if this is the last K block.
    epilogue: Option<&'a Epilogue<'a>>,
    accuracy: Accuracy,
    isa: Isa,
}

/// Computes a column of micro-tiles of `R` rows each, for one K block.
///
/// # Safety
/// `x` has a multiple of `R` rows, in micro-panels if `PACKED`, in the operand format of `K`, and the K steps
/// of the panel `weights`. In each row, `target.output` is valid for writes of `target.writable` values, at
/// least `target.columns.len()`, and for reads of the columns if this is not the first K block or there is an
/// epilogue.
#[inline(always)]
unsafe fn tile_column<S: Simd, K: MicroKernel<S>, const PACKED: bool, const R: usize>(
    s: S,
    mut x: LhsCursor,
    weights: &[u32],
    target: Target,
    prefetch: &mut Prefetch,
) {
    let Target { mut output, stride, mut row, writable, columns, outputs, is_first_k_block, .. } = target;
    let Target { bias, divisors, epilogue, accuracy, isa, .. } = target;
    let width = columns.len();
    let mut epilogue = epilogue.map(|epilogue| {
        let accumulators = AccumulatorRows::in_place(output, stride);
        BlockEpilogue::new(epilogue, row + x.rows, columns.clone(), outputs, accuracy, accumulators)
    });
    let bias = (!bias.is_empty()).then(|| [s.load_at(bias, 0, 0.0), s.load_at(bias, S::LANES, 0.0)]);
    // If the output has no more columns, a micro-tile of the last panel is computed here, as in BLIS.
    let is_edge = writable < 2 * S::LANES;
    let mut edge = MaybeUninit::<[[f32; 2 * MAX_LANES]; R]>::uninit();
    let edge: &mut [[f32; 2 * MAX_LANES]] =
        if is_edge { edge.write([[0.0; 2 * MAX_LANES]; R]) } else { &mut [] };
    // Rows whose epilogue is still to be applied.
    let mut pending = 0;
    while x.rows > 0 {
        let (c, c_stride) =
            if is_edge { (edge.as_mut_ptr().cast(), 2 * MAX_LANES) } else { (output, stride) };
        if is_edge && !is_first_k_block {
            for (r, edge) in edge.iter_mut().enumerate() {
                // SAFETY: an earlier K block has written `width` values in row `r`.
                unsafe { ptr::copy_nonoverlapping(output.add(r * stride), edge.as_mut_ptr(), width) };
            }
        }
        // SAFETY: `c` is valid for reads and writes of NR values in `R` rows: of `edge`, or of the output,
        // where an earlier K block has written them if they are read. `x` has at least `R` rows left, and the
        // K steps of the panel, by the contract of this function.
        unsafe {
            let mut accumulators = [[s.splat(0.0); 2]; R];
            if K::STARTS_FROM_PARTIAL_SUMS && !is_first_k_block {
                for (r, accumulators) in accumulators.iter_mut().enumerate() {
                    let partial_sums = c.add(r * c_stride);
                    *accumulators = [s.load(partial_sums), s.load(partial_sums.add(S::LANES))];
                }
            }
            let accumulators = K::accumulate::<PACKED, R>(s, x, weights, accumulators, prefetch);
            for (r, mut accumulators) in accumulators.into_iter().enumerate() {
                let c = c.add(r * c_stride);
                if !K::STARTS_FROM_PARTIAL_SUMS && !is_first_k_block {
                    accumulators =
                        [s.add(s.load(c), accumulators[0]), s.add(s.load(c.add(S::LANES)), accumulators[1])];
                }
                if let Some(bias) = bias {
                    accumulators = [s.add(accumulators[0], bias[0]), s.add(accumulators[1], bias[1])];
                }
                if let Some(divisor) = divisors.get(row + r) {
                    let scale = s.splat(1.0 / divisor);
                    accumulators = [s.mul(accumulators[0], scale), s.mul(accumulators[1], scale)];
                }
                s.store(c, accumulators[0]);
                s.store(c.add(S::LANES), accumulators[1]);
            }
        }
        if is_edge {
            for (r, edge) in edge.iter().enumerate() {
                // SAFETY: `output` is valid for writes of `width` values in row `r` by the contract of this
                // function.
                unsafe { ptr::copy_nonoverlapping(edge.as_ptr(), output.add(r * stride), width) };
            }
        }
        pending += R;
        if let Some(block) = &mut epilogue
            && (pending >= S::MR || x.rows == R)
        {
            let before = pending - R;
            // SAFETY: `output` is valid for reads and writes of the columns in these rows, which have just
            // been written, and in the pending ones before them.
            unsafe {
                let rows = AccumulatorRows::in_place(output.sub(before * stride), stride);
                block.replace(rows, row - before, pending, columns.clone());
                // A call, not inlined: one instance serves all heights of micro-tiles.
                block.apply(isa, 0..pending);
            }
            pending = 0;
        }
        // After the last micro-tile the pointer may be out of bounds; it is not dereferenced then.
        output = output.wrapping_add(R * stride);
        row += R;
        x.advance(R);
    }
}

/// The two accumulator vectors of each row of a micro-tile.
type Accumulators<S, const R: usize> = [[<S as Simd>::F; 2]; R];

/// The rows of `x` that remain to be multiplied, from the first element of a K block on.
#[derive(Clone, Copy)]
struct LhsCursor {
    elements: *const u32,
    /// Elements that a row takes: from one to the next, or of a micro-panel for each of its rows.
    stride: usize,
    /// The scales of a row, from the K block on.
    scales: *const GroupScale,
    /// Int8 groups per row.
    groups: usize,
    rows: usize,
}

impl LhsCursor {
    /// Rows, one after the other, from the K step `k_step` on, of `k_step_elements` elements each.
    #[inline(always)]
    fn rows(x: Lhs, k_step: usize, k_step_elements: usize) -> Self {
        LhsCursor {
            elements: x.elements[k_step * k_step_elements..].as_ptr(),
            stride: x.stride,
            scales: if x.groups > 0 { x.scales[k_step..].as_ptr() } else { x.scales.as_ptr() },
            groups: x.groups,
            rows: x.rows,
        }
    }

    /// The micro-panels of `rows`, of `height` rows each, from the K step `k_step` on. They hold the K steps
    /// `k_steps`.
    #[inline(always)]
    fn micro_panels(
        packed: &[u32],
        k_steps: &Range<usize>,
        k_step: usize,
        height: usize,
        rows: &Range<usize>,
    ) -> Self {
        LhsCursor {
            elements: packed[rows.start * k_steps.len() + (k_step - k_steps.start) * height..].as_ptr(),
            stride: k_steps.len(),
            scales: [].as_ptr(),
            groups: 0,
            rows: rows.len(),
        }
    }

    /// Skips the next rows. After the last row the pointers may be out of bounds; they are not dereferenced
    /// then.
    #[inline(always)]
    fn advance(&mut self, rows: usize) {
        self.elements = self.elements.wrapping_add(rows * self.stride);
        self.scales = self.scales.wrapping_add(rows * self.groups);
        self.rows -= rows;
    }
}

/// The inner loop over the K steps of a micro-tile, for one operand format.
trait MicroKernel<S: Simd> {
    /// Whether accumulators start from the partial sums of the K blocks before. If not, they start from 0 and
    /// are added to them.
    const STARTS_FROM_PARTIAL_SUMS: bool;
    /// Whether it takes micro-panels.
    const PACKS_ROWS: bool;
    /// Maximum rows of a micro-tile.
    const MR: usize = S::MR;
    /// K steps of an iteration, in which some weights of the next K block are prefetched.
    const UNROLL: usize;
    /// Packed elements of a K step of an output.
    fn k_step() -> usize;
    /// Packed elements of a K step of a row of `x`.
    fn lhs_elements() -> usize {
        Self::k_step()
    }

    /// Accumulates the products of `R` rows and the K steps `weights` of a panel.
    ///
    /// # Safety
    /// `x` has at least `R` rows left, as a micro-panel if `PACKED`. They and the weights are in the operand
    /// format of this kernel, and have the same K steps.
    unsafe fn accumulate<const PACKED: bool, const R: usize>(
        s: S,
        x: LhsCursor,
        weights: &[u32],
        accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R>;
}

/// Accumulates every dot product in f32.
struct Direct<D>(PhantomData<D>);

impl<S: Simd, D: DotProduct<S, Accumulator = S::F>> MicroKernel<S> for Direct<D> {
    const STARTS_FROM_PARTIAL_SUMS: bool = false;
    const PACKS_ROWS: bool = true;
    const UNROLL: usize = D::UNROLL;

    #[inline(always)]
    fn k_step() -> usize {
        1
    }

    #[inline(always)]
    unsafe fn accumulate<const PACKED: bool, const R: usize>(
        s: S,
        x: LhsCursor,
        weights: &[u32],
        accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R> {
        let elements = 0..weights.len() / (2 * S::LANES);
        let weights = weights.as_ptr();
        // SAFETY: a K step is one packed element. `x` has `R` rows with these elements, and there are 2 ·
        // `LANES` weights for each, by the contract of this method.
        unsafe {
            if PACKED {
                let x = MicroPanel(x.elements);
                dot_products::<S, D, R>(s, x, elements, weights, accumulators, Some(prefetch))
            } else {
                dot_products::<S, D, R>(
                    s,
                    RowPointers::new(x.elements, x.stride),
                    elements,
                    weights,
                    accumulators,
                    Some(prefetch),
                )
            }
        }
    }
}

/// Accumulates each int8 group exactly in i32, then adds it in f32, multiplied by the scales of both
/// operands.
struct GroupScaled;

impl<S: Simd> MicroKernel<S> for GroupScaled {
    /// Each K step adds only one value per group, so a sum that starts from 0 gains nothing.
    const STARTS_FROM_PARTIAL_SUMS: bool = true;
    const PACKS_ROWS: bool = false;
    /// Each row also needs the i32 accumulators of a group; both sets have to stay in registers.
    const MR: usize = S::MR / 2;
    const UNROLL: usize = 1;

    /// A group: its scales, the negated sums of its weights, and its packed elements.
    #[inline(always)]
    fn k_step() -> usize {
        2 + <Self as MicroKernel<S>>::lhs_elements()
    }

    #[inline(always)]
    fn lhs_elements() -> usize {
        S::INT8.group / INT8_PER_LANE
    }

    #[inline(always)]
    unsafe fn accumulate<const PACKED: bool, const R: usize>(
        s: S,
        x: LhsCursor,
        weights: &[u32],
        mut accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R> {
        let elements = S::INT8.group / INT8_PER_LANE;
        // SAFETY: a K step is a group. `x` has `R` rows with the packed elements and scales of these groups,
        // and there are `(2 + elements) · 2 · LANES` u32 of weights for each group, by the contract of this
        // method.
        unsafe {
            let rows = RowPointers::<R>::new(x.elements, x.stride);
            // With a known count the compiler would unroll the loop over the elements, and spill the weights.
            let count = if S::INT8.adds_in_i16 { black_box(elements) } else { elements };
            for g in 0..weights.len() / (<Self as MicroKernel<S>>::k_step() * 2 * S::LANES) {
                prefetch.advance(s);
                let scales = weights.as_ptr().add(g * (2 + elements) * 2 * S::LANES);
                let sums_of_weights = scales.add(2 * S::LANES);
                let zero = s.splat_u32(0);
                let negated_sums = [s.load_u32(sums_of_weights), s.load_u32(sums_of_weights.add(S::LANES))];
                let mut exact = [[zero; 2]; R];
                for (r, exact) in exact.iter_mut().enumerate() {
                    let zero_point = s.splat_u32((*x.scales.add(r * x.groups + g)).zero_point);
                    // Not in f32: that multiplier is busy with the dot products.
                    *exact = negated_sums.map(|sum| s.add_product_i16(zero, zero_point, sum));
                }
                let (group, weights) =
                    (g * elements..g * elements + count, sums_of_weights.add(2 * S::LANES));
                let exact = if S::INT8.adds_in_i16 {
                    dot_products::<S, Int8Dot<2>, R>(s, rows, group, weights, exact, None)
                } else {
                    dot_products::<S, Int8Dot<1>, R>(s, rows, group, weights, exact, None)
                };
                assert!(R <= 6, "all rows are added");
                // Not a loop: in a program that is optimized as a whole, the compiler would not unroll it,
                // and keep the sums in memory.
                macro_rules! add_rows {
                    ($($r:literal)*) => {
                        $(if $r < R {
                            let scale = s.splat((*x.scales.add($r * x.groups + g)).scale);
                            for i in 0..2 {
                                let scale = s.mul(scale, s.load(scales.add(i * S::LANES).cast()));
                                // Exact, too: these are integers below 2²⁴.
                                let sum = &mut accumulators[$r][i];
                                *sum = s.fma(s.i32_to_f32(exact[$r][i]), scale, *sum);
                            }
                        })*
                    };
                }
                add_rows!(0 1 2 3 4 5);
            }
        }
        accumulators
    }
}
