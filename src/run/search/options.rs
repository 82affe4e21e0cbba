//! The options of `sconce search`.

use std::path::{Path, PathBuf};

use super::conditions::Conditions;
use super::texts::SearchedTexts;
use super::weights::NeighbourWeights;
use crate::formats::TableFormat;
use crate::input::{Fields, InputPath, Source};
use crate::load::ModelOptions;
use crate::neighbours::Metric;
use crate::store::Target;
use crate::sys::console::Console;
use crate::task::VectorOptions;
use crate::vectors::VectorField;

/// The options of `sconce search`.
pub struct SearchOptions {
    /// What is searched.
    pub searched: Searched,
    /// The field of their vectors, if the user chose one.
    pub vector_field: Option<String>,
    /// The queries.
    pub queries: Queries,
    /// Maximum neighbours of a query.
    pub k: usize,
    /// What the rows meet that are searched.
    pub conditions: Conditions,
    /// The least score of a neighbour.
    pub threshold: Option<f32>,
    /// The metric. `None`: the similarity function of the model.
    pub metric: Option<Metric>,
    /// The same vectors in higher precision, by which candidates are ranked.
    pub rescore: Option<Rescore>,
    /// Weights of the neighbours.
    pub weights: Option<NeighbourWeights>,
    /// The column whose weighted mean is written, one row per query, instead of the neighbours.
    pub value_field: Option<String>,
    /// The columns of the file to show. `None`: all.
    pub keep: Option<Vec<String>>,
    /// Whether rows have the text of their query.
    pub query_text: bool,
    /// The destination of the neighbours.
    pub output: Target,
    /// The format of the output.
    pub format: TableFormat,
    /// The model of the queries.
    pub model: ModelOptions,
    /// How queries become vectors.
    pub query_vectors: VectorOptions,
    /// Standard error.
    pub console: Console,
}

impl SearchOptions {
    /// The field of the vectors in a file beside the vector files, which may be of another format.
    pub(super) fn other_vector_field(&self) -> VectorField<'_> {
        self.vector_field.as_deref().map_or(VectorField::Auto, VectorField::IfPresent)
    }
}

/// What is searched.
pub enum Searched {
    /// Vector files, which are searched as one.
    Vectors(Vec<PathBuf>),
    /// The chunks of texts.
    Texts(SearchedTexts),
}

impl Searched {
    /// The files that are read.
    pub(super) fn paths(&self) -> Vec<&Path> {
        match self {
            Searched::Vectors(paths) => paths.iter().map(PathBuf::as_path).collect(),
            // A file that the output would replace is left out.
            Searched::Texts(_) => Vec::new(),
        }
    }

    /// The texts, if it is texts.
    pub(super) fn texts(&self) -> Option<&SearchedTexts> {
        match self {
            Searched::Vectors(_) => None,
            Searched::Texts(texts) => Some(texts),
        }
    }
}

/// The queries.
pub enum Queries {
    /// Texts on the command line.
    Texts(Vec<String>),
    /// Files of texts.
    Files(Vec<Source>, Fields),
    /// A file of vectors.
    Vectors(PathBuf),
}

impl Queries {
    /// The files that are read.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let (sources, vectors) = match self {
            Queries::Texts(_) => (&[][..], None),
            Queries::Files(sources, _) => (&sources[..], None),
            Queries::Vectors(path) => (&[][..], Some(path.as_path())),
        };
        let files = sources.iter().filter_map(|source| match &source.path {
            InputPath::File(path) => Some(path.as_path()),
            InputPath::Stdin => None,
        });
        files.chain(vectors)
    }
}

/// Ranking of candidates by vectors of higher precision.
pub struct Rescore {
    /// The file of these vectors.
    pub path: PathBuf,
    /// Candidates per neighbour.
    pub multiplier: usize,
}
