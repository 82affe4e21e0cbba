//! The reference: texts and their vectors.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, bail};

use super::options::VerifyOptions;
use crate::input::{Entries, Entry, Fields, Record};
use crate::named::Named;
use crate::neighbours::rows_f32;
use crate::rows::OutputDtype;
use crate::sys::console::counted;
use crate::vectors::{VectorField, VectorFile};

/// Rows of a vector file that are read at a time.
const BLOCK_ROWS: usize = 1024;

/// Texts and their reference vectors, all of them in memory.
pub(super) struct Reference {
    /// The path of the vectors, for messages.
    pub name: String,
    /// The texts that have vectors.
    pub texts: Vec<Record>,
    /// The vector of each of them.
    pub vectors: Vec<Vec<f32>>,
    /// The rows of the file that these are.
    pub rows: Vec<usize>,
    /// Dimensions of a vector.
    pub dimensions: usize,
    /// Whether the vectors are stored in f16, which rounds them.
    pub is_f16: bool,
}

impl Reference {
    /// Reads the vectors, then the texts.
    pub(super) fn read(options: &VerifyOptions, against: &Path) -> Result<Reference> {
        let file = VectorFile::open(against, VectorField::named(options.vector_field.as_deref()))?;
        if file.columns().iter().any(|column| column.name == "chunk") {
            bail!("{} has one row per chunk (--chunk); pass a file with one vector per text", file.name());
        }
        let (vectors, rows) = read_vectors(&file)?;
        let fields = Fields { null_texts: true, ..options.fields.clone() };
        let mut texts = records(Entries::open(options.texts.clone(), fields)?)?;
        let name = file.name().to_owned();
        if texts.len() != file.rows() {
            let source = texts.first().map_or("the input", |record| &*record.location.source);
            bail!(
                "{name} holds {} vectors, but {source} has {} texts; pass the texts that the vectors were made of, in their order",
                file.rows(),
                texts.len()
            );
        }
        // A text that was null has no vector (--on-null null).
        let null = texts.len() - rows.len();
        if null > 0 {
            let mut with_vector = rows.iter().peekable();
            let mut has_vector = |row: usize| with_vector.next_if(|next| **next == row).is_some();
            let (with, without): (Vec<_>, Vec<_>) =
                texts.into_iter().enumerate().partition(|(row, _)| has_vector(*row));
            if let Some((row, _)) = without.iter().find(|(_, record)| !record.is_null) {
                bail!("{name}: row {row} has no vector; pass the vectors of all texts");
            }
            texts = with.into_iter().map(|(_, record)| record).collect();
            let null = counted(null as u64, "row");
            options.console.warn(format!("{null} of {name} without text and vector: not compared"));
        }
        if let Some(record) = texts.iter().find(|record| record.is_null) {
            bail!(
                "{} has no text, but {name} has a vector of it; pass the texts that it was made of",
                record.location
            );
        }
        if texts.is_empty() {
            bail!("{name} holds no vectors; pass a file with at least one");
        }
        let (dimensions, is_f16) = (file.dimensions(), file.dtype() == OutputDtype::F16);
        Ok(Reference { name, texts, vectors, rows, dimensions, is_f16 })
    }

    /// Checks that the vectors have the dimensions of the model's.
    pub(super) fn check_dimensions(&self, of_model: usize) -> Result<()> {
        if self.dimensions != of_model {
            bail!(
                "{} holds vectors of {} dimensions, but the model's vectors have {of_model}; pass the --model and --dimensions \
                 that the reference was made with",
                self.name,
                self.dimensions
            );
        }
        Ok(())
    }
}

/// All records of an input.
pub(super) fn records(entries: Entries) -> Result<Vec<Record>> {
    let record = |entry: Result<Entry>| match entry? {
        Entry::Record(record) => Ok(record),
        Entry::Unreadable(record) => bail!("{record}"),
    };
    entries.map(record).collect()
}

/// All vectors of a file, in f32, and their rows. A row may have none.
fn read_vectors(file: &VectorFile) -> Result<(Vec<Vec<f32>>, Vec<usize>)> {
    let name = file.name();
    if !matches!(file.dtype(), OutputDtype::F32 | OutputDtype::F16) {
        let dtype = file.dtype().name();
        bail!(
            "{name} holds {dtype} vectors, whose rounding would hide differences; pass vectors in f32 or f16"
        );
    }
    let (mut vectors, mut rows, mut buffer) = (Vec::with_capacity(file.rows()), Vec::new(), Vec::new());
    file.for_each_block(0, BLOCK_ROWS, |block| {
        let values = rows_f32(block, 0..block.rows, &mut buffer);
        for (vector, row) in values.chunks(block.dimensions).zip(block.first_row..) {
            if vector.iter().any(|x| !x.is_finite()) {
                bail!("{name}: the vector of row {row} has NaN or infinite values; make the reference again");
            }
            vectors.push(vector.to_vec());
            rows.push(row);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((vectors, rows))
}
