//! `sconce download`: brings a model into the cache.

use anyhow::{Result, bail};

use crate::model::Source;
use crate::model::files::ModelFiles;
use crate::output::print;

/// Downloads what is not in the cache yet and prints the folder of the model.
///
/// # Errors
/// If the hub refuses or cannot be reached.
pub fn download(source: &Source) -> Result<()> {
    let files = ModelFiles::locate(source)?;
    if let Some(warning) = files.warning {
        bail!(warning)
    }
    print(format!("{}\n", files.folder.display()).as_bytes())
}
