//! Activations of `torch.nn` with their default arguments that no kernel computes with a linear layer:
//! functions of each element, and softmax functions of a whole vector. They are for the few vectors after
//! pooling and for scores.

use std::fmt;

use super::{Activation, Isa};
use crate::kernels::activation::softplus;
use crate::named::{Named, names};

/// A function of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorFunction {
    /// `x` for `x > 0`, else `eˣ − 1`.
    Elu,
    /// ELU with the factors of self-normalizing networks (Klambauer et al. 2017).
    Selu,
    /// `ln(1 + eˣ)`, and `x` for `x > 20`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln σ(x)`.
    LogSigmoid,
    /// `min(max(x, −1), 1)`.
    Hardtanh,
    /// `min(max(x + 3, 0), 6) / 6`.
    Hardsigmoid,
    /// `x` for `|x| > 0.5`, else 0.
    Hardshrink,
    /// `x` with a magnitude that is less by 0.5, or 0.
    Softshrink,
    /// `x − tanh(x)`.
    Tanhshrink,
    /// `x` for `x ≥ 0`, else the mean of `x / 8` and `x / 3`.
    Rrelu,
    /// `eˣ`, divided by its sum over the vector.
    Softmax,
    /// `e⁻ˣ`, divided by its sum over the vector.
    Softmin,
    /// The logarithm of the softmax.
    LogSoftmax,
}

names!(VectorFunction {
    Elu => "elu",
    Selu => "selu",
    Softplus => "softplus",
    Softsign => "softsign",
    LogSigmoid => "log-sigmoid",
    Hardtanh => "hardtanh",
    Hardsigmoid => "hardsigmoid",
    Hardshrink => "hardshrink",
    Softshrink => "softshrink",
    Tanhshrink => "tanhshrink",
    Rrelu => "rrelu",
    Softmax => "softmax",
    Softmin => "softmin",
    LogSoftmax => "log-softmax",
});

impl VectorFunction {
    /// Whether an element of the result depends on other elements of the vector.
    pub fn is_of_all_elements(self) -> bool {
        matches!(self, VectorFunction::Softmax | VectorFunction::Softmin | VectorFunction::LogSoftmax)
    }

    /// Applies the function to a vector, in place.
    pub fn apply(self, vector: &mut [f32]) {
        match self {
            VectorFunction::Softmax => softmax(vector, 1.0),
            VectorFunction::Softmin => softmax(vector, -1.0),
            VectorFunction::LogSoftmax => {
                let max = vector.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = vector.iter().map(|x| f64::from(x - max).exp()).sum();
                let log = f64::from(max) + sum.ln();
                vector.iter_mut().for_each(|x| *x = (f64::from(*x) - log) as f32);
            }
            _ => vector.iter_mut().for_each(|x| *x = self.of_element(*x)),
        }
    }

    fn of_element(self, x: f32) -> f32 {
        match self {
            VectorFunction::Elu if x <= 0.0 => x.exp_m1(),
            VectorFunction::Selu => {
                const SCALE: f32 = 1.050_701;
                const ALPHA: f32 = 1.673_263_2;
                if x > 0.0 { SCALE * x } else { SCALE * ALPHA * x.exp_m1() }
            }
            VectorFunction::Softplus if x <= 20.0 => softplus(x),
            VectorFunction::Softsign => x / (1.0 + x.abs()),
            VectorFunction::LogSigmoid => -softplus(-x),
            // clamp keeps NaN.
            VectorFunction::Hardtanh => x.clamp(-1.0, 1.0),
            VectorFunction::Hardsigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
            VectorFunction::Hardshrink if x.abs() <= 0.5 => 0.0,
            VectorFunction::Softshrink if x.abs() <= 0.5 => 0.0,
            VectorFunction::Softshrink => x - 0.5f32.copysign(x),
            VectorFunction::Tanhshrink => x - x.tanh(),
            VectorFunction::Rrelu if x < 0.0 => x * (11.0 / 48.0),
            _ => x,
        }
    }
}

/// `e^(sign · x)`, divided by its sum. NaN makes all elements NaN.
fn softmax(vector: &mut [f32], sign: f32) {
    let max = vector.iter().map(|x| sign * x).fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = vector.iter().map(|x| f64::from(sign * x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    vector.iter_mut().zip(powers).for_each(|(x, power)| *x = (power / sum) as f32);
}

/// An activation of `torch.nn`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TorchActivation {
    /// A function that kernels compute.
    Fused(Activation),
    /// Another function.
    Vector(VectorFunction),
}

impl TorchActivation {
    /// Applies the function to a vector, in place.
    pub fn apply(self, vector: &mut [f32]) {
        match self {
            TorchActivation::Fused(activation) => activation.apply(Isa::selected(), vector),
            TorchActivation::Vector(function) => function.apply(vector),
        }
    }
}

impl From<Activation> for TorchActivation {
    fn from(activation: Activation) -> Self {
        TorchActivation::Fused(activation)
    }
}

impl fmt::Display for TorchActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TorchActivation::Fused(activation) => write!(f, "{activation}"),
            TorchActivation::Vector(function) => f.write_str(function.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VectorFunction;
    use crate::named::Named;

    #[test]
    fn nan_and_infinity_are_those_of_pytorch() {
        for function in VectorFunction::ALL {
            let mut vector = [f32::NAN, 0.0];
            function.apply(&mut vector);
            assert!(vector[0].is_nan(), "{}", function.name());
        }
        let mut vector = [f32::NEG_INFINITY, 0.0, 1000.0];
        VectorFunction::Softplus.apply(&mut vector);
        assert_eq!(vector, [0.0, std::f32::consts::LN_2, 1000.0]);
        let mut vector = [-1000.0, 1000.0];
        VectorFunction::LogSoftmax.apply(&mut vector);
        assert_eq!(vector, [-2000.0, 0.0]);
    }
}
