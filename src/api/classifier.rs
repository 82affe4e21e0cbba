//! Texts → labels.

use super::engine::{self, Engine, Row, inputs};
use super::error::{Error, ErrorKind};
use super::model::Model;
use crate::load::{Loaded, ModelOptions, load_head};
use crate::nn::HeadKind;
use crate::rows::{Content, LabelScore};
use crate::sys::console::Console;
use crate::task::{self, ModelTask, OnLong, ScoreOptions};

/// A model that labels texts, such as their sentiment.
///
/// ```
/// use sconce::{Classifier, Model};
///
/// # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/heads/bert");
/// let classifier = Classifier::open(directory)?; // such as "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
/// for classification in classifier.classify(&["a lamp burns", "the candle"])? {
///     let best = &classification.labels[0];
///     println!("{} {:.3}", best.label, best.score);
/// }
/// # Ok::<(), sconce::Error>(())
/// ```
pub struct Classifier {
    engine: Engine<task::Classifier>,
    warnings: Vec<String>,
}

/// The labels of a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Classification {
    /// All labels with their scores, best first.
    pub labels: Vec<LabelScore>,
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// Tokens over the limit, which truncation removed.
    pub truncated_tokens: usize,
}

impl Classifier {
    /// Opens a model by its id on the Hugging Face Hub or by its directory, as `sconce classify --model`
    /// does.
    ///
    /// # Errors
    /// If there is no such model, it cannot be downloaded, is invalid or no classifier, or a choice
    /// contradicts it.
    pub fn open(model: impl Into<Model>) -> Result<Self, Error> {
        open(&model.into(), false)
    }

    /// As [`open`](Classifier::open), but scores are logits, without the model's activation.
    ///
    /// # Errors
    /// As [`open`](Classifier::open).
    pub fn open_raw(model: impl Into<Model>) -> Result<Self, Error> {
        open(&model.into(), true)
    }

    /// The labels of each text, in the order of the texts.
    ///
    /// # Errors
    /// For the first text that cannot be encoded, is too long while [`OnLong::Error`] is chosen, or has a
    /// score that is NaN or infinite; if the device fails.
    pub fn classify<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Classification>, Error> {
        Ok(self.engine.encode(&inputs(texts))?.into_iter().map(of_row).collect())
    }

    /// Maximum tokens of a text, including special tokens.
    pub fn max_length(&self) -> usize {
        self.engine.task().model().tokenizer.max_length()
    }

    /// What the command line would warn of: sentences about what may make labels differ from those that the
    /// model's authors intended.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn open(model: &Model, raw: bool) -> Result<Classifier, Error> {
    if model.on_long == OnLong::Mean {
        let message =
            "`on_long` mean is for vectors, and a classifier gives labels; choose error or truncate";
        return Err(Error::new(ErrorKind::InvalidOption, &message));
    }
    let options = ScoreOptions { on_long: model.on_long, raw, chunking: None };
    let (task, context) = engine::open(model, load, |loaded, _| task::Classifier::new(loaded, options, 0))?;
    Ok(Classifier { engine: Engine::new(task, &context)?, warnings: context.warnings })
}

fn load(options: &ModelOptions, console: &Console) -> anyhow::Result<Loaded> {
    load_head(HeadKind::SequenceClassification, options, console)
}

/// The labels in a row.
fn of_row(row: Row) -> Classification {
    let Row { content, tokens, truncated_tokens } = row;
    match content {
        Content::Labels(labels) => Classification { labels, tokens, truncated_tokens },
        _ => unreachable!("the task gives labels"),
    }
}
