//! What each entry of `modules.json` becomes, by its class and its position in the list.

use std::path::{Path, PathBuf};

use anyhow::{Error, Result};

use super::list::{CLIP_MODEL, Module, QUERY_WEIGHTS};
use super::post_pooling::ModuleInput::{Sentence, Tokens};
use super::{LogitScore, ModelFolder, Modules, PoolingModule, PostPoolingModule, QueryWeights, splade};
use crate::model::config::Config;
use crate::model::layout::CONFIG;
use crate::nn::{Pool, PostPoolingSpec};
use crate::sys::regular_file::has_dir_entry;

/// The Dense module of PyLate, whose computation is that of sentence-transformers.
const PYLATE_DENSE: &str = "pylate.models.Dense.Dense";

/// The module of pplx-embed's own code after Pooling.
const PPLX_QUANTIZER: &str = "st_quantize.FlexibleQuantizer";

/// The class of voyage-4-nano's own code: Qwen3 with a projection of the vector of each token.
const VOYAGE_CLASS: &str = "modeling_qwen3_bidirectional.Qwen3BidirectionalModel";

/// The position of an entry in the list.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// After a LogitScore module.
    AfterLogitScore,
    /// In a model for another purpose than embedding, of which only the encoder and its scores are read.
    OtherPurpose,
    /// In a multi-vector model.
    MultiVector,
    /// In an embedding model, before its Pooling module or without one.
    BeforePooling,
    /// After the Pooling module.
    AfterPooling,
}

/// Why an entry is refused.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// It is after LogitScore.
    AfterLogitScore,
    /// It has no such position in a multi-vector model.
    InMultiVector,
    /// It is code of the model's own.
    OwnCode,
    /// It is the second Pooling module.
    SecondPooling,
    /// It is before Pooling and does not take the vectors of tokens.
    BeforePooling,
    /// Its class is unknown.
    UnknownClass,
}

impl Modules {
    /// Reads the module of an entry: the first row that fits says what it becomes.
    pub(super) fn add(&mut self, module: &Module, model: &ModelFolder) -> Result<()> {
        use Position::{AfterLogitScore, AfterPooling, BeforePooling, MultiVector, OtherPurpose};
        let refused = |refusal| Err(refusal_of(module, model, refusal));
        let (folder, pooling) = (model.folder.join(&module.path), model.pooling);
        let config = folder.join(CONFIG);
        match (module.class(), self.position()) {
            ("Transformer" | "MLMTransformer" | CLIP_MODEL, _) => self.read_encoder(module, model)?,
            ("StaticEmbedding", _) if self.purpose.is_none() && !module.is_custom() => {
                self.encoder_folder = PathBuf::from(&module.path);
                self.read_static(&folder, pooling)?;
            }
            ("SpladePooling", _) => self.splade = Some(splade::read(&config)?),
            ("LogitScore", _) => self.logit_score = Some(LogitScore::read(&config)?),
            (_, AfterLogitScore) => return refused(Refusal::AfterLogitScore),
            (QUERY_WEIGHTS, _) => self.read_query_weights(module, folder)?,
            (_, OtherPurpose) => {}
            (_, MultiVector) => self.add_to_tokens(module, folder, model)?,
            (_, AfterPooling) if module.module_type == PPLX_QUANTIZER => {
                self.post_pooling.push(PostPoolingModule::tanh_int8(folder));
            }
            _ if module.is_custom() => return refused(Refusal::OwnCode),
            // Dropout is the identity outside training.
            ("Dropout", _) => {}
            ("Pooling", BeforePooling) => self.pooling = Some(PoolingModule::read(&config, pooling)?),
            ("Pooling", AfterPooling) => return refused(Refusal::SecondPooling),
            ("Dense", BeforePooling) if module.takes_tokens(model.folder)? => {
                self.add_before_pooling(PostPoolingModule::dense(folder, Tokens)?);
            }
            ("Normalize", BeforePooling) if module.takes_tokens(model.folder)? => {
                self.add_before_pooling(PostPoolingModule::normalize(folder, Tokens)?);
            }
            // There is no vector of the text to normalize yet.
            ("Normalize", BeforePooling) => {}
            ("Dense" | "LayerNorm", BeforePooling) => return refused(Refusal::BeforePooling),
            ("Dense", AfterPooling) => self.post_pooling.push(PostPoolingModule::dense(folder, Sentence)?),
            ("LayerNorm", AfterPooling) => self.post_pooling.push(PostPoolingModule::layer_norm(folder)?),
            ("Normalize", AfterPooling) => {
                self.post_pooling.push(PostPoolingModule::normalize(folder, Sentence)?);
            }
            _ => return refused(Refusal::UnknownClass),
        }
        Ok(())
    }

    /// The same for a module of a multi-vector model after its encoder: it takes the vector of each token.
    fn add_to_tokens(&mut self, module: &Module, folder: PathBuf, model: &ModelFolder) -> Result<()> {
        let Some(multi_vector) = &mut self.multi_vector else { return Ok(()) };
        let refused = || Err(refusal_of(module, model, Refusal::InMultiVector));
        match (module.class(), &mut multi_vector.token_pooling) {
            _ if module.is_custom() && module.module_type != PYLATE_DENSE => return refused(),
            ("Dropout", _) => {}
            ("Dense", None) => self.post_pooling.push(PostPoolingModule::dense(folder, Tokens)?),
            ("Normalize", None) => self.post_pooling.push(PostPoolingModule::normalize(folder, Tokens)?),
            // The means of clusters are normalized in place of the vectors.
            ("Normalize", Some(pooling)) => pooling.normalize = true,
            ("MultiVectorMask", None) => multi_vector.read_mask(&folder)?,
            ("HierarchicalTokenPooling", None) => multi_vector.read_token_pooling(&folder)?,
            _ => return refused(),
        }
        Ok(())
    }

    /// Where the next entry is, after those that were read.
    fn position(&self) -> Position {
        if self.logit_score.is_some() {
            Position::AfterLogitScore
        } else if self.purpose.is_some() {
            Position::OtherPurpose
        } else if self.multi_vector.is_some() {
            Position::MultiVector
        } else if self.pooling.is_none() {
            Position::BeforePooling
        } else {
            Position::AfterPooling
        }
    }

    /// Reads an encoder module, with what it does without modules for it: its pooling, unless the user gives
    /// another one, and after that of the last token the normalization.
    fn read_encoder(&mut self, module: &Module, model: &ModelFolder) -> Result<()> {
        self.encoder_folder = PathBuf::from(&module.path);
        let folder = model.folder.join(&module.path);
        self.read_tokenizer(&folder)?;
        self.read_transformer(&folder, module.is_custom(), model)?;
        let config = folder.join(CONFIG);
        if has_own_class(&config, VOYAGE_CLASS)? {
            self.add_before_pooling(PostPoolingModule::projection(&folder)?);
        }
        let Some(pool) = module.own_pooling(&config)? else { return Ok(()) };
        self.pooling = Some(PoolingModule::of_encoder(&config, pool, model.pooling));
        if pool == Pool::Last { self.add_normalize(&folder) } else { Ok(()) }
    }

    /// Reads the module that weights the tokens of queries, if a Router chooses it.
    fn read_query_weights(&mut self, module: &Module, folder: PathBuf) -> Result<()> {
        if let Some(router) = module.router.clone() {
            self.query_weights = Some(QueryWeights::read(folder, router, module.is_default)?);
        }
        Ok(())
    }

    fn add_before_pooling(&mut self, module: PostPoolingModule) {
        self.before_pooling += 1;
        self.post_pooling.push(module);
    }

    /// Adds a module that normalizes vectors, unless the last one does.
    pub(super) fn add_normalize(&mut self, folder: &Path) -> Result<()> {
        if self.post_pooling.last().is_none_or(|last| last.spec != PostPoolingSpec::Normalize) {
            let module = PostPoolingModule::normalize(folder.join("normalize"), Tokens)?;
            self.post_pooling.push(module);
        }
        Ok(())
    }
}

/// Whether the config of an encoder names a class of the model's own code.
fn has_own_class(config: &Path, class: &str) -> Result<bool> {
    if !has_dir_entry(config) {
        return Ok(false);
    }
    let map = Config::read(config)?.object("auto_map")?;
    let named = map.as_ref().map(|map| map.string("AutoModel")).transpose()?.flatten();
    // The repository of the code may come first: `owner/name--module.Class`.
    Ok(named.is_some_and(|named| named.rsplit("--").next() == Some(class)))
}

fn refusal_of(module: &Module, model: &ModelFolder, refusal: Refusal) -> Error {
    let (list, class) = (model.list(), module.class());
    let (shown, Module { module_type, path, .. }) = (list.display(), module);
    Error::msg(match refusal {
        Refusal::AfterLogitScore => format!(
            "{shown}: module {module_type} ({path:?}) after LogitScore is not supported; choose another model"
        ),
        Refusal::InMultiVector => format!(
            "{shown}: module {module_type} ({path:?}) is not supported at its place in a multi-vector model; choose another model"
        ),
        Refusal::OwnCode => format!(
            "{shown}: module {module_type} is code of the model's own, which Sconce does not run; choose another model"
        ),
        Refusal::SecondPooling => {
            format!("{shown} has a second Pooling module, {path:?}; only one is supported")
        }
        Refusal::BeforePooling => format!(
            "{shown}: module {class} ({path:?}) is before Pooling and does not take token_embeddings, which is not supported; \
             choose another model"
        ),
        Refusal::UnknownClass => format!("{shown}: module {class} is not supported; choose another model"),
    })
}
