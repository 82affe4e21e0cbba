//! The columns of a file that rows are added to.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use super::csv::{CsvRows, write};
use super::jsonl::find_fields;
use super::row_file::RowFile;
use crate::error::one_line;
use crate::rows::{KeptColumn, OutputFormat, OutputSchema, arrow_schema};

/// The columns of a csv, Parquet or Arrow file.
#[derive(Debug)]
pub struct FileColumns {
    path: PathBuf,
    /// Their names.
    pub names: Vec<String>,
    /// The schema, which csv files do not have.
    pub schema: Option<OutputSchema>,
}

impl FileColumns {
    /// Reads the columns of a file; `None` for the other formats, in which each row has its own.
    pub fn read(path: &Path, format: OutputFormat) -> Result<Option<Self>> {
        let (names, schema) = match format {
            OutputFormat::Csv => {
                let header = CsvRows::open(path).and_then(|mut rows| rows.header());
                let unread = |error| {
                    anyhow!("cannot read {} ({}); write the file again", path.display(), one_line(&error))
                };
                (header.map_err(unread)?.0, None)
            }
            OutputFormat::Parquet | OutputFormat::Arrow => {
                let schema = RowFile::open(path, format)?.schema().clone();
                (column_names(&schema), Some(schema))
            }
            OutputFormat::Jsonl | OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => {
                return Ok(None);
            }
        };
        Ok(Some(FileColumns { path: path.to_owned(), names, schema }))
    }

    /// The file, for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether the type of a column holds all values that a Parquet or Arrow file has of it.
    pub fn fits(&self, column: &KeptColumn) -> Result<bool> {
        match &self.schema {
            Some(schema) => RowFile::open(&self.path, schema.format)?.fits(column),
            None => Ok(false),
        }
    }
}

/// The names of the fields in the first row of a jsonl file, in their order.
pub fn first_names(path: &Path) -> Result<Vec<String>> {
    let (mut line, mut names) = (String::new(), Vec::new());
    let read = File::open(path).and_then(|file| BufReader::new(file).read_line(&mut line));
    read.map_err(|error| anyhow!("cannot read {} ({error})", path.display()))?;
    find_fields(&line, &mut |name| names.push(name.to_owned()), &[]).map_err(|error| {
        anyhow!("cannot read {} ({}); write the file again", path.display(), one_line(&error))
    })?;
    Ok(names)
}

/// The names of the columns of a csv, Parquet or Arrow file with this schema.
pub fn column_names(schema: &OutputSchema) -> Vec<String> {
    if schema.format == OutputFormat::Csv {
        return write::column_names(schema).map(String::from).collect();
    }
    arrow_schema(schema).fields().iter().map(|field| field.name().clone()).collect()
}
