//! Embedding tables, and the sum of the rows that a batch looks up in them, with the norm over it.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};

use super::add_norm::{self, NormWeights, add_norm};
use super::check_indices;
use super::gpu::{self, Arg, Launch, Written};

/// Bytes that stay where they are for as long as anyone holds them, such as a mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// How the numbers of a stored tensor are written, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    F64,
    F32,
    F16,
    BF16,
}

impl Stored {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Stored::F64 => 8,
            Stored::F32 => 4,
            Stored::F16 | Stored::BF16 => 2,
        }
    }

    /// Calls `put` with each place of `out` and the number in `bytes` that belongs there.
    pub fn decode(self, bytes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
        let mut out = out.iter_mut();
        self.for_each(bytes, |x| {
            if let Some(out) = out.next() {
                put(out, x);
            }
        });
    }

    #[inline]
    fn for_each(self, bytes: &[u8], mut f: impl FnMut(f32)) {
        match self {
            Stored::F64 => bytes.as_chunks().0.iter().for_each(|b| f(f64::from_le_bytes(*b) as f32)),
            Stored::F32 => bytes.as_chunks().0.iter().for_each(|b| f(f32::from_le_bytes(*b))),
            Stored::F16 => bytes.as_chunks().0.iter().for_each(|b| f(f16::from_le_bytes(*b).to_f32())),
            Stored::BF16 => bytes.as_chunks().0.iter().for_each(|b| f(bf16::from_le_bytes(*b).to_f32())),
        }
    }
}

/// An embedding table of `(rows, width)`.
#[derive(Clone)]
pub struct Table {
    rows: usize,
    width: usize,
    place: Place,
}

#[derive(Clone)]
enum Place {
    /// Read row by row where it lies: a vocabulary is large and a text touches few of its rows.
    Stored { bytes: SharedBytes, range: Range<usize>, format: Stored },
    /// Held in memory, on any device.
    Tensor(Tensor),
}

impl Table {
    /// A table inside `bytes`; `range` has to hold `rows · width` numbers of `format`.
    ///
    /// # Errors
    /// If it does not, or is not inside.
    pub fn stored(
        bytes: SharedBytes,
        range: Range<usize>,
        format: Stored,
        rows: usize,
        width: usize,
    ) -> Result<Self> {
        let size = rows.checked_mul(width).and_then(|numbers| numbers.checked_mul(format.size()));
        let length = (*bytes).as_ref().len();
        if size != Some(range.len()) || range.end > length {
            candle_core::bail!("bytes {range:?} of {length} for a table of {rows} rows and {width} columns");
        }
        Ok(Table { rows, width, place: Place::Stored { bytes, range, format } })
    }

    /// A table that is a tensor of `(rows, width)`.
    pub fn resident(table: Tensor) -> Result<Self> {
        let (rows, width) = table.dims2()?;
        Ok(Table { rows, width, place: Place::Tensor(table) })
    }

    /// Bytes of the file that the table is read from row by row; 0 for one that is held in memory.
    pub fn stored_bytes(&self) -> usize {
        match &self.place {
            Place::Stored { range, .. } => range.len(),
            Place::Tensor(_) => 0,
        }
    }

    /// The table as a tensor of `(rows, width)`; copies a stored one.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        match &self.place {
            Place::Tensor(table) => table.to_device(device),
            Place::Stored { bytes, range, format } => {
                let mut out = vec![0f32; self.rows * self.width];
                let bytes = (**bytes).as_ref();
                format.decode(&bytes[range.clone()], &mut out, |out, x| *out = x);
                Tensor::from_vec(out, (self.rows, self.width), device)
            }
        }
    }

    /// Adds row `index` to `out`.
    fn add_row(&self, index: usize, out: &mut [f32]) -> Result<()> {
        match &self.place {
            Place::Stored { bytes, range, format } => {
                let stride = self.width * format.size();
                let start = range.start + index * stride;
                let bytes = (**bytes).as_ref();
                format.decode(&bytes[start..start + stride], out, |out, x| *out += x);
            }
            Place::Tensor(table) => {
                let (storage, layout) = table.storage_and_layout();
                let candle_core::Storage::Cpu(storage) = &*storage else {
                    candle_core::bail!("the table lies on another device than the batch")
                };
                let row = &super::elements(storage, layout)?[index * self.width..][..self.width];
                for (out, x) in out.iter_mut().zip(row) {
                    *out += x;
                }
            }
        }
        Ok(())
    }
}

/// `Σ_t table_t[index_t[i]]` for every token `i`, normalised if there is a norm: each table comes with one index a token, all
/// below its number of rows. Returns `(T, width)`.
///
/// # Errors
/// If there is no table, tables differ in width or in the number of indices, or an index is not below the number of rows.
pub fn lookup_sum(
    tables: &[(&Table, &[u32])],
    norm: Option<&NormWeights>,
    device: &Device,
) -> Result<Tensor> {
    let (width, tokens) = check(tables)?;
    if device.is_cuda() {
        let operands = (tables.iter())
            .map(|(table, indices)| Ok((table.to_tensor(device)?, Tensor::new(*indices, device)?)))
            .collect::<Result<Vec<_>>>()?;
        return match operands.first() {
            Some((first, _)) => launch(&operands, norm)?.run(first),
            None => candle_core::bail!("a sum over no tables"),
        };
    }
    let on_cpu = |table: &Table| match &table.place {
        Place::Stored { .. } => true,
        Place::Tensor(table) => super::on_cpu(table),
    };
    if !tables.iter().all(|(table, _)| on_cpu(table)) {
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

/// The width of the tables and the number of their indices.
fn check(tables: &[(&Table, &[u32])]) -> Result<(usize, usize)> {
    let Some((first, tokens)) = tables.first().map(|(table, indices)| (table, indices.len())) else {
        candle_core::bail!("a sum over no tables")
    };
    for (table, indices) in tables {
        if table.width != first.width || indices.len() != tokens || table.width == 0 {
            candle_core::bail!(
                "{} indices into a table of {} columns beside {tokens} into one of {}",
                indices.len(),
                table.width,
                first.width
            );
        }
        check_indices(indices, table.rows)?;
    }
    Ok((first.width, tokens))
}

/// [`lookup_sum`] on a GPU, for at most four tables of `(rows, width)` with indices of `(T)`: a token a block.
pub fn launch<'a>(operands: &'a [(Tensor, Tensor)], norm: Option<&'a NormWeights>) -> Result<Launch<'a>> {
    const MOST: usize = 4;
    let Some((table, indices)) = operands.first().filter(|_| operands.len() <= MOST) else {
        candle_core::bail!("a sum over {} tables", operands.len())
    };
    let (tokens, width) = (indices.dim(0)?, table.dim(1)?);
    for (other, indices) in operands {
        gpu::expect(other, table.dtype(), &[other.dim(0)?, width])?;
        gpu::expect(indices, DType::U32, &[tokens])?;
    }
    norm.map_or(Ok(()), |norm| norm.expect(table.dtype(), width))?;
    let given = operands.iter().flat_map(|(table, indices)| [Arg::from(table), Arg::from(indices)]);
    let absent = (operands.len()..MOST).flat_map(|_| [Arg::Tensor(None), Arg::Tensor(None)]);
    Ok(Launch {
        kernel: format!("lookup_{}", gpu::suffix(table.dtype())?),
        grid: [tokens, 1, 1],
        block: 128,
        to: Written::New(vec![tokens, width], table.dtype()),
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
pub fn reference(tables: &[(&Table, &[u32])], norm: Option<&NormWeights>, device: &Device) -> Result<Tensor> {
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
        (None, _) => candle_core::bail!("a sum over no tables"),
    }
}
