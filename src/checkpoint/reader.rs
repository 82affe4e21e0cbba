//! Tensors by canonical name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::entry::{Entry, safetensors_dtype};
use super::low_rank::{Adapter, Update};
use super::names::{TensorNames, TensorRef};
use super::packed_weights::PackedWeights;
use super::report::{Problem, TensorReport};
use super::{Checkpoint, Replacements};
use crate::nn::{Backend, SafetensorsDtype};

/// Reads the tensors of a checkpoint by canonical name, and reports how they are used.
pub struct TensorReader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    /// The namings of the family.
    pub(super) namings: &'static [TensorNames],
    /// That of the checkpoint.
    pub(super) names: &'static TensorNames,
    pub(super) prefix: &'static str,
    /// The number of attention heads, for parts of the rows of each head.
    pub(super) heads: usize,
    pub(super) adapter: Option<Adapter>,
    /// The tensors of the adapter that replace those of the checkpoint, or that it does not have, by its
    /// names.
    pub(super) replaced: BTreeMap<String, Entry>,
    pub(super) packed: Option<PackedWeights>,
    pub(super) backend: Backend,
    pub(super) report: TensorReport,
    /// The tensors with a problem in the report.
    pub(super) problems: BTreeSet<String>,
    pub(super) seen: BTreeSet<String>,
    /// Tensors, or parts of them by their first byte, whose NaN and infinite values have been counted.
    /// Several devices read the same tensor.
    pub(super) counted: BTreeSet<(String, usize)>,
}

impl TensorReader<'_> {
    /// Places the tensors that are read from now on on another device.
    pub fn set_backend(&mut self, backend: Backend) {
        self.backend = backend;
    }

    /// Merges an adapter into the tensors that are read from now on.
    pub fn set_adapter(&mut self, adapter: Option<(Adapter, Replacements)>) -> Result<()> {
        let Some((adapter, replacements)) = adapter else { return Ok(()) };
        for (name, entry) in replacements.tensors {
            // The adapter may have been trained with another class, and so have another prefix.
            let prefixes = self.namings.iter().flat_map(|names| names.prefixes);
            let rests = prefixes.filter_map(|prefix| name.strip_prefix(prefix));
            let mut own = rests.map(|rest| format!("{}{rest}", self.prefix));
            let is_head = self.namings.iter().any(|names| names.is_head_tensor(&name));
            match own.find(|own| self.checkpoint.find(own).is_some()).or(is_head.then_some(name.clone())) {
                Some(own) => drop(self.replaced.insert(own, entry)),
                None => bail!("{}", adapter.unknown(&name)),
            }
        }
        self.adapter = Some(adapter);
        Ok(())
    }

    /// A tensor by the checkpoint's name, and the name that it is stored under.
    pub(super) fn find<'a>(&'a self, name: &'a String) -> Option<(&'a String, &'a Entry)> {
        self.replaced.get_key_value(name).or_else(|| self.checkpoint.find(name))
    }

    /// Takes the matrices that are read from now on from a file of packed weights, and adds to it those that
    /// it does not have.
    pub fn set_packed_weights(&mut self, packed: Option<PackedWeights>) {
        self.packed = packed;
    }

    /// The file of packed weights, to be finished.
    pub fn take_packed_weights(&mut self) -> Option<PackedWeights> {
        self.packed.take()
    }

    /// Adds a tensor to the report as used, unless it is there already.
    pub(super) fn note_used(&mut self, name: &str, entry: &Entry) {
        if self.seen.insert(name.to_owned()) {
            self.report.used.push((name.to_owned(), entry.shape.clone(), format!("{:?}", entry.dtype)));
        }
    }

    /// Ends the merging of the adapter, and adds the changed modules to the report.
    pub fn finish_adapter(&mut self) -> Result<()> {
        let Some(adapter) = self.adapter.take() else { return Ok(()) };
        for name in adapter.tensors() {
            if let Some(entry) = self.checkpoint.tensors.get(&name) {
                self.note_used(&name, entry);
            }
        }
        self.report.merged = adapter.into_merged(self.namings)?;
        let replaced = self.replaced.keys().filter(|name| self.seen.contains(*name));
        self.report.merged.extend(replaced.cloned());
        Ok(())
    }

    /// What the adapter does to a tensor, and from which row of the update on.
    pub(super) fn update(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<(Update, usize)>> {
        match (&mut self.adapter, shape) {
            (Some(adapter), &[rows, columns]) => {
                adapter.update(self.namings, canonical, [rows, columns], self.heads)
            }
            _ => Ok(None),
        }
    }

    /// What the adapter adds to a bias.
    pub(super) fn bias(&mut self, canonical: &str, shape: &[usize]) -> Option<Vec<f32>> {
        match (&mut self.adapter, shape) {
            (Some(adapter), &[values]) => adapter.bias(self.namings, canonical, values),
            _ => None,
        }
    }

    /// [`update`](Self::update) of a tensor whose elements are those of `entry`: the norms of the merged rows
    /// are known then.
    pub(super) fn update_of(
        &mut self,
        canonical: &str,
        shape: &[usize],
        (entry, dtype): (&Entry, SafetensorsDtype),
    ) -> Result<Option<(Update, usize)>> {
        let Some((mut update, first_row)) = self.update(canonical, shape)? else { return Ok(None) };
        update.set_norms(first_row, shape, |first, values| entry.read(dtype, first, values).map(drop))?;
        Ok(Some((update, first_row)))
    }

    /// The report, which lists the tensors that were never read as unused.
    pub fn into_report(mut self) -> TensorReport {
        let names = self.checkpoint.tensors.keys();
        self.report.unused = names.filter(|name| !self.seen.contains(*name)).cloned().collect();
        let is_unexpected = |name: &&String| self.names.is_encoder_tensor(self.prefix, name);
        self.report.unexpected_tensors = self.report.unused.iter().filter(is_unexpected).cloned().collect();
        self.report
    }

    /// The checkpoint's name for a tensor.
    pub fn resolve(&self, canonical: &str) -> String {
        self.names.resolve(self.prefix, canonical).name
    }

    /// The checkpoint's name for a tensor that it does not have; `None` if it has it.
    pub fn missing(&self, canonical: &str) -> Option<String> {
        let name = self.resolve(canonical);
        self.find(&name).is_none().then_some(name)
    }

    /// The entry of a canonical name if it is usable as a tensor of `shape`; otherwise `None`, and the report
    /// has the problem.
    pub(super) fn entry(
        &mut self,
        canonical: &str,
        shape: &[usize],
    ) -> Option<(String, Entry, SafetensorsDtype)> {
        let TensorRef { mut name, part } = self.names.resolve(self.prefix, canonical);
        // The first BERT checkpoints, converted from TensorFlow, have the older names.
        for (now, then) in [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")] {
            let older = name.strip_suffix(now).map(|norm| format!("{norm}{then}"));
            let has = |name: &String| self.find(name).is_some();
            if let Some(older) = older.filter(|older| !has(&name) && has(older)) {
                name = older;
            }
        }
        let mut expected = shape.to_vec();
        if let Some(rows) = expected.first_mut() {
            *rows *= part.parts;
        }
        let found = self.find(&name).map(|(stored, entry)| (stored.clone(), entry.clone()));
        let problem = match found {
            None => Problem::Missing { name, expected },
            Some((stored, entry)) => {
                name = stored;
                let is_first_use = self.seen.insert(name.clone());
                match safetensors_dtype(entry.dtype) {
                    _ if entry.shape != expected => {
                        Problem::Misshapen { name, found: entry.shape.clone(), expected }
                    }
                    None => Problem::Mistyped { name, found: format!("{:?}", entry.dtype) },
                    Some(dtype) => {
                        if is_first_use {
                            self.report.used.push((name.clone(), expected, format!("{:?}", entry.dtype)));
                        }
                        let runs = part.runs(self.heads);
                        return Some((name, entry.part_of_runs(part.index, part.parts, runs), dtype));
                    }
                }
            }
        };
        // A fused tensor is read once for each of its parts.
        if self.problems.insert(problem.name().to_owned()) {
            self.report.problems.push(problem);
        }
        None
    }

    pub(super) fn note_not_finite(&mut self, name: String, start: usize, count: usize) {
        if count == 0 || !self.counted.insert((name.clone(), start)) {
            return;
        }
        // A fused tensor is read once for each of its parts.
        match self.report.not_finite.iter_mut().find(|(noted, _)| *noted == name) {
            Some((_, noted)) => *noted += count,
            None => self.report.not_finite.push((name, count)),
        }
    }
}
