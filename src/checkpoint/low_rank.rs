//! The low-rank updates of LoRA adapters (Hu et al. 2022), `W + s B A`, as they are added to weights that are
//! read; with DoRA (Liu et al. 2024), the rows of the sum are scaled to stored norms. Rows of a table may be
//! replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::names::{RowPart, TensorNames};

/// The start of the names of all modules in a model that PEFT has wrapped.
pub const PEFT_PREFIX: &str = "base_model.model.";
/// The ends of the names of adapters that are stacked in the checkpoint of the weights, after that of their
/// module.
pub const STACKED_A: &str = ".parametrizations.weight.0.lora_A";
/// See [`STACKED_A`].
pub const STACKED_B: &str = ".parametrizations.weight.0.lora_B";
/// The canonical name of the pooler.
const POOLER: &str = "pooler";
/// The remedy for adapters that are not supported.
pub const MERGE: &str = "merge it into its base model once with peft \
     (AutoPeftModel.from_pretrained(DIR).merge_and_unload().save_pretrained(OUT))";

/// The updates of an adapter, by the module of the matrix that they change.
pub struct Adapter {
    file: PathBuf,
    updates: BTreeMap<String, Update>,
    /// Whether every update has to be used.
    is_whole_file: bool,
    merged: BTreeSet<String>,
    /// The modules whose bias has been changed.
    biased: BTreeSet<String>,
}

/// What an adapter does to a matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// It adds a product.
    LowRank(LowRank),
    /// It replaces rows.
    Rows(NewRows),
}

/// Rows of a matrix that replace those of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRows {
    rows: BTreeMap<usize, Vec<f32>>,
    width: usize,
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
    /// What is added to the bias of the module, times `s`.
    bias: Option<Vec<f32>>,
    scale: f32,
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
        LowRank { a, b, rank, inputs, outputs, bias: None, scale, magnitudes: None, factors: None }
    }

    /// The update with this bias, which is scaled as the product is.
    pub fn with_bias(self, bias: Option<Vec<f32>>) -> Self {
        let bias = bias.map(|bias| bias.into_iter().map(|x| x * self.scale).collect());
        LowRank { bias, ..self }
    }

    /// The update of a matrix whose rows or columns have these norms then.
    pub fn with_magnitudes(self, magnitudes: Option<Magnitudes>) -> Self {
        LowRank { magnitudes, ..self }
    }

    /// Changes the order of the outputs: of equal `runs` with all `parts` each to the parts with all runs
    /// each.
    fn gather_parts(&mut self, parts: usize, runs: usize) {
        let gather = |values: &[f32]| -> Vec<f32> {
            let length = values.len() / (parts * runs);
            let pieces = (0..parts).flat_map(|part| (0..runs).map(move |run| run * parts + part));
            pieces.flat_map(|piece| &values[piece * length..(piece + 1) * length]).copied().collect()
        };
        self.b = gather(&self.b);
        if let Some(Magnitudes { axis: Axis::Rows, values }) = &mut self.magnitudes {
            *values = gather(values);
        }
    }

    /// Computes what the norms need of a matrix of this `shape`, row `first_row` of the update being its
    /// first one. `read` fills a slice with its elements from one on.
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

impl NewRows {
    /// The rows of `indices`, each of `width` values, one after the other; the last one counts if an index is
    /// there twice.
    pub fn new(indices: &[usize], values: &[f32], width: usize) -> Self {
        let rows = indices.iter().zip(values.chunks(width)).map(|(index, row)| (*index, row.to_vec()));
        NewRows { rows: rows.collect(), width }
    }

    /// Replaces what `values` has of the rows; see [`Update::apply`].
    fn replace(&self, first_row: usize, first: usize, values: &mut [f32]) {
        let start = first_row * self.width + first;
        let end = start + values.len();
        for (index, row) in self.rows.range(start / self.width..end.div_ceil(self.width)) {
            let of_row = index * self.width;
            let (from, to) = (of_row.max(start), (of_row + self.width).min(end));
            values[from - start..to - start].copy_from_slice(&row[from - of_row..to - of_row]);
        }
    }
}

impl Update {
    /// What the norms need of a matrix; see [`LowRank::set_norms`].
    pub fn set_norms(
        &mut self,
        first_row: usize,
        shape: &[usize],
        read: impl Fn(usize, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        match self {
            Update::LowRank(update) => update.set_norms(first_row, shape, read),
            Update::Rows(_) => Ok(()),
        }
    }

    /// Changes `values`, the elements from `first` on, counted from the start of row `first_row`.
    pub fn apply(&self, first_row: usize, first: usize, values: &mut [f32]) {
        match self {
            Update::LowRank(update) => update.add(first_row, first, values),
            Update::Rows(rows) => rows.replace(first_row, first, values),
        }
    }
}

impl Adapter {
    /// The updates in a file; all of them have to be used if it `is_whole_file` of an adapter.
    pub fn new(file: PathBuf, updates: BTreeMap<String, Update>, is_whole_file: bool) -> Self {
        Adapter { file, updates, is_whole_file, merged: BTreeSet::new(), biased: BTreeSet::new() }
    }

    /// The update of a tensor's module, whose canonical name has this `end`; its name, and the part of it
    /// that the tensor is.
    fn find(
        &self,
        namings: &'static [TensorNames],
        canonical: &str,
        end: &str,
    ) -> Option<(String, &Update, RowPart)> {
        let names = namings.iter().filter(|names| names.names(canonical));
        let mut tensors =
            names.flat_map(|names| names.prefixes.iter().map(move |prefix| names.resolve(prefix, canonical)));
        tensors.find_map(|tensor| {
            let module = tensor.name.strip_suffix(end)?;
            Some((module.to_owned(), self.updates.get(module)?, tensor.part))
        })
    }

    /// What is added to a bias with this number of `values`, by its canonical name; `None` if the adapter
    /// does not change it. The adapter may have any of the `namings`.
    pub fn bias(
        &mut self,
        namings: &'static [TensorNames],
        canonical: &str,
        values: usize,
    ) -> Option<Vec<f32>> {
        let (module, update, RowPart { index, .. }) = self.find(namings, canonical, ".bias")?;
        let Update::LowRank(LowRank { bias: Some(bias), .. }) = update else { return None };
        let bias = bias.get(index * values..(index + 1) * values)?.to_vec();
        self.biased.insert(module);
        Some(bias)
    }

    /// The update of a matrix of `(rows, columns)`, by its canonical name, and the row of the update that the
    /// matrix begins with; `None` if the adapter does not change it. The adapter may have any of the
    /// `namings`, and the model this number of attention `heads`.
    pub fn update(
        &mut self,
        namings: &'static [TensorNames],
        canonical: &str,
        [rows, columns]: [usize; 2],
        heads: usize,
    ) -> Result<Option<(Update, usize)>> {
        let Some((module, update, part)) = self.find(namings, canonical, ".weight") else {
            return Ok(None);
        };
        let RowPart { index, parts, .. } = part;
        match update {
            Update::LowRank(LowRank { outputs, inputs, .. })
                if [*outputs, *inputs] != [rows * parts, columns] =>
            {
                bail!(
                    "{}: the update of {module} is of shape [{outputs}, {inputs}], but its weight of [{}, {columns}]; use the files of one model",
                    self.file.display(),
                    rows * parts
                )
            }
            Update::Rows(NewRows { rows: new, width })
                if *width != columns || new.keys().any(|row| *row >= rows * parts) =>
            {
                bail!(
                    "{}: the trained rows of {module} are of {width} values and up to row {}, but its table is of [{}, {columns}]; use the \
                     files of one model",
                    self.file.display(),
                    new.keys().last().copied().unwrap_or(0),
                    rows * parts
                )
            }
            _ => {}
        }
        let mut update = update.clone();
        if let (Update::LowRank(update), 2..) = (&mut update, part.runs(heads)) {
            update.gather_parts(parts, heads);
        }
        self.merged.insert(module);
        Ok(Some((update, index * rows)))
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
        let has_bias = |update: &Update| matches!(update, Update::LowRank(LowRank { bias: Some(_), .. }));
        let lacks_bias =
            |module: &&String| has_bias(&self.updates[*module]) && !self.biased.contains(*module);
        if let Some(module) = self.merged.iter().find(lacks_bias) {
            bail!(
                "{} has a bias for {module}, which has none in the model; choose an adapter without \"lora_bias\"",
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
    fn rows_are_replaced_from_any_element_on() {
        let rows = Update::Rows(NewRows::new(&[3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3));
        let whole = [0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0];
        for (first_row, first, count) in [(0, 0, 12), (0, 3, 3), (0, 4, 7), (1, 1, 6), (2, 0, 5), (1, 2, 0)] {
            let mut values = vec![0.0; count];
            rows.apply(first_row, first, &mut values);
            let start = first_row * 3 + first;
            assert_eq!(values, whole[start..start + count], "row {first_row}, element {first}");
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
