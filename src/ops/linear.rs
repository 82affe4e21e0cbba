//! Linear layers with activation and residual connection: `y = f(x Wᵀ + b) + r`.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rayon::prelude::*;

use super::activation::{self, Activation};
use super::backend::Backend;
use super::gpu::{self, Arg, Launch, LaunchOutput, supports_linear};
use super::host::{host_slice, optional_host_slice};
use super::scratch::{new_matrix, with_scratch};
use crate::kernels::gemm::{
    Epilogue, Factors, GemmType, Lhs, LhsBuffer, OutputBlock, OutputMatrix, PackedMatrix, SharedBytes, gemm,
};
use crate::kernels::isa::Isa;

/// The parameters of a linear layer.
pub struct LinearWeights {
    matrix: Matrix,
    bias: Option<Tensor>,
}

/// A weight matrix of `(outputs, inputs)`, in the representation of its backend.
pub enum Matrix {
    /// Packed for the CPU kernels.
    Packed(PackedMatrix),
    /// For candle's operations and cuBLAS.
    Tensor(Tensor),
}

impl Matrix {
    /// The matrix of a tensor with the dtype and device of `backend`.
    ///
    /// # Errors
    /// If the tensor is not a matrix or is empty, or the backend is the CPU and the tensor is not f32.
    pub fn new(tensor: Tensor, backend: &Backend) -> Result<Self> {
        let (outputs, inputs) = tensor.dims2()?;
        check_not_empty(outputs, inputs)?;
        match backend {
            // A broadcast tensor, such as a placeholder of one value, is not packed.
            Backend::Cpu(gemm_type) if tensor.is_contiguous() => {
                let weight = host_slice(&tensor)?;
                Ok(Matrix::Packed(PackedMatrix::pack(Isa::selected(), *gemm_type, &weight, outputs, inputs)))
            }
            _ => Ok(Matrix::Tensor(tensor)),
        }
    }

    /// Packs a matrix of values of `significand_bits` bits that is read panel by panel
    /// ([`PackedMatrix::pack_with`]).
    ///
    /// # Errors
    /// Those of `read`.
    pub fn pack_with<E: Send>(
        outputs: usize,
        inputs: usize,
        gemm_type: GemmType,
        significand_bits: u32,
        read: impl Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<Self, E> {
        let isa = Isa::selected();
        Ok(Matrix::Packed(PackedMatrix::pack_with(isa, gemm_type, outputs, inputs, significand_bits, read)?))
    }

    /// What the layout of [`Matrix::packed_elements`] depends on, beside shape and significant bits.
    pub fn packing(gemm_type: GemmType) -> String {
        format!("{} on {}", gemm_type.name(), Isa::selected().name())
    }

    /// The elements of a packed matrix, in memory order; `None` of a tensor.
    pub fn packed_elements(&self) -> Option<&[u32]> {
        self.packed().map(PackedMatrix::elements)
    }

    /// A matrix of [`Matrix::pack_with`] with the same arguments, whose [`Matrix::packed_elements`] are
    /// `range` of `bytes`; `None` if the range cannot be those.
    pub fn from_packed(
        shape: [usize; 2],
        gemm_type: GemmType,
        significand_bits: u32,
        bytes: SharedBytes,
        range: Range<usize>,
    ) -> Option<Self> {
        let isa = Isa::selected();
        PackedMatrix::from_packed(isa, gemm_type, shape, significand_bits, bytes, range).map(Matrix::Packed)
    }

    /// The packed matrix, if it is one.
    fn packed(&self) -> Option<&PackedMatrix> {
        match self {
            Matrix::Packed(packed) => Some(packed),
            Matrix::Tensor(_) => None,
        }
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
    /// A layer of a `matrix` `(outputs, inputs)` and an optional `bias` `(outputs)` on the same device.
    ///
    /// # Errors
    /// If the shapes do not match, or the matrix is empty.
    pub fn new(matrix: Matrix, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = matrix.shape()?;
        check_not_empty(outputs, inputs)?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [outputs]) {
            candle_core::bail!("a layer of {outputs} outputs cannot have a bias of {:?}", bias.dims());
        }
        Ok(LinearWeights { matrix, bias })
    }

    /// The matrix, if it is packed.
    pub(super) fn packed(&self) -> Option<&PackedMatrix> {
        self.matrix.packed()
    }

    /// The bias of `(outputs)`, if there is one.
    pub(super) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// `f(x Wᵀ + b) + r` for `x` of `(T, inputs)` and an optional residual `r` of `(T, outputs)`; returns
    /// `(T, outputs)`.
    ///
    /// # Errors
    /// If shapes or devices do not match.
    pub fn forward(&self, x: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
        let bias = self.bias.as_ref();
        match &self.matrix {
            Matrix::Tensor(weight) if x.device().is_cuda() && supports_linear(x.dtype(), weight.dims()) => {
                let y = gpu::linear(x, weight, bias)?;
                match (activation, residual) {
                    (Activation::Identity, None) => Ok(y),
                    _ => {
                        let reference = || reference_epilogue(&y, activation, residual);
                        launch(&y, activation, residual)?.run_or(&y, reference)
                    }
                }
            }
            Matrix::Tensor(weight) => reference(x, weight, bias, activation, residual),
            Matrix::Packed(weight) => {
                let values = host_slice(x)?;
                let (rows, inputs) = x.dims2()?;
                check_inputs(weight, inputs)?;
                with_scratch(|buffer: &mut LhsBuffer| {
                    let lhs = buffer.convert(weight, &values, inputs, rows);
                    forward_packed(lhs, weight, bias, activation, None, residual)
                })
            }
        }
    }

    /// Applies `reduce` to `x Wᵀ + b` for `x` of `(T, inputs)` in blocks of columns: to the index of a
    /// block's first column, and its values of `(T, columns)`. Each thread holds one block at a time. Returns
    /// the results in the order of the columns.
    ///
    /// # Errors
    /// If shapes or devices do not match.
    pub fn forward_by_columns<R: Send>(
        &self,
        x: &Tensor,
        reduce: impl Fn(usize, &[f32]) -> R + Sync,
    ) -> Result<Vec<R>> {
        let Matrix::Packed(weight) = &self.matrix else {
            let y = self.forward(x, Activation::Identity, None)?.to_device(&Device::Cpu)?;
            return Ok(vec![reduce(0, &host_slice(&y.to_dtype(DType::F32)?)?)]);
        };
        let (values, (rows, inputs)) = (host_slice(x)?, x.dims2()?);
        check_inputs(weight, inputs)?;
        let bias = optional_host_slice(self.bias.as_ref())?;
        let epilogue = Epilogue { bias: bias.as_deref().unwrap_or_default(), ..Epilogue::default() };
        let panel_values = rows.max(1) * weight.columns(0..1).len();
        let panels = (COLUMN_BLOCK_VALUES / panel_values).clamp(1, weight.panels());
        with_scratch(|buffer: &mut LhsBuffer| {
            let lhs = buffer.convert(weight, &values, inputs, rows);
            let blocks = (0..weight.panels().div_ceil(panels)).into_par_iter();
            let block = |block: &mut Vec<f32>, index: usize| {
                let panels = index * panels..weight.panels().min((index + 1) * panels);
                let columns = weight.columns(panels.clone());
                block.resize(rows * columns.len(), 0.0);
                for first in (0..rows).step_by(weight.mc()) {
                    let part = first..rows.min(first + weight.mc());
                    let values = &mut block[part.start * columns.len()..part.end * columns.len()];
                    let mut output = OutputBlock::whole(values, columns.len());
                    gemm(lhs.slice(part), weight, panels.clone(), &epilogue, &mut output);
                }
                reduce(columns.start, block)
            };
            Ok(blocks.map_init(Vec::new, block).collect())
        })
    }

    /// The outputs `(T, outputs)` of several layers for the same `x` of `(T, inputs)`, which is converted to
    /// the operand format once.
    ///
    /// # Errors
    /// If shapes or devices do not match.
    pub fn forward_each<const N: usize>(layers: [&LinearWeights; N], x: &Tensor) -> Result<[Tensor; N]> {
        let plain = |layer: &LinearWeights| layer.forward(x, Activation::Identity, None);
        let matrices: Option<Vec<&PackedMatrix>> = layers.iter().map(|layer| layer.packed()).collect();
        let outputs: Vec<Tensor> = match matrices.as_deref() {
            Some(matrices @ [first, ..]) if matrices.iter().all(|weight| weight.shares_lhs_with(first)) => {
                let values = host_slice(x)?;
                let (rows, inputs) = x.dims2()?;
                check_inputs(first, inputs)?;
                with_scratch(|buffer: &mut LhsBuffer| {
                    let lhs = buffer.convert(first, &values, inputs, rows);
                    // A thread that finds no task of one layer goes on with another.
                    let layers = layers.par_iter().zip(matrices);
                    let forward = |(layer, weight): (&&LinearWeights, &&PackedMatrix)| {
                        forward_packed(lhs, weight, layer.bias.as_ref(), Activation::Identity, None, None)
                    };
                    layers.map(forward).collect::<Result<_>>()
                })?
            }
            _ => layers.into_iter().map(plain).collect::<Result<_>>()?,
        };
        Ok(outputs.try_into().expect("there is one output per layer"))
    }
}

/// Values of a block of [`LinearWeights::forward_by_columns`], which stay in L2.
pub const COLUMN_BLOCK_VALUES: usize = 1 << 17;

/// Checks that a matrix has elements.
fn check_not_empty(outputs: usize, inputs: usize) -> Result<()> {
    if outputs == 0 || inputs == 0 {
        candle_core::bail!("a linear layer cannot have {inputs} inputs and {outputs} outputs");
    }
    Ok(())
}

/// Checks that `x` has the columns that a matrix expects.
pub(super) fn check_inputs(weight: &PackedMatrix, inputs: usize) -> Result<()> {
    if inputs != weight.inputs() {
        candle_core::bail!("a layer of {} inputs cannot take {inputs} columns", weight.inputs());
    }
    Ok(())
}

/// Checks that factors or a residual have the shape of the output.
pub(super) fn check_same_shape(operand: Option<&Tensor>, rows: usize, outputs: usize) -> Result<()> {
    if let Some(operand) = operand.filter(|operand| operand.dims() != [rows, outputs]) {
        candle_core::bail!(
            "an output of [{rows}, {outputs}] cannot be combined with a matrix of {:?}",
            operand.dims()
        );
    }
    Ok(())
}

/// The launch of `y = f(y) + r` on a GPU, for `y` of `(T, outputs)`, which nothing else holds.
///
/// # Errors
/// If the shape or dtype of the residual does not match, or there is no kernel for the dtype.
pub fn launch<'a>(y: &'a Tensor, activation: Activation, residual: Option<&'a Tensor>) -> Result<Launch<'a>> {
    const VALUES_PER_BLOCK: usize = 256 * 8;
    let (rows, width) = y.dims2()?;
    gpu::expect(residual, y.dtype(), &[rows, width])?;
    let (code, parameters) = activation::code(activation);
    let mut args = vec![Arg::from(residual), rows.into(), width.into(), code.into()];
    args.extend(parameters.map(Arg::F32));
    Ok(Launch {
        kernel: format!("linear_{}", gpu::suffix(y.dtype())?),
        grid: [(rows * width).div_ceil(VALUES_PER_BLOCK), 1, 1],
        block: 256,
        output: LaunchOutput::InPlace(y),
        args,
    })
}

/// A linear layer in plain candle operations: `x` is `(T, inputs)`, `weight` `(outputs, inputs)`, `bias`
/// `(outputs)`, `residual` `(T, outputs)`; returns `(T, outputs)`. f32 on the CPU is accumulated in f64, so
/// that a comparison with this reference shows only the rounding error of the other side.
pub fn reference(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let dtype = x.dtype();
    let accumulator = if dtype == DType::F32 && x.device().is_cpu() { DType::F64 } else { dtype };
    let bias = bias.map(|bias| bias.to_dtype(accumulator)).transpose()?;
    let y = Linear::new(weight.to_dtype(accumulator)?, bias).forward(&x.to_dtype(accumulator)?)?;
    reference_epilogue(&y.to_dtype(dtype)?, activation, residual)
}

/// `f(y) + r` in plain candle operations, for `y` and `r` of `(T, outputs)`.
fn reference_epilogue(y: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
    let y = activation::reference(activation, y)?;
    match residual {
        Some(residual) => y + residual,
        None => Ok(y),
    }
}

/// Rows of a task are a multiple of this: of MR of the vector micro-kernel (12 or 6) and of the rows of a
/// tile (16).
pub(super) const TASK_ROWS: usize = 48;

/// How the output of a layer is divided among threads: into blocks of rows and, if those are too few, of
/// panels. Either way every output is computed from the same operands in the same order.
struct Tasks {
    rows: usize,
    panels: usize,
    rows_per_task: usize,
    panels_per_task: usize,
    /// Tasks that share the same rows.
    column_tasks: usize,
}

impl Tasks {
    fn new(rows: usize, weight: &PackedMatrix) -> Self {
        let (panels, threads) = (weight.panels(), rayon::current_num_threads());
        // Few rows are divided evenly among the threads, but not into fewer than `TASK_ROWS`: reading the
        // weights again for each task would take longer.
        let even = rows.div_ceil(threads).next_multiple_of(TASK_ROWS).max(TASK_ROWS);
        let rows_per_task = weight.mc().min(even);
        let row_tasks = rows.div_ceil(rows_per_task);
        let column_tasks =
            if threads == 1 { 1 } else { (4 * threads).div_ceil(row_tasks.max(1)).min(panels) };
        let panels_per_task = panels.div_ceil(column_tasks);
        let column_tasks = panels.div_ceil(panels_per_task);
        Tasks { rows, panels, rows_per_task, panels_per_task, column_tasks }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.rows_per_task) * self.column_tasks
    }

    /// The rows and panels of a task. No two tasks have a row and a panel in common, and all tasks cover all
    /// of them.
    fn get(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let row = task / self.column_tasks * self.rows_per_task;
        let panel = task % self.column_tasks * self.panels_per_task;
        (row..self.rows.min(row + self.rows_per_task), panel..self.panels.min(panel + self.panels_per_task))
    }
}

/// The rows of an operand of an epilogue of `(T, outputs)`, which may be empty.
pub(super) fn operand_rows<'a>(operand: &'a [f32], rows: &Range<usize>, outputs: usize) -> &'a [f32] {
    if operand.is_empty() { operand } else { &operand[rows.start * outputs..rows.end * outputs] }
}

/// [`LinearWeights::forward`] for packed weights and a converted left operand: `f(x Wᵀ + b) ∘ g + r` with
/// optional factors `g` of `(T, outputs)`; returns `(T, outputs)`.
pub(super) fn forward_packed(
    x: Lhs,
    weight: &PackedMatrix,
    bias: Option<&Tensor>,
    activation: Activation,
    factors: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, outputs) = (x.rows(), weight.outputs());
    check_same_shape(factors, rows, outputs)?;
    check_same_shape(residual, rows, outputs)?;
    let (bias, residual) = (optional_host_slice(bias)?, optional_host_slice(residual)?);
    let factors = optional_host_slice(factors)?;
    let bias = bias.as_deref().unwrap_or_default();
    let factors = factors.as_deref().unwrap_or_default();
    let residual = residual.as_deref().unwrap_or_default();
    let tasks = Tasks::new(rows, weight);
    let run = |output: &OutputMatrix, task: usize| {
        let (rows, panels) = tasks.get(task);
        // SAFETY: no two tasks have a row and a panel in common, so their blocks are disjoint.
        let mut block = unsafe { output.block(rows.clone(), weight.columns(panels.clone())) };
        let factors =
            Factors { values: operand_rows(factors, &rows, outputs), first_output: 0, columns: outputs };
        let residual = operand_rows(residual, &rows, outputs);
        let epilogue = Epilogue { bias, activation, factors, residual, ..Epilogue::default() };
        gemm(x.slice(rows), weight, panels, &epilogue, &mut block);
    };
    // SAFETY: the tasks cover all rows and panels, and `gemm` writes every element of a block.
    let y = unsafe {
        new_matrix(rows, outputs, |output| {
            (0..tasks.count()).into_par_iter().for_each(|task| run(output, task));
        })
    }?;
    Tensor::from_vec(y, (rows, outputs), &Device::Cpu)
}
