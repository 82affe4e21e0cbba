//! The schema of an output: what all of its rows have in common.

use anyhow::Result;

use super::column_type::{ColumnType, KeptColumn};
use super::content::{ContentType, VectorType, other_content};
use super::format::OutputFormat;
use super::metadata::FileMetadata;

/// What all rows of an output have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSchema {
    /// The file format.
    pub format: OutputFormat,
    /// What each row holds beside its columns.
    pub content: ContentType,
    /// Whether a row is a chunk of a text.
    pub chunks: bool,
    /// Type of the `id` column; `None` where no row has an id. Formats without column types write an id as it
    /// is.
    pub ids: Option<ColumnType>,
    /// Columns copied from the input.
    pub kept: Vec<KeptColumn>,
    /// Metadata of the file, for formats that hold any.
    pub metadata: FileMetadata,
    /// Whether the output is an Arrow stream with a record batch for each one of the input.
    pub follows_batches: bool,
}

impl OutputSchema {
    /// The schema of rows of whole texts, without ids and other columns of their records.
    pub fn of_rows(format: OutputFormat, content: ContentType) -> Self {
        OutputSchema {
            format,
            content,
            chunks: false,
            ids: None,
            kept: Vec::new(),
            metadata: FileMetadata::default(),
            follows_batches: false,
        }
    }

    /// Whether a row that had NaN or infinite numbers can be recognised.
    pub fn preserves_non_finite(&self) -> bool {
        self.content.preserves_non_finite(self.format)
    }

    /// The type of the vectors, for formats that hold nothing else.
    ///
    /// # Errors
    /// If rows have other content, which [`check`](super::check()) refuses.
    pub(crate) fn vectors(&self) -> Result<VectorType> {
        match self.content {
            ContentType::Vectors(vectors) => Ok(vectors),
            _ => other_content(),
        }
    }
}
