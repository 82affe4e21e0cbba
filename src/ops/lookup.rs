//! Embedding tables, and the sum of the rows that a batch looks up in them, with an optional norm.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};

use super::add_norm::{self, NormWeights, add_norm};
use super::check::check_indices;
use super::gpu::{self, Arg, Launch, LaunchOutput};
use super::host::{host_slice, is_host_f32};
use crate::kernels::isa::Isa;
use crate::kernels::softmax::axpy;

pub use crate::kernels::gemm::SharedBytes;

/// The dtype of a tensor in a safetensors file; values are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SafetensorsDtype {
    /// f64.
    F64,
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    BF16,
}

impl SafetensorsDtype {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            SafetensorsDtype::F64 => 8,
            SafetensorsDtype::F32 => 4,
            SafetensorsDtype::F16 | SafetensorsDtype::BF16 => 2,
        }
    }

    /// Significant bits of a value in f32, with the implicit one.
    pub fn significand_bits(self) -> u32 {
        match self {
            SafetensorsDtype::F64 | SafetensorsDtype::F32 => f32::MANTISSA_DIGITS,
            SafetensorsDtype::F16 => f16::MANTISSA_DIGITS,
            SafetensorsDtype::BF16 => bf16::MANTISSA_DIGITS,
        }
    }

    /// Decodes `bytes` and calls `update` with each element of `out` and the value at the same index.
    pub fn decode(self, bytes: &[u8], out: &mut [f32], update: impl Fn(&mut f32, f32)) {
        let mut out = out.iter_mut();
        self.for_each(bytes, |x| {
            if let Some(out) = out.next() {
                update(out, x);
            }
        });
    }

    #[inline]
    fn for_each(self, bytes: &[u8], mut f: impl FnMut(f32)) {
        match self {
            SafetensorsDtype::F64 => {
                bytes.as_chunks().0.iter().for_each(|b| f(f64::from_le_bytes(*b) as f32))
            }
            SafetensorsDtype::F32 => bytes.as_chunks().0.iter().for_each(|b| f(f32::from_le_bytes(*b))),
            SafetensorsDtype::F16 => {
                bytes.as_chunks().0.iter().for_each(|b| f(f16::from_le_bytes(*b).to_f32()))
            }
            SafetensorsDtype::BF16 => {
                bytes.as_chunks().0.iter().for_each(|b| f(bf16::from_le_bytes(*b).to_f32()))
            }
        }
    }
}

/// An embedding table of `(rows, width)`.
#[derive(Clone)]
pub struct EmbeddingTable {
    rows: usize,
    width: usize,
    storage: TableStorage,
}

#[derive(Clone)]
enum TableStorage {
    /// Memory-mapped and decoded row by row: a vocabulary is large, and a batch needs few of its rows.
    Mapped { bytes: SharedBytes, range: Range<usize>, dtype: SafetensorsDtype },
    /// In memory, on any device.
    Tensor(Tensor),
}

impl EmbeddingTable {
    /// The table of `rows · width` values of `dtype` in `bytes[range]`.
    ///
    /// # Errors
    /// If the range does not have this size or exceeds `bytes`.
    pub fn mapped(
        bytes: SharedBytes,
        range: Range<usize>,
        dtype: SafetensorsDtype,
        rows: usize,
        width: usize,
    ) -> Result<Self> {
        let size = rows.checked_mul(width).and_then(|count| count.checked_mul(dtype.size()));
        let length = (*bytes).as_ref().len();
        if size != Some(range.len()) || range.end > length {
            candle_core::bail!(
                "a {dtype:?} table of {rows} rows and {width} columns cannot be bytes {range:?} of {length}"
            );
        }
        Ok(EmbeddingTable { rows, width, storage: TableStorage::Mapped { bytes, range, dtype } })
    }

    /// A table in memory: a tensor of `(rows, width)`.
    ///
    /// # Errors
    /// If the tensor is not a matrix.
    pub fn resident(table: Tensor) -> Result<Self> {
        let (rows, width) = table.dims2()?;
        Ok(EmbeddingTable { rows, width, storage: TableStorage::Tensor(table) })
    }

    /// Bytes of the mapped file that the table covers; 0 for a table in memory.
    pub fn mapped_bytes(&self) -> usize {
        match &self.storage {
            TableStorage::Mapped { range, .. } => range.len(),
            TableStorage::Tensor(_) => 0,
        }
    }

    /// The table as a tensor of `(rows, width)` on `device`, in f32 if it is mapped.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        match &self.storage {
            TableStorage::Tensor(table) => table.to_device(device),
            TableStorage::Mapped { bytes, range, dtype } => {
                let mut out = vec![0f32; self.rows * self.width];
                let bytes = (**bytes).as_ref();
                dtype.decode(&bytes[range.clone()], &mut out, |out, x| *out = x);
                Tensor::from_vec(out, (self.rows, self.width), device)
            }
        }
    }

    /// Row `index` in f32 on the CPU, `(width)`.
    ///
    /// # Errors
    /// If the index is not below the rows of the table.
    pub fn row(&self, index: u32) -> Result<Tensor> {
        check_indices(&[index], self.rows)?;
        match &self.storage {
            TableStorage::Tensor(table) => {
                table.get(index as usize)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)
            }
            TableStorage::Mapped { .. } => {
                let mut row = vec![0f32; self.width];
                self.add_row(index as usize, &mut row)?;
                Tensor::from_vec(row, self.width, &Device::Cpu)
            }
        }
    }

    /// The mean of the rows of these indices, in `out` of `width` values; zeros without an index.
    ///
    /// # Errors
    /// If an index is not below the rows of the table, or the table is not on the CPU.
    pub fn mean_rows(&self, indices: impl Iterator<Item = u32>, out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        let mut count = 0usize;
        for index in indices {
            check_indices(&[index], self.rows)?;
            self.add_row(index as usize, out)?;
            count += 1;
        }
        let scale = 1.0 / count.max(1) as f32;
        out.iter_mut().for_each(|x| *x *= scale);
        Ok(())
    }

    /// Row `index` where it can be read as it is stored: aligned values of f32.
    fn host_row(&self, index: usize) -> Option<&[f32]> {
        match &self.storage {
            TableStorage::Mapped { bytes, range, dtype: SafetensorsDtype::F32 }
                if cfg!(target_endian = "little") =>
            {
                let stride = self.width * size_of::<f32>();
                let row = &(**bytes).as_ref()[range.clone()][index * stride..][..stride];
                bytemuck::try_cast_slice(row).ok()
            }
            _ => None,
        }
    }

    /// Adds row `index` to `out`.
    fn add_row(&self, index: usize, out: &mut [f32]) -> Result<()> {
        if let Some(row) = self.host_row(index) {
            axpy(Isa::selected(), 1.0, row, out);
            return Ok(());
        }
        match &self.storage {
            TableStorage::Mapped { bytes, range, dtype } => {
                let stride = self.width * dtype.size();
                let start = range.start + index * stride;
                let bytes = (**bytes).as_ref();
                dtype.decode(&bytes[start..start + stride], out, |out, x| *out += x);
            }
            TableStorage::Tensor(table) => {
                let values = host_slice(table)?;
                for (out, x) in out.iter_mut().zip(&values[index * self.width..][..self.width]) {
                    *out += x;
                }
            }
        }
        Ok(())
    }
}

/// The sum of embeddings `Σₖ tableₖ[indicesₖ[t]]` of every token `t`, followed by the norm if there is one.
/// Each table comes with one index per token. Returns `(T, width)`.
///
/// # Errors
/// If there is no table, the tables differ in width or in the number of indices, or an index is not below the
/// rows of its table.
pub fn lookup_sum(
    tables: &[(&EmbeddingTable, &[u32])],
    norm: Option<&NormWeights>,
    device: &Device,
) -> Result<Tensor> {
    let (width, tokens) = check(tables)?;
    if device.is_cuda() {
        let operands = (tables.iter())
            .map(|(table, indices)| Ok((table.to_tensor(device)?, Tensor::new(*indices, device)?)))
            .collect::<Result<Vec<_>>>()?;
        return match operands.first() {
            Some((first, _)) => launch(&operands, norm)?.run_or(first, || reference(tables, norm, device)),
            None => candle_core::bail!("a sum of embeddings needs a table"),
        };
    }
    let is_on_host = |table: &EmbeddingTable| match &table.storage {
        TableStorage::Mapped { .. } => true,
        TableStorage::Tensor(table) => is_host_f32(table),
    };
    if !tables.iter().all(|(table, _)| is_on_host(table)) {
        return reference(tables, norm, device);
    }
    let mut out = vec![0f32; tokens * width];
    for (token, out) in out.chunks_mut(width).enumerate() {
        for (table, indices) in tables {
            table.add_row(indices[token] as usize, out)?;
        }
    }
    let sum = Tensor::from_vec(out, (tokens, width), device)?;
    match norm {
        Some(norm) => add_norm(sum, None, norm),
        None => Ok(sum),
    }
}

/// Checks the tables and indices; returns the width of the tables and the number of tokens.
fn check(tables: &[(&EmbeddingTable, &[u32])]) -> Result<(usize, usize)> {
    let Some((first, tokens)) = tables.first().map(|(table, indices)| (table, indices.len())) else {
        candle_core::bail!("a sum of embeddings needs a table")
    };
    for (table, indices) in tables {
        if table.width != first.width || indices.len() != tokens || table.width == 0 {
            candle_core::bail!(
                "all tables need {tokens} indices and {} columns, found {} indices and {} columns",
                first.width,
                indices.len(),
                table.width
            );
        }
        check_indices(indices, table.rows)?;
    }
    Ok((first.width, tokens))
}

/// The launch of [`lookup_sum`] on a GPU, for at most four tables of `(rows, width)` with indices of `(T)`:
/// one block per token.
///
/// # Errors
/// If there is no table or more than four, shapes or dtypes do not match, or there is no kernel for the
/// dtype.
pub fn launch<'a>(operands: &'a [(Tensor, Tensor)], norm: Option<&'a NormWeights>) -> Result<Launch<'a>> {
    const MAX_TABLES: usize = 4;
    let Some((table, indices)) = operands.first().filter(|_| operands.len() <= MAX_TABLES) else {
        candle_core::bail!("the kernel takes 1 to {MAX_TABLES} tables, found {}", operands.len())
    };
    let (tokens, width) = (indices.dim(0)?, table.dim(1)?);
    for (other, indices) in operands {
        gpu::expect(other, table.dtype(), &[other.dim(0)?, width])?;
        gpu::expect(indices, DType::U32, &[tokens])?;
    }
    norm.map_or(Ok(()), |norm| norm.check(table.dtype(), width))?;
    let given = operands.iter().flat_map(|(table, indices)| [Arg::from(table), Arg::from(indices)]);
    let absent = (operands.len()..MAX_TABLES).flat_map(|_| [Arg::Tensor(None), Arg::Tensor(None)]);
    Ok(Launch {
        kernel: format!("lookup_{}", gpu::suffix(table.dtype())?),
        grid: [tokens, 1, 1],
        block: 128,
        output: LaunchOutput::New(vec![tokens, width], table.dtype()),
        args: given
            .chain(absent)
            .chain([
                norm.map(|norm| &norm.weight).into(),
                norm.and_then(|norm| norm.bias.as_ref()).into(),
                tokens.into(),
                width.into(),
                norm.map_or(0, NormWeights::code).into(),
                norm.map_or(0.0, |norm| norm.eps).into(),
            ])
            .collect(),
    })
}

/// [`lookup_sum`] in plain candle operations.
///
/// # Errors
/// Those of [`lookup_sum`].
pub fn reference(
    tables: &[(&EmbeddingTable, &[u32])],
    norm: Option<&NormWeights>,
    device: &Device,
) -> Result<Tensor> {
    check(tables)?;
    let mut sum: Option<Tensor> = None;
    for (table, indices) in tables {
        let rows = table.to_tensor(device)?.index_select(&Tensor::new(*indices, device)?, 0)?;
        sum = Some(match sum {
            None => rows,
            Some(sum) => (sum + rows)?,
        });
    }
    match (sum, norm) {
        (Some(sum), Some(norm)) => add_norm::reference(&sum, None, norm),
        (Some(sum), None) => Ok(sum),
        (None, _) => candle_core::bail!("a sum of embeddings needs a table"),
    }
}
