//! Where the weights of a stack come from.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::{Engine, Matrix, Table};
use crate::kernels::activation::XIELU;
use crate::kernels::isa::Isa;
use crate::kernels::matmul::{Compute, PackedMatrix};

/// A source of weights, asked for by canonical name (`layers.0.0.attention.query.weight`) and shape.
///
/// A stack is always built to its end: a source that lacks a tensor notes it and hands out a placeholder, so
/// that its report is complete. Whoever builds a stack asks the source for its verdict before using it.
pub trait Parameters {
    /// A tensor of `shape`.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// A tensor of `shape` that a source may go without.
    fn optional(&mut self, _name: &str, _shape: &[usize]) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// An embedding table of `(rows, width)`.
    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<Table>;

    /// A matrix of `(rows, columns)` that the stack multiplies with.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        Ok(Matrix::new(self.tensor(name, &[rows, columns])?, self.engine())?)
    }

    /// What the stack is to run on: where this source places what it hands out.
    fn engine(&self) -> &Engine {
        &Engine::Cpu(Compute::F32)
    }

    /// What notices that the source has changed; none where nothing is read from it later on.
    fn watch(&self) -> Option<Watch> {
        None
    }
}

/// Fails if weights that are read while a stack runs are not those that it was built from.
pub type Watch = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Weights drawn at random, as BERT is initialised: matrices and tables from a normal distribution with a
/// standard deviation of 0.02, biases 0, norms 1, activations with weights of their own as they begin. The same seed gives the same numbers everywhere, whatever
/// the order in which tensors are asked for.
pub struct Random {
    seed: u64,
    engine: Engine,
}

impl Random {
    /// Weights that follow from `seed` alone, for an engine.
    pub fn new(seed: u64, engine: Engine) -> Self {
        Random { seed, engine }
    }
}

impl Parameters for Random {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let begin = match name.rsplit_once(".activation.").map(|(_, part)| part) {
            Some("weight") => Some(0.25),
            Some(part) => XIELU.iter().find(|(known, _)| *known == part).map(|(_, value)| *value),
            None => None,
        };
        if let Some(value) = begin {
            return Ok(self.engine.place(Tensor::full(value, shape, &Device::Cpu)?)?);
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
        Ok(self.engine.place(tensor)?)
    }

    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<Table> {
        Ok(Table::resident(self.tensor(name, &[rows, width])?)?)
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Counts parameters without holding any.
#[derive(Debug, Default)]
pub struct Count {
    /// Numbers asked for so far; saturates.
    pub parameters: usize,
    /// Bytes that a stack would hold for them on its engine, but for embedding tables; saturates.
    pub held_bytes: usize,
    /// Bytes of embedding tables in f32, which a checkpoint's stack reads from the file row by row; saturates.
    pub table_bytes: usize,
    engine: Engine,
}

impl Count {
    /// For a stack on this engine.
    pub fn new(engine: Engine) -> Self {
        Count { engine, ..Count::default() }
    }

    fn count(&mut self, shape: &[usize]) -> usize {
        let count = shape.iter().fold(1usize, |product, n| product.saturating_mul(*n));
        self.parameters = self.parameters.saturating_add(count);
        count
    }
}

impl Parameters for Count {
    fn tensor(&mut self, _name: &str, shape: &[usize]) -> Result<Tensor> {
        let bytes = self.count(shape).saturating_mul(size_of::<f32>());
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        placeholder(shape)
    }

    fn matrix(&mut self, _name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        let count = self.count(&[rows, columns]);
        let bytes = match &self.engine {
            Engine::Cpu(compute) => PackedMatrix::bytes(Isa::best(), *compute, rows, columns),
            Engine::Device { dtype, .. } => count.saturating_mul(dtype.size_in_bytes()),
        };
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        Ok(Matrix::Tensor(placeholder(&[rows, columns])?))
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn table(&mut self, _name: &str, rows: usize, width: usize) -> Result<Table> {
        let bytes = self.count(&[rows, width]).saturating_mul(size_of::<f32>());
        self.table_bytes = self.table_bytes.saturating_add(bytes);
        Ok(Table::resident(placeholder(&[rows, width])?)?)
    }
}

/// What a source hands out in place of a tensor that it has not: a single zero, seen as the whole shape.
pub(crate) fn placeholder(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::zeros((), DType::F32, &Device::Cpu)?.broadcast_as(shape)?)
}

/// The FNV-1a hash: it names a random stream, and stays the same from release to release.
fn fnv1a(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
