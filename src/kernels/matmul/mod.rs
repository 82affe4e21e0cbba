//! `x Wᵀ` with the weights packed once.
//!
//! Operands are *words* of 32 bits: one f32, two bf16, or two or four 8-bit numbers, which neighbour each other along
//! the inputs. Weights lie in panels of two registers of outputs: for each word of a row of `x` the words of the weights
//! that it meets, one after another. A tile of a few rows of `x` walks down a panel and keeps its sums in registers, so a
//! panel is read once a tile and `x` straight from where it lies.
//!
//! Every sum runs over the inputs in their order, whatever the height of the tile: a row's result has the same bits
//! alone and in any batch.

mod block;
mod pack;
mod rows;
mod tile;

use std::alloc;
use std::convert::Infallible;
use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::isa::{Isa, Kernel};
use super::simd::{MAX_LANES, Simd};
pub use block::{Block, Blocks};
use pack::Pack;
pub use pack::Source;
pub use rows::{Converted, Rows};
pub use tile::multiply;

/// What products are computed in; sums are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Both operands as they are.
    F32,
    /// Both operands rounded to bf16; where the instruction set has no such products, they are multiplied as f32.
    Bf16,
    /// Both operands as whole numbers from −127 to 127 with a scale for every [`GROUP`] inputs of a row of `x` and of a
    /// row of weights; sums within a group are exact.
    Int8,
}

impl Compute {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Bf16 => "bf16",
            Compute::Int8 => "int8",
        }
    }
}

/// Outputs of a panel in the set with the widest registers.
pub const WIDEST_PANEL: usize = 2 * MAX_LANES;

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

/// How many words things take in one instruction set.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Outputs of a panel.
    width: usize,
    inputs: usize,
    /// Words of a row of `x`.
    row: usize,
    /// Words of a panel.
    panel: usize,
}

impl Layout {
    fn of(isa: Isa, compute: Compute, inputs: usize) -> Layout {
        isa.run(FindLayout(compute, inputs))
    }

    /// Lines of a panel, which begins on one.
    fn lines(&self) -> usize {
        self.panel.div_ceil(16).max(1)
    }

    /// Scales of a row of `x`.
    fn scales(&self, compute: Compute) -> usize {
        if compute == Compute::Int8 { self.inputs.div_ceil(GROUP) } else { 0 }
    }
}

struct FindLayout(Compute, usize);

impl Kernel for FindLayout {
    type Output = Layout;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Layout {
        let FindLayout(compute, inputs) = self;
        let width = 2 * S::LANES;
        let (row, beside) = match compute {
            Compute::Bf16 if S::FAST_BF16 => (inputs.div_ceil(2), 0),
            Compute::F32 | Compute::Bf16 => (inputs, 0),
            // Each group has its scales, and what its sums begin with.
            Compute::Int8 => {
                let groups = inputs.div_ceil(GROUP);
                (groups * GROUP / S::BYTES_PER_WORD, 2 * groups)
            }
        };
        Layout { width, inputs, row, panel: (row + beside) * width }
    }
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
            isa.run(Pack { layout, compute, from, to: words_mut(lines) });
            Ok(())
        })?;
        Ok(packed)
    }

    /// A matrix of nothing.
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
            isa.run(Pack { layout, compute, from, to: words_mut(lines) });
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

    /// The instruction set that it is packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.layout.width)
    }

    /// Rows of `x` that are best multiplied together: of each so much as is taken at a time, they stay in a core's second
    /// cache while all panels pass.
    pub fn rows_at_once(&self) -> usize {
        const BYTES: usize = 384 << 10;
        let row = self.layout.row.clamp(1, tile::DEPTH) * size_of::<u32>();
        // Whole tiles in every set.
        (BYTES / row).min(512) / 12 * 12
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

/// A matrix of nothing, for [`PackedMatrix::repack`].
impl Default for PackedMatrix {
    fn default() -> Self {
        Self::new(Isa::best(), Compute::F32)
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
