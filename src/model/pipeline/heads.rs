//! The modules after pooling.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::disk::is_listed;
use crate::model::CONVERT_PIPELINE;
use crate::model::config::Config;
use crate::model::names::Names;
use crate::nn::{Activation, HeadSpec};

/// A module after pooling.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadModule {
    /// What it computes.
    pub spec: HeadSpec,
    /// Its folder.
    pub folder: PathBuf,
}

/// What the module's own file calls the tensors.
pub static NAMES: Names = Names {
    prefixes: &[""],
    outside: &[&[("head.linear", "linear"), ("head.residual", "residual"), ("head.norm", "norm")]],
    layer: "",
    inside: &[],
};

/// Classes of `torch.nn`; what they take when they are built has its default.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("Identity", Activation::Identity),
    ("Tanh", Activation::Tanh),
    ("GELU", Activation::Gelu),
    ("ReLU", Activation::Relu),
    ("ReLU6", Activation::Relu6),
    ("LeakyReLU", Activation::LeakyRelu),
    ("Sigmoid", Activation::Sigmoid),
    ("SiLU", Activation::Silu),
    ("Hardswish", Activation::HardSwish),
    ("Mish", Activation::Mish),
];

/// What a module reads and writes where its file does not say.
const SENTENCES: &str = "sentence_embedding";

impl HeadModule {
    /// A `Dense` module.
    pub(super) fn dense(folder: PathBuf) -> Result<Self> {
        let config = Config::read(&folder.join("config.json"))?;
        on_sentences(&config)?;
        let sizes = 1..=1 << 24;
        let spec = HeadSpec::Dense {
            inputs: config.size("in_features", sizes.clone())?,
            outputs: config.size("out_features", sizes)?,
            bias: config.flag_or("bias", true)?,
            activation: activation(&config)?,
            residual: config.flag("use_residual")?,
        };
        Ok(HeadModule { spec, folder })
    }

    /// A `LayerNorm` module.
    pub(super) fn layer_norm(folder: PathBuf) -> Result<Self> {
        let config = Config::read(&folder.join("config.json"))?;
        let spec = HeadSpec::LayerNorm { width: config.size("dimension", 1..=1 << 24)? };
        Ok(HeadModule { spec, folder })
    }

    /// A `Normalize` module, which older releases save without a file.
    pub(super) fn normalize(folder: PathBuf) -> Result<Self> {
        let path = folder.join("config.json");
        if is_listed(&path) {
            on_sentences(&Config::read(&path)?)?;
        }
        Ok(HeadModule { spec: HeadSpec::Normalize, folder })
    }

    /// The file that describes the module.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config.json")
    }

    /// The module's weights; `None` if it needs none.
    ///
    /// # Errors
    /// If there are none in safetensors form.
    pub fn weights(&self) -> Result<Option<PathBuf>> {
        if self.spec == HeadSpec::Normalize {
            return Ok(None);
        }
        let path = self.folder.join("model.safetensors");
        let folder = self.folder.display();
        if is_listed(&path) {
            return Ok(Some(path));
        }
        if is_listed(&self.folder.join("pytorch_model.bin")) {
            bail!("{folder} has its weights only as pytorch_model.bin; {CONVERT_PIPELINE}")
        }
        bail!("{folder} has no model.safetensors; fetch the model again")
    }
}

/// Refuses a module that is not for the vectors of sentences.
fn on_sentences(config: &Config) -> Result<()> {
    for key in ["module_input_name", "module_output_name"] {
        if let Some(name) = config.string(key)?.filter(|name| *name != SENTENCES) {
            bail!(
                "{}: other modules are not supported",
                config.wrong(key, format!("{name:?}"), &format!("{SENTENCES:?}"))
            )
        }
    }
    Ok(())
}

/// The activation of a `Dense` module: a class of torch, and tanh where none is named.
fn activation(config: &Config) -> Result<Activation> {
    const KEY: &str = "activation_function";
    let Some(class) = config.string(KEY)? else { return Ok(Activation::Tanh) };
    let name = class.strip_prefix("torch.").and_then(|class| class.rsplit('.').next());
    match ACTIVATIONS.iter().find(|(known, _)| name == Some(known)) {
        Some((_, activation)) => Ok(*activation),
        None => {
            let known: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            bail!(
                "{}",
                config.wrong(
                    KEY,
                    format!("{class:?}"),
                    &format!("a class of torch.nn: {}", known.join(", "))
                )
            )
        }
    }
}
