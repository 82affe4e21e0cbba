//! The CPU path of every operation against its plain candle reference, at sizes around the boundaries of
//! micro-tiles.

use crate::support::assert_close;
use crate::support::operands;
use crate::support::operands::{bits, flat, tensor};
use candle_core::{DType, Device, Tensor};
use sconce::kernels::gemm::GemmType;
use sconce::nn::{EmbeddingTable, SafetensorsDtype};
use sconce::ops::activation::Activation;
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::{Attention, AttentionWindow, RelativePositions};
use sconce::ops::backend::Backend;
use sconce::ops::feed_forward::{FeedForwardLayers, feed_forward};
use sconce::ops::pooling::{self, Pool};
use sconce::ops::rotary::Rotation;
use sconce::ops::short_convolution::ShortConvolution;
use sconce::ops::{add_norm, attention, linear, lookup};
use std::sync::Arc;

#[test]
fn linear_layers_match_the_reference() {
    for rows in [1, 2, 5, 6, 7, 11, 12, 13, 24, 167, 168, 169, 340] {
        for (inputs, outputs) in [(1, 1), (7, 31), (32, 32), (33, 65), (385, 17)] {
            let (x, w) = (tensor(1, &[rows, inputs]), tensor(2, &[outputs, inputs]));
            let bias = tensor(3, &[outputs]);
            let residual = tensor(4, &[rows, outputs]);
            for (bias, residual) in [(Some(&bias), None), (Some(&bias), Some(&residual)), (None, None)] {
                let layer = linear::LinearWeights::new(
                    linear::Matrix::new(w.clone(), &Backend::default()).unwrap(),
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

#[test]
fn a_feed_forward_network_has_the_bits_of_its_layers() {
    for gemm_type in GemmType::ALL {
        // The last one has several blocks of gate values.
        for (inputs, inner, outputs) in [(32, 64, 32), (33, 70, 17), (40, 600, 20)] {
            let layer = |seed: usize, inputs: usize, outputs: usize| {
                let matrix =
                    linear::Matrix::new(tensor(seed, &[outputs, inputs]), &Backend::Cpu(gemm_type)).unwrap();
                linear::LinearWeights::new(matrix, Some(tensor(seed + 1, &[outputs]))).unwrap()
            };
            let (up, down) = (layer(1, inputs, inner), layer(3, inner, outputs));
            let gate = layer(7, inputs, inner);
            for rows in [1, 17, 95, 96, 97, 300, 600] {
                let (x, residual) = (tensor(5, &[rows, inputs]), tensor(6, &[rows, outputs]));
                let up_x = |activation| up.forward(&x, activation, None).unwrap();
                for (gate, activation) in [
                    (None, Activation::Gelu),
                    (Some(&gate), Activation::Silu),
                    (Some(&gate), Activation::GeluTanh),
                    (Some(&gate), Activation::Relu),
                ] {
                    let intermediate = match gate {
                        Some(gate) => (gate.forward(&x, activation, None).unwrap()
                            * up_x(Activation::Identity))
                        .unwrap(),
                        None => up_x(activation),
                    };
                    for residual in [None, Some(&residual)] {
                        let layers = FeedForwardLayers { gate, up: &up, down: &down };
                        let found = feed_forward(layers, &x, activation, residual).unwrap();
                        let expected = down.forward(&intermediate, Activation::Identity, residual).unwrap();
                        let what = format!("{gemm_type:?} {rows} × {inputs} × {inner} {activation:?}");
                        assert_eq!(flat(&found), flat(&expected), "{what}");
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
fn norms_match_the_reference() {
    for rows in [1, 15, 16, 17, 50] {
        for width in [1, 15, 16, 17, 384] {
            let (x, residual) = (tensor(1, &[rows, width]), tensor(2, &[rows, width]));
            for residual in [None, Some(&residual)] {
                for kind in [NormKind::Layer, NormKind::RootMeanSquare, NormKind::Affine] {
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

/// If the mean is large against the deviation, a one-pass variance loses all its digits.
#[test]
fn a_norm_with_a_large_mean_keeps_its_digits() {
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

/// f16 on the CPU is computed by the reference, in groups of sequences of similar length.
#[test]
fn attention_by_length_matches_one_padded_batch() {
    for lengths in [&[1, 30, 2, 31, 1, 5][..], &[1500, 3, 1500, 1499], &[7]] {
        let cu_seqlens = operands::cu_seqlens(lengths);
        let tokens = cu_seqlens[lengths.len()];
        let [q, k, v] = [1, 2, 3].map(|seed| tensor(seed, &[tokens, 8]).to_dtype(DType::F16).unwrap());
        let attention =
            Attention { window: AttentionWindow { left: 40, right: 2 }, ..Attention::plain(2, 4) };
        let [found, expected] =
            [attention.forward(&q, &k, &v, &cu_seqlens), attention.reference(&q, &k, &v, &cu_seqlens)]
                .map(|x| flat(&x.unwrap().to_dtype(DType::F32).unwrap()));
        assert_close(&found, &expected, 1e-3, 1e-3);
    }
}

/// Asserts that the CPU path matches the reference for sequences of these lengths.
fn compare(
    attention: &Attention,
    lengths: &[usize],
    qk_head_dim: usize,
    value_heads: usize,
    v_head_dim: usize,
) {
    let cu_seqlens = operands::cu_seqlens(lengths);
    let tokens = cu_seqlens[lengths.len()];
    let operand = |seed, width: usize| (tensor(seed, &[tokens, width]) * 3.0).unwrap();
    let q = operand(1, attention.heads * qk_head_dim);
    let k = operand(2, attention.key_value_heads * qk_head_dim);
    let v = operand(3, value_heads * v_head_dim);
    let found = attention.forward(&q, &k, &v, &cu_seqlens).unwrap();
    let expected = attention.reference(&q, &k, &v, &cu_seqlens).unwrap();
    assert_eq!(found.dims(), expected.dims());
    assert_close(&flat(&found), &flat(&expected), 5e-6, 1e-5);
}

/// Sequence lengths of batches. On vectors, up to 192 keys are few.
const LENGTHS: [&[usize]; 8] =
    [&[1], &[16], &[17], &[1, 2, 3], &[15, 1, 33], &[64, 5], &[193, 192, 70], &[513, 3]];

/// Ragged attention against a padded batch with a padding mask, without and with a bias.
#[test]
fn ragged_attention_matches_padded_attention() {
    for lengths in LENGTHS {
        for (heads, head_dim) in [(1, 1), (3, 12), (4, 32)] {
            compare(&Attention::plain(heads, head_dim), lengths, head_dim, heads, head_dim);
            let max_seqlen = lengths.iter().max().unwrap();
            // A bias for longer sequences than those of the batch, and for exactly its longest sequence.
            for positions in [max_seqlen + 3, *max_seqlen] {
                let bias = (tensor(4, &[heads, 2 * positions - 1]) * 2.0).unwrap();
                let attention = Attention { bias: Some(&bias), ..Attention::plain(heads, head_dim) };
                compare(&attention, lengths, head_dim, heads, head_dim);
            }
        }
    }
}

/// Bounds below and above the scores, with all keys, a window, and a bias that is added afterwards.
#[test]
fn attention_with_bounded_scores_matches_the_reference() {
    for lengths in LENGTHS {
        let bias = (tensor(4, &[2, 2 * lengths.iter().max().unwrap() - 1]) * 2.0).unwrap();
        for cap in [0.3, 2.0, 50.0] {
            let attention = Attention { score_cap: Some(cap), ..Attention::plain(4, 12) };
            compare(&attention, lengths, 12, 4, 12);
            let window = AttentionWindow { left: 7, right: 0 };
            compare(&Attention { window, key_value_heads: 2, ..attention }, lengths, 12, 2, 12);
            let biased = Attention { score_cap: Some(cap), bias: Some(&bias), ..Attention::plain(2, 5) };
            compare(&biased, lengths, 5, 2, 5);
        }
    }
}

#[test]
fn grouped_query_attention_and_a_v_head_dim_other_than_qk_head_dim_match_the_reference() {
    for lengths in LENGTHS {
        compare(&Attention::plain(3, 12), lengths, 12, 3, 5);
        for key_value_heads in [1, 2, 3] {
            compare(&Attention { key_value_heads, ..Attention::plain(6, 4) }, lengths, 4, key_value_heads, 7);
        }
    }
}

#[test]
fn attention_windows_match_the_reference() {
    for lengths in LENGTHS {
        for (left, right) in [(0, 0), (usize::MAX, 0), (3, 3), (16, 1), (40, 40), (100, 60)] {
            let attention = Attention { window: AttentionWindow { left, right }, ..Attention::plain(2, 6) };
            compare(&attention, lengths, 6, 2, 6);
        }
    }
}

/// Keys at the beginning of a sequence that all queries see beside their window.
#[test]
fn attention_with_a_prefix_matches_the_reference() {
    for lengths in LENGTHS.into_iter().chain([&[1700, 900][..]]) {
        for (left, right) in [(0, 0), (3, 3), (40, 40), (100, 60), (usize::MAX, usize::MAX)] {
            for prefix in [0, 1, 7, 50] {
                let prefix_lengths: Vec<usize> = lengths.iter().map(|n| prefix.min(*n)).collect();
                let window = AttentionWindow { left, right };
                let prefix_lengths = Some(&prefix_lengths[..]);
                let attention = Attention { window, prefix_lengths, ..Attention::plain(2, 6) };
                compare(&attention, lengths, 6, 2, 6);
            }
        }
    }
    let x = tensor(1, &[3, 4]);
    let attention = Attention { prefix_lengths: Some(&[4]), ..Attention::plain(2, 2) };
    assert!(attention.forward(&x, &x, &x, &[0, 3]).is_err(), "a prefix is no longer than its sequence");
}

/// `−slope · |j − i|` for each head, for sequences of up to `tokens` tokens.
fn alibi(slopes: &[f32], tokens: usize) -> Tensor {
    let distance = |i: usize| i.abs_diff(tokens - 1) as f32;
    let of_head = |slope: &f32| (0..2 * tokens - 1).map(|i| -slope * distance(i)).collect();
    let bias: Vec<Vec<f32>> = slopes.iter().map(of_head).collect();
    Tensor::new(bias, &Device::Cpu).unwrap()
}

/// A steep bias leaves far keys hardly any weight, and their scores are not computed: here a head sees all of
/// a long sequence, another one a few dozen keys.
#[test]
fn attention_with_a_steep_bias_matches_the_reference() {
    for lengths in [&[1][..], &[200, 3], &[513, 190], &[700], &[2100]] {
        let bias = alibi(&[6.0, 1.0, 0.25, 0.01], *lengths.iter().max().unwrap());
        let attention = Attention { bias: Some(&bias), ..Attention::plain(4, 12) };
        compare(&attention, lengths, 12, 4, 12);
        compare(&Attention { key_value_heads: 2, ..attention.clone() }, lengths, 12, 2, 12);
        for (left, right) in [(usize::MAX, 0), (150, 20)] {
            let window = AttentionWindow { left, right };
            compare(&Attention { window, ..attention.clone() }, lengths, 12, 4, 12);
        }
    }
}

/// The last queries have no key near them, and yet see the last keys.
#[test]
fn queries_far_from_all_keys_of_a_steep_bias_match_the_reference() {
    let [q, k, v] = [1, 2, 3].map(|seed| tensor(seed, &[200, 8]));
    let bias = alibi(&[6.0, 1.0], 200);
    let attention = Attention { bias: Some(&bias), key_lengths: Some(&[100]), ..Attention::plain(2, 4) };
    let found = attention.forward(&q, &k, &v, &[0, 200]).unwrap();
    let expected = attention.reference(&q, &k, &v, &[0, 200]).unwrap();
    // Scores of −600 are rounded to multiples of 6e-5.
    assert_close(&flat(&found), &flat(&expected), 1e-4, 1e-4);
}

/// What a head does not see depends on the sequence alone.
#[test]
fn a_sequence_with_a_steep_bias_has_the_same_bits_alone_and_in_a_batch() {
    let lengths = [700, 3, 513];
    let cu_seqlens = operands::cu_seqlens(&lengths);
    let [q, k, v] = [1, 2, 3].map(|seed| (tensor(seed, &[cu_seqlens[3], 48]) * 3.0).unwrap());
    let bias = alibi(&[6.0, 1.0, 0.25, 0.01], 700);
    let attention = Attention { bias: Some(&bias), ..Attention::plain(4, 12) };
    let batch = attention.forward(&q, &k, &v, &cu_seqlens).unwrap();
    for (start, length) in cu_seqlens.into_iter().zip(lengths) {
        let [q, k, v, batch] = [&q, &k, &v, &batch].map(|x| x.narrow(0, start, length).unwrap());
        let alone = attention.forward(&q, &k, &v, &[0, length]).unwrap();
        assert_eq!(flat(&alone), flat(&batch));
    }
}

/// A far key whose product with every query outweighs a steep bias.
#[test]
fn a_far_key_can_outweigh_a_steep_bias() {
    let (tokens, width, far) = (600, 4, 590);
    let bias = alibi(&[0.5], tokens);
    let attention = Attention { bias: Some(&bias), ..Attention::plain(1, width) };
    let q = Tensor::full(5f32, (tokens, width), &Device::Cpu).unwrap();
    let v = tensor(3, &[tokens, width]);
    let mut keys = flat(&tensor(2, &[tokens, width]));
    // A score of 400 less half of the distance.
    keys[far * width..][..width].fill(40.0);
    let k = Tensor::from_vec(keys, (tokens, width), &Device::Cpu).unwrap();
    let found = flat(&attention.forward(&q, &k, &v, &[0, tokens]).unwrap());
    let expected = flat(&attention.reference(&q, &k, &v, &[0, tokens]).unwrap());
    assert_close(&found, &expected, 5e-6, 1e-5);
    assert_close(&found[..width], &flat(&v)[far * width..][..width], 1e-5, 1e-5);
}

/// Tokens at the end of a sequence that are queries only. A window may leave them no key: then the result
/// is 0.
#[test]
fn attention_with_fewer_keys_than_queries_matches_the_reference() {
    let (pre, bias) = (tensor(5, &[2, 2]), tensor(8, &[2, 1025]));
    for lengths in LENGTHS {
        for kept in [1, 2, 5] {
            let key_lengths: Vec<usize> = lengths.iter().map(|n| n.div_ceil(kept)).collect();
            for window in [AttentionWindow::FULL, AttentionWindow { left: 3, right: 3 }] {
                let attention =
                    Attention { key_lengths: Some(&key_lengths), window, ..Attention::plain(2, 6) };
                compare(&attention, lengths, 6, 2, 6);
                compare(&Attention { bias: Some(&bias), ..attention.clone() }, lengths, 6, 2, 6);
                compare(&Attention { pre_softmax: Some(&pre), ..attention }, lengths, 6, 2, 6);
            }
        }
    }
    let x = tensor(1, &[10, 12]);
    let attention = Attention { key_lengths: Some(&[2]), ..Attention::plain(2, 6) };
    let window = AttentionWindow { left: 3, right: 3 };
    let found = Attention { window, ..attention.clone() }.forward(&x, &x, &x, &[0, 10]).unwrap();
    let found = flat(&found);
    assert!(found[..5 * 12].iter().all(|x| *x != 0.0) && found[5 * 12..].iter().all(|x| *x == 0.0));
    // Keys after the first ones change nothing.
    let mut changed = flat(&x);
    changed[2 * 12..].fill(7.0);
    let changed = Tensor::from_vec(changed, (10, 12), &Device::Cpu).unwrap();
    let all = attention.forward(&x, &x, &x, &[0, 10]).unwrap();
    assert_eq!(flat(&all), flat(&attention.forward(&x, &changed, &changed, &[0, 10]).unwrap()));
    for wrong in [&[0][..], &[11], &[1, 1]] {
        let attention = Attention { key_lengths: Some(wrong), ..Attention::plain(2, 6) };
        assert!(attention.forward(&x, &x, &x, &[0, 10]).is_err(), "{wrong:?}");
    }
}

/// The masks of attention without a bias: all keys, causal, and windows.
const WINDOWS: [AttentionWindow; 5] = [
    AttentionWindow::FULL,
    AttentionWindow { left: usize::MAX, right: 0 },
    AttentionWindow { left: 130, right: 0 },
    AttentionWindow { left: 31, right: 0 },
    AttentionWindow { left: 7, right: 7 },
];

/// The result of some queries, in any order, has the bits that it has among all queries.
#[test]
fn attention_of_some_queries_is_that_of_all() {
    for lengths in LENGTHS {
        let cu_seqlens = operands::cu_seqlens(lengths);
        let tokens = cu_seqlens[lengths.len()] as u32;
        // Single queries, and all from one on.
        let selections: [Vec<u32>; 2] =
            [(0..tokens).rev().step_by(7).chain([0]).collect(), (tokens / 3..tokens).collect()];
        let half: Vec<usize> = lengths.iter().map(|n| n.div_ceil(2)).collect();
        for (heads, key_value_heads, head_dim) in [(1, 1, 1), (6, 2, 12), (4, 4, 32), (2, 1, 64)] {
            let [q, k, v] = [(1, heads), (2, key_value_heads), (3, key_value_heads)]
                .map(|(seed, heads)| (tensor(seed, &[tokens as usize, heads * head_dim]) * 3.0).unwrap());
            for gemm_type in [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16] {
                for (window, key_lengths) in
                    WINDOWS.map(|window| (window, None)).into_iter().chain([(WINDOWS[0], Some(&half[..]))])
                {
                    let all = Attention {
                        key_value_heads,
                        gemm_type,
                        key_lengths,
                        window,
                        ..Attention::plain(heads, head_dim)
                    };
                    let expected = all.forward(&q, &k, &v, &cu_seqlens).unwrap();
                    for queries in &selections {
                        let index = Tensor::new(&queries[..], &Device::Cpu).unwrap();
                        let some = Attention { queries: Some(queries), ..all.clone() };
                        let q = q.index_select(&index, 0).unwrap();
                        let found = some.forward(&q, &k, &v, &cu_seqlens).unwrap();
                        let expected = expected.index_select(&index, 0).unwrap();
                        let [found, expected] = [found, expected].map(|x| bits(&x));
                        assert_eq!(found, expected, "{lengths:?} in {heads} heads of {head_dim}, {window:?}");
                    }
                }
            }
        }
    }
}

/// With a causal mask, the result of a token has the same bits whatever follows, also where that changes the
/// kernel or the division into tasks, so that sequences can share a prefix.
#[test]
fn causal_attention_of_a_prefix_does_not_depend_on_what_follows() {
    const LENGTHS: [usize; 9] = [1, 17, 95, 97, 150, 193, 250, 400, 700];
    for (heads, key_value_heads, head_dim) in [(1, 1, 1), (6, 2, 12), (4, 4, 32), (2, 1, 64)] {
        let [q, k, v] = [(1, heads), (2, key_value_heads), (3, key_value_heads)]
            .map(|(seed, heads)| (tensor(seed, &[700, heads * head_dim]) * 3.0).unwrap());
        for gemm_type in [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16] {
            for left in [usize::MAX, 130, 63, 1] {
                let window = AttentionWindow { left, right: 0 };
                let attention =
                    Attention { key_value_heads, gemm_type, window, ..Attention::plain(heads, head_dim) };
                let of_prefix = |n: usize| {
                    let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(0, 0, n).unwrap());
                    bits(&attention.forward(&q, &k, &v, &[0, n]).unwrap())
                };
                let whole = of_prefix(700);
                for n in LENGTHS {
                    let found = of_prefix(n);
                    let what = format!("{n} tokens in {heads} heads of {head_dim}, {left} to the left");
                    assert_eq!(found, whole[..found.len()], "{what} in {}", gemm_type.name());
                }
            }
        }
    }
}

#[test]
fn attention_of_some_queries_is_refused_where_it_could_differ() {
    let (x, bias) = (tensor(1, &[6, 8]), tensor(2, &[2, 7]));
    let q = x.narrow(0, 0, 2).unwrap();
    let forward = |attention: Attention| attention.forward(&q, &x, &x, &[0, 4, 6]);
    let some = Attention { queries: Some(&[5, 1]), ..Attention::plain(2, 4) };
    assert!(forward(some.clone()).is_ok());
    let square = tensor(3, &[2, 2]);
    for refused in [
        Attention { queries: Some(&[6, 1]), ..some.clone() },
        Attention { queries: Some(&[1]), ..some.clone() },
        Attention { queries: None, ..some.clone() },
        Attention { bias: Some(&bias), ..some.clone() },
        Attention { pre_softmax: Some(&square), ..some.clone() },
        Attention { post_softmax: Some(&square), ..some.clone() },
    ] {
        assert!(forward(refused).is_err());
    }
    let relative = Some(RelativePositions { position_keys: None, position_queries: None, buckets: &[0; 7] });
    assert!(forward(Attention { relative, ..some.clone() }).is_err());
    assert!(some.reference(&q, &x, &x, &[0, 4, 6]).is_err());
    let [q, x] = [&q, &x].map(|x| x.to_dtype(DType::F16).unwrap());
    assert!(some.forward(&q, &x, &x, &[0, 4, 6]).is_err());
}

#[test]
fn talking_heads_match_the_reference() {
    let (pre, post) = (tensor(5, &[5, 3]), tensor(6, &[4, 5]));
    let (square, bias) = (tensor(7, &[3, 3]), tensor(8, &[3, 1025]));
    for lengths in LENGTHS {
        for window in [AttentionWindow::FULL, AttentionWindow { left: usize::MAX, right: 0 }] {
            let plain = Attention { window, ..Attention::plain(3, 8) };
            let both = Attention { pre_softmax: Some(&pre), post_softmax: Some(&post), ..plain.clone() };
            compare(&both, lengths, 8, 4, 6);
            compare(&Attention { bias: Some(&bias), ..both }, lengths, 8, 4, 6);
            compare(&Attention { pre_softmax: Some(&pre), ..plain.clone() }, lengths, 8, 5, 6);
            compare(&Attention { post_softmax: Some(&square), ..plain }, lengths, 8, 3, 8);
        }
    }
}

#[test]
fn disentangled_attention_matches_the_reference() {
    let (rows, heads, head_dim) = (9, 2, 8);
    let table = |seed| tensor(seed, &[rows, heads * head_dim]);
    let (keys, queries) = (table(5), table(6));
    for lengths in LENGTHS {
        let max_seqlen = *lengths.iter().max().unwrap();
        let buckets: Vec<u32> =
            (0..2 * max_seqlen + 1).map(|position| (position * 5 % rows) as u32).collect();
        for (keys, queries) in [(Some(&keys), None), (None, Some(&queries)), (Some(&keys), Some(&queries))] {
            let relative =
                Some(RelativePositions { position_keys: keys, position_queries: queries, buckets: &buckets });
            compare(
                &Attention { relative, ..Attention::plain(heads, head_dim) },
                lengths,
                head_dim,
                heads,
                head_dim,
            );
        }
    }
}

#[test]
fn rotary_embeddings_match_the_reference() {
    for (tokens, heads, head_dim, pairs) in
        [(1, 1, 2, 1), (15, 2, 6, 3), (16, 3, 8, 2), (17, 1, 64, 32), (50, 4, 10, 5)]
    {
        let x = tensor(1, &[tokens, heads * head_dim]);
        let position_ids: Vec<u32> = (0..tokens as u32).map(|token| token * 7 % 20).collect();
        for interleaved in [false, true] {
            let rotation =
                Rotation { cos: tensor(2, &[20, pairs]), sin: tensor(3, &[20, pairs]), interleaved };
            let found = rotation.forward(x.copy().unwrap(), &position_ids, head_dim).unwrap();
            let expected = rotation.reference(&x, &position_ids, head_dim).unwrap();
            assert_close(&flat(&found), &flat(&expected), 1e-6, 1e-6);
        }
    }
}

#[test]
fn short_convolutions_match_the_reference() {
    for (tokens, width) in [(1, 1), (15, 5), (16, 8), (17, 33), (50, 64)] {
        let x = tensor(1, &[tokens, 3 * width]);
        let cu_seqlens = [0, tokens / 3, tokens / 3, tokens];
        for (kernel_size, ahead) in [(1, 0), (3, 0), (3, 1), (4, 0), (5, 2), (5, 4)] {
            for bias in [None, Some(tensor(3, &[width]))] {
                let taps = tensor(2, &[kernel_size, width]);
                let convolution = ShortConvolution { taps, bias, ahead };
                let found = convolution.forward(&x, &cu_seqlens).unwrap();
                let expected = convolution.reference(&x, &cu_seqlens).unwrap();
                assert_close(&flat(&found), &flat(&expected), 1e-6, 1e-6);
            }
        }
    }
}

/// A memory-mapped table against the same table as a tensor, in every dtype.
#[test]
fn sums_of_embeddings_match_the_reference() {
    let (rows, width) = (5, 7);
    let table = tensor(1, &[rows, width]);
    let indices: [&[u32]; 2] = [&[0, 4, 4, 2], &[1, 0, 3, 1]];
    for (format, dtype) in [
        (SafetensorsDtype::F64, DType::F64),
        (SafetensorsDtype::F32, DType::F32),
        (SafetensorsDtype::F16, DType::F16),
        (SafetensorsDtype::BF16, DType::BF16),
    ] {
        let stored = table.to_dtype(dtype).unwrap();
        // The bytes of a safetensors file, at an offset of three bytes.
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
        let mapped = EmbeddingTable::mapped(Arc::new(bytes), range, format, rows, width).unwrap();
        let resident = EmbeddingTable::resident(stored.to_dtype(DType::F32).unwrap()).unwrap();
        let expected =
            lookup::reference(&[(&resident, indices[0]), (&resident, indices[1])], None, &Device::Cpu)
                .unwrap();
        for (a, b) in [(&mapped, &mapped), (&resident, &mapped), (&mapped, &resident)] {
            let found = lookup::lookup_sum(&[(a, indices[0]), (b, indices[1])], None, &Device::Cpu).unwrap();
            assert_close(&flat(&found), &flat(&expected), 0.0, 0.0);
        }
    }
}

/// `cu_seqlens` that do not divide 6 tokens into sequences. The first one has no sequence for the first 2
/// tokens, whose rows of the result would be uninitialised.
const INVALID_CU_SEQLENS: [&[usize]; 7] = [&[2, 6], &[0, 5], &[0, 7], &[0, 4, 2, 6], &[0], &[], &[6]];

/// The result is an error, not a panic or uninitialised memory.
#[test]
fn attention_rejects_operands_that_do_not_match() {
    let (heads, head_dim, valid) = (2, 4, operands::cu_seqlens(&[4, 2]));
    let x = |columns| tensor(1, &[6, columns]);
    let (q, short) = (x(8), tensor(1, &[5, 8]));
    let rejects = |attention: &Attention, k: &Tensor, v: &Tensor, cu_seqlens: &[usize]| {
        for q in [q.clone(), q.to_dtype(DType::F16).unwrap()] {
            for result in [attention.forward(&q, k, v, cu_seqlens), attention.reference(&q, k, v, cu_seqlens)]
            {
                assert!(!result.unwrap_err().to_string().is_empty());
            }
        }
    };
    let plain = Attention::plain(heads, head_dim);
    for cu_seqlens in INVALID_CU_SEQLENS {
        rejects(&plain, &q, &q, cu_seqlens);
    }
    assert!(attention::query_tiles(&[0, 4, 2, 6], &Device::Cpu).is_err());
    assert!(attention::query_tiles(&[1, 4], &Device::Cpu).is_err());
    for (k, v) in [(&x(4), &q), (&x(9), &q), (&q, &x(9)), (&q, &x(0)), (&short, &q), (&q, &short)] {
        rejects(&plain, k, v, &valid);
    }
    for (heads, key_value_heads) in [(0, 0), (2, 0), (3, 3), (2, 4), (4, 3)] {
        rejects(&Attention { heads, key_value_heads, ..plain.clone() }, &q, &q, &valid);
    }
    // The longest sequence has 4 tokens, so there are 7 relative positions.
    for shape in [[2, 5], [2, 8], [1, 7], [7, 2]] {
        rejects(&Attention { bias: Some(&tensor(2, &shape)), ..plain.clone() }, &q, &q, &valid);
    }
    for shape in [[2, 3], [0, 2]] {
        let projection = tensor(3, &shape);
        rejects(&Attention { pre_softmax: Some(&projection), ..plain.clone() }, &q, &q, &valid);
        rejects(&Attention { post_softmax: Some(&projection), ..plain.clone() }, &q, &q, &valid);
    }
    let (table, narrow) = (tensor(4, &[3, 8]), tensor(4, &[3, 4]));
    for (table, rows) in [
        (&table, &[0, 0, 0, 0, 0][..]),
        (&table, &[0; 8]),
        (&table, &[0, 0, 0, 0, 0, 0, 3]),
        (&narrow, &[0; 7]),
    ] {
        for (keys, queries) in [(Some(table), None), (None, Some(table))] {
            let relative =
                Some(RelativePositions { position_keys: keys, position_queries: queries, buckets: rows });
            rejects(&Attention { relative, ..plain.clone() }, &q, &q, &valid);
        }
    }
    // Operands that match.
    let relative = Some(RelativePositions {
        position_keys: Some(&table),
        position_queries: Some(&table),
        buckets: &[2; 7],
    });
    let bias = tensor(2, &[2, 7]);
    plain.forward(&q, &q, &q, &[0, 4, 4, 6]).unwrap();
    Attention { relative, bias: Some(&bias), ..plain }.forward(&q, &q, &q, &valid).unwrap();
}

#[test]
fn empty_sequences_have_no_rows() {
    let q = tensor(1, &[3, 8]).to_dtype(DType::F16).unwrap();
    let found = Attention::plain(2, 4).forward(&q, &q, &q, &[0, 0, 3, 3]).unwrap();
    let expected = Attention::plain(2, 4).forward(&q, &q, &q, &[0, 3]).unwrap();
    let flat = |x: &Tensor| flat(&x.to_dtype(DType::F32).unwrap());
    assert_eq!(flat(&found), flat(&expected));
}

#[test]
fn other_operations_reject_operands_that_do_not_match() {
    let x = tensor(1, &[6, 8]);
    for cu_seqlens in INVALID_CU_SEQLENS.into_iter().chain([&[0, 3, 3, 6][..]]) {
        assert!(pooling::pool(&x, cu_seqlens, &[Pool::Mean], 0).is_err(), "{cu_seqlens:?}");
    }
    assert!(pooling::pool(&x, &[0, 6], &[], 0).is_err());

    let tables = [[5, 8], [7, 8], [5, 4]].map(|shape| EmbeddingTable::resident(tensor(1, &shape)).unwrap());
    let [table, long, narrow] = tables.each_ref();
    let sums: [&[(&EmbeddingTable, &[u32])]; 5] = [
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
    let stored = |range, rows, width| {
        EmbeddingTable::mapped(Arc::new(vec![0; 64]), range, SafetensorsDtype::F32, rows, width)
    };
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
        Rotation { cos, sin, interleaved: false }
    };
    for (rotation, position_ids, head_dim) in [
        (rotation(5, 2, 5), &[0, 1, 2, 3, 4, 5][..], 4),
        (rotation(5, 2, 5), &[0; 5], 4),
        (rotation(5, 2, 5), &[0; 6], 3),
        (rotation(5, 2, 5), &[0; 6], 0),
        (rotation(5, 3, 5), &[0; 6], 4),
        (rotation(5, 2, 4), &[0; 6], 4),
    ] {
        assert!(rotation.forward(x.copy().unwrap(), position_ids, head_dim).is_err());
        assert!(rotation.reference(&x, position_ids, head_dim).is_err());
    }

    for shape in [[0, 8], [8, 0]] {
        assert!(linear::Matrix::new(tensor(1, &shape), &Backend::default()).is_err());
    }
}
