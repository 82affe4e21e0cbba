//! The CPU path of every operation against its plain candle reference, at sizes that straddle the tiles.

#[path = "support/operands.rs"]
mod operands;
mod support;

use candle_core::{DType, Device, Tensor};
use operands::{flat, offsets, plain, tensor};
use sconce::nn::{Stored, Table};
use sconce::ops::activation::Activation;
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::{Attention, Relative, Visible};
use sconce::ops::engine::Engine;
use sconce::ops::pooling::{self, Pool};
use sconce::ops::rotary::Rotation;
use sconce::ops::{add_norm, attention, linear, lookup};
use std::sync::Arc;
use support::assert_close;

#[test]
fn linear_layers() {
    for rows in [1, 2, 5, 6, 7, 11, 12, 13, 24, 167, 168, 169, 340] {
        for (inputs, outputs) in [(1, 1), (7, 31), (32, 32), (33, 65), (385, 17)] {
            let (x, w) = (tensor(1, &[rows, inputs]), tensor(2, &[outputs, inputs]));
            let bias = tensor(3, &[outputs]);
            let residual = tensor(4, &[rows, outputs]);
            for (bias, residual) in [(Some(&bias), None), (Some(&bias), Some(&residual)), (None, None)] {
                let layer = linear::LinearWeights::new(
                    linear::Matrix::new(w.clone(), &Engine::default()).unwrap(),
                    bias.cloned(),
                )
                .unwrap();
                for activation in [Activation::Identity, Activation::Gelu, Activation::Relu] {
                    let found = layer.forward(&x, activation, residual).unwrap();
                    let expected = linear::reference(&x, &w, bias, activation, residual).unwrap();
                    assert_close(&flat(&found), &flat(&expected), 1e-5, 1e-5);
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

/// Where the CPU path does not serve, texts of like lengths are padded together, in parts where they are many.
#[test]
fn attention_padded_by_length() {
    for lengths in [&[1, 30, 2, 31, 1, 5][..], &[1500, 3, 1500, 1499], &[7]] {
        let offsets = offsets(lengths);
        let tokens = offsets[lengths.len()];
        let [q, k, v] = [1, 2, 3].map(|seed| tensor(seed, &[tokens, 8]).to_dtype(DType::F16).unwrap());
        let attention = Attention { visible: Visible { before: 40, after: 2 }, ..plain(2, 4) };
        let [found, expected] =
            [attention.forward(&q, &k, &v, &offsets), attention.reference(&q, &k, &v, &offsets)]
                .map(|x| flat(&x.unwrap().to_dtype(DType::F32).unwrap()));
        assert_close(&found, &expected, 1e-3, 1e-3);
    }
}

/// The CPU path against the reference, for keys and values of so many columns a head.
fn compare(attention: &Attention, lengths: &[usize], size: usize, value_heads: usize, value_size: usize) {
    let offsets = offsets(lengths);
    let tokens = offsets[lengths.len()];
    let operand = |seed, width: usize| (tensor(seed, &[tokens, width]) * 3.0).unwrap();
    let q = operand(1, attention.heads * size);
    let k = operand(2, attention.key_value_heads * size);
    let v = operand(3, value_heads * value_size);
    let found = attention.forward(&q, &k, &v, &offsets).unwrap();
    let expected = attention.reference(&q, &k, &v, &offsets).unwrap();
    assert_eq!(found.dims(), expected.dims());
    assert_close(&flat(&found), &flat(&expected), 5e-6, 1e-5);
}

/// The last is longer than the block of queries whose scores are held at a time.
const LENGTHS: [&[usize]; 7] = [&[1], &[16], &[17], &[1, 2, 3], &[15, 1, 33], &[64, 5], &[513, 3]];

/// Ragged attention against the padded rectangle with its padding mask.
#[test]
fn ragged_attention_is_padded_attention() {
    for lengths in LENGTHS {
        for (heads, size) in [(1, 1), (3, 12), (4, 32)] {
            compare(&plain(heads, size), lengths, size, heads, size);
            let longest = lengths.iter().max().unwrap();
            // With room for longer texts than there are, and with none.
            for most in [longest + 3, *longest] {
                let bias = (tensor(4, &[heads, 2 * most - 1]) * 2.0).unwrap();
                let attention = Attention { bias: Some(&bias), ..plain(heads, size) };
                compare(&attention, lengths, size, heads, size);
            }
        }
    }
}

#[test]
fn values_of_another_size_and_shared_keys() {
    for lengths in LENGTHS {
        compare(&plain(3, 12), lengths, 12, 3, 5);
        for key_value_heads in [1, 2, 3] {
            compare(&Attention { key_value_heads, ..plain(6, 4) }, lengths, 4, key_value_heads, 7);
        }
    }
}

#[test]
fn masks() {
    for lengths in LENGTHS {
        for (before, after) in [(0, 0), (usize::MAX, 0), (3, 3), (16, 1), (40, 40)] {
            let attention = Attention { visible: Visible { before, after }, ..plain(2, 6) };
            compare(&attention, lengths, 6, 2, 6);
        }
    }
}

#[test]
fn talking_heads() {
    let (before, after) = (tensor(5, &[5, 3]), tensor(6, &[4, 5]));
    let (same, bias) = (tensor(7, &[3, 3]), tensor(8, &[3, 1025]));
    for lengths in LENGTHS {
        for visible in [Visible::ALL, Visible { before: usize::MAX, after: 0 }] {
            let plain = Attention { visible, ..plain(3, 8) };
            let both = Attention { mix_before: Some(&before), mix_after: Some(&after), ..plain.clone() };
            compare(&both, lengths, 8, 4, 6);
            compare(&Attention { bias: Some(&bias), ..both }, lengths, 8, 4, 6);
            compare(&Attention { mix_before: Some(&before), ..plain.clone() }, lengths, 8, 5, 6);
            compare(&Attention { mix_after: Some(&same), ..plain }, lengths, 8, 3, 8);
        }
    }
}

#[test]
fn distances_that_meet_queries_and_keys() {
    let (span, heads, size) = (9, 2, 8);
    let table = |seed| tensor(seed, &[span, heads * size]);
    let (keys, queries) = (table(5), table(6));
    for lengths in LENGTHS {
        let longest = *lengths.iter().max().unwrap();
        let rows: Vec<u32> = (0..2 * longest + 1).map(|distance| (distance * 5 % span) as u32).collect();
        for (keys, queries) in [(Some(&keys), None), (None, Some(&queries)), (Some(&keys), Some(&queries))] {
            let relative = Some(Relative { keys, queries, rows: &rows });
            compare(&Attention { relative, ..plain(heads, size) }, lengths, size, heads, size);
        }
    }
}

#[test]
fn rotations() {
    for (tokens, heads, size, pairs) in
        [(1, 1, 2, 1), (15, 2, 6, 3), (16, 3, 8, 2), (17, 1, 64, 32), (50, 4, 10, 5)]
    {
        let x = tensor(1, &[tokens, heads * size]);
        let places: Vec<u32> = (0..tokens as u32).map(|token| token * 7 % 20).collect();
        for neighbours in [false, true] {
            let rotation =
                Rotation { cos: tensor(2, &[20, pairs]), sin: tensor(3, &[20, pairs]), neighbours };
            let found = rotation.forward(x.copy().unwrap(), &places, size).unwrap();
            let expected = rotation.reference(&x, &places, size).unwrap();
            assert_close(&flat(&found), &flat(&expected), 1e-6, 1e-6);
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
        let mapped = Table::stored(Arc::new(bytes), range, format, rows, width).unwrap();
        let resident = Table::resident(stored.to_dtype(DType::F32).unwrap()).unwrap();
        let expected =
            lookup::reference(&[(&resident, indices[0]), (&resident, indices[1])], None, &Device::Cpu)
                .unwrap();
        for (a, b) in [(&mapped, &mapped), (&resident, &mapped), (&mapped, &resident)] {
            let found = lookup::lookup_sum(&[(a, indices[0]), (b, indices[1])], None, &Device::Cpu).unwrap();
            assert_close(&flat(&found), &flat(&expected), 0.0, 0.0);
        }
    }
}

/// Offsets that do not divide 6 tokens into sequences. The first would leave rows of the result unwritten.
const WRONG_OFFSETS: [&[usize]; 7] = [&[2, 6], &[0, 5], &[0, 7], &[0, 4, 2, 6], &[0], &[], &[6]];

/// Whoever calls an operation wrongly gets an error, not a panic and not what happens to be in memory.
#[test]
fn attention_refuses_operands_that_do_not_agree() {
    let (heads, size, right) = (2, 4, offsets(&[4, 2]));
    let x = |columns| tensor(1, &[6, columns]);
    let (q, short) = (x(8), tensor(1, &[5, 8]));
    let refuses = |attention: &Attention, k: &Tensor, v: &Tensor, offsets: &[usize]| {
        for q in [q.clone(), q.to_dtype(DType::F16).unwrap()] {
            for result in [attention.forward(&q, k, v, offsets), attention.reference(&q, k, v, offsets)] {
                assert!(!result.unwrap_err().to_string().is_empty());
            }
        }
    };
    let plain = plain(heads, size);
    for offsets in WRONG_OFFSETS {
        refuses(&plain, &q, &q, offsets);
    }
    assert!(attention::tiles(&[0, 4, 2, 6], &Device::Cpu).is_err());
    assert!(attention::tiles(&[1, 4], &Device::Cpu).is_err());
    for (k, v) in [(&x(4), &q), (&x(9), &q), (&q, &x(9)), (&q, &x(0)), (&short, &q), (&q, &short)] {
        refuses(&plain, k, v, &right);
    }
    for (heads, key_value_heads) in [(0, 0), (2, 0), (3, 3), (2, 4), (4, 3)] {
        refuses(&Attention { heads, key_value_heads, ..plain.clone() }, &q, &q, &right);
    }
    // The longest text has 4 tokens, so there are 7 distances.
    for shape in [[2, 5], [2, 8], [1, 7], [7, 2]] {
        refuses(&Attention { bias: Some(&tensor(2, &shape)), ..plain.clone() }, &q, &q, &right);
    }
    for shape in [[2, 3], [0, 2]] {
        let mix = tensor(3, &shape);
        refuses(&Attention { mix_before: Some(&mix), ..plain.clone() }, &q, &q, &right);
        refuses(&Attention { mix_after: Some(&mix), ..plain.clone() }, &q, &q, &right);
    }
    let (table, narrow) = (tensor(4, &[3, 8]), tensor(4, &[3, 4]));
    for (table, rows) in [
        (&table, &[0, 0, 0, 0, 0][..]),
        (&table, &[0; 8]),
        (&table, &[0, 0, 0, 0, 0, 0, 3]),
        (&narrow, &[0; 7]),
    ] {
        for (keys, queries) in [(Some(table), None), (None, Some(table))] {
            let relative = Some(Relative { keys, queries, rows });
            refuses(&Attention { relative, ..plain.clone() }, &q, &q, &right);
        }
    }
    // The same operands where they agree.
    let relative = Some(Relative { keys: Some(&table), queries: Some(&table), rows: &[2; 7] });
    let bias = tensor(2, &[2, 7]);
    plain.forward(&q, &q, &q, &[0, 4, 4, 6]).unwrap();
    Attention { relative, bias: Some(&bias), ..plain }.forward(&q, &q, &q, &right).unwrap();
}

#[test]
fn texts_without_tokens_are_padded_to_nothing() {
    let q = tensor(1, &[3, 8]).to_dtype(DType::F16).unwrap();
    let found = plain(2, 4).forward(&q, &q, &q, &[0, 0, 3, 3]).unwrap();
    let expected = plain(2, 4).forward(&q, &q, &q, &[0, 3]).unwrap();
    let flat = |x: &Tensor| flat(&x.to_dtype(DType::F32).unwrap());
    assert_eq!(flat(&found), flat(&expected));
}

#[test]
fn other_operations_refuse_operands_that_do_not_agree() {
    let x = tensor(1, &[6, 8]);
    for offsets in WRONG_OFFSETS.into_iter().chain([&[0, 3, 3, 6][..]]) {
        assert!(pooling::pool(&x, offsets, &[Pool::Mean], 0).is_err(), "{offsets:?}");
    }
    assert!(pooling::pool(&x, &[0, 6], &[], 0).is_err());

    let tables = [[5, 8], [7, 8], [5, 4]].map(|shape| Table::resident(tensor(1, &shape)).unwrap());
    let [table, long, narrow] = tables.each_ref();
    let sums: [&[(&Table, &[u32])]; 5] = [
        &[],
        &[(table, &[0, 5])],
        &[(long, &[6, 0]), (table, &[0, 6])],
        &[(table, &[0, 1]), (long, &[0])],
        &[(table, &[0]), (narrow, &[0])],
    ];
    for tables in sums {
        assert!(lookup::lookup_sum(tables, None, &Device::Cpu).is_err());
        assert!(lookup::reference(tables, None, &Device::Cpu).is_err());
    }
    let stored = |range, rows, width| Table::stored(Arc::new(vec![0; 64]), range, Stored::F32, rows, width);
    assert!(stored(0..64, 4, 4).is_ok());
    assert!(stored(0..64, 4, 5).is_err() && stored(1..65, 4, 4).is_err());
    assert!(stored(0..0, 1 << 31, 1 << 31).is_err());

    let norm = norm(NormKind::Layer, 16, true, 1e-5);
    assert!(add_norm::add_norm(x.copy().unwrap(), None, &norm).is_err());
    let norm = NormWeights { kind: NormKind::Layer, weight: tensor(3, &[8]), bias: None, eps: 1e-5 };
    assert!(add_norm::add_norm(x.copy().unwrap(), Some(&tensor(2, &[12, 4])), &norm).is_err());
    assert!(add_norm::add_norm(x.copy().unwrap(), Some(&tensor(2, &[3, 8])), &norm).is_err());

    let rotation = |rows, pairs, sines| {
        let (cos, sin) = (tensor(2, &[rows, pairs]), tensor(3, &[sines, pairs]));
        Rotation { cos, sin, neighbours: false }
    };
    for (rotation, places, size) in [
        (rotation(5, 2, 5), &[0, 1, 2, 3, 4, 5][..], 4),
        (rotation(5, 2, 5), &[0; 5], 4),
        (rotation(5, 2, 5), &[0; 6], 3),
        (rotation(5, 2, 5), &[0; 6], 0),
        (rotation(5, 3, 5), &[0; 6], 4),
        (rotation(5, 2, 4), &[0; 6], 4),
    ] {
        assert!(rotation.forward(x.copy().unwrap(), places, size).is_err());
        assert!(rotation.reference(&x, places, size).is_err());
    }

    for shape in [[0, 8], [8, 0]] {
        assert!(linear::Matrix::new(tensor(1, &shape), &Engine::default()).is_err());
    }
}
