//! Every CUDA kernel, as the operations launch it, against the plain candle reference: in an emulator on the
//! CPU, at sizes around the boundaries of blocks, vectors and tiles, in every dtype.

use crate::support::emulator;
use crate::support::first_difference;
use crate::support::operands;
use crate::support::operands::plain;
use candle_core::{DType, Device, Tensor};
use sconce::nn::EmbeddingTable;
use sconce::ops::activation::{Activation, NAMES};
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::{Attention, AttentionWindow, query_tiles};
use sconce::ops::gpu::Launch;
use sconce::ops::pooling::Pool;
use sconce::ops::rotary::Rotation;
use sconce::ops::{add_norm, linear, lookup, pooling};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn tensor(seed: usize, shape: &[usize], dtype: DType) -> Tensor {
    operands::tensor(seed, shape).to_dtype(dtype).unwrap()
}

fn to_f32(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F32).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    operands::flat(&to_f32(tensor))
}

/// Asserts that the output of a launch matches the reference within a few rounding errors of the dtype.
fn check(launch: &Launch, expected: &Tensor, dtype: DType, what: &str) {
    let found = emulator::launch(launch);
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let (atol, rtol) = match dtype {
        // For values up to 20.
        DType::F32 => (1e-5, 1e-5),
        DType::F16 => (1e-3, 2e-3),
        _ => (8e-3, 8e-3),
    };
    if let Some(difference) = first_difference(&flat(&found), &flat(expected), atol, rtol) {
        panic!("{}, {what}: {difference}", launch.kernel);
    }
}

#[test]
fn lookup_kernels_match_the_reference() {
    for dtype in DTYPES {
        for (rows, width) in [(1, 1), (3, 8), (5, 127), (2, 128), (2, 1032)] {
            for count in 1..=4 {
                let operands: Vec<(Tensor, Tensor)> = (0..count)
                    .map(|table| {
                        let indices: Vec<u32> = (0..rows).map(|row| ((row + table) * 5 % 7) as u32).collect();
                        (tensor(table, &[7, width], dtype), Tensor::new(indices, &Device::Cpu).unwrap())
                    })
                    .collect();
                let tables: Vec<(EmbeddingTable, Vec<u32>)> = operands
                    .iter()
                    .map(|(table, at)| {
                        (EmbeddingTable::resident(to_f32(table)).unwrap(), at.to_vec1().unwrap())
                    })
                    .collect();
                let tables: Vec<(&EmbeddingTable, &[u32])> =
                    tables.iter().map(|(table, at)| (table, &at[..])).collect();
                let norm = norm(NormKind::Layer, width, count % 2 == 0, dtype);
                for norm in [None, Some(&norm)] {
                    let expected = lookup::reference(&tables, norm, &Device::Cpu).unwrap();
                    let what = format!("{count} tables of {width}, norm {}", norm.is_some());
                    check(&lookup::launch(&operands, norm).unwrap(), &expected, dtype, &what);
                }
            }
        }
    }
}

#[test]
fn linear_kernels_match_the_reference() {
    for dtype in DTYPES {
        for (rows, width) in [(3, 7), (2, 1028)] {
            let y = (tensor(1, &[rows, width], dtype) * 6.0).unwrap();
            let residual = tensor(2, &[rows, width], dtype);
            for (name, activation) in NAMES {
                // The reference of a linear layer with the weight 1.
                let column = to_f32(&y).reshape(((), 1)).unwrap();
                let one = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
                let activated = linear::reference(&column, &one, None, *activation, None).unwrap();
                let activated = activated.reshape((rows, width)).unwrap();
                for residual in [None, Some(&residual)] {
                    let expected = match residual {
                        Some(residual) => (&activated + to_f32(residual)).unwrap(),
                        None => activated.clone(),
                    };
                    let launch = linear::launch(&y, *activation, residual).unwrap();
                    check(&launch, &expected, dtype, &format!("{name} of {rows} × {width}"));
                }
            }
        }
    }
}

fn norm(kind: NormKind, width: usize, bias: bool, dtype: DType) -> NormWeights {
    let bias = bias.then(|| tensor(4, &[width], dtype));
    NormWeights { kind, weight: tensor(3, &[width], dtype), bias, eps: 1e-3 }
}

#[test]
fn norm_kernels_match_the_reference() {
    for dtype in DTYPES {
        for (rows, width) in [(1, 1), (3, 7), (2, 8), (2, 384), (1, 1000), (1, 1024), (1, 5000)] {
            let (x, residual) = (tensor(1, &[rows, width], dtype), tensor(2, &[rows, width], dtype));
            // A mean far from 0: mean square minus squared mean would lose the digits.
            let x = (x + 20.0).unwrap();
            for kind in [NormKind::Layer, NormKind::RootMeanSquare] {
                for (bias, residual) in [(true, None), (true, Some(&residual)), (false, Some(&residual))] {
                    let norm = norm(kind, width, bias, dtype);
                    let expected = add_norm::reference(&x, residual, &norm).unwrap();
                    let launch = add_norm::launch(&x, residual, &norm).unwrap();
                    check(&launch, &expected, dtype, &format!("{kind:?} of {rows} × {width}"));
                }
            }
        }
    }
}

#[test]
fn rotary_kernels_match_the_reference() {
    for dtype in DTYPES {
        for (tokens, heads, head_dim, pairs) in
            [(1, 1, 2, 1), (5, 3, 8, 4), (4, 2, 10, 3), (3, 12, 64, 32), (2, 5, 130, 65)]
        {
            let x = tensor(1, &[tokens, heads * head_dim], dtype);
            let position_ids: Vec<u32> = (0..tokens as u32).map(|token| token * 3 % 7).collect();
            let angles = tensor(2, &[7, pairs], DType::F32);
            for interleaved in [false, true] {
                let rotation =
                    Rotation { cos: angles.cos().unwrap(), sin: angles.sin().unwrap(), interleaved };
                let expected = rotation.reference(&x, &position_ids, head_dim).unwrap();
                let position_ids = Tensor::new(&position_ids[..], &Device::Cpu).unwrap();
                let launch = rotation.launch(&x, &position_ids, head_dim).unwrap();
                check(&launch, &expected, dtype, &format!("{tokens} × {heads} · {head_dim}, {pairs} pairs"));
            }
        }
    }
}

#[test]
fn pooling_kernels_match_the_reference() {
    let cu_seqlens = [0, 1, 4, 5, 70];
    let device_seqlens = Tensor::new(&cu_seqlens.map(|offset| offset as u32), &Device::Cpu).unwrap();
    let pools =
        [Pool::Cls, Pool::Max, Pool::Mean, Pool::MeanSqrtLen, Pool::WeightedMean, Pool::Last, Pool::Pooler];
    for dtype in DTYPES {
        for width in [1, 127, 128, 129, 384] {
            let hidden = tensor(1, &[70, width], dtype);
            for pool in pools {
                // Longer prompts than some of the sequences.
                for prompt in [0, 1, 2] {
                    let expected = pooling::reference(&hidden, &cu_seqlens, &[pool], prompt).unwrap();
                    let launch = pool.launch(&hidden, &device_seqlens, prompt).unwrap();
                    let found = emulator::launch(&launch);
                    assert_eq!((found.dtype(), found.dims()), (DType::F32, expected.dims()));
                    // The maximum of no tokens is −∞, which no tolerance accepts.
                    let [found, expected] = [&found, &expected].map(|x| flat(&x.clamp(-1e9, 1e9).unwrap()));
                    let difference = first_difference(&found, &expected, 1e-6, 1e-5);
                    assert!(difference.is_none(), "{pool:?} of {width}, prompt {prompt}: {difference:?}");
                }
            }
        }
    }
}

/// Checks the attention kernel for sequences of these lengths, with `[heads, key_value_heads]`.
fn check_attention(
    lengths: &[usize],
    heads: [usize; 2],
    head_dim: usize,
    window: AttentionWindow,
    dtype: DType,
) {
    let [heads, key_value_heads] = heads;
    let cu_seqlens = operands::cu_seqlens(lengths);
    let tokens = cu_seqlens[lengths.len()];
    let [q, k] = [(1, heads), (2, key_value_heads)]
        .map(|(seed, heads)| (tensor(seed, &[tokens, heads * head_dim], dtype) * 2.0).unwrap());
    let v = tensor(3, &[tokens, key_value_heads * head_dim], dtype);
    let attention = Attention { key_value_heads, window, ..plain(heads, head_dim) };
    let expected = attention.reference(&q, &k, &v, &cu_seqlens).unwrap();
    let query_tiles = query_tiles(&cu_seqlens, &Device::Cpu).unwrap();
    let launch = attention.launch(&q, &k, &v, &query_tiles).unwrap();
    check(&launch, &expected, dtype, &format!("{lengths:?}, {heads} heads of {head_dim}, {window:?}"));
}

#[test]
fn attention_kernels_match_the_reference() {
    for dtype in [DType::F16, DType::BF16] {
        for head_dim in [32, 64, 96, 128] {
            check_attention(&[1, 63, 64, 65, 2, 130], [2, 2], head_dim, AttentionWindow::FULL, dtype);
        }
        check_attention(&[16, 17, 300], [1, 1], 32, AttentionWindow::FULL, dtype);
        check_attention(&[40, 5], [6, 2], 32, AttentionWindow::FULL, dtype);
    }
}

#[test]
fn attention_kernels_with_windows_match_the_reference() {
    for (left, right) in [(0, 0), (1, 0), (0, 3), (5, 5), (64, 64), (usize::MAX, 0), (200, 0), (70, 2)] {
        check_attention(&[1, 64, 65, 200], [2, 1], 32, AttentionWindow { left, right }, DType::F16);
    }
}

/// A kernel would read such operands past their end or misinterpret them.
#[test]
fn operands_that_do_not_match_are_rejected() {
    let of = |shape: &[usize], dtype| tensor(1, shape, dtype);
    let (x, wide) = (of(&[3, 8], DType::F16), of(&[3, 8], DType::F32));
    let (row, index) = (of(&[8], DType::F16), Tensor::new(&[0u32, 1, 2], &Device::Cpu).unwrap());
    let short = of(&[2, 8], DType::F16);
    assert!(linear::launch(&of(&[3, 8], DType::F64), Activation::Gelu, None).is_err(), "no kernel for f64");
    for residual in [&short, &wide] {
        assert!(linear::launch(&x, Activation::Gelu, Some(residual)).is_err());
    }
    let norm = |weight: &Tensor, bias: Option<&Tensor>| {
        let norm =
            NormWeights { kind: NormKind::Layer, weight: weight.clone(), bias: bias.cloned(), eps: 0.1 };
        add_norm::launch(&x, Some(&x), &norm).is_ok()
    };
    assert!(norm(&row, Some(&row)) && norm(&row, None));
    assert!(!norm(&of(&[7], DType::F16), None) && !norm(&row, Some(&of(&[8], DType::F32))));
    assert!(lookup::launch(&[(x.clone(), index.clone()), (short.clone(), index.clone())], None).is_ok());
    assert!(lookup::launch(&[(x.clone(), index.clone()), (wide.clone(), index.clone())], None).is_err());
    assert!(lookup::launch(&vec![(x.clone(), index.clone()); 5], None).is_err(), "five tables");
    let plain = Attention { key_value_heads: 1, ..plain(2, 4) };
    let query_tiles = query_tiles(&[0, 3], &Device::Cpu).unwrap();
    assert!(plain.launch(&x, &of(&[3, 4], DType::F16), &of(&[3, 4], DType::F16), &query_tiles).is_ok());
    for keys in [&x, &of(&[2, 4], DType::F16), &of(&[3, 4], DType::BF16)] {
        assert!(plain.launch(&x, keys, keys, &query_tiles).is_err());
    }
    let rotation = Rotation { cos: of(&[4, 2], DType::F32), sin: of(&[4, 2], DType::F32), interleaved: true };
    assert!(rotation.launch(&x, &index, 4).is_ok());
    assert!(rotation.launch(&short, &index, 4).is_err(), "one position too many");
}
