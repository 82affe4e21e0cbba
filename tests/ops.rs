//! The CPU path of every operation against its plain candle reference, at sizes that straddle the tiles.

mod support;

use candle_core::{DType, Device, Tensor};
use sconce::kernels::isa::Isa;
use sconce::kernels::matmul::{PANEL, PackedMatrix, multiply_panel};
use sconce::nn::{Stored, Table};
use sconce::ops::activation::Activation;
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::Heads;
use sconce::ops::{add_norm, attention, linear, lookup};
use std::sync::Arc;
use support::assert_close;

/// Numbers that are the same in every run: a Weyl sequence over (-1, 1).
fn tensor(seed: usize, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i + 1) * (2 * seed + 1)) as f64 * 0.618_033_988_749_895 % 1.0;
    let values: Vec<f32> = (0..count).map(|i| 2.0 * value(i) as f32 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn linear_layers() {
    for rows in [1, 2, 11, 12, 13, 95, 96, 97, 193] {
        for (inputs, outputs) in [(1, 1), (7, 31), (32, 32), (33, 65)] {
            let (x, w) = (tensor(1, &[rows, inputs]), tensor(2, &[outputs, inputs]));
            let bias = tensor(3, &[outputs]);
            let layer = linear::LinearWeights::new(w.clone(), Some(bias.clone())).unwrap();
            for activation in [Activation::Identity, Activation::Gelu, Activation::Relu] {
                let found = layer.forward(&x, activation).unwrap();
                let expected = linear::reference(&x, &w, Some(&bias), activation).unwrap();
                assert_close(&flat(&found), &flat(&expected), 1e-6, 1e-5);
            }
            let layer = linear::LinearWeights::new(w.clone(), None).unwrap();
            let found = layer.forward(&x, Activation::Identity).unwrap();
            let expected = linear::reference(&x, &w, None, Activation::Identity).unwrap();
            assert_close(&flat(&found), &flat(&expected), 1e-6, 1e-5);
        }
    }
}

/// The kernel in every instruction set of the machine against a sum written out, and each row's bits against
/// the same row alone.
#[test]
fn panels_in_every_instruction_set() {
    for isa in Isa::available() {
        for rows in 1..=27 {
            for (inputs, outputs) in [(1, 1), (3, 32), (65, 33)] {
                let (x, w) = (flat(&tensor(1, &[rows, inputs])), flat(&tensor(2, &[outputs, inputs])));
                let packed = PackedMatrix::pack(&w, outputs, inputs);
                let multiply = |x: &[f32], panel: usize| {
                    let mut sums = vec![];
                    multiply_panel(isa, x, &packed, panel, |row, part| {
                        assert_eq!(row, sums.len());
                        sums.push(*part);
                    });
                    sums
                };
                for panel in 0..packed.panels() {
                    let found = multiply(&x, panel);
                    assert_eq!(found.len(), rows);
                    for (row, sums) in found.iter().enumerate() {
                        let x = &x[row * inputs..][..inputs];
                        assert_eq!(multiply(x, panel), [*sums], "{isa:?}: row {row} of {rows}");
                        let expected: Vec<f32> = (panel * PANEL..(panel + 1) * PANEL)
                            .map(|output| match w.chunks(inputs).nth(output) {
                                Some(w) => x.iter().zip(w).map(|(x, w)| (x * w) as f64).sum::<f64>() as f32,
                                None => 0.0,
                            })
                            .collect();
                        assert_close(sums, &expected, 1e-6, 1e-5);
                    }
                }
            }
        }
    }
}

fn norm(kind: NormKind, width: usize, bias: bool, eps: f64) -> NormWeights {
    let bias = bias.then(|| tensor(4, &[width]));
    NormWeights { kind, weight: tensor(3, &[width]), bias, eps }
}

#[test]
fn norms_with_and_without_residual() {
    for rows in [1, 15, 16, 17, 50] {
        for width in [1, 15, 16, 17, 384] {
            let (x, residual) = (tensor(1, &[rows, width]), tensor(2, &[rows, width]));
            for residual in [None, Some(&residual)] {
                for kind in [NormKind::Layer, NormKind::RootMeanSquare] {
                    for norm in [norm(kind, width, true, 1e-5), norm(kind, width, false, 1e-3)] {
                        let expected = add_norm::reference(&x, residual, &norm).unwrap();
                        let found = add_norm::add_norm(x.copy().unwrap(), residual, &norm).unwrap();
                        assert_close(&flat(&found), &flat(&expected), 2e-6, 1e-5);
                    }
                }
            }
        }
    }
}

/// A mean that is large beside the spread costs a one-pass variance all its digits.
#[test]
fn norm_with_a_large_mean() {
    let width = 64;
    let x: Vec<f32> = (0..width).map(|i| 1000.0 + i as f32).collect();
    let x = Tensor::from_vec(x, (1, width), &Device::Cpu).unwrap();
    let weight = Tensor::ones(width, DType::F32, &Device::Cpu).unwrap();
    let norm = NormWeights { kind: NormKind::Layer, weight, bias: None, eps: 1e-12 };
    // 0..64 has the mean 31.5 and the variance (64² − 1) / 12.
    let std = ((64f64 * 64.0 - 1.0) / 12.0).sqrt();
    let expected: Vec<f32> = (0..width).map(|i| ((i as f64 - 31.5) / std) as f32).collect();
    for found in [add_norm::reference(&x, None, &norm), add_norm::add_norm(x.copy().unwrap(), None, &norm)] {
        assert_close(&flat(&found.unwrap()), &expected, 1e-5, 1e-5);
    }
}

/// Ragged attention against the padded rectangle with its padding mask.
#[test]
fn ragged_attention_is_padded_attention() {
    for lengths in [&[1][..], &[16], &[17], &[1, 2, 3], &[15, 1, 33], &[64, 5]] {
        for heads in [Heads { count: 1, size: 1 }, Heads { count: 3, size: 12 }, Heads { count: 4, size: 32 }]
        {
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                }))
                .collect();
            let shape = [*offsets.last().unwrap(), heads.count * heads.size];
            let [q, k, v] = [1, 2, 3].map(|seed| (tensor(seed, &shape) * 3.0).unwrap());
            let longest = lengths.iter().max().unwrap();
            // With room for longer texts than there are, and with none.
            for most in [longest + 3, *longest] {
                let bias = (tensor(4, &[heads.count, 2 * most - 1]) * 2.0).unwrap();
                for bias in [None, Some(&bias)] {
                    let found = attention::attention(&q, &k, &v, &offsets, heads, bias).unwrap();
                    let expected = attention::reference(&q, &k, &v, &offsets, heads, bias).unwrap();
                    assert_eq!(found.dims(), shape);
                    assert_close(&flat(&found), &flat(&expected), 2e-6, 1e-5);
                }
            }
        }
    }
}

/// A table read where it lies against the same table as a tensor, in every storage type.
#[test]
fn sums_of_looked_up_rows() {
    let (rows, width) = (5, 7);
    let table = tensor(1, &[rows, width]);
    let indices: [&[u32]; 2] = [&[0, 4, 4, 2], &[1, 0, 3, 1]];
    for (format, dtype) in [
        (Stored::F64, DType::F64),
        (Stored::F32, DType::F32),
        (Stored::F16, DType::F16),
        (Stored::BF16, DType::BF16),
    ] {
        let stored = table.to_dtype(dtype).unwrap();
        // The bytes as safetensors lays them out, behind three bytes that are not the table's.
        let mut bytes = vec![0xff; 3];
        match dtype {
            DType::F64 => bytes.extend(
                stored.flatten_all().unwrap().to_vec1::<f64>().unwrap().iter().flat_map(|x| x.to_le_bytes()),
            ),
            DType::F32 => bytes.extend(flat(&stored).iter().flat_map(|x| x.to_le_bytes())),
            DType::F16 => bytes.extend(
                stored
                    .flatten_all()
                    .unwrap()
                    .to_vec1::<half::f16>()
                    .unwrap()
                    .iter()
                    .flat_map(|x| x.to_le_bytes()),
            ),
            _ => bytes.extend(
                stored
                    .flatten_all()
                    .unwrap()
                    .to_vec1::<half::bf16>()
                    .unwrap()
                    .iter()
                    .flat_map(|x| x.to_le_bytes()),
            ),
        }
        let range = 3..bytes.len();
        let mapped = Table::stored(Arc::new(bytes), range, format, rows, width);
        let resident = Table::resident(stored.to_dtype(DType::F32).unwrap()).unwrap();
        let expected =
            lookup::reference(&[(&resident, indices[0]), (&resident, indices[1])], &Device::Cpu).unwrap();
        for (a, b) in [(&mapped, &mapped), (&resident, &mapped), (&mapped, &resident)] {
            let found = lookup::lookup_sum(&[(a, indices[0]), (b, indices[1])], &Device::Cpu).unwrap();
            assert_close(&flat(&found), &flat(&expected), 0.0, 0.0);
        }
    }
}
