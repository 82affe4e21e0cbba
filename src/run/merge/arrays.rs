//! Joins the arrays of npy, npz and safetensors files.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, bail};

use crate::formats::{Writer, has_no_lines};
use crate::neighbours::{Block, Elements};
use crate::neighbours::{Representation, SparseVector};
use crate::rows::columns::OF_CHUNKS;
use crate::rows::metadata::Key;
use crate::rows::{
    Content, ContentType, FieldValue, FileMetadata, OutputDtype, OutputFormat, OutputSchema, Row, Span,
    StoredVector, VectorType, VectorValues, offset_signs,
};
use crate::store::OutputLock;
use crate::vectors::{VectorField, VectorFile};

/// Rows that are read at a time.
const BLOCK_ROWS: usize = 256;

/// Writes the rows of all files.
pub(super) fn join(
    lock: &OutputLock,
    format: OutputFormat,
    inputs: &[&Path],
    metadata: &FileMetadata,
) -> Result<()> {
    let schemas = inputs.iter().map(|path| schema(path, format, metadata)).collect::<Result<Vec<_>>>()?;
    for (path, schema) in inputs.iter().zip(&schemas) {
        if *schema != schemas[0] {
            bail!(
                "{} has vectors of another type or width than {}; merge files of one kind",
                path.display(),
                inputs[0].display()
            );
        }
    }
    let mut writer = Writer::open(lock, &schemas[0], None)?;
    for path in inputs {
        append(&mut writer, &open(path, format)?, schemas[0].chunks)?;
    }
    writer.finish()
}

/// Opens a file; only npz holds sparse vectors.
fn open(path: &Path, format: OutputFormat) -> Result<VectorFile> {
    let field = VectorField::Auto;
    let file = match format {
        OutputFormat::Npz => VectorFile::open_any(path, field)?,
        _ => VectorFile::open(path, field)?,
    };
    if file.is_rounded() || format == OutputFormat::Npz && file.representation() != Representation::Sparse {
        bail!("{} has other elements than sconce writes; pass files that sconce wrote", file.name());
    }
    Ok(file)
}

/// What the rows of a file have in common, with the metadata of the output.
fn schema(path: &Path, format: OutputFormat, metadata: &FileMetadata) -> Result<OutputSchema> {
    let file = open(path, format)?;
    let (dtype, dimensions) = (file.dtype(), file.dimensions());
    let content = match format {
        OutputFormat::Npz => ContentType::Sparse { dimensions },
        // int8 vectors without a scale are unit vectors.
        _ => ContentType::Vectors(VectorType {
            dtype,
            dimensions,
            per_token: false,
            normalized: true,
            nullable: false,
        }),
    };
    let chunks = format == OutputFormat::Safetensors && !file.columns().is_empty();
    let mut metadata = metadata.clone();
    // The header has it of its own accord.
    metadata.remove(Key::Format);
    Ok(OutputSchema { chunks, metadata, ..OutputSchema::new(format, content) })
}

/// Appends the rows of a file.
fn append(writer: &mut Writer, file: &VectorFile, chunks: bool) -> Result<()> {
    let columns = if chunks { chunk_columns(file)? } else { Vec::new() };
    file.for_each_block(0, BLOCK_ROWS, |block| {
        let contents = contents(block, file.dtype());
        let rows: Vec<usize> = (block.first_row..block.first_row + contents.len()).collect();
        let spans = file.values(&rows, &columns)?;
        for ((content, span), row) in contents.iter().zip(&spans).zip(&rows) {
            let (index, chunk) = match span.iter().map(integer).collect::<Vec<_>>()[..] {
                [index, chunk, start, end, line, end_line] => {
                    (index, Some(Span { chunk, start, end, line, end_line }))
                }
                _ => (*row as u64, None),
            };
            writer.write(&Row { index, id: None, chunk, tokens: 0, truncated: false, kept: &[], content })?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// The indices of the columns that locate chunks.
fn chunk_columns(file: &VectorFile) -> Result<Vec<usize>> {
    let find = |name: &&str| file.columns().iter().position(|column| column.name == **name);
    let found: Vec<usize> = OF_CHUNKS.iter().filter_map(find).collect();
    if file.columns().iter().map(|column| column.name.as_str()).eq(OF_CHUNKS[..4].iter().copied()) {
        bail!(has_no_lines(file.name()));
    }
    if found.len() < OF_CHUNKS.len() || file.columns().len() > OF_CHUNKS.len() {
        bail!("{} has tensors that sconce does not write; pass files that sconce wrote", file.name());
    }
    Ok(found)
}

fn integer(value: &FieldValue) -> u64 {
    value.json().as_u64().unwrap_or_default()
}

/// The rows of a block of a file with elements of this type.
fn contents(block: &Block, dtype: OutputDtype) -> Vec<Content> {
    let vector = |values| Content::Vector(StoredVector { values, scale: None });
    let width = |elements: usize| (elements / block.rows.max(1)).max(1);
    match block.elements {
        Elements::F32(values) => {
            values.chunks(width(values.len())).map(|row| vector(VectorValues::F32(row.to_vec()))).collect()
        }
        Elements::F16(values) => {
            values.chunks(width(values.len())).map(|row| vector(VectorValues::F16(row.to_vec()))).collect()
        }
        Elements::Binary(values) if dtype == OutputDtype::Ubinary => {
            let bytes = |row: &[i8]| row.iter().map(|byte| offset_signs(byte.cast_unsigned())).collect();
            values.chunks(width(values.len())).map(|row| vector(VectorValues::Uint8(bytes(row)))).collect()
        }
        Elements::Int8 { values, .. } | Elements::Binary(values) => {
            values.chunks(width(values.len())).map(|row| vector(VectorValues::Int8(row.to_vec()))).collect()
        }
        Elements::Sparse { indices, values } => {
            let mut start = 0;
            let rows = block.lengths.iter().map(|length| {
                let elements = start..start + length;
                start = elements.end;
                let (indices, values) = (indices[elements.clone()].to_vec(), values[elements].to_vec());
                Content::Sparse(Box::new(SparseVector { indices, values, tokens: Vec::new() }))
            });
            rows.collect()
        }
    }
}
