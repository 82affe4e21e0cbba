//! The SpladePooling module.

use std::path::Path;

use anyhow::{Result, bail};

use super::fields;
use crate::nn::SpladeSpec;

/// Reads the module's `config.json`.
pub(super) fn read(path: &Path) -> Result<SpladeSpec> {
    let config = fields::SPLADE_POOLING.read(path)?;
    let sums = match config.string("pooling_strategy")?.unwrap_or("max") {
        "max" => false,
        "sum" => true,
        other => bail!("{}", config.invalid("pooling_strategy", format!("{other:?}"), "max or sum")),
    };
    let is_double_log = match config.string("activation_function")?.unwrap_or("relu") {
        "relu" => false,
        "log1p_relu" => true,
        other => {
            bail!("{}", config.invalid("activation_function", format!("{other:?}"), "relu or log1p_relu"))
        }
    };
    Ok(SpladeSpec { sums, is_double_log })
}
