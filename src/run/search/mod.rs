//! `sconce search`: the nearest neighbours of queries in a vector file, or among the chunks of texts, which
//! are embedded before: a view over `embed` and over the search of vectors.

mod compatibility;
mod conditions;
mod options;
mod places;
mod queries;
mod results;
mod scan;
mod skipped;
mod texts;
mod weights;

use std::path::Path;

use anyhow::{Error, Result, bail};

pub use conditions::Conditions;
pub use options::{Queries, Rescore, SearchOptions, Searched};
pub(super) use scan::warn_of_missing;
pub use texts::{CHUNK_TOKENS, SearchedTexts, TextCache};
pub use weights::{NeighbourWeights, WeightKind};

use crate::error::UsageError;
use crate::job::refuse_interrupted;
use crate::neighbours::{Metric, Representation};
use crate::rows::OutputDtype;
use crate::store::{OutputLock, ReadFiles, UncheckedOutput};
use crate::sys::console::counted;
use crate::vectors::{VectorField, VectorFile};
use queries::QueryVectors;

/// Runs `sconce search`.
pub fn search(options: &SearchOptions) -> Result<()> {
    let (mut file, output) = match &options.searched {
        Searched::Vectors(_) => (open_vectors(options)?, None),
        Searched::Texts(texts) => {
            let output = open_output(options)?;
            options.console.detail(format!("{} is searched as texts", texts.name));
            (texts::embed(options, texts)?, Some(output))
        }
    };
    check_options(options, &file)?;
    let rescored = options.rescore.as_ref();
    let rescored = rescored.map(|rescore| open_rescored(options, rescore, &file)).transpose()?;
    let output = output.map_or_else(|| open_output(options), Ok)?;
    let shown = results::ShownColumns::new(options, &file)?;
    options.conditions.apply(&mut file, &options.console)?;
    let QueryVectors { vectors, columns, similarity, read } = queries::embed(options, &file)?;
    let lock = output.check("--output", &read)?;
    let noun = match file.representation() {
        Representation::Dense => "vector",
        Representation::PerToken => "row with vectors",
        Representation::Sparse => "sparse vector",
    };
    options.console.detail(format!(
        "{} of {} dimensions in {}, queries: {}",
        counted(file.rows() as u64, noun),
        file.dimensions(),
        file.dtype(),
        vectors.len()
    ));
    let found = scan::nearest(options, &file, rescored.as_ref(), similarity, &vectors)?;
    drop(vectors);
    results::write(options, &file, &lock, &shown, &columns, found)
}

/// Opens the vector files.
fn open_vectors(options: &SearchOptions) -> Result<VectorFile> {
    let paths = options.searched.paths();
    let file = VectorFile::open_all(&paths, VectorField::named(options.vector_field.as_deref()));
    let file = file.map_err(|error| match paths[..] {
        // Such a file may be one of texts.
        [path] if is_text_format(path) && !error.is::<UsageError>() => {
            Error::msg(format!("{error}, or --texts to search the file as a text"))
        }
        _ => error,
    })?;
    options.console.detail(format!("{} is searched as vectors", file.name()));
    Ok(file)
}

/// Whether a file of this name may hold vectors as text.
fn is_text_format(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    path.is_file() && ["jsonl", "ndjson", "csv"].contains(&&*extension)
}

/// Refuses options that do not apply to a file with sparse vectors or one vector per token.
fn check_options(options: &SearchOptions, file: &VectorFile) -> Result<()> {
    let (held, function, own_metric) = match file.representation() {
        Representation::Dense => return Ok(()),
        Representation::PerToken => (Representation::PerToken.noun(), "MaxSim", None),
        Representation::Sparse => ("sparse vectors", "dot", Some(Metric::Dot)),
    };
    let has_metric = options.metric.is_some() && options.metric != own_metric;
    let given = [("--metric", has_metric), ("--rescore", options.rescore.is_some())];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        let name = file.name();
        bail!(UsageError(format!("{option}: {name} has {held}, which {function} compares; remove it")));
    }
    Ok(())
}

/// Opens the file of `--rescore`, which has the same rows in f32 or f16.
fn open_rescored(options: &SearchOptions, rescore: &Rescore, file: &VectorFile) -> Result<VectorFile> {
    let other = VectorFile::open(&rescore.path, options.other_vector_field())?;
    let (name, searched) = (other.name(), file.name());
    if (other.rows(), other.dimensions()) != (file.rows(), file.dimensions()) {
        bail!(
            "--rescore {name} holds {} of {} dimensions, but {searched} {} of {}; pass the same vectors in f32",
            counted(other.rows() as u64, "vector"),
            other.dimensions(),
            file.rows(),
            file.dimensions()
        );
    }
    if !matches!(other.dtype(), OutputDtype::F32 | OutputDtype::F16) {
        bail!("--rescore {name} holds {} vectors; pass the same vectors in f32 or f16", other.dtype());
    }
    compatibility::check_same_origin(file, &other)?;
    Ok(other)
}

/// Locks the output before the search, and checks that it can be written, and would overwrite neither an
/// input nor an interrupted run.
fn open_output(options: &SearchOptions) -> Result<UncheckedOutput> {
    let output = OutputLock::acquire(&options.output)?;
    output.sidecars().map_or(Ok(()), refuse_interrupted)?;
    let rescored = options.rescore.as_ref().map(|rescore| rescore.path.as_path());
    let searched = options.searched.paths().into_iter();
    let read = searched.chain(rescored).chain(options.queries.paths());
    output.refuse("--output", &ReadFiles::new(read, "an input"))?;
    Ok(output)
}
