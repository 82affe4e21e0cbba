//! `sconce verify`: compares the vectors of a model on this machine with reference vectors, or those of its
//! data types with those in f32.

mod options;
mod reference;
mod report;
mod types;

use anyhow::{Result, bail};

pub use options::VerifyOptions;

use crate::input::Record;
use crate::nn::ComputeDtype;
use crate::run::query_texts::{of_text, report};
use crate::store::print;
use crate::sys::console::Console;
use crate::task::precision::{Bounds, Comparison, DenseModel, dense};
use reference::Reference;
use report::Report;

/// Largest relative rounding error of f16.
const F16_ROUNDING: f64 = 1.0 / 2048.0;

/// Embeds the texts, compares their vectors with the reference and prints a report.
pub fn verify(options: &VerifyOptions) -> Result<()> {
    let Some(against) = &options.against else { return types::compare(options) };
    let reference = Reference::read(options, against)?;
    let dtype = options.model.compute_dtype;
    let model = DenseModel::load(&options.model, &options.vectors, dtype, &options.console)?;
    reference.check_dimensions(model.dimensions)?;
    let vectors = embed(&model, &reference.texts, &options.console)?;
    let comparison = Comparison::new(&vectors, &reference.vectors, model.similarity);
    let bounds = bounds(options, dtype, &reference);
    let backend = &model.backend;
    let report = Report { comparison: &comparison, bounds: &bounds, reference: &reference, backend };
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

/// The vectors of the texts.
fn embed(model: &DenseModel, texts: &[Record], console: &Console) -> Result<Vec<Vec<f32>>> {
    let inputs: Vec<&str> = texts.iter().map(|record| &*record.text).collect();
    let embedded = model.embed(&inputs);
    let embedded =
        embedded.map_err(|error| of_text(error, |i, reason| format!("{} {reason}", texts[i].location)))?;
    report(&embedded, model.max_length, console);
    Ok(dense(embedded))
}

/// The bounds that the user gives, and the defaults for a compute dtype.
fn bounds(options: &VerifyOptions, dtype: ComputeDtype, reference: &Reference) -> Bounds {
    let rounding = if reference.is_f16 { F16_ROUNDING } else { 0.0 };
    let defaults = Bounds::of(dtype, &reference.vectors, rounding);
    Bounds {
        max_difference: options.max_difference.or(defaults.max_difference),
        min_cosine: options.min_cosine.unwrap_or(defaults.min_cosine),
        min_neighbours: options.min_neighbours.unwrap_or(defaults.min_neighbours),
    }
}
