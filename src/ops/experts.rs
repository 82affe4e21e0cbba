//! Routing of a mixture of experts (Shazeer et al. 2017, §2): which expert computes which tokens, and the
//! weighted sum of their outputs. Experts add to a token in their own order, so that a sum does not depend on
//! the other tokens of a batch.

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::host::{host_slice, is_host_f32};
use super::scratch::ROWS_PER_TASK;

/// The tokens of one expert.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Route {
    /// Rows of the tokens, ascending.
    pub rows: Vec<u32>,
    /// The factor on the expert's output for each of them.
    pub weights: Vec<f32>,
}

/// Routes each token to the `chosen` experts with the largest logits, the earlier of two that are equal, with
/// the softmax of all logits as weights, of those of a token with a sum of 1 if `normalize`. `logits` are
/// `(T, experts)`; returns a route for each expert.
///
/// # Errors
/// If a token has fewer logits than `chosen`, or they cannot be copied from their device.
pub fn route(logits: &Tensor, chosen: usize, normalize: bool) -> Result<Vec<Route>> {
    let (tokens, experts) = logits.dims2()?;
    if chosen > experts {
        candle_core::bail!("{chosen} experts for each token of {experts}");
    }
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(candle_core::DType::F32)?.contiguous()?;
    let logits = host_slice(&logits)?;
    let mut routes = vec![Route::default(); experts];
    let mut ranked: Vec<usize> = Vec::with_capacity(experts);
    for token in 0..tokens {
        let logits = &logits[token * experts..][..experts];
        ranked.clear();
        ranked.extend(0..experts);
        // Stable: the earlier of two equal logits stays first.
        ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let max = logits[ranked[0]];
        let sum_of =
            |ids: &mut dyn Iterator<Item = usize>| ids.map(|id| (logits[id] - max).exp()).sum::<f32>();
        let sum =
            if normalize { sum_of(&mut ranked[..chosen].iter().copied()) } else { sum_of(&mut (0..experts)) };
        for id in &ranked[..chosen] {
            routes[*id].rows.push(token as u32);
            routes[*id].weights.push((logits[*id] - max).exp() / sum);
        }
    }
    Ok(routes)
}

/// For each of `tokens` the weighted sum of its experts' outputs, in the order of the experts, plus the
/// `bias` `(H)`: `(T, H)`. `outputs` has the outputs of the experts that have tokens, one row for each row of
/// their routes.
///
/// # Errors
/// If shapes or devices do not match.
pub fn combine(outputs: &[(&Route, Tensor)], bias: &Tensor, tokens: usize) -> Result<Tensor> {
    let width = bias.dim(0)?;
    if !is_host_f32(bias) || outputs.iter().any(|(_, output)| !is_host_f32(output)) {
        return reference(outputs, bias, tokens);
    }
    // For each token the weights and rows of its experts.
    let mut parts: Vec<Vec<(f32, usize, usize)>> = vec![Vec::new(); tokens];
    for (index, (route, output)) in outputs.iter().enumerate() {
        if output.dims() != [route.rows.len(), width] {
            candle_core::bail!(
                "an expert of {} tokens has an output of {:?}",
                route.rows.len(),
                output.dims()
            );
        }
        for (row, (token, weight)) in route.rows.iter().zip(&route.weights).enumerate() {
            parts[*token as usize].push((*weight, index, row));
        }
    }
    let bias = host_slice(bias)?;
    let values = outputs.iter().map(|(_, output)| host_slice(output)).collect::<Result<Vec<_>>>()?;
    let mut sums = vec![0f32; tokens * width];
    let values: Vec<&[f32]> = values.iter().map(|values| &**values).collect();
    let bias = &*bias;
    sums.par_chunks_mut(width).zip(&parts).with_min_len(ROWS_PER_TASK).for_each(|(sum, parts)| {
        for (weight, index, row) in parts {
            let output = &values[*index][row * width..][..width];
            sum.iter_mut().zip(output).for_each(|(sum, x)| *sum += weight * x);
        }
        sum.iter_mut().zip(bias).for_each(|(sum, x)| *sum += x);
    });
    Tensor::from_vec(sums, (tokens, width), &Device::Cpu)
}

/// [`combine`] in plain candle operations.
///
/// # Errors
/// As [`combine`].
pub fn reference(outputs: &[(&Route, Tensor)], bias: &Tensor, tokens: usize) -> Result<Tensor> {
    let (device, dtype) = (bias.device(), bias.dtype());
    let mut sum = Tensor::zeros((tokens, bias.dim(0)?), dtype, device)?;
    for (route, output) in outputs {
        let rows = Tensor::new(&route.rows[..], device)?;
        let weights = Tensor::new(&route.weights[..], device)?.to_dtype(dtype)?.unsqueeze(1)?;
        sum = sum.index_add(&rows, &output.broadcast_mul(&weights)?, 0)?;
    }
    sum.broadcast_add(bias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_the_experts_with_the_largest_logits() {
        let logits =
            Tensor::new(&[[0f32, 2.0, 1.0], [3.0, 3.0, 3.0], [-1.0, f32::NEG_INFINITY, -2.0]], &Device::Cpu);
        let routes = route(&logits.unwrap(), 2, false).unwrap();
        let rows: Vec<&[u32]> = routes.iter().map(|route| &route.rows[..]).collect();
        assert_eq!(rows, [&[1, 2][..], &[0, 1], &[0, 2]]);
        let sum = 1.0 + (-1f32).exp() + (-2f32).exp();
        assert!((routes[1].weights[0] - 1.0 / sum).abs() < 1e-6, "{routes:?}");
        assert!((routes[2].weights[0] - (-1f32).exp() / sum).abs() < 1e-6, "{routes:?}");
    }

    #[test]
    fn normalized_weights_of_a_token_have_a_sum_of_1() {
        let logits = Tensor::new(&[[0f32, 2.0, 1.0, -1.0]], &Device::Cpu).unwrap();
        let routes = route(&logits, 2, true).unwrap();
        let sum: f32 = routes.iter().flat_map(|route| &route.weights).sum();
        assert!((sum - 1.0).abs() < 1e-6 && routes[0].rows.is_empty(), "{routes:?}");
    }

    #[test]
    fn sums_are_those_of_the_reference() {
        let logits = Tensor::randn(0f32, 1.0, (37, 5), &Device::Cpu).unwrap();
        let routes = route(&logits, 3, false).unwrap();
        let output = |route: &Route| Tensor::randn(0f32, 1.0, (route.rows.len(), 7), &Device::Cpu).unwrap();
        let outputs: Vec<_> = routes.iter().map(|route| (route, output(route))).collect();
        let bias = Tensor::randn(0f32, 1.0, 7, &Device::Cpu).unwrap();
        let flat = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (found, expected) =
            (flat(combine(&outputs, &bias, 37).unwrap()), flat(reference(&outputs, &bias, 37).unwrap()));
        assert_eq!(found, expected, "the same operations in the same order");
    }
}
