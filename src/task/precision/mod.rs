//! The vectors of a model in another data type beside those in f32.

mod bounds;
mod comparison;

use anyhow::{Result, bail};

pub use bounds::Bounds;
pub use comparison::{AtRow, Comparison};

use super::{EmbeddedTexts, Embedder, TextEncoder, VectorOptions, engine};
use crate::engine::{Engine, Task, TaskInput};
use crate::error::UsageError;
use crate::load::{Loaded, ModelOptions, OutcomeFile, load};
use crate::neighbours::{Encoded, Similarity};
use crate::nn::{Backend, ComputeDtype};
use crate::sys::console::Console;
use crate::sys::memory::{is_free, memory_limit};
use crate::text::OnLong;

/// Texts of many kinds, one per line: prose, questions, code, numbers, several scripts, one letter and a
/// hundred tokens.
const TEXTS: &str = include_str!("texts.txt");
/// Maximum size of the files of a model that is loaded in f32 for a check, in bytes.
const MAX_CHECKED_BYTES: u64 = 2 << 30;
/// The memory that the process may use is at least so many times the size of these files.
const MEMORY_PER_BYTE: u64 = 8;

/// A model that gives one vector per text.
pub struct DenseModel {
    engine: Engine<TextEncoder>,
    /// The device with the data type.
    pub backend: Backend,
    /// Elements of a vector.
    pub dimensions: usize,
    /// The similarity function of the model.
    pub similarity: Similarity,
    /// Maximum tokens of a text.
    pub max_length: usize,
}

impl DenseModel {
    /// Loads a model with a data type.
    ///
    /// # Errors
    /// If it cannot be loaded, or gives no single vector per text.
    pub fn load(
        model: &ModelOptions,
        vectors: &VectorOptions,
        dtype: ComputeDtype,
        console: &Console,
    ) -> Result<Self> {
        let model = ModelOptions { compute_dtype: dtype, ..model.clone() };
        let embedder = Embedder::new(load(&model, console)?, vectors, console)?;
        if embedder.late_interaction.is_some() {
            bail!(UsageError(
                "one vector per text is needed, but a multi-vector model gives one per token; choose an embedding model".into()
            ));
        }
        Ok(DenseModel {
            backend: embedder.model.encoders[0].backend().clone(),
            dimensions: embedder.dimensions,
            similarity: embedder.similarity,
            max_length: embedder.model.tokenizer.max_length(),
            engine: engine(TextEncoder::Dense(Box::new(embedder)))?,
        })
    }

    /// Those of [`TEXTS`] that can be embedded: some vocabularies have no token for some scripts.
    pub fn texts(&self) -> Vec<&'static str> {
        let is_usable = |text: &&str| self.engine.task().tokenize(&TaskInput::new(text)).is_ok();
        TEXTS.lines().filter(is_usable).collect()
    }

    /// Embeds texts.
    ///
    /// # Errors
    /// As [`EmbeddedTexts::embed`].
    pub fn embed(&self, texts: &[&str]) -> Result<EmbeddedTexts> {
        let inputs: Vec<TaskInput> = texts.iter().map(|text| TaskInput::new(text)).collect();
        EmbeddedTexts::embed(&self.engine, &inputs)
    }
}

/// The dense vectors of texts.
pub fn dense(embedded: EmbeddedTexts) -> Vec<Vec<f32>> {
    let dense = |text| match text {
        Encoded::Dense(vector) => Some(vector),
        Encoded::PerToken(_) | Encoded::Sparse(_) => None,
    };
    embedded.vectors.into_iter().filter_map(dense).collect()
}

/// Warns if the vectors of a model in int8 are far from those in f32, as they are where some activations are
/// much larger than all others. Some texts are embedded in both at the first use of a checkpoint, and the
/// outcome is kept in the cache directory. Models that are large, or large beside the memory that the process
/// may use, are not checked.
pub fn warn_of_int8(options: &ModelOptions, loaded: &Loaded, console: &Console) {
    let gives_rows = loaded.modules.multi_vector.is_some() || loaded.steps.pooling.is_sparse();
    let is_dense = loaded.head_kind().is_none() && !gives_rows;
    let sizes = loaded.origin.files.iter().filter_map(|file| file.metadata().ok());
    let bytes: u64 = sizes.map(|metadata| metadata.len()).sum();
    let is_small = bytes <= MAX_CHECKED_BYTES
        && memory_limit().is_none_or(|limit| bytes.saturating_mul(MEMORY_PER_BYTE) <= limit)
        && is_free((2 * bytes) as usize);
    if options.compute_dtype != ComputeDtype::Int8
        || !options.reads_checkpoint()
        || options.max_memory.is_some()
        || !is_small
        || !is_dense
    {
        return;
    }
    let what = format!("int8 on {}, task {:?}", loaded.encoders[0].backend(), options.task);
    let Some(file) = OutcomeFile::of_files("types", &what, &loaded.origin.files) else { return };
    let failures: Option<Vec<String>> = file.read();
    // A check that fails says nothing of the run: it has not begun.
    let failures = failures.or_else(|| {
        let failures = int8_failures(options).ok()?;
        file.write(&failures);
        Some(failures)
    });
    if let Some(failures) = failures.filter(|failures| !failures.is_empty()) {
        console.warn(format!(
            "int8 changes the vectors of this model: over {} texts, {}; pass --dtype bf16 or f32 (see sconce verify)",
            TEXTS.lines().count(),
            failures.join(", ")
        ));
    }
}

/// What the vectors of these texts in int8 exceed of the bounds.
fn int8_failures(options: &ModelOptions) -> Result<Vec<String>> {
    let options = ModelOptions { pooling: None, outputs: Vec::new(), ..options.clone() };
    // Weights in f32 that are used once would only fill the cache.
    let in_f32 = ModelOptions { weight_cache: false, ..options.clone() };
    let (vectors, console) = (VectorOptions::new(OnLong::Truncate), Console::silent());
    let plain = DenseModel::load(&in_f32, &vectors, ComputeDtype::F32, &console)?;
    let texts = plain.texts();
    let reference = dense(plain.embed(&texts)?);
    drop(plain);
    let model = DenseModel::load(&options, &vectors, ComputeDtype::Int8, &console)?;
    let comparison = Comparison::new(&dense(model.embed(&texts)?), &reference, model.similarity);
    Ok(Bounds::of(ComputeDtype::Int8, &reference, 0.0).failures(&comparison))
}
