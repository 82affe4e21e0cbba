//! Operand types, and the layout of packed operands for an ISA.

use super::blocking::{MAX_PARTS, TILE_NR, TILES_PER_PANEL, tile_mc, vector_mc};
use super::cache_line::LINE_ELEMENTS;
use super::convert::TILE_ROWS_PER_GROUP;
use crate::isa::{Isa, Kernel};
use crate::math::Accuracy;
use crate::simd::{INT8_PER_LANE, Int8Format, MAX_LANES, Simd};
use crate::tiles::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS};

/// Significant bits of a bf16 value, with the implicit one.
const BF16_SIGNIFICAND_BITS: u32 = 8;
/// Significant bits of an f32 value, with the implicit one.
pub const F32_SIGNIFICAND_BITS: u32 = f32::MANTISSA_DIGITS;

/// Packed elements of an int8 group in a panel of tiles: the scale and the sum of its weights for every
/// output, and its tiles.
pub(super) const INT8_TILE_GROUP: usize =
    2 * TILE_NR + TILE_ROWS_PER_GROUP * TILES_PER_PANEL * TILE_BYTES / 4;

/// The operand type of a GEMM. Accumulators are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmType {
    /// f32 operands. On tiles each operand is split into three bf16 parts, which is exact; products of parts
    /// below 2⁻²⁴ of the result are dropped (Henry, Tang & Heinecke 2019). Weights that were stored as bf16
    /// or f16 have fewer parts.
    F32,
    /// Operands split into two bf16 parts on ISAs with tiles; f32 on all others.
    Bf16x3,
    /// Operands rounded to bf16 on ISAs whose bf16 dot products are faster than f32 FMAs. On all others only
    /// the weights are rounded to bf16, and the products are f32.
    Bf16,
    /// Both operands quantised to 8-bit integers, with one scale per row (of `x` or of the weights) and group
    /// of 128 inputs, and for `x` also a zero point. The sum over a group is exact. On x86 without VNNI a
    /// group has 64 inputs, and the integers are limited so that four products can be added in 16 bits
    /// ([`int8_format`]).
    Int8,
}

impl GemmType {
    /// All types.
    pub const ALL: [GemmType; 4] = [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16, GemmType::Int8];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            GemmType::F32 => "f32",
            GemmType::Bf16x3 => "bf16x3",
            GemmType::Bf16 => "bf16",
            GemmType::Int8 => "int8",
        }
    }
}

/// The storage format of both operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandFormat {
    /// A packed element is one f32. With `bf16_weights` the weights are rounded to bf16.
    F32 { bf16_weights: bool },
    /// A packed element is two bf16.
    Bf16,
    /// A packed element is four 8-bit integers; every group has scales.
    Int8,
    /// Tiles of bf16. A value of `x` is the sum of `parts` parts, a weight that of `weight_parts`, at most as
    /// many.
    Bf16Tiles { parts: usize, weight_parts: usize },
    /// Tiles of 8-bit integers; every group has scales.
    Int8Tiles,
}

impl OperandFormat {
    /// The format in which `isa` computes a GEMM of this type, with weights of `significand_bits` bits.
    pub(super) fn select(isa: Isa, gemm_type: GemmType, significand_bits: u32) -> OperandFormat {
        let tiles = |parts: usize| {
            let weight_parts = (significand_bits.div_ceil(BF16_SIGNIFICAND_BITS) as usize).clamp(1, parts);
            OperandFormat::Bf16Tiles { parts, weight_parts }
        };
        match (gemm_type, isa.tile_unit()) {
            (GemmType::F32, Some(_)) => tiles(MAX_PARTS),
            (GemmType::Bf16x3, Some(_)) => tiles(2),
            (GemmType::Bf16, Some(_)) => tiles(1),
            (GemmType::Int8, Some(_)) => OperandFormat::Int8Tiles,
            (GemmType::F32 | GemmType::Bf16x3, None) => OperandFormat::F32 { bf16_weights: false },
            (GemmType::Bf16, None) if isa.has_fast_bf16() => OperandFormat::Bf16,
            (GemmType::Bf16, None) => OperandFormat::F32 { bf16_weights: true },
            (GemmType::Int8, None) => OperandFormat::Int8,
        }
    }

    /// Whether the tile micro-kernel takes this format.
    pub(super) fn is_tiles(self) -> bool {
        matches!(self, OperandFormat::Bf16Tiles { .. } | OperandFormat::Int8Tiles)
    }

    /// The bf16 parts of a value of `x` and of a weight; 0 in other formats.
    pub(super) fn parts(self) -> (usize, usize) {
        match self {
            OperandFormat::Bf16Tiles { parts, weight_parts } => (parts, weight_parts),
            _ => (0, 0),
        }
    }

    /// Rows of `x` that the micro-kernel reads for `count > 0` rows: tiles are loaded whole.
    pub(super) fn padded_rows(self, count: usize) -> usize {
        if self.is_tiles() { count.next_multiple_of(TILE_ROWS) } else { count }
    }

    /// The accuracy that an activation in the epilogue needs.
    pub(super) fn accuracy(self) -> Accuracy {
        match self {
            OperandFormat::F32 { bf16_weights: false } | OperandFormat::Bf16Tiles { parts: 2.., .. } => {
                Accuracy::F32
            }
            _ => Accuracy::Bf16,
        }
    }

    /// Whether rows of `x` in this format can be multiplied with weights in the format `other`.
    pub(super) fn shares_lhs_with(self, other: OperandFormat) -> bool {
        match (self, other) {
            (OperandFormat::Bf16Tiles { parts, .. }, OperandFormat::Bf16Tiles { parts: others, .. }) => {
                parts == others
            }
            _ => self == other,
        }
    }

    /// Inputs in a tile row: the K step of the tile micro-kernel.
    pub(super) fn inputs_per_tile_row(self) -> usize {
        if self == OperandFormat::Int8Tiles { TILE_ROW_BYTES } else { TILE_ROW_BYTES / 2 }
    }
}

/// The integers of [`GemmType::Int8`] on an ISA.
pub fn int8_format(isa: Isa) -> Int8Format {
    struct VectorFormat;
    impl Kernel for VectorFormat {
        type Output = Int8Format;

        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> Int8Format {
            S::INT8
        }
    }
    isa.run(VectorFormat)
}

/// The layout of packed operands. Lengths are in packed elements (u32).
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedLayout {
    /// The operand format.
    pub format: OperandFormat,
    /// Outputs of a panel.
    pub nr: usize,
    /// Columns of `x` and of the weights.
    pub inputs: usize,
    /// Packed elements of a row of `x`.
    pub lhs_row: usize,
    /// Packed elements of a panel.
    pub panel: usize,
    /// Int8 groups per row of `x`; 0 in all other formats.
    pub groups: usize,
}

impl PackedLayout {
    /// The layout of operands with `inputs` columns, and weights of `significand_bits` bits.
    pub(super) fn new(isa: Isa, gemm_type: GemmType, inputs: usize, significand_bits: u32) -> PackedLayout {
        struct VectorShape;
        impl Kernel for VectorShape {
            type Output = usize;

            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> usize {
                2 * S::LANES
            }
        }
        let nr = isa.run(VectorShape);
        let format = OperandFormat::select(isa, gemm_type, significand_bits);
        let Int8Format { group, .. } = int8_format(isa);
        let is_int8 = matches!(format, OperandFormat::Int8 | OperandFormat::Int8Tiles);
        let groups = if is_int8 { inputs.div_ceil(group) } else { 0 };
        let tile_row = TILE_ROW_BYTES / 4;
        let (nr, lhs_row, panel) = match format {
            OperandFormat::F32 { .. } => (nr, inputs, inputs * nr),
            OperandFormat::Bf16 => (nr, inputs.div_ceil(2), inputs.div_ceil(2) * nr),
            // Each group also stores the scale and the sum of its weights for every output.
            OperandFormat::Int8 => {
                let row = groups * group / INT8_PER_LANE;
                (nr, row, (row + 2 * groups) * nr)
            }
            OperandFormat::Bf16Tiles { parts, weight_parts } => {
                let elements = inputs.div_ceil(format.inputs_per_tile_row()) * tile_row;
                (TILE_NR, elements * parts, elements * weight_parts * TILE_NR)
            }
            OperandFormat::Int8Tiles => {
                (TILE_NR, groups * TILE_ROWS_PER_GROUP * tile_row, groups * INT8_TILE_GROUP)
            }
        };
        PackedLayout { format, nr, inputs, lhs_row, panel, groups }
    }

    /// Inputs that are converted together: those of a vector, a tile row or an int8 group.
    pub(super) fn lhs_step(&self) -> usize {
        match self.format {
            OperandFormat::F32 { .. } => 1,
            OperandFormat::Bf16 => 2 * MAX_LANES,
            OperandFormat::Bf16Tiles { .. } => self.format.inputs_per_tile_row(),
            OperandFormat::Int8 | OperandFormat::Int8Tiles => {
                self.lhs_row * INT8_PER_LANE / self.groups.max(1)
            }
        }
    }

    /// Cache lines of a panel; every panel begins on a cache line.
    pub(super) fn panel_lines(&self) -> usize {
        self.panel.div_ceil(LINE_ELEMENTS).max(1)
    }

    /// MC: rows of `x` to multiply with all panels before the next rows; they stay in L2.
    pub(super) fn mc(&self) -> usize {
        if !self.format.is_tiles() {
            return vector_mc(self.lhs_row, self.nr);
        }
        let steps = self.inputs.div_ceil(self.format.inputs_per_tile_row());
        let (parts, weight_parts) = self.format.parts();
        tile_mc(steps, parts, weight_parts, self.lhs_row)
    }
}
