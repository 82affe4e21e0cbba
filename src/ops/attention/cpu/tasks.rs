//! Division of attention into tasks, and the path that computes each.

use std::ops::Range;

use rayon::prelude::*;

use super::{CpuAttention, QUERY_BLOCK};
use crate::kernels::gemm::{AttentionWindow, MAX_NR, row_stride};
use crate::ops::attention::reach::reach;

/// Fewest queries of a task, but the last one, if they do not see the whole sequence or heads are projected;
/// otherwise a task has all of a sequence.
const QUERIES_PER_TASK: usize = 96;
/// Keys that a query sees for each query of a task, where a bias leaves out others: packing them takes little
/// of the time then, and few are packed that it does not see.
const KEYS_PER_QUERY: usize = 8;
/// Queries of a task where one kernel takes all keys of a sequence: so many that packing them takes little of
/// its time.
const QUERIES_PER_KERNEL: usize = 2048;

/// Queries of a task with a prefix, which has all keys up to the end of the window of its last query.
const PREFIXED_QUERIES_PER_TASK: usize = 768;

/// How a task is computed.
///
/// | | keys | path |
/// |---|---|---|
/// | talking heads | any | `AllHeads` |
/// | neither these nor content by position, on tiles | 1 or more | `Kernel` |
/// | the same on vectors | 1 to as many as stay in L1 (`max_attended_keys`) | `Kernel` |
/// | otherwise, and with a prefix | any | `Blocks` |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// All heads of [`QUERY_BLOCK`] queries at a time, since projections mix them.
    AllHeads,
    /// A head in one kernel, whose scores stay in registers or L1.
    Kernel,
    /// A head in two GEMMs per [`QUERY_BLOCK`] queries.
    Blocks,
}

/// Consecutive queries of a sequence.
struct QueryRun {
    sequence: usize,
    /// Their positions in it.
    queries: Range<usize>,
    /// The row of the first one among queries and outputs.
    first_row: usize,
}

/// Some queries of a sequence, and the keys that they see.
pub(super) struct Task {
    /// The head; 0 with talking heads, where a task has all of them.
    pub(super) head: usize,
    /// The keys that a query sees.
    pub(super) window: AttentionWindow,
    /// The first row of the sequence among keys and values.
    pub(super) start: usize,
    /// The row of the first query among queries and outputs.
    pub(super) first_row: usize,
    /// The first keys of the sequence that each query sees beside those of its window.
    pub(super) prefix: usize,
    /// Keys of the sequence.
    pub(super) n: usize,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

impl Task {
    /// Values from the scores of one query to those of the next: whole panels are stored faster.
    pub(super) fn stride(&self) -> usize {
        row_stride(self.keys.len().next_multiple_of(MAX_NR))
    }

    /// The keys that a query sees.
    pub(super) fn visible_keys(&self, query: usize) -> Range<usize> {
        self.window.keys(query, self.n)
    }

    /// How the task is computed.
    pub(super) fn path(&self, attention: &CpuAttention) -> Path {
        // A kernel of one window knows no prefix.
        if self.prefix > 0 { Path::Blocks } else { attention.path(self.keys.len()) }
    }

    /// The rows of some of the queries.
    pub(super) fn rows(&self, queries: &Range<usize>) -> Range<usize> {
        let first = self.first_row + queries.start - self.queries.start;
        first..first + queries.len()
    }

    /// The queries in blocks of [`QUERY_BLOCK`].
    pub(super) fn query_blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.queries;
        (start..end).step_by(QUERY_BLOCK).map(move |first| first..end.min(first + QUERY_BLOCK))
    }
}

impl CpuAttention<'_> {
    fn has_talking_heads(&self) -> bool {
        self.pre_softmax.is_some() || self.post_softmax.is_some()
    }

    /// How a task with so many keys is computed.
    pub(super) fn path(&self, keys: usize) -> Path {
        match () {
            () if self.has_talking_heads() => Path::AllHeads,
            () if (1..=self.max_kernel_keys).contains(&keys) => Path::Kernel,
            () => Path::Blocks,
        }
    }

    /// Divides the queries into tasks.
    pub(super) fn tasks(&self, cu_seqlens: &[usize]) -> Vec<Task> {
        let heads = if self.has_talking_heads() { 1 } else { self.attention.heads };
        let runs = self.query_runs(cu_seqlens);
        let of_head = |i: usize| self.tasks_of_head(cu_seqlens, &runs[i / heads], i % heads);
        let all = 0..runs.len() * heads;
        // Only a bias makes this worth several threads: it takes the norms of all queries and keys.
        if self.bias.is_empty() {
            all.flat_map(of_head).collect()
        } else {
            all.into_par_iter().flat_map_iter(of_head).collect()
        }
    }

    /// The queries in runs: all of each sequence, or the selected ones.
    fn query_runs(&self, cu_seqlens: &[usize]) -> Vec<QueryRun> {
        let Some(tokens) = self.attention.queries else {
            let of_sequence = |(sequence, bounds): (usize, &[usize])| {
                let (start, end) = (bounds[0], bounds[1]);
                QueryRun { sequence, queries: 0..end - start, first_row: start }
            };
            return cu_seqlens.windows(2).enumerate().map(of_sequence).collect();
        };
        let mut runs: Vec<QueryRun> = Vec::new();
        for (row, token) in tokens.iter().enumerate() {
            let token = *token as usize;
            let sequence = cu_seqlens.partition_point(|start| *start <= token) - 1;
            let query = token - cu_seqlens[sequence];
            match runs.last_mut() {
                Some(run) if run.sequence == sequence && run.queries.end == query => run.queries.end += 1,
                _ => runs.push(QueryRun { sequence, queries: query..query + 1, first_row: row }),
            }
        }
        runs
    }

    /// Divides a run of queries. A query has the same keys in any run, hence the same result: tasks are those
    /// of the whole sequence, without the other queries.
    fn tasks_of_head<'a>(
        &self,
        cu_seqlens: &[usize],
        run: &'a QueryRun,
        head: usize,
    ) -> impl Iterator<Item = Task> + use<'a> {
        let rows = cu_seqlens[run.sequence]..cu_seqlens[run.sequence + 1];
        let (start, tokens) = (rows.start, rows.len());
        let n = self.attention.key_length(run.sequence, tokens);
        let window = self.window(&rows, n, head);
        let prefix = self.attention.prefix_length(run.sequence);
        let task_queries = match prefix {
            0 => self.queries_per_task(tokens, n, window),
            _ => PREFIXED_QUERIES_PER_TASK,
        };
        let task = move |first: usize| {
            let end = tokens.min(first + task_queries);
            // bf16 multiplies keys in pairs, which are the same wherever a task begins.
            let first_key = if prefix > 0 { 0 } else { window.keys(first, n).start / 2 * 2 };
            let keys = first_key..window.keys(end - 1, n).end.max(prefix);
            let queries = first.max(run.queries.start)..end.min(run.queries.end);
            (!queries.is_empty()).then(|| {
                let first_row = run.first_row + queries.start - run.queries.start;
                Task { head, window, start, first_row, prefix, n, queries, keys }
            })
        };
        (0..tokens).step_by(task_queries).filter_map(task)
    }

    /// Queries of a task, of a head of a sequence of `tokens` queries and `n` keys.
    ///
    /// | path of `n` keys | queries |
    /// |---|---|
    /// | any, with keys for the first queries only | all: the last ones may see no key, but all together surely see one |
    /// | [`Path::Kernel`] | [`QUERIES_PER_KERNEL`] |
    /// | [`Path::AllHeads`] | [`QUERIES_PER_TASK`] |
    /// | [`Path::Blocks`], where a window or a bias leaves out keys | so many that few keys are packed which a query does not see |
    /// | [`Path::Blocks`], otherwise | all |
    fn queries_per_task(&self, tokens: usize, n: usize, window: AttentionWindow) -> usize {
        let AttentionWindow { left, right } = window;
        // With a causal mask, the first tasks have few keys.
        let cuts = |side: usize| side.saturating_add(QUERIES_PER_TASK) < tokens;
        match self.path(n) {
            _ if n < tokens => tokens,
            Path::Kernel => QUERIES_PER_KERNEL,
            Path::AllHeads => QUERIES_PER_TASK,
            Path::Blocks if cuts(left) || cuts(right) => {
                let is_narrowed = window != self.attention.window;
                let keys = if is_narrowed { left.min(tokens) + right.min(tokens) } else { 0 };
                (keys / KEYS_PER_QUERY).next_multiple_of(QUERY_BLOCK).max(QUERIES_PER_TASK)
            }
            Path::Blocks => tokens.max(1),
        }
    }

    /// The keys that a query of a head sees, of the sequence in these rows: without those that its bias
    /// leaves hardly any weight.
    fn window(&self, rows: &Range<usize>, n: usize, head: usize) -> AttentionWindow {
        let window = self.attention.window;
        // With fewer keys than queries, the last queries do not have their own key.
        let is_only_bias =
            !self.bias.is_empty() && !self.has_talking_heads() && self.attention.relative.is_none();
        if !is_only_bias || rows.is_empty() || n < rows.len() {
            return window;
        }
        let (queries, keys) = (self.queries(rows.clone(), head), self.keys(rows.clone(), head));
        reach(window, self.bias_of(head), queries, keys, self.attention.scale as f32)
    }
}
