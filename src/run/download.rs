//! `sconce download`: downloads a model into the cache, with the base model of an adapter.

use anyhow::{Result, bail};

use crate::hub::{ModelDir, Source};
use crate::store::print;

/// Downloads the files that are not in the cache yet and prints the path of the model.
pub fn download(source: &Source) -> Result<()> {
    let files = ModelDir::locate(source, &[])?.with_base(source)?;
    if let Some(warning) = files.warning {
        bail!(warning)
    }
    let missing = files.missing_files();
    if !missing.is_empty() {
        bail!(
            "{} does not have {}; add what is missing, or pass the id of a model on the hub",
            files.folder.display(),
            missing.join(", ")
        )
    }
    print(format!("{}\n", files.folder.display()).as_bytes())
}
