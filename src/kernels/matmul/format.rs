//! How operands are stored for an instruction set.

use super::GROUP;
use super::tiles::NR;
use crate::kernels::isa::{Isa, Kernel};
use crate::kernels::math::Accuracy;
use crate::kernels::simd::Simd;
use crate::kernels::tiles;

/// What products are computed in; accumulators are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Operands as they are. On tiles each is the sum of three bf16, exactly, and products of their parts below 2⁻²⁴ of the whole
    /// are left out (Henry, Tang & Heinecke 2019).
    F32,
    /// Operands as sums of two bf16, where tiles make that faster; elsewhere f32.
    Bf16x3,
    /// Operands rounded to bf16, where the instruction set has such products and they are faster than those of f32; elsewhere
    /// weights rounded to bf16, and products of f32.
    Bf16,
    /// Both operands as integers from −127 to 127 with a scale for every [`GROUP`] inputs of a row of `x` and of a row of weights;
    /// sums within a group are exact.
    Int8,
}

impl Compute {
    /// All of them.
    pub const ALL: [Compute; 4] = [Compute::F32, Compute::Bf16x3, Compute::Bf16, Compute::Int8];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Bf16x3 => "bf16x3",
            Compute::Bf16 => "bf16",
            Compute::Int8 => "int8",
        }
    }
}

/// How both operands are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A word is an f32; weights are rounded to bf16 where that is said.
    F32 { rounded: bool },
    /// A word is two bf16.
    Bf16,
    /// A word is 8-bit integers, and every group has its scales.
    Int8,
    /// Tiles of bf16; each operand is the sum of so many parts.
    Bf16Tiles { parts: usize },
    /// Tiles of 8-bit integers, and every group has its scales.
    Int8Tiles,
}

impl Format {
    /// What serves a compute type best.
    pub fn of(isa: Isa, compute: Compute) -> Format {
        match (compute, isa.tile_unit()) {
            (Compute::F32, Some(_)) => Format::Bf16Tiles { parts: 3 },
            (Compute::Bf16x3, Some(_)) => Format::Bf16Tiles { parts: 2 },
            (Compute::Bf16, Some(_)) => Format::Bf16Tiles { parts: 1 },
            (Compute::Int8, Some(_)) => Format::Int8Tiles,
            (Compute::F32 | Compute::Bf16x3, None) => Format::F32 { rounded: false },
            (Compute::Bf16, None) if isa.has_fast_bf16() => Format::Bf16,
            (Compute::Bf16, None) => Format::F32 { rounded: true },
            (Compute::Int8, None) => Format::Int8,
        }
    }

    /// Whether the micro-kernel is one over tiles.
    pub fn is_tiles(self) -> bool {
        matches!(self, Format::Bf16Tiles { .. } | Format::Int8Tiles)
    }

    /// Rows that are read where there are `count`, above 0: tiles are loaded whole.
    pub fn whole_rows(self, count: usize) -> usize {
        if self.is_tiles() { count.next_multiple_of(tiles::ROWS) } else { count }
    }

    /// How exact a function of the product has to be.
    pub fn accuracy(self) -> Accuracy {
        match self {
            Format::F32 { rounded: false } | Format::Bf16Tiles { parts: 2.. } => Accuracy::F32,
            _ => Accuracy::Bf16,
        }
    }

    /// Inputs in a line of a tile.
    pub fn line_inputs(self) -> usize {
        if self == Format::Int8Tiles { GROUP } else { tiles::ROW_BYTES / 2 }
    }
}

/// The sizes of a packed matrix, in words of 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub format: Format,
    /// NR: outputs of a panel.
    pub width: usize,
    pub inputs: usize,
    /// Words of a row of `x`.
    pub row: usize,
    /// Words of a panel.
    pub panel: usize,
}

impl Layout {
    /// Of matrices of `inputs` columns.
    pub fn of(isa: Isa, compute: Compute, inputs: usize) -> Layout {
        struct Widths;
        impl Kernel for Widths {
            type Output = (usize, usize);

            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> (usize, usize) {
                (2 * S::LANES, S::BYTES_PER_WORD)
            }
        }
        let (width, bytes_per_word) = isa.run(Widths);
        let (format, groups) = (Format::of(isa, compute), inputs.div_ceil(GROUP));
        let line = tiles::ROW_BYTES / 4;
        let (width, row, panel) = match format {
            Format::F32 { .. } => (width, inputs, inputs * width),
            Format::Bf16 => (width, inputs.div_ceil(2), inputs.div_ceil(2) * width),
            // Each group has its scales, and what its sums begin with.
            Format::Int8 => {
                let row = groups * GROUP / bytes_per_word;
                (width, row, (row + 2 * groups) * width)
            }
            Format::Bf16Tiles { parts } => {
                let lines = inputs.div_ceil(format.line_inputs()) * parts;
                (NR, lines * line, lines * line * NR)
            }
            Format::Int8Tiles => (NR, groups * line, groups * (line * NR + NR)),
        };
        Layout { format, width, inputs, row, panel }
    }

    /// Lines of a panel, which begins on one.
    pub fn lines(&self) -> usize {
        self.panel.div_ceil(16).max(1)
    }

    /// Scales of a row of `x`.
    pub fn groups(&self) -> usize {
        let is_int8 = matches!(self.format, Format::Int8 | Format::Int8Tiles);
        if is_int8 { self.inputs.div_ceil(GROUP) } else { 0 }
    }
}
