//! Attention on the CPU. For each head of a sequence, keys and values are packed like the weights of a linear
//! layer. Then both GEMMs are computed for a block of queries at a time, with only the scores of that block
//! in memory: memory grows with the length of a sequence, not with its square. On tiles and for few keys,
//! attention without talking heads, content by position and bounded scores is one kernel.

mod tasks;

use std::cell::RefCell;
use std::ops::Range;
use std::thread::LocalKey;

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::config::{Attention, HeadDims};
use crate::kernels::gemm::{
    AttentionBuffer, Epilogue, GemmType, HeadAttention, HeadRows, LhsBuffer, MatrixView, OutputMatrix,
    PackedMatrix, attend_head, gemm, max_attended_keys,
};
use crate::kernels::isa::Isa;
use crate::kernels::math::Accuracy;
use crate::kernels::softmax::{axpy, scale_and_bias, scale_and_cap, softmax_unnormalized};
use crate::ops::host::{host_slice, optional_host_slice};
use crate::ops::scratch::{Scratch, at_least, new_matrix, with_scratch};
use tasks::{Path, Task};

/// Queries whose scores are in memory at a time: a multiple of MR of the vector micro-kernel (12 or 6) and of
/// the rows of a tile (16).
pub const QUERY_BLOCK: usize = 48;

impl Attention<'_> {
    /// [`Attention::forward`] on the CPU in f32.
    pub(super) fn forward_cpu(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cu_seqlens: &[usize],
        dims: HeadDims,
    ) -> Result<Tensor> {
        let (query, key, value) = (host_slice(q)?, host_slice(k)?, host_slice(v)?);
        let bias = optional_host_slice(self.bias)?;
        let pre_softmax = optional_host_slice(self.pre_softmax)?;
        let post_softmax = optional_host_slice(self.post_softmax)?;
        let relative = self.relative.as_ref();
        let position_keys = optional_host_slice(relative.and_then(|relative| relative.position_keys))?;
        let position_queries = optional_host_slice(relative.and_then(|relative| relative.position_queries))?;
        let gemm_type = self.cpu_gemm_type();
        let is_plain =
            pre_softmax.is_none() && post_softmax.is_none() && relative.is_none() && self.score_cap.is_none();
        let head_dims = [dims.qk_head_dim, dims.v_head_dim];
        let cpu = CpuAttention {
            attention: self,
            dims,
            q: &query,
            k: &key,
            v: &value,
            bias: bias.as_deref().unwrap_or_default(),
            bias_width: self.bias.map_or(Ok(0), |bias| bias.dim(1))?,
            pre_softmax: pre_softmax.as_deref(),
            post_softmax: post_softmax.as_deref(),
            position_keys: position_keys.map(|table| self.pack_heads(&table, dims.qk_head_dim)),
            position_queries: position_queries.map(|table| self.pack_heads(&table, dims.qk_head_dim)),
            gemm_type,
            max_kernel_keys: if is_plain { max_attended_keys(isa(), gemm_type, head_dims) } else { 0 },
        };
        let output = cpu.run(cu_seqlens)?;
        Tensor::from_vec(output, (q.dim(0)?, dims.value_heads * dims.v_head_dim), q.device())
    }

    /// The type of both GEMMs.
    fn cpu_gemm_type(&self) -> GemmType {
        match self.gemm_type {
            GemmType::F32 => GemmType::F32,
            GemmType::Bf16x3 => GemmType::Bf16x3,
            // Int8 would not be accurate enough here.
            GemmType::Bf16 | GemmType::Int8 if isa().has_fast_bf16() => GemmType::Bf16,
            GemmType::Bf16 | GemmType::Int8 => GemmType::F32,
        }
    }

    /// Packs a table of relative positions, `(R, heads · head_dim)`, as one matrix per head.
    fn pack_heads(&self, table: &[f32], head_dim: usize) -> Vec<PackedMatrix> {
        let stride = self.heads * head_dim;
        let pack = |head: usize| {
            let mut packed = PackedMatrix::default();
            let from = MatrixView { data: &table[head * head_dim..], stride, transposed: false };
            packed.repack(GemmType::F32, from, table.len() / stride, head_dim);
            packed
        };
        (0..self.heads).into_par_iter().map(pack).collect()
    }
}

/// An [`Attention`] with its operands as slices.
struct CpuAttention<'a> {
    attention: &'a Attention<'a>,
    dims: HeadDims,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// `(heads, bias_width)`, or empty.
    bias: &'a [f32],
    bias_width: usize,
    /// `(softmax heads, heads)`.
    pre_softmax: Option<&'a [f32]>,
    /// `(value heads, softmax heads)`.
    post_softmax: Option<&'a [f32]>,
    /// The position keys of c2p, per head `(R, qk_head_dim)`.
    position_keys: Option<Vec<PackedMatrix>>,
    /// The position queries of p2c, per head `(R, qk_head_dim)`.
    position_queries: Option<Vec<PackedMatrix>>,
    /// The type of both GEMMs.
    gemm_type: GemmType,
    /// The most keys with which [`Path::Kernel`] computes a head.
    max_kernel_keys: usize,
}

/// Buffers that a thread reuses from task to task.
#[derive(Default)]
struct TaskScratch {
    keys: Vec<HeadKeys>,
    values: Vec<PackedMatrix>,
    /// `(heads, QUERY_BLOCK, stride)`.
    scores: Vec<f32>,
    /// The scores after a projection, in the same layout.
    projected: Vec<f32>,
    /// The softmax denominators of a query block.
    sums: Vec<f32>,
    rows: RowScratch,
    /// The packed operands of a head that is one kernel.
    head: AttentionBuffer,
}

/// Buffers for the rows of a query block.
#[derive(Default)]
struct RowScratch {
    lhs: LhsBuffer,
    /// Queries times position keys, `(queries, R)`.
    c2p: Vec<f32>,
}

/// The keys of one head.
#[derive(Default)]
struct HeadKeys {
    packed: PackedMatrix,
    /// Keys times position queries, `(keys, R)`.
    p2c: Vec<f32>,
}

thread_local! {
    static TASK_SCRATCH: RefCell<Option<Box<TaskScratch>>> = const { RefCell::new(None) };
}

impl Scratch for TaskScratch {
    const THREAD_LOCAL: &'static LocalKey<RefCell<Option<Box<Self>>>> = &TASK_SCRATCH;
}

impl CpuAttention<'_> {
    /// `(T, value_heads · v_head_dim)`, for `cu_seqlens` that `Attention::check` has accepted.
    fn run(&self, cu_seqlens: &[usize]) -> Result<Vec<f32>> {
        let tasks = self.tasks(cu_seqlens);
        let rows =
            (self.attention.queries).map_or_else(|| cu_seqlens.last().copied().unwrap_or(0), <[u32]>::len);
        let columns = self.dims.value_heads * self.dims.v_head_dim;
        // SAFETY: `cu_seqlens` begins with 0, does not decrease and ends with the number of tokens
        // (`Attention::check`), so the queries of the tasks of each head are all rows, or with talking heads
        // those of all tasks; selected queries are each in one run, whose rows follow each other, and have no
        // talking heads (`Attention::check`). `run_all_heads` writes all columns of its queries. `run_head`
        // and `run_kernel` write the columns of one head, and without talking heads `value_heads` is `heads`,
        // so the tasks of all heads write all columns.
        unsafe {
            new_matrix(rows, columns, |output| {
                tasks.par_iter().for_each(|task| {
                    with_scratch(|scratch: &mut TaskScratch| match task.path(self) {
                        Path::AllHeads => self.run_all_heads(task, scratch, output),
                        Path::Kernel => self.run_kernel(task, &mut scratch.head, output),
                        Path::Blocks => self.run_head(task, scratch, output),
                    });
                });
            })
        }
    }

    /// The bias of a head, or nothing.
    fn bias_of(&self, head: usize) -> &[f32] {
        &self.bias[head * self.bias_width..][..self.bias_width]
    }

    /// Some rows of the queries of a head.
    fn queries(&self, rows: Range<usize>, head: usize) -> HeadRows<'_> {
        let dim = self.dims.qk_head_dim;
        let stride = self.attention.heads * dim;
        HeadRows { data: &self.q[rows.start * stride + head * dim..], stride, rows: rows.len(), dim }
    }

    /// Some rows of the keys of a head.
    fn keys(&self, rows: Range<usize>, head: usize) -> HeadRows<'_> {
        let (first, stride) = self.first_key(rows.start, head);
        HeadRows { data: &self.k[first..], stride, rows: rows.len(), dim: self.dims.qk_head_dim }
    }

    /// Computes one head of a task in one kernel, and writes its columns.
    fn run_kernel(&self, task: &Task, buffer: &mut AttentionBuffer, output: &OutputMatrix) {
        let (head, v_head_dim) = (task.head, self.dims.v_head_dim);
        let query_rows = task.rows(&task.queries);
        let key_rows = task.start + task.keys.start..task.start + task.keys.end;
        let (first, stride) = self.first_value(key_rows.start, head);
        let values = HeadRows { data: &self.v[first..], stride, rows: key_rows.len(), dim: v_head_dim };
        let operands = HeadAttention {
            queries: self.queries(query_rows.clone(), head),
            keys: self.keys(key_rows, head),
            values,
            scale: self.attention.scale as f32,
            first_query: task.queries.start - task.keys.start,
            window: task.window,
            bias: self.bias_of(head),
        };
        let columns = head * v_head_dim..(head + 1) * v_head_dim;
        // SAFETY: no other task has these queries and this head.
        let mut block = unsafe { output.block(query_rows, columns) };
        attend_head(isa(), self.gemm_type, operands, buffer, &mut block);
    }

    /// The index of the first value of a key, and the values from one key to the next.
    fn first_key(&self, row: usize, head: usize) -> (usize, usize) {
        let Attention { heads, key_value_heads, .. } = *self.attention;
        let head_dim = self.dims.qk_head_dim;
        let stride = key_value_heads * head_dim;
        (row * stride + head * key_value_heads / heads * head_dim, stride)
    }

    /// [`CpuAttention::first_key`] for the values.
    fn first_value(&self, row: usize, head: usize) -> (usize, usize) {
        let HeadDims { v_head_dim, value_heads, value_groups, .. } = self.dims;
        let stride = value_groups * v_head_dim;
        (row * stride + head * value_groups / value_heads * v_head_dim, stride)
    }

    /// Computes one head of a task and writes its columns.
    fn run_head(&self, task: &Task, scratch: &mut TaskScratch, output: &OutputMatrix) {
        let head = task.head;
        let TaskScratch { keys, values, scores, sums, rows, .. } = scratch;
        keys.resize_with(keys.len().max(1), HeadKeys::default);
        values.resize_with(values.len().max(1), PackedMatrix::default);
        let (keys, values) = (&mut keys[0], &mut values[0]);
        self.pack_keys(task, head, keys, &mut rows.lhs);
        self.pack_values(task, head, values);
        let stride = task.stride();
        let scores = at_least(scores, QUERY_BLOCK * stride);
        let sums = at_least(sums, QUERY_BLOCK);
        for queries in task.query_blocks() {
            let sums = &mut sums[..queries.len()];
            let scale = self.scores(task, head, queries.clone(), keys, scores, rows, false);
            self.softmax(task, queries.clone(), scores, scale, sums);
            self.weighted_sum(task, head, queries, scores, values, rows, Some(sums), output);
        }
    }

    /// Computes all heads of a task, projected across heads, and writes all columns.
    fn run_all_heads(&self, task: &Task, scratch: &mut TaskScratch, output: &OutputMatrix) {
        let TaskScratch { keys, values, scores, projected, sums, rows, .. } = scratch;
        let (heads, HeadDims { softmax_heads, value_heads, .. }) = (self.attention.heads, self.dims);
        keys.resize_with(keys.len().max(heads), HeadKeys::default);
        values.resize_with(values.len().max(value_heads), PackedMatrix::default);
        for (head, keys) in keys.iter_mut().take(heads).enumerate() {
            self.pack_keys(task, head, keys, &mut rows.lhs);
        }
        for (head, values) in values.iter_mut().take(value_heads).enumerate() {
            self.pack_values(task, head, values);
        }
        let block_len = QUERY_BLOCK * task.stride();
        let max_heads = heads.max(softmax_heads).max(value_heads);
        let mut scores = at_least(scores, max_heads * block_len);
        let mut projected = at_least(projected, max_heads * block_len);
        let sums = at_least(sums, QUERY_BLOCK);
        for queries in task.query_blocks() {
            for (head, scores) in scores.chunks_mut(block_len).take(heads).enumerate() {
                self.scores(task, head, queries.clone(), &keys[head], scores, rows, true);
            }
            if let Some(projection) = self.pre_softmax {
                project_heads(projection, &scores[..heads * block_len], projected, block_len);
                std::mem::swap(&mut scores, &mut projected);
            }
            for scores in scores.chunks_mut(block_len).take(softmax_heads) {
                let sums = &mut sums[..queries.len()];
                self.softmax(task, queries.clone(), scores, 1.0, sums);
                for (row, sum) in scores.chunks_mut(task.stride()).zip(sums) {
                    scale_and_bias(isa(), row, 1.0 / *sum, &[]);
                }
            }
            if let Some(projection) = self.post_softmax {
                project_heads(projection, &scores[..softmax_heads * block_len], projected, block_len);
                std::mem::swap(&mut scores, &mut projected);
            }
            for (head, scores) in scores.chunks_mut(block_len).take(value_heads).enumerate() {
                self.weighted_sum(task, head, queries.clone(), scores, &values[head], rows, None, output);
            }
        }
    }

    /// Packs the keys of one head, and multiplies them with the position queries if there are any.
    fn pack_keys(&self, task: &Task, head: usize, keys: &mut HeadKeys, lhs: &mut LhsBuffer) {
        let head_dim = self.dims.qk_head_dim;
        let (first, stride) = self.first_key(task.start + task.keys.start, head);
        let from = MatrixView { data: &self.k[first..], stride, transposed: false };
        keys.packed.repack(self.gemm_type, from, task.keys.len(), head_dim);
        if let Some(tables) = &self.position_queries {
            gemm_into((&self.k[first..], stride, task.keys.len()), &tables[head], lhs, &mut keys.p2c);
        }
    }

    /// Packs the values of one head, transposed: they are the right operand of the second GEMM.
    fn pack_values(&self, task: &Task, head: usize, values: &mut PackedMatrix) {
        let (first, stride) = self.first_value(task.start + task.keys.start, head);
        let from = MatrixView { data: &self.v[first..], stride, transposed: true };
        values.repack(self.gemm_type, from, self.dims.v_head_dim, task.keys.len());
    }

    /// Computes the scores of a block of queries. Returns the factor that is still to be applied to them: 1
    /// if `must_scale`, or there is a bound or a bias; else the scale, which the softmax applies.
    #[allow(clippy::too_many_arguments, reason = "the buffers are borrowed separately")]
    fn scores(
        &self,
        task: &Task,
        head: usize,
        queries: Range<usize>,
        keys: &HeadKeys,
        scores: &mut [f32],
        rows: &mut RowScratch,
        must_scale: bool,
    ) -> f32 {
        let HeadRows { data: q, stride: row, .. } = self.queries(task.rows(&queries), head);
        let lhs = rows.lhs.convert(&keys.packed, q, row, queries.len());
        let stride = task.stride();
        // SAFETY: there is only one block.
        let mut block = unsafe { OutputMatrix::new(scores, stride).block(0..queries.len(), 0..stride) };
        gemm(lhs, &keys.packed, 0..keys.packed.panels(), &Epilogue::default(), &mut block);
        if self.attention.relative.is_some() {
            if let Some(tables) = &self.position_keys {
                gemm_into((q, row, queries.len()), &tables[head], &mut rows.lhs, &mut rows.c2p);
            }
            self.add_relative_positions(task, head, queries.clone(), keys, &rows.c2p, scores);
        }
        let mut scale = self.attention.scale as f32;
        if let Some(cap) = self.attention.score_cap {
            for scores in scores.chunks_mut(stride).take(queries.len()) {
                scale_and_cap(isa(), &mut scores[..task.keys.len()], scale, cap as f32);
            }
            scale = 1.0;
        }
        if self.bias.is_empty() && !must_scale {
            return scale;
        }
        for (query, scores) in queries.zip(scores.chunks_mut(stride)) {
            let bias = match self.bias_of(head) {
                [] => &[],
                bias => {
                    let middle = (self.bias_width - 1) / 2;
                    &bias[middle + task.keys.start - query..][..task.keys.len()]
                }
            };
            scale_and_bias(isa(), &mut scores[..task.keys.len()], scale, bias);
        }
        1.0
    }

    /// Adds the c2p and p2c terms to the scores of a block of queries.
    fn add_relative_positions(
        &self,
        task: &Task,
        head: usize,
        queries: Range<usize>,
        keys: &HeadKeys,
        c2p: &[f32],
        scores: &mut [f32],
    ) {
        let Some(relative) = &self.attention.relative else { return };
        let middle = (relative.buckets.len() - 1) / 2;
        let rows = |tables: &Option<Vec<PackedMatrix>>| tables.as_ref().map(|tables| tables[head].outputs());
        let (c2p_rows, p2c_rows) = (rows(&self.position_keys), rows(&self.position_queries));
        for (i, scores) in scores.chunks_mut(task.stride()).take(queries.len()).enumerate() {
            for (j, score) in scores[..task.keys.len()].iter_mut().enumerate() {
                let relative_position = queries.start + i + middle - (task.keys.start + j);
                let bucket = relative.buckets[relative_position] as usize;
                if let Some(rows) = c2p_rows {
                    *score += c2p[i * rows + bucket];
                }
                if let Some(rows) = p2c_rows {
                    *score += keys.p2c[j * rows + bucket];
                }
            }
        }
    }

    /// Unnormalised softmax of the scores of a block of queries; writes the denominators to `sums`.
    fn softmax(&self, task: &Task, queries: Range<usize>, scores: &mut [f32], scale: f32, sums: &mut [f32]) {
        let visible = |row: usize| {
            let keys = task.visible_keys(queries.start + row);
            // A row without keys is set to 0 below.
            if keys.is_empty() {
                return 0..task.keys.len();
            }
            let first = if task.prefix > 0 { 0 } else { keys.start };
            first - task.keys.start..keys.end.max(task.prefix) - task.keys.start
        };
        if task.prefix > 0 {
            // What is between the prefix and the window has no weight.
            for (query, row) in queries.clone().zip(scores.chunks_mut(task.stride())) {
                let window = task.visible_keys(query);
                row[task.prefix.min(window.start)..window.start].fill(f32::NEG_INFINITY);
            }
        }
        let accuracy = if self.gemm_type == GemmType::Bf16 { Accuracy::Bf16 } else { Accuracy::F32 };
        softmax_unnormalized(isa(), scores, task.stride(), scale, &visible, sums, accuracy);
        if self.attention.key_lengths.is_none() {
            return;
        }
        for ((query, row), sum) in queries.clone().zip(scores.chunks_mut(task.stride())).zip(sums) {
            if task.visible_keys(query).is_empty() {
                row.fill(0.0);
                *sum = 1.0;
            }
        }
    }

    /// Writes the sum of the values, weighted by `weights` and divided by `sums` if they are given, for a
    /// block of queries.
    #[allow(clippy::too_many_arguments, reason = "the buffers are borrowed separately")]
    fn weighted_sum(
        &self,
        task: &Task,
        head: usize,
        queries: Range<usize>,
        weights: &[f32],
        values: &PackedMatrix,
        rows: &mut RowScratch,
        sums: Option<&[f32]>,
        output: &OutputMatrix,
    ) {
        let lhs = rows.lhs.convert(values, weights, task.stride(), queries.len());
        let v_head_dim = self.dims.v_head_dim;
        // SAFETY: no other task has these queries and this head, and a task writes one block after the other.
        let mut block =
            unsafe { output.block(task.rows(&queries), head * v_head_dim..(head + 1) * v_head_dim) };
        let epilogue = Epilogue { divisors: sums.unwrap_or_default(), ..Epilogue::default() };
        gemm(lhs, values, 0..values.panels(), &epilogue, &mut block);
    }
}

fn isa() -> Isa {
    Isa::selected()
}

/// `to = x Wᵀ`, reusing the memory of `to`. The left operand is given by its values, the stride of its rows
/// and their number.
fn gemm_into(
    (x, stride, rows): (&[f32], usize, usize),
    weights: &PackedMatrix,
    lhs: &mut LhsBuffer,
    to: &mut Vec<f32>,
) {
    let to = at_least(to, rows * weights.outputs());
    let x = lhs.convert(weights, x, stride, rows);
    // SAFETY: there is only one block.
    let mut block = unsafe { OutputMatrix::new(to, weights.outputs()).block(0..rows, 0..weights.outputs()) };
    gemm(x, weights, 0..weights.panels(), &Epilogue::default(), &mut block);
}

/// Multiplies a projection `(to, from)` with the heads of `x`, each of `head_len` values.
fn project_heads(projection: &[f32], x: &[f32], to: &mut [f32], head_len: usize) {
    let heads = x.len() / head_len;
    for (to, weights) in to.chunks_mut(head_len).zip(projection.chunks(heads)) {
        to.fill(0.0);
        for (x, weight) in x.chunks(head_len).zip(weights) {
            axpy(isa(), *weight, x, to);
        }
    }
}
