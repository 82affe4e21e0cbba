//! Post-pooling modules: what sentence-transformers runs on the vector of a sequence after pooling (Dense,
//! LayerNorm, Normalize, and modules of models' own), and BERT's pooler.

use std::fmt;

use anyhow::Result;
use candle_core::Tensor;

use super::feed_forward::load_activation;
use super::head_transform::on_cpu;
use super::linear::Linear;
use super::norm::Norm;
use super::{
    Activation, EncoderSpec, Isa, NormKind, NormSpec, PoolerDense, Pooling, TorchActivation, WeightSource,
    l2_normalize,
};

/// The computation of a post-pooling module.
#[derive(Debug, Clone, PartialEq)]
pub enum PostPoolingSpec {
    /// A linear layer with an activation.
    Dense {
        /// Dimensions of the input.
        inputs: usize,
        /// Dimensions of the output.
        outputs: usize,
        /// Whether the linear layer has a bias.
        bias: bool,
        /// Activation of the output.
        activation: TorchActivation,
        /// Whether the input is added to the output, through a second matrix where the dimensions differ.
        residual: bool,
    },
    /// LayerNorm over the dimensions of a vector.
    LayerNorm {
        /// Dimensions of the vector.
        width: usize,
    },
    /// Division by the L2 norm.
    Normalize,
    /// `round(127 · tanh(x))`: values of int8, as f32.
    TanhInt8,
}

impl PostPoolingSpec {
    /// Dimensions of the input; `None`: any number.
    pub fn inputs(&self) -> Option<usize> {
        match self {
            PostPoolingSpec::Dense { inputs, .. } => Some(*inputs),
            PostPoolingSpec::LayerNorm { width } => Some(*width),
            PostPoolingSpec::Normalize | PostPoolingSpec::TanhInt8 => None,
        }
    }

    /// Dimensions of the output for an input of `inputs` dimensions.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            PostPoolingSpec::Dense { outputs, .. } => *outputs,
            PostPoolingSpec::LayerNorm { .. } | PostPoolingSpec::Normalize | PostPoolingSpec::TanhInt8 => {
                inputs
            }
        }
    }
}

impl fmt::Display for PostPoolingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostPoolingSpec::Dense { inputs, outputs, bias, activation, residual } => {
                let bias = if *bias { "" } else { ", no bias" };
                let residual = if *residual { ", residual" } else { "" };
                write!(f, "dense {inputs} → {outputs}, {activation}{bias}{residual}")
            }
            PostPoolingSpec::LayerNorm { width } => write!(f, "layer norm of {width}"),
            PostPoolingSpec::Normalize => f.write_str("normalize"),
            PostPoolingSpec::TanhInt8 => f.write_str("round(127 · tanh(x))"),
        }
    }
}

/// A post-pooling module with its weights. Each row is computed from itself alone, so that a vector does not
/// depend on its batch.
pub enum PostPooling {
    /// See [`PostPoolingSpec::Dense`].
    Dense(Box<Dense>),
    /// See [`PostPoolingSpec::LayerNorm`].
    LayerNorm(Norm),
    /// See [`PostPoolingSpec::Normalize`].
    Normalize,
    /// See [`PostPoolingSpec::TanhInt8`].
    TanhInt8,
}

/// What becomes of vectors after all modules, without weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorStep {
    /// Keeps this many of the first dimensions (Matryoshka embeddings, Kusupati et al. 2022).
    Truncate(usize),
    /// See [`PostPoolingSpec::Normalize`].
    Normalize,
}

impl VectorStep {
    /// Changes vectors of `width` dimensions each, concatenated, and returns their dimensions then.
    pub fn apply(self, vectors: &mut Vec<f32>, width: usize) -> usize {
        match self {
            VectorStep::Normalize => {
                let isa = Isa::selected();
                vectors.chunks_mut(width).for_each(|vector| l2_normalize(isa, vector));
                width
            }
            VectorStep::Truncate(dimensions) => {
                let rows = vectors.len() / width;
                for row in 1..rows {
                    vectors.copy_within(row * width..row * width + dimensions, row * dimensions);
                }
                vectors.truncate(rows * dimensions);
                dimensions
            }
        }
    }
}

/// `f(x Wᵀ + b)`, and with a residual `+ x` or `+ x Rᵀ`.
pub struct Dense {
    linear: Linear,
    activation: TorchActivation,
    residual: Option<Residual>,
}

enum Residual {
    Identity,
    Projected(Linear),
}

impl PostPooling {
    /// Loads a module: for Dense `NAME.linear.weight` of `(outputs, inputs)`, `NAME.linear.bias` of
    /// `(outputs)` and `NAME.residual.weight` of `(outputs, inputs)`, and `NAME.activation.weight` of `(1)`
    /// where the activation has it; for LayerNorm `NAME.norm.weight` and `NAME.norm.bias` of `(width)`.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(source: &mut dyn WeightSource, name: &str, spec: &PostPoolingSpec) -> Result<Self> {
        match *spec {
            PostPoolingSpec::Dense { inputs, outputs, bias, activation, residual } => {
                let linear = Linear::load(source, &format!("{name}.linear"), inputs, outputs, bias)?;
                let residual = if !residual {
                    None
                } else if inputs == outputs {
                    Some(Residual::Identity)
                } else {
                    let name = format!("{name}.residual");
                    Some(Residual::Projected(Linear::load(source, &name, inputs, outputs, false)?))
                };
                let activation = match activation {
                    TorchActivation::Fused(activation) => {
                        load_activation(activation, source, &format!("{name}.activation"))?.into()
                    }
                    vector => vector,
                };
                Ok(PostPooling::Dense(Box::new(Dense { linear, activation, residual })))
            }
            PostPoolingSpec::LayerNorm { width } => {
                // The default eps of torch.nn.LayerNorm: the module's config.json has no field for it.
                let spec = NormSpec { kind: NormKind::Layer, bias: true, unit_offset: false, eps: 1e-5 };
                Ok(PostPooling::LayerNorm(Norm::load(source, &format!("{name}.norm"), width, spec)?))
            }
            PostPoolingSpec::Normalize => Ok(PostPooling::Normalize),
            PostPoolingSpec::TanhInt8 => Ok(PostPooling::TanhInt8),
        }
    }

    /// Loads the linear layer of the encoder's own pooler if it has one and `pooling` needs it:
    /// `pooler.weight` of `(outputs, H)` and `pooler.bias` of `(outputs)`.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load_pooler(
        source: &mut dyn WeightSource,
        pooling: &Pooling,
        spec: &EncoderSpec,
    ) -> Result<Option<Self>> {
        let Some(PoolerDense { outputs, bias, activation }) =
            spec.pooler.dense.filter(|_| pooling.needs_pooler())
        else {
            return Ok(None);
        };
        let linear = Linear::load(source, "pooler", spec.hidden_size, outputs, bias)?;
        let activation = activation.into();
        Ok(Some(PostPooling::Dense(Box::new(Dense { linear, activation, residual: None }))))
    }

    /// `(N, inputs)` → `(N, outputs)`.
    ///
    /// # Errors
    /// If `x` has other dimensions than the module's input.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        match self {
            PostPooling::Dense(dense) => dense.forward(&x),
            PostPooling::LayerNorm(norm) => norm.forward(x),
            PostPooling::Normalize => {
                let (rows, width) = x.dims2()?;
                let mut values = x.flatten_all()?.to_vec1::<f32>()?;
                VectorStep::Normalize.apply(&mut values, width);
                Ok(Tensor::from_vec(values, (rows, width), x.device())?)
            }
            PostPooling::TanhInt8 => {
                let mut values = x.flatten_all()?.to_vec1::<f32>()?;
                Activation::Tanh.apply(Isa::selected(), &mut values);
                values.iter_mut().for_each(|value| *value = (127.0 * *value).round_ties_even());
                Ok(Tensor::from_vec(values, x.shape(), x.device())?)
            }
        }
    }
}

impl Dense {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let projected = match &self.residual {
            Some(Residual::Projected(linear)) => Some(linear.forward(x, Activation::Identity)?),
            _ => None,
        };
        let residual = match self.residual {
            Some(Residual::Identity) => Some(x),
            _ => projected.as_ref(),
        };
        let function = match self.activation {
            TorchActivation::Fused(activation) => {
                return self.linear.forward_residual(x, activation, residual);
            }
            TorchActivation::Vector(function) => function,
        };
        let x = self.linear.forward(x, Activation::Identity)?;
        let (rows, width) = x.dims2()?;
        let mut values = x.flatten_all()?.to_vec1::<f32>()?;
        values.chunks_mut(width).for_each(|row| function.apply(row));
        let x = Tensor::from_vec(values, (rows, width), x.device())?;
        Ok(match residual {
            Some(residual) => (x + residual)?,
            None => x,
        })
    }
}

/// Hidden states of `(T, H)` after modules that run on the vector of each token, `(T, outputs)`, in f32 on
/// the CPU; as they are without any.
///
/// # Errors
/// As [`PostPooling::forward`].
pub fn apply_to_tokens(modules: &[PostPooling], hidden: &Tensor) -> Result<Tensor> {
    if modules.is_empty() {
        return Ok(hidden.clone());
    }
    modules.iter().try_fold(on_cpu(hidden)?, |x, module| module.forward(x))
}

/// Whether vectors have unit length after these modules: the last one normalises.
pub fn is_normalized(modules: &[PostPooling]) -> bool {
    matches!(modules.last(), Some(PostPooling::Normalize))
}
