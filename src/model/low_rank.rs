//! The low-rank updates of LoRA adapters (Hu et al. 2022), `W + s B A`, as they are added to weights that are read; with DoRA (Liu et al.
//! 2024), the rows of the sum are scaled to stored norms.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::names::TensorNames;

/// The start of the names of all modules in a model that PEFT has wrapped.
pub const PEFT_PREFIX: &str = "base_model.model.";
/// The ends of the names of adapters that are stacked in the checkpoint of the weights, after that of their module.
pub const STACKED_A: &str = ".parametrizations.weight.0.lora_A";
/// The canonical name of the pooler.
const POOLER: &str = "pooler";
/// The remedy for adapters that are not supported.
pub const MERGE: &str = "merge it into its base model once with peft \
     (AutoPeftModel.from_pretrained(DIR).merge_and_unload().save_pretrained(OUT))";
/// See [`STACKED_A`].
pub const STACKED_B: &str = ".parametrizations.weight.0.lora_B";

/// The low-rank updates of an adapter, by the module of the matrix that they are added to.
pub struct Adapter {
    file: PathBuf,
    updates: BTreeMap<String, LowRank>,
    /// Whether every update has to be used.
    is_whole_file: bool,
    merged: BTreeSet<String>,
}

/// `s B A`, of `(outputs, inputs)`, and the norms of the sum with the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// `(rank, inputs)`, row-major.
    a: Vec<f32>,
    /// `(outputs, rank)`, row-major, times `s`.
    b: Vec<f32>,
    rank: usize,
    inputs: usize,
    outputs: usize,
    magnitudes: Option<Magnitudes>,
    /// What each row or column of the sum is multiplied by, from the first one of the matrix that is read.
    factors: Option<(Axis, Vec<f32>)>,
}

/// The norms that DoRA gives the rows or columns of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Magnitudes {
    /// What has these norms.
    pub axis: Axis,
    /// The norms.
    pub values: Vec<f32>,
}

/// An axis of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Rows: the outputs of a linear layer.
    Rows,
    /// Columns: the dimensions of an embedding table.
    Columns,
}

/// Elements of a matrix whose norms are computed at a time.
const CHUNK: usize = 1 << 14;

impl LowRank {
    /// `scale · b a` for `a` of `(rank, inputs)` and `b` of `(outputs, rank)`.
    pub fn new(a: Vec<f32>, mut b: Vec<f32>, rank: usize, scale: f32) -> Self {
        b.iter_mut().for_each(|x| *x *= scale);
        let (inputs, outputs) = (a.len() / rank, b.len() / rank);
        LowRank { a, b, rank, inputs, outputs, magnitudes: None, factors: None }
    }

    /// The update of a matrix whose rows or columns have these norms then.
    pub fn with_magnitudes(self, magnitudes: Option<Magnitudes>) -> Self {
        LowRank { magnitudes, ..self }
    }

    /// Computes what the norms need of a matrix of this `shape`, row `first_row` of the update being its first one. `read` fills a
    /// slice with its elements from one on.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn set_norms(
        &mut self,
        first_row: usize,
        shape: &[usize],
        read: impl Fn(usize, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let (Some(Magnitudes { axis, values }), &[rows, columns]) = (self.magnitudes.take(), shape) else {
            return Ok(());
        };
        let mut squares = vec![0f64; if axis == Axis::Rows { rows } else { columns }];
        let mut chunk = vec![0f32; CHUNK];
        for first in (0..rows * columns).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(rows * columns - first)];
            read(first, chunk)?;
            self.add(first_row, first, chunk);
            for (i, x) in chunk.iter().enumerate() {
                let (row, column) = ((first + i) / columns, (first + i) % columns);
                squares[if axis == Axis::Rows { row } else { column }] += f64::from(*x).powi(2);
            }
        }
        let start = if axis == Axis::Rows { first_row } else { 0 };
        let factors = values[start..].iter().zip(&squares).map(|(norm, square)| norm / square.sqrt() as f32);
        self.factors = Some((axis, factors.collect()));
        Ok(())
    }

    /// Adds the elements from `first` on, counted from the start of row `first_row`, to `values`.
    pub fn add(&self, first_row: usize, first: usize, values: &mut [f32]) {
        let mut done = 0;
        while done < values.len() {
            let (row, column) = ((first + done) / self.inputs, (first + done) % self.inputs);
            let count = (self.inputs - column).min(values.len() - done);
            let part = &mut values[done..done + count];
            let b = &self.b[(first_row + row) * self.rank..][..self.rank];
            for (k, b) in b.iter().enumerate() {
                let a = &self.a[k * self.inputs + column..][..count];
                part.iter_mut().zip(a).for_each(|(x, a)| *x += b * a);
            }
            match &self.factors {
                None => {}
                Some((Axis::Rows, factors)) => part.iter_mut().for_each(|x| *x *= factors[row]),
                Some((Axis::Columns, factors)) => {
                    part.iter_mut().zip(&factors[column..]).for_each(|(x, factor)| *x *= factor)
                }
            }
            done += count;
        }
    }
}

impl Adapter {
    /// The updates in a file; all of them have to be used if it `is_whole_file` of an adapter.
    pub fn new(file: PathBuf, updates: BTreeMap<String, LowRank>, is_whole_file: bool) -> Self {
        Adapter { file, updates, is_whole_file, merged: BTreeSet::new() }
    }

    /// The update of a matrix of `(rows, columns)`, by its canonical name, and the row of the update that the matrix begins with; `None`
    /// if the adapter does not change it. The adapter may have any of the `namings`.
    ///
    /// # Errors
    /// If the update has another shape.
    pub fn update(
        &mut self,
        namings: &'static [TensorNames],
        canonical: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<Option<(LowRank, usize)>> {
        let names = namings.iter().filter(|names| names.names(canonical));
        let mut tensors =
            names.flat_map(|names| names.prefixes.iter().map(move |prefix| names.resolve(prefix, canonical)));
        let found = tensors.find_map(|tensor| {
            let module = tensor.name.strip_suffix(".weight")?;
            Some((module.to_owned(), self.updates.get(module)?, tensor.part))
        });
        let Some((module, update, (index, parts))) = found else { return Ok(None) };
        if [update.outputs, update.inputs] != [rows * parts, columns] {
            bail!(
                "{}: the update of {module} is of shape [{}, {}], but its weight of [{}, {columns}]; use the files of one model",
                self.file.display(),
                update.outputs,
                update.inputs,
                rows * parts
            )
        }
        self.merged.insert(module);
        Ok(Some((update.clone(), index * rows)))
    }

    /// The error for a tensor that is neither an update nor one of the model.
    pub fn unknown(&self, tensor: &str) -> String {
        format!(
            "{}: tensor {tensor} is neither a low-rank update of a linear layer or of embeddings nor a tensor of the model; {MERGE}",
            self.file.display()
        )
    }

    /// The tensors of the updates that have been used, in the checkpoint of the weights.
    pub fn tensors(&self) -> Vec<String> {
        let merged = self.merged.iter().filter(|_| !self.is_whole_file);
        merged.flat_map(|module| [STACKED_A, STACKED_B].map(|end| format!("{module}{end}"))).collect()
    }

    /// The modules whose weights have been changed.
    ///
    /// # Errors
    /// If the adapter changes a module that the encoder does not have; its pooler and its head may not be needed.
    pub fn into_merged(self, namings: &'static [TensorNames]) -> Result<Vec<String>> {
        let poolers = namings.iter().filter(|names| names.has_module(POOLER));
        let is_pooler = |module: &str| {
            let mut poolers = poolers.clone().flat_map(|names| {
                names
                    .prefixes
                    .iter()
                    .map(move |prefix| names.resolve(prefix, &format!("{POOLER}.weight")).name)
            });
            poolers.any(|name| name.strip_suffix(".weight") == Some(module))
        };
        let is_head =
            |module: &str| namings.iter().any(|names| names.is_head_tensor(&format!("{module}.weight")));
        let is_unused =
            |module: &&String| !self.merged.contains(*module) && !is_pooler(module) && !is_head(module);
        let unused = self.updates.keys().find(is_unused);
        if let Some(module) = unused.filter(|_| self.is_whole_file) {
            bail!(
                "{} changes {module}, which the encoder does not have; choose another adapter",
                self.file.display()
            )
        }
        Ok(self.merged.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the sum have the norms of the magnitudes, or its columns.
    #[test]
    fn magnitudes_are_the_norms_of_the_sum() {
        let weight: Vec<f32> = (0..12u8).map(|x| f32::from(x) - 4.0).collect();
        for (axis, norms) in [(Axis::Rows, vec![2.0, 3.0, 0.5]), (Axis::Columns, vec![1.0, 2.0, 3.0, 4.0])] {
            let update = LowRank::new(vec![1.0, 2.0, -1.0, 0.5], vec![2.0, 0.0, 1.0], 1, 0.5);
            let magnitudes = Magnitudes { axis, values: norms.clone() };
            let mut update = update.with_magnitudes(Some(magnitudes));
            let read = |first: usize, values: &mut [f32]| {
                values.copy_from_slice(&weight[first..][..values.len()]);
                Ok(())
            };
            update.set_norms(0, &[3, 4], read).unwrap();
            let mut merged = weight.clone();
            update.add(0, 0, &mut merged[..5]);
            update.add(0, 5, &mut merged[5..]);
            let found: Vec<f32> = (0..norms.len())
                .map(|i| {
                    let line = (0..12).filter(|k| if axis == Axis::Rows { k / 4 == i } else { k % 4 == i });
                    line.map(|k| merged[k] * merged[k]).sum::<f32>().sqrt()
                })
                .collect();
            assert!(found.iter().zip(&norms).all(|(x, y)| (x - y).abs() < 1e-5), "{found:?} {norms:?}");
        }
    }

    #[test]
    fn updates_are_added_from_any_element_on() {
        // The product of a (3, 2) and a (2, 4) matrix, times 0.5.
        let a: Vec<f32> = (1..=8u8).map(f32::from).collect();
        let update = LowRank::new(a, vec![2.0, 0.0, 0.0, 4.0, 2.0, 2.0], 2, 0.5);
        let whole = [1.0, 2.0, 3.0, 4.0, 10.0, 12.0, 14.0, 16.0, 6.0, 8.0, 10.0, 12.0];
        for (first_row, first, count) in [(0, 0, 12), (0, 3, 6), (1, 0, 8), (1, 2, 3), (2, 1, 0)] {
            let mut values = vec![1.0f32; count];
            update.add(first_row, first, &mut values);
            let start = first_row * 4 + first;
            let expected: Vec<f32> = whole[start..start + count].iter().map(|x| x + 1.0).collect();
            assert_eq!(values, expected, "row {first_row}, element {first}");
        }
    }
}
