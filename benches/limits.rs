//! What this machine could do at most, and what the kernels do: multiplications and additions on registers alone, against
//! the products of BERT's shapes and against whole encoders, in every compute type; and how long one short text takes,
//! against reading the weights that it meets.
//!
//! `cargo bench --bench limits [-- [--json] [--threads N]]`; `--json` prints the limits alone, for `scripts/peers.py`. `SCONCE_ISA`
//! chooses the instruction set. Threads work at once, each for itself; figures are the median of some rounds, and shares are
//! those of the limit measured right before. Encoders have random weights.

use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::Instant;

use rayon::prelude::*;
use sconce::kernels::isa::{Isa, Kernel, TileUnit};
use sconce::kernels::matmul::{Blocks, Compute, Converted, Epilogue, PackedMatrix, gemm};
use sconce::kernels::simd::Simd;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use sconce::kernels::tiles::amx::Amx;
use sconce::kernels::tiles::{ROW_BYTES, ROWS, Tiles};
use sconce::model::config::Config;
use sconce::model::families::Family;
use sconce::nn::{Encoder, Engine, RaggedBatch, Random};

const TYPES: [Compute; 4] = Compute::ALL;
/// Rows, inputs and outputs: the linear layers of MiniLM-L6, BERT base and BERT large, and a single short text.
const SHAPES: [(usize, usize, usize); 10] = [
    (512, 384, 384),
    (512, 384, 1536),
    (512, 1536, 384),
    (16, 384, 1536),
    (512, 768, 768),
    (512, 768, 3072),
    (512, 3072, 768),
    (512, 1024, 1024),
    (512, 1024, 4096),
    (512, 4096, 1024),
];
const ROUNDS: usize = 7;

const MODELS: [&str; 3] = ["all-MiniLM-L6-v2", "bert-base-uncased", "bert-large-uncased"];
/// Texts of a batch, and tokens of a text.
const BATCH: (usize, usize) = (16, 64);
/// Tokens of a text that comes alone.
const ALONE: usize = 16;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads = match args.iter().position(|arg| arg == "--threads") {
        Some(at) => args[at + 1].parse().expect("--threads takes a number"),
        None => thread::available_parallelism().expect("a machine has threads").get(),
    };
    let isa = Isa::best();
    if args.iter().any(|arg| arg == "--json") {
        let limits = TYPES.map(|compute| {
            let rates = (0..ROUNDS).map(|_| limit(isa, compute, threads)).collect();
            format!("\"{}\": {:.1}", compute.name(), median(rates))
        });
        println!("{{\"isa\": \"{}\", \"threads\": {threads}, {}}}", isa.name(), limits.join(", "));
        return;
    }
    println!("{}, {threads} threads; 10⁹ operations a second and share of the limit\n", isa.name());
    println!("| rows × inputs × outputs | f32 | bf16x3 | bf16 | int8 |\n|---|---|---|---|---|");
    for (rows, inputs, outputs) in SHAPES {
        let cells = TYPES.map(|compute| {
            let bench = Bench::new(isa, compute, rows, inputs, outputs);
            let measure = |_| {
                let limit = limit(isa, compute, threads);
                // In pools of one thread, as a worker is: rows are converted by the threads of a pool.
                let rate = together(threads, || workers(1).install(|| bench.rate()));
                (rate, rate / limit)
            };
            let (rates, shares): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(measure).unzip();
            format!("{:.0} ({:.0} %)", median(rates), 100.0 * median(shares))
        });
        println!("| {rows} × {inputs} × {outputs} | {} |", cells.join(" | "));
    }
    encoders(isa, threads);
}

/// Batches of texts, a thread each; and a text alone, which all threads share.
fn encoders(isa: Isa, threads: usize) {
    println!(
        "\n| encoder | f32 | bf16x3 | bf16 | int8 | {ALONE} tokens alone in f32 | reading the weights |"
    );
    println!("|---|---|---|---|---|---|---|");
    for model in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(format!("{model}.json"));
        let config = Config::read(&path).expect("the config is there");
        let spec = Family::of(&config).and_then(|family| family.spec(&config)).expect("the config is BERT's");
        let load = |compute| {
            Encoder::load(&spec, &mut Random::new(1, Engine::Cpu(compute))).expect("weights are drawn")
        };
        let (hidden, layers) = (spec.hidden_size, spec.layers);
        let weights = layers * hidden * (4 * hidden + 2 * spec.intermediate_size);

        let (texts, length) = BATCH;
        let operations = texts * length * (2 * weights + layers * 4 * length * hidden);
        let (batch, alone) = (ragged(texts, length), ragged(1, ALONE));
        let cells = TYPES.map(|compute| {
            let encoder = load(compute);
            let share = |_| {
                let limit = limit(isa, compute, threads);
                let rate = together(threads, || {
                    operations as f64 / workers(1).install(|| seconds(|| encode(&encoder, &batch))) / 1e9
                });
                rate / limit
            };
            format!("{:.0} %", 100.0 * median((0..3).map(share).collect()))
        });

        let encoder = load(Compute::F32);
        let bytes = (weights * size_of::<f32>()) as f64;
        let (encoding, reading): (Vec<f64>, Vec<f64>) = workers(threads).install(|| {
            encode(&encoder, &alone);
            (0..ROUNDS).map(|_| (seconds(|| encode(&encoder, &alone)), bytes / bandwidth())).unzip()
        });
        let [encoding, reading] = [encoding, reading].map(|times| 1e3 * median(times));
        println!("| {model} | {} | {encoding:.1} ms | {reading:.1} ms |", cells.join(" | "));
    }
}

fn workers(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start")
}

fn ragged(texts: usize, length: usize) -> RaggedBatch {
    let (ids, types) = ((1000..).take(length).collect::<Vec<u32>>(), vec![0; length]);
    RaggedBatch::new((0..texts).map(|_| (&ids[..], &types[..]))).expect("texts have tokens")
}

fn encode(encoder: &Encoder, batch: &RaggedBatch) {
    black_box(encoder.forward(batch).expect("the batch fits the model"));
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Bytes a second that the threads of this pool read together, of more than caches hold.
fn bandwidth() -> f64 {
    let numbers = vec![1u64; 32 << 20];
    let sum = || numbers.par_chunks(1 << 16).map(|part| part.iter().fold(0, |sum, x| sum ^ x)).max();
    size_of_val(&numbers[..]) as f64 / seconds(|| _ = black_box(sum()))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The sum of what threads reach that work at once.
fn together(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&rate)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).sum()
    })
}

/// 10⁹ operations a second on registers alone.
fn limit(isa: Isa, compute: Compute, threads: usize) -> f64 {
    together(threads, || match isa.tile_unit() {
        // SAFETY: there is such an `Isa` only where tiles are available, and this thread has no others.
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => tile_limit(&mut unsafe { Amx::new() }, compute),
        _ => isa.run(Limit(compute, isa.has_fast_bf16())),
    })
}

/// The same over tiles: f32 takes six products of bf16, bf16x3 three.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tile_limit(tiles: &mut impl Tiles, compute: Compute) -> f64 {
    const TIMES: usize = 500_000;
    let start = Instant::now();
    for _ in 0..TIMES {
        if compute == Compute::Int8 {
            tiles.dot_int8::<0, 4, 6>();
            tiles.dot_int8::<1, 4, 7>();
            tiles.dot_int8::<2, 5, 6>();
            tiles.dot_int8::<3, 5, 7>();
        } else {
            tiles.dot_bf16::<0, 4, 6>();
            tiles.dot_bf16::<1, 4, 7>();
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<3, 5, 7>();
        }
    }
    let (inputs, products) = match compute {
        Compute::F32 => (ROW_BYTES / 2, 6),
        Compute::Bf16x3 => (ROW_BYTES / 2, 3),
        Compute::Bf16 => (ROW_BYTES / 2, 1),
        Compute::Int8 => (ROW_BYTES, 1),
    };
    let operations = 4 * TIMES * 2 * ROWS * ROWS * inputs / products;
    operations as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// A compute type, and whether products of bf16 are used.
struct Limit(Compute, bool);

impl Kernel for Limit {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        const TIMES: usize = 2_000_000;
        // As many sums as a tile has: they do not wait for each other.
        const SUMS: usize = 12;
        // Written out: what a closure does is not sure to be compiled with the set's instructions.
        macro_rules! times {
            ($first:expr, $a:expr, $b:expr, |$sum:ident, $x:ident, $y:ident| $step:expr) => {{
                let ($x, $y) = (black_box($a), black_box($b));
                let mut sums = [$first; SUMS];
                for _ in 0..TIMES {
                    for $sum in &mut sums {
                        *$sum = $step;
                    }
                }
                black_box(sums);
            }};
        }
        let start = Instant::now();
        let per_lane = match self.0 {
            Compute::Bf16 if self.1 => {
                let (a, b) = (s.splat_word(0x3f80_3f80), s.splat_word(0x3000_3000));
                times!(s.splat(0.0), a, b, |sum, x, y| s.dot_bf16(*sum, x, y));
                2
            }
            Compute::F32 | Compute::Bf16x3 | Compute::Bf16 => {
                times!(s.splat(0.0), s.splat(1.0), s.splat(1e-9), |sum, x, y| s.fma(x, y, *sum));
                1
            }
            Compute::Int8 => {
                let ones = s.splat_word(0x0001_0001);
                // With a sum on both sides nothing can be moved out of the loop.
                times!(s.splat_word(0), ones, ones, |sum, _x, y| s.dot_int8(*sum, *sum, y));
                S::BYTES_PER_WORD
            }
        };
        (2 * per_lane * S::LANES * SUMS * TIMES) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}

/// A product that is measured.
struct Bench {
    weights: PackedMatrix,
    x: Vec<f32>,
    rows: usize,
}

impl Bench {
    fn new(isa: Isa, compute: Compute, rows: usize, inputs: usize, outputs: usize) -> Self {
        let numbers =
            |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>();
        let weights = PackedMatrix::pack(isa, compute, &numbers(inputs * outputs), outputs, inputs);
        Bench { weights, x: numbers(rows * inputs), rows }
    }

    /// 10⁹ operations a second, with bringing the rows to their type.
    fn rate(&self) -> f64 {
        // As a linear layer does it.
        let at_once = self.weights.rows_at_once();
        let (inputs, outputs) = (self.weights.inputs(), self.weights.outputs());
        let mut y = vec![0f32; self.rows * outputs];
        let mut converted = Converted::default();
        let operations = 2 * self.rows * inputs * outputs;
        let times = (1_000_000_000 / operations).max(1);
        let mut start = Instant::now();
        // The first product, whose output has no pages yet, does not count.
        for time in 0..=times {
            if time == 1 {
                start = Instant::now();
            }
            let x = converted.rows(&self.weights, &self.x, inputs, self.rows);
            let blocks = Blocks::new(&mut y, outputs);
            for first in (0..self.rows).step_by(at_once) {
                let rows = first..self.rows.min(first + at_once);
                // SAFETY: one block lives at a time.
                let mut block = unsafe { blocks.block(rows.clone(), 0..outputs) };
                gemm(x.part(rows), &self.weights, 0..self.weights.panels(), &Epilogue::default(), &mut block);
            }
        }
        black_box(&y);
        (times * operations) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}
