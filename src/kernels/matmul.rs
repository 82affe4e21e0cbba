//! `x Wᵀ` with the weights packed once.
//!
//! Weights lie in panels of 32 outputs: for each input the 32 weights that it meets, one after another. A tile
//! of a few rows of `x` walks down a panel and keeps its sums in registers, so a panel is read once a tile and
//! `x` straight from where it lies. Every sum runs over the inputs in their order, whatever the height of the
//! tile: a row's result has the same bits alone and in any batch.

use rayon::prelude::*;

use super::isa::{Isa, Set};

/// Outputs of a panel.
pub const PANEL: usize = 32;

/// A cache line of weights; loads that never cross one are what the alignment is for.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

const LINES: usize = PANEL / 16;

/// A weight matrix of `(outputs, inputs)` in panels `[outputs / 32][inputs][32]`, the last filled up with zeros.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    lines: Vec<Line>,
    inputs: usize,
    outputs: usize,
}

impl PackedMatrix {
    /// Packs a row-major `(outputs, inputs)` matrix.
    ///
    /// # Panics
    /// If `weight` does not have `outputs · inputs` numbers.
    pub fn pack(weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs, "the matrix has the shape that is said");
        let mut lines = vec![Line([0.0; 16]); outputs.div_ceil(PANEL) * inputs * LINES];
        let panels = lines.par_chunks_mut(inputs * LINES).zip(weight.par_chunks(PANEL * inputs));
        panels.for_each(|(panel, rows)| {
            for (column, row) in rows.chunks(inputs).enumerate() {
                for (x, line) in row.iter().zip(panel.iter_mut().skip(column / 16).step_by(LINES)) {
                    line.0[column % 16] = *x;
                }
            }
        });
        PackedMatrix { lines, inputs, outputs }
    }

    /// Columns of `x`.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Columns of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    fn panel(&self, index: usize) -> &[Line] {
        &self.lines[index * self.inputs * LINES..][..self.inputs * LINES]
    }
}

/// Multiplies rows of `x`, each of [`PackedMatrix::inputs`] numbers, with one panel, and gives `take` the number
/// of each row and its 32 sums; those past the last output are 0.
///
/// # Panics
/// If `x` is not whole rows, or there is no such panel.
pub fn multiply_panel(
    isa: Isa,
    x: &[f32],
    weights: &PackedMatrix,
    panel: usize,
    mut take: impl FnMut(usize, &[f32; PANEL]),
) {
    assert!(x.len().is_multiple_of(weights.inputs), "rows are whole");
    let (height, tile): (usize, Tile) = match isa.set() {
        // SAFETY: there is such an `Isa` only where the processor has been asked for AVX-512 F.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => (12, |x, panel, sums| unsafe { x86::tile_avx512(x, panel, sums) }),
        // SAFETY: there is such an `Isa` only where the processor has been asked for AVX2 and FMA.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => (3, |x, panel, sums| unsafe { x86::tile_avx2(x, panel, sums) }),
        Set::Portable => (4, |x, panel, sums| tile_of_rows::<[f32; 8]>(x, panel, sums)),
    };
    let panel = weights.panel(panel);
    let mut sums = [[0f32; PANEL]; MAX_HEIGHT];
    for (i, rows) in x.chunks(height * weights.inputs).enumerate() {
        let sums = &mut sums[..rows.len() / weights.inputs];
        tile(rows, panel, sums);
        for (r, sums) in sums.iter().enumerate() {
            take(i * height + r, sums);
        }
    }
}

/// Rows of `x`, a panel, and one array of sums a row.
type Tile = fn(&[f32], &[Line], &mut [[f32; PANEL]]);

/// The most rows that any instruction set keeps in registers.
const MAX_HEIGHT: usize = 12;

/// A register of `f32`.
trait Vector: Copy {
    const LANES: usize;
    fn splat(x: f32) -> Self;
    /// The numbers of a line from `start` on.
    fn load(line: &Line, start: usize) -> Self;
    /// `self + a · b`.
    fn add_product(self, a: Self, b: Self) -> Self;
    fn store(self, to: &mut [f32]);
}

/// Eight numbers that the compiler keeps in what registers the target has.
impl Vector for [f32; 8] {
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        [x; 8]
    }

    #[inline(always)]
    fn load(line: &Line, start: usize) -> Self {
        std::array::from_fn(|i| line.0[start + i])
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + a[i] * b[i])
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to.copy_from_slice(&self);
    }
}

/// A tile of as many rows as there are arrays of sums.
#[inline(always)]
fn tile_of_rows<V: Vector>(x: &[f32], panel: &[Line], sums: &mut [[f32; PANEL]]) {
    macro_rules! heights {
        ($($height:literal)*) => {
            match sums.len() {
                $($height => tile::<V, $height>(x, panel, sums.first_chunk_mut().expect("the height matched")),)*
                height => unreachable!("a tile of {height} rows"),
            }
        };
    }
    heights!(0 1 2 3 4 5 6 7 8 9 10 11 12)
}

#[inline(always)]
fn tile<V: Vector, const R: usize>(x: &[f32], panel: &[Line], sums: &mut [[f32; PANEL]; R]) {
    // Registers of a panel's row; eight is the most that any vector needs.
    let registers = PANEL / V::LANES;
    let per_line = 16 / V::LANES;
    let inputs = panel.len() / LINES;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r * inputs..][..inputs]);
    let mut accumulators = [[V::splat(0.0); 4]; R];
    debug_assert!(registers <= 4);
    for (i, lines) in panel.as_chunks::<LINES>().0.iter().enumerate() {
        let mut weights = [V::splat(0.0); 4];
        for (c, weight) in weights.iter_mut().enumerate().take(registers) {
            *weight = V::load(&lines[c / per_line], c % per_line * V::LANES);
        }
        for (row, accumulators) in rows.iter().zip(&mut accumulators) {
            let x = V::splat(row[i]);
            for (sum, weight) in accumulators.iter_mut().zip(&weights).take(registers) {
                *sum = sum.add_product(x, *weight);
            }
        }
    }
    for (sums, accumulators) in sums.iter_mut().zip(&accumulators) {
        for (to, sum) in sums.chunks_mut(V::LANES).zip(accumulators) {
            sum.store(to);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Line, PANEL, Vector, tile_of_rows};

    impl Vector for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: inlined only into `tile_avx512`, whose caller has AVX-512.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn load(line: &Line, start: usize) -> Self {
            let from = &line.0[start..start + 16];
            // SAFETY: as `splat`; the slice has the 16 numbers that are read.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: as `splat`.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            assert_eq!(to.len(), 16);
            // SAFETY: as `splat`; the slice has the 16 numbers that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self) }
        }
    }

    impl Vector for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: inlined only into `tile_avx2`, whose caller has AVX2.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        fn load(line: &Line, start: usize) -> Self {
            let from = &line.0[start..start + 8];
            // SAFETY: as `splat`; the slice has the 8 numbers that are read.
            unsafe { _mm256_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: inlined only into `tile_avx2`, whose caller has FMA.
            unsafe { _mm256_fmadd_ps(a, b, self) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            assert_eq!(to.len(), 8);
            // SAFETY: as `splat`; the slice has the 8 numbers that are written.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self) }
        }
    }

    /// # Safety
    /// The processor has to have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn tile_avx512(x: &[f32], panel: &[Line], sums: &mut [[f32; PANEL]]) {
        tile_of_rows::<__m512>(x, panel, sums);
    }

    /// # Safety
    /// The processor has to have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn tile_avx2(x: &[f32], panel: &[Line], sums: &mut [[f32; PANEL]]) {
        tile_of_rows::<__m256>(x, panel, sums);
    }
}
