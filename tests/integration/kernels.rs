//! Every kernel on every ISA of the machine, at sizes around the boundaries of vectors, tiles and panels,
//! compared with the same formula in f64.
#![allow(unsafe_code)]

use std::convert::Infallible;

use half::{bf16, f16};
use sconce::kernels::activation::{Activation, softplus};
use sconce::kernels::gemm::{
    AttentionBuffer, AttentionWindow, Epilogue, F32_SIGNIFICAND_BITS, Factors, GemmType, HeadAttention,
    HeadRows, LhsBuffer, MAX_NR, MatrixView, OutputBlock, OutputMatrix, PackedMatrix, attend_head, gemm,
    gemm_into_lhs, int8_format, max_attended_keys, row_stride,
};
use sconce::kernels::isa::{Isa, Kernel};
use sconce::kernels::math::{self, Accuracy};
use sconce::kernels::norm::{Norm, NormKind, l2_normalize};
use sconce::kernels::simd::{Int8Format, Simd};
use sconce::kernels::softmax::{axpy, scale_and_bias, softmax_unnormalized};

/// Deterministic values in (−1, 1): a Weyl sequence.
fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| ((i + 1) * (2 * seed + 1)) as f64 * 0.618_033_988_749_895 % 1.0;
    (0..count).map(|i| 2.0 * value(i) as f32 - 1.0).collect()
}

/// Asserts `|found − expected| ≤ atol + rtol · |expected|` for every element.
fn assert_close(what: &str, found: &[f32], expected: &[f64], atol: f64, rtol: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference <= atol + rtol * expected.abs(), "{what}: {found} for {expected} at {i}");
    }
}

/// Splits a value into bf16 parts, each the rounded remainder of those before.
fn bf16_parts(x: f32, count: usize) -> Vec<f64> {
    let mut remainder = x;
    let mut next = |_| {
        let part = bf16::from_f32(remainder).to_f32();
        remainder -= part;
        f64::from(part)
    };
    (0..count).map(&mut next).collect()
}

/// A group of int8, padded with zeros, times the Hadamard matrix of the format: Sylvester's construction, in
/// the order of the fast Walsh–Hadamard transform.
fn rotated(group: &[f32], format: Int8Format) -> Vec<f32> {
    let mut x = group.to_vec();
    x.resize(format.group, 0.0);
    let part = format.group / format.rotation;
    let mut distance = format.rotation / 2;
    while distance > 0 {
        for i in (0..format.rotation).filter(|i| i & distance == 0) {
            for k in 0..part {
                let (first, second) = (i * part + k, (i + distance) * part + k);
                (x[first], x[second]) = (x[first] + x[second], x[first] - x[second]);
            }
        }
        distance /= 2;
    }
    x
}

/// A row after rotation and quantisation in groups, dequantised: `range` finds the minimum that becomes 0
/// with the zero point, and the distance that is `limit` steps.
fn quantized(isa: Isa, row: &[f32], limit: f32, range: impl Fn(&[f32]) -> (f32, f32)) -> Vec<f64> {
    let format = int8_format(isa);
    let has_fma = !["portable", "emulated-tiles"].contains(&isa.name());
    let dequantized = |group: &[f32]| {
        let group = rotated(group, format);
        let (min, distance) = range(&group);
        let (scale, factor) = (distance / limit, if distance > 0.0 { limit / distance } else { 0.0 });
        let zero_point = (-min * factor).round_ties_even();
        let byte = |x: &f32| if has_fma { x.mul_add(factor, zero_point) } else { x * factor + zero_point };
        let steps = |x: &f32| byte(x).round_ties_even() - zero_point;
        group.iter().map(|x| f64::from(steps(x)) * f64::from(scale)).collect::<Vec<f64>>()
    };
    row.chunks(format.group).flat_map(dequantized).collect()
}

fn max_magnitude(group: &[f32]) -> (f32, f32) {
    (0.0, group.iter().fold(0f32, |max, x| max.max(x.abs())))
}

fn minimum_and_half_range(group: &[f32]) -> (f32, f32) {
    let max = group.iter().copied().fold(0f32, f32::max);
    let min = group.iter().copied().fold(0f32, f32::min);
    (min, 0.5 * max - 0.5 * min)
}

/// The magnitude of weights whose products are added in 16 bits: 127 for a weight is 161 for the sum of four
/// of one sign.
fn max_weight_or_sum(group: &[f32]) -> (f32, f32) {
    let sum = |eight: &[f32], sign: f32, first: usize| -> f32 {
        let four = [first, first + 1, first + 4, first + 5];
        four.iter().filter_map(|i| eight.get(*i)).map(|x| (sign * x).max(0.0)).sum()
    };
    let sums =
        |eight| [(1.0, 0), (1.0, 2), (-1.0, 0), (-1.0, 2)].map(|(sign, first)| sum(eight, sign, first));
    let max_sum = group.chunks(8).flat_map(sums).fold(0f32, f32::max);
    (0.0, max_magnitude(group).1.max(max_sum * (127.0 / 161.0)))
}

/// `x · w` in f64, of operands rounded as the GEMM type rounds them.
fn dot(isa: Isa, gemm_type: GemmType, x: &[f32], w: &[f32]) -> f64 {
    let sum = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum();
    let wide = |row: &[f32]| -> Vec<f64> { row.iter().map(|x| f64::from(*x)).collect() };
    let rounded = |row: &[f32]| -> Vec<f64> { row.iter().map(|x| bf16_parts(*x, 1)[0]).collect() };
    match (gemm_type, isa.tile_unit()) {
        (GemmType::Int8, _) => {
            let format = int8_format(isa);
            let weights = if format.adds_in_i16 { max_weight_or_sum } else { max_magnitude };
            let x = quantized(isa, x, 0.5 * f32::from(format.lhs_steps), minimum_and_half_range);
            sum(&x, &quantized(isa, w, 127.0, weights)) / format.rotation as f64
        }
        (GemmType::Bf16x3, Some(_)) => {
            let product = |(x, w): (&f32, &f32)| {
                let (x, w) = (bf16_parts(*x, 2), bf16_parts(*w, 2));
                x[0] * w[0] + x[0] * w[1] + x[1] * w[0]
            };
            x.iter().zip(w).map(product).sum()
        }
        (GemmType::F32 | GemmType::Bf16x3, _) => sum(&wide(x), &wide(w)),
        (GemmType::Bf16, _) if isa.has_fast_bf16() => sum(&rounded(x), &rounded(w)),
        (GemmType::Bf16, _) => sum(&wide(x), &rounded(w)),
    }
}

/// `x Wᵀ` with an epilogue, in one call of `gemm`.
fn multiply(x: &[f32], weights: &PackedMatrix, epilogue: &Epilogue) -> Vec<f32> {
    let (rows, outputs) = (x.len() / weights.inputs(), weights.outputs());
    let mut y = vec![f32::NAN; rows * outputs];
    let mut buffer = LhsBuffer::default();
    // SAFETY: there is only one block.
    let mut block = unsafe { OutputMatrix::new(&mut y, outputs).block(0..rows, 0..outputs) };
    let x = buffer.convert(weights, x, weights.inputs(), rows);
    gemm(x, weights, 0..weights.panels(), epilogue, &mut block);
    y
}

fn with_bias(bias: &[f32]) -> Epilogue<'_> {
    Epilogue { bias, ..Epilogue::default() }
}

#[test]
fn gemm_matches_f64_and_rows_have_the_same_bits_alone() {
    let sizes = [
        (1, 1),
        (2, 7),
        (31, 8),
        (33, 9),
        (63, 16),
        (64, 17),
        (65, 31),
        (128, 32),
        (129, 33),
        (383, 15),
        (384, 40),
        (385, 65),
        (769, 3),
        (1537, 34),
        (1537, 100),
        // Enough panels for rows of f32 to be packed.
        (15, 113),
        (17, 225),
        (385, 260),
    ];
    for isa in Isa::testable() {
        for gemm_type in GemmType::ALL {
            for (inputs, outputs) in sizes {
                let (w, bias) = (values(2, outputs * inputs), values(3, outputs));
                let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
                // With more than 48 or 96 rows there are several micro-tiles or tasks.
                for rows in [
                    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 23, 24, 25, 31, 32, 33, 48,
                    49, 97, 103,
                ] {
                    let what = format!("{isa:?} {gemm_type:?} {rows} × {inputs} × {outputs}");
                    let x = values(1, rows * inputs);
                    let found = multiply(&x, &packed, &with_bias(&bias));
                    for (row, found) in x.chunks(inputs).zip(found.chunks(outputs)) {
                        let weights = w.chunks(inputs).zip(&bias);
                        let expected = weights.map(|(w, b)| dot(isa, gemm_type, row, w) + f64::from(*b));
                        assert_close(&what, found, &expected.collect::<Vec<_>>(), 2e-5, 1e-5);
                        assert_eq!(multiply(row, &packed, &with_bias(&bias)), found, "{what}");
                    }
                }
            }
        }
    }
}

/// Sizes around the boundaries of tiles, tile rows and, with one bf16 part, KC.
const TILE_SIZES: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (15, 31, 15),
    (16, 32, 16),
    (17, 33, 17),
    (32, 63, 32),
    (33, 65, 33),
    (34, 384, 40),
    (49, 417, 65),
];

/// Emulated tiles against f64, and AMX against emulated tiles, bit for bit.
#[test]
fn gemm_on_amx_has_the_bits_of_emulated_tiles() {
    let emulated = Isa::emulated_tiles();
    let amx = Isa::testable().into_iter().find(|isa| isa.tile_unit().is_some());
    for (rows, inputs, outputs) in TILE_SIZES {
        let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
        for gemm_type in GemmType::ALL {
            let what = format!("{gemm_type:?} {rows} × {inputs} × {outputs}");
            let of = |isa| {
                multiply(&x, &PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs), &Epilogue::default())
            };
            let found = of(emulated);
            for (row, found) in x.chunks(inputs).zip(found.chunks(outputs)) {
                let expected: Vec<f64> = w.chunks(inputs).map(|w| dot(emulated, gemm_type, row, w)).collect();
                assert_close(&what, found, &expected, 5e-6, 2e-6);
            }
            // Int8 scales are applied by the vector unit, which the emulated ISA does not share with AMX.
            if let Some(amx) = amx.filter(|_| gemm_type != GemmType::Int8) {
                assert_eq!(of(amx), found, "{what}");
            }
        }
    }
}

/// Weights that were stored as bf16 or f16 are fewer bf16 parts, in less memory, and give the same bits as in
/// three.
#[test]
fn weights_of_fewer_bits_give_the_same_bits() {
    let isas = || Isa::testable().into_iter().chain([Isa::emulated_tiles()]);
    let round = |bits: u32, x: f32| match bits {
        bf16::MANTISSA_DIGITS => bf16::from_f32(x).to_f32(),
        _ => f16::from_f32(x).to_f32(),
    };
    // The last one has K blocks of different lengths, and more rows than stay in L2.
    for (rows, inputs, outputs) in TILE_SIZES.into_iter().chain([(70, 1537, 100), (400, 1600, 40)]) {
        let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
        for bits in [bf16::MANTISSA_DIGITS, f16::MANTISSA_DIGITS] {
            // Small values: those of f16 are subnormal.
            let small = |i: usize| if i.is_multiple_of(7) { 1e-6 } else { 1.0 };
            let w: Vec<f32> = w.iter().enumerate().map(|(i, x)| round(bits, x * small(i))).collect();
            for isa in isas() {
                for gemm_type in GemmType::ALL {
                    let read = |first: usize, to: &mut [f32]| -> Result<(), Infallible> {
                        to.copy_from_slice(&w[first..][..to.len()]);
                        Ok(())
                    };
                    let pack = |bits| {
                        let Ok(packed) = PackedMatrix::pack_with(isa, gemm_type, outputs, inputs, bits, read);
                        multiply(&x, &packed, &Epilogue::default())
                    };
                    let what =
                        format!("{} {gemm_type:?} {bits} bits {rows} × {inputs} × {outputs}", isa.name());
                    assert_eq!(pack(bits), pack(F32_SIGNIFICAND_BITS), "{what}");
                }
            }
        }
    }
    let bytes = |bits| PackedMatrix::packed_bytes(Isa::emulated_tiles(), GemmType::F32, 64, 64, bits);
    assert_eq!([8, 11, 24].map(bytes), [2, 4, 6].map(|bytes| bytes * 64 * 64));
}

/// A block that is wider than the result: the columns after the last panel stay as they are.
#[test]
fn gemm_into_a_wider_block_gives_the_same_bits() {
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        for gemm_type in GemmType::ALL {
            for (rows, inputs, outputs) in
                [(1, 5, 1), (7, 33, 18), (13, 400, 31), (12, 64, 32), (14, 385, 50)]
            {
                let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
                let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
                let expected = multiply(&x, &packed, &Epilogue::default());
                let columns = outputs.next_multiple_of(MAX_NR) + 3;
                let mut found = vec![7.5; rows * columns];
                let mut buffer = LhsBuffer::default();
                let x = buffer.convert(&packed, &x, inputs, rows);
                gemm(
                    x,
                    &packed,
                    0..packed.panels(),
                    &Epilogue::default(),
                    &mut OutputBlock::whole(&mut found, columns),
                );
                for (found, expected) in found.chunks(columns).zip(expected.chunks(outputs)) {
                    assert_eq!(
                        &found[..outputs],
                        expected,
                        "{isa:?} {gemm_type:?} {rows} × {inputs} × {outputs}"
                    );
                    assert_eq!(found[columns - 3..], [7.5; 3]);
                }
            }
        }
    }
}

/// Sums over int8 groups are exact, so tiles and vectors give the same bits.
#[test]
fn int8_gemm_has_the_same_bits_on_tiles_and_vectors() {
    let isas = Isa::testable();
    let Some(amx) = isas.iter().find(|isa| isa.tile_unit().is_some()) else { return };
    let vectors = isas.iter().find(|isa| isa.name() == "avx512-vnni").expect("a processor with AMX has VNNI");
    for (rows, inputs, outputs) in TILE_SIZES.into_iter().chain([(70, 1537, 100)]) {
        let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
        let [tiles, vectors] = [amx, vectors].map(|isa| {
            multiply(&x, &PackedMatrix::pack(*isa, GemmType::Int8, &w, outputs, inputs), &Epilogue::default())
        });
        assert_eq!(tiles, vectors, "{rows} × {inputs} × {outputs}");
    }
}

/// Sums of products at the limits of the integers: of equal signs, of alternating signs, of weights that are
/// all rounded up, and of the greatest distance from the zero point. These are the values of whole groups
/// after their rotation, and of other rows before it.
#[test]
fn int8_sums_of_the_largest_magnitudes_are_exact() {
    let patterns: [fn(usize) -> f32; 6] = [
        |_| 1.0,
        |_| -1.0,
        |i| if i % 2 == 0 { 1.0 } else { -1.0 },
        |i| if i % 4 == 1 { 39.2 } else { 40.6 },
        |i| if i % 8 == 0 { -127.0 } else { -11.51 },
        |i| if i == 0 { -1.0 } else { 1.0 },
    ];
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        let format = int8_format(isa);
        for inputs in [4, 32, 64, 128, 200, 256] {
            let mut rows: Vec<f32> = patterns.iter().flat_map(|pattern| (0..inputs).map(pattern)).collect();
            if inputs.is_multiple_of(format.group) {
                for group in rows.chunks_mut(format.group) {
                    // The matrix is its own inverse but for its order.
                    let before = rotated(group, format).into_iter().map(|x| x / format.rotation as f32);
                    group.copy_from_slice(&before.collect::<Vec<f32>>());
                }
            }
            let packed = PackedMatrix::pack(isa, GemmType::Int8, &rows, patterns.len(), inputs);
            let found = multiply(&rows, &packed, &Epilogue::default());
            let dots = |x| rows.chunks(inputs).map(move |w| dot(isa, GemmType::Int8, x, w));
            let expected: Vec<f64> = rows.chunks(inputs).flat_map(dots).collect();
            assert_close(&format!("{isa:?} {inputs} inputs"), &found, &expected, 1e-4, 1e-6);
        }
    }
}

/// `f(x Wᵀ + b) / d · g + r`, with every subset of `f`, `b`, `d`, `g` and `r`.
#[test]
fn every_combination_of_epilogue_operands_matches_f64() {
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        for gemm_type in GemmType::ALL {
            for (rows, inputs, outputs) in [(1, 5, 3), (14, 40, 31), (33, 70, 50)] {
                let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
                let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
                let plain = multiply(&x, &packed, &Epilogue::default());
                let (bias, residual) = (values(3, outputs), values(4, rows * outputs));
                let factors = values(6, rows * outputs);
                let divisors: Vec<f32> = values(5, rows).iter().map(|x| x + 3.0).collect();
                for which in 0..32 {
                    let take =
                        |bit: usize, values: &'static [f32]| if which >> bit & 1 == 1 { values } else { &[] };
                    let [bias, divisors, factors, residual] =
                        [&bias, &divisors, &factors, &residual].map(|x| &*x.clone().leak());
                    let activation = if which & 8 == 8 { Activation::Gelu } else { Activation::Identity };
                    let epilogue = Epilogue {
                        bias: take(0, bias),
                        activation,
                        divisors: take(1, divisors),
                        factors: Factors { values: take(4, factors), first_output: 0, columns: outputs },
                        residual: take(2, residual),
                    };
                    let at = |x: &[f32], i: usize, none: f64| x.get(i).map_or(none, |x| f64::from(*x));
                    let expected = plain.iter().enumerate().map(|(i, y)| {
                        let y = f64::from(*y) + at(epilogue.bias, i % outputs, 0.0);
                        let y = exact(activation, y) / at(epilogue.divisors, i / outputs, 1.0);
                        y * at(epilogue.factors.values, i, 1.0) + at(epilogue.residual, i, 0.0)
                    });
                    let what = format!("{isa:?} {gemm_type:?} {rows} × {inputs} × {outputs}, {which:b}");
                    let found = multiply(&x, &packed, &epilogue);
                    let gelu = activation == Activation::Gelu
                        && matches!(gemm_type, GemmType::Bf16 | GemmType::Int8);
                    let atol = if gelu { 2.0 * math::GELU_BF16_MAX_ERROR } else { 3e-6 };
                    assert_close(&what, &found, &expected.collect::<Vec<_>>(), atol, 3e-6);
                }
            }
        }
    }
}

/// Results that are stored as operands of the next GEMM are those that are converted after they were stored
/// as f32.
#[test]
fn a_gemm_into_the_operands_of_another_has_the_bits_of_two() {
    let bias = values(4, 417);
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        for gemm_type in GemmType::ALL {
            for (rows, inputs, inner, outputs) in
                [(1, 5, 3, 4), (17, 33, 40, 31), (70, 64, 100, 33), (33, 385, 417, 40)]
            {
                let up = PackedMatrix::pack(isa, gemm_type, &values(2, inner * inputs), inner, inputs);
                let down = PackedMatrix::pack(isa, gemm_type, &values(3, outputs * inner), outputs, inner);
                if !up.chains_with(&down) {
                    continue;
                }
                let x = values(1, rows * inputs);
                let activation = Activation::Gelu;
                let epilogue = Epilogue { bias: &bias[..inner], activation, ..Epilogue::default() };
                let expected = multiply(&multiply(&x, &up, &epilogue), &down, &Epilogue::default());

                let mut found = vec![f32::NAN; rows * outputs];
                let (mut buffer, mut next_buffer) = (LhsBuffer::default(), LhsBuffer::default());
                // The buffer has old values: the bytes −1 and 127, which are NaN as bf16.
                let int8 = PackedMatrix::pack(isa, GemmType::Int8, &[1.0; 64], 1, 64);
                let old = [-1.0, 127.0].repeat(32 * 3000);
                next_buffer.convert(&int8, &old, 64, 3000);
                let x = buffer.convert(&up, &x, inputs, rows);
                let middle = up.panels() / 2;
                gemm_into_lhs(x, &up, 0..middle, &epilogue, &down, &mut next_buffer);
                gemm_into_lhs(x, &up, middle..up.panels(), &epilogue, &down, &mut next_buffer);
                let next = next_buffer.converted(&down, rows);
                // SAFETY: there is only one block.
                let mut block = unsafe { OutputMatrix::new(&mut found, outputs).block(0..rows, 0..outputs) };
                gemm(next, &down, 0..down.panels(), &Epilogue::default(), &mut block);
                assert_eq!(found, expected, "{isa:?} {gemm_type:?} {rows} × {inputs} × {inner} × {outputs}");
            }
        }
    }
}

/// Rows whose inputs are converted in parts, here the last ones first.
#[test]
fn rows_converted_in_parts_have_the_bits_of_whole_rows() {
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        for gemm_type in GemmType::ALL {
            for (rows, inputs) in [(1, 300), (17, 256), (33, 390), (70, 1000)] {
                let packed = PackedMatrix::pack(isa, gemm_type, &values(2, 35 * inputs), 35, inputs);
                if !packed.converts_lhs() {
                    continue;
                }
                let x = values(1, rows * inputs);
                let mut buffer = LhsBuffer::default();
                // The buffer has old values.
                buffer.convert(&packed, &values(3, rows * inputs), inputs, rows);
                let part = packed.lhs_step();
                for first in (0..inputs).step_by(part).rev() {
                    let columns = first..inputs.min(first + part);
                    let values: Vec<f32> =
                        x.chunks(inputs).flat_map(|row| row[columns.clone()].iter().copied()).collect();
                    buffer.convert_inputs(&packed, columns.clone(), &values, columns.len(), rows);
                }
                let mut found = vec![f32::NAN; rows * 35];
                let lhs = buffer.converted(&packed, rows);
                // SAFETY: there is only one block.
                let mut block = unsafe { OutputMatrix::new(&mut found, 35).block(0..rows, 0..35) };
                gemm(lhs, &packed, 0..packed.panels(), &Epilogue::default(), &mut block);
                let expected = multiply(&x, &packed, &Epilogue::default());
                assert_eq!(found, expected, "{isa:?} {gemm_type:?} {rows} × {inputs}");
            }
        }
    }
}

/// The part would overwrite inputs of the next one.
#[test]
#[should_panic(expected = "other inputs stay as they are")]
fn a_part_of_the_inputs_ends_with_a_group() {
    let portable = *Isa::available().last().unwrap();
    let packed = PackedMatrix::pack(portable, GemmType::Int8, &[1.0; 600], 2, 300);
    LhsBuffer::default().convert_inputs(&packed, 0..130, &[1.0; 130], 130, 1);
}

/// [`attend_head`] of rows that follow each other.
fn attend(isa: Isa, gemm_type: GemmType, head: HeadAttention, buffer: &mut AttentionBuffer) -> Vec<f32> {
    let (rows, columns) = (head.queries.rows, head.values.dim);
    let mut y = vec![f32::NAN; rows * columns];
    // SAFETY: there is only one block.
    let mut block = unsafe { OutputMatrix::new(&mut y, columns).block(0..rows, 0..columns) };
    attend_head(isa, gemm_type, head, buffer, &mut block);
    y
}

/// The result of [`attend`] in f64, of queries and keys rounded as the GEMM type rounds them.
fn attention_in_f64(isa: Isa, gemm_type: GemmType, head: &HeadAttention) -> Vec<f64> {
    let rows = |rows: HeadRows| rows.data.chunks(rows.dim).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let [queries, keys, values] = [head.queries, head.keys, head.values].map(rows);
    let attend = |(i, q): (usize, &Vec<f32>)| {
        let position = (head.first_query + i) as f64;
        let (first, last) = (position - head.window.left as f64, position + head.window.right as f64);
        let weight = |(j, k): (usize, &Vec<f32>)| {
            let bias = match head.bias {
                [] => 0.0,
                bias => f64::from(bias[j + (bias.len() - 1) / 2 - head.first_query - i]),
            };
            let is_visible = first <= j as f64 && j as f64 <= last;
            let score = f64::from(head.scale) * dot(isa, gemm_type, q, k) + bias;
            if is_visible { score.exp() } else { 0.0 }
        };
        let weights: Vec<f64> = keys.iter().enumerate().map(weight).collect();
        let sum = weights.iter().sum::<f64>();
        let column = |column: usize| {
            let sum_of_values: f64 = values.iter().zip(&weights).map(|(v, w)| w * f64::from(v[column])).sum();
            if sum == 0.0 { 0.0 } else { sum_of_values / sum }
        };
        (0..head.values.dim).map(column).collect::<Vec<_>>()
    };
    queries.iter().enumerate().flat_map(attend).collect()
}

/// Asserts that [`attend`] matches f64, and that every `step`-th query alone has the same bits.
fn check_attention(isa: Isa, gemm_type: GemmType, what: &str, head: HeadAttention, step: usize) {
    let what = format!("{isa:?} {gemm_type:?} {what}");
    // Used again while it holds other operands, at first NaN of more keys.
    let mut buffer = AttentionBuffer::default();
    let [keys, dim, v_head_dim] = [head.keys.rows, head.keys.dim, head.values.dim];
    let has_kernel = |keys: &usize| *keys <= max_attended_keys(isa, gemm_type, [dim, v_head_dim]);
    let keys = (keys..keys + 40).rev().find(has_kernel).unwrap();
    let nan = vec![f32::NAN; keys.max(head.queries.rows) * dim.max(v_head_dim)];
    let rows = |rows: usize, dim: usize| head_rows(&nan[..rows * dim], dim);
    let nan = HeadAttention {
        queries: rows(head.queries.rows, dim),
        keys: rows(keys, dim),
        values: rows(keys, v_head_dim),
        bias: &[],
        ..head
    };
    assert!(attend(isa, gemm_type, nan, &mut buffer).iter().any(|x| x.is_nan()), "{what}");
    let found = attend(isa, gemm_type, head, &mut buffer);
    // Weights and values are rounded, too.
    let atol = match gemm_type {
        GemmType::Bf16 => 6e-3,
        GemmType::Bf16x3 => 3e-5,
        _ => 1e-6,
    };
    // A score is rounded as a number of the size of its bias, and its weight changes by the difference.
    let largest_bias = head.bias.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let atol = atol + f64::from(f32::EPSILON * largest_bias);
    assert_close(&what, &found, &attention_in_f64(isa, gemm_type, &head), atol, 0.0);
    for (i, found) in found.chunks(head.values.dim).enumerate().step_by(step) {
        let HeadRows { data, dim, .. } = head.queries;
        let queries = HeadRows { data: &data[i * dim..][..dim], rows: 1, ..head.queries };
        let alone = HeadAttention { queries, first_query: head.first_query + i, ..head };
        let alone = attend(isa, gemm_type, alone, &mut buffer);
        assert_eq!(alone, found, "{what}, query {i}");
    }
}

/// Rows that follow each other.
fn head_rows(data: &[f32], dim: usize) -> HeadRows<'_> {
    HeadRows { data, stride: dim, rows: data.len() / dim, dim }
}

/// The ISAs and GEMM types in which [`attend_head`] computes heads with so many keys.
fn kernels_of_heads(keys: usize, head_dims: [usize; 2]) -> impl Iterator<Item = (Isa, GemmType)> {
    let isas = Isa::testable().into_iter().chain([Isa::emulated_tiles()]);
    isas.flat_map(move |isa| {
        GemmType::ALL
            .map(|gemm_type| (isa, gemm_type))
            .into_iter()
            .filter(move |&(isa, gemm_type)| keys <= max_attended_keys(isa, gemm_type, head_dims))
    })
}

#[test]
fn few_keys_have_a_kernel_in_every_isa() {
    for isa in Isa::testable().into_iter().chain([Isa::emulated_tiles()]) {
        let types = kernels_of_heads(46, [32, 32]).filter(|(other, _)| *other == isa);
        let types: Vec<GemmType> = types.map(|(_, gemm_type)| gemm_type).collect();
        let expected = match isa.has_fast_bf16() {
            true => &[GemmType::F32, GemmType::Bf16x3, GemmType::Bf16][..],
            false => &[GemmType::F32, GemmType::Bf16x3],
        };
        assert_eq!(types, expected, "{isa:?}");
    }
}

/// On tiles, the last two have more keys than a block of keys.
#[test]
fn attention_in_one_kernel_matches_f64_and_queries_have_the_same_bits_alone() {
    let sizes = [
        (1, 1, 1, 1),
        (13, 7, 8, 9),
        (24, 48, 7, 32),
        (25, 63, 9, 8),
        (12, 64, 32, 48),
        (49, 97, 16, 16),
        (7, 192, 8, 7),
        (16, 15, 31, 16),
        (17, 18, 32, 33),
        (33, 32, 33, 32),
        (40, 65, 64, 20),
        (5, 130, 40, 65),
        (33, 513, 4, 17),
        (3, 1100, 33, 32),
    ];
    for (queries, keys, qk_head_dim, v_head_dim) in sizes {
        for (isa, gemm_type) in kernels_of_heads(keys, [qk_head_dim, v_head_dim]) {
            let (q, k, v) = (
                values(1, queries * qk_head_dim),
                values(2, keys * qk_head_dim),
                values(3, keys * v_head_dim),
            );
            let head = HeadAttention {
                queries: head_rows(&q, qk_head_dim),
                keys: head_rows(&k, qk_head_dim),
                values: head_rows(&v, v_head_dim),
                scale: 3.0 / (qk_head_dim as f32).sqrt(),
                first_query: 0,
                window: AttentionWindow::FULL,
                bias: &[],
            };
            let what = format!("{queries} × {keys}, {qk_head_dim} and {v_head_dim}");
            check_attention(isa, gemm_type, &what, head, 1);
        }
    }
}

/// Windows that begin and end inside, before and after a block of keys; some queries see no key. With a
/// rising bias the maximum of the scores is in the last block of keys, with a falling one in the first.
#[test]
fn attention_in_one_kernel_with_windows_and_biases_matches_f64() {
    let (dim, n) = (5, 1050);
    let windows =
        [(usize::MAX, 0), (0, 0), (3, 40), (40, 3), (600, 31), (0, usize::MAX), (usize::MAX, usize::MAX)];
    // First query, queries and keys.
    let sizes = [(0, 70, 70), (0, 50, 20), (5, 33, 545), (480, 65, 1050), (1000, 50, 1050)];
    let (q, k, v) = (values(1, 70 * dim), values(2, n * dim), values(3, n * dim));
    let biases = [vec![], values(4, 2 * n - 1), relative_bias(n, 0.2), relative_bias(n, -0.2)];
    for (first_query, queries, keys) in sizes {
        for (isa, gemm_type) in kernels_of_heads(keys, [dim, dim]) {
            for ((left, right), bias) in
                windows.into_iter().flat_map(|window| biases.iter().map(move |bias| (window, bias)))
            {
                let head = HeadAttention {
                    queries: head_rows(&q[..queries * dim], dim),
                    keys: head_rows(&k[..keys * dim], dim),
                    values: head_rows(&v[..keys * dim], dim),
                    scale: 1.5,
                    first_query,
                    window: AttentionWindow { left, right },
                    bias,
                };
                let bias = bias.first();
                let what = format!("{first_query} + {queries} × {keys}, {left} and {right}, bias {bias:?}");
                check_attention(isa, gemm_type, &what, head, 17);
            }
        }
    }
}

/// A bias that grows with the position of the key, for sequences of up to `n` tokens.
fn relative_bias(n: usize, slope: f32) -> Vec<f32> {
    (0..2 * n - 1).map(|i| slope * (i as f32 - n as f32)).collect()
}

/// With this stride, the offset of the third row overflows to 0.
#[test]
#[should_panic(expected = "x has all its rows")]
fn gemm_rejects_a_stride_that_overflows() {
    let portable = *Isa::available().last().unwrap();
    let packed = PackedMatrix::pack(portable, GemmType::F32, &[1.0; 4], 2, 2);
    let (x, mut y, mut buffer) = ([0.0; 8], [0.0; 6], LhsBuffer::default());
    let rows = buffer.convert(&packed, &x, 1 << (usize::BITS - 1), 3);
    // SAFETY: there is only one block.
    let mut block = unsafe { OutputMatrix::new(&mut y, 2).block(0..3, 0..2) };
    gemm(rows, &packed, 0..1, &Epilogue::default(), &mut block);
}

/// Blocks of rows and panels, as tasks compute them, against one call.
#[test]
fn gemm_by_blocks_has_the_bits_of_one_call() {
    for isa in Isa::testable() {
        for gemm_type in GemmType::ALL {
            for (rows, inputs, outputs) in [(61, 70, 75), (61, 70, 265)] {
                let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
                let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
                let expected = multiply(&x, &packed, &Epilogue::default());
                let mut found = vec![f32::NAN; rows * outputs];
                let output = OutputMatrix::new(&mut found, outputs);
                let mut buffer = LhsBuffer::default();
                let x = buffer.convert(&packed, &x, inputs, rows);
                for panel in 0..packed.panels() {
                    for first in (0..rows).step_by(16) {
                        let rows_of_block = first..rows.min(first + 16);
                        // SAFETY: one block is alive at a time.
                        let mut block =
                            unsafe { output.block(rows_of_block.clone(), packed.columns(panel..panel + 1)) };
                        gemm(
                            x.slice(rows_of_block),
                            &packed,
                            panel..panel + 1,
                            &Epilogue::default(),
                            &mut block,
                        );
                    }
                }
                assert_eq!(found, expected, "{isa:?} {gemm_type:?} {outputs}");
            }
        }
    }
}

/// f32 rows are read where they are, with any stride.
#[test]
fn gemm_of_strided_rows_has_the_bits_of_contiguous_rows() {
    for isa in Isa::testable() {
        for (rows, inputs, outputs) in [(23, 1024, 260), (24, 1024, 40), (24, 1024, 260), (101, 2048, 300)] {
            let packed =
                PackedMatrix::pack(isa, GemmType::F32, &values(2, outputs * inputs), outputs, inputs);
            let x = values(1, rows * inputs);
            let stride = row_stride(inputs);
            assert!(stride > inputs && row_stride(stride) == stride);
            let mut strided = vec![f32::NAN; rows * stride];
            for (to, from) in strided.chunks_mut(stride).zip(x.chunks(inputs)) {
                to[..inputs].copy_from_slice(from);
            }
            let mut expected = vec![f32::NAN; rows * outputs];
            let mut buffer = LhsBuffer::default();
            let lhs = buffer.convert(&packed, &strided, stride, rows);
            // SAFETY: there is only one block.
            let mut block = unsafe { OutputMatrix::new(&mut expected, outputs).block(0..rows, 0..outputs) };
            gemm(lhs, &packed, 0..packed.panels(), &Epilogue::default(), &mut block);
            assert_eq!(multiply(&x, &packed, &Epilogue::default()), expected, "{isa:?} {rows} × {inputs}");
        }
    }
}

/// Rows of 4 KiB in bf16 and in int8, which are converted with a stride of their own.
#[test]
fn gemm_of_converted_rows_that_compete_for_l1_matches_f64() {
    let (rows, outputs) = (13, 34);
    for isa in Isa::testable() {
        for (gemm_type, inputs) in [(GemmType::Bf16, 2048), (GemmType::Int8, 4096)] {
            let (x, w) = (values(1, rows * inputs), values(2, outputs * inputs));
            let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
            let found = multiply(&x, &packed, &Epilogue::default());
            for (row, found) in x.chunks(inputs).zip(found.chunks(outputs)) {
                let what = format!("{isa:?} {gemm_type:?} {rows} × {inputs}");
                let expected: Vec<f64> = w.chunks(inputs).map(|w| dot(isa, gemm_type, row, w)).collect();
                assert_close(&what, found, &expected, 2e-5, 1e-5);
                assert_eq!(multiply(row, &packed, &Epilogue::default()), found, "{what}");
            }
        }
    }
}

/// Packing into the memory of another matrix, from strided views, transposed or not.
#[test]
fn repacking_gives_the_same_matrix_as_packing() {
    for gemm_type in [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16] {
        let mut packed = PackedMatrix::default();
        for (outputs, inputs) in [(40, 33), (3, 2), (1, 1), (17, 50), (64, 7)] {
            let stride = inputs.max(outputs) + 5;
            let w = values(4, stride * stride);
            let x = values(5, 3 * inputs);
            for transposed in [false, true] {
                packed.repack(gemm_type, MatrixView { data: &w, stride, transposed }, outputs, inputs);
                let at = |o: usize, i: usize| if transposed { w[i * stride + o] } else { w[o * stride + i] };
                let rows: Vec<f32> = (0..outputs * inputs).map(|k| at(k / inputs, k % inputs)).collect();
                let plain = PackedMatrix::pack(packed.isa(), gemm_type, &rows, outputs, inputs);
                assert_eq!(
                    multiply(&x, &packed, &Epilogue::default()),
                    multiply(&x, &plain, &Epilogue::default()),
                    "{outputs} × {inputs}, transposed: {transposed}"
                );
            }
        }
    }
}

/// NaN and infinity in an operand make their row or column of the output not finite, and change no other.
#[test]
fn non_finite_operands_stay_in_their_row_and_column() {
    for isa in Isa::testable() {
        for gemm_type in GemmType::ALL {
            for bad in [f32::NAN, f32::INFINITY] {
                let (rows, inputs, outputs) = (3, 70, 20);
                let (mut x, mut w) = (values(1, rows * inputs), values(2, outputs * inputs));
                (x[inputs + 5], w[7 * inputs + 66]) = (bad, bad);
                let packed = PackedMatrix::pack(isa, gemm_type, &w, outputs, inputs);
                for (i, y) in multiply(&x, &packed, &Epilogue::default()).iter().enumerate() {
                    let is_affected = i / outputs == 1 || i % outputs == 7;
                    assert_eq!(!y.is_finite(), is_affected, "{isa:?} {gemm_type:?} {bad}: {y} at {i}");
                }
            }
        }
    }
}

/// Defines a kernel that applies a function of a vector to a row.
macro_rules! row_kernel {
    ($name:ident, $f:path) => {
        struct $name<'a>(&'a mut [f32]);

        impl Kernel for $name<'_> {
            type Output = ();

            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                for start in (0..self.0.len()).step_by(S::LANES) {
                    let y = $f(s, s.load_at(self.0, start, 0.0));
                    s.store_at(self.0, start, y);
                }
            }
        }
    };
}

row_kernel!(Exp, math::exp);
row_kernel!(Exp2, math::exp2);
row_kernel!(Exp2Bf16, math::exp2_bf16);
row_kernel!(Exp2Weight, math::exp2_weight);
row_kernel!(Gelu, math::gelu);
row_kernel!(GeluBf16, math::gelu_bf16);
row_kernel!(Erf, math::erf);
row_kernel!(Tanh, math::tanh);
row_kernel!(Sigmoid, math::sigmoid);

/// The error of an f32 in units in the last place (ULP).
fn ulps(found: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if found == rounded {
        return 0.0;
    }
    let next = f32::from_bits(rounded.abs().to_bits() + 1);
    let unit = f64::from(next) - f64::from(rounded.abs());
    (f64::from(found) - exact).abs() / unit
}

/// Finite values of all magnitudes and both signs, about 2,000 per power of two.
fn values_of_all_magnitudes() -> Vec<f32> {
    (0..=u32::MAX).step_by(4099).map(f32::from_bits).filter(|x| x.is_finite()).collect()
}

#[test]
fn functions_keep_their_ulp_bounds() {
    let x = values_of_all_magnitudes();
    type Exact = fn(f64) -> f64;
    let exact: [(&str, Exact, f64); 4] = [
        ("exp", f64::exp, math::EXP_MAX_ULP),
        ("erf", libm::erf, math::ERF_MAX_ULP),
        ("tanh", f64::tanh, math::TANH_MAX_ULP),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), math::SIGMOID_MAX_ULP),
    ];
    for isa in Isa::testable() {
        for (name, exact, max_ulp) in exact {
            let mut y = x.clone();
            match name {
                "exp" => isa.run(Exp(&mut y)),
                "erf" => isa.run(Erf(&mut y)),
                "tanh" => isa.run(Tanh(&mut y)),
                _ => isa.run(Sigmoid(&mut y)),
            }
            let (mut worst, mut at) = (0.0, 0.0);
            for (x, y) in x.iter().zip(&y) {
                let exact = exact(f64::from(*x));
                // ISAs differ for subnormal results.
                let error = if exact.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { ulps(*y, exact) };
                if error > worst {
                    (worst, at) = (error, *x);
                }
            }
            println!("{isa:?} {name}: {worst:.2} ULP at {at}");
            assert!(worst <= max_ulp, "{isa:?} {name}: {worst} ULP at {at}");
        }
    }
}

#[test]
fn exp2_keeps_its_error_bounds() {
    let x: Vec<f32> = (-126_000..=127_000).map(|x| x as f32 / 1000.0).chain([-1e-9]).collect();
    type Run = fn(Isa, &mut [f32]);
    let functions: [(Run, f64); 3] = [
        (|isa, y| isa.run(Exp2(y)), math::EXP2_MAX_ERROR),
        (|isa, y| isa.run(Exp2Bf16(y)), math::EXP2_BF16_MAX_ERROR),
        (|isa, y| isa.run(Exp2Weight(y)), math::EXP2_WEIGHT_MAX_ERROR),
    ];
    for isa in Isa::testable() {
        for (run, max_error) in functions {
            let mut y = x.clone();
            run(isa, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let error = (f64::from(*y) / f64::from(*x).exp2() - 1.0).abs();
                assert!(error <= max_error, "{isa:?}: 2^{x} = {y}, error {error:e} above {max_error:e}");
            }
            let mut y = [f32::NEG_INFINITY, -1e30, -200.0, f32::NAN];
            run(isa, &mut y);
            assert!(y[..3] == [0.0; 3] && y[3].is_nan(), "{isa:?}: {y:?}");
            // Below 2⁻¹²⁶ the result is 0 or subnormal.
            let mut y = [-126.5, -127.0, -149.0, -151.0];
            run(isa, &mut y);
            assert!(y.iter().all(|y| (0.0..f32::MIN_POSITIVE).contains(y)), "{isa:?}: {y:?}");
        }
    }
}

/// The maximum errors of GELU and of its form for bf16.
struct GeluMaxErrors;

impl Kernel for GeluMaxErrors {
    type Output = [f64; 2];

    fn run<S: Simd>(self, _: S) -> [f64; 2] {
        let gelu = if S::FAST_LOOKUP { math::GELU_MAX_ERROR } else { math::GELU_BY_ERF_MAX_ERROR };
        [gelu, math::GELU_BF16_MAX_ERROR]
    }
}

#[test]
fn gelu_keeps_its_error_bounds() {
    type Run = fn(Isa, &mut [f32]);
    let functions: [Run; 2] = [|isa, y| isa.run(Gelu(y)), |isa, y| isa.run(GeluBf16(y))];
    let x: Vec<f32> =
        (-120_000..=120_000).map(|x| x as f32 / 10_000.0).chain([-1e30, -50.0, 50.0, 1e30]).collect();
    for isa in Isa::testable() {
        for (run, bound) in functions.into_iter().zip(isa.run(GeluMaxErrors)) {
            let mut y = x.clone();
            run(isa, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let expected = exact(Activation::Gelu, f64::from(*x));
                let error = (f64::from(*y) - expected).abs() / expected.abs().max(1.0);
                assert!(error <= bound, "{isa:?}: gelu({x}) = {y}, error {error:e}");
            }
            let mut y = [f32::NAN, f32::INFINITY];
            run(isa, &mut y);
            assert!(y[0].is_nan() && y[1] == f32::INFINITY, "{isa:?}: {y:?}");
        }
    }
}

#[test]
fn functions_at_their_limits_and_nan() {
    for isa in Isa::testable() {
        let mut y = [f32::NEG_INFINITY, -1e30, -104.0, 0.0, -0.0, 89.0, 1e30, f32::INFINITY];
        isa.run(Exp(&mut y));
        assert_eq!(y, [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY], "{isa:?}");
        let limits = [f32::NEG_INFINITY, -1e30, -0.0, 0.0, 1e30, f32::INFINITY];
        let mut y = limits;
        isa.run(Erf(&mut y));
        assert_eq!(y, [-1.0, -1.0, -0.0, 0.0, 1.0, 1.0], "{isa:?}");
        y = limits;
        isa.run(Tanh(&mut y));
        assert_eq!(y, [-1.0, -1.0, -0.0, 0.0, 1.0, 1.0], "{isa:?}");
        y = limits;
        isa.run(Sigmoid(&mut y));
        assert_eq!(y, [0.0, 0.0, 0.5, 0.5, 1.0, 1.0], "{isa:?}");
        let functions: [fn(&mut [f32], Isa); 3] =
            [|y, isa| isa.run(Exp(y)), |y, isa| isa.run(Erf(y)), |y, isa| isa.run(Tanh(y))];
        for run in functions {
            let mut y = [f32::NAN, 0.0];
            run(&mut y, isa);
            assert!(y[0].is_nan() && !y[1].is_nan(), "{isa:?}");
        }
    }
}

/// Activation functions by their definitions.
fn exact(activation: Activation, x: f64) -> f64 {
    let phi = |x: f64| 0.5 * (1.0 + libm::erf(x / 2f64.sqrt()));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let log = |x: f64| x.exp().ln_1p();
    match activation {
        Activation::Identity => x,
        Activation::Gelu => x * phi(x),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::GeluClipped => (x * phi(x)).clamp(-10.0, 10.0),
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::LeakyRelu => {
            if x < 0.0 {
                0.01 * x
            } else {
                x
            }
        }
        Activation::Silu => x * sigmoid(x),
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::Mish => x * log(x).tanh(),
        #[allow(clippy::approx_constant, reason = "the reference rounds in this way")]
        Activation::Laplace => phi((x - 0.707107) / 0.282095),
        Activation::SqrtSoftplus => log(x).sqrt(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Prelu { slope } => {
            if x < 0.0 {
                f64::from(slope) * x
            } else {
                x
            }
        }
        Activation::Xielu(weights) => {
            let [positive, negative, beta, eps] = weights.map(f64::from);
            if x > 0.0 {
                positive * x * x + beta * x
            } else {
                (x.min(eps).exp_m1() - x) * negative + beta * x
            }
        }
    }
}

const ACTIVATIONS: [Activation; 18] = [
    Activation::Identity,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::GeluClipped,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Relu6,
    Activation::LeakyRelu,
    Activation::Silu,
    Activation::HardSwish,
    Activation::Mish,
    Activation::Laplace,
    Activation::SqrtSoftplus,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Prelu { slope: 0.3 },
    Activation::Xielu([0.8, 0.7, 0.5, -1e-6]),
];

#[test]
fn activations_match_f64() {
    for isa in Isa::testable() {
        for activation in ACTIVATIONS {
            for count in [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 1000] {
                let x: Vec<f32> = values(6, count).iter().map(|x| 12.0 * x).collect();
                let mut y = x.clone();
                activation.apply(isa, &mut y);
                let expected: Vec<f64> = x.iter().map(|x| exact(activation, f64::from(*x))).collect();
                assert_close(&format!("{isa:?} {activation:?}"), &y, &expected, 2e-6, 2e-6);
            }
            let mut y = [f32::NAN];
            activation.apply(isa, &mut y);
            assert!(y[0].is_nan(), "{isa:?} {activation:?}");
        }
    }
    assert!((softplus(1.0) - 1.313_261_6).abs() < 1e-6 && softplus(200.0) == 200.0);
}

const WIDTHS: [usize; 12] = [1, 3, 4, 8, 15, 16, 17, 31, 33, 64, 65, 384];

#[test]
fn norms_match_f64() {
    for isa in Isa::testable() {
        for width in WIDTHS {
            let (x, residual) = (values(1, 3 * width), values(2, 3 * width));
            let (weight, bias) = (values(3, width), values(4, width));
            for kind in [NormKind::Layer, NormKind::RootMeanSquare, NormKind::Affine] {
                for (residual, bias) in
                    [(&residual[..], &bias[..]), (&[], &bias), (&residual, &[]), (&[], &[])]
                {
                    let mut y = x.clone();
                    Norm { kind, weight: &weight, bias, eps: 1e-3 }.forward(isa, &mut y, residual);
                    let mut expected = Vec::new();
                    for row in 0..3 {
                        let at = |i: usize| {
                            let residual = residual.get(row * width + i).copied().unwrap_or(0.0);
                            f64::from(x[row * width + i]) + f64::from(residual)
                        };
                        let mean = match kind {
                            NormKind::Layer => (0..width).map(at).sum::<f64>() / width as f64,
                            NormKind::RootMeanSquare | NormKind::Affine => 0.0,
                        };
                        let square = (0..width).map(|i| (at(i) - mean).powi(2)).sum::<f64>() / width as f64;
                        let deviation = if kind == NormKind::Affine { 1.0 } else { (square + 1e-3).sqrt() };
                        expected.extend((0..width).map(|i| {
                            let y = (at(i) - mean) / deviation * f64::from(weight[i]);
                            y + f64::from(bias.get(i).copied().unwrap_or(0.0))
                        }));
                    }
                    assert_close(&format!("{isa:?} {kind:?} {width}"), &y, &expected, 2e-6, 2e-6);
                }
            }
        }
    }
}

#[test]
fn l2_normalize_gives_unit_length() {
    for isa in Isa::testable() {
        for width in WIDTHS {
            let x = values(1, width);
            let mut y = x.clone();
            l2_normalize(isa, &mut y);
            let length = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let expected: Vec<f64> = x.iter().map(|x| f64::from(*x) / length).collect();
            assert_close(&format!("{isa:?} {width}"), &y, &expected, 1e-7, 1e-6);
        }
        let mut zeros = [0.0; 5];
        l2_normalize(isa, &mut zeros);
        assert_eq!(zeros, [0.0; 5]);
        let mut bad = [1.0, f32::NAN, 2.0];
        l2_normalize(isa, &mut bad);
        assert!(bad.iter().all(|x| x.is_nan()), "{isa:?}");
    }
}

#[test]
fn softmax_matches_f64() {
    for isa in Isa::testable() {
        for width in WIDTHS {
            let stride = width + 3;
            for visible in [0..width, 0..1, width / 2..width, width / 3..width / 2 + 1] {
                let x: Vec<f32> = values(1, 4 * stride).iter().map(|x| 30.0 * x).collect();
                for accuracy in [Accuracy::F32, Accuracy::Bf16] {
                    let (mut y, mut sums) = (x.clone(), [0.0; 4]);
                    softmax_unnormalized(isa, &mut y, stride, 0.7, &|_| visible.clone(), &mut sums, accuracy);
                    for ((x, y), sum) in x.chunks(stride).zip(y.chunks(stride)).zip(sums) {
                        let max = x[visible.clone()].iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
                        let numerator = |i: usize| {
                            let exponent = 0.7f32 as f64 * (f64::from(x[i]) - f64::from(max));
                            if visible.contains(&i) { exponent.exp() } else { 0.0 }
                        };
                        let expected: Vec<f64> = (0..stride).map(numerator).collect();
                        let what = format!("{isa:?} {width} {visible:?}");
                        assert_close(&what, &[sum], &[expected.iter().sum()], 0.0, 1e-5);
                        assert_close(&what, y, &expected, 1e-7, 5e-6);
                    }
                }
            }
            // A NaN score makes the denominator of its row NaN.
            let (mut y, mut sums) = (values(1, width), [0.0]);
            y[width / 2] = f32::NAN;
            softmax_unnormalized(isa, &mut y, width, 1.0, &|_| 0..width, &mut sums, Accuracy::F32);
            assert!(sums[0].is_nan(), "{isa:?} {width}");
            softmax_unnormalized(isa, &mut y, width, 1.0, &|_| 0..width, &mut sums, Accuracy::Bf16);
            assert!(sums[0].is_nan(), "{isa:?} {width}");
        }
    }
}

#[test]
fn scale_and_bias_and_axpy_match_f64() {
    for isa in Isa::testable() {
        for width in WIDTHS {
            let (x, other) = (values(1, width), values(2, width + 2));
            for bias in [&[][..], &other] {
                let mut y = x.clone();
                scale_and_bias(isa, &mut y, 0.3, bias);
                let bias = |i: usize| f64::from(bias.get(i).copied().unwrap_or(0.0));
                let expected = x.iter().enumerate().map(|(i, x)| 0.3f32 as f64 * f64::from(*x) + bias(i));
                assert_close(&format!("{isa:?} {width}"), &y, &expected.collect::<Vec<_>>(), 1e-7, 1e-6);
            }
            let mut y = x.clone();
            axpy(isa, -0.4, &other, &mut y);
            let expected =
                x.iter().zip(&other).map(|(x, y)| f64::from(*x) - f64::from(0.4f32) * f64::from(*y));
            assert_close(&format!("{isa:?} {width}"), &y, &expected.collect::<Vec<_>>(), 1e-7, 1e-6);
        }
    }
}

/// In release builds the number of elements would wrap to 0.
#[test]
#[should_panic(expected = "the matrix fits into its memory")]
fn an_output_matrix_rejects_a_size_that_overflows() {
    let _ = OutputMatrix::uninit(&mut [], 1 << 32, 1 << 32);
}
