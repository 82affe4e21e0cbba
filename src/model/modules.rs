//! The modules of a sentence-transformers model: `modules.json`, a folder for each module,
//! `sentence_bert_config.json` and `config_sentence_transformers.json`.
//!
//! [`Modules::read`] is the path from the files of a model to [`Modules`].
//! * `list`: the entries of `modules.json`. `table`: what each of them becomes. `fields`: what their files
//!   may hold.
//! * `transformer`: the encoder module. `arguments`: its arguments for transformers. `limits`: maximum
//!   lengths. `static_model`: static embeddings.
//! * `applied`: which modules run with a pooling.

mod applied;
mod arguments;
mod dense_sizes;
mod fields;
mod limits;
mod list;
mod logit_score;
mod multi_vector;
mod pooling;
pub mod post_pooling;
mod prompts;
mod query_weights;
mod splade;
mod static_model;
mod table;
mod transformer;
pub mod unified;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::layout::{COLBERT_LINEAR, MODEL_SETTINGS, MODULES, SPARSE_LINEAR};
use super::purpose::Purpose;
use super::static_embedding::StaticLayout;
use crate::neighbours::Similarity;
use crate::nn::{Pooling, SpladeSpec};
use crate::sys::regular_file::has_dir_entry;
use crate::text::TruncationSide;
use limits::{read_truncation, token_limit};
use list::QUERY_WEIGHTS;

pub use crate::text::Role;
pub use applied::{DimensionMismatch, output_dimensions};
pub use dense_sizes::may_lack_size;
pub use limits::TokenLimit;
pub use list::{Module, parent_model, read_modules};
pub use logit_score::{LogitScore, MessageOptions, PairInput};
pub use multi_vector::{MultiVector, QueryExpansion, TokenPooling};
pub use pooling::PoolingModule;
pub use post_pooling::PostPoolingModule;
pub use prompts::Prompts;
pub use query_weights::QueryWeights;

/// The modules of a sentence-transformers model around its encoder, and its settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modules {
    /// The Pooling module.
    pub pooling: Option<PoolingModule>,
    /// The SpladePooling module.
    pub splade: Option<SpladeSpec>,
    /// What weights the queries of a sparse encoder in place of the encoder.
    pub query_weights: Option<QueryWeights>,
    /// The layout of a static embedding model; `None` for a model with an encoder.
    pub static_embedding: Option<StaticLayout>,
    /// What a multi-vector model has beside its modules; `None` for another model.
    pub multi_vector: Option<MultiVector>,
    /// The modules after the encoder but for its pooling, in order.
    pub post_pooling: Vec<PostPoolingModule>,
    /// How many of them are before pooling: they take the vector of each token.
    pub before_pooling: usize,
    /// The numbers of dimensions that a Dense module has folders for; empty if it has one folder.
    pub dense_sizes: Vec<usize>,
    /// The file of a layer that gives lexical weights.
    pub lexical_layer: Option<PathBuf>,
    /// The file of a layer that projects the vector of each token, in a model whose own vectors are those of
    /// texts.
    pub token_projection: Option<PathBuf>,
    /// The number of dimensions that vectors are truncated to.
    pub truncate_dim: Option<usize>,
    /// The maximum length of a text in tokens, including special tokens.
    pub max_length: Option<TokenLimit>,
    /// The maximum lengths of queries and of documents where they have their own, in the order of [`Role`].
    pub role_lengths: [Option<TokenLimit>; 2],
    /// The side at which longer texts are truncated, if the files say it.
    pub truncation_side: Option<TruncationSide>,
    /// Whether texts are lowercased before tokenization.
    pub lowercase: bool,
    /// Whether texts have no special tokens.
    pub no_special_tokens: bool,
    /// Fields that replace those of the encoder's config.json.
    pub config_overrides: Map<String, Value>,
    /// Prompts.
    pub prompts: Prompts,
    /// The similarity function that the vectors are compared with. `None`: the default for vectors of their
    /// kind.
    pub similarity: Option<Similarity>,
    /// The number of elements of a sparse vector, of which the largest are kept.
    pub max_active_dims: Option<usize>,
    /// The path in PyTorch of the activation of a cross-encoder.
    pub activation: Option<String>,
    /// The LogitScore module.
    pub logit_score: Option<LogitScore>,
    /// What a cross-encoder reads of a query and a text.
    pub pair_input: PairInput,
    /// The folder of the encoder's files below the model's; empty if they are in the model's own.
    pub encoder_folder: PathBuf,
    /// The purpose of the model if its files say that it is no embedding model; then modules after the
    /// encoder are not read.
    pub purpose: Option<Purpose>,
}

/// Models that leave their instruction out of the pooling, of older code than the field that says so.
const INSTRUCTOR: [&str; 3] = ["hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl"];

/// The folder of a model, and what its modules are read with.
struct ModelFolder<'a> {
    folder: &'a Path,
    /// Whether the list of modules has a Pooling module.
    pools: bool,
    /// The user's pooling, which replaces that of the files.
    pooling: Option<&'a Pooling>,
}

impl ModelFolder<'_> {
    fn list(&self) -> PathBuf {
        self.folder.join(MODULES)
    }
}

impl Modules {
    /// Reads the modules of a model directory. One without `modules.json` has no Pooling module. A `pooling`
    /// of the user's replaces that of the files; `dimensions` choose among the folders of a Dense module.
    pub fn read(folder: &Path, pooling: Option<&Pooling>, dimensions: Option<usize>) -> Result<Self> {
        let mut modules = if has_dir_entry(&folder.join(MODULES)) {
            Self::of_list(folder, pooling, dimensions)?
        } else if static_model::is_model2vec(folder)? {
            Self::of_model2vec(folder, pooling)?
        } else {
            Self::of_encoder(folder, pooling)?
        };
        modules.add_unified(folder, pooling)?;
        Ok(modules)
    }

    /// Adds what sentence-transformers knows of models on the hub that their files do not say.
    pub fn complete(&mut self, id: &str) {
        if let Some(pooling) = self.pooling.as_mut().filter(|_| INSTRUCTOR.contains(&id)) {
            pooling.include_prompt = false;
        }
    }

    /// The modules of a model that sentence-transformers or PyLate saved.
    fn of_list(folder: &Path, pooling: Option<&Pooling>, dimensions: Option<usize>) -> Result<Self> {
        let entries = read_modules(&folder.join(MODULES), dimensions)?;
        let pools = entries.iter().any(|module| module.class() == "Pooling");
        let model = ModelFolder { folder, pools, pooling };
        let mut modules = Self::of_settings(&model)?;
        modules.dense_sizes = dense_sizes::in_folder(&entries, folder);
        modules.add_purpose(&entries);
        if modules.becomes_multi_vector(pooling) {
            let settings = folder.join(MODEL_SETTINGS);
            modules.multi_vector = Some(MultiVector::of_settings(&settings, &mut modules.prompts)?);
        }
        for module in &entries {
            modules.add(module, &model)?;
        }
        modules.add_own_normalize(folder)?;
        modules.splade = modules.splade.filter(|_| is_plain_splade(&entries));
        // PyLate masks and normalizes without modules for it.
        let has_mask = entries.iter().any(|module| module.class() == "MultiVectorMask");
        if modules.multi_vector.is_some() && !has_mask {
            modules.add_normalize(folder)?;
        }
        if !modules.configures_pooling() && pooling.is_none() && modules.purpose.is_none() {
            bail!("{} has no Pooling module; pass --pooling", model.list().display())
        }
        Ok(modules)
    }

    /// The modules of a static embedding model of model2vec.
    fn of_model2vec(folder: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let mut modules = Modules::default();
        modules.read_static(folder, pooling)?;
        modules.add_own_normalize(folder)?;
        Ok(modules)
    }

    /// The modules of an encoder without a list of modules: those of the original ColBERT, else none.
    fn of_encoder(folder: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let mut modules = Modules::default();
        modules.read_tokenizer(folder)?;
        if uses_own_modules(pooling)
            && let Some((multi_vector, projection)) = MultiVector::of_stanford(folder, &mut modules.prompts)?
        {
            modules.multi_vector = Some(multi_vector);
            modules.post_pooling = vec![projection];
            modules.add_normalize(folder)?;
        }
        Ok(modules)
    }

    /// What `config_sentence_transformers.json` says.
    fn of_settings(model: &ModelFolder) -> Result<Self> {
        let prompts::Settings { prompts, truncate_dim, similarity, max_active_dims, activation, purpose } =
            prompts::read(&model.folder.join(MODEL_SETTINGS), model.pools)?;
        let pair_input = PairInput::Pair;
        let settings = Modules { prompts, truncate_dim, similarity, max_active_dims, ..Modules::default() };
        Ok(Modules { activation, purpose, pair_input, ..settings })
    }

    /// The purpose by the types of the modules: a special one replaces that of the settings, which replaces
    /// others.
    fn add_purpose(&mut self, entries: &[Module]) {
        let mut by_module = entries.iter().filter_map(|module| Purpose::of_module(&module.module_type));
        let special = by_module.clone().find(Purpose::is_special);
        self.purpose = special.or(self.purpose.take()).or_else(|| by_module.next());
    }

    /// Takes away the purpose of a multi-vector model whose modules run: it is an embedding model. Returns
    /// whether it was one.
    fn becomes_multi_vector(&mut self, pooling: Option<&Pooling>) -> bool {
        let takes_multi_vector =
            |purpose: &mut Purpose| purpose.is_multi_vector() && uses_own_modules(pooling);
        self.purpose.take_if(takes_multi_vector).is_some()
    }

    /// The layers of a model like BGE-M3 beside its encoder. The projection of token vectors runs if the user
    /// chose such vectors.
    fn add_unified(&mut self, folder: &Path, pooling: Option<&Pooling>) -> Result<()> {
        let folder = folder.join(&self.encoder_folder);
        self.lexical_layer = unified::file_in(&folder, SPARSE_LINEAR);
        self.token_projection = unified::file_in(&folder, COLBERT_LINEAR);
        if let Some(file) = self.token_projection.as_ref().filter(|_| self.multi_vector.is_none())
            && pooling == Some(&Pooling::MultiVector)
        {
            self.post_pooling = unified::token_projection(file)?;
            self.multi_vector = Some(unified::multi_vector());
        }
        Ok(())
    }
}

/// Whether a SPLADE model has no modules but those of documents and weights of queries. Others are not
/// supported: without SPLADE the model is refused by its purpose.
fn is_plain_splade(entries: &[Module]) -> bool {
    let is_weights = |module: &Module| module.router.is_some() && module.class() == QUERY_WEIGHTS;
    let is_known =
        |module: &Module| module.is_encoder() || module.class() == "SpladePooling" || is_weights(module);
    entries.iter().all(is_known)
}

/// Whether the modules of a multi-vector model run: the user's `pooling` is none, or theirs.
fn uses_own_modules(pooling: Option<&Pooling>) -> bool {
    pooling.is_none_or(|pooling| *pooling == Pooling::MultiVector)
}
