//! The position-wise feed-forward network, plain or gated, as one operation.

use std::cell::RefCell;
use std::ops::Range;
use std::thread::LocalKey;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::activation::Activation;
use super::host::{host_slice, optional_host_slice};
use super::linear::{LinearWeights, TASK_ROWS, check_inputs, check_same_shape, forward_packed, operand_rows};
use super::scratch::{Scratch, at_least, new_matrix, with_scratch};
use crate::kernels::gemm::{
    Epilogue, Factors, Lhs, LhsBuffer, OutputBlock, OutputMatrix, PackedMatrix, gemm, gemm_into_lhs,
    row_stride,
};

/// The layers of a feed-forward network: linear layers, or their packed matrices.
#[derive(Debug, Clone, Copy)]
pub struct FeedForwardLayers<L> {
    /// The gate of a gated network, from hidden to intermediate values.
    pub gate: Option<L>,
    /// From hidden to intermediate values.
    pub up: L,
    /// From intermediate to hidden values.
    pub down: L,
}

/// `down(f(up(x))) + r`, or with a gate `down(f(gate(x)) ∘ up(x)) + r`, for `x` of `(T, inputs)` and an
/// optional residual `r` of `(T, outputs)`; returns `(T, outputs)`. Packed layers compute some rows at a
/// time, whose intermediate values stay in L2.
///
/// # Errors
/// If shapes or devices do not match.
pub fn feed_forward(
    layers: FeedForwardLayers<&LinearWeights>,
    x: &Tensor,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let FeedForwardLayers { gate, up, down } = layers;
    // Few rows are divided by panels, which needs the intermediate values of all threads.
    if let Some(matrices) = packed(layers)
        && x.dims2()?.0 >= TASK_ROWS * rayon::current_num_threads()
    {
        return by_rows(layers, matrices, x, activation, residual);
    }
    let intermediate = match gate {
        Some(gate) => gated(gate, up, x, activation)?,
        None => up.forward(x, activation, None)?,
    };
    down.forward(&intermediate, Activation::Identity, residual)
}

/// `f(gate(x)) ∘ up(x)`.
fn gated(gate: &LinearWeights, up: &LinearWeights, x: &Tensor, activation: Activation) -> Result<Tensor> {
    let (rows, inputs) = x.dims2()?;
    match (gate.packed(), up.packed()) {
        (Some(gate_matrix), Some(up_matrix)) if gate_matrix.shares_lhs_with(up_matrix) => {
            check_inputs(gate_matrix, inputs)?;
            let values = host_slice(x)?;
            with_scratch(|buffer: &mut LhsBuffer| {
                let x = buffer.convert(gate_matrix, &values, inputs, rows);
                let gate = forward_packed(x, gate_matrix, gate.bias(), activation, None, None)?;
                forward_packed(x, up_matrix, up.bias(), Activation::Identity, Some(&gate), None)
            })
        }
        _ => gate.forward(x, activation, None)? * up.forward(x, Activation::Identity, None)?,
    }
}

/// The matrices, if they are packed and fit together.
fn packed(layers: FeedForwardLayers<&LinearWeights>) -> Option<FeedForwardLayers<&PackedMatrix>> {
    let (up, down) = (layers.up.packed()?, layers.down.packed()?);
    let gate = match layers.gate {
        Some(gate) => {
            Some(gate.packed().filter(|gate| gate.shares_lhs_with(up) && gate.outputs() == up.outputs())?)
        }
        None => None,
    };
    (up.outputs() == down.inputs()).then_some(FeedForwardLayers { gate, up, down })
}

/// The intermediate values of a task.
#[derive(Default)]
struct Intermediate {
    /// Those of the gate, a block of columns at a time.
    gate: Vec<f32>,
    /// In f32: `(rows, intermediate)` with the stride [`row_stride`] if they are the left operand of the last
    /// layer, a block of columns at a time if they are converted to it, and empty if the layers chain
    /// ([`PackedMatrix::chains_with`]).
    values: Vec<f32>,
    /// The left operand of the last layer, if it is not f32.
    lhs: LhsBuffer,
}

thread_local! {
    static INTERMEDIATE: RefCell<Option<Box<Intermediate>>> = const { RefCell::new(None) };
}

impl Scratch for Intermediate {
    const THREAD_LOCAL: &'static LocalKey<RefCell<Option<Box<Self>>>> = &INTERMEDIATE;
}

/// Maximum rows of a task, for which the intermediate values stay in L2 while the weights stream from L3.
const ROWS_PER_TASK: usize = 256;

/// Bytes of L2 for the intermediate values of a task of layers that do not chain.
const INTERMEDIATE_BYTES: usize = 640 << 10;

/// Rows of such a task. Where fewer stay in L2, reading the weights for each task takes longer than
/// intermediate values from L3.
const MIN_ROWS_IN_L2: usize = 2 * TASK_ROWS;
const ROWS_IN_L3: usize = 4 * TASK_ROWS;

/// Values of the gate that a task holds at a time, which stay in L2.
const GATE_BLOCK_VALUES: usize = 1 << 16;

/// Values that a task converts to the operand format at a time, and as many of a gate; they stay in L2.
const CONVERTED_BLOCK_VALUES: usize = 1 << 15;

/// [`feed_forward`] of packed matrices: each task computes some rows from the first layer to the last.
fn by_rows(
    layers: FeedForwardLayers<&LinearWeights>,
    matrices: FeedForwardLayers<&PackedMatrix>,
    x: &Tensor,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let ((rows, inputs), outputs) = (x.dims2()?, matrices.down.outputs());
    check_inputs(matrices.up, inputs)?;
    check_same_shape(residual, rows, outputs)?;
    let gate_bias = optional_host_slice(layers.gate.and_then(LinearWeights::bias))?;
    let up_bias = optional_host_slice(layers.up.bias())?;
    let down_bias = optional_host_slice(layers.down.bias())?;
    let (values, residual) = (host_slice(x)?, optional_host_slice(residual)?);
    let network = Network {
        matrices,
        gate_bias: gate_bias.as_deref().unwrap_or_default(),
        up_bias: up_bias.as_deref().unwrap_or_default(),
        down_bias: down_bias.as_deref().unwrap_or_default(),
        activation,
        residual: residual.as_deref().unwrap_or_default(),
    };
    let even = rows.div_ceil(rayon::current_num_threads()).next_multiple_of(TASK_ROWS);
    let rows_in_l2 = if matrices.up.chains_with(matrices.down) {
        ROWS_PER_TASK
    } else {
        let converted = if matrices.down.converts_lhs() { CONVERTED_BLOCK_VALUES } else { 0 };
        let rows = (INTERMEDIATE_BYTES - converted * size_of::<f32>()) / matrices.down.lhs_row_bytes();
        if rows < MIN_ROWS_IN_L2 { ROWS_IN_L3 } else { (rows / TASK_ROWS * TASK_ROWS).min(ROWS_PER_TASK) }
    };
    let max_rows = rows_in_l2.min(even);
    let task_rows = rows.div_ceil(rows.div_ceil(max_rows)).next_multiple_of(TASK_ROWS).min(max_rows);
    let y = with_scratch(|buffer: &mut LhsBuffer| {
        let x = buffer.convert(matrices.up, &values, inputs, rows);
        // SAFETY: the tasks cover all rows, and `Network::run` writes every element of a block.
        unsafe {
            new_matrix(rows, outputs, |output| {
                let tasks = (0..rows.div_ceil(task_rows)).into_par_iter();
                tasks.for_each(|task| {
                    network.run(x, task * task_rows..rows.min((task + 1) * task_rows), output)
                });
            })
        }
    })?;
    Tensor::from_vec(y, (rows, outputs), &Device::Cpu)
}

/// The operands of a feed-forward network; a bias or residual that it does not have is empty.
struct Network<'a> {
    matrices: FeedForwardLayers<&'a PackedMatrix>,
    gate_bias: &'a [f32],
    up_bias: &'a [f32],
    down_bias: &'a [f32],
    activation: Activation,
    residual: &'a [f32],
}

impl Network<'_> {
    /// Computes some rows of the output.
    fn run(&self, x: Lhs, rows: Range<usize>, output: &OutputMatrix) {
        let down = self.matrices.down;
        let outputs = down.outputs();
        // SAFETY: no two tasks have a row in common.
        let mut block = unsafe { output.block(rows.clone(), 0..outputs) };
        let residual = operand_rows(self.residual, &rows, outputs);
        let epilogue = Epilogue { bias: self.down_bias, residual, ..Epilogue::default() };
        with_scratch(|intermediate: &mut Intermediate| {
            let x = x.slice(rows);
            let intermediate = self.intermediate(x, intermediate);
            gemm(intermediate, down, 0..down.panels(), &epilogue, &mut block);
        });
    }

    /// `f(up(x))`, or `f(gate(x)) ∘ up(x)`, as the left operand of `down`.
    fn intermediate<'a>(&self, x: Lhs, to: &'a mut Intermediate) -> Lhs<'a> {
        let FeedForwardLayers { gate, up, down } = self.matrices;
        let Network { gate_bias, up_bias, activation, .. } = *self;
        let (rows, chains, converts) = (x.rows(), up.chains_with(down), down.converts_lhs());
        let Intermediate { gate: gate_values, values, lhs } = to;
        let stride = row_stride(up.outputs());
        let panels = if converts && !chains {
            block_panels(up, down, rows, CONVERTED_BLOCK_VALUES)
        } else if gate.is_some() {
            block_panels(up, down, rows, GATE_BLOCK_VALUES)
        } else {
            up.panels()
        };
        let block = rows * up.columns(0..panels).len();
        let gate_values = if gate.is_some() { at_least(gate_values, block) } else { &mut [] };
        let values = match (chains, converts) {
            (true, _) => &mut [],
            (false, true) => at_least(values, block),
            (false, false) => at_least(values, rows * stride),
        };
        for first in (0..up.panels()).step_by(panels) {
            let panels = first..up.panels().min(first + panels);
            let columns = up.columns(panels.clone());
            let mut epilogue = Epilogue { bias: up_bias, activation, ..Epilogue::default() };
            if let Some(gate) = gate {
                let gate_epilogue = Epilogue { bias: gate_bias, activation, ..Epilogue::default() };
                let values = &mut gate_values[..rows * columns.len()];
                gemm(x, gate, panels.clone(), &gate_epilogue, &mut OutputBlock::whole(values, columns.len()));
                let factors = Factors { values, first_output: columns.start, columns: columns.len() };
                epilogue = Epilogue { bias: up_bias, factors, ..Epilogue::default() };
            }
            if chains {
                gemm_into_lhs(x, up, panels, &epilogue, down, lhs);
            } else if converts {
                let values = &mut values[..rows * columns.len()];
                gemm(x, up, panels, &epilogue, &mut OutputBlock::whole(values, columns.len()));
                lhs.convert_inputs(down, columns.clone(), values, columns.len(), rows);
            } else {
                let matrix = OutputMatrix::new(values, stride);
                // SAFETY: there is only one block at a time.
                let mut block = unsafe { matrix.block(0..rows, columns) };
                gemm(x, up, panels, &epilogue, &mut block);
            }
        }
        if converts { lhs.converted(down, rows) } else { lhs.convert(down, values, stride, rows) }
    }
}

/// Panels of `up` whose values for `rows` rows are held at a time, at most `block_values` if one step of
/// inputs is not more: each block of columns but the last can be converted to the left operand of `down`.
fn block_panels(up: &PackedMatrix, down: &PackedMatrix, rows: usize, block_values: usize) -> usize {
    let nr = up.columns(0..1).len();
    let step = down.lhs_step().div_ceil(nr);
    let panels = block_values / (rows * nr).max(1);
    (panels / step * step).clamp(step, up.panels().max(step))
}
