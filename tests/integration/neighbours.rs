//! Exact nearest neighbours and pairs: every kernel on every ISA of the machine against a plain loop in f64,
//! and the results against numpy, sentence-transformers and scipy
//! (`scripts/fixtures/make_neighbour_fixtures.py`).

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use half::f16;
use sconce::kernels::dot::{dot_f64, dot_rows, squared_distance_f64, squared_norms};
use sconce::kernels::isa::{ISA_VARIABLE, Isa};
use sconce::kernels::quantized::{dequantize, dot_signs, pack_signs, unpack_signs};
use sconce::kernels::select::{reaching, reaching_each};
use sconce::neighbours::{
    Block, Components, Elements, Metric, Nearest, Neighbour, NotFinite, Scorer, Stored, TopPairs,
};
use serde_json::Value;

use crate::support::{assert_fails, fixture, sconce, stderr, stdout};

const METRICS: [Metric; 3] = [Metric::Cosine, Metric::Dot, Metric::Euclidean];
/// Around the vectors of every ISA, and the steps of kernels that take several at once.
const DIMENSIONS: [usize; 14] = [1, 3, 4, 7, 8, 15, 16, 17, 31, 64, 65, 100, 384, 385];

/// Deterministic values in (−1, 1), by SplitMix64.
fn values(seed: u64, count: usize) -> Vec<f32> {
    let value = |i: u64| {
        let mut x = (seed << 32 | (i + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count as u64).map(value).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The score of two vectors, plainly in f64.
fn plain_score(metric: Metric, q: &[f32], x: &[f32]) -> f64 {
    match metric {
        Metric::Dot => dot(q, x),
        Metric::Cosine => {
            let norms = (dot(q, q) * dot(x, x)).sqrt();
            if norms > 0.0 { dot(q, x) / norms } else { 0.0 }
        }
        Metric::Euclidean => {
            let squares = q.iter().zip(x).map(|(q, x)| (f64::from(*q) - f64::from(*x)).powi(2));
            -squares.sum::<f64>().sqrt()
        }
    }
}

/// The neighbours of queries among all rows, given to the scorer in blocks of `block_rows`.
fn search(
    metric: Metric,
    (queries, dimensions): (&[f32], usize),
    elements: Elements,
    block_rows: usize,
    (k, threshold): (usize, Option<f32>),
) -> Result<Vec<Vec<Neighbour>>, NotFinite> {
    let scorer = Scorer::new(metric, Stored::of(&elements), queries, dimensions)?;
    let nearest = Nearest::new(scorer.queries(), k, threshold);
    let width = if scorer_takes_signs(&elements) { dimensions.div_ceil(8) } else { dimensions };
    let length = match elements {
        Elements::F32(x) => x.len(),
        Elements::F16(x) => x.len(),
        Elements::Int8 { values, .. } => values.len(),
        Elements::Binary(signs) => signs.len(),
        Elements::Sparse { .. } => unreachable!("dense vectors are searched"),
    };
    let rows = length / width;
    for first_row in (0..rows).step_by(block_rows) {
        let end = rows.min(first_row + block_rows);
        let part = first_row * width..end * width;
        let elements = match elements {
            Elements::F32(x) => Elements::F32(&x[part]),
            Elements::F16(x) => Elements::F16(&x[part]),
            Elements::Int8 { values, scales } => {
                Elements::Int8 { values: &values[part], scales: &scales[first_row..end] }
            }
            Elements::Binary(signs) => Elements::Binary(&signs[part]),
            Elements::Sparse { .. } => elements,
        };
        scorer.scan(
            &Block { first_row, rows: end - first_row, lengths: &[], dimensions, elements },
            &nearest,
        )?;
    }
    Ok(nearest.into_sorted())
}

fn scorer_takes_signs(elements: &Elements) -> bool {
    Stored::of(elements) == Stored::Signs
}

/// Asserts that `found` are the neighbours of `q` among the rows of `x`: each score is the f32 nearest to
/// that of a plain loop, the order is by score and then by row, and no other row has a greater score, but for
/// one rounding.
#[track_caller]
fn assert_neighbours(
    metric: Metric,
    q: &[f32],
    x: &[f32],
    found: &[Neighbour],
    (k, threshold): (usize, Option<f32>),
) {
    let scores: Vec<f64> = x.chunks_exact(q.len()).map(|x| plain_score(metric, q, x)).collect();
    let ulp = |score: f64| score.abs() * f64::from(f32::EPSILON) + 1e-30;
    for neighbour in found {
        let expected = scores[neighbour.index];
        let error = (f64::from(neighbour.score) - expected).abs();
        assert!(
            error <= 0.501 * ulp(expected),
            "{metric:?} row {}: {neighbour:?} for {expected}",
            neighbour.index
        );
    }
    for pair in found.windows(2) {
        let is_ranked =
            pair[0].score > pair[1].score || pair[0].score == pair[1].score && pair[0].index < pair[1].index;
        assert!(is_ranked, "{metric:?}: {pair:?}");
    }
    let reach = |score: f64| threshold.is_none_or(|threshold| score >= f64::from(threshold) + ulp(score));
    let least = if found.len() == k { f64::from(found[k - 1].score) } else { f64::NEG_INFINITY };
    let listed: HashSet<usize> = found.iter().map(|neighbour| neighbour.index).collect();
    assert_eq!(listed.len(), found.len());
    for (row, score) in scores.into_iter().enumerate().filter(|(row, _)| !listed.contains(row)) {
        assert!(
            !reach(score) || score <= least + ulp(score),
            "{metric:?}: row {row} with {score} is missing"
        );
        let last_equal = found.last().filter(|last| found.len() == k && last.score == score as f32);
        // The rounding of a plain loop may differ where a score is between two f32.
        let is_equal = last_equal.is_some_and(|last| f64::from(last.score) == score && row < last.index);
        assert!(!is_equal, "{metric:?}: row {row} has the score of {last_equal:?} and a lower index");
    }
}

#[test]
fn every_kernel_agrees_with_a_plain_loop_on_every_isa() {
    for isa in Isa::testable() {
        for dimensions in DIMENSIONS {
            let rows = 5;
            let (x, q) = (values(3, rows * dimensions), values(8, dimensions));
            let (mut dots, mut squares, mut alone) = ([0.0; 5], [0.0; 5], [0.0; 5]);
            dot_rows(isa, &x, &q, &mut dots, &mut squares);
            squared_norms(isa, &x, dimensions, &mut alone);
            for (r, row) in x.chunks_exact(dimensions).enumerate() {
                let magnitudes: f64 = row.iter().zip(&q).map(|(x, q)| f64::from((x * q).abs())).sum();
                let what = format!("{} with {dimensions} dimensions", isa.name());
                let error = |found: f32, expected: f64| (f64::from(found) - expected).abs();
                let unit = dimensions as f64 * 2f64.powi(-24);
                assert!(error(dots[r], dot(row, &q)) <= unit * magnitudes, "{what}");
                assert!(error(squares[r], dot(row, row)) <= unit * dot(row, row), "{what}");
                assert!(error(alone[r], dot(row, row)) <= unit * dot(row, row), "{what}");
                // The bits are those of every other ISA, and of the operands the other way round.
                let portable = *Isa::testable().iter().find(|isa| isa.name() == "portable").unwrap();
                assert_eq!(dot_f64(isa, row, &q), dot_f64(portable, &q, row), "{what}");
                assert!((dot_f64(isa, row, &q) - dot(row, &q)).abs() <= 1e-13, "{what}");
                let distance = squared_distance_f64(isa, row, &q);
                assert_eq!(distance, squared_distance_f64(portable, &q, row), "{what}");
                let expected = plain_score(Metric::Euclidean, &q, row);
                assert!((distance.sqrt() + expected).abs() <= 1e-13, "{what}");
            }
        }
    }
}

#[test]
fn quantized_vectors_are_read_as_numpy_stores_them_on_every_isa() {
    for isa in Isa::testable() {
        for dimensions in DIMENSIONS {
            let (a, b) = (values(1, dimensions), values(2, dimensions));
            let signs =
                |x: &[f32]| -> Vec<f32> { x.iter().map(|x| if *x > 0.0 { 1.0 } else { -1.0 }).collect() };
            let mut unpacked = vec![0.0; dimensions];
            unpack_signs(isa, &pack_signs(&a), dimensions, &mut unpacked);
            assert_eq!(unpacked, signs(&a), "{} {dimensions}", isa.name());
            let rows = [pack_signs(&a), pack_signs(&b)].concat();
            let mut dots = [0.0; 2];
            dot_signs(isa, &rows, &pack_signs(&b), dimensions, &mut dots);
            let expected = [&a, &b].map(|x| dot(&signs(x), &signs(&b)) as f32);
            assert_eq!(dots, expected, "{} {dimensions}", isa.name());

            let stored: Vec<i8> = (0..2 * dimensions).map(|i| (i * 37 % 255) as i8).collect();
            let mut x = vec![0.0; 2 * dimensions];
            dequantize(isa, &stored, &[0.1, 3.0], &mut x);
            let scale = |i: usize| if i < dimensions { 0.1f32 } else { 3.0 };
            let expected: Vec<f32> =
                stored.iter().enumerate().map(|(i, q)| scale(i) * f32::from(*q)).collect();
            assert_eq!(x, expected, "{} {dimensions}", isa.name());
        }
    }
    // np.packbits([1, 0, 1, 1, 0, 0, 0, 0, 1]) - 128
    let x = [1.0, 0.0, 0.5, 2.0, -1.0, -0.0, 0.0, -3.0, 1.0];
    assert_eq!(
        pack_signs(&x),
        [0b1011_0000u8.wrapping_sub(128) as i8, 0b1000_0000u8.wrapping_sub(128) as i8]
    );
}

#[test]
fn scores_that_reach_a_threshold_are_selected_on_every_isa() {
    for isa in Isa::testable() {
        for count in [0, 1, 15, 16, 17, 127, 128, 129, 300] {
            let mut scores = values(5, count);
            for i in (0..count).step_by(50) {
                scores[i] = f32::NAN;
            }
            let thresholds: Vec<f32> = values(6, count).iter().map(|x| x + 0.9).collect();
            let expected = |reaches: &dyn Fn(usize) -> bool| -> Vec<u32> {
                (0..count).filter(|i| scores[*i].is_nan() || reaches(*i)).map(|i| i as u32).collect()
            };
            let (mut each, mut one) = (Vec::new(), Vec::new());
            reaching_each(isa, &scores, (2.0, 0.5), &thresholds, &mut each);
            assert_eq!(each, expected(&|i| scores[i] * 2.0 + 0.5 >= thresholds[i]), "{} {count}", isa.name());
            reaching(isa, &scores, (&thresholds, &scores), 0.7, &mut one);
            let reaches = |i: usize| scores[i] * thresholds[i] + scores[i] >= 0.7;
            assert_eq!(one, expected(&reaches), "{} {count}", isa.name());
        }
    }
}

#[test]
fn neighbours_are_those_of_a_plain_loop_for_every_metric_and_type_around_the_edges_of_blocks() {
    for (case, (dimensions, rows, queries)) in [
        (1, 5, 1),
        (7, 255, 2),
        (8, 256, 1),
        (17, 257, 31),
        (64, 600, 33),
        (65, 700, 1),
        (100, 300, 5),
        (384, 520, 65),
        (16, 90, 600),
    ]
    .into_iter()
    .enumerate()
    {
        let (x, q) = (values(11 + case as u64, rows * dimensions), values(5, queries * dimensions));
        let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        let bytes: Vec<i8> = x.iter().map(|x| (x * 127.0).round() as i8).collect();
        let scales: Vec<f32> = values(3, rows).iter().map(|x| x.abs() + 0.01).collect();
        let signs: Vec<i8> = x.chunks_exact(dimensions).flat_map(pack_signs).collect();
        let sign = |x: &f32| if *x > 0.0 { 1.0 } else { -1.0 };
        let (x_signs, q_signs): (Vec<f32>, Vec<f32>) =
            (x.iter().map(sign).collect(), q.iter().map(sign).collect());
        let dequantized: Vec<f32> =
            bytes.iter().enumerate().map(|(i, q)| scales[i / dimensions] * f32::from(*q)).collect();
        let types = [
            (Elements::F32(&x), x.clone(), &q),
            (Elements::F16(&halves), halves.iter().map(|x| x.to_f32()).collect(), &q),
            (Elements::Int8 { values: &bytes, scales: &scales }, dequantized, &q),
            (Elements::Binary(&signs), x_signs, &q_signs),
        ];
        for (elements, x, compared) in &types {
            for metric in METRICS {
                let threshold = if metric == Metric::Euclidean { -2.0 } else { 0.05 };
                for limits in [(7, None), (rows, None), (4, Some(threshold)), (usize::MAX, Some(threshold))] {
                    let found = search(metric, (&q, dimensions), *elements, 130, limits).unwrap();
                    assert_eq!(found.len(), queries);
                    for (q, found) in compared.chunks_exact(dimensions).zip(&found) {
                        assert!(limits.1.is_some() || found.len() == limits.0.min(rows));
                        assert_neighbours(metric, q, x, found, limits);
                    }
                }
            }
        }
    }
}

#[test]
fn values_of_any_magnitude_are_ranked_exactly() {
    let (dimensions, rows) = (24, 300);
    let mut x = values(4, rows * dimensions);
    for (row, x) in x.chunks_exact_mut(dimensions).enumerate() {
        let factor = [1.0, 1e-30, 1e30, 0.0, 1e-42, 1e12, 1e-14, 3e38][row % 8];
        x.iter_mut().for_each(|x| *x *= factor);
    }
    let mut q = values(9, 12 * dimensions);
    for (query, q) in q.chunks_exact_mut(dimensions).enumerate() {
        let factor = [1.0, 1e-30, 1e30, 0.0, 1e-42, 3e38][query % 6];
        q.iter_mut().for_each(|x| *x *= factor);
    }
    for queries in [&q[..], &q[..dimensions], &q[dimensions..2 * dimensions]] {
        for metric in [Metric::Cosine, Metric::Euclidean] {
            let found = search(metric, (queries, dimensions), Elements::F32(&x), 90, (9, None)).unwrap();
            for (q, found) in queries.chunks_exact(dimensions).zip(&found) {
                // Scores beyond f32 are infinite, and rank by row.
                if plain_score(metric, q, &x[..dimensions]).abs() < 1e38
                    && found.iter().all(|x| x.score.is_finite())
                {
                    assert_neighbours(metric, q, &x, found, (9, None));
                }
            }
        }
    }
    let moderate: Vec<f32> = x.iter().map(|x| x.clamp(-1e15, 1e15)).collect();
    let found =
        search(Metric::Dot, (&q[..dimensions], dimensions), Elements::F32(&moderate), 90, (9, None)).unwrap();
    assert_neighbours(Metric::Dot, &q[..dimensions], &moderate, &found[0], (9, None));
}

#[test]
fn equal_scores_rank_by_row_across_blocks() {
    let (dimensions, rows) = (32, 1000);
    let mut x = values(2, rows * dimensions);
    let copies = [3, 255, 256, 511, 700, 998];
    for row in copies {
        x.copy_within(5 * dimensions..6 * dimensions, row * dimensions);
    }
    let q = x[5 * dimensions..6 * dimensions].to_vec();
    for metric in METRICS {
        for queries in [1, 40] {
            let found =
                search(metric, (&q.repeat(queries), dimensions), Elements::F32(&x), 100, (4, None)).unwrap();
            for found in found {
                let indices: Vec<usize> = found.iter().map(|neighbour| neighbour.index).collect();
                assert!(metric == Metric::Dot || indices == [3, 5, 255, 256], "{metric:?} {indices:?}");
            }
        }
    }
}

#[test]
fn the_bits_of_scores_depend_on_neither_blocks_nor_threads_nor_other_queries() {
    let (dimensions, rows, queries) = (100, 900, 40);
    let (x, q) = (values(21, rows * dimensions), values(22, queries * dimensions));
    for metric in METRICS {
        let run = |q: &[f32], block_rows| {
            search(metric, (q, dimensions), Elements::F32(&x), block_rows, (10, None)).unwrap()
        };
        let expected = run(&q, 900);
        for block_rows in [1, 7, 256, 333] {
            assert_eq!(run(&q, block_rows), expected, "{metric:?} {block_rows}");
        }
        for threads in [1, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(|| run(&q, 900)), expected, "{metric:?}");
        }
        for (query, q) in q.chunks_exact(dimensions).enumerate() {
            assert_eq!(run(q, 900)[0], expected[query], "{metric:?} {query}");
        }
    }
}

#[test]
fn a_row_or_query_that_is_not_finite_is_named() {
    let dimensions = 9;
    let mut x = values(1, 600 * dimensions);
    x[432 * dimensions + 8] = f32::NAN;
    for queries in [1, 3] {
        let q = values(2, queries * dimensions);
        let found = search(Metric::Dot, (&q, dimensions), Elements::F32(&x), 500, (3, None));
        assert_eq!(found, Err(NotFinite { row: 432 }));
        let mut q = q;
        q[(queries - 1) * dimensions] = f32::INFINITY;
        assert_eq!(Scorer::new(Metric::Dot, Stored::Numbers, &q, dimensions).unwrap_err().row, queries - 1);
    }
}

#[test]
fn components_are_those_of_all_pairs_at_any_number_of_threads() {
    let (dimensions, rows) = (8, 700);
    let x = values(31, rows * dimensions);
    let threshold = 0.85;
    let mut expected: Vec<usize> = (0..rows).collect();
    for a in 0..rows {
        for b in a + 1..rows {
            let row = |row: usize| &x[row * dimensions..][..dimensions];
            if plain_score(Metric::Cosine, row(a), row(b)) >= threshold {
                let (low, high) = (expected[a].min(expected[b]), expected[a].max(expected[b]));
                expected.iter_mut().filter(|root| **root == high).for_each(|root| *root = low);
            }
        }
    }
    let found = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let scorer = Scorer::new(Metric::Cosine, Stored::Numbers, &x, dimensions).unwrap();
            let components = Components::new(rows, threshold as f32);
            let block = Block { first_row: 0, rows, lengths: &[], dimensions, elements: Elements::F32(&x) };
            scorer.scan(&block, &components).unwrap();
            components.memberships()
        })
    };
    let firsts: Vec<usize> = (0..rows).filter(|row| expected[*row] == *row).collect();
    assert!(firsts.len() > 20 && firsts.len() < 600, "{} components test little", firsts.len());
    for members in [found(1), found(4)] {
        for (row, member) in members.iter().enumerate() {
            assert_eq!(firsts[member.component], expected[row], "row {row}");
            assert_eq!(member.is_first, expected[row] == row);
        }
    }
}

#[test]
fn a_pair_that_both_rows_find_is_there_once_and_the_worst_are_dropped() {
    let neighbour = |index, score| Neighbour { index, score };
    let mut pairs = TopPairs::new(2);
    pairs.add(0, vec![vec![neighbour(2, 0.5), neighbour(1, 0.25)], vec![neighbour(0, 0.25)]]);
    assert_eq!(pairs.least_score(), Some(0.25));
    pairs.add(2, vec![vec![neighbour(0, 0.5), neighbour(3, 0.25), neighbour(1, 0.125)]]);
    let found: Vec<_> = pairs.into_sorted().iter().map(|pair| (pair.a, pair.b, pair.score)).collect();
    assert_eq!(found, [(0, 2, 0.5), (0, 1, 0.25)]);
}

fn expected() -> Value {
    let json = fs::read(fixture("neighbours").join("expected.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// The elements of an npy file of f32.
fn npy(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    bytes[10 + header..].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

#[test]
fn neighbours_are_those_of_numpy() {
    let x = npy(&fixture("neighbours").join("vectors.npy"));
    let expected = expected();
    for (metric, name) in METRICS.iter().zip(["cosine", "dot", "euclidean"]) {
        let expected = expected["nearest"][name].as_array().unwrap();
        for (blocks, queries) in [(64, expected.len()), (700, 1)] {
            let found =
                search(*metric, (&x[..queries * 20], 20), Elements::F32(&x), blocks, (7, None)).unwrap();
            for (query, (found, expected)) in found.iter().zip(expected).enumerate() {
                for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
                    assert_eq!(found.index as u64, expected[0].as_u64().unwrap(), "{name} query {query}");
                    let expected = expected[1].as_f64().unwrap();
                    let error = (f64::from(found.score) - expected).abs();
                    assert!(
                        error <= 6e-8 * expected.abs() + 1e-7,
                        "{name} {query}: {found:?} for {expected}"
                    );
                }
            }
        }
    }
}

fn pairs(args: &[&str]) -> Command {
    let mut command = sconce();
    command
        .arg("pairs")
        .arg(fixture("neighbours").join("vectors.npy"))
        .args(["--output-format", "jsonl"])
        .args(args);
    command
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

/// Asserts that the best of the found pairs are the expected ones with scores within 1e-5; scores as close as
/// that may change places.
fn assert_pairs(found: &[Value], expected: &Value) {
    let expected = expected.as_array().unwrap();
    let key = |a: &Value, b: &Value| (a.as_u64().unwrap(), b.as_u64().unwrap());
    let scores: std::collections::HashMap<_, f64> =
        found.iter().map(|row| (key(&row["a"], &row["b"]), row["score"].as_f64().unwrap())).collect();
    assert_eq!(scores.len(), found.len(), "every pair is there once");
    let last = expected[expected.len() - 1][2].as_f64().unwrap();
    for pair in expected {
        let score = pair[2].as_f64().unwrap();
        match scores.get(&key(&pair[0], &pair[1])) {
            Some(found) => assert!((found - score).abs() <= 1e-5, "{pair}: {found}"),
            None => assert!(score <= last + 1e-6, "{pair} is missing"),
        }
    }
    let above = found.iter().filter(|row| row["score"].as_f64().unwrap() > last + 1e-6).count();
    assert!(above <= expected.len(), "{above} pairs are better than the last expected one");
    for rows in found.windows(2) {
        assert!(rows[0]["a"].as_u64() < rows[0]["b"].as_u64());
        assert!(rows[0]["score"].as_f64() >= rows[1]["score"].as_f64());
    }
}

#[test]
fn pairs_are_those_of_paraphrase_mining() {
    let expected = expected();
    let all = pairs(&[]).output().unwrap();
    assert!(all.status.success(), "{}", stderr(&all));
    assert_pairs(&json_lines(&stdout(&all)), &expected["pairs"]["defaults"]);
    let limited = pairs(&["-k", "3", "--max-pairs", "150"]).output().unwrap();
    let found = json_lines(&stdout(&limited));
    assert_eq!(found.len(), 150);
    assert_pairs(&found, &expected["pairs"]["limited"]);
    assert!(stderr(&limited).contains("raise --max-pairs"), "{}", stderr(&limited));
    // So many neighbours that the rows are compared with the file in three parts.
    let parts = pairs(&["-k", "20000", "--threshold", "0.9"]).output().unwrap();
    let whole = pairs(&["-k", "2000", "--threshold", "0.9"]).output().unwrap();
    assert!(!whole.stdout.is_empty() && parts.stdout == whole.stdout);
}

#[test]
fn pairs_are_the_same_bytes_on_every_isa_and_at_any_number_of_threads() {
    let run = |isa: &str, args: &[&str]| {
        let output = pairs(args).env(ISA_VARIABLE, isa).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    for metric in ["cosine", "dot", "euclidean"] {
        let args = ["--metric", metric, "--max-pairs", "2000"];
        let expected = run("portable", &args);
        for isa in Isa::available() {
            assert_eq!(run(isa.name(), &args), expected, "{metric} {}", isa.name());
        }
        let threads = [&args[..], &["--threads", "3"]].concat();
        assert_eq!(run(Isa::available()[0].name(), &threads), expected, "{metric}");
    }
}

#[test]
fn clusters_are_the_connected_components_of_scipy() {
    let expected = expected();
    let threshold = expected["threshold"].to_string();
    let output = pairs(&["--threshold", &threshold, "--clusters"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let clusters = expected["clusters"].as_array().unwrap();
    let found = json_lines(&stdout(&output));
    assert_eq!(found.len(), clusters.len());
    let mut seen = HashSet::new();
    for (row, (found, expected)) in found.iter().zip(clusters).enumerate() {
        let keep = seen.insert(expected.as_u64());
        assert_eq!(*found, serde_json::json!({"index": row, "cluster": expected, "keep": keep}));
    }
}

/// As in a search: the record and the chunk where the file tells them.
#[test]
fn clusters_name_the_record_of_each_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let lines: String =
        ["a lamp", " ", "a lamp", "key. the wick burns"].map(|text| format!("{text}\n")).concat();
    fs::write(path("in.txt"), lines).unwrap();
    let clusters = |file: &str, args: &[&str]| {
        let command =
            ["pairs", &path(file), "--clusters", "--threshold", "0.99999", "--output-format", "jsonl"];
        sconce().args(command).args(args).output().unwrap()
    };
    let embedded = |name: &str, args: &[&str]| {
        let (input, output) = (path("in.txt"), path(name));
        let args = [&["-i", &input, "-o", &output, "--skip-empty"], args].concat();
        let found = crate::support::embed("bert-tiny", args);
        assert!(found.status.success(), "{}", stderr(&found));
    };
    embedded("a.parquet", &[]);
    let found = json_lines(&stdout(&clusters("a.parquet", &[])));
    let expected = [(0, 0, true), (2, 0, false), (3, 1, true)];
    let row = |(index, cluster, keep)| serde_json::json!({"index": index, "cluster": cluster, "keep": keep});
    assert_eq!(found, expected.map(row));
    embedded("a.npy", &[]);
    let found = json_lines(&stdout(&clusters("a.npy", &[])));
    assert_eq!(found.iter().map(|row| row["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    embedded("chunks.parquet", &["--chunk", "6"]);
    let found = json_lines(&stdout(&clusters("chunks.parquet", &[])));
    let places: Vec<_> = found.iter().map(|row| (row["index"].as_u64(), row["chunk"].as_u64())).collect();
    assert_eq!(places[..3], [(Some(0), Some(0)), (Some(2), Some(0)), (Some(3), Some(0))]);
    assert!(places.len() > 3 && places[3] == (Some(3), Some(1)), "{places:?}");
    for name in ["index", "cluster", "keep"] {
        let refused = clusters("chunks.parquet", &["--keep", name]);
        assert!(stderr(&refused).contains("--keep"), "{name}: {}", stderr(&refused));
        assert_eq!(refused.status.code(), Some(2), "{name}");
    }
}

#[test]
fn wrong_use_and_bad_files_are_one_sentence() {
    assert_fails(&pairs(&["--keep", "text"]).output().unwrap(), 2, &["--keep text", "no such column"]);
    assert_eq!(pairs(&["--clusters"]).output().unwrap().status.code(), Some(2));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nan.npy");
    let mut bytes = fs::read(fixture("neighbours").join("vectors.npy")).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let output = sconce().arg("pairs").arg(&path).output().unwrap();
    assert_fails(&output, 1, &["nan.npy", "row 699", "not finite"]);
}
