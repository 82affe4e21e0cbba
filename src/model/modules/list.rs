//! `modules.json`: the list of modules, and `router_config.json`: those of a sparse encoder whose queries
//! need no encoder.

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use super::post_pooling::ModuleInput;
use crate::model::config::Config;
use crate::model::families::JINA_V5;
use crate::model::layout::{CONFIG, MODULES, ROUTER, module_files};
use crate::named::Named;
use crate::nn::Pool;
use crate::sys::model_json::read_json;
use crate::sys::regular_file::has_dir_entry;

/// The class of the module that weights the tokens of queries.
pub(super) const QUERY_WEIGHTS: &str = "SparseStaticEmbedding";

/// The class of the module with a CLIP model, whose text tower is an encoder with its own pooler.
pub(super) const CLIP_MODEL: &str = "CLIPModel";

/// An entry of `modules.json`.
pub struct Module {
    /// Its class, with the packages around it.
    pub module_type: String,
    /// Its folder below the model's; empty for the model's own.
    pub path: String,
    /// The configuration of the Router that it is a part of.
    pub router: Option<PathBuf>,
    /// Whether the Router chooses it for texts without a role; it is known for queries only.
    pub is_default: bool,
}

impl Module {
    /// The last component of its type. Packages of sentence-transformers have moved between releases, classes
    /// kept their names.
    pub fn class(&self) -> &str {
        self.module_type.rsplit('.').next().unwrap_or(&self.module_type)
    }

    /// Whether the class is not one of sentence-transformers', so that its computation is unknown.
    pub fn is_custom(&self) -> bool {
        self.module_type.contains('.') && !self.module_type.starts_with("sentence_transformers.")
    }

    /// Whether the module, which is in the directory `model`, says that it takes the vector of each token.
    pub(super) fn takes_tokens(&self, model: &Path) -> Result<bool> {
        let file = model.join(&self.path).join(CONFIG);
        Ok(has_dir_entry(&file)
            && Config::read(&file)?.string(ModuleInput::KEY)? == Some(ModuleInput::Tokens.name()))
    }

    /// Whether the module is the encoder.
    pub fn is_encoder(&self) -> bool {
        matches!(self.class(), "Transformer" | "MLMTransformer" | "StaticEmbedding" | CLIP_MODEL)
    }

    /// The pooling that an encoder module with this config does itself: that of CLIP, and of
    /// jina-embeddings-v5's own code.
    pub fn own_pooling(&self, config: &Path) -> Result<Option<Pool>> {
        let is_jina_v5 =
            || -> Result<bool> { Ok(Config::read(config)?.string("model_type")? == Some(JINA_V5)) };
        Ok(match self.class() {
            CLIP_MODEL => Some(Pool::Pooler),
            _ if self.is_custom() && is_jina_v5()? => Some(Pool::Last),
            _ => None,
        })
    }

    /// Whether the module has static embeddings.
    pub fn is_static(&self) -> bool {
        self.class() == "StaticEmbedding"
    }

    /// The files that the module needs, relative to the model's directory: one of each list.
    pub fn files(&self) -> Vec<Vec<String>> {
        let path = |name: &&str| Path::new(&self.path).join(name).display().to_string();
        module_files(self.class()).iter().map(|names| names.iter().map(path).collect()).collect()
    }
}

/// The entries of `modules.json`, in order; in place of a Router of a sparse encoder its modules, those of
/// documents first. Of a Dense module with a folder for each number of dimensions, the one for `dimensions`
/// if there is one.
pub fn read_modules(path: &Path, dimensions: Option<usize>) -> Result<Vec<Module>> {
    let modules = read_json(path)?;
    let Some(modules) = modules.as_array() else {
        bail!("{} does not hold a list of modules; fix the file", path.display())
    };
    let module = |module: &Value| -> Result<Module> {
        let string = |key: &str| module.get(key).and_then(Value::as_str);
        let (Some(module_type), Some(folder)) = (string("type"), string("path")) else {
            bail!("{}: a module has no \"type\" or no \"path\"; fix the file", path.display())
        };
        // A module in the model's own folder.
        let folder = if folder == "." { "" } else { folder };
        let folder = checked_folder(path, folder)?.to_owned();
        Ok(Module { module_type: module_type.to_owned(), path: folder, router: None, is_default: false })
    };
    let model = path.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for entry in modules {
        let mut module = module(entry)?;
        if let Some(dimensions) = dimensions {
            module.choose_size(model, dimensions);
        }
        let routed = if module.class() == "Router" { routed(model, &module.path)? } else { None };
        found.extend(routed.unwrap_or_else(|| vec![module]));
    }
    Ok(found)
}

/// The modules of a Router in the folder `path` of the model, if its routes are documents, which an encoder
/// reads, and queries, whose tokens have fixed weights; `None` for other routes.
fn routed(model: &Path, path: &str) -> Result<Option<Vec<Module>>> {
    let file = model.join(path).join(ROUTER);
    if !has_dir_entry(&file) {
        return Ok(None);
    }
    let config = Config::read(&file)?;
    let (Some(types), Some(structure)) = (config.object("types")?, config.object("structure")?) else {
        return Ok(None);
    };
    let route = |name: &str| {
        let ids = structure.get(name).and_then(Value::as_array)?;
        ids.iter().map(|id| id.as_str()).collect::<Option<Vec<&str>>>()
    };
    let parameters = config.object("parameters")?;
    let has_mappings = parameters.as_ref().and_then(|parameters| parameters.get("route_mappings"));
    let has_mappings = has_mappings.is_some_and(|map| map.as_object().is_none_or(|map| !map.is_empty()));
    let (Some(queries), Some(documents)) = (route("query"), route("document")) else { return Ok(None) };
    if structure.fields().len() != 2 || has_mappings {
        return Ok(None);
    }
    let default = match &parameters {
        Some(parameters) => parameters.string("default_route")?,
        None => None,
    };
    // Without a default, sentence-transformers takes the first route.
    let default = default.or(structure.fields().keys().next().map(String::as_str));
    let module = |id: &&str| -> Result<Module> {
        let module_type = types.string(id)?.unwrap_or_default().to_owned();
        let folder = checked_folder(&file, id)?;
        let path = PathBuf::from(path).join(folder).display().to_string();
        Ok(Module { module_type, path, router: Some(file.clone()), is_default: false })
    };
    let mut queries = queries.iter().map(module).collect::<Result<Vec<_>>>()?;
    let [query] = &mut queries[..] else { return Ok(None) };
    if query.class() != QUERY_WEIGHTS {
        return Ok(None);
    }
    query.is_default = default == Some("query");
    let documents = documents.iter().map(module).collect::<Result<Vec<_>>>()?;
    Ok(Some(documents.into_iter().chain(queries).collect()))
}

/// A folder that `file` names, which is below the model's directory.
fn checked_folder<'a>(file: &Path, folder: &'a str) -> Result<&'a str> {
    if Path::new(folder).components().any(|part| !matches!(part, Component::Normal(_))) {
        let file = file.display();
        bail!("{file}: the module path {folder:?} is outside the model's directory; fix the file")
    }
    Ok(folder)
}

/// The directory above `folder` if its `modules.json` names `folder` as the encoder: a user who passes the
/// encoder's folder loses the modules after it.
pub fn parent_model(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok().filter(|folder| !has_dir_entry(&folder.join(MODULES)))?;
    let (name, parent) = (folder.file_name()?.to_str()?, folder.parent()?);
    let modules = read_modules(&parent.join(MODULES), None).ok()?;
    modules.iter().any(|module| module.is_encoder() && module.path == name).then(|| parent.to_owned())
}
