//! The model's own way from hidden states to a vector, as sentence-transformers saves it: `modules.json`, a folder
//! for each module, `sentence_bert_config.json` and `config_sentence_transformers.json`.

mod heads;
mod pooling;
mod prompts;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use super::config::Config;
use super::purpose::Purpose;
use super::{SENTENCE_CONFIGS, read_json, read_json_object};
use crate::disk::is_listed;
use crate::nn::Pooling;
pub use heads::{HeadModule, NAMES as HEAD_NAMES};
pub use pooling::PoolingModule;
pub use prompts::Prompts;

/// What happens around the encoder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pipeline {
    /// How tokens become a vector.
    pub pooling: Option<PoolingModule>,
    /// What is done to the vector then, in this order.
    pub heads: Vec<HeadModule>,
    /// How many of the vector's first dimensions are kept in the end, where the files say so.
    pub dimensions: Option<usize>,
    /// The longest text in tokens, specials included, where the files set one.
    pub max_length: Option<usize>,
    /// Whether longer texts lose their beginning and not their end.
    pub cut_left: bool,
    /// Whether texts are lowercased before the tokenizer sees them.
    pub lowercase: bool,
    /// What may stand before each text.
    pub prompts: Prompts,
    /// Where the encoder's own files are, below the model's folder; empty for the folder itself.
    pub encoder: PathBuf,
    /// What the model is, where its files say that it is no embedding model. What follows its encoder is not read.
    pub purpose: Option<Purpose>,
}

impl Pipeline {
    /// Reads the pipeline files of a model folder; a folder without `modules.json` has no pooling of its own. Where
    /// the user has chosen a `pooling`, it takes the place of what the files say.
    ///
    /// # Errors
    /// If a file does not parse, or asks for a module that is not supported.
    pub fn read(folder: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let mut pipeline = Pipeline::default();
        let list = folder.join("modules.json");
        if !is_listed(&list) {
            pipeline.read_tokenizer(folder)?;
            return Ok(pipeline);
        }
        let settings = prompts::read(&folder.join("config_sentence_transformers.json"))?;
        (pipeline.prompts, pipeline.dimensions) = (settings.prompts, settings.dimensions);
        let modules = read_modules(&list)?;
        let by_module = || modules.iter().find_map(|module| Purpose::of_module(&module.kind));
        pipeline.purpose = settings.purpose.or_else(by_module);
        for module in &modules {
            pipeline.add(folder, &list, module, pooling)?;
        }
        if pipeline.pooling.is_none() && pooling.is_none() && pipeline.purpose.is_none() {
            bail!("{} has no Pooling module, so it gives no vectors of texts; pass --pooling", list.display())
        }
        Ok(pipeline)
    }

    fn add(&mut self, folder: &Path, list: &Path, module: &Module, pooling: Option<&Pooling>) -> Result<()> {
        let Module { kind, place } = module;
        let (shown, name) = (list.display(), module.name());
        let head = match name {
            "Transformer" | "MLMTransformer" => {
                self.encoder = PathBuf::from(place);
                let folder = folder.join(place);
                self.read_tokenizer(&folder)?;
                return self.read_transformer(&folder, pooling);
            }
            _ if self.purpose.is_some() => return Ok(()),
            _ if module.is_custom() => bail!(
                "{shown}: module {kind} is code of the model's own, which Sconce does not run; choose another model"
            ),
            "Pooling" if self.pooling.is_some() => {
                bail!("{shown} has a second Pooling, {place:?}; only one is supported")
            }
            "Pooling" => {
                self.pooling = Some(PoolingModule::read(&folder.join(place).join("config.json"), pooling)?);
                return Ok(());
            }
            // Does nothing outside of training.
            "Dropout" => return Ok(()),
            "Dense" | "LayerNorm" | "Normalize" if self.pooling.is_none() => bail!(
                "{shown}: module {name} ({place:?}) stands before Pooling, which is not supported; choose another model"
            ),
            "Dense" => HeadModule::dense(folder.join(place))?,
            "LayerNorm" => HeadModule::layer_norm(folder.join(place))?,
            "Normalize" => HeadModule::normalize(folder.join(place))?,
            other => bail!("{shown}: module {other} is not supported; choose another model"),
        };
        self.heads.push(head);
        Ok(())
    }

    /// `tokenizer_config.json`: the limit, and the end at which longer texts are cut.
    fn read_tokenizer(&mut self, folder: &Path) -> Result<()> {
        (self.max_length, self.cut_left) = truncation(&folder.join("tokenizer_config.json"))?;
        Ok(())
    }

    /// `sentence_bert_config.json` or its kin: the limit and the casing of the encoder's input, and which of its outputs
    /// is taken.
    fn read_transformer(&mut self, folder: &Path, pooling: Option<&Pooling>) -> Result<()> {
        let Some(config) = transformer_config(folder)? else { return Ok(()) };
        self.purpose = self.purpose.take().or_else(|| Purpose::of_transformer(&config));
        let limit = |config: &Config, key: &str| match config.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|n| *n > 0) {
                Some(n) => Ok(Some(n as usize)),
                None => bail!("{}", config.wrong(key, value, "a number of tokens")),
            },
        };
        self.max_length = limit(&config, "max_seq_length")?.or(self.max_length);
        // Arguments for the tokenizer, by their newer and their older name.
        for key in ["tokenizer_args", "processor_kwargs"] {
            if let Some(arguments) = config.object(key)? {
                self.max_length = limit(&arguments, "model_max_length")?.or(self.max_length);
            }
        }
        self.lowercase = config.flag("do_lower_case")?;
        let Some(calls) = config.object("processing_kwargs")? else {
            return self.read_output(&config, pooling);
        };
        for key in ["common", "text"] {
            let Some(arguments) = calls.object(key)? else { continue };
            self.max_length = limit(&arguments, "max_length")?.or(self.max_length);
            for (key, value) in arguments.fields() {
                let harmless = match key.as_str() {
                    "max_length" | "padding" | "padding_side" | "pad_to_multiple_of" | "verbose" => true,
                    "truncation" => {
                        !matches!(value.as_str(), Some("do_not_truncate")) && value != &Value::Bool(false)
                    }
                    "add_special_tokens" => value == &Value::Bool(true),
                    other => other.starts_with("return_"),
                };
                if !harmless && !value.is_null() {
                    bail!(
                        "{}: this argument of the tokenizer is not supported",
                        arguments.wrong(key, value, "left out")
                    )
                }
            }
        }
        self.read_output(&config, pooling)
    }

    /// `modality_config` and `module_output_name`: what the encoder gives to the next module.
    fn read_output(&mut self, config: &Config, pooling: Option<&Pooling>) -> Result<()> {
        let Some(modalities) = config.object("modality_config")? else { return Ok(()) };
        if self.purpose.is_some() || pooling.is_some() {
            return Ok(());
        }
        let Some(text) = modalities.object("text")? else {
            bail!(
                "{}: \"modality_config\" has no entry for text; choose another model",
                config.path().display()
            )
        };
        let method = text.string("method")?.unwrap_or_default();
        let output = text.get("method_output_name").and_then(Value::as_str).unwrap_or_default();
        match (method, output, config.string("module_output_name")?.unwrap_or_default()) {
            ("forward", "last_hidden_state", "token_embeddings") => {}
            ("forward", "pooler_output", "sentence_embedding") => {
                self.pooling = Some(PoolingModule::pooler(config.path()));
            }
            (_, _, name) => bail!(
                "{}: taking {name:?} from {} of the encoder's {method:?} is not supported; pass --pooling",
                config.path().display(),
                text.get("method_output_name").unwrap_or(&Value::Null)
            ),
        }
        Ok(())
    }

    /// The dimensions of a text's vector for pooled vectors of so many, or the first head that does not take what
    /// comes to it, and how many dimensions that has.
    pub fn outputs(&self, pooled: usize) -> Result<usize, (&HeadModule, usize)> {
        self.heads.iter().try_fold(pooled, |width, head| match head.spec.inputs() {
            Some(inputs) if inputs != width => Err((head, width)),
            _ => Ok(head.spec.outputs(width)),
        })
    }
}

/// The configuration of the Transformer module in a folder, by the first of its names that says anything.
fn transformer_config(folder: &Path) -> Result<Option<Config>> {
    for name in SENTENCE_CONFIGS {
        let path = folder.join(name);
        if !is_listed(&path) {
            continue;
        }
        let config = Config::read(&path)?;
        if !config.fields().is_empty() {
            return Ok(Some(config));
        }
    }
    Ok(None)
}

/// The model whose `modules.json` names this folder as its encoder: a user who passes the encoder loses what follows it.
pub fn whole_model(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok().filter(|folder| !is_listed(&folder.join("modules.json")))?;
    let (name, parent) = (folder.file_name()?.to_str()?, folder.parent()?);
    let modules = read_modules(&parent.join("modules.json")).ok()?;
    modules.iter().any(|module| module.is_encoder() && module.place == name).then(|| parent.to_owned())
}

/// An entry of `modules.json`.
pub(super) struct Module {
    /// Its type: a class with the packages around it.
    kind: String,
    /// Its folder; empty for the model's own.
    place: String,
}

impl Module {
    /// The last component of its type: the packages of sentence-transformers have moved between releases, the names have
    /// not.
    fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or(&self.kind)
    }

    /// Whether the class is not of sentence-transformers, so that nobody knows what it does.
    fn is_custom(&self) -> bool {
        self.kind.contains('.') && !self.kind.starts_with("sentence_transformers.")
    }

    fn is_encoder(&self) -> bool {
        matches!(self.name(), "Transformer" | "MLMTransformer")
    }

    /// The folder of the encoder's own files, if this is the encoder.
    pub fn encoder(&self) -> Option<&str> {
        self.is_encoder().then_some(&*self.place)
    }

    /// The files without which the module does not load.
    pub fn files(&self) -> Vec<String> {
        let names: &[&str] = match self.name() {
            "Pooling" => &["config.json"],
            "Dense" | "LayerNorm" => &["config.json", "model.safetensors"],
            _ => &[],
        };
        names.iter().map(|name| Path::new(&self.place).join(name).display().to_string()).collect()
    }
}

/// The entries of `modules.json`, in their order.
pub(super) fn read_modules(path: &Path) -> Result<Vec<Module>> {
    let modules = read_json(path)?;
    let Some(modules) = modules.as_array() else {
        bail!("{} does not hold a list of modules; fix the file", path.display())
    };
    let module = |module: &Value| {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let (Some(kind), Some(place)) = (text("type"), text("path")) else {
            bail!("{}: a module has no \"type\" or no \"path\"; fix the file", path.display())
        };
        if Path::new(place).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            bail!("{}: the module {place:?} lies outside of the model; fix the file", path.display())
        }
        Ok(Module { kind: kind.to_owned(), place: place.to_owned() })
    };
    modules.iter().map(module).collect()
}

/// `model_max_length` of `tokenizer_config.json`, and whether its `truncation_side` is the left; tokenizers without a
/// limit write an absurd one, 1e30.
fn truncation(path: &Path) -> Result<(Option<usize>, bool)> {
    if !is_listed(path) {
        return Ok((None, false));
    }
    let fields = read_json_object(path)?;
    let limit = fields.get("model_max_length").and_then(Value::as_f64);
    let left = match fields.get("truncation_side") {
        None | Some(Value::Null) => false,
        Some(Value::String(side)) if side == "right" => false,
        Some(Value::String(side)) if side == "left" => true,
        Some(other) => bail!(
            "{}: \"truncation_side\" is {other}, but has to be left or right; fix the file",
            path.display()
        ),
    };
    Ok((limit.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize), left))
}
