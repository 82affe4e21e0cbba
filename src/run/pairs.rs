//! `sconce pairs`: the most similar pairs of rows in a vector file, or groups of near-duplicates.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use crate::error::UsageError;
use crate::formats::{TableFormat, TableWriter};
use crate::job::refuse_interrupted;
use crate::neighbours::{Components, Except, Membership, Metric, Nearest, Pair, Scorer, Sink, TopPairs};
use crate::rows::columns::{CHUNK, CLUSTER, INDEX, KEEP, PAIR, SCORE};
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::run::search::warn_of_missing;
use crate::store::{OutputLock, ReadFiles, Target};
use crate::sys::console::{Console, counted};
use crate::vectors::{VectorField, VectorFile};

/// Size in bytes of the rows in f32 that are compared with the whole file at a time.
const QUERY_BYTES: usize = 32 << 20;
/// Neighbours of these rows that are in memory.
const MAX_NEIGHBOURS: usize = 4 << 20;
/// The least number of these rows: the file is read once for each time.
const MIN_QUERIES: usize = 256;
/// Rows whose kept columns are read together.
const GROUP_ROWS: usize = 1 << 14;

/// The options of `sconce pairs`.
pub struct PairsOptions {
    /// The vector file.
    pub vectors: PathBuf,
    /// The field of its vectors, if the user chose one.
    pub vector_field: Option<String>,
    /// The metric.
    pub metric: Metric,
    /// The least score of a pair.
    pub threshold: Option<f32>,
    /// What is written.
    pub found: Found,
    /// The columns of the file to copy to the output.
    pub keep: Vec<String>,
    /// The destination.
    pub output: Target,
    /// The format of the output.
    pub format: TableFormat,
    /// Standard error.
    pub console: Console,
}

/// What is found in a file.
pub enum Found {
    /// The best pairs, among the nearest neighbours of each row.
    Pairs {
        /// Neighbours per row.
        top_k: usize,
        /// Maximum number of pairs.
        max_pairs: usize,
    },
    /// The connected components of the pairs that reach the threshold, of which one row is to be kept.
    Clusters,
}

/// Runs `sconce pairs`.
pub fn pairs(options: &PairsOptions) -> Result<()> {
    let field = VectorField::named(options.vector_field.as_deref());
    let file = VectorFile::open(&options.vectors, field)?;
    let lock = OutputLock::acquire(&options.output)?;
    let lock = lock.check("--output", &ReadFiles::new([&options.vectors], "the input"))?;
    lock.sidecars().map_or(Ok(()), refuse_interrupted)?;
    let kept: Vec<usize> =
        options.keep.iter().map(|name| file.column(name, "--keep")).collect::<Result<_>>()?;
    if let (Found::Clusters, Some(name)) = (&options.found, options.keep.iter().find(|name| is_own(name))) {
        bail!(UsageError(format!("--keep {name}: {name} is already a column of the output; leave it out")));
    }
    match options.found {
        Found::Pairs { top_k, max_pairs } => {
            let pairs = top_pairs(options, &file, top_k, max_pairs)?;
            write_pairs(options, &file, &lock, &kept, &pairs)
        }
        Found::Clusters => {
            let threshold =
                options.threshold.ok_or_else(|| UsageError("--clusters needs --threshold".into()))?;
            let components = components(options, &file, threshold)?;
            write_clusters(options, &file, &lock, &kept, &components)
        }
    }
}

/// Whether clusters have a column of this name of their own.
fn is_own(name: &str) -> bool {
    [INDEX, CHUNK, CLUSTER, KEEP].contains(&name)
}

/// Calls `scan` with a first row, a scorer of the rows from there on and those that have no vector, until all
/// rows of the file have been queries.
fn for_each_query_block(
    options: &PairsOptions,
    file: &VectorFile,
    max_queries: usize,
    mut scan: impl FnMut(usize, &Scorer, &HashSet<usize>) -> Result<()>,
) -> Result<()> {
    let row_bytes = file.dimensions() * size_of::<f32>();
    let queries = (QUERY_BYTES / row_bytes).min(max_queries).max(MIN_QUERIES);
    let bar = options.console.bar(Some((file.rows() * row_bytes) as u64));
    let mut without_vector = 0;
    for first in (0..file.rows()).step_by(queries) {
        let end = file.rows().min(first + queries);
        let (rows, missing) = file.rows_f32(first..end)?;
        without_vector += missing.len();
        let scorer = Scorer::new(options.metric, file.stored(), &rows, file.dimensions());
        let scorer = scorer.map_err(|mut error| {
            error.row += first;
            anyhow!("{}: {error}", file.name())
        })?;
        drop(rows);
        scan(first, &scorer, &missing)?;
        bar.set_position((end * row_bytes) as u64);
        options.console.draw(&bar, &counted(end as u64, "row"));
    }
    bar.finish_and_clear();
    warn_of_missing(file, without_vector, &options.console);
    Ok(())
}

/// The best pairs, as sentence-transformers' `paraphrase_mining` defines them: of the `top_k` nearest
/// neighbours of each row, the `max_pairs` best pairs.
fn top_pairs(options: &PairsOptions, file: &VectorFile, top_k: usize, max_pairs: usize) -> Result<Vec<Pair>> {
    let mut pairs = TopPairs::new(max_pairs);
    let mut full_rows = 0;
    for_each_query_block(options, file, MAX_NEIGHBOURS / top_k.max(1), |first, scorer, missing| {
        // A neighbour below the worst of enough pairs is in no result.
        let least = [options.threshold, pairs.least_score()].into_iter().flatten().reduce(f32::max);
        let nearest = Nearest::new(scorer.queries(), top_k, least).excluding_rows_from(first);
        scan_except(file, 0, scorer, missing, &nearest)?;
        let nearest = nearest.into_sorted();
        full_rows += nearest.iter().filter(|neighbours| neighbours.len() == top_k).count();
        pairs.add(first, nearest);
        Ok(())
    })?;
    let pairs = pairs.into_sorted();
    if pairs.len() == max_pairs {
        options.console.note(format!(
            "only the best {} are written; raise --max-pairs for more",
            counted(max_pairs as u64, "pair")
        ));
    } else if options.threshold.is_some() && full_rows > 0 {
        options.console.note(format!(
            "{} had {top_k} neighbours or more that reach the threshold; raise --top-k for all pairs",
            counted(full_rows as u64, "row")
        ));
    }
    Ok(pairs)
}

/// Scores the rows from `first_row` on for the queries that are not in `missing`.
fn scan_except(
    file: &VectorFile,
    first_row: usize,
    scorer: &Scorer,
    missing: &HashSet<usize>,
    sink: &impl Sink,
) -> Result<()> {
    if missing.is_empty() {
        return file.scan(first_row, scorer, sink).map(drop);
    }
    file.scan(first_row, scorer, &Except { sink, queries: missing }).map(drop)
}

/// The connected components of the pairs with scores of at least `threshold`.
fn components(options: &PairsOptions, file: &VectorFile, threshold: f32) -> Result<Components> {
    let mut components = Components::new(file.rows(), threshold);
    for_each_query_block(options, file, usize::MAX, |first, scorer, missing| {
        components.set_queries(first);
        // Pairs with rows before were scored when those were the queries.
        scan_except(file, first, scorer, missing, &components)
    })?;
    Ok(components)
}

/// Rows of the output, with the kept columns of the rows of the file that they name.
struct Rows<'a> {
    file: &'a VectorFile,
    kept: &'a [usize],
    writer: TableWriter<'a>,
}

impl Rows<'_> {
    /// Writes rows: each with its own values and the rows of the file whose kept columns follow, column by
    /// column.
    fn write<const N: usize>(&mut self, rows: Vec<(Vec<FieldValue>, [usize; N])>) -> Result<()> {
        let mut wanted: Vec<usize> = rows.iter().flat_map(|(_, named)| *named).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let values = self.file.values(&wanted, self.kept)?;
        for (mut row, named) in rows {
            for (column, _) in self.kept.iter().enumerate() {
                let value = |row| values[wanted.partition_point(|other| *other < row)][column].clone();
                row.extend(named.map(value));
            }
            self.writer.write(row)?;
        }
        Ok(())
    }
}

fn write_pairs(
    options: &PairsOptions,
    file: &VectorFile,
    lock: &OutputLock,
    kept: &[usize],
    pairs: &[Pair],
) -> Result<()> {
    let score = ColumnType::infer_from_fields([FieldValue::from(0.0f32)].iter());
    let [a, b] = PAIR.map(|name| KeptColumn::new(name, ColumnType::Integer));
    let mut columns = vec![a, b, KeptColumn::new(SCORE, score)];
    for kept in kept.iter().map(|kept| &file.columns()[*kept]) {
        let of = |row: &str| KeptColumn::new(format!("{}_{row}", kept.name), kept.column_type.clone());
        columns.extend(PAIR.map(of));
    }
    let mut rows = Rows { file, kept, writer: TableWriter::open(lock, options.format, columns)? };
    for group in pairs.chunks(GROUP_ROWS) {
        let row = |pair: &Pair| {
            let indices = [pair.a, pair.b];
            let [a, b] = indices.map(|index| FieldValue::from(Value::from(index)));
            (vec![a, b, pair.score.into()], indices)
        };
        rows.write(group.iter().map(row).collect())?;
    }
    rows.writer.finish()
}

fn write_clusters(
    options: &PairsOptions,
    file: &VectorFile,
    lock: &OutputLock,
    kept: &[usize],
    components: &Components,
) -> Result<()> {
    let memberships = components.memberships();
    // The record and the chunk, where the file tells them, as in `search`.
    let find = |name: &str| file.columns().iter().position(|column| column.name == name);
    let location =
        find(INDEX).map(|index| [Some(index), find(CHUNK)].into_iter().flatten().collect::<Vec<_>>());
    let mut columns: Vec<KeptColumn> = match &location {
        Some(location) => location.iter().map(|column| file.columns()[*column].clone()).collect(),
        None => vec![KeptColumn::new(INDEX, ColumnType::Integer)],
    };
    columns.push(KeptColumn::new(CLUSTER, ColumnType::Integer));
    columns.push(KeptColumn::new(KEEP, ColumnType::Boolean));
    columns.extend(kept.iter().map(|kept| file.columns()[*kept].clone()));
    let mut rows = Rows { file, kept, writer: TableWriter::open(lock, options.format, columns)? };
    for (group, members) in memberships.chunks(GROUP_ROWS).enumerate() {
        let first = group * GROUP_ROWS;
        let indices: Vec<usize> = (first..first + members.len()).collect();
        let located = match &location {
            Some(location) => file.values(&indices, location)?,
            None => indices.iter().map(|index| vec![Value::from(*index).into()]).collect(),
        };
        let row = |((member, mut values), index): ((&Membership, Vec<FieldValue>), usize)| {
            values.extend([Value::from(member.component), member.is_first.into()].map(FieldValue::from));
            (values, [index])
        };
        rows.write(members.iter().zip(located).zip(indices).map(row).collect())?;
    }
    rows.writer.finish()?;
    let clusters = memberships.iter().filter(|member| member.is_first).count();
    options.console.note(format!(
        "{} in {}: {} to drop",
        counted(memberships.len() as u64, "row"),
        counted(clusters as u64, "cluster"),
        counted((memberships.len() - clusters) as u64, "row")
    ));
    Ok(())
}
