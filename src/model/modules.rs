//! The modules of a sentence-transformers model: `modules.json`, a folder for each module, `sentence_bert_config.json` and
//! `config_sentence_transformers.json`.

mod arguments;
mod dense_sizes;
mod fields;
mod list;
mod logit_score;
mod multi_vector;
mod pooling;
pub mod post_pooling;
mod prompts;
mod query_weights;
mod splade;
pub mod unified;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use thiserror::Error;

use super::config::Config;
use super::layout::{
    COLBERT_LINEAR, CONFIG, MODEL_SETTINGS, MODULE_WEIGHTS, MODULES, SPARSE_LINEAR, TOKENIZER_CONFIG,
    TRANSFORMER_CONFIGS,
};
use super::purpose::Purpose;
use super::static_embedding::{self, StaticLayout};
use crate::error::UsageError;
use crate::neighbours::Similarity;
use crate::nn::{EncoderSpec, HeadKind, Pool, Pooling, PostPoolingSpec, SpladeSpec};
use crate::sys::model_json::{self, read_json_object};
use crate::sys::regular_file::has_dir_entry;
pub use dense_sizes::may_lack_size;
use list::{CLIP_MODEL, QUERY_WEIGHTS};
pub use list::{Module, parent_model, read_modules};
pub use logit_score::{LogitScore, MessageOptions, PairInput};
pub use multi_vector::{MultiVector, QueryExpansion, TokenPooling};
pub use pooling::PoolingModule;
use post_pooling::ModuleInput;
pub use post_pooling::PostPoolingModule;
pub use prompts::Prompts;

pub use crate::text::Role;
pub use query_weights::QueryWeights;

/// The Dense module of PyLate, whose computation is that of sentence-transformers.
const PYLATE_DENSE: &str = "pylate.models.Dense.Dense";

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
    /// The file of a layer that projects the vector of each token, in a model whose own vectors are those of texts.
    pub token_projection: Option<PathBuf>,
    /// The number of dimensions that vectors are truncated to.
    pub truncate_dim: Option<usize>,
    /// The maximum length of a text in tokens, including special tokens.
    pub max_length: Option<TokenLimit>,
    /// The maximum lengths of queries and of documents where they have their own, in the order of [`Role`].
    pub role_lengths: [Option<TokenLimit>; 2],
    /// Whether longer texts lose their beginning (`truncation_side` is left) rather than their end.
    pub truncate_left: bool,
    /// Whether texts are lowercased before tokenization.
    pub lowercase: bool,
    /// Whether texts have no special tokens.
    pub no_special_tokens: bool,
    /// Fields that replace those of the encoder's config.json.
    pub config_overrides: Map<String, Value>,
    /// Prompts.
    pub prompts: Prompts,
    /// The similarity function that the vectors are compared with. `None`: the default for vectors of their kind.
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
    /// The purpose of the model if its files say that it is no embedding model; then modules after the encoder are not read.
    pub purpose: Option<Purpose>,
}

/// A maximum length in a file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLimit {
    /// Tokens, including special tokens.
    pub tokens: usize,
    /// The field.
    pub key: String,
    /// The file.
    pub file: PathBuf,
    /// Whether it is the limit of a tokenizer, which applies up to the number of positions that the model was made for.
    pub of_tokenizer: bool,
}

/// Vectors that do not have the dimensions of a post-pooling module's input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{} takes vectors of {expected} dimensions, found {found}; use the files of one model",
    .file.display()
)]
pub struct DimensionMismatch {
    /// The configuration of the module.
    pub file: PathBuf,
    /// Dimensions of its input.
    pub expected: usize,
    /// Dimensions of the vectors.
    pub found: usize,
}

impl Modules {
    /// Reads the modules of a model directory. One without `modules.json` has no Pooling module. A `pooling` of the user's
    /// replaces that of the files; `dimensions` choose among the folders of a Dense module.
    pub fn read(folder: &Path, pooling: Option<&Pooling>, dimensions: Option<usize>) -> Result<Self> {
        let mut modules = Self::read_list(folder, pooling, dimensions)?;
        let folder = folder.join(&modules.encoder_folder);
        modules.lexical_layer = unified::file_in(&folder, SPARSE_LINEAR);
        modules.token_projection = unified::file_in(&folder, COLBERT_LINEAR);
        if let Some(file) = modules.token_projection.as_ref().filter(|_| modules.multi_vector.is_none())
            && pooling == Some(&Pooling::MultiVector)
        {
            modules.post_pooling = unified::token_projection(file)?;
            modules.multi_vector = Some(unified::multi_vector());
        }
        Ok(modules)
    }

    /// Reads the modules that sentence-transformers, PyLate, ColBERT or model2vec save.
    fn read_list(folder: &Path, pooling: Option<&Pooling>, dimensions: Option<usize>) -> Result<Self> {
        let mut modules = Modules::default();
        let list = folder.join(MODULES);
        if !has_dir_entry(&list) && is_model2vec(folder)? {
            modules.read_static(folder, pooling)?;
            modules.add_own_normalize(folder)?;
            return Ok(modules);
        }
        if !has_dir_entry(&list) {
            modules.read_tokenizer(folder)?;
            let stanford = if uses_own_modules(pooling) {
                MultiVector::of_stanford(folder, &mut modules.prompts)?
            } else {
                None
            };
            if let Some((multi_vector, projection)) = stanford {
                modules.multi_vector = Some(multi_vector);
                modules.post_pooling = vec![projection];
                modules.add_normalize(folder)?;
            }
            return Ok(modules);
        }
        modules.pair_input = PairInput::Pair;
        let settings_file = folder.join(MODEL_SETTINGS);
        let entries = read_modules(&list, dimensions)?;
        let pools = entries.iter().any(|module| module.class() == "Pooling");
        let settings = prompts::read(&settings_file, pools)?;
        (modules.prompts, modules.truncate_dim) = (settings.prompts, settings.truncate_dim);
        (modules.similarity, modules.activation) = (settings.similarity, settings.activation);
        modules.max_active_dims = settings.max_active_dims;
        modules.dense_sizes = entries
            .iter()
            .map(|module| module.dense_sizes(folder))
            .find(|sizes| sizes.len() > 1)
            .unwrap_or_default();
        let mut by_module = entries.iter().filter_map(|module| Purpose::of_module(&module.module_type));
        let special = by_module.clone().find(Purpose::is_special);
        modules.purpose = special.or(settings.purpose).or_else(|| by_module.next());
        let takes_multi_vector =
            |purpose: &mut Purpose| purpose.is_multi_vector() && uses_own_modules(pooling);
        if modules.purpose.take_if(takes_multi_vector).is_some() {
            modules.multi_vector = Some(MultiVector::of_settings(&settings_file, &mut modules.prompts)?);
        }
        for module in &entries {
            modules.add(folder, &list, (module, pools), pooling)?;
        }
        modules.add_own_normalize(folder)?;
        // Modules after SPLADE, and other ones for queries than weights, are not supported: the model is refused by its purpose.
        let is_weights = |module: &Module| module.router.is_some() && module.class() == QUERY_WEIGHTS;
        let is_splade =
            |module: &Module| module.is_encoder() || module.class() == "SpladePooling" || is_weights(module);
        modules.splade = modules.splade.filter(|_| entries.iter().all(is_splade));
        // PyLate masks and normalizes without modules for it.
        if modules.multi_vector.is_some() && !entries.iter().any(|module| module.class() == "MultiVectorMask")
        {
            modules.add_normalize(folder)?;
        }
        let has_no_pooling = modules.pooling.is_none() && modules.multi_vector.is_none();
        if has_no_pooling && pooling.is_none() && modules.purpose.is_none() {
            bail!("{} has no Pooling module; pass --pooling", list.display())
        }
        Ok(modules)
    }

    /// Adds what an encoder module does without modules for it: its pooling, unless the user gives another one, and after that of the
    /// last token the normalization.
    fn add_own_pooling(&mut self, folder: &Path, pool: Pool, pooling: Option<&Pooling>) -> Result<()> {
        self.pooling = Some(PoolingModule::of_encoder(&folder.join(CONFIG), pool, pooling));
        if pool == Pool::Last { self.add_normalize(folder) } else { Ok(()) }
    }

    /// Reads the module of an entry of `modules.json`.
    fn add(
        &mut self,
        folder: &Path,
        list: &Path,
        (module, pools): (&Module, bool),
        pooling: Option<&Pooling>,
    ) -> Result<()> {
        let Module { module_type, path, .. } = module;
        let (shown, class) = (list.display(), module.class());
        let post_pooling = match class {
            "Transformer" | "MLMTransformer" | CLIP_MODEL => {
                self.encoder_folder = PathBuf::from(path);
                let folder = folder.join(path);
                self.read_tokenizer(&folder)?;
                self.read_transformer(&folder, module.is_custom(), pools, pooling)?;
                return match module.own_pooling(&folder.join(CONFIG))? {
                    Some(pool) => self.add_own_pooling(&folder, pool, pooling),
                    None => Ok(()),
                };
            }
            "StaticEmbedding" if self.purpose.is_none() && !module.is_custom() => {
                self.encoder_folder = PathBuf::from(path);
                return self.read_static(&folder.join(path), pooling);
            }
            "SpladePooling" => {
                self.splade = Some(splade::read(&folder.join(path).join(CONFIG))?);
                return Ok(());
            }
            "LogitScore" => {
                self.logit_score = Some(LogitScore::read(&folder.join(path).join(CONFIG))?);
                return Ok(());
            }
            _ if self.logit_score.is_some() => bail!(
                "{shown}: module {module_type} ({path:?}) after LogitScore is not supported; choose another model"
            ),
            QUERY_WEIGHTS => {
                if let Some(router) = module.router.clone() {
                    let weights = QueryWeights::read(folder.join(path), router, module.is_default)?;
                    self.query_weights = Some(weights);
                }
                return Ok(());
            }
            _ if self.purpose.is_some() => return Ok(()),
            _ if self.multi_vector.is_some() => return self.add_to_tokens(folder.join(path), list, module),
            _ if module.is_custom() => bail!(
                "{shown}: module {module_type} is code of the model's own, which Sconce does not run; choose another model"
            ),
            "Pooling" if self.pooling.is_some() => {
                bail!("{shown} has a second Pooling module, {path:?}; only one is supported")
            }
            "Pooling" => {
                self.pooling = Some(PoolingModule::read(&folder.join(path).join(CONFIG), pooling)?);
                return Ok(());
            }
            // Dropout is the identity outside training.
            "Dropout" => return Ok(()),
            "Dense" | "Normalize" if self.pooling.is_none() && module.takes_tokens(folder)? => {
                self.before_pooling += 1;
                match class {
                    "Dense" => PostPoolingModule::dense(folder.join(path), ModuleInput::Tokens)?,
                    _ => PostPoolingModule::normalize(folder.join(path), ModuleInput::Tokens)?,
                }
            }
            // There is no vector of the text to normalize yet.
            "Normalize" if self.pooling.is_none() => return Ok(()),
            "Dense" | "LayerNorm" if self.pooling.is_none() => bail!(
                "{shown}: module {class} ({path:?}) is before Pooling and does not take token_embeddings, which is not supported; \
                 choose another model"
            ),
            "Dense" => PostPoolingModule::dense(folder.join(path), ModuleInput::Sentence)?,
            "LayerNorm" => PostPoolingModule::layer_norm(folder.join(path))?,
            "Normalize" => PostPoolingModule::normalize(folder.join(path), ModuleInput::Sentence)?,
            other => bail!("{shown}: module {other} is not supported; choose another model"),
        };
        self.post_pooling.push(post_pooling);
        Ok(())
    }

    /// Reads a module of a multi-vector model after its encoder: it takes the vector of each token.
    fn add_to_tokens(&mut self, folder: PathBuf, list: &Path, module: &Module) -> Result<()> {
        let Some(multi_vector) = &mut self.multi_vector else { return Ok(()) };
        let Module { module_type, path, .. } = module;
        let is_known = !module.is_custom() || module_type == PYLATE_DENSE;
        match (module.class(), &mut multi_vector.token_pooling) {
            ("Dense", None) if is_known => {
                self.post_pooling.push(PostPoolingModule::dense(folder, ModuleInput::Tokens)?);
            }
            // The means of clusters are normalized in place of the vectors.
            ("Normalize", Some(pooling)) if is_known => pooling.normalize = true,
            ("Normalize", None) if is_known => {
                self.post_pooling.push(PostPoolingModule::normalize(folder, ModuleInput::Tokens)?);
            }
            ("MultiVectorMask", None) if is_known => multi_vector.read_mask(&folder)?,
            ("HierarchicalTokenPooling", None) if is_known => multi_vector.read_token_pooling(&folder)?,
            ("Dropout", _) if is_known => {}
            _ => bail!(
                "{}: module {module_type} ({path:?}) is not supported at its place in a multi-vector model; choose another model",
                list.display()
            ),
        }
        Ok(())
    }

    /// Reads the settings of a static embedding model, whose vectors are means over tokens.
    fn read_static(&mut self, folder: &Path, pooling: Option<&Pooling>) -> Result<()> {
        let mean = Pooling::Text(vec![Pool::Mean]);
        if let Some(other) = pooling.filter(|pooling| **pooling != mean) {
            bail!(UsageError(format!(
                "--pooling {other}: {} has static embeddings, which are pooled by the mean; leave the option out",
                folder.display()
            )))
        }
        let layout = StaticLayout::of(folder);
        self.static_embedding = Some(layout);
        let config = folder.join(CONFIG);
        if layout == StaticLayout::Model2Vec {
            let fields = Config::read(&config)?;
            let tokens = match fields.fields().get(static_embedding::MAX_LENGTH) {
                None => Some(static_embedding::MODEL2VEC_MAX_LENGTH),
                Some(Value::Null) => None,
                Some(_) => Some(fields.width(static_embedding::MAX_LENGTH)?),
            };
            let key = static_embedding::MAX_LENGTH.to_owned();
            self.max_length =
                tokens.map(|tokens| TokenLimit { tokens, key, file: config.clone(), of_tokenizer: false });
        }
        let weights = MODULE_WEIGHTS.map(|name| folder.join(name));
        let file = weights.iter().find(|file| has_dir_entry(file)).unwrap_or(&weights[0]).clone();
        self.pooling =
            Some(PoolingModule { pooling: mean, include_prompt: true, embedding_dimension: None, file });
        Ok(())
    }

    /// Adds the normalization that the config of model2vec asks for, unless the last module normalizes.
    fn add_own_normalize(&mut self, folder: &Path) -> Result<()> {
        let is_own = self.static_embedding == Some(StaticLayout::Model2Vec);
        if is_own && Config::read(&folder.join(&self.encoder_folder).join(CONFIG))?.flag("normalize")? {
            self.add_normalize(folder)?;
        }
        Ok(())
    }

    /// Adds a module that normalizes vectors, unless the last one does.
    fn add_normalize(&mut self, folder: &Path) -> Result<()> {
        if self.post_pooling.last().is_none_or(|last| last.spec != PostPoolingSpec::Normalize) {
            let module = PostPoolingModule::normalize(folder.join("normalize"), ModuleInput::Tokens)?;
            self.post_pooling.push(module);
        }
        Ok(())
    }

    /// `tokenizer_config.json`: the maximum length and the truncation side.
    fn read_tokenizer(&mut self, folder: &Path) -> Result<()> {
        (self.max_length, self.truncate_left) = read_truncation(&folder.join(TOKENIZER_CONFIG))?;
        Ok(())
    }

    /// The maximum length and the truncation side in the folder of a base model, whose adapter has no tokenizer of its own.
    pub fn read_base_tokenizer(&mut self, base: &Path) -> Result<()> {
        let (limit, is_left) = read_truncation(&base.join(TOKENIZER_CONFIG))?;
        self.max_length = self.max_length.take().or(limit);
        self.truncate_left |= is_left;
        Ok(())
    }

    /// `sentence_bert_config.json` or the like: lengths and casing of the encoder's input, arguments, and which of its outputs is used.
    fn read_transformer(
        &mut self,
        folder: &Path,
        is_custom: bool,
        pools: bool,
        pooling: Option<&Pooling>,
    ) -> Result<()> {
        let Some(config) = transformer_config(folder)? else { return Ok(()) };
        if !is_custom {
            fields::TRANSFORMER.check(&config)?;
        }
        // A model that pools gives vectors of texts, whose lengths may depend on their roles, too.
        let by_lengths = || Purpose::of_lengths(&config).filter(|_| !pools);
        let by_task = Purpose::of_transformer(&config)?;
        self.purpose = self.purpose.take().or(by_task).or_else(by_lengths);
        let takes_multi_vector =
            |purpose: &mut Purpose| purpose.is_multi_vector() && uses_own_modules(pooling);
        if self.purpose.take_if(takes_multi_vector).is_some() {
            self.multi_vector.get_or_insert_default();
        }
        match &mut self.multi_vector {
            Some(multi_vector) => multi_vector.read_lengths(&config)?,
            None => self.read_role_lengths(&config)?,
        }
        self.max_length = token_limit(&config, "max_seq_length")?.or(self.max_length.take());
        self.lowercase = config.flag("do_lower_case")?;
        let arguments = arguments::Arguments::read(&config)?;
        self.max_length = arguments.tokenizer_length.or(self.max_length.take());
        self.truncate_left = arguments.truncate_left.unwrap_or(self.truncate_left);
        self.no_special_tokens = arguments.no_special_tokens;
        self.config_overrides = arguments.config;
        if let Some(limit) = arguments.call_length {
            self.max_length = Some(limit);
            self.role_lengths = [None, None];
            if let Some(multi_vector) = &mut self.multi_vector {
                (multi_vector.query_length, multi_vector.document_length) = (None, None);
            }
        }
        // Embedding models read no pairs.
        if self.purpose.is_some() {
            let limit;
            (self.pair_input, limit) = PairInput::read(&config)?;
            self.max_length = limit.or(self.max_length.take());
        }
        self.read_output(&config, pooling)
    }

    /// The maximum lengths of queries and documents of a model that is no multi-vector model.
    fn read_role_lengths(&mut self, config: &Config) -> Result<()> {
        for (length, key) in self.role_lengths.iter_mut().zip(["query_length", "document_length"]) {
            *length = token_limit(config, key)?;
        }
        match config.get("query_expansion") {
            Some(expansion) if !self.purpose.as_ref().is_some_and(Purpose::is_multi_vector) => {
                let expected = "null, since queries are only expanded in multi-vector models";
                bail!("{}", config.invalid("query_expansion", expansion, expected))
            }
            _ => Ok(()),
        }
    }

    /// `modality_config` and `module_output_name`: which output of the encoder the next module gets.
    fn read_output(&mut self, config: &Config, pooling: Option<&Pooling>) -> Result<()> {
        let Some(modalities) = config.object("modality_config")? else { return Ok(()) };
        if self.purpose.is_some() {
            return Ok(());
        }
        let Some(text) = modalities.object("text")? else {
            if pooling.is_some() {
                return Ok(());
            }
            bail!(
                "{}: \"modality_config\" has no entry for text; choose another model",
                config.path().display()
            )
        };
        let method = text.string("method")?.unwrap_or_default();
        let output = text.get("method_output_name").and_then(Value::as_str).unwrap_or_default();
        match (method, output, config.string("module_output_name")?.unwrap_or_default()) {
            ("forward", "last_hidden_state", "token_embeddings") => {}
            ("forward", "pooler_output", "sentence_embedding")
            | ("get_text_features", "pooler_output" | "", "sentence_embedding") => {
                self.pooling = Some(PoolingModule::of_encoder(config.path(), Pool::Pooler, pooling));
            }
            _ if pooling.is_some() => {}
            (_, _, name) => bail!(
                "{}: {name:?} from output {} of the encoder's {method:?} is not supported; pass --pooling",
                config.path().display(),
                text.get("method_output_name").unwrap_or(&Value::Null)
            ),
        }
        Ok(())
    }

    /// Checks that the Pooling module is for hidden states of `hidden_size`.
    pub fn check_hidden_size(&self, hidden_size: usize) -> Result<()> {
        let Some(PoolingModule { embedding_dimension: Some(expected), file, .. }) = &self.pooling else {
            return Ok(());
        };
        let hidden_size = output_dimensions(&self.post_pooling[..self.before_pooling], hidden_size)?;
        if *expected != hidden_size {
            bail!(
                "{} is for hidden states of {expected} dimensions, but the model has {hidden_size}; use the files of one \
                 model",
                file.display()
            )
        }
        Ok(())
    }

    /// The kind of the head that a model of this purpose has.
    pub fn head(&self, purpose: &Purpose) -> Option<HeadKind> {
        match purpose.head() {
            Some(HeadKind::SequenceClassification) if self.logit_score.is_some() => Some(HeadKind::CausalLm),
            head => head,
        }
    }

    /// Whether the model's files say how its token vectors become the vectors of a text.
    pub fn configures_pooling(&self) -> bool {
        self.pooling.is_some() || self.multi_vector.is_some()
    }

    /// The modules after the encoder that run with `pooling`: those of a multi-vector model with its own pooling only, and without pooling
    /// those for the vectors of tokens.
    pub fn applied(&self, pooling: &Pooling) -> &[PostPoolingModule] {
        let all = 0..self.post_pooling.len();
        let applied = match pooling {
            Pooling::Text(_) if self.multi_vector.is_some() => 0..0,
            Pooling::Text(_) if pooling.needs_pooler() => self.before_pooling..all.end,
            Pooling::Text(_) | Pooling::MultiVector => all,
            Pooling::None => 0..self.before_pooling,
            Pooling::Splade | Pooling::Lexical => 0..0,
        };
        &self.post_pooling[applied]
    }

    /// How many of the modules that run with `pooling` are before it.
    pub fn applied_before(&self, pooling: &Pooling) -> usize {
        match pooling {
            Pooling::Text(_) if self.multi_vector.is_none() && !pooling.needs_pooler() => self.before_pooling,
            Pooling::None => self.before_pooling,
            _ => 0,
        }
    }

    /// The dimensions of the final vectors for `pooling` of the hidden states of an encoder, before truncation.
    pub fn output_dimensions(
        &self,
        pooling: &Pooling,
        spec: &EncoderSpec,
    ) -> Result<usize, DimensionMismatch> {
        let (before, after) = self.applied(pooling).split_at(self.applied_before(pooling));
        let width = output_dimensions(before, spec.hidden_size)?;
        output_dimensions(after, pooling.dimensions(width, &spec.pooler))
    }
}

/// The dimensions of vectors of `inputs` dimensions after these modules.
pub fn output_dimensions(modules: &[PostPoolingModule], inputs: usize) -> Result<usize, DimensionMismatch> {
    modules.iter().try_fold(inputs, |found, module| match module.spec.inputs() {
        Some(expected) if expected != found => {
            Err(DimensionMismatch { file: module.config(), expected, found })
        }
        _ => Ok(module.spec.outputs(found)),
    })
}

/// Whether the modules of a multi-vector model run: the user's `pooling` is none, or theirs.
fn uses_own_modules(pooling: Option<&Pooling>) -> bool {
    pooling.is_none_or(|pooling| *pooling == Pooling::MultiVector)
}

/// A maximum length in tokens; `None` without the field.
fn token_limit(config: &Config, key: &str) -> Result<Option<TokenLimit>> {
    match config.get(key) {
        None => Ok(None),
        Some(value) => match value.as_u64().filter(|n| *n > 0) {
            Some(n) => {
                let (key, file) = (config.key_path(key), config.path().to_owned());
                Ok(Some(TokenLimit { tokens: n as usize, key, file, of_tokenizer: false }))
            }
            None => bail!("{}", config.invalid(key, value, "a number of tokens")),
        },
    }
}

/// The configuration of the Transformer module in a folder: the first of its names with a non-empty object.
fn transformer_config(folder: &Path) -> Result<Option<Config>> {
    for name in TRANSFORMER_CONFIGS {
        let path = folder.join(name);
        if !has_dir_entry(&path) {
            continue;
        }
        let config = Config::read(&path)?;
        if !config.fields().is_empty() {
            return Ok(Some(config));
        }
    }
    Ok(None)
}

/// `model_max_length` of `tokenizer_config.json`, and whether `truncation_side` is left. Tokenizers without a limit have a
/// `model_max_length` of 1e30.
fn read_truncation(path: &Path) -> Result<(Option<TokenLimit>, bool)> {
    if !has_dir_entry(path) {
        return Ok((None, false));
    }
    let fields = read_json_object(path)?;
    let key = "model_max_length";
    let tokens = match fields.get(key) {
        None | Some(Value::Null) => None,
        Some(value) => match model_json::as_f64(value).filter(|n| !n.is_nan()) {
            Some(n) => Some(n).filter(|n| (1.0..1e9).contains(n)),
            None => {
                let found = value.to_string();
                bail!(
                    "{}: {key:?} is {}, expected a number of tokens; fix the file",
                    path.display(),
                    model_json::shown(&found)
                )
            }
        },
    };
    let truncate_left = match fields.get("truncation_side") {
        None | Some(Value::Null) => false,
        Some(Value::String(side)) if side == "right" => false,
        Some(Value::String(side)) if side == "left" => true,
        Some(other) => {
            bail!("{}: \"truncation_side\" is {other}, expected left or right; fix the file", path.display())
        }
    };
    let limit = |n: f64| TokenLimit {
        tokens: n as usize,
        key: key.into(),
        file: path.to_owned(),
        of_tokenizer: true,
    };
    Ok((tokens.map(limit), truncate_left))
}

/// Whether a folder without `modules.json` has a model of model2vec.
fn is_model2vec(folder: &Path) -> Result<bool> {
    let path = folder.join(CONFIG);
    Ok(has_dir_entry(&path)
        && Config::read(&path)?.get("model_type").and_then(Value::as_str)
            == Some(static_embedding::MODEL2VEC))
}
