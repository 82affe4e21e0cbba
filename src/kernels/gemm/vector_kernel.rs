//! The vector micro-kernel: MR rows of `x` by a panel of two vectors of outputs, with the accumulators in registers.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use super::blocking::{VECTOR_KC, VECTOR_L2_KC};
use super::epilogue::{AccumulatorRows, BlockEpilogue, Epilogue};
use super::layout::OperandFormat;
use super::lhs::Lhs;
use super::output::OutputBlock;
use super::packed_matrix::PackedMatrix;
use super::prefetch::Prefetch;
use crate::isa::{Isa, Kernel, define_runners};
use crate::math::Accuracy;
use crate::simd::{INT8_PER_LANE, Simd};

/// The kernel of a GEMM in an operand format of vectors: f32, or with `DOT_PRODUCTS` bf16 or int8. `driver::gemm` has checked the
/// operands.
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

impl<const DOT_PRODUCTS: bool> VectorGemm<'_, '_, DOT_PRODUCTS> {
    #[inline(always)]
    fn panels<S: Simd, K: MicroKernel<S>>(self, s: S) {
        let VectorGemm { x, weights, panels, epilogue, output } = self;
        let first_column = weights.columns(panels.clone()).start;
        let layout = weights.layout;
        // Packed elements of a K step of a panel.
        let step = K::k_step() * 2 * S::LANES;
        let k_steps = (layout.panel / layout.nr).div_ceil(K::k_step());
        // K blocks of equal length, at most KC, in groups whose inputs stay in L2.
        let block_steps = k_steps.div_ceil((k_steps * K::k_step()).div_ceil(VECTOR_KC));
        let k_blocks = k_steps.div_ceil(block_steps);
        let group = (VECTOR_L2_KC / (block_steps * K::k_step())).max(1);
        let groups = (0..k_blocks).step_by(group).map(|first| first..k_blocks.min(first + group));
        let mut blocks = groups.flat_map(|group| {
            let panels = panels.clone();
            panels.flat_map(move |panel| group.clone().map(move |k_block| (panel, k_block)))
        });
        let prefetches = weights.lines.len() >= MIN_PREFETCHED_LINES;
        let bias = epilogue.bias;
        assert!(bias.is_empty() || bias.len() == weights.outputs, "the bias has one value per output");
        let epilogue = Epilogue { bias: &[], ..*epilogue };
        let mut next = blocks.next();
        while let Some((panel, k_block)) = next {
            next = blocks.next();
            // After its last panel a thread mostly goes on with the panel behind it, in its next task.
            let next_task = (panel + 1 < weights.panels()).then_some((panel + 1, 0));
            let k_steps_of = |k_block: usize| k_block * block_steps..k_steps.min((k_block + 1) * block_steps);
            let k_steps = k_steps_of(k_block);
            let columns = weights.columns(panel..panel + 1);
            let mut prefetch = match next.or(next_task) {
                Some((panel, k_block)) if prefetches => {
                    let k_steps = k_steps_of(k_block);
                    let weights = &weights.panel(panel)[k_steps.start * step..k_steps.end * step];
                    Prefetch::new(weights, x.rows.div_ceil(K::MR) * (k_steps.len() / K::UNROLL))
                }
                _ => Prefetch::new(&[], 1),
            };
            let weights = &weights.panel(panel)[..layout.panel];
            let is_last_k_block = k_block + 1 == k_blocks;
            let bias = if is_last_k_block { bias.get(columns.clone()).unwrap_or_default() } else { &[] };
            let epilogue = (is_last_k_block && !epilogue.is_identity()).then_some(&epilogue);
            let mut row = 0;
            for (height, tiles) in micro_tiles(x.rows, K::MR).into_iter().filter(|(_, tiles)| *tiles > 0) {
                let rows = row..row + height * tiles;
                row = rows.end;
                // SAFETY: the block has these rows and the columns of this panel, as `driver::gemm` has checked, so the
                // offset is inside the block and `output` is valid for these rows and columns. `x` has these rows in
                // the format of the panel, and the panel has these K steps. `height · tiles` rows are whole
                // micro-tiles.
                unsafe {
                    let stride = output.stride;
                    let output = output.data.add(rows.start * stride + columns.start - first_column);
                    let target = Target {
                        output,
                        stride,
                        row: rows.start,
                        columns: columns.clone(),
                        outputs: self.weights.outputs,
                        is_first_k_block: k_block == 0,
                        bias,
                        epilogue,
                        accuracy: layout.format.accuracy(),
                        isa: self.weights.isa,
                    };
                    let (x, k_steps) = (x.slice(rows), k_steps.clone());
                    macro_rules! dispatch_height {
                        ($($height:literal)*) => {
                            match height {
                                $($height if $height <= K::MR => {
                                    tile_column::<S, K, $height>(s, x, weights, k_steps, target, &mut prefetch)
                                })*
                                _ => unreachable!("a micro-tile of {height} rows"),
                            }
                        };
                    }
                    dispatch_height!(1 2 3 4 5 6 7 8 9 10 11 12)
                }
            }
        }
    }
}

/// Heights of the micro-tiles that cover `rows` rows, with the number of tiles of each height. The last two share the
/// remaining rows: low tiles have too few accumulators to hide the latency of FMA.
fn micro_tiles(rows: usize, mr: usize) -> [(usize, usize); 3] {
    match (rows / mr, rows % mr) {
        (0, left) => [(left, 1), (0, 0), (0, 0)],
        (full, 0) => [(mr, full), (0, 0), (0, 0)],
        (full, left) => {
            let first = (mr + left).div_ceil(2);
            [(mr, full - 1), (first, 1), (mr + left - first, 1)]
        }
    }
}

/// The output of a column of micro-tiles, and the epilogue of their accumulators.
struct Target<'a> {
    output: *mut f32,
    stride: usize,
    /// The first row, as the epilogue counts rows.
    row: usize,
    /// Outputs of the panel.
    columns: Range<usize>,
    /// Outputs of the whole matrix.
    outputs: usize,
    /// Whether accumulators start from 0, not from the partial sums in the output.
    is_first_k_block: bool,
    /// The bias of these columns if this is the last K block; empty otherwise, or if there is none. It is added in registers.
    bias: &'a [f32],
    /// The rest of the epilogue, if this is the last K block.
    epilogue: Option<&'a Epilogue<'a>>,
    accuracy: Accuracy,
    isa: Isa,
}

/// Computes a column of micro-tiles of `R` rows each, for one K block.
///
/// # Safety
/// `x` has a multiple of `R` rows in the operand format of `K`, and with the panel the K steps `k_steps`. In each row,
/// `target.output` is valid for writes of `target.columns.len()` values, and for reads if this is not the first K block
/// or there is an epilogue.
#[inline(always)]
unsafe fn tile_column<S: Simd, K: MicroKernel<S>, const R: usize>(
    s: S,
    x: Lhs,
    panel: &[u32],
    k_steps: Range<usize>,
    target: Target,
    prefetch: &mut Prefetch,
) {
    let Target { mut output, stride, mut row, columns, outputs, is_first_k_block, .. } = target;
    let Target { bias, epilogue, accuracy, isa, .. } = target;
    let width = columns.len();
    let mut epilogue = epilogue.map(|epilogue| {
        let accumulators = AccumulatorRows::in_place(output, stride);
        BlockEpilogue::new(epilogue, row + x.rows, columns.clone(), outputs, accuracy, accumulators)
    });
    let bias = (!bias.is_empty()).then(|| [s.load_at(bias, 0, 0.0), s.load_at(bias, S::LANES, 0.0)]);
    let mut x = LhsCursor::new(x);
    while x.rows > 0 {
        let mut accumulators = [[s.splat(0.0); 2]; R];
        if K::STARTS_FROM_PARTIAL_SUMS && !is_first_k_block {
            for (r, accumulators) in accumulators.iter_mut().enumerate() {
                // SAFETY: an earlier K block has written `width` values in row `r`.
                *accumulators = unsafe { load_row(s, output.add(r * stride), width) };
            }
        }
        // SAFETY: `x` has at least `R` rows left, and the rows and the panel have these K steps by the contract of this
        // function.
        let accumulators = unsafe { K::accumulate(s, x, panel, k_steps.clone(), accumulators, prefetch) };
        for (r, mut accumulators) in accumulators.into_iter().enumerate() {
            if !K::STARTS_FROM_PARTIAL_SUMS && !is_first_k_block {
                // SAFETY: an earlier K block has written `width` values in row `r`.
                let partial_sums = unsafe { load_row(s, output.add(r * stride), width) };
                accumulators =
                    [s.add(partial_sums[0], accumulators[0]), s.add(partial_sums[1], accumulators[1])];
            }
            if let Some(bias) = bias {
                accumulators = [s.add(accumulators[0], bias[0]), s.add(accumulators[1], bias[1])];
            }
            // SAFETY: `output` is valid for writes of `width > 0` values in row `r` by the contract of this function.
            unsafe {
                let output = output.add(r * stride);
                s.store_up_to(output, accumulators[0], width);
                if width > S::LANES {
                    s.store_up_to(output.add(S::LANES), accumulators[1], width - S::LANES);
                }
            }
        }
        if let Some(block) = &mut epilogue {
            // SAFETY: `output` is valid for reads and writes of the columns in these rows, which have just been
            // written.
            unsafe {
                block.replace(AccumulatorRows::in_place(output, stride), row, R, columns.clone());
                // A call, not inlined: one instance serves all heights of micro-tiles.
                block.apply(isa, 0..R);
            }
        }
        // After the last micro-tile the pointer may be out of bounds; it is not dereferenced then.
        output = output.wrapping_add(R * stride);
        row += R;
        x.advance(R);
    }
}

/// Loads up to two vectors of a row; the remaining lanes are 0. A closure in its place might be compiled without the target features of
/// the ISA.
///
/// # Safety
/// `width > 0`, and `from` is valid for reads of `width` values.
#[inline(always)]
unsafe fn load_row<S: Simd>(s: S, from: *const f32, width: usize) -> [S::F; 2] {
    // SAFETY: `from` is valid for reads of `width > 0` values by the contract of this function; the second vector is loaded only if there
    // are `width − LANES > 0` values after the first.
    unsafe {
        let first = s.load_up_to(from, width);
        let second =
            if width > S::LANES { s.load_up_to(from.add(S::LANES), width - S::LANES) } else { s.splat(0.0) };
        [first, second]
    }
}

/// The two accumulator vectors of each row of a micro-tile.
type Accumulators<S, const R: usize> = [[<S as Simd>::F; 2]; R];

/// The rows of `x` that remain to be multiplied.
#[derive(Clone, Copy)]
struct LhsCursor {
    elements: *const u32,
    stride: usize,
    scales: *const f32,
    /// Scales per row.
    groups: usize,
    rows: usize,
}

impl LhsCursor {
    #[inline(always)]
    fn new(x: Lhs) -> Self {
        LhsCursor {
            elements: x.elements.as_ptr(),
            stride: x.stride,
            scales: x.scales.as_ptr(),
            groups: x.groups,
            rows: x.rows,
        }
    }

    /// Skips the next rows. After the last row the pointers may be out of bounds; they are not dereferenced then.
    #[inline(always)]
    fn advance(&mut self, rows: usize) {
        self.elements = self.elements.wrapping_add(rows * self.stride);
        self.scales = self.scales.wrapping_add(rows * self.groups);
        self.rows -= rows;
    }

    /// Pointers to the next `R` rows.
    ///
    /// # Safety
    /// There are `R` rows left.
    #[inline(always)]
    unsafe fn row_pointers<const R: usize>(self) -> [*const u32; R] {
        // SAFETY: there is a row `r < R` by the contract of this function, so the offset is inside the rows.
        let pointers = std::array::from_fn(|r| unsafe { self.elements.add(r * self.stride) });
        // If the compiler knew how the pointers relate, it would recompute them in every K step, with half as many
        // instructions as the products take.
        black_box(pointers)
    }
}

/// The inner loop over the K steps of a micro-tile, for one operand format.
trait MicroKernel<S: Simd> {
    /// Whether accumulators start from the partial sums of the K blocks before. If not, they start from 0 and are added
    /// to them.
    const STARTS_FROM_PARTIAL_SUMS: bool;
    /// Maximum rows of a micro-tile.
    const MR: usize = S::MR;
    /// K steps of an iteration, in which some weights of the next K block are prefetched.
    const UNROLL: usize;
    /// Packed elements of a K step.
    fn k_step() -> usize;

    /// Accumulates the products of `R` rows and a panel over a range of K steps.
    ///
    /// # Safety
    /// `x` has at least `R` rows left. They and the panel are in the operand format of this kernel and have these K
    /// steps.
    unsafe fn accumulate<const R: usize>(
        s: S,
        x: LhsCursor,
        panel: &[u32],
        k_steps: Range<usize>,
        accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R>;
}

/// A dot product of packed elements.
trait DotProduct<S: Simd> {
    type Operand: Copy;
    type Accumulator: Copy;
    /// Packed elements of an operand.
    const ELEMENTS: usize = 1;
    /// Operands per iteration of the unrolled loop. Fewer would cost loop overhead, more would need too many registers.
    const UNROLL: usize;
    /// Broadcasts packed elements of `x` to every lane.
    ///
    /// # Safety
    /// `from` is valid for reads of `ELEMENTS` u32.
    unsafe fn splat(s: S, from: *const u32) -> Self::Operand;
    /// Loads the packed elements of `LANES` outputs, from rows of a panel.
    ///
    /// # Safety
    /// `from` is valid for reads of `LANES` u32, and so are the next `ELEMENTS − 1` rows of 2 · `LANES` u32.
    unsafe fn load(s: S, from: *const u32) -> Self::Operand;
    /// `sum + a · b`, over all values of the packed elements.
    fn accumulate(s: S, sum: Self::Accumulator, a: Self::Operand, b: Self::Operand) -> Self::Accumulator;
}

/// Accumulates the products of the packed elements `elements` of `R` rows and as many rows of a panel, and advances `prefetch` in
/// each iteration of the unrolled loop.
///
/// # Safety
/// Each pointer in `rows` is valid for reads of `elements.end` u32. `panel`, which points to the element
/// `elements.start`, is valid for reads of `elements.len() · 2 · LANES` u32. `elements.len()` is a multiple of `D::ELEMENTS`.
#[inline(always)]
unsafe fn dot_products<S: Simd, D: DotProduct<S>, const R: usize>(
    s: S,
    rows: [*const u32; R],
    elements: Range<usize>,
    mut panel: *const u32,
    mut accumulators: [[D::Accumulator; 2]; R],
    mut prefetch: Option<&mut Prefetch>,
) -> [[D::Accumulator; 2]; R] {
    let mut element = elements.start;
    let left = if D::UNROLL == 1 { 0 } else { elements.len() % (D::UNROLL * D::ELEMENTS) };
    let unrolled_end = elements.end - left;
    macro_rules! loop_until {
        ($end:expr, $unroll:expr) => {
            while element < $end {
                if let Some(prefetch) = &mut prefetch {
                    prefetch.advance(s);
                }
                for step in (0..$unroll * D::ELEMENTS).step_by(D::ELEMENTS) {
                    // SAFETY: `element + step + ELEMENTS <= elements.end`, so `rows` can be read there; the panel has 2 · `LANES`
                    // u32 for each element by the contract of this function.
                    unsafe {
                        let weights = panel.add(step * 2 * S::LANES);
                        let weights = [D::load(s, weights), D::load(s, weights.add(S::LANES))];
                        for (row, sums) in rows.iter().zip(&mut accumulators) {
                            let x = D::splat(s, row.add(element + step));
                            *sums =
                                [D::accumulate(s, sums[0], x, weights[0]), D::accumulate(s, sums[1], x, weights[1])];
                        }
                    }
                }
                panel = panel.wrapping_add($unroll * D::ELEMENTS * 2 * S::LANES);
                element += $unroll * D::ELEMENTS;
            }
        };
    }
    loop_until!(unrolled_end, D::UNROLL);
    if D::UNROLL > 1 {
        loop_until!(elements.end, 1);
    }
    accumulators
}

/// FMA of f32.
struct F32Dot;

impl<S: Simd> DotProduct<S> for F32Dot {
    type Operand = S::F;
    type Accumulator = S::F;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> S::F {
        // SAFETY: `from` is valid for reads of a u32 by the contract of this method.
        s.splat(f32::from_bits(unsafe { *from }))
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> S::F {
        // SAFETY: `from` is valid for reads of `LANES` u32 by the contract of this method; f32 has the same size and
        // every bit pattern is a valid f32.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::F, a: S::F, b: S::F) -> S::F {
        s.fma(a, b, sum)
    }
}

/// Dot product of two bf16, accumulated in f32.
struct Bf16Dot;

impl<S: Simd> DotProduct<S> for Bf16Dot {
    type Operand = S::I;
    type Accumulator = S::F;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> S::I {
        // SAFETY: `from` is valid for reads of a u32 by the contract of this method.
        s.splat_u32(unsafe { *from })
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> S::I {
        // SAFETY: `from` is valid for reads of `LANES` u32 by the contract of this method.
        unsafe { s.load_u32(from) }
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::F, a: S::I, b: S::I) -> S::F {
        s.dot_bf16(sum, a, b)
    }
}

/// Dot product of the 8-bit integers of `N` packed elements, accumulated in i32.
struct Int8Dot<const N: usize>;

impl<S: Simd, const N: usize> DotProduct<S> for Int8Dot<N> {
    type Operand = [S::I; N];
    type Accumulator = S::I;
    const ELEMENTS: usize = N;
    const UNROLL: usize = 2 / N;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> [S::I; N] {
        let mut elements = [s.splat_u32(0); N];
        for (i, element) in elements.iter_mut().enumerate() {
            // SAFETY: `from` is valid for reads of `N` u32 by the contract of this method.
            *element = s.splat_u32(unsafe { *from.add(i) });
        }
        elements
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> [S::I; N] {
        let mut elements = [s.splat_u32(0); N];
        for (i, element) in elements.iter_mut().enumerate() {
            // SAFETY: `LANES` u32 can be read in each of `N` rows of 2 · `LANES` u32 by the contract of this method.
            *element = unsafe { s.load_u32(from.add(i * 2 * S::LANES)) };
        }
        elements
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::I, a: [S::I; N], b: [S::I; N]) -> S::I {
        s.dot_int8(sum, a, b)
    }
}

/// Accumulates every dot product in f32.
struct Direct<D>(PhantomData<D>);

impl<S: Simd, D: DotProduct<S, Accumulator = S::F>> MicroKernel<S> for Direct<D> {
    const STARTS_FROM_PARTIAL_SUMS: bool = false;
    const UNROLL: usize = D::UNROLL;

    #[inline(always)]
    fn k_step() -> usize {
        1
    }

    #[inline(always)]
    unsafe fn accumulate<const R: usize>(
        s: S,
        x: LhsCursor,
        panel: &[u32],
        k_steps: Range<usize>,
        accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R> {
        // SAFETY: a K step is one packed element. `x` has `R` rows with these elements, and the panel has 2 · `LANES`
        // u32 for each, by the contract of this method.
        unsafe {
            let panel = panel.as_ptr().add(k_steps.start * 2 * S::LANES);
            dot_products::<S, D, R>(s, x.row_pointers(), k_steps, panel, accumulators, Some(prefetch))
        }
    }
}

/// Accumulates each int8 group exactly in i32, then adds it in f32, multiplied by the scales of both operands.
struct GroupScaled;

impl<S: Simd> MicroKernel<S> for GroupScaled {
    /// Each K step adds only one value per group, so a sum that starts from 0 gains nothing.
    const STARTS_FROM_PARTIAL_SUMS: bool = true;
    /// Each row also needs the i32 accumulators of a group; both sets have to stay in registers.
    const MR: usize = S::MR / 2;
    const UNROLL: usize = 1;

    /// A group: its scales, its initial accumulators and its packed elements.
    #[inline(always)]
    fn k_step() -> usize {
        2 + S::INT8.group / INT8_PER_LANE
    }

    #[inline(always)]
    unsafe fn accumulate<const R: usize>(
        s: S,
        x: LhsCursor,
        panel: &[u32],
        k_steps: Range<usize>,
        mut accumulators: Accumulators<S, R>,
        prefetch: &mut Prefetch,
    ) -> Accumulators<S, R> {
        let elements = S::INT8.group / INT8_PER_LANE;
        // SAFETY: a K step is a group. `x` has `R` rows with the packed elements and scales of these groups, and the
        // panel has `(2 + elements) · 2 · LANES` u32 for each group, by the contract of this method.
        unsafe {
            let rows = x.row_pointers();
            // With a known count the compiler would unroll the loop over the elements, and spill the weights.
            let count = if S::INT8.adds_in_i16 { black_box(elements) } else { elements };
            for g in k_steps {
                prefetch.advance(s);
                let scales = panel.as_ptr().add(g * (2 + elements) * 2 * S::LANES);
                let initial = scales.add(2 * S::LANES);
                let exact = [[s.load_u32(initial), s.load_u32(initial.add(S::LANES))]; R];
                let (group, weights) = (g * elements..g * elements + count, initial.add(2 * S::LANES));
                let exact = if S::INT8.adds_in_i16 {
                    dot_products::<S, Int8Dot<2>, R>(s, rows, group, weights, exact, None)
                } else {
                    dot_products::<S, Int8Dot<1>, R>(s, rows, group, weights, exact, None)
                };
                let scales = [s.load(scales.cast()), s.load(scales.add(S::LANES).cast())];
                for (r, (sums, exact)) in accumulators.iter_mut().zip(exact).enumerate() {
                    let scale = s.splat(*x.scales.add(r * x.groups + g));
                    sums[0] = s.fma(s.i32_to_f32(exact[0]), s.mul(scale, scales[0]), sums[0]);
                    sums[1] = s.fma(s.i32_to_f32(exact[1]), s.mul(scale, scales[1]), sums[1]);
                }
            }
        }
        accumulators
    }
}
