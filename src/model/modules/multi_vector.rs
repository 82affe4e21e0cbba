//! What a multi-vector model like ColBERT has beside its modules: lengths, query expansion, the tokens of
//! documents that have no vector, and token pooling. Three layouts: the modules of sentence-transformers'
//! `MultiVectorEncoder`; those of PyLate, with settings in `config_sentence_transformers.json`; and the
//! original checkpoints of Stanford (class `HF_ColBERT`) with `artifact.metadata`.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::prompts::Prompts;
use super::{PostPoolingModule, TokenLimit, fields, token_limit};
use crate::model::config::Config;
use crate::model::layout::{ARTIFACT_METADATA, CONFIG};
use crate::named::Named;
use crate::neighbours::Similarity;
use crate::sys::regular_file::has_dir_entry;
use crate::text::Role;

/// The class of the original checkpoints.
const STANFORD_CLASS: &str = "HF_ColBERT";
/// The length of queries after expansion where the files do not say (Khattab & Zaharia 2020, §3.2).
const EXPANDED_LENGTH: usize = 32;
/// `string.punctuation` of Python, the default skiplist of PyLate and of the original code.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Settings that only PyLate writes.
const PYLATE_KEYS: [&str; 8] = [
    "query_length",
    "document_length",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
];

/// What a multi-vector model has beside its modules.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MultiVector {
    /// The maximum length of a query that is not expanded to a fixed length.
    pub query_length: Option<TokenLimit>,
    /// The maximum length of a document.
    pub document_length: Option<TokenLimit>,
    /// How queries are expanded, if they are.
    pub expansion: Option<QueryExpansion>,
    /// Tokens that have no vector.
    pub skiplist: Vec<String>,
    /// The roles of the texts that the skiplist applies to.
    pub skiplist_roles: Vec<Role>,
    /// Whether the first token of a text, `[CLS]`, has no vector.
    pub skips_first_token: bool,
    /// Prompts whose first word is one token.
    pub markers: Vec<String>,
    /// How the vectors of a text are reduced, if they are.
    pub token_pooling: Option<TokenPooling>,
    /// Whether a score is divided by the number of query tokens (`meanmaxsim`).
    pub mean: bool,
}

/// Query expansion: mask tokens after a query (Khattab & Zaharia 2020, §3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryExpansion {
    /// Tokens of a query with its expansion; longer queries are truncated to it if `fixed`.
    pub length: TokenLimit,
    /// Whether every query has this length.
    pub fixed: bool,
    /// Whether other tokens attend to the expansion.
    pub attend: bool,
    /// The token. `None`: the mask token.
    pub token: Option<String>,
}

/// Hierarchical token pooling: the means of clusters of similar vectors (Clavié et al. 2024).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenPooling {
    /// Vectors per cluster, at least 1.
    pub factor: f64,
    /// Vectors at the start that are kept as they are.
    pub protected: usize,
    /// Whether the means are scaled to unit length.
    pub normalize: bool,
    /// The roles of the texts that it applies to.
    pub roles: Vec<Role>,
}

impl TokenPooling {
    /// The defaults of sentence-transformers with this factor.
    pub fn with_factor(factor: f64) -> Self {
        TokenPooling { factor, protected: 1, normalize: true, roles: vec![Role::Document] }
    }
}

impl MultiVector {
    /// How texts are compared.
    pub fn similarity(&self) -> Similarity {
        if self.mean { Similarity::MeanMaxSim } else { Similarity::MaxSim }
    }

    /// The settings of `config_sentence_transformers.json`; adds the markers of PyLate to `prompts`.
    pub(super) fn of_settings(path: &Path, prompts: &mut Prompts) -> Result<Self> {
        let mut multi_vector = MultiVector { skiplist_roles: vec![Role::Document], ..Self::default() };
        if !has_dir_entry(path) {
            return Ok(multi_vector);
        }
        let settings = Config::read(path)?;
        let similarity = settings.get("similarity_fn_name").and_then(Value::as_str);
        multi_vector.mean = similarity == Some(Similarity::MeanMaxSim.name());
        let mut has_prefix = false;
        for (key, role) in [("query_prefix", Role::Query), ("document_prefix", Role::Document)] {
            if !settings.fields().contains_key(key) {
                continue;
            }
            let prefix = settings.string(key)?.unwrap_or_default();
            has_prefix = true;
            multi_vector.markers.push(prefix.into());
            let own = prompts.get(role.name()).unwrap_or_default();
            let text = format!("{prefix}{}", own.strip_prefix(prefix).unwrap_or(own));
            prompts.set(role.name(), text);
        }
        let is_pylate = has_prefix || settings.get("model_type").is_some_and(|kind| kind == "ColBERT");
        multi_vector.skiplist = match settings.strings("skiplist_words")? {
            Some(words) => words.into_iter().map(str::to_owned).collect(),
            None if is_pylate => punctuation(),
            None => Vec::new(),
        };
        multi_vector.read_lengths(&settings)?;
        let is_pylate = PYLATE_KEYS.iter().any(|key| settings.fields().contains_key(*key));
        if is_pylate && !settings.fields().contains_key("query_expansion") {
            multi_vector.expansion = pylate_expansion(&settings)?;
            // The length of expanded queries is that of the expansion.
            multi_vector.query_length.take_if(|_| multi_vector.expansion.is_some());
        }
        Ok(multi_vector)
    }

    /// `query_length`, `document_length` and `query_expansion`, of the settings or of the Transformer module.
    pub(super) fn read_lengths(&mut self, config: &Config) -> Result<()> {
        self.query_length = token_limit(config, "query_length")?.or(self.query_length.take());
        self.document_length = token_limit(config, "document_length")?.or(self.document_length.take());
        let key = "query_expansion";
        if !config.fields().contains_key(key) {
            return Ok(());
        }
        self.expansion = None;
        let Some(expansion) = config.object(key)? else { return Ok(()) };
        fields::QUERY_EXPANSION.check(&expansion)?;
        let fixed = match expansion.string("strategy")? {
            Some("fixed") => true,
            Some("min") => false,
            other => {
                bail!("{}", expansion.invalid("strategy", other.unwrap_or("not given"), "fixed or min"))
            }
        };
        let Some(length) = token_limit(&expansion, "length")? else {
            bail!("{}", config.invalid(key, "without length", "a number of tokens in \"length\""))
        };
        let token = expansion.string("token")?.map(str::to_owned);
        self.expansion = Some(QueryExpansion { length, fixed, attend: expansion.flag("attend")?, token });
        Ok(())
    }

    /// A `MultiVectorMask` module.
    pub(super) fn read_mask(&mut self, folder: &Path) -> Result<()> {
        let config = fields::MULTI_VECTOR_MASK.read(&folder.join(CONFIG))?;
        let words = config.strings("skiplist_words")?.unwrap_or_default();
        self.skiplist = words.into_iter().map(str::to_owned).collect();
        self.skiplist_roles = roles(&config, "skiplist_tasks")?;
        match config.get("keep_only_token_ids") {
            Some(Value::Array(ids)) if !ids.is_empty() => bail!(
                "{}; models of images are not supported",
                config.invalid("keep_only_token_ids", "a list of tokens", "null")
            ),
            _ => Ok(()),
        }
    }

    /// A `HierarchicalTokenPooling` module.
    pub(super) fn read_token_pooling(&mut self, folder: &Path) -> Result<()> {
        let config = fields::TOKEN_POOLING.read(&folder.join(CONFIG))?;
        let factor = config.number("pool_factor", 1.0)?;
        if factor < 1.0 {
            bail!("{}", config.invalid("pool_factor", factor, "a number from 1 on"))
        }
        let protected = match config.get("num_protected_tokens") {
            None => 1,
            Some(_) => config.size("num_protected_tokens", 0..=1 << 20)?,
        };
        let (normalize, roles) = (config.flag("normalize_embeddings")?, roles(&config, "tasks")?);
        self.token_pooling = Some(TokenPooling { factor, protected, normalize, roles });
        Ok(())
    }

    /// The projection and the settings of an original checkpoint, whose `prompts` are its markers; `None` for
    /// another model.
    pub(super) fn of_stanford(
        folder: &Path,
        prompts: &mut Prompts,
    ) -> Result<Option<(Self, PostPoolingModule)>> {
        let path = folder.join(CONFIG);
        if !has_dir_entry(&path) {
            return Ok(None);
        }
        let classes = Config::read(&path)?.get("architectures").cloned().unwrap_or_default();
        if !classes.as_array().is_some_and(|classes| classes.iter().any(|class| class == STANFORD_CLASS)) {
            return Ok(None);
        }
        let path = folder.join(ARTIFACT_METADATA);
        // Without the file, an empty one: everything has a default.
        let settings = if has_dir_entry(&path) { Config::read(&path)? } else { Config::empty(&path) };
        let mut multi_vector = MultiVector { skiplist_roles: vec![Role::Document], ..Self::default() };
        for (role, key, default) in
            [(Role::Query, "query_token_id", "[unused0]"), (Role::Document, "doc_token_id", "[unused1]")]
        {
            let marker = settings.string(key)?.filter(|marker| !marker.is_empty()).unwrap_or(default);
            prompts.set(role.name(), format!("{marker} "));
            multi_vector.markers.push(format!("{marker} "));
        }
        multi_vector.document_length = token_limit(&settings, "doc_maxlen")?;
        multi_vector.expansion = Some(QueryExpansion {
            length: expanded_length(&settings, "query_maxlen")?,
            fixed: true,
            attend: settings.flag("attend_to_mask_tokens")?,
            token: None,
        });
        if settings.flag_or("mask_punctuation", true)? {
            multi_vector.skiplist = punctuation();
        }
        Ok(Some((multi_vector, PostPoolingModule::projection(folder)?)))
    }
}

/// The query expansion of PyLate, which is on unless the settings say otherwise.
fn pylate_expansion(settings: &Config) -> Result<Option<QueryExpansion>> {
    if !settings.flag_or("do_query_expansion", true)? {
        return Ok(None);
    }
    let attend = ["attend_to_expansion_tokens", "attend_to_mask_tokens"].into_iter();
    let attend = attend.filter(|key| settings.has(key)).map(|key| settings.flag(key)).next();
    Ok(Some(QueryExpansion {
        length: expanded_length(settings, "query_length")?,
        fixed: true,
        attend: attend.transpose()?.unwrap_or(false),
        token: None,
    }))
}

fn expanded_length(settings: &Config, key: &str) -> Result<TokenLimit> {
    let default = || TokenLimit {
        tokens: EXPANDED_LENGTH,
        key: key.into(),
        file: settings.path().to_owned(),
        of_tokenizer: false,
    };
    Ok(token_limit(settings, key)?.unwrap_or_else(default))
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}

/// The roles of a list of tasks, or of one task; documents without the field.
fn roles(config: &Config, key: &str) -> Result<Vec<Role>> {
    let names = match config.get(key) {
        None => return Ok(vec![Role::Document]),
        Some(Value::String(name)) => vec![name.as_str()],
        Some(_) => config.strings(key)?.unwrap_or_default(),
    };
    Ok(Role::ALL.iter().copied().filter(|role| names.contains(&role.name())).collect())
}
