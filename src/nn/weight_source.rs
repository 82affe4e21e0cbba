//! Where the weights of an encoder come from: a trait, and the sources that read no file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::{Backend, Component, EmbeddingTable, Matrix};
use crate::kernels::activation::XIELU_INIT;
use crate::kernels::gemm::{GemmType, PackedMatrix};
use crate::kernels::isa::Isa;

/// A source of weights, asked for by canonical name (`layers.0.0.attention.query.weight`) and shape.
///
/// An encoder is always built completely: a source that lacks a tensor notes it and returns a placeholder, so
/// that its report lists every fault. The caller reads that report before it runs the encoder.
///
/// Canonical names are part of the output of [`RandomWeights`]: a renamed matrix or table gets other random
/// values.
pub trait WeightSource {
    /// A tensor of `shape`.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// A tensor of `shape`, or `None` where the source has no such tensor.
    fn optional(&mut self, _name: &str, _shape: &[usize]) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Whether the source is a checkpoint that has this tensor. Sources that are no checkpoint give any
    /// tensor.
    fn has(&self, _name: &str) -> bool {
        false
    }

    /// An embedding table of `(rows, width)`.
    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<EmbeddingTable>;

    /// The matrix of a matmul, `(rows, columns)`.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        Ok(Matrix::new(self.tensor(name, &[rows, columns])?, self.backend())?)
    }

    /// The kernel of a 1-D convolution, stored as `(channels, channels, kernel_size)`, as the
    /// `(channels, kernel_size · channels)` matrix of a matmul over unfolded tokens.
    fn kernel(&mut self, name: &str, channels: usize, kernel_size: usize) -> Result<Matrix> {
        let kernel = self.tensor(name, &[channels, channels, kernel_size])?;
        // A placeholder, whose sizes no file has confirmed, takes no memory only as it is.
        if !kernel.is_contiguous() {
            return Ok(Matrix::Tensor(placeholder(&[channels, kernel_size.saturating_mul(channels)])?));
        }
        Ok(Matrix::new(kernel.transpose(1, 2)?.contiguous()?.flatten_from(1)?, self.backend())?)
    }

    /// `count` matrices in one tensor of `(count · rows, columns)`, each transposed to `(columns, rows)` if
    /// `is_transposed`.
    fn stacked_matrices(
        &mut self,
        name: &str,
        count: usize,
        [rows, columns]: [usize; 2],
        is_transposed: bool,
    ) -> Result<Vec<Matrix>> {
        let stack = self.tensor(name, &[count.saturating_mul(rows), columns])?;
        let matrix = |index: usize| {
            if !stack.is_contiguous() {
                let shape = if is_transposed { [columns, rows] } else { [rows, columns] };
                return Ok(Matrix::Tensor(placeholder(&shape)?));
            }
            let matrix = stack.narrow(0, index * rows, rows)?;
            let matrix = if is_transposed { matrix.t()? } else { matrix };
            Ok(Matrix::new(matrix.contiguous()?, self.backend())?)
        };
        (0..count).map(matrix).collect()
    }

    /// A constant that checkpoints hold beside the parameters, a buffer of the module in PyTorch.
    fn buffer(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.tensor(name, shape)
    }

    /// The device and type for the encoder; tensors are returned on this device.
    fn backend(&self) -> &Backend {
        &Backend::Cpu(GemmType::F32)
    }

    /// A check that the source has not changed since loading; `None` where nothing is read from it later.
    fn change_check(&self) -> Option<ChangeCheck> {
        None
    }
}

/// Fails if a file that weights are read from while the encoder runs has changed since it was loaded.
pub type ChangeCheck = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Random weights, initialised as BERT's: matrices and tables from a normal distribution with standard
/// deviation 0.02 (Devlin et al. 2019), biases 0, norm weights 1, learned activation parameters their initial
/// values. A value depends only on the seed, the name and the shape, not on the machine or on the order of
/// the calls.
pub struct RandomWeights {
    seed: u64,
    backend: Backend,
}

impl RandomWeights {
    /// Weights that follow from `seed`, on this backend.
    pub fn new(seed: u64, backend: Backend) -> Self {
        RandomWeights { seed, backend }
    }
}

impl WeightSource for RandomWeights {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        if let Some(value) = initial_activation_parameter(name) {
            return Ok(self.backend.transfer(Tensor::full(value, shape, &Device::Cpu)?)?);
        }
        let tensor = match shape {
            [_] if name.ends_with(".bias") => Tensor::zeros(shape, DType::F32, &Device::Cpu)?,
            [_] => Tensor::ones(shape, DType::F32, &Device::Cpu)?,
            _ => {
                let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
                rng.set_stream(fnv1a(name));
                let normal = Normal::new(0.0f32, 0.02).expect("0.02 is a standard deviation");
                let count = shape.iter().product();
                let values: Vec<f32> = normal.sample_iter(&mut rng).take(count).collect();
                Tensor::from_vec(values, shape, &Device::Cpu)?
            }
        };
        Ok(self.backend.transfer(tensor)?)
    }

    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<EmbeddingTable> {
        Ok(EmbeddingTable::resident(self.tensor(name, &[rows, width])?)?)
    }

    fn backend(&self) -> &Backend {
        &self.backend
    }
}

/// The initial value of a learned activation parameter; `None` for other tensors.
fn initial_activation_parameter(name: &str) -> Option<f32> {
    match name.rsplit_once(".activation.")?.1 {
        // torch.nn.PReLU
        "weight" => Some(0.25),
        parameter => XIELU_INIT.iter().find(|(known, _)| *known == parameter).map(|(_, value)| *value),
    }
}

/// Counts parameters without allocating any.
#[derive(Debug, Default)]
pub struct ParameterCount {
    /// Elements of all tensors without buffers; saturates.
    pub parameters: usize,
    /// The same by component.
    pub components: BTreeMap<Component, usize>,
    /// Bytes that the weights take in memory on the backend, without embedding tables; saturates.
    pub held_bytes: usize,
    /// Bytes of the embedding tables in f32, which an encoder from a checkpoint reads from the file row by
    /// row; saturates.
    pub table_bytes: usize,
    backend: Backend,
    /// Significant bits of the matrices' elements, which may take less memory with fewer of them.
    pub significand_bits: u32,
    /// Names of the tensors so far. A decoder may have the matrix of the token embeddings, whose parameters
    /// count once.
    names: BTreeSet<String>,
}

impl ParameterCount {
    /// A count of 0, for an encoder on this backend whose matrices have elements of `significand_bits` bits.
    pub fn new(backend: Backend, significand_bits: u32) -> Self {
        ParameterCount { backend, significand_bits, ..ParameterCount::default() }
    }

    /// Adds a tensor and returns the number of its elements.
    fn add(&mut self, name: &str, shape: &[usize]) -> usize {
        let elements = shape.iter().fold(1usize, |elements, n| elements.saturating_mul(*n));
        if !self.names.insert(name.to_owned()) {
            return elements;
        }
        self.parameters = self.parameters.saturating_add(elements);
        let of_component = self.components.entry(Component::of(name)).or_default();
        *of_component = of_component.saturating_add(elements);
        elements
    }

    /// Adds a matrix of `(rows, columns)`.
    fn add_matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        let elements = self.add(name, &[rows, columns]);
        let bytes = match &self.backend {
            Backend::Cpu(compute) => {
                PackedMatrix::packed_bytes(Isa::selected(), *compute, rows, columns, self.significand_bits)
            }
            Backend::Device { dtype, .. } => elements.saturating_mul(dtype.size_in_bytes()),
        };
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        Ok(Matrix::Tensor(placeholder(&[rows, columns])?))
    }
}

impl WeightSource for ParameterCount {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let bytes = self.add(name, shape).saturating_mul(size_of::<f32>());
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        placeholder(shape)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        self.add_matrix(name, rows, columns)
    }

    fn kernel(&mut self, name: &str, channels: usize, kernel_size: usize) -> Result<Matrix> {
        self.add_matrix(name, channels, kernel_size.saturating_mul(channels))
    }

    fn stacked_matrices(
        &mut self,
        name: &str,
        count: usize,
        [rows, columns]: [usize; 2],
        is_transposed: bool,
    ) -> Result<Vec<Matrix>> {
        let (rows, columns) = if is_transposed { (columns, rows) } else { (rows, columns) };
        (0..count).map(|index| self.add_matrix(&format!("{name}.{index}"), rows, columns)).collect()
    }

    fn buffer(&mut self, _name: &str, shape: &[usize]) -> Result<Tensor> {
        placeholder(shape)
    }

    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<EmbeddingTable> {
        let bytes = self.add(name, &[rows, width]).saturating_mul(size_of::<f32>());
        self.table_bytes = self.table_bytes.saturating_add(bytes);
        Ok(EmbeddingTable::resident(placeholder(&[rows, width])?)?)
    }
}

/// A placeholder for a missing tensor: one zero, broadcast to the shape.
pub(crate) fn placeholder(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::zeros((), DType::F32, &Device::Cpu)?.broadcast_as(shape)?)
}

/// The FNV-1a hash, which selects the random stream of a tensor; unlike std's hashers it is the same in every
/// release.
fn fnv1a(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
