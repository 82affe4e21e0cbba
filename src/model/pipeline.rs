//! The model's own way from hidden states to a vector, as sentence-transformers saves it: `modules.json`, a folder
//! for each module, `sentence_bert_config.json` and `config_sentence_transformers.json`.

mod heads;
mod pooling;
mod prompts;

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{read_json, read_json_object};
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
}

impl Pipeline {
    /// Reads the pipeline files of a model folder; a folder without `modules.json` has no pooling of its own. Where
    /// the user has chosen a `pooling`, it takes the place of what the files say.
    ///
    /// # Errors
    /// If a file does not parse, or asks for a module that is not supported.
    pub fn read(folder: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let (max_length, cut_left) = truncation(&folder.join("tokenizer_config.json"))?;
        let mut pipeline = Pipeline { max_length, cut_left, ..Pipeline::default() };
        let path = folder.join("modules.json");
        if !is_listed(&path) {
            return Ok(pipeline);
        }
        (pipeline.prompts, pipeline.dimensions) =
            prompts::read(&folder.join("config_sentence_transformers.json"))?;
        for module in read_modules(&path)? {
            pipeline.add(folder, &path, &module, pooling)?;
        }
        Ok(pipeline)
    }

    fn add(&mut self, folder: &Path, list: &Path, module: &Module, pooling: Option<&Pooling>) -> Result<()> {
        let Module { kind, place } = module;
        let head = match kind.as_str() {
            "Transformer" if place.is_empty() => return self.read_transformer(folder),
            "Transformer" => bail!(
                "{}: the encoder lies in the subfolder {place:?}; pass that folder as the model",
                list.display()
            ),
            "Pooling" if self.pooling.is_some() => {
                bail!("{} has a second Pooling, {place:?}; only one is supported", list.display())
            }
            "Pooling" => {
                self.pooling = Some(PoolingModule::read(&folder.join(place).join("config.json"), pooling)?);
                return Ok(());
            }
            // Does nothing outside of training.
            "Dropout" => return Ok(()),
            "Dense" | "LayerNorm" | "Normalize" if self.pooling.is_none() => bail!(
                "{}: module {kind} ({place:?}) stands before Pooling, which is not supported; choose another model",
                list.display()
            ),
            "Dense" => HeadModule::dense(folder.join(place))?,
            "LayerNorm" => HeadModule::layer_norm(folder.join(place))?,
            "Normalize" => HeadModule::normalize(folder.join(place))?,
            other => bail!("{}: module {other} is not supported; choose another model", list.display()),
        };
        self.heads.push(head);
        Ok(())
    }

    /// `sentence_bert_config.json`: the limit and the casing of the encoder's input.
    fn read_transformer(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join("sentence_bert_config.json");
        if !is_listed(&path) {
            return Ok(());
        }
        let fields = read_json_object(&path)?;
        if let Some(value) = fields.get("max_seq_length").filter(|value| !value.is_null()) {
            match value.as_u64().filter(|n| *n > 0) {
                Some(n) => self.max_length = Some(n as usize),
                None => bail!("{}: \"max_seq_length\" is {value}, not a number of tokens", path.display()),
            }
        }
        self.lowercase = fields.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
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

/// An entry of `modules.json`.
pub(super) struct Module {
    /// The last component of its type: the packages around it have moved between releases, the names have not.
    kind: String,
    /// Its folder; empty for the model's own.
    place: String,
}

impl Module {
    /// The files without which the module does not load.
    pub fn files(&self) -> Vec<String> {
        let names: &[&str] = match self.kind.as_str() {
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
        bail!("{} does not hold a list of modules; fetch the file again", path.display())
    };
    let module = |module: &Value| {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let (Some(kind), Some(place)) = (text("type"), text("path")) else {
            bail!("{}: a module has no \"type\" or no \"path\"; fetch the file again", path.display())
        };
        if Path::new(place).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            bail!("{}: the module {place:?} lies outside of the model; fetch the file again", path.display())
        }
        let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
        Ok(Module { kind, place: place.to_owned() })
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
            "{}: \"truncation_side\" is {other}, but has to be left or right; mend the file",
            path.display()
        ),
    };
    Ok((limit.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize), left))
}
