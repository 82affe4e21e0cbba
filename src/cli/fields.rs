//! The fields of records that options name.

use anyhow::{Result, bail};

use crate::error::UsageError;
use crate::input::{ALL_FIELDS, Fields, KeptName, Source, TextFields, expand_kept};

/// The fields of the text.
///
/// # Errors
/// [`UsageError`] if there is a separator, but only one field.
pub(super) fn text_fields(names: &[String], separator: Option<&str>) -> Result<TextFields> {
    let default = TextFields::default();
    match (separator, names) {
        (Some(_), [] | [_]) => bail!(UsageError(
            "--text-separator needs several fields: name them with --text-field, or leave it out".into()
        )),
        (None, []) => Ok(default),
        (separator, names) => Ok(TextFields {
            names: names.to_vec(),
            separator: separator.map_or(default.separator, str::to_owned),
        }),
    }
}

/// A value of `--keep`: the name of a field, and after the last = its name in the output.
pub(super) fn kept_name(value: &str) -> Result<KeptName, String> {
    match value.rsplit_once('=') {
        None => Ok(value.into()),
        Some((field, output)) if !field.is_empty() && !output.is_empty() => {
            Ok(KeptName { field: field.into(), output: output.into() })
        }
        Some(_) => Err("expected NAME or NAME=AS".into()),
    }
}

/// Replaces `*` among the fields to keep by the names of the fields of the inputs. A field that is the id
/// under its own name is left out: the output has it in any case.
///
/// # Errors
/// [`UsageError`] if there is a `*`, but an input can be read only once.
pub(super) fn keep_fields(fields: &mut Fields, sources: &[Source]) -> Result<()> {
    if fields.keep.iter().any(|kept| kept.field == ALL_FIELDS)
        && let Some(stream) = sources.iter().find(|source| source.is_stream())
    {
        bail!(UsageError(format!(
            "--keep '*' reads the names of the fields first, but {} can be read only once; name the fields, or pass --input FILE",
            stream.path
        )));
    }
    let id_name = fields.id.as_deref().unwrap_or("id");
    let is_id = |kept: &KeptName| kept.field == id_name && kept.output == "id";
    let (ids, keep) = expand_kept(sources, fields).into_iter().partition::<Vec<_>, _>(is_id);
    (fields.keeps_id, fields.keep) = (!ids.is_empty(), keep);
    Ok(())
}
