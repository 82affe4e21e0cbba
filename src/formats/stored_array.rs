//! Arrays in npy, npz and safetensors files, as the headers of the files describe them.

use half::{bf16, f16};

/// An array in a file. Whether the file has all of its elements is for the reader to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredArray {
    /// Its name; empty in npy.
    pub name: String,
    /// The size of each axis.
    pub shape: Vec<usize>,
    /// The type of its elements, as the format names it.
    pub type_name: String,
    /// The type of its elements, if they can be those of vectors.
    pub element: Option<ElementType>,
    /// Whether the first byte of an element is the highest.
    pub is_big_endian: bool,
    /// Whether the elements of a dimension are consecutive, and not those of a vector.
    pub is_column_major: bool,
    /// Offset of the first element in the file, in bytes.
    pub offset: u64,
}

/// The type of elements of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// `f16`.
    F16,
    /// `bf16`.
    Bf16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `i8`.
    I8,
    /// `u8`, which only signs are stored in.
    U8,
}

impl ElementType {
    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::I8 | ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 => 4,
            ElementType::F64 => 8,
        }
    }

    /// The f32 nearest to a stored element.
    pub fn read(self, is_big_endian: bool, stored: &[u8]) -> f32 {
        let mut bytes = [0; 8];
        bytes[..stored.len()].copy_from_slice(stored);
        if is_big_endian {
            bytes[..stored.len()].reverse();
        }
        let bits = u64::from_le_bytes(bytes);
        match self {
            ElementType::I8 => f32::from(bits as u8 as i8),
            ElementType::U8 => f32::from(bits as u8),
            ElementType::F16 => f16::from_bits(bits as u16).to_f32(),
            ElementType::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            ElementType::F32 => f32::from_bits(bits as u32),
            ElementType::F64 => f64::from_bits(bits) as f32,
        }
    }
}
