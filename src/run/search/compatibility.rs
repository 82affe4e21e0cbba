//! Whether the vectors of a file can be compared with those of the queries, from what the file says about
//! itself.

use anyhow::{Result, bail};

use crate::model::modules::{Prompts, Role};
use crate::named::Named;
use crate::neighbours::{Representation, Similarity};
use crate::rows::FileMetadata;
use crate::rows::metadata::Key;
use crate::sys::console::Console;
use crate::task::TextEncoder;
use crate::vectors::VectorFile;

/// Keys of the metadata whose values have to be equal in the files of queries and documents, and `prompt`,
/// whose values may differ.
const ORIGIN: &[Key] = &[
    Key::WeightsSha256,
    Key::Model,
    Key::Revision,
    Key::Weights,
    Key::Pooling,
    Key::Normalized,
    Key::Dimensions,
    Key::Prompt,
];

/// Checks that two files say nothing different about how their vectors were made.
pub(super) fn check_same_origin(a: &VectorFile, b: &VectorFile) -> Result<()> {
    check_same(a, b, ORIGIN)
}

/// Checks that two files say nothing different about how their vectors were made, but for their prompts.
pub(super) fn check_same_model(a: &VectorFile, b: &VectorFile) -> Result<()> {
    check_same(a, b, &ORIGIN[..ORIGIN.len() - 1])
}

fn check_same(a: &VectorFile, b: &VectorFile, keys: &[Key]) -> Result<()> {
    // The same model may be given by another path or id; the digest of its weights identifies it.
    let has_digests = [a, b].iter().all(|file| file.metadata().has(Key::WeightsSha256));
    let keys = keys.iter().filter(|key| !has_digests || ![Key::Model, Key::Revision].contains(key));
    if let Some((key, [of_a, of_b])) = a.metadata().conflict(b.metadata(), keys.copied()) {
        let (a, b, key) = (a.name(), b.name(), key.name());
        bail!("{a} was made with {key} {of_a:?}, but {b} with {of_b:?}; pass files of the same model");
    }
    Ok(())
}

/// Checks that the queries have as many dimensions as the vectors.
pub(super) fn check_dimensions(file: &VectorFile, dimensions: usize, queries: &str) -> Result<()> {
    // A file of sparse vectors may not say it.
    if [file.dimensions(), 0].contains(&dimensions) || file.dimensions() == 0 {
        return Ok(());
    }
    bail!(
        "{} holds vectors of {} dimensions, but {queries} have {dimensions}; pass the model and the --dimensions of the file",
        file.name(),
        file.dimensions()
    )
}

/// Checks that the rows of two files hold the same.
pub(super) fn check_kinds(file: &VectorFile, queries: &VectorFile) -> Result<()> {
    let (own, other) = (file.noun(), queries.noun());
    if own == other {
        return Ok(());
    }
    let are_sparse = [file, queries].iter().all(|file| file.representation() == Representation::Sparse);
    let remedy = if are_sparse {
        "write both in formats with indices (parquet, arrow), or both as jsonl"
    } else {
        "pass files of the same model"
    };
    let (name, queries) = (file.name(), queries.name());
    bail!("rows of {name} have {own}, but {queries} have {other}; {remedy}")
}

/// Checks that a model gives what the rows of the file hold.
fn check_kind(file: &VectorFile, encoder: &TextEncoder, queries: &str) -> Result<()> {
    let (own, found) = (file.representation(), encoder.representation());
    if own == found {
        return Ok(());
    }
    bail!(
        "rows of {} have {}, but {queries} have {}; pass the model of the file",
        file.name(),
        file.noun(),
        found.noun()
    )
}

/// The model of the queries.
pub(super) struct QueryModel<'a> {
    /// Its name and choices, as `sconce embed` would write them.
    pub metadata: FileMetadata,
    /// The digest of its weights, if the file has one to compare with.
    pub weights_sha256: Option<String>,
    pub encoder: &'a TextEncoder,
    pub prompts: &'a Prompts,
    /// Whether the user chose the prompt.
    pub has_chosen_prompt: bool,
    pub similarity: Similarity,
}

/// Checks that the file was made by the model of the queries, in the same way, and for documents.
pub(super) fn check_model(file: &VectorFile, model: &QueryModel, console: &Console) -> Result<()> {
    let own = model.metadata.get(Key::Model).unwrap_or_default();
    check_kind(file, model.encoder, &format!("queries of {own}"))?;
    check_dimensions(file, model.encoder.dimensions(), "queries of this model")?;
    let stored = file.metadata();
    let name = file.name();
    let made_by = stored.get(Key::Model).unwrap_or("another model");
    match (stored.get(Key::WeightsSha256), model.weights_sha256.as_deref()) {
        (Some(stored), Some(own_digest)) if stored != own_digest => bail!(
            "{name} was made by {made_by} with other weights than those of {own}; pass --model with the model of the file"
        ),
        (None, _) | (_, None) => {
            if let Some((_, [a, b])) = stored.conflict(&model.metadata, [Key::Model, Key::Weights]) {
                bail!(
                    "{name} was made by {a:?}, but the queries by {b:?}; pass --model with the model of the file"
                );
            }
        }
        _ => {}
    }
    for (key, option) in [(Key::Pooling, "--pooling"), (Key::Normalized, "--normalize or --no-normalize")] {
        // Cosine does not depend on the length of vectors.
        let matters = key != Key::Normalized || model.similarity != Similarity::Cosine;
        if let (Some(a), Some(b), true) = (stored.get(key), model.metadata.get(key), matters)
            && a != b
        {
            let key = key.name();
            bail!(
                "{name} was made with {key} {a}, but the queries with {key} {b}; pass {option} as for the file"
            );
        }
    }
    check_prompt(file, model, console)
}

/// Refuses vectors of queries, unless the user chose the prompt, and warns of a prompt that queries may need,
/// too.
fn check_prompt(file: &VectorFile, model: &QueryModel, console: &Console) -> Result<()> {
    let name = file.name();
    let stored_role = file.metadata().get(Key::Role).filter(|_| !model.has_chosen_prompt);
    if stored_role.is_some_and(|role| role == Role::Query.name()) {
        bail!(
            "{name} was made with --role query; embed the documents again with --role document, or pass --role query to compare \
             queries with queries"
        )
    }
    let Some(stored) = file.metadata().get(Key::Prompt).filter(|_| !model.has_chosen_prompt) else {
        return Ok(());
    };
    match model.prompts.get(Role::Query.name()).filter(|prompt| !prompt.is_empty()) {
        Some(query) if query == stored && model.prompts.get("document") != Some(query) => bail!(
            "{name} was made with the prompt {query:?}, which is for queries; embed the documents again with --prompt-name document, \
             or pass --prompt-name query to compare queries with queries"
        ),
        None if stored != model.encoder.prompt() => console.warn(format!(
            "{name} was made with the prompt {stored:?}, but the queries with {:?}; pass --prompt if queries need another",
            model.encoder.prompt()
        )),
        _ => {}
    }
    Ok(())
}
