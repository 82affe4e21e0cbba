//! A mixture of experts (Shazeer et al. 2017) in place of a feed-forward network.

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::{Activation, Backend, EncoderSpec, ExpertsSpec, Matrix, WeightSource};
use crate::ops::experts::{Route, combine, route};
use crate::ops::feed_forward::{FeedForwardLayers, feed_forward};

/// `b + Σ wₑ downₑ(f(upₑ(x)))` over the experts `e` of a token: those with the largest logits `router(x)`;
/// `w` is the softmax of all logits.
pub(super) struct Experts {
    router: Linear,
    experts: Vec<[Linear; 2]>,
    bias: Tensor,
    activation: Activation,
    spec: ExpertsSpec,
}

impl Experts {
    /// Loads `NAME.router`, the matrices `NAME.experts.{up,down}` of all experts, each one tensor of
    /// `(experts · intermediate, hidden)`, and their common `NAME.experts.bias`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        experts: &ExpertsSpec,
    ) -> Result<Self> {
        let (hidden, intermediate, count) = (spec.hidden_size, spec.intermediate_size, experts.count);
        // A router of low precision would give tokens other experts.
        let backend = match source.backend() {
            Backend::Cpu(_) => Backend::default(),
            device => device.clone(),
        };
        let router = source.tensor(&format!("{name}.router.weight"), &[count, hidden])?;
        let mut stacked = |module: &str, is_transposed: bool| {
            source.stacked_matrices(
                &format!("{name}.experts.{module}.weight"),
                count,
                [intermediate, hidden],
                is_transposed,
            )
        };
        let (up, down) = (stacked("up", false)?, stacked("down", true)?);
        let pair = |(up, down)| Ok([Linear::new(up)?, Linear::new(down)?]);
        Ok(Experts {
            router: Linear::new(Matrix::new(router, &backend)?)?,
            experts: up.into_iter().zip(down).map(pair).collect::<Result<_>>()?,
            bias: source.tensor(&format!("{name}.experts.bias"), &[hidden])?,
            activation: spec.activation,
            spec: experts.clone(),
        })
    }

    /// The output of each token's experts, plus the residual if there is one: `(T, H)` → `(T, H)`.
    pub(super) fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let logits = self.router.forward(x, Activation::Identity)?;
        let routes = route(&logits, self.spec.per_token, self.spec.normalize)?;
        let output = |(route, [up, down]): (_, &[Linear; 2])| -> Result<(_, Tensor)> {
            let route: &Route = route;
            let rows = Tensor::new(&route.rows[..], x.device())?;
            let layers = FeedForwardLayers { gate: None, up: &up.weights, down: &down.weights };
            Ok((route, feed_forward(layers, &x.index_select(&rows, 0)?, self.activation, None)?))
        };
        let used = routes.iter().zip(&self.experts).filter(|(route, _)| !route.rows.is_empty());
        let outputs = used.map(output).collect::<Result<Vec<_>>>()?;
        let sum = combine(&outputs, &self.bias, x.dim(0)?)?;
        Ok(match residual {
            Some(residual) => (sum + residual)?,
            None => sum,
        })
    }
}
