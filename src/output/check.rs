//! What a format cannot hold, said before any work is done.

use anyhow::{Result, bail};

use super::{Dtype, Format, Layout, Span};

/// Names that the output's own columns have.
const OWN: &[&str] = &["index", "id", "tokens", "truncated", "scale", "embedding", "embeddings"];

/// Checks that an output can hold what it is to hold.
///
/// # Errors
/// If it cannot, with a sentence that names the options to change.
pub fn check(layout: &Layout) -> Result<()> {
    let Layout { format, dtype, dimensions, per_token, normalized, chunks, ids: _, kept, about: _ } = layout;
    let many = matches!(format, Format::Jsonl | Format::Parquet | Format::Arrow);
    if *per_token && !many {
        bail!(
            "{format} has one vector a row; write --pooling none with --output-format jsonl, parquet or arrow"
        );
    }
    if *per_token && *dtype == Dtype::Int8 {
        bail!(
            "--output-dtype int8 has one scale a row, but --pooling none gives a row many vectors; choose f32, f16 or \
             binary"
        );
    }
    if *dtype == Dtype::Int8 && !format.holds_columns() && !normalized {
        bail!(
            "{format} has no room for the scale of an int8 vector; add --normalize, which makes it follow from the \
             numbers, or write --output-format jsonl, csv, parquet or arrow"
        );
    }
    if *dtype == Dtype::Binary && !dimensions.is_multiple_of(8) {
        let remedy = match dimensions / 8 * 8 {
            0 => "choose another --output-dtype".into(),
            n => format!("pass --dimensions {n}"),
        };
        bail!(
            "--output-dtype binary packs 8 dimensions in a number, but vectors have {dimensions}; {remedy}"
        );
    }
    if !kept.is_empty() && !format.holds_columns() {
        bail!(
            "{format} holds vectors only, nothing that --keep names; write --output-format jsonl, csv, parquet or arrow"
        );
    }
    for (i, column) in kept.iter().enumerate() {
        let name = column.name.as_str();
        if kept[..i].iter().any(|other| other.name == name) {
            bail!("--keep names {name:?} twice; name it once");
        }
        let is_own = OWN.contains(&name) || *chunks && Span::NAMES.contains(&name);
        if is_own || (*format == Format::Csv && is_element(name, layout.width())) {
            bail!("--keep {name}: the output has a column {name} of its own; rename the field in the input");
        }
    }
    Ok(())
}

/// Whether a name is that of one of the columns of numbers in a table: `e0`, `e1` and so on.
fn is_element(name: &str, width: usize) -> bool {
    let number = name.strip_prefix('e').and_then(|number| number.parse::<usize>().ok());
    number.is_some_and(|number| number < width && name == format!("e{number}"))
}
