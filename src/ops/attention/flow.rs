//! The CPU path: for each head of a text the keys and values are packed as the weights of a linear layer are, and some
//! queries at a time take both products with nothing but their own scores between. Memory grows with the length of a text,
//! not with its square.

use std::cell::RefCell;
use std::ops::Range;
use std::thread::LocalKey;

use candle_core::Result;
use rayon::prelude::*;

use super::{Attention, Visible};
use crate::kernels::isa::Isa;
use crate::kernels::math::Accuracy;
use crate::kernels::matmul::{Blocks, Compute, Converted, Epilogue, PackedMatrix, Source, gemm};
use crate::kernels::softmax::{add_scaled, exponentials, scale_and_bias};
use crate::ops::{Scratch, scratch, written};

/// Queries whose scores are held at a time: whole micro-tiles over vectors (12 or 6 rows) and over tiles (16).
pub const QUERIES: usize = 48;
/// Queries of a task where they do not see the whole text, or where heads are mixed.
const QUERIES_PER_TASK: usize = 96;

/// The operands of [`Attention`] as slices.
pub(super) struct Flow<'a> {
    pub attention: &'a Attention<'a>,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Columns of a head of the queries and keys.
    pub qk_size: usize,
    /// Columns of a head of the values.
    pub v_size: usize,
    /// Heads after the first mix.
    pub softmax_heads: usize,
    /// Heads after the second.
    pub value_heads: usize,
    /// Heads of the values themselves, each shared by neighbours.
    pub value_groups: usize,
    /// `(heads, bias_width)`, or empty.
    pub bias: &'a [f32],
    pub bias_width: usize,
    pub mix_before: Option<&'a [f32]>,
    pub mix_after: Option<&'a [f32]>,
    /// For every head what queries meet, by distance.
    pub key_table: Option<Vec<PackedMatrix>>,
    /// For every head what keys meet.
    pub query_table: Option<Vec<PackedMatrix>>,
}

/// Some queries of a text, and the keys that they see.
#[derive(Clone)]
struct Task {
    /// The first token of the text.
    start: usize,
    /// Tokens of the text.
    n: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Task {
    /// From the scores of a query to those of the next.
    fn stride(&self) -> usize {
        self.keys.len().next_multiple_of(16)
    }
}

/// Memory that a thread uses for one task after another.
#[derive(Default)]
struct Memory {
    keys: Vec<Keys>,
    values: Vec<PackedMatrix>,
    /// `(heads, queries, stride)`, and mixed.
    scores: Vec<f32>,
    mixed: Vec<f32>,
    /// For every head and query.
    sums: Vec<f32>,
    rows: RowMemory,
}

#[derive(Default)]
struct RowMemory {
    converted: Converted,
    /// `(queries, R)`: products of queries and the key table.
    terms: Vec<f32>,
}

/// The keys of one head.
#[derive(Default)]
struct Keys {
    packed: PackedMatrix,
    /// `(keys, R)`: their products with the query table.
    terms: Vec<f32>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

impl Scratch for Memory {
    const KEPT: &'static LocalKey<RefCell<Self>> = &MEMORY;
}

impl Attention<'_> {
    /// A table of distances, `(R, heads · d)`, packed for every head.
    pub(super) fn pack_table(&self, table: &[f32], size: usize) -> Vec<PackedMatrix> {
        let stride = self.heads * size;
        let pack = |head: usize| {
            let mut packed = PackedMatrix::default();
            let from = Source { x: &table[head * size..], stride, turned: false };
            packed.repack(Compute::F32, from, table.len() / stride, size);
            packed
        };
        (0..self.heads).into_par_iter().map(pack).collect()
    }
}

impl Flow<'_> {
    /// `(T, value_heads · v_size)`, for offsets that begin with 0, do not decrease and end with T.
    pub fn run(&self, offsets: &[usize]) -> Result<Vec<f32>> {
        let mixes = self.mix_before.is_some() || self.mix_after.is_some();
        let mut tasks = Vec::new();
        for bounds in offsets.windows(2) {
            let (start, n) = (bounds[0], bounds[1] - bounds[0]);
            let Visible { before, after } = self.attention.visible;
            let sees_part = before.saturating_add(after).saturating_add(QUERIES_PER_TASK) < n;
            let at_once = if mixes || sees_part { QUERIES_PER_TASK } else { n.max(1) };
            for first in (0..n).step_by(at_once) {
                let queries = first..n.min(first + at_once);
                let keys = self.visible(first, n).start..self.visible(queries.end - 1, n).end;
                tasks.push(Task { start, n, queries, keys });
            }
        }
        let (tokens, heads) = (offsets.last().copied().unwrap_or(0), self.attention.heads);
        // SAFETY: the offsets begin with 0, do not decrease and end with `tokens` (`Attention::check`), so the tasks together have
        // every token; with every head, or with all at once, they write all columns.
        unsafe {
            written(tokens, self.value_heads * self.v_size, |to| match mixes {
                true => tasks.par_iter().for_each(|task| scratch(|memory| self.all_heads(task, memory, to))),
                false => (0..tasks.len() * heads).into_par_iter().for_each(|i| {
                    scratch(|memory| self.one_head(&tasks[i / heads], i % heads, memory, to));
                }),
            })
        }
    }

    fn visible(&self, query: usize, n: usize) -> Range<usize> {
        self.attention.visible.of(query, n)
    }

    /// Writes the columns of one head.
    fn one_head(&self, task: &Task, head: usize, memory: &mut Memory, to: &Blocks) {
        let Memory { keys, values, scores, sums, rows, .. } = memory;
        keys.resize_with(keys.len().max(1), Keys::default);
        values.resize_with(values.len().max(1), PackedMatrix::default);
        let (keys, values) = (&mut keys[0], &mut values[0]);
        self.pack_keys(task, head, keys, &mut rows.converted);
        self.pack_values(task, head, values);
        let stride = task.stride();
        scores.resize(QUERIES * stride, 0.0);
        sums.resize(QUERIES, 0.0);
        for queries in blocks(task) {
            let sums = &mut sums[..queries.len()];
            let scale = self.scores(task, head, queries.clone(), keys, scores, rows, false);
            self.exponentials(task, queries.clone(), scores, scale, sums);
            self.weigh(task, head, queries, scores, values, rows, Some(sums), to);
        }
    }

    /// Writes the columns of all heads, which are mixed with each other.
    fn all_heads(&self, task: &Task, memory: &mut Memory, to: &Blocks) {
        let Memory { keys, values, scores, mixed, sums, rows } = memory;
        let heads = self.attention.heads;
        keys.resize_with(keys.len().max(heads), Keys::default);
        values.resize_with(values.len().max(self.value_heads), PackedMatrix::default);
        for (head, keys) in keys.iter_mut().take(heads).enumerate() {
            self.pack_keys(task, head, keys, &mut rows.converted);
        }
        for (head, values) in values.iter_mut().take(self.value_heads).enumerate() {
            self.pack_values(task, head, values);
        }
        let size = QUERIES * task.stride();
        let most = heads.max(self.softmax_heads).max(self.value_heads);
        scores.resize(most * size, 0.0);
        mixed.resize(most * size, 0.0);
        sums.resize(QUERIES, 0.0);
        for queries in blocks(task) {
            for (head, scores) in scores.chunks_mut(size).take(heads).enumerate() {
                self.scores(task, head, queries.clone(), &keys[head], scores, rows, true);
            }
            if let Some(mix) = self.mix_before {
                mix_heads(mix, &scores[..heads * size], mixed, size);
                std::mem::swap(scores, mixed);
            }
            for scores in scores.chunks_mut(size).take(self.softmax_heads) {
                let sums = &mut sums[..queries.len()];
                self.exponentials(task, queries.clone(), scores, 1.0, sums);
                for (row, sum) in scores.chunks_mut(task.stride()).zip(sums) {
                    scale_and_bias(isa(), row, 1.0 / *sum, &[]);
                }
            }
            if let Some(mix) = self.mix_after {
                mix_heads(mix, &scores[..self.softmax_heads * size], mixed, size);
                std::mem::swap(scores, mixed);
            }
            for (head, scores) in scores.chunks_mut(size).take(self.value_heads).enumerate() {
                self.weigh(task, head, queries.clone(), scores, &values[head], rows, None, to);
            }
        }
    }

    /// What both products are computed in.
    fn compute(&self) -> Compute {
        match self.attention.compute {
            Compute::F32 => Compute::F32,
            Compute::Bf16x3 => Compute::Bf16x3,
            // Bytes would lose too much here.
            Compute::Bf16 | Compute::Int8 if isa().has_fast_bf16() => Compute::Bf16,
            Compute::Bf16 | Compute::Int8 => Compute::F32,
        }
    }

    fn pack_keys(&self, task: &Task, head: usize, keys: &mut Keys, converted: &mut Converted) {
        let Attention { heads, key_value_heads, .. } = *self.attention;
        let stride = key_value_heads * self.qk_size;
        let first = (task.start + task.keys.start) * stride + head * key_value_heads / heads * self.qk_size;
        let from = Source { x: &self.k[first..], stride, turned: false };
        keys.packed.repack(self.compute(), from, task.keys.len(), self.qk_size);
        if let Some(table) = &self.query_table {
            let k = (&self.k[first..], stride, task.keys.len());
            product(k, &table[head], converted, &mut keys.terms);
        }
    }

    fn pack_values(&self, task: &Task, head: usize, values: &mut PackedMatrix) {
        let stride = self.value_groups * self.v_size;
        let group = head * self.value_groups / self.value_heads;
        let first = (task.start + task.keys.start) * stride + group * self.v_size;
        let from = Source { x: &self.v[first..], stride, turned: true };
        values.repack(self.compute(), from, self.v_size, task.keys.len());
    }

    /// The scores of some queries. They still have to be multiplied with what is returned, unless they have a bias or have
    /// to be `scaled`.
    #[allow(clippy::too_many_arguments, reason = "the memory comes in parts, which are borrowed apart")]
    fn scores(
        &self,
        task: &Task,
        head: usize,
        queries: Range<usize>,
        keys: &Keys,
        scores: &mut [f32],
        memory: &mut RowMemory,
        scaled: bool,
    ) -> f32 {
        let row = self.attention.heads * self.qk_size;
        let q = &self.q[(task.start + queries.start) * row + head * self.qk_size..];
        let x = memory.converted.rows(&keys.packed, q, row, queries.len());
        let stride = task.stride();
        // SAFETY: it is the only block.
        let mut block = unsafe { Blocks::new(scores, stride).block(0..queries.len(), 0..task.keys.len()) };
        gemm(x, &keys.packed, 0..keys.packed.panels(), &Epilogue::default(), &mut block);
        if let Some(relative) = &self.attention.relative {
            if let Some(table) = &self.key_table {
                product((q, row, queries.len()), &table[head], &mut memory.converted, &mut memory.terms);
            }
            let middle = (relative.rows.len() - 1) / 2;
            let span = |table: &Option<Vec<PackedMatrix>>| table.as_ref().map(|table| table[head].outputs());
            let spans = (span(&self.key_table), span(&self.query_table));
            for (i, scores) in scores.chunks_mut(stride).take(queries.len()).enumerate() {
                for (j, score) in scores[..task.keys.len()].iter_mut().enumerate() {
                    let distance = queries.start + i + middle - (task.keys.start + j);
                    let row = relative.rows[distance] as usize;
                    if let Some(span) = spans.0 {
                        *score += memory.terms[i * span + row];
                    }
                    if let Some(span) = spans.1 {
                        *score += keys.terms[j * span + row];
                    }
                }
            }
        }
        let scale = self.attention.scale as f32;
        if self.bias.is_empty() && !scaled {
            return scale;
        }
        for (query, scores) in queries.zip(scores.chunks_mut(stride)) {
            let bias = match self.bias {
                [] => &[],
                bias => {
                    let middle = head * self.bias_width + (self.bias_width - 1) / 2;
                    &bias[middle + task.keys.start - query..][..task.keys.len()]
                }
            };
            scale_and_bias(isa(), &mut scores[..task.keys.len()], scale, bias);
        }
        1.0
    }

    fn exponentials(
        &self,
        task: &Task,
        queries: Range<usize>,
        scores: &mut [f32],
        scale: f32,
        sums: &mut [f32],
    ) {
        let first = queries.start;
        let visible = |row: usize| {
            let visible = self.visible(first + row, task.n);
            visible.start - task.keys.start..visible.end - task.keys.start
        };
        let accuracy = if self.compute() == Compute::Bf16 { Accuracy::Bf16 } else { Accuracy::F32 };
        exponentials(isa(), scores, task.stride(), scale, visible, sums, accuracy);
    }

    /// Writes the values under the weights of some queries, divided by the sums if there are any.
    #[allow(clippy::too_many_arguments, reason = "the memory comes in parts, which are borrowed apart")]
    fn weigh(
        &self,
        task: &Task,
        head: usize,
        queries: Range<usize>,
        weights: &[f32],
        values: &PackedMatrix,
        memory: &mut RowMemory,
        sums: Option<&[f32]>,
        to: &Blocks,
    ) {
        let x = memory.converted.rows(values, weights, task.stride(), queries.len());
        let rows = task.start + queries.start..task.start + queries.end;
        // SAFETY: no other task has these queries and this head.
        let mut block = unsafe { to.block(rows, head * self.v_size..(head + 1) * self.v_size) };
        let epilogue = Epilogue { divisors: sums.unwrap_or_default(), ..Epilogue::default() };
        gemm(x, values, 0..values.panels(), &epilogue, &mut block);
    }
}

fn isa() -> Isa {
    Isa::best()
}

/// The queries of a task, some at a time.
fn blocks(task: &Task) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = task.queries;
    (start..end).step_by(QUERIES).map(move |first| first..end.min(first + QUERIES))
}

/// `x Wᵀ` into memory that is there, for `x` with the distance from a row to the next and the number of rows.
fn product(
    (x, stride, rows): (&[f32], usize, usize),
    weights: &PackedMatrix,
    converted: &mut Converted,
    to: &mut Vec<f32>,
) {
    to.resize(rows * weights.outputs(), 0.0);
    let x = converted.rows(weights, x, stride, rows);
    // SAFETY: it is the only block.
    let mut block = unsafe { Blocks::new(to, weights.outputs()).block(0..rows, 0..weights.outputs()) };
    gemm(x, weights, 0..weights.panels(), &Epilogue::default(), &mut block);
}

/// `(out, in)` times the heads of `x`, each of so many numbers.
fn mix_heads(mix: &[f32], x: &[f32], to: &mut [f32], size: usize) {
    let heads = x.len() / size;
    for (to, mix) in to.chunks_mut(size).zip(mix.chunks(heads)) {
        to.fill(0.0);
        for (x, share) in x.chunks(size).zip(mix) {
            add_scaled(isa(), to, *share, x);
        }
    }
}
