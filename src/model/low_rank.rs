//! The low-rank updates of LoRA adapters (Hu et al. 2022), `W + s B A`, as they are added to weights that are read.

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

/// `s B A`, of `(outputs, inputs)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// `(rank, inputs)`, row-major.
    a: Vec<f32>,
    /// `(outputs, rank)`, row-major, times `s`.
    b: Vec<f32>,
    rank: usize,
    inputs: usize,
    outputs: usize,
}

impl LowRank {
    /// `scale · b a` for `a` of `(rank, inputs)` and `b` of `(outputs, rank)`.
    pub fn new(a: Vec<f32>, mut b: Vec<f32>, rank: usize, scale: f32) -> Self {
        b.iter_mut().for_each(|x| *x *= scale);
        let (inputs, outputs) = (a.len() / rank, b.len() / rank);
        LowRank { a, b, rank, inputs, outputs }
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

    /// The tensors of the updates that have been used, in the checkpoint of the weights.
    pub fn tensors(&self) -> Vec<String> {
        let merged = self.merged.iter().filter(|_| !self.is_whole_file);
        merged.flat_map(|module| [STACKED_A, STACKED_B].map(|end| format!("{module}{end}"))).collect()
    }

    /// The modules whose weights have been changed.
    ///
    /// # Errors
    /// If the adapter changes a module that the encoder does not have; its pooler may be one that the pooling does not need.
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
        let is_unused = |module: &&String| !self.merged.contains(*module) && !is_pooler(module);
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
