//! The output formats.

use std::fmt;

use crate::named::{Named, names};

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
    /// A NumPy array `(N, D)`.
    Npy,
    /// Sparse vectors as a matrix `(N, V)` of SciPy.
    Npz,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC file; an Arrow IPC stream on standard output, pipes and devices.
    Arrow,
    /// A safetensors file with a tensor `embeddings` `(N, D)`, and tensors that locate the chunks if rows are
    /// chunks.
    Safetensors,
}

names!(OutputFormat {
    Jsonl => "jsonl",
    Csv => "csv",
    Npy => "npy",
    Npz => "npz",
    Parquet => "parquet",
    Arrow => "arrow",
    Safetensors => "safetensors",
});

impl OutputFormat {
    /// The format of files with this extension, in lower case.
    pub fn from_extension(extension: &str) -> Option<OutputFormat> {
        match extension {
            "ndjson" => Some(OutputFormat::Jsonl),
            "pq" => Some(OutputFormat::Parquet),
            "feather" | "ipc" => Some(OutputFormat::Arrow),
            name => OutputFormat::from_name(name),
        }
    }

    /// Whether rows have columns beside the vector: ids, kept columns, scales.
    pub fn has_columns(self) -> bool {
        match self {
            OutputFormat::Jsonl | OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow => true,
            OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => false,
        }
    }

    /// Whether all rows have the same columns, which are then inferred from the first records.
    pub fn has_fixed_columns(self) -> bool {
        match self {
            OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow => true,
            OutputFormat::Jsonl | OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => false,
        }
    }

    /// Whether columns have types, which are then inferred from the first records.
    pub fn has_typed_columns(self) -> bool {
        match self {
            OutputFormat::Parquet | OutputFormat::Arrow => true,
            OutputFormat::Jsonl
            | OutputFormat::Csv
            | OutputFormat::Npy
            | OutputFormat::Npz
            | OutputFormat::Safetensors => false,
        }
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
