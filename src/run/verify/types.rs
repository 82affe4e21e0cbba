//! The data types of a model beside its own vectors in f32: which of them may be used without a second
//! thought.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::options::VerifyOptions;
use super::reference::{Reference, records};
use super::{bounds, embed};
use crate::input::Entries;
use crate::named::Named;
use crate::nn::ComputeDtype;
use crate::store::print;
use crate::sys::console::{Console, counted};
use crate::task::precision::{Bounds, Comparison, DenseModel};

/// A data type with its differences to f32.
struct Compared {
    dtype: ComputeDtype,
    comparison: Comparison,
    bounds: Bounds,
}

impl Compared {
    fn failures(&self) -> Vec<String> {
        self.bounds.failures(&self.comparison)
    }
}

/// Compares the chosen data type, or all that the device has, with f32, and prints a line for each.
///
/// # Errors
/// If the model cannot be loaded, a text cannot be embedded, or the vectors of the chosen type exceed the
/// bounds.
pub(super) fn compare(options: &VerifyOptions) -> Result<()> {
    let load = |dtype, console: &Console| DenseModel::load(&options.model, &options.vectors, dtype, console);
    let chosen = Some(options.model.compute_dtype).filter(|dtype| *dtype != ComputeDtype::F32);
    let model = load(ComputeDtype::F32, &options.console)?;
    let (texts, console) = if options.texts.is_empty() {
        let texts = model.texts().into_iter().map(str::to_owned).collect();
        (records(Entries::arguments(texts))?, Console::silent())
    } else {
        (records(Entries::open(options.texts.clone(), options.fields.clone())?)?, options.console.clone())
    };
    let vectors = embed(&model, &texts, &console)?;
    let (backend, dimensions) = (model.backend.clone(), model.dimensions);
    // One model is in memory at a time.
    drop(model);
    let rows = (0..texts.len()).collect();
    let reference = Reference { name: "f32".into(), texts, vectors, rows, dimensions, is_f16: false };
    let is_available = |dtype: &&ComputeDtype| {
        let is_chosen = chosen.is_none_or(|chosen| chosen == **dtype);
        is_chosen && **dtype != ComputeDtype::F32 && dtype.is_supported(backend.is_gpu())
    };
    let mut types = Vec::new();
    for dtype in ComputeDtype::ALL.iter().filter(is_available) {
        // What there is to say about the model has been said.
        let model = load(*dtype, &Console::silent())?;
        let vectors = embed(&model, &reference.texts, &Console::silent())?;
        let comparison = Comparison::new(&vectors, &reference.vectors, model.similarity);
        types.push(Compared { dtype: *dtype, comparison, bounds: bounds(options, *dtype, &reference) });
    }
    let of = counted(reference.texts.len() as u64, "text");
    print(
        match options.json {
            true => format!("{:#}\n", object(&types, &reference, &backend.to_string())),
            false => page(&types, &format!("{of}, compared with the vectors in f32 on {backend}")),
        }
        .as_bytes(),
    )?;
    match types.iter().find(|found| Some(found.dtype) == chosen).map(Compared::failures) {
        Some(failures) if !failures.is_empty() => bail!(
            "--dtype {} is not safe for this model: {}; choose another type, or pass other bounds",
            options.model.compute_dtype,
            failures.join(", ")
        ),
        _ => Ok(()),
    }
}

/// The comparisons for people.
fn page(types: &[Compared], title: &str) -> String {
    let mut page = format!("{title}\n\ntype    mean cosine  least cosine  same neighbours\n");
    for found in types {
        let Comparison { mean_cosine, min_cosine, neighbours, .. } = &found.comparison;
        let share = neighbours.map_or("too few texts".into(), |share| format!("{:.2} %", 100.0 * share));
        let failures = found.failures();
        let verdict =
            if failures.is_empty() { "safe".into() } else { format!("not safe: {}", failures.join(", ")) };
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "{:<6}  {mean_cosine:>11.7}  {:>12.7}  {share:>15}  {verdict}",
            found.dtype.name(),
            min_cosine.value
        );
    }
    page
}

/// The comparisons as a JSON object.
fn object(types: &[Compared], reference: &Reference, device: &str) -> Value {
    let of_type = |found: &Compared| {
        let Compared { dtype, comparison, bounds } = found;
        json!({
            "dtype": dtype.name(),
            "max_difference": comparison.max_difference.value,
            "min_cosine": comparison.min_cosine.value,
            "min_cosine_row": comparison.min_cosine.row,
            "mean_cosine": comparison.mean_cosine,
            "neighbours": comparison.neighbours,
            "bounds": bounds.json(),
            "passed": found.failures().is_empty(),
        })
    };
    json!({
        "rows": reference.texts.len(),
        "dimensions": reference.dimensions,
        "reference": reference.name,
        "device": device,
        "types": types.iter().map(of_type).collect::<Vec<_>>(),
    })
}
