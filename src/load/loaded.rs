//! A loaded model: what its tasks take.

use std::path::PathBuf;

use super::plan::Projection;
use super::prepare::MaxLength;
use crate::model::adapter::ChosenAdapter;
use crate::model::config::Config;
use crate::model::layout::is_model_file;
use crate::model::modules::{Modules, TokenLimit};
use crate::nn::{Encoder, HeadKind, Pooling, PostPooling, TaskHead};
use crate::store::{ReadFiles, parent_dir};
use crate::text::Tokenizer;

/// A loaded model, with all resolved options.
pub struct Loaded {
    /// What it was read from.
    pub origin: Origin,
    /// The modules of the model: pooling and what follows it, prompts, limits.
    pub modules: Modules,
    /// The tokenizer, with its maximum length set.
    pub tokenizer: Tokenizer,
    /// The maximum length of a text, and where it is set.
    pub max_length: MaxLength,
    /// The encoder, once per device.
    pub encoders: Vec<Encoder>,
    /// From its hidden states to vectors.
    pub steps: Steps,
    /// The task head, if one was asked for.
    pub head: Option<LoadedHead>,
    /// What the queries of a sparse encoder become without its encoder, if it is loaded as one and its files
    /// say so.
    pub static_queries: Option<StaticQueries>,
}

/// What a model was read from.
pub struct Origin {
    /// The config of the encoder.
    pub config: Config,
    /// The tokenizer file.
    pub tokenizer: PathBuf,
    /// The origin of the weights: a path, or the seed of random weights.
    pub weights: String,
    /// Parameters of the encoder, pooler and post-pooling modules.
    pub parameters: usize,
    /// The adapter that is merged into the weights.
    pub adapter: Option<ChosenAdapter>,
    /// All files that affect vectors.
    pub files: Vec<PathBuf>,
}

/// From hidden states to vectors: the modules before pooling, the pooling, and the modules after it.
pub struct Steps {
    /// The modules before pooling, which run on the vector of each token.
    pub token_modules: Vec<PostPooling>,
    /// The pooling: the option, else the model's files, else the default for the model family.
    pub pooling: Pooling,
    /// The post-pooling modules. Empty without pooling.
    pub post_pooling: Vec<PostPooling>,
    /// Dimensions of a vector after the last module; with a head, the number of its logits.
    pub dimensions: usize,
    /// The projection of token vectors, if it is an output beside others, and the dimensions of its vectors.
    pub token_projection: Option<Projection<PostPooling>>,
}

/// A task head.
pub struct LoadedHead {
    /// Its kind.
    pub kind: HeadKind,
    /// Its layers.
    pub layers: TaskHead,
}

/// Tokens and their weights for the queries of a sparse encoder without an encoder.
pub struct StaticQueries {
    /// The tokenizer of queries, without special tokens.
    pub tokenizer: Tokenizer,
    /// The weight of each token of the vocabulary.
    pub weights: Vec<f32>,
}

impl Loaded {
    /// The maximum tokens of a text of a role with this limit of its own: `--max-length` if it is given, else
    /// its own, at most the number of positions that have a table; without one, that of all texts.
    pub fn role_length(&self, own: Option<&TokenLimit>) -> usize {
        let positions = self.encoders[0].spec().position_limit().unwrap_or(usize::MAX);
        match own.filter(|_| self.max_length.file.is_some()) {
            Some(own) => own.tokens.min(positions),
            None => self.max_length.tokens,
        }
    }

    /// The maximum tokens of a query and of a document, in the order of
    /// [`Role`](crate::model::modules::Role), if one of them has its own.
    pub fn role_lengths(&self) -> Option<[usize; 2]> {
        let own = &self.modules.role_lengths;
        own.iter().any(Option::is_some).then(|| own.each_ref().map(|own| self.role_length(own.as_ref())))
    }

    /// The kind of the head.
    pub fn head_kind(&self) -> Option<HeadKind> {
        self.head.as_ref().map(|head| head.kind)
    }
}

impl Origin {
    /// The files of the model, none of which an output may replace.
    pub fn read_files(&self) -> ReadFiles {
        const WHAT: &str = "a file of the model";
        let mut files = ReadFiles::new(&self.files, WHAT);
        files.add_folder(parent_dir(self.config.path()).to_owned(), is_model_file, WHAT);
        files
    }
}
