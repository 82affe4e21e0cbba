//! Post-pooling modules: their files, and their weights.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::fields;
use crate::checkpoint::Checkpoint;
use crate::model::config::Config;
use crate::model::layout::{CONFIG, MODULE_WEIGHTS};
use crate::named::{Named, names};
use crate::nn::{Activation, PostPoolingSpec, TorchActivation, VectorFunction};
use crate::sys::regular_file::has_dir_entry;

/// A post-pooling module of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PostPoolingModule {
    /// The computation.
    pub spec: PostPoolingSpec,
    /// Its directory.
    pub folder: PathBuf,
    /// Where its tensors are.
    pub storage: Storage,
}

/// Where the tensors of a module are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In a checkpoint in the module's folder, beside its configuration.
    Folder,
    /// In the checkpoint of the encoder.
    Encoder,
    /// `weight` and `bias` of a linear layer in this file, which has nothing else.
    Linear(&'static str),
}

/// Activation classes of `torch.nn`, with their default arguments; dropout is the identity outside training.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("Identity", Activation::Identity),
    ("Dropout", Activation::Identity),
    ("AlphaDropout", Activation::Identity),
    ("FeatureAlphaDropout", Activation::Identity),
    ("Tanh", Activation::Tanh),
    ("GELU", Activation::Gelu),
    ("ReLU", Activation::Relu),
    ("ReLU6", Activation::Relu6),
    ("LeakyReLU", Activation::LeakyRelu),
    ("Sigmoid", Activation::Sigmoid),
    ("SiLU", Activation::Silu),
    ("Hardswish", Activation::HardSwish),
    ("Mish", Activation::Mish),
    ("PReLU", Activation::Prelu { slope: 0.25 }),
];

/// The other ones. ELU and CELU are the same with their default arguments.
const FUNCTIONS: &[(&str, VectorFunction)] = &[
    ("ELU", VectorFunction::Elu),
    ("CELU", VectorFunction::Elu),
    ("SELU", VectorFunction::Selu),
    ("Softplus", VectorFunction::Softplus),
    ("Softsign", VectorFunction::Softsign),
    ("LogSigmoid", VectorFunction::LogSigmoid),
    ("Hardtanh", VectorFunction::Hardtanh),
    ("Hardsigmoid", VectorFunction::Hardsigmoid),
    ("Hardshrink", VectorFunction::Hardshrink),
    ("Softshrink", VectorFunction::Softshrink),
    ("Tanhshrink", VectorFunction::Tanhshrink),
    ("RReLU", VectorFunction::Rrelu),
    ("Softmax", VectorFunction::Softmax),
    ("Softmin", VectorFunction::Softmin),
    ("LogSoftmax", VectorFunction::LogSoftmax),
];

/// What a module reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModuleInput {
    /// The vector of a text, after pooling.
    Sentence,
    /// The vector of each token, in a multi-vector model.
    Tokens,
}

impl ModuleInput {
    /// The field of the configuration of a module.
    pub(super) const KEY: &str = "module_input_name";
}

names!(ModuleInput { Sentence => "sentence_embedding", Tokens => "token_embeddings" });

/// The projection of an original ColBERT checkpoint, and of voyage-4-nano.
pub const PROJECTION: &str = "linear.weight";

impl PostPoolingModule {
    /// A `Dense` module.
    pub(super) fn dense(folder: PathBuf, input: ModuleInput) -> Result<Self> {
        let config = Config::read(&folder.join(CONFIG))?;
        check_input_and_output(&config, input)?;
        let spec = PostPoolingSpec::Dense {
            inputs: config.width("in_features")?,
            outputs: config.width("out_features")?,
            bias: config.flag_or("bias", true)?,
            activation: activation(&config, input)?,
            residual: config.flag("use_residual")?,
        };
        Ok(PostPoolingModule { spec, folder, storage: Storage::Folder })
    }

    /// A linear layer with a bias, in a file of its own.
    pub(super) fn linear(folder: &Path, file: &'static str) -> Result<Self> {
        let path = folder.join(file);
        let checkpoint = Checkpoint::open(&path)?;
        let Some(&[outputs, inputs]) = checkpoint.shape("weight") else {
            bail!("{} has no matrix \"weight\" of a linear layer; download the model again", path.display())
        };
        let activation = Activation::Identity.into();
        let spec = PostPoolingSpec::Dense { inputs, outputs, bias: true, activation, residual: false };
        Ok(PostPoolingModule { spec, folder: folder.to_owned(), storage: Storage::Linear(file) })
    }

    /// A projection of the vector of each token, a linear layer without a bias beside the tensors of the
    /// encoder.
    pub(super) fn projection(folder: &Path) -> Result<Self> {
        let path = weights_in(folder)?;
        let checkpoint = Checkpoint::open(&path)?;
        let Some(&[outputs, inputs]) = checkpoint.shape(PROJECTION) else {
            bail!(
                "{} has no matrix {PROJECTION}, the projection of the vectors; choose another model",
                path.display()
            )
        };
        let activation = Activation::Identity.into();
        let spec = PostPoolingSpec::Dense { inputs, outputs, bias: false, activation, residual: false };
        Ok(PostPoolingModule { spec, folder: folder.to_owned(), storage: Storage::Encoder })
    }

    /// A `LayerNorm` module.
    pub(super) fn layer_norm(folder: PathBuf) -> Result<Self> {
        let config = fields::LAYER_NORM.read(&folder.join(CONFIG))?;
        let spec = PostPoolingSpec::LayerNorm { width: config.width("dimension")? };
        Ok(PostPoolingModule { spec, folder, storage: Storage::Folder })
    }

    /// A `Normalize` module, which older releases of sentence-transformers save without a file.
    pub(super) fn normalize(folder: PathBuf, input: ModuleInput) -> Result<Self> {
        let path = folder.join(CONFIG);
        if has_dir_entry(&path) {
            check_input_and_output(&Config::read(&path)?, input)?;
        }
        Ok(PostPoolingModule { spec: PostPoolingSpec::Normalize, folder, storage: Storage::Folder })
    }

    /// The quantizer of pplx-embed, which has no file.
    pub(super) fn tanh_int8(folder: PathBuf) -> Self {
        PostPoolingModule { spec: PostPoolingSpec::TanhInt8, folder, storage: Storage::Folder }
    }

    /// The path of the module's configuration: the file that gives its sizes.
    pub fn config(&self) -> PathBuf {
        match self.storage {
            Storage::Folder | Storage::Encoder => self.folder.join(CONFIG),
            Storage::Linear(file) => self.folder.join(file),
        }
    }

    /// The path of the module's weights; `None` if it has none.
    pub fn weights(&self) -> Result<Option<PathBuf>> {
        match self.storage {
            _ if matches!(self.spec, PostPoolingSpec::Normalize | PostPoolingSpec::TanhInt8) => Ok(None),
            Storage::Linear(file) => Ok(Some(self.folder.join(file))),
            Storage::Folder | Storage::Encoder => weights_in(&self.folder).map(Some),
        }
    }
}

/// The path of the weights in the folder of a module.
pub(super) fn weights_in(folder: &Path) -> Result<PathBuf> {
    let mut paths = MODULE_WEIGHTS.iter().map(|name| folder.join(name));
    paths.find(|path| has_dir_entry(path)).ok_or_else(|| {
        let folder = folder.display();
        anyhow!("{folder} has no model.safetensors and no pytorch_model.bin; download the model again")
    })
}

/// Fails if a module reads or writes anything else.
fn check_input_and_output(config: &Config, input: ModuleInput) -> Result<()> {
    for key in [ModuleInput::KEY, "module_output_name"] {
        if let Some(name) = config.string(key)?.filter(|name| *name != input.name()) {
            bail!(
                "{}; other inputs and outputs are not supported",
                config.invalid(key, format!("{name:?}"), &format!("{:?}", input.name()))
            )
        }
    }
    Ok(())
}

/// The activation of a `Dense` module: a class of torch.nn; tanh without the field.
fn activation(config: &Config, input: ModuleInput) -> Result<TorchActivation> {
    const KEY: &str = "activation_function";
    let Some(class) = config.string(KEY)? else { return Ok(Activation::Tanh.into()) };
    let invalid = |expected: &str| anyhow!("{}", config.invalid(KEY, format!("{class:?}"), expected));
    match torch_activation(class) {
        // With its default arguments, the softmax of PyTorch is over the texts of a batch there.
        Ok(TorchActivation::Vector(function))
            if input == ModuleInput::Tokens && function.is_of_all_elements() =>
        {
            Err(invalid("a function of each element, since the module takes the vectors of tokens"))
        }
        Ok(activation) => Ok(activation),
        Err(known) => Err(invalid(&known)),
    }
}

/// The activation of a class of torch.nn, by its path in PyTorch.
pub fn torch_activation(path: &str) -> Result<TorchActivation, String> {
    let name = path.strip_prefix("torch.").and_then(|path| path.rsplit('.').next()).unwrap_or_default();
    let fused = ACTIVATIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| (*function).into());
    let other = || FUNCTIONS.iter().find(|(known, _)| *known == name);
    fused.or_else(|| other().map(|(_, function)| TorchActivation::Vector(*function))).ok_or_else(|| {
        let names = ACTIVATIONS.iter().map(|(name, _)| *name).chain(FUNCTIONS.iter().map(|(name, _)| *name));
        format!("a class of torch.nn: {}", names.collect::<Vec<_>>().join(", "))
    })
}
