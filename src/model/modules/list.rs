//! `modules.json`: the list of modules.

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::model::json::read_json;
use crate::model::layout::{MODULES, module_files};
use crate::sys::regular_file::has_dir_entry;

/// An entry of `modules.json`.
pub struct Module {
    /// Its class, with the packages around it.
    pub module_type: String,
    /// Its folder below the model's; empty for the model's own.
    pub path: String,
}

impl Module {
    /// The last component of its type. Packages of sentence-transformers have moved between releases, classes kept their names.
    pub fn class(&self) -> &str {
        self.module_type.rsplit('.').next().unwrap_or(&self.module_type)
    }

    /// Whether the class is not one of sentence-transformers', so that its computation is unknown.
    pub fn is_custom(&self) -> bool {
        self.module_type.contains('.') && !self.module_type.starts_with("sentence_transformers.")
    }

    /// Whether the module is the encoder.
    pub fn is_encoder(&self) -> bool {
        matches!(self.class(), "Transformer" | "MLMTransformer")
    }

    /// The files that the module needs, relative to the model's directory: one of each list.
    pub fn files(&self) -> Vec<Vec<String>> {
        let path = |name: &&str| Path::new(&self.path).join(name).display().to_string();
        module_files(self.class()).iter().map(|names| names.iter().map(path).collect()).collect()
    }
}

/// The entries of `modules.json`, in order.
///
/// # Errors
/// If the file cannot be read, holds no list of modules, or a module's folder is outside the model's directory.
pub fn read_modules(path: &Path) -> Result<Vec<Module>> {
    let modules = read_json(path)?;
    let Some(modules) = modules.as_array() else {
        bail!("{} does not hold a list of modules; fix the file", path.display())
    };
    let module = |module: &Value| {
        let string = |key: &str| module.get(key).and_then(Value::as_str);
        let (Some(module_type), Some(folder)) = (string("type"), string("path")) else {
            bail!("{}: a module has no \"type\" or no \"path\"; fix the file", path.display())
        };
        if Path::new(folder).components().any(|part| !matches!(part, Component::Normal(_))) {
            bail!(
                "{}: the module path {folder:?} is outside the model's directory; fix the file",
                path.display()
            )
        }
        Ok(Module { module_type: module_type.to_owned(), path: folder.to_owned() })
    };
    modules.iter().map(module).collect()
}

/// The directory above `folder` if its `modules.json` names `folder` as the encoder: a user who passes the encoder's folder
/// loses the modules after it.
pub fn parent_model(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok().filter(|folder| !has_dir_entry(&folder.join(MODULES)))?;
    let (name, parent) = (folder.file_name()?.to_str()?, folder.parent()?);
    let modules = read_modules(&parent.join(MODULES)).ok()?;
    modules.iter().any(|module| module.is_encoder() && module.path == name).then(|| parent.to_owned())
}
