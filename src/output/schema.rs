//! The schema of an output: what all of its rows have in common.

use std::collections::BTreeMap;

use super::column_type::{ColumnType, KeptColumn};
use super::dtype::OutputDtype;
use super::format::OutputFormat;

/// What all rows of an output have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSchema {
    /// The file format.
    pub format: OutputFormat,
    /// Type of the stored vector elements.
    pub dtype: OutputDtype,
    /// Dimensions of a vector, before it is stored as `dtype`.
    pub dimensions: usize,
    /// Whether a row holds one vector per token.
    pub per_token: bool,
    /// Whether vectors have unit length.
    pub normalized: bool,
    /// Whether a row is a chunk of a text.
    pub chunks: bool,
    /// Type of the `id` column; `None` where no row has an id. Formats without column types write an id as it is.
    pub ids: Option<ColumnType>,
    /// Columns copied from the input.
    pub kept: Vec<KeptColumn>,
    /// Metadata of the file, for formats that hold any.
    pub metadata: OutputMetadata,
}

/// How the vectors were made, as key-value pairs: model, revision, pooling, prompt and so on.
pub type OutputMetadata = BTreeMap<String, String>;

impl OutputSchema {
    /// Whether a stored vector that had NaN or infinite elements can be recognised, by its elements or by its scale.
    pub fn preserves_non_finite(&self) -> bool {
        match self.dtype {
            OutputDtype::F32 | OutputDtype::F16 => true,
            OutputDtype::Int8 => self.format.has_columns(),
            OutputDtype::Binary => false,
        }
    }

    /// Number of stored elements per vector.
    pub(super) fn width(&self) -> usize {
        self.dtype.width(self.dimensions)
    }

    /// Size of a stored vector in bytes.
    pub(super) fn vector_bytes(&self) -> usize {
        self.width() * self.dtype.element_bytes()
    }
}
