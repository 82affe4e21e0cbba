//! The packed right operand of a GEMM.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::cache_line::{CacheLine, elements, elements_mut, lines_of_bytes, zeroed_lines};
use super::layout::{F32_SIGNIFICAND_BITS, GemmType, OperandFormat, PackedLayout};
use super::pack::{MatrixView, pack_panel};
use crate::isa::Isa;
use crate::tiles::TILE_ROW_BYTES;

/// Bytes with a stable address, such as a memory-mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The packed elements of a matrix.
#[derive(Clone)]
pub(super) enum Lines {
    /// In memory of this process.
    Owned(Vec<CacheLine>),
    /// A range of shared bytes, of whole lines at the alignment of a line.
    Shared(SharedBytes, Range<usize>),
}

impl Lines {
    /// All lines.
    fn as_slice(&self) -> &[CacheLine] {
        match self {
            Lines::Owned(lines) => lines,
            Lines::Shared(bytes, range) => {
                lines_of_bytes(&(**bytes).as_ref()[range.clone()]).expect("the range was checked")
            }
        }
    }

    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// The lines, to be written; shared ones are given up for none.
    fn owned(&mut self) -> &mut Vec<CacheLine> {
        if matches!(self, Lines::Shared(..)) {
            *self = Lines::Owned(Vec::new());
        }
        match self {
            Lines::Owned(lines) => lines,
            Lines::Shared(..) => unreachable!("shared lines were replaced"),
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines", self.len())
    }
}

/// A weight matrix `(outputs, inputs)`, packed into panels of NR outputs. The last panel is padded with
/// zeros.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    pub(super) isa: Isa,
    gemm_type: GemmType,
    pub(super) lines: Lines,
    pub(super) layout: PackedLayout,
    pub(super) outputs: usize,
}

impl PackedMatrix {
    /// Packs a row-major `(outputs, inputs)` matrix for an ISA.
    ///
    /// # Panics
    /// If `weight` does not have `outputs · inputs` values.
    pub fn pack(isa: Isa, gemm_type: GemmType, weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs, "the matrix has this shape");
        let copy = |first: usize, to: &mut [f32]| -> Result<(), Infallible> {
            to.copy_from_slice(&weight[first..first + to.len()]);
            Ok(())
        };
        match Self::pack_with(isa, gemm_type, outputs, inputs, F32_SIGNIFICAND_BITS, copy) {
            Ok(packed) => packed,
            Err(never) => match never {},
        }
    }

    /// Packs a row-major `(outputs, inputs)` matrix that is read panel by panel. `read(first, values)` fills
    /// `values` with the elements from index `first` on; several threads call it concurrently. The elements
    /// have `significand_bits` significant bits: 8 if they were stored as bf16, 11 as f16. On tiles they take
    /// no more bf16 parts than that; the products have the same bits.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn pack_with<E: Send>(
        isa: Isa,
        gemm_type: GemmType,
        outputs: usize,
        inputs: usize,
        significand_bits: u32,
        read: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let mut packed = Self::empty(isa, gemm_type);
        let layout = packed.reshape(outputs, inputs, significand_bits);
        let panels = packed.lines.owned().par_chunks_mut(layout.panel_lines()).enumerate();
        panels.try_for_each_init(Vec::new, |values, (panel, lines)| {
            let first = panel * layout.nr;
            values.resize(layout.nr.min(outputs - first) * inputs, 0.0);
            read(first * inputs, values)?;
            let from = MatrixView { data: values, stride: inputs, transposed: false };
            pack_panel(isa, layout, from, elements_mut(lines));
            Ok(())
        })?;
        Ok(packed)
    }

    /// A matrix that [`PackedMatrix::pack_with`] packed with the same arguments, whose
    /// [`PackedMatrix::elements`] are `range` of `bytes`. `None` if the range does not have the size of such
    /// a matrix or the alignment of a cache line.
    pub fn from_packed(
        isa: Isa,
        gemm_type: GemmType,
        [outputs, inputs]: [usize; 2],
        significand_bits: u32,
        bytes: SharedBytes,
        range: Range<usize>,
    ) -> Option<Self> {
        let layout = PackedLayout::new(isa, gemm_type, inputs, significand_bits);
        let lines = lines_of_bytes((*bytes).as_ref().get(range.clone())?)?.len();
        (lines == outputs.div_ceil(layout.nr) * layout.panel_lines()).then(|| PackedMatrix {
            isa,
            gemm_type,
            lines: Lines::Shared(bytes, range),
            layout,
            outputs,
        })
    }

    /// The packed elements of all panels, whose layout depends on ISA, GEMM type and significant bits.
    pub fn elements(&self) -> &[u32] {
        elements(self.lines.as_slice())
    }

    /// Bytes of a packed `(outputs, inputs)` matrix of [`PackedMatrix::pack_with`]; saturates on overflow.
    pub fn packed_bytes(
        isa: Isa,
        gemm_type: GemmType,
        outputs: usize,
        inputs: usize,
        significand_bits: u32,
    ) -> usize {
        // The sizes may come from an unchecked config. f64 does not overflow.
        const INPUTS: usize = TILE_ROW_BYTES;
        let layout = PackedLayout::new(isa, gemm_type, INPUTS, significand_bits);
        let bytes_per_value = (layout.panel * size_of::<u32>()) as f64 / (INPUTS * layout.nr) as f64;
        let outputs = outputs.checked_next_multiple_of(layout.nr).unwrap_or(usize::MAX);
        (outputs as f64 * inputs as f64 * bytes_per_value) as usize
    }

    fn empty(isa: Isa, gemm_type: GemmType) -> Self {
        let layout = PackedLayout::new(isa, gemm_type, 0, F32_SIGNIFICAND_BITS);
        PackedMatrix { isa, gemm_type, lines: Lines::Owned(Vec::new()), layout, outputs: 0 }
    }

    /// Packs another matrix into the memory of this one, which grows as needed.
    ///
    /// # Panics
    /// If the view does not have `outputs` outputs of `inputs` inputs.
    pub fn repack(&mut self, gemm_type: GemmType, from: MatrixView, outputs: usize, inputs: usize) {
        let isa = self.isa;
        self.gemm_type = gemm_type;
        let layout = self.reshape(outputs, inputs, F32_SIGNIFICAND_BITS);
        for (panel, lines) in
            self.lines.owned().chunks_mut(layout.panel_lines()).take(outputs.div_ceil(layout.nr)).enumerate()
        {
            let first = panel * layout.nr;
            let from = from.panel(first..outputs.min(first + layout.nr), inputs);
            pack_panel(isa, layout, from, elements_mut(lines));
        }
    }

    fn reshape(&mut self, outputs: usize, inputs: usize, significand_bits: u32) -> PackedLayout {
        self.outputs = outputs;
        self.layout = PackedLayout::new(self.isa, self.gemm_type, inputs, significand_bits);
        let lines = outputs.div_ceil(self.layout.nr) * self.layout.panel_lines();
        if lines > self.lines.len() {
            self.lines = Lines::Owned(zeroed_lines(lines));
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

    /// Whether rows of `x` that were converted for `other` can be multiplied with this matrix, too.
    pub fn shares_lhs_with(&self, other: &PackedMatrix) -> bool {
        self.layout.format.shares_lhs_with(other.layout.format) && self.inputs() == other.inputs()
    }

    /// Whether rows of `x` are converted: to bf16 or to 8-bit integers.
    pub fn converts_lhs(&self) -> bool {
        !matches!(self.layout.format, OperandFormat::F32 { .. })
    }

    /// Bytes of a row of `x` in the operand format.
    pub fn lhs_row_bytes(&self) -> usize {
        self.layout.lhs_row * size_of::<u32>()
    }

    /// The inputs of a row of `x` can be converted in parts that begin and end at multiples of this.
    pub fn lhs_step(&self) -> usize {
        self.layout.lhs_step()
    }

    /// Whether [`super::gemm_into_lhs`] can compute a left operand of `next` with this matrix: both are in
    /// bf16 tiles.
    pub fn chains_with(&self, next: &PackedMatrix) -> bool {
        matches!(self.layout.format, OperandFormat::Bf16Tiles { .. })
            && self.layout.format.shares_lhs_with(next.layout.format)
            && self.outputs == next.inputs()
    }

    /// The ISA that the matrix is packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.layout.nr)
    }

    /// MC: the rows of `x` to multiply with all panels before the next rows are taken. Their packed elements
    /// stay in L2.
    pub fn mc(&self) -> usize {
        self.layout.mc()
    }

    /// The outputs of a range of panels.
    pub fn columns(&self, panels: Range<usize>) -> Range<usize> {
        panels.start * self.layout.nr..self.outputs.min(panels.end * self.layout.nr)
    }

    /// The packed elements of a panel.
    pub(super) fn panel(&self, index: usize) -> &[u32] {
        let lines = self.layout.panel_lines();
        elements(&self.lines.as_slice()[index * lines..][..lines])
    }
}

/// An empty f32 matrix for the selected ISA, to be filled by [`PackedMatrix::repack`].
impl Default for PackedMatrix {
    fn default() -> Self {
        Self::empty(Isa::selected(), GemmType::F32)
    }
}
