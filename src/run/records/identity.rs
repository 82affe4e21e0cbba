//! The identity of a run: it resumes another only if their identities are equal.

use super::{Input, RecordOptions};
use crate::job::{FileRecords, OnNull, RunIdentity, sha256_of_texts};
use crate::named::Named;
use crate::run::yes_or_no;

/// The input and the output of a run. `appended` are the records of the file that it adds rows to.
pub(super) fn of_run(options: &RecordOptions, appended: Option<&FileRecords>) -> RunIdentity {
    let mut identity = of_input(&options.input);
    identity.extend([
        ("--output-format".into(), options.format.name().into()),
        ("--skip-empty".into(), yes_or_no(options.selection.skip_empty)),
    ]);
    if options.on_null != OnNull::Error {
        identity.insert("--on-null".into(), options.on_null.name().into());
    }
    if let Some(shard) = options.selection.shard {
        identity.insert("--shard".into(), shard.to_string());
    }
    if let Some(records) = appended {
        identity.insert("the rows of the file".into(), format!("SHA-256 {}", records.digest()));
    }
    identity
}

/// The identity of the input. The records themselves are compared by the digest of the cursor.
fn of_input(input: &Input) -> RunIdentity {
    let (sources, fields) = match input {
        Input::Texts(texts) => {
            let digest = format!("SHA-256 {}", sha256_of_texts(texts));
            return RunIdentity::from([("the texts".into(), digest)]);
        }
        Input::Files(sources, fields) => (sources, fields),
    };
    let formats = of_all(sources.iter().map(|source| source.format.name().to_owned()));
    let syntaxes =
        || sources.iter().filter(|source| source.format.is_delimited()).map(|source| source.syntax);
    let shown = |byte: Option<u8>| byte.map_or("none".into(), |byte| byte.escape_ascii().to_string());
    let given = |name: &Option<String>| name.clone().unwrap_or_else(|| "not given".into());
    let kept: Vec<String> = fields.keep.iter().map(ToString::to_string).collect();
    let mut identity = RunIdentity::from([
        ("--input-format".into(), formats),
        ("--text-field".into(), fields.text.names.join(" ")),
        (fields.options.pair.into(), given(&fields.pair)),
        ("--id-field".into(), given(&fields.id)),
        ("--keep".into(), kept.join(" ")),
    ]);
    if fields.text.names.len() > 1 {
        identity.insert("--text-separator".into(), format!("{:?}", fields.text.separator));
    }
    if syntaxes().next().is_some() {
        let delimiters = syntaxes().map(|syntax| shown(Some(syntax.delimiter)));
        let quotes = syntaxes().map(|syntax| shown(syntax.quote));
        identity.extend([("--delimiter".into(), of_all(delimiters)), ("--quote".into(), of_all(quotes))]);
    }
    identity
}

/// A choice of each input: once, if it is the same for all.
fn of_all(choices: impl Iterator<Item = String>) -> String {
    let choices: Vec<String> = choices.collect();
    match choices.split_first() {
        Some((first, rest)) if rest.iter().all(|choice| choice == first) => first.clone(),
        _ => choices.join(" "),
    }
}
