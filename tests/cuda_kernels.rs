//! Every kernel for GPUs, as the operations launch it, against the plain candle reference: in an emulator on the CPU, at
//! sizes that straddle blocks, vectors and tiles, in every type.

#[path = "support/emulator.rs"]
mod emulator;
#[path = "support/operands.rs"]
mod operands;
mod support;

use candle_core::{DType, Device, Tensor};
use operands::{offsets, plain};
use sconce::nn::Table;
use sconce::ops::activation::{Activation, NAMES};
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::{Attention, Visible, tiles};
use sconce::ops::gpu::Launch;
use sconce::ops::pooling::Pool;
use sconce::ops::rotary::Rotation;
use sconce::ops::{add_norm, linear, lookup, pooling};
use support::first_difference;

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn tensor(seed: usize, shape: &[usize], dtype: DType) -> Tensor {
    operands::tensor(seed, shape).to_dtype(dtype).unwrap()
}

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F32).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    operands::flat(&wide(tensor))
}

/// Compares what a launch writes with what it should be, within some roundings to its type.
fn check(launch: &Launch, expected: &Tensor, dtype: DType, what: &str) {
    let found = emulator::launch(launch);
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let (atol, rtol) = match dtype {
        // Of numbers up to 20.
        DType::F32 => (1e-5, 1e-5),
        DType::F16 => (1e-3, 2e-3),
        _ => (8e-3, 8e-3),
    };
    if let Some(difference) = first_difference(&flat(&found), &flat(expected), atol, rtol) {
        panic!("{}, {what}: {difference}", launch.kernel);
    }
}

#[test]
fn sums_of_embeddings() {
    for dtype in TYPES {
        for (rows, width) in [(1, 1), (3, 8), (5, 127), (2, 128), (2, 1032)] {
            for count in 1..=4 {
                let operands: Vec<(Tensor, Tensor)> = (0..count)
                    .map(|table| {
                        let indices: Vec<u32> = (0..rows).map(|row| ((row + table) * 5 % 7) as u32).collect();
                        (tensor(table, &[7, width], dtype), Tensor::new(indices, &Device::Cpu).unwrap())
                    })
                    .collect();
                let tables: Vec<(Table, Vec<u32>)> = operands
                    .iter()
                    .map(|(table, at)| (Table::resident(wide(table)).unwrap(), at.to_vec1().unwrap()))
                    .collect();
                let tables: Vec<(&Table, &[u32])> =
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
fn activations_and_residuals() {
    for dtype in TYPES {
        for (rows, width) in [(3, 7), (2, 1028)] {
            let y = (tensor(1, &[rows, width], dtype) * 6.0).unwrap();
            let residual = tensor(2, &[rows, width], dtype);
            for (name, activation) in NAMES {
                // A column by itself times 1.
                let column = wide(&y).reshape(((), 1)).unwrap();
                let one = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
                let activated = linear::reference(&column, &one, None, *activation, None).unwrap();
                let activated = activated.reshape((rows, width)).unwrap();
                for residual in [None, Some(&residual)] {
                    let expected = match residual {
                        Some(residual) => (&activated + wide(residual)).unwrap(),
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
fn norms() {
    for dtype in TYPES {
        for (rows, width) in [(1, 1), (3, 7), (2, 8), (2, 384), (1, 1000), (1, 1024), (1, 5000)] {
            let (x, residual) = (tensor(1, &[rows, width], dtype), tensor(2, &[rows, width], dtype));
            // The mean is far from 0: the square of the mean is not to be taken from the mean square.
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
fn rotations() {
    for dtype in TYPES {
        for (tokens, heads, size, pairs) in
            [(1, 1, 2, 1), (5, 3, 8, 4), (4, 2, 10, 3), (3, 12, 64, 32), (2, 5, 130, 65)]
        {
            let x = tensor(1, &[tokens, heads * size], dtype);
            let places: Vec<u32> = (0..tokens as u32).map(|token| token * 3 % 7).collect();
            let angles = tensor(2, &[7, pairs], DType::F32);
            for neighbours in [false, true] {
                let rotation =
                    Rotation { cos: angles.cos().unwrap(), sin: angles.sin().unwrap(), neighbours };
                let expected = rotation.reference(&x, &places, size).unwrap();
                let places = Tensor::new(&places[..], &Device::Cpu).unwrap();
                let launch = rotation.launch(&x, &places, size).unwrap();
                check(&launch, &expected, dtype, &format!("{tokens} × {heads} · {size}, {pairs} pairs"));
            }
        }
    }
}

#[test]
fn poolings() {
    let offsets = [0, 1, 4, 5, 70];
    let at = Tensor::new(&offsets.map(|offset| offset as u32), &Device::Cpu).unwrap();
    let pools =
        [Pool::Cls, Pool::Max, Pool::Mean, Pool::MeanSqrtLen, Pool::WeightedMean, Pool::Last, Pool::Pooler];
    for dtype in TYPES {
        for width in [1, 127, 128, 129, 384] {
            let hidden = tensor(1, &[70, width], dtype);
            for pool in pools {
                // Longer than some of the texts.
                for prompt in [0, 1, 2] {
                    let expected = pooling::reference(&hidden, &offsets, &[pool], prompt).unwrap();
                    let launch = pool.launch(&hidden, &at, prompt).unwrap();
                    let found = emulator::launch(&launch);
                    assert_eq!((found.dtype(), found.dims()), (DType::F32, expected.dims()));
                    // The largest of no tokens is −∞, which is not within anything of itself.
                    let [found, expected] = [&found, &expected].map(|x| flat(&x.clamp(-1e9, 1e9).unwrap()));
                    let difference = first_difference(&found, &expected, 1e-6, 1e-5);
                    assert!(difference.is_none(), "{pool} of {width}, prompt {prompt}: {difference:?}");
                }
            }
        }
    }
}

/// Texts of these lengths, in heads of a size.
fn attend(lengths: &[usize], heads: [usize; 2], size: usize, visible: Visible, dtype: DType) {
    let [heads, key_value_heads] = heads;
    let offsets = offsets(lengths);
    let tokens = offsets[lengths.len()];
    let [q, k] = [(1, heads), (2, key_value_heads)]
        .map(|(seed, heads)| (tensor(seed, &[tokens, heads * size], dtype) * 2.0).unwrap());
    let v = tensor(3, &[tokens, key_value_heads * size], dtype);
    let attention = Attention { key_value_heads, visible, ..plain(heads, size) };
    let expected = attention.reference(&q, &k, &v, &offsets).unwrap();
    let tiles = tiles(&offsets, &Device::Cpu).unwrap();
    let launch = attention.launch(&q, &k, &v, &tiles).unwrap();
    check(&launch, &expected, dtype, &format!("{lengths:?}, {heads} heads of {size}, {visible:?}"));
}

#[test]
fn attention_over_tiles() {
    for dtype in [DType::F16, DType::BF16] {
        for size in [32, 64, 96, 128] {
            attend(&[1, 63, 64, 65, 2, 130], [2, 2], size, Visible::ALL, dtype);
        }
        attend(&[16, 17, 300], [1, 1], 32, Visible::ALL, dtype);
        attend(&[40, 5], [6, 2], 32, Visible::ALL, dtype);
    }
}

#[test]
fn attention_behind_masks() {
    for (before, after) in [(0, 0), (1, 0), (0, 3), (5, 5), (64, 64), (usize::MAX, 0), (200, 0), (70, 2)] {
        attend(&[1, 64, 65, 200], [2, 1], 32, Visible { before, after }, DType::F16);
    }
}

/// What a kernel would read past its end, or as another type, is not launched.
#[test]
fn operands_that_do_not_fit_are_refused() {
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
    let tiles = tiles(&[0, 3], &Device::Cpu).unwrap();
    assert!(plain.launch(&x, &of(&[3, 4], DType::F16), &of(&[3, 4], DType::F16), &tiles).is_ok());
    for keys in [&x, &of(&[2, 4], DType::F16), &of(&[3, 4], DType::BF16)] {
        assert!(plain.launch(&x, keys, keys, &tiles).is_err());
    }
    let rotation = Rotation { cos: of(&[4, 2], DType::F32), sin: of(&[4, 2], DType::F32), neighbours: true };
    assert!(rotation.launch(&x, &index, 4).is_ok());
    assert!(rotation.launch(&short, &index, 4).is_err(), "a place too many");
}
