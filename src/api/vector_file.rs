//! Nearest neighbours in vector files.

use std::path::{Path, PathBuf};

use super::engine::pool;
use super::error::{Error, ErrorKind};
use crate::error::UsageError;
use crate::named::Named;
use crate::neighbours::{self, Metric, Representation, Similarity, SparseVector};
use crate::rows::FieldValue;
use crate::rows::metadata::Key;
use crate::vectors::{self, Found, UnusableQuery, VectorField};

/// A file of vectors, or several as one: what `sconce embed` writes, and arrays of other software, in npy,
/// npz, safetensors, Parquet, Arrow, JSON lines or csv. It is searched exactly, and is never in memory as a
/// whole.
///
/// ```
/// use sconce::VectorFile;
///
/// # let path = std::env::temp_dir().join(format!("sconce-doc-{}.jsonl", std::process::id()));
/// # std::fs::write(&path, "{\"id\":\"a\",\"embedding\":[1.0,0.0]}\n{\"id\":\"b\",\"embedding\":[3.0,4.0]}\n").unwrap();
/// let file = VectorFile::open(&path)?; // {"id":"a","embedding":[1.0,0.0]} and {"id":"b","embedding":[3.0,4.0]}
/// let nearest = file.search(&[0.0, 2.0], 1)?;
/// assert_eq!((nearest[0].index, nearest[0].id.as_deref(), nearest[0].score), (1, Some("b"), 0.8));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), sconce::Error>(())
/// ```
pub struct VectorFile {
    file: vectors::VectorFile,
    metric: Option<Metric>,
    threshold: Option<f32>,
}

/// A row of a vector file that is near a query.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Neighbour {
    /// The index of the row.
    pub index: usize,
    /// Its score by the metric; greater is nearer.
    pub score: f32,
    /// The id in its row, if the file has ids.
    pub id: Option<String>,
}

impl VectorFile {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, is of no known format, or is malformed or truncated.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        VectorFile::open_all(&[path])
    }

    /// Opens files, such as the shards of a run, the rows of one after those of another.
    ///
    /// # Errors
    /// As [`open`](VectorFile::open); if there is no file, or their vectors cannot be compared with the same
    /// query.
    pub fn open_all<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Error> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        if paths.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOption, &"no vector file is given; pass at least one"));
        }
        let file =
            vectors::VectorFile::open_all(&paths, VectorField::Auto).map_err(|error| of_file(&error))?;
        Ok(VectorFile { file, metric: None, threshold: None })
    }

    /// The metric of [`search`](VectorFile::search). Default: the similarity function of the model that made
    /// the vectors, if the file names it, else cosine.
    #[must_use]
    pub fn metric(mut self, metric: Metric) -> Self {
        self.metric = Some(metric);
        self
    }

    /// The least score of a neighbour. Default: none.
    #[must_use]
    pub fn threshold(mut self, score: f32) -> Self {
        self.threshold = Some(score);
        self
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.file.rows()
    }

    /// Dimensions of a vector; 0 if a file of sparse vectors does not say it.
    pub fn dimensions(&self) -> usize {
        self.file.dimensions()
    }

    /// The names of the columns beside the vectors.
    pub fn columns(&self) -> Vec<&str> {
        self.file.columns().iter().map(|column| column.name.as_str()).collect()
    }

    /// The values of a column in some rows, in their order: text as it is, other values as JSON; `None` for
    /// null.
    ///
    /// # Errors
    /// If there is no such column or row, or the file cannot be read.
    pub fn values(&self, column: &str, rows: &[usize]) -> Result<Vec<Option<String>>, Error> {
        let Some(found) = self.file.columns().iter().position(|other| other.name == column) else {
            let (name, columns) = (self.file.name(), self.columns().join(", "));
            let message =
                format!("{name} has no column {column:?} (columns: {columns}); choose one of these");
            return Err(Error::new(ErrorKind::InvalidOption, &message));
        };
        if let Some(row) = rows.iter().find(|row| **row >= self.rows()) {
            let (name, count) = (self.file.name(), self.rows());
            let message = format!("{name} has {count} rows, and no row {row}; pass a smaller index");
            return Err(Error::new(ErrorKind::InvalidOption, &message));
        }
        self.column(found, rows)
    }

    /// The `k` rows that are nearest to a query, best first; equal scores by row. A row without a vector
    /// (null) is near nothing.
    ///
    /// # Errors
    /// If the query has other dimensions than the file or a value that is not finite; if the file has no
    /// dense vectors, cannot be read, or has a value that is not finite.
    pub fn search(&self, query: &[f32], k: usize) -> Result<Vec<Neighbour>, Error> {
        Ok(self.search_all(&[query], k)?.into_iter().flatten().collect())
    }

    /// The neighbours of each query, as [`search`](VectorFile::search) finds them. Many queries are much
    /// faster together.
    ///
    /// # Errors
    /// As [`search`](VectorFile::search).
    pub fn search_all<Q: AsRef<[f32]>>(&self, queries: &[Q], k: usize) -> Result<Vec<Vec<Neighbour>>, Error> {
        self.require(self.file.representation() == Representation::Dense, "a dense vector")?;
        let queries: Vec<&[f32]> = queries.iter().map(AsRef::as_ref).collect();
        queries.iter().enumerate().try_for_each(|(index, query)| self.check_length(index, query.len()))?;
        self.nearest(|file| {
            let metric = self.metric.map_or_else(|| file.metric(), Ok)?;
            file.nearest(metric, &queries.concat(), k, self.threshold)
        })
    }

    /// The neighbours of each sparse query by the dot product, in a file of sparse vectors.
    ///
    /// # Errors
    /// As [`search`](VectorFile::search); if another metric was chosen, or the file names another similarity
    /// function.
    pub fn search_sparse(&self, queries: &[SparseVector], k: usize) -> Result<Vec<Vec<Neighbour>>, Error> {
        self.require(self.file.representation() == Representation::Sparse, "a sparse vector")?;
        let metric = self.metric.map_or_else(|| self.own_metric(Metric::Dot), Ok)?;
        if metric != Metric::Dot {
            let (name, metric) = (self.file.name(), metric.name());
            let message =
                format!("{name} has sparse vectors, which dot compares, not {metric}; choose the metric dot");
            return Err(Error::new(ErrorKind::InvalidOption, &message));
        }
        let queries: Vec<&SparseVector> = queries.iter().collect();
        self.nearest(|file| file.nearest_sparse(&queries, k, self.threshold))
    }

    /// The neighbours of each query with one vector per token by MaxSim, in a file with one vector per token.
    ///
    /// # Errors
    /// As [`search`](VectorFile::search); if a query has no vectors, or a metric was chosen.
    pub fn search_tokens(&self, queries: &[Vec<Vec<f32>>], k: usize) -> Result<Vec<Vec<Neighbour>>, Error> {
        self.require(self.file.representation() == Representation::PerToken, "one vector per token")?;
        if self.metric.is_some() {
            let name = self.file.name();
            let message = format!("{name} has one vector per token, which MaxSim compares; choose no metric");
            return Err(Error::new(ErrorKind::InvalidOption, &message));
        }
        for (index, query) in queries.iter().enumerate() {
            query.iter().try_for_each(|vector| self.check_length(index, vector.len()))?;
        }
        let queries: Vec<Vec<f32>> = queries.iter().map(|query| query.concat()).collect();
        let queries: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
        let mean = self.file.similarity() == Some(Similarity::MeanMaxSim);
        self.nearest(|file| file.nearest_by_tokens(mean, &queries, k, self.threshold))
    }

    /// The metric that the file names; `default` if it names none.
    fn own_metric(&self, default: Metric) -> Result<Metric, Error> {
        match self.file.metadata().has(Key::Similarity) {
            true => self.file.metric().map_err(|error| of_file(&error)),
            false => Ok(default),
        }
    }

    /// The neighbours that a scan finds, with their ids.
    fn nearest(
        &self,
        scan: impl FnOnce(&vectors::VectorFile) -> anyhow::Result<Found> + Send,
    ) -> Result<Vec<Vec<Neighbour>>, Error> {
        let found = pool(None)?.install(|| scan(&self.file)).map_err(|error| of_file(&error))?;
        let id = self.file.id_column();
        let with_ids = |neighbours: Vec<neighbours::Neighbour>| {
            let rows: Vec<usize> = neighbours.iter().map(|neighbour| neighbour.index).collect();
            let ids = match id {
                Some(id) => self.column(id, &rows)?,
                None => vec![None; rows.len()],
            };
            let neighbours = neighbours.into_iter().zip(ids);
            Ok(neighbours
                .map(|(neighbours::Neighbour { index, score }, id)| Neighbour { index, score, id })
                .collect())
        };
        found.neighbours.into_iter().map(with_ids).collect()
    }

    /// The values of a column, given by its index, in rows of the file.
    fn column(&self, column: usize, rows: &[usize]) -> Result<Vec<Option<String>>, Error> {
        let mut distinct = rows.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let values = self.file.values(&distinct, &[column]).map_err(|error| of_file(&error))?;
        let value = |row: &usize| text(&values[distinct.partition_point(|other| other < row)][0]);
        Ok(rows.iter().map(value).collect())
    }

    /// Checks that rows hold what queries are compared with.
    fn require(&self, is_met: bool, wanted: &str) -> Result<(), Error> {
        if is_met {
            return Ok(());
        }
        let (name, held) = (self.file.name(), self.file.noun());
        let message = format!(
            "rows of {name} have {held}, not {wanted}; call the search for these, or open another file"
        );
        Err(Error::new(ErrorKind::InvalidOption, &message))
    }

    /// Checks the dimensions of a query.
    fn check_length(&self, query: usize, dimensions: usize) -> Result<(), Error> {
        if dimensions == self.dimensions() {
            return Ok(());
        }
        let message = format!(
            "{} holds vectors of {} dimensions, but query {} has {dimensions}; embed it with the model of the file",
            self.file.name(),
            self.dimensions(),
            query + 1
        );
        Err(Error::new(ErrorKind::InvalidOption, &message))
    }
}

/// A value as text; `None` for null.
fn text(value: &FieldValue) -> Option<String> {
    match &*value.json() {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn of_file(error: &anyhow::Error) -> Error {
    let kind = match error.downcast_ref() {
        Some(&UnusableQuery { query, .. }) => ErrorKind::NotFinite { index: query },
        None if error.is::<UsageError>() => ErrorKind::InvalidOption,
        None => ErrorKind::File,
    };
    Error::new(kind, &format!("{error:#}"))
}
