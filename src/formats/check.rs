//! Checks an output schema before any work is done: which options a format does not support.

use anyhow::{Result, anyhow, bail};

use crate::rows::columns::{EMBEDDING, INDEX, SCALE, TOKENS, TRUNCATED, element};
use crate::rows::metadata::Key;
use crate::rows::{ContentType, OutputDtype, OutputFormat, OutputSchema, Span, VectorType};

/// Names of the columns that Sconce writes itself, beside the ids and those of the content.
const RESERVED_COLUMNS: &[&str] = &[INDEX, TOKENS, TRUNCATED];

/// Checks that the format supports what the schema asks for.
///
/// # Errors
/// If it does not; the message names the options to change.
pub fn check(schema: &OutputSchema) -> Result<()> {
    match &schema.content {
        ContentType::Sparse { .. } if schema.format == OutputFormat::Npz => {}
        content if schema.format == OutputFormat::Npz => {
            bail!("npz holds sparse vectors, but a row has {}; write another --output-format", content.noun())
        }
        ContentType::Vectors(vectors) => check_vectors(schema.format, vectors)?,
        ContentType::Outputs(outputs) if schema.format.has_columns() => {
            let vectors = [outputs.dense, outputs.tokens].into_iter().flatten();
            vectors.into_iter().try_for_each(|vectors| check_vectors(schema.format, &vectors))?;
        }
        content if !schema.format.has_columns() => bail!(
            "{} holds an array of vectors, but a row has {}; write --output-format jsonl, csv, parquet or arrow",
            schema.format,
            content.noun()
        ),
        ContentType::Scores { .. }
        | ContentType::Labels
        | ContentType::Spans(_)
        | ContentType::Masks
        | ContentType::Sparse { .. }
        | ContentType::Outputs(_) => {}
    }
    check_vector_column(schema)?;
    check_id_column(schema)?;
    check_kept_columns(schema)
}

fn check_vectors(format: OutputFormat, vectors: &VectorType) -> Result<()> {
    let VectorType { dtype, dimensions, per_token, normalized, nullable } = vectors;
    let holds_lists = match format {
        OutputFormat::Jsonl | OutputFormat::Parquet | OutputFormat::Arrow => true,
        OutputFormat::Csv | OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => false,
    };
    if *per_token && !holds_lists {
        bail!(
            "{format} holds one vector per row; write those of tokens (--pooling none or multi-vector) with --output-format jsonl, parquet or arrow"
        );
    }
    if *per_token && *dtype == OutputDtype::Int8 {
        bail!(
            "--output-dtype int8 has one scale per row, but --pooling none and multi-vector give a row several vectors; choose f32, f16 or binary"
        );
    }
    if *nullable && !format.has_columns() {
        bail!(
            "{format} has no null for a text that is null (--on-null null); pass --on-null skip, or write \
             --output-format jsonl, csv, parquet or arrow"
        );
    }
    if *dtype == OutputDtype::Int8 && !format.has_columns() && !normalized {
        bail!(
            "{format} cannot store the scale of an int8 vector; add --normalize, since unit vectors need none, or write \
             --output-format jsonl, csv, parquet or arrow"
        );
    }
    if *dtype == OutputDtype::Ubinary && matches!(format, OutputFormat::Jsonl | OutputFormat::Csv) {
        bail!(
            "{format} does not tell --output-dtype ubinary from binary; choose binary, or write --output-format npy, safetensors, \
             parquet or arrow"
        );
    }
    let check = dtype.check(*dimensions, "--dimensions");
    check.map_err(|reason| anyhow!("--output-dtype {reason}"))
}

/// Checks the name that the user has chosen for the column of vectors.
fn check_vector_column(schema: &OutputSchema) -> Result<()> {
    let Some(name) = schema.vector_column() else { return Ok(()) };
    let is_own = RESERVED_COLUMNS.contains(&name)
        || [SCALE, schema.metadata.id_column()].contains(&name)
        || Span::NAMES.contains(&name);
    match &schema.content {
        ContentType::Vectors(_) if !schema.format.has_columns() => {
            bail!(
                "{} has no column of vectors for --vector-column; write --output-format jsonl, csv, parquet or arrow",
                schema.format
            )
        }
        ContentType::Vectors(_) if is_own || schema.kept.iter().any(|column| column.name == name) => {
            bail!("--vector-column {name}: {name} is another column of the output; choose another name")
        }
        ContentType::Vectors(_) => Ok(()),
        content => bail!("--vector-column names a vector, but a row has {}; leave it out", content.noun()),
    }
}

/// Checks the name that the user has chosen for the column of ids.
fn check_id_column(schema: &OutputSchema) -> Result<()> {
    let Some(name) = schema.metadata.get(Key::IdColumn) else { return Ok(()) };
    if !schema.format.has_columns() {
        bail!(
            "{} has no column of ids for --id-column; write --output-format jsonl, csv, parquet or arrow",
            schema.format
        );
    }
    if is_written(schema, name) || schema.kept.iter().any(|column| column.name == name) {
        bail!("--id-column {name}: {name} is another column of the output; choose another name");
    }
    Ok(())
}

/// Whether a column is one that Sconce writes itself, beside the ids.
fn is_written(schema: &OutputSchema, name: &str) -> bool {
    let OutputSchema { format, content, chunks, .. } = schema;
    // Files of other formats do not tell which column has the vectors.
    let says_column = matches!(format, OutputFormat::Parquet | OutputFormat::Arrow);
    let is_renamed = says_column && schema.vector_column().is_some();
    let is_element = *format == OutputFormat::Csv
        && content.vectors().is_some_and(|vectors| is_element_column(name, vectors.width()));
    RESERVED_COLUMNS.contains(&name)
        || content.column_names().contains(&name) && !(is_renamed && name == EMBEDDING)
        || *chunks && Span::NAMES.contains(&name)
        || is_element
}

fn check_kept_columns(schema: &OutputSchema) -> Result<()> {
    let OutputSchema { format, kept, metadata, .. } = schema;
    if !kept.is_empty() && !format.has_columns() {
        bail!(
            "{format} holds vectors only, no columns for --keep; write --output-format jsonl, csv, parquet or arrow"
        );
    }
    for (i, column) in kept.iter().enumerate() {
        let name = column.name.as_str();
        if kept[..i].iter().any(|other| other.name == name) {
            bail!("--keep names {name:?} twice; name it once, or copy a field under another name: NAME=AS");
        }
    }
    let is_taken = |name: &&str| *name == metadata.id_column() || is_written(schema, name);
    let taken: Vec<&str> = kept.iter().map(|column| column.name.as_str()).filter(is_taken).collect();
    match taken[..] {
        [] => Ok(()),
        [name] => bail!(already_a_column(name)),
        // Most likely by '*': one sentence names all of them.
        _ => {
            let renamed: Vec<String> = taken.iter().map(|name| format!("{name}=AS")).collect();
            bail!(
                "--keep: {} are already output columns; copy the fields under other names, beside '*' as well: --keep {}",
                taken.join(", "),
                renamed.join(" ")
            )
        }
    }
}

/// The error for a kept field under the name of a column that Sconce writes itself.
pub fn already_a_column(name: &str) -> String {
    format!(
        "--keep {name}: {name} is already an output column; copy the field under another name: --keep NAME=AS"
    )
}

/// Whether `name` is one of the CSV columns `e0`, `e1`, … of a vector with `width` elements.
fn is_element_column(name: &str, width: usize) -> bool {
    let index = name.strip_prefix('e').and_then(|index| index.parse::<usize>().ok());
    index.is_some_and(|index| index < width && name == element(index))
}

#[cfg(test)]
mod tests {
    use super::is_element_column;

    #[test]
    fn element_columns_are_e_and_an_index_below_the_width() {
        let is_element =
            ["e0", "e15", "e16", "e01", "e", "E1", "e+1"].map(|name| is_element_column(name, 16));
        assert_eq!(is_element, [true, true, false, false, false, false, false]);
    }
}
