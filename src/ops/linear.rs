//! Linear layers with their activation and residual connection: `y = f(x Wᵀ + b) + r`.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rayon::prelude::*;

use super::activation::Activation;
use super::engine::Engine;
use super::gpu::{self, Arg, Launch, Written};
use super::{on_slice, on_slice_of, scratch, written};
use crate::kernels::isa::Isa;
use crate::kernels::matmul::{Blocks, Compute, Converted, Epilogue, PackedMatrix, Rows, gemm};

/// The weights of a linear layer.
pub struct LinearWeights {
    matrix: Matrix,
    bias: Option<Tensor>,
}

/// A matrix of `(outputs, inputs)`, in the form that its device computes with.
pub enum Matrix {
    /// For the CPU's kernel.
    Packed(PackedMatrix),
    /// For candle's operations.
    Tensor(Tensor),
}

impl Matrix {
    /// From a tensor that lies where the engine wants it.
    ///
    /// # Errors
    /// If it is no matrix, is empty, or is for the CPU and not `f32`.
    pub fn new(tensor: Tensor, engine: &Engine) -> Result<Self> {
        let (outputs, inputs) = tensor.dims2()?;
        check_not_empty(outputs, inputs)?;
        match engine {
            // What is no plain matrix (a stand-in of one number, say) is not worth packing.
            Engine::Cpu(compute) if tensor.is_contiguous() => on_slice(&tensor, |w| {
                Ok(Matrix::Packed(PackedMatrix::pack(Isa::best(), *compute, w, outputs, inputs)))
            }),
            _ => Ok(Matrix::Tensor(tensor)),
        }
    }

    /// From numbers that are read part by part, as [`PackedMatrix::read`] does it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read<E: Send>(
        outputs: usize,
        inputs: usize,
        compute: Compute,
        read: impl Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<Self, E> {
        Ok(Matrix::Packed(PackedMatrix::read(Isa::best(), compute, outputs, inputs, read)?))
    }

    /// `(outputs, inputs)`.
    fn shape(&self) -> Result<(usize, usize)> {
        match self {
            Matrix::Packed(packed) => Ok((packed.outputs(), packed.inputs())),
            Matrix::Tensor(tensor) => tensor.dims2(),
        }
    }
}

impl LinearWeights {
    /// From a `matrix` of `(outputs, inputs)` and a `bias` of `(outputs)`, if there is one, both on one device.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or the matrix is empty.
    pub fn new(matrix: Matrix, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = matrix.shape()?;
        check_not_empty(outputs, inputs)?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [outputs]) {
            candle_core::bail!("a bias of {:?} for {outputs} outputs", bias.dims());
        }
        Ok(LinearWeights { matrix, bias })
    }

    /// `f(x Wᵀ + b) + r` for `x` of `(T, inputs)` and a residual `r` of `(T, outputs)`, if there is one; returns
    /// `(T, outputs)`.
    pub fn forward(&self, x: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
        let bias = self.bias.as_ref();
        match &self.matrix {
            Matrix::Tensor(weight) if is_for_gpu(x, weight) => {
                let y = gpu::product(x, weight, bias)?;
                match (activation, residual) {
                    (Activation::Identity, None) => Ok(y),
                    _ => launch(&y, activation, residual)?.run(&y),
                }
            }
            Matrix::Tensor(weight) => reference(x, weight, bias, activation, residual),
            Matrix::Packed(weight) => on_slice(x, |values| {
                let (rows, inputs) = x.dims2()?;
                expect(weight, inputs)?;
                scratch(|converted: &mut Converted| {
                    let values = converted.rows(weight, values, inputs, rows);
                    packed(values, weight, bias, activation, residual)
                })
            }),
        }
    }

    /// What several layers make of the same `x` of `(T, inputs)`, each `(T, outputs)`; `x` is brought to their type once.
    pub fn forward_each<const N: usize>(layers: [&LinearWeights; N], x: &Tensor) -> Result<[Tensor; N]> {
        let plain = |layer: &LinearWeights| layer.forward(x, Activation::Identity, None);
        let matrices = layers.map(|layer| match &layer.matrix {
            Matrix::Packed(weight) => Some(weight),
            Matrix::Tensor(_) => None,
        });
        let each: Vec<Tensor> = match matrices[0] {
            Some(first)
                if matrices.iter().all(|weight| weight.is_some_and(|weight| weight.takes_rows_of(first))) =>
            {
                on_slice(x, |values| {
                    let (rows, inputs) = x.dims2()?;
                    expect(first, inputs)?;
                    scratch(|converted: &mut Converted| {
                        let values = converted.rows(first, values, inputs, rows);
                        let layers = layers.iter().zip(matrices.iter().flatten());
                        let one = |(layer, weight): (&&LinearWeights, &&PackedMatrix)| {
                            packed(values, weight, layer.bias.as_ref(), Activation::Identity, None)
                        };
                        layers.map(one).collect::<Result<_>>()
                    })
                })?
            }
            _ => layers.into_iter().map(plain).collect::<Result<_>>()?,
        };
        Ok(each.try_into().expect("as many results as layers"))
    }
}

/// Refuses a matrix without elements.
fn check_not_empty(outputs: usize, inputs: usize) -> Result<()> {
    match outputs.min(inputs) {
        0 => candle_core::bail!("a layer of {inputs} inputs and {outputs} outputs"),
        _ => Ok(()),
    }
}

/// Refuses rows of another width than a matrix has.
fn expect(weight: &PackedMatrix, inputs: usize) -> Result<()> {
    match inputs == weight.inputs() {
        true => Ok(()),
        false => candle_core::bail!("{inputs} columns for a layer of {} inputs", weight.inputs()),
    }
}

/// Whether cuBLAS and a kernel of our own take the layer: in f32 cuBLAS would round the operands to fewer bits, and other
/// widths do not lie as it wants them.
fn is_for_gpu(x: &Tensor, weight: &Tensor) -> bool {
    let whole = weight.dims().iter().all(|width| width % 8 == 0);
    x.device().is_cuda() && x.dtype() != DType::F32 && whole
}

/// `y = f(y) + r` on a GPU, for `y` of `(T, outputs)`, which nobody else holds.
pub fn launch<'a>(y: &'a Tensor, activation: Activation, residual: Option<&'a Tensor>) -> Result<Launch<'a>> {
    const PER_BLOCK: usize = 256 * 8;
    let (rows, width) = y.dims2()?;
    gpu::expect(residual, y.dtype(), &[rows, width])?;
    let (code, parameters) = activation.code();
    let mut args = vec![Arg::from(residual), rows.into(), width.into(), code.into()];
    args.extend(parameters.map(Arg::F32));
    Ok(Launch {
        kernel: format!("linear_{}", gpu::suffix(y.dtype())?),
        grid: [(rows * width).div_ceil(PER_BLOCK), 1, 1],
        block: 256,
        to: Written::Over(y),
        args,
    })
}

/// A linear layer in plain candle operations: `x` of `(T, inputs)`, `weight` of `(outputs, inputs)`, `bias` of
/// `(outputs)`, `residual` of `(T, outputs)`; returns `(T, outputs)`. In f32 on the CPU the sums are f64, so that a comparison with
/// this reference shows the rounding error of the other side alone.
pub fn reference(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let dtype = x.dtype();
    let sums = if dtype == DType::F32 && x.device().is_cpu() { DType::F64 } else { dtype };
    let bias = bias.map(|bias| bias.to_dtype(sums)).transpose()?;
    let y = Linear::new(weight.to_dtype(sums)?, bias).forward(&x.to_dtype(sums)?)?;
    let y = activation.reference(&y.to_dtype(dtype)?)?;
    match residual {
        Some(residual) => y + residual,
        None => Ok(y),
    }
}

/// Rows of a task are a multiple of this: whole micro-tiles over vectors (12 or 6 rows) and over tiles (16).
const ROWS_OF_TASKS: usize = 48;

/// `(T, outputs)`. Tasks are blocks of rows and, where those are too few for the threads, of outputs. Either way a number is computed
/// from the same operands in the same order.
fn packed(
    x: Rows,
    weight: &PackedMatrix,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, outputs, panels) = (x.count(), weight.outputs(), weight.panels());
    if let Some(residual) = residual.filter(|residual| residual.dims() != [rows, outputs]) {
        candle_core::bail!("a residual of {:?} for {rows} rows", residual.dims());
    }
    let threads = rayon::current_num_threads();
    // Few rows are divided evenly among threads, but for so few that reading the weights once for each part would take longer.
    let at_once = weight.rows_at_once().min(rows.div_ceil(threads).next_multiple_of(ROWS_OF_TASKS).max(48));
    let row_tasks = rows.div_ceil(at_once);
    let column_tasks = match threads {
        1 => 1,
        threads => (4 * threads).div_ceil(row_tasks.max(1)).min(panels),
    };
    let panels_each = panels.div_ceil(column_tasks);
    let column_tasks = panels.div_ceil(panels_each);
    let y = on_slice_of(bias, |bias| {
        on_slice_of(residual, |residual| {
            let (bias, residual) = (bias.unwrap_or_default(), residual.unwrap_or_default());
            let task = |to: &Blocks, task: usize| {
                let first = task / column_tasks * at_once;
                let rows = first..rows.min(first + at_once);
                let first = task % column_tasks * panels_each;
                let panels = first..panels.min(first + panels_each);
                // SAFETY: no two tasks have the same rows and panels.
                let mut block = unsafe { to.block(rows.clone(), weight.columns(panels.clone())) };
                let residual = match residual {
                    [] => &[],
                    residual => &residual[rows.start * outputs..rows.end * outputs],
                };
                let epilogue = Epilogue { bias, activation, residual, ..Epilogue::default() };
                gemm(x.part(rows), weight, panels, &epilogue, &mut block);
            };
            // SAFETY: the tasks together write every row and column.
            unsafe {
                written(rows, outputs, |to| {
                    (0..row_tasks * column_tasks).into_par_iter().for_each(|index| task(to, index));
                })
            }
        })
    })?;
    Tensor::from_vec(y, (rows, outputs), &Device::Cpu)
}
