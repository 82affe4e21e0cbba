//! GEMM: `x Wᵀ` with the weights packed once, `f(x Wᵀ + b) / d + r` with the epilogue.
//!
//! Weights lie in *panels* of NR outputs. A micro-kernel multiplies MR rows of `x` by a panel and keeps MR × NR accumulators in registers,
//! so that a panel is read once for MR rows, and `x` straight from its rows. There are two kinds of micro-kernels:
//!
//! * over vectors (`vectors.rs`): NR is two registers of outputs. Operands are *words* of 32 bits: one f32, two bf16, or two or four
//!   8-bit integers of neighbouring inputs;
//! * over tiles (`tiles.rs`): MR and NR are two tiles, 32 × 32. f32 is computed from three bf16 parts of each operand.
//!
//! Every sum is taken over the inputs in one order, whatever MR is and however rows are divided among threads: a row's result has the
//! same bits alone and in any batch.

mod block;
mod epilogue;
mod format;
mod lines;
mod pack;
mod rows;
mod tiles;
mod vectors;

use std::alloc;
use std::convert::Infallible;
use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::isa::Isa;
pub use block::{Block, Blocks};
pub use epilogue::Epilogue;
pub use format::Compute;
use format::Layout;
use pack::Pack;
pub use pack::Source;
pub use rows::{Converted, Rows};

/// Inputs that share a scale.
pub const GROUP: usize = 64;

/// Sixteen words, on a cache line of their own: loads never cross one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// A weight matrix of `(outputs, inputs)` in panels, the last one filled up with zeros.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    isa: Isa,
    compute: Compute,
    lines: Vec<Line>,
    layout: Layout,
    outputs: usize,
}

impl PackedMatrix {
    /// Packs a row-major `(outputs, inputs)` matrix for one instruction set.
    ///
    /// # Panics
    /// If `weight` does not have `outputs · inputs` numbers.
    pub fn pack(isa: Isa, compute: Compute, weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs, "the matrix has the shape that is said");
        let copy = |first: usize, to: &mut [f32]| -> Result<(), Infallible> {
            to.copy_from_slice(&weight[first..first + to.len()]);
            Ok(())
        };
        match Self::read(isa, compute, outputs, inputs, copy) {
            Ok(packed) => packed,
            Err(never) => match never {},
        }
    }

    /// The same for a matrix that is read part by part: `read` is called by several threads at once, and writes the numbers
    /// from number `first` on.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read<E: Send>(
        isa: Isa,
        compute: Compute,
        outputs: usize,
        inputs: usize,
        read: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let mut packed = Self::new(isa, compute);
        let layout = packed.reshape(outputs, inputs);
        let panels = packed.lines.par_chunks_mut(layout.lines()).enumerate();
        panels.try_for_each_init(Vec::new, |numbers, (panel, lines)| {
            let first = panel * layout.width;
            numbers.resize(layout.width.min(outputs - first) * inputs, 0.0);
            read(first * inputs, numbers)?;
            let from = Source { x: numbers, stride: inputs, turned: false };
            isa.run(Pack { layout, from, to: words_mut(lines) });
            Ok(())
        })?;
        Ok(packed)
    }

    /// Bytes that a packed matrix takes; saturates.
    pub fn bytes(isa: Isa, compute: Compute, outputs: usize, inputs: usize) -> usize {
        // Sizes of a config that nobody has checked: in f64, which does not overflow.
        let line = Layout::of(isa, compute, GROUP);
        let value = (line.panel * size_of::<u32>()) as f64 / (GROUP * line.width) as f64;
        let outputs = outputs.checked_next_multiple_of(line.width).unwrap_or(usize::MAX);
        (outputs as f64 * inputs as f64 * value) as usize
    }

    /// An empty matrix.
    fn new(isa: Isa, compute: Compute) -> Self {
        PackedMatrix { isa, compute, lines: Vec::new(), layout: Layout::of(isa, compute, 0), outputs: 0 }
    }

    /// Packs other contents into the memory that is there.
    ///
    /// # Panics
    /// If the source does not have so many rows and columns.
    pub fn repack(&mut self, compute: Compute, from: Source, outputs: usize, inputs: usize) {
        let isa = self.isa;
        self.compute = compute;
        let layout = self.reshape(outputs, inputs);
        for (panel, lines) in
            self.lines.chunks_mut(layout.lines()).take(outputs.div_ceil(layout.width)).enumerate()
        {
            let first = panel * layout.width;
            let width = layout.width.min(outputs - first);
            let (start, end) = match from.turned {
                true => (first, (inputs - 1) * from.stride + first + width),
                false => (first * from.stride, (first + width - 1) * from.stride + inputs),
            };
            let from = Source { x: &from.x[start..end], ..from };
            isa.run(Pack { layout, from, to: words_mut(lines) });
        }
    }

    fn reshape(&mut self, outputs: usize, inputs: usize) -> Layout {
        self.outputs = outputs;
        self.layout = Layout::of(self.isa, self.compute, inputs);
        let lines = outputs.div_ceil(self.layout.width) * self.layout.lines();
        if lines > self.lines.len() {
            self.lines = zeros(lines);
        }
        self.layout
    }

    /// Columns of `x`.
    pub fn inputs(&self) -> usize {
        self.layout.inputs
    }

    /// Columns of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Whether rows that were brought to the type of `other` are of its own.
    pub fn takes_rows_of(&self, other: &PackedMatrix) -> bool {
        self.layout.format == other.layout.format && self.inputs() == other.inputs()
    }

    /// The instruction set that it is packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.layout.width)
    }

    /// Rows of `x` that are best multiplied together: of each so much as is taken at a time, they stay in L2 while all panels pass.
    pub fn rows_at_once(&self) -> usize {
        match self.layout.format.is_tiles() {
            true => tiles::rows_at_once(self.layout),
            false => vectors::rows_at_once(self.layout.row),
        }
    }

    /// The outputs of some panels.
    pub fn columns(&self, panels: Range<usize>) -> Range<usize> {
        panels.start * self.layout.width..self.outputs.min(panels.end * self.layout.width)
    }

    fn panel(&self, index: usize) -> &[u32] {
        let lines = self.layout.lines();
        words(&self.lines[index * lines..][..lines])
    }
}

/// An empty matrix, for [`PackedMatrix::repack`].
impl Default for PackedMatrix {
    fn default() -> Self {
        Self::new(Isa::best(), Compute::F32)
    }
}

/// Writes the product of rows with some panels, as the epilogue finishes it. The epilogue counts rows from the first of `x`.
///
/// # Panics
/// If the block does not have the shape of the result, the rows are of another type, or the epilogue has operands of other shapes.
pub fn gemm(x: Rows, weights: &PackedMatrix, panels: Range<usize>, epilogue: &Epilogue, to: &mut Block) {
    let columns = weights.columns(panels.clone());
    assert!(panels.end <= weights.panels(), "there are such panels");
    assert_eq!((to.rows, to.columns), (x.count, columns.len()), "the result has this shape");
    if x.count == 0 {
        return;
    }
    let layout = weights.layout;
    assert_eq!(x.groups, layout.groups(), "rows have their scales");
    assert!(x.scales.len() >= x.count * x.groups, "rows have their scales");
    let rows = layout.format.whole_rows(x.count);
    let end = (rows - 1).checked_mul(x.stride).and_then(|last| last.checked_add(layout.row));
    assert!(end.is_some_and(|end| end <= x.words.len()), "rows are whole");
    if layout.format.is_tiles() {
        tiles::gemm(x, weights, panels, epilogue, to);
    } else {
        weights.isa.run(vectors::Gemm { x, weights, panels, epilogue, to });
    }
}

/// Lines of zeros; those who write them first have their pages given to them, not this thread.
fn zeros(lines: usize) -> Vec<Line> {
    let layout = alloc::Layout::array::<Line>(lines).expect("so many lines fit into memory");
    if lines == 0 {
        return Vec::new();
    }
    // SAFETY: the layout has a size; a line may be all zeros; vector and allocation agree on the layout.
    unsafe {
        let data = alloc::alloc_zeroed(layout);
        if data.is_null() {
            alloc::handle_alloc_error(layout);
        }
        Vec::from_raw_parts(data.cast(), lines, lines)
    }
}

fn words(lines: &[Line]) -> &[u32] {
    // SAFETY: a line is 16 words and nothing else.
    unsafe { slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 16) }
}

fn words_mut(lines: &mut [Line]) -> &mut [u32] {
    // SAFETY: as `words`, and the borrow goes over.
    unsafe { slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}
