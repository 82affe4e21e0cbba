//! `sconce verify`: compares the vectors of a model on this machine with reference vectors.

mod bounds;
mod comparison;
mod options;
mod reference;
mod report;

use anyhow::{Result, bail};

pub use options::VerifyOptions;

use crate::engine::{Engine, TaskInput};
use crate::error::UsageError;
use crate::load::load;
use crate::neighbours::Encoded;
use crate::run::query_texts::{of_text, report};
use crate::store::print;
use crate::task::{EmbeddedTexts, Embedder, TextEncoder, engine};
use bounds::Bounds;
use comparison::Comparison;
use reference::Reference;
use report::Report;

/// Embeds the texts, compares their vectors with the reference and prints a report.
pub fn verify(options: &VerifyOptions) -> Result<()> {
    let console = &options.console;
    let reference = Reference::read(options)?;
    let embedder = Embedder::new(load(&options.model, console)?, &options.vectors, console)?;
    reference.check_dimensions(embedder.dimensions)?;
    if embedder.late_interaction.is_some() {
        bail!(UsageError(
            "one vector per text is needed, but a multi-vector model gives one per token; choose an embedding model".into()
        ));
    }
    let engine = engine(TextEncoder::Dense(Box::new(embedder)))?;
    let TextEncoder::Dense(embedder) = &**engine.task() else {
        bail!("the model gives no dense vectors; please report this as a bug")
    };
    let embedded = embed(&engine, &reference)?;
    report(&embedded, embedder.model.tokenizer.max_length(), console);
    let dense = |text| match text {
        Encoded::Dense(vector) => Some(vector),
        Encoded::PerToken(_) | Encoded::Sparse(_) => None,
    };
    let vectors: Vec<Vec<f32>> = embedded.vectors.into_iter().filter_map(dense).collect();
    let comparison = Comparison::new(&vectors, &reference.vectors, embedder.similarity);
    let bounds = Bounds::new(options, &reference);
    let report = Report { comparison: &comparison, bounds: &bounds, reference: &reference, embedder };
    print(if options.json { report.json() } else { report.text() }.as_bytes())?;
    let failures = bounds.failures(&comparison);
    if !failures.is_empty() {
        bail!(
            "the model's vectors differ from {}: {}; compare model, prompt and release of both, or pass other bounds",
            reference.name,
            failures.join(", ")
        );
    }
    Ok(())
}

/// The vectors of the reference's texts.
fn embed(engine: &Engine<TextEncoder>, reference: &Reference) -> Result<EmbeddedTexts> {
    let texts: Vec<TaskInput> = reference.texts.iter().map(|record| TaskInput::new(&record.text)).collect();
    EmbeddedTexts::embed(engine, &texts)
        .map_err(|error| of_text(error, |i, reason| format!("{} {reason}", reference.texts[i].location)))
}
