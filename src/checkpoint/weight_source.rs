//! What an encoder loads from a checkpoint: matrices and tables of embeddings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Error, Result, bail};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use safetensors::Dtype;

use super::distinct_files;
use super::entry::Entry;
use super::packed_weights::PackedWeights;
use super::reader::TensorReader;
use crate::nn::{
    Backend, ChangeCheck, EmbeddingTable, F32_SIGNIFICAND_BITS, Matrix, WeightSource, placeholder,
};

/// Values read at a time: few enough (64 KiB as f32) that the check for NaN finds them in the core's L2
/// cache.
const CHUNK: usize = 1 << 14;
/// Minimum number of chunks for a task of a thread.
const MIN_CHUNKS: usize = 16;

impl TensorReader<'_> {
    /// The entry of a tensor that belongs to the table of token embeddings, by its canonical module.
    fn beside_table(&mut self, module: &str) -> Option<(String, Entry)> {
        if !self.names.has_module(module) {
            return None;
        }
        let name = self.resolve(&format!("{module}.weight"));
        let entry = self.find(&name)?.1.clone();
        self.note_used(&name, &entry);
        Some((name, entry))
    }

    /// A table whose rows are shared by tokens, have a weight for each token or are of i8, as model2vec
    /// stores it, with a row for each token; `None` for another table.
    fn folded_table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<Option<EmbeddingTable>> {
        let (mapping, weights) =
            (self.beside_table("embeddings.token_rows"), self.beside_table("embeddings.token_weights"));
        let name = self.resolve(canonical);
        let Some(table) = self.find(&name).map(|(_, entry)| entry.clone()) else { return Ok(None) };
        if mapping.is_none() && weights.is_none() && table.dtype != Dtype::I8 {
            return Ok(None);
        }
        let path = self.checkpoint.path.display();
        let &[stored, stored_width] = &table.shape[..] else { return Ok(None) };
        let is_fitting =
            |entry: &Option<(String, Entry)>| entry.as_ref().is_none_or(|(_, entry)| entry.shape == [rows]);
        if stored_width != width
            || !is_fitting(&mapping)
            || !is_fitting(&weights)
            || mapping.is_none() && stored != rows
        {
            bail!(
                "{path}: tensors {name}, mapping and weights are not of the same number of tokens; download the file again"
            )
        }
        let values = table.to_f32(&name, path.to_string())?;
        let token_weights = match &weights {
            Some((name, entry)) => Some(entry.to_f32(name, path.to_string())?),
            None => None,
        };
        let token_rows = match &mapping {
            Some((name, entry)) => Some(entry.to_indices(name, path.to_string(), stored)?),
            None => None,
        };
        let mut folded = vec![0f32; rows * width];
        folded.par_chunks_mut(width).enumerate().for_each(|(token, out)| {
            let row = token_rows.as_ref().map_or(token, |rows| rows[token]);
            let weight = token_weights.as_ref().map_or(1.0, |weights| weights[token]);
            for (out, x) in out.iter_mut().zip(&values[row * width..][..width]) {
                *out = weight * x;
            }
        });
        let not_finite = folded.par_iter().filter(|x| !x.is_finite()).count();
        self.note_used(&name, &table);
        self.note_not_finite(name, table.bytes.start, not_finite);
        let folded = Tensor::from_vec(folded, (rows, width), &Device::Cpu)?;
        Ok(Some(EmbeddingTable::resident(folded)?))
    }
}

impl WeightSource for TensorReader<'_> {
    fn tensor(&mut self, canonical: &str, shape: &[usize]) -> Result<Tensor> {
        let Some((name, entry, dtype)) = self.entry(canonical, shape) else { return placeholder(shape) };
        let update = self.update_of(canonical, shape, (&entry, dtype))?;
        let mut values = vec![0f32; shape.iter().product()];
        let read = |(i, values): (usize, &mut [f32])| -> Result<usize> {
            let count = entry.read(dtype, i * CHUNK, values)?;
            if let Some((update, row)) = &update {
                update.apply(*row, i * CHUNK, values);
            }
            Ok(count)
        };
        let chunks = values.par_chunks_mut(CHUNK).with_min_len(MIN_CHUNKS).enumerate();
        let count = chunks.map(read).sum::<Result<_>>()?;
        if let Some(bias) = self.bias(canonical, shape) {
            values.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(self.backend.transfer(Tensor::from_vec(values, shape, &Device::Cpu)?)?)
    }

    fn matrix(&mut self, canonical: &str, rows: usize, columns: usize) -> Result<Matrix> {
        let Backend::Cpu(compute) = self.backend else {
            return Ok(Matrix::new(self.tensor(canonical, &[rows, columns])?, &self.backend)?);
        };
        let Some((name, entry, dtype)) = self.entry(canonical, &[rows, columns]) else {
            return Ok(Matrix::new(placeholder(&[rows, columns])?, &self.backend)?);
        };
        let update = self.update_of(canonical, &[rows, columns], (&entry, dtype))?;
        // An adapter gives other values than the file's.
        let is_changed = update.is_some() || self.replaced.contains_key(&name);
        let packing = format!("{name} {} {rows}x{columns} {}", entry.bytes.start, Matrix::packing(compute));
        if !is_changed
            && let Some((file, range, not_finite)) =
                self.packed.as_ref().and_then(|packed| packed.find(&packing))
            && let Some(matrix) =
                Matrix::from_packed([rows, columns], compute, dtype.significand_bits(), file, range)
        {
            self.note_not_finite(name, entry.bytes.start, not_finite);
            return Ok(matrix);
        }
        let count = AtomicUsize::new(0);
        let bits = if update.is_some() { F32_SIGNIFICAND_BITS } else { dtype.significand_bits() };
        let matrix = Matrix::pack_with(rows, columns, compute, bits, |first, values| {
            count.fetch_add(entry.read(dtype, first, values)?, Ordering::Relaxed);
            if let Some((update, row)) = &update {
                update.apply(*row, first, values);
            }
            Ok::<(), Error>(())
        })?;
        let count = count.into_inner();
        if let (false, Some(packed), Some(elements)) =
            (is_changed, &mut self.packed, matrix.packed_elements())
        {
            packed.add(packing, bytemuck::cast_slice(elements), count);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(matrix)
    }

    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn has(&self, canonical: &str) -> bool {
        self.missing(canonical).is_none()
    }

    fn change_check(&self) -> Option<ChangeCheck> {
        let mut files = self.checkpoint.files();
        files.extend(distinct_files(self.replaced.values()));
        files.extend(self.packed.as_ref().and_then(PackedWeights::file).cloned());
        Some(Arc::new(move || files.iter().try_for_each(|file| file.check_unchanged())))
    }

    fn optional(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        match self.missing(canonical) {
            None => self.tensor(canonical, shape).map(Some),
            Some(_) => Ok(None),
        }
    }

    fn table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<EmbeddingTable> {
        let is_changed = self.update(canonical, &[rows, width])?.is_some();
        if is_changed || !matches!(self.backend, Backend::Cpu(_)) {
            return Ok(EmbeddingTable::resident(self.tensor(canonical, &[rows, width])?)?);
        }
        if let Some(table) = self.folded_table(canonical, rows, width)? {
            return Ok(table);
        }
        let Some((name, entry, dtype)) = self.entry(canonical, &[rows, width]) else {
            return Ok(EmbeddingTable::resident(placeholder(&[rows, width])?)?);
        };
        if entry.strides.is_some() {
            return Ok(EmbeddingTable::resident(self.tensor(canonical, &[rows, width])?)?);
        }
        let elements = rows * width;
        let checked = format!("{name} {} {rows}x{width} table", entry.bytes.start);
        let is_replaced = self.replaced.contains_key(&name);
        let packed = self.packed.as_ref().filter(|_| !is_replaced);
        if let Some((_, _, not_finite)) = packed.and_then(|packed| packed.find(&checked)) {
            self.note_not_finite(name, entry.bytes.start, not_finite);
            return Ok(EmbeddingTable::mapped(entry.file, entry.bytes, dtype, rows, width)?);
        }
        let count = (0..elements.div_ceil(CHUNK))
            .into_par_iter()
            .with_min_len(MIN_CHUNKS)
            .map_init(Vec::new, |buffer, i| {
                buffer.resize(CHUNK.min(elements - i * CHUNK), 0.0);
                entry.read(dtype, i * CHUNK, buffer)
            })
            .sum::<Result<_>>()?;
        if let Some(packed) = self.packed.as_mut().filter(|_| !is_replaced) {
            packed.add(checked, &[], count);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(EmbeddingTable::mapped(entry.file, entry.bytes, dtype, rows, width)?)
    }
}
