//! A tensor in a file, and its elements.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};
use safetensors::Dtype;

use crate::nn::SafetensorsDtype;
use crate::sys::mapped_file::MappedFile;

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// The distance of consecutive elements along each axis, in elements; `None` for row-major order without
    /// gaps.
    pub(super) strides: Option<Arc<[usize]>>,
    pub(super) file: Arc<MappedFile>,
    /// Byte range in the file, from the first element to the last one.
    pub(super) bytes: Range<usize>,
}

impl Entry {
    /// The part `index` of `parts` equal ones of the first axis.
    pub(super) fn part(&self, index: usize, parts: usize) -> Entry {
        self.part_of_runs(index, parts, 1)
    }

    /// The part `index` of `parts` equal ones in each of equal `runs` of the first axis, one after the other;
    /// of several runs they are an axis of the part.
    pub(super) fn part_of_runs(&self, index: usize, parts: usize, runs: usize) -> Entry {
        let mut part = self.clone();
        let Some(rows) = part.shape.first_mut() else { return part };
        *rows /= runs * parts;
        let rows = *rows;
        if runs == 1 && self.strides.is_none() {
            let length = self.bytes.len() / parts;
            part.bytes = self.bytes.start + index * length..self.bytes.start + (index + 1) * length;
            return part;
        }
        let strides = self.strides.clone().unwrap_or_else(|| row_major(&self.shape));
        part.bytes.start += index * rows * strides[0] * (self.dtype.bitsize() / 8);
        if runs > 1 {
            part.shape.insert(0, runs);
            part.strides = Some([&[parts * rows * strides[0]], &strides[..]].concat().into());
        }
        part
    }

    /// Fills `into` with the bytes of the elements from element `first` on, in row-major order.
    fn read_bytes(&self, first: usize, into: &mut [u8]) -> Result<()> {
        let size = self.dtype.bitsize() / 8;
        let Some(strides) = &self.strides else {
            return self.file.read(self.bytes.start + first * size, into);
        };
        let bytes: &[u8] = self.file.as_ref().as_ref();
        // The indices of an element, the last axis first.
        let mut indices: Vec<usize> = Vec::with_capacity(strides.len());
        let mut rest = first;
        for length in self.shape.iter().rev() {
            indices.push(rest % length);
            rest /= length;
        }
        let mut offset: usize = indices.iter().zip(strides.iter().rev()).map(|(i, stride)| i * stride).sum();
        for element in into.chunks_exact_mut(size) {
            let start = self.bytes.start + offset * size;
            element.copy_from_slice(&bytes[start..start + size]);
            for ((i, length), stride) in
                indices.iter_mut().zip(self.shape.iter().rev()).zip(strides.iter().rev())
            {
                *i += 1;
                offset += stride;
                if *i < *length {
                    break;
                }
                offset -= *i * stride;
                *i = 0;
            }
        }
        Ok(())
    }

    /// Fills `values` with the elements from element `first` on, and returns how many of them are NaN or
    /// infinite.
    pub(super) fn read(&self, dtype: SafetensorsDtype, first: usize, values: &mut [f32]) -> Result<usize> {
        match dtype {
            SafetensorsDtype::F32 => {
                self.read_bytes(first, bytemuck::cast_slice_mut(values))?;
                values.iter_mut().for_each(|x| *x = f32::from_le_bytes(x.to_ne_bytes()));
            }
            _ => {
                let mut bytes = vec![0; values.len() * dtype.size()];
                self.read_bytes(first, &mut bytes)?;
                dtype.decode(&bytes, values, |out, x| *out = x);
            }
        }
        // u32 lanes are summed faster than usize, and the count fits.
        let not_finite: u32 = values.iter().map(|x| u32::from(!x.is_finite())).sum();
        Ok(not_finite as usize)
    }

    /// All elements in f32; those of i8 are not scaled.
    pub(super) fn to_f32(&self, name: &str, path: String) -> Result<Vec<f32>> {
        let count = self.shape.iter().product();
        if self.dtype == Dtype::I8 {
            let mut bytes = vec![0u8; count];
            self.read_bytes(0, &mut bytes)?;
            return Ok(bytes.into_iter().map(|byte| f32::from(byte as i8)).collect());
        }
        let Some(dtype) = safetensors_dtype(self.dtype) else {
            bail!("{path}: tensor {name} is of type {:?}, expected I8, F32, F16, BF16 or F64", self.dtype)
        };
        let mut values = vec![0f32; count];
        self.read(dtype, 0, &mut values)?;
        Ok(values)
    }

    /// All elements as indices below `end`.
    pub(super) fn to_indices(&self, name: &str, path: String, end: usize) -> Result<Vec<usize>> {
        let mut bytes = vec![0u8; self.shape.iter().product::<usize>() * (self.dtype.bitsize() / 8)];
        self.read_bytes(0, &mut bytes)?;
        let indices: Vec<i64> = match self.dtype {
            Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
            Dtype::U32 => bytes.as_chunks().0.iter().map(|b| i64::from(u32::from_le_bytes(*b))).collect(),
            other => bail!("{path}: tensor {name} is of type {other:?}, expected I64, I32 or U32"),
        };
        let valid = |index: i64| usize::try_from(index).ok().filter(|index| *index < end);
        match indices.iter().copied().map(valid).collect() {
            Some(indices) => Ok(indices),
            None => bail!(
                "{path}: tensor {name} names a row that the table of {end} rows does not have; download the file again"
            ),
        }
    }
}

/// The distance of consecutive elements along each axis in row-major order without gaps.
fn row_major(shape: &[usize]) -> Arc<[usize]> {
    (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect()
}

/// The dtype of a tensor if it is a supported floating-point type.
pub(super) fn safetensors_dtype(dtype: Dtype) -> Option<SafetensorsDtype> {
    match dtype {
        Dtype::F64 => Some(SafetensorsDtype::F64),
        Dtype::F32 => Some(SafetensorsDtype::F32),
        Dtype::F16 => Some(SafetensorsDtype::F16),
        Dtype::BF16 => Some(SafetensorsDtype::BF16),
        _ => None,
    }
}
