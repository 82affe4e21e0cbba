//! Which model, and how it is loaded and computed.

use std::path::{Path, PathBuf};

use crate::hub::Source;
use crate::load::ModelOptions;
use crate::nn::{ComputeDtype, DeviceRequest};
use crate::sys::environment;
use crate::task::OnLong;
use crate::text::TruncationSide;

/// Which model to open, and the choices that are the same for every task. Whatever is not chosen is as the
/// model's own files say.
///
/// Every function that takes a model takes its id or its directory in place of a `Model`, too.
///
/// ```
/// use sconce::{ComputeDtype, Embedder, Model, OnLong};
///
/// # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert-tiny");
/// let model = Model::new(directory) // or an id on the Hugging Face Hub: "BAAI/bge-small-en-v1.5"
///     .offline(true)
///     .dtype(ComputeDtype::Int8)
///     .max_length(32)
///     .on_long(OnLong::Error);
/// let embedder = Embedder::open(model)?;
/// assert_eq!(embedder.max_length(), 32);
/// # Ok::<(), sconce::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Model {
    pub(super) options: ModelOptions,
    pub(super) threads: Option<usize>,
    pub(super) on_long: OnLong,
}

impl Model {
    /// A directory with a `config.json`, or an id on the Hugging Face Hub. A model that is not in the cache
    /// of the hub is downloaded into it. The cache, the endpoint and the token are those of
    /// `huggingface_hub`: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn new(directory_or_id: impl Into<String>) -> Self {
        let source = Source {
            model: directory_or_id.into(),
            revision: "main".into(),
            cache: None,
            dimensions: None,
            offline: environment::is_offline(),
            progress: false,
            silent: true,
        };
        Model {
            options: ModelOptions {
                weight_cache: true,
                device: DeviceRequest::Auto,
                ..ModelOptions::of(source)
            },
            threads: None,
            on_long: OnLong::Truncate,
        }
    }

    /// The branch, tag or commit on the hub. Default: `main`.
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.options.source.revision = revision.into();
        self
    }

    /// Whether the network must not be used. Default: as `HF_HUB_OFFLINE` says.
    pub fn offline(mut self, offline: bool) -> Self {
        self.options.source.offline = offline;
        self
    }

    /// The directory of the hub's cache. Default: as `HF_HUB_CACHE` and `HF_HOME` say.
    pub fn cache_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.source.cache = Some(directory.into());
        self
    }

    /// The data type of matrix products. Accumulation is always f32. Default: f32.
    pub fn dtype(mut self, dtype: ComputeDtype) -> Self {
        self.options.compute_dtype = dtype;
        self
    }

    /// The device. Default: a GPU if this build supports GPUs and one is available, else the CPU.
    pub fn device(mut self, device: DeviceRequest) -> Self {
        self.options.device = device;
        self
    }

    /// CPU threads of this model. Default: a thread for each available core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Maximum tokens of a text or a pair, including special tokens. Default: the model's limit.
    pub fn max_length(mut self, tokens: usize) -> Self {
        self.options.max_length = Some(tokens);
        self
    }

    /// The side at which longer texts are truncated. Default: the model's, else the right.
    pub fn truncation_side(mut self, side: TruncationSide) -> Self {
        self.options.truncation_side = Some(side);
        self
    }

    /// What to do with texts over the limit: truncate them, which each result tells; return an error; or take
    /// the mean of the vectors of their parts. Default: truncate. [`OnLong::Skip`] is refused: a result has
    /// an entry for each text.
    pub fn on_long(mut self, on_long: OnLong) -> Self {
        self.on_long = on_long;
        self
    }

    /// The task whose adapter is merged into the weights, in a model that has several. Default: none.
    pub fn adapter(mut self, task: impl Into<String>) -> Self {
        self.options.task = Some(task.into());
        self
    }

    /// A `tokenizer.json`, `vocab.txt`, `vocab.json` or SentencePiece model in place of the model's own.
    pub fn tokenizer(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.tokenizer = Some(file.into());
        self
    }

    /// Whether packed weights are kept in a cache directory (`SCONCE_CACHE`, by default `~/.cache/sconce`)
    /// and mapped from there: processes and models on one machine share their memory, and start without
    /// packing them. Default: yes.
    pub fn weight_cache(mut self, is_used: bool) -> Self {
        self.options.weight_cache = is_used;
        self
    }
}

impl From<&str> for Model {
    fn from(directory_or_id: &str) -> Self {
        Model::new(directory_or_id)
    }
}

impl From<String> for Model {
    fn from(directory_or_id: String) -> Self {
        Model::new(directory_or_id)
    }
}

impl From<&Path> for Model {
    fn from(directory: &Path) -> Self {
        Model::new(directory.to_string_lossy())
    }
}

impl From<PathBuf> for Model {
    fn from(directory: PathBuf) -> Self {
        Model::from(directory.as_path())
    }
}
