//! GEMM and whole encoders against the peak of the machine: the rate of the same instructions on registers
//! alone, in every GEMM type. The latency of one short sequence, against the time to read the weights from
//! memory; one long sequence; and all threads against one.
//!
//! `cargo bench --bench limits [-- [--json] [--threads N]]`; `--json` prints only the peaks, for
//! `scripts/bench/peers.py`. `SCONCE_ISA` selects the ISA. All threads run at the same time, each on its own
//! data. Figures are the median of several rounds; shares are of the peak measured right before. Encoders
//! have random weights.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use sconce::kernels::gemm::{Epilogue, GemmType, LhsBuffer, OutputMatrix, PackedMatrix, gemm};
use sconce::kernels::isa::Isa;
use sconce::kernels::peak;
use sconce::model::config::Config;
use sconce::model::families::Family;
use sconce::nn::cost::{Growth, encoder_work};
use sconce::nn::{Backend, Encoder, EncoderSpec, RaggedBatch, RandomWeights};

/// Rows, inputs and outputs: the linear layers of MiniLM-L6, BERT base and BERT large, and one layer for a
/// single short sequence.
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

const MODELS: [&str; 4] =
    ["all-MiniLM-L6-v2", "bert-base-uncased", "bert-large-uncased", "Qwen3-Embedding-0.6B"];
/// Sequences of a batch, and tokens of a sequence.
const BATCH: (usize, usize) = (16, 64);
/// Tokens of a batch of one sequence.
const SINGLE: usize = 16;
/// The model of a long sequence, and its tokens: attention takes two thirds of the operations.
const LONG: (&str, usize) = ("jina-embeddings-v2-small-en", 8192);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads = match args.iter().position(|arg| arg == "--threads") {
        Some(at) => args[at + 1].parse().expect("--threads takes a positive integer"),
        None => thread::available_parallelism().expect("the number of cores is known").get(),
    };
    let isa = Isa::selected();
    if args.iter().any(|arg| arg == "--json") {
        let peaks = GemmType::ALL.map(|gemm_type| {
            let rates = (0..ROUNDS).map(|_| peak(isa, gemm_type, threads)).collect();
            format!("\"{}\": {:.1}", gemm_type.name(), median(rates))
        });
        println!("{{\"isa\": \"{}\", \"threads\": {threads}, {}}}", isa.name(), peaks.join(", "));
        return;
    }
    println!(
        "{}, {threads} threads; GFLOP/s (or 10⁹ integer operations/s) and share of the peak\n",
        isa.name()
    );
    println!("| rows × inputs × outputs | f32 | bf16x3 | bf16 | int8 |\n|---|---|---|---|---|");
    for (rows, inputs, outputs) in SHAPES {
        let cells = GemmType::ALL.map(|gemm_type| {
            let bench = Bench::new(isa, gemm_type, rows, inputs, outputs);
            let measure = |_| {
                let peak = peak(isa, gemm_type, threads);
                // In a rayon pool of one thread, as in a worker: the conversion of rows uses the current
                // pool.
                let rate = total_rate(threads, || thread_pool(1).install(|| bench.rate()));
                (rate, rate / peak)
            };
            let (rates, shares): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(measure).unzip();
            format!("{:.0} ({:.0} %)", median(rates), 100.0 * median(shares))
        });
        println!("| {rows} × {inputs} × {outputs} | {} |", cells.join(" | "));
    }
    encoders(isa, threads);
    long_sequence(isa, threads);
    scaling(threads);
}

/// The architecture of a model in configs/.
fn spec_of(model: &str) -> EncoderSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(format!("{model}.json"));
    let config = Config::read(&path).expect("the config exists");
    Family::of(&config).and_then(|family| family.spec(&config)).expect("the config is of a known family")
}

fn load(spec: &EncoderSpec, gemm_type: GemmType) -> Encoder {
    Encoder::load(spec, &mut RandomWeights::new(1, Backend::Cpu(gemm_type))).expect("random weights load")
}

/// Multiplications with an addition in a sequence of `tokens` tokens.
fn multiply_adds(spec: &EncoderSpec, growths: &[Growth], tokens: usize) -> usize {
    let work = encoder_work(spec, tokens).into_iter();
    work.filter(|part| growths.contains(&part.growth)).map(|part| part.total()).sum()
}

/// Throughput with one batch per thread, and the latency of a single sequence that all threads share.
fn encoders(isa: Isa, threads: usize) {
    println!(
        "\n| encoder | f32 | bf16x3 | bf16 | int8 | {SINGLE} tokens alone in f32 | reading the weights |"
    );
    println!("|---|---|---|---|---|---|---|");
    for model in MODELS {
        let spec = spec_of(model);
        // One for each weight of a linear layer.
        let weights = multiply_adds(&spec, &[Growth::Linear], 1);

        let (sequences, length) = BATCH;
        let operations = 2 * sequences * multiply_adds(&spec, &[Growth::Linear, Growth::Quadratic], length);
        let (batch, single) = (ragged(sequences, length), ragged(1, SINGLE));
        let cells = GemmType::ALL.map(|gemm_type| {
            let encoder = load(&spec, gemm_type);
            let share = |_| {
                let peak = peak(isa, gemm_type, threads);
                let rate = total_rate(threads, || {
                    operations as f64 / thread_pool(1).install(|| seconds(|| encode(&encoder, &batch))) / 1e9
                });
                rate / peak
            };
            format!("{:.0} %", 100.0 * median((0..3).map(share).collect()))
        });

        let encoder = load(&spec, GemmType::F32);
        let bytes = (weights * size_of::<f32>()) as f64;
        // Read before each encoding, so that no weights are in the caches.
        let values = vec![1.0; 64 << 20];
        let (reading, encoding): (Vec<f64>, Vec<f64>) = thread_pool(threads).install(|| {
            // Threads of a new pool may share a core at first.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) {
                encode(&encoder, &single);
            }
            let round = |_| (bytes / bandwidth(isa, &values), seconds(|| encode(&encoder, &single)));
            (0..3 * ROUNDS).map(round).unzip()
        });
        let [encoding, reading] = [encoding, reading].map(|times| 1e3 * median(times));
        println!("| {model} | {} | {encoding:.1} ms | {reading:.1} ms |", cells.join(" | "));
    }
}

/// One sequence that all threads share.
fn long_sequence(isa: Isa, threads: usize) {
    let (model, length) = LONG;
    let spec = spec_of(model);
    let operations = 2 * multiply_adds(&spec, &[Growth::Linear, Growth::Quadratic], length);
    let sequence = ragged(1, length);
    let cells = GemmType::ALL.map(|gemm_type| {
        let encoder = load(&spec, gemm_type);
        let pool = thread_pool(threads);
        let share = |_| {
            let peak = peak(isa, gemm_type, threads);
            operations as f64 / pool.install(|| seconds(|| encode(&encoder, &sequence))) / 1e9 / peak
        };
        format!("{:.0} %", 100.0 * median((0..3).map(share).collect()))
    });
    println!("\n| one sequence of {length} tokens | f32 | bf16x3 | bf16 | int8 |\n|---|---|---|---|---|");
    println!("| {model} | {} |", cells.join(" | "));
}

/// The throughput of all threads with a batch each, as a multiple of that of one thread.
fn scaling(threads: usize) {
    let model = MODELS[0];
    let spec = spec_of(model);
    let (sequences, length) = BATCH;
    let batch = ragged(sequences, length);
    let cells = GemmType::ALL.map(|gemm_type| {
        let encoder = load(&spec, gemm_type);
        let rate = |threads| {
            total_rate(threads, || {
                1.0 / thread_pool(1).install(|| seconds(|| (0..8).for_each(|_| encode(&encoder, &batch))))
            })
        };
        let ratio = |_| rate(threads) / rate(1);
        format!("{:.2}", median((0..ROUNDS).map(ratio).collect()))
    });
    println!("\n| {threads} threads / one | f32 | bf16x3 | bf16 | int8 |\n|---|---|---|---|---|");
    println!("| {model} | {} |", cells.join(" | "));
}

fn thread_pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start")
}

/// Sequences that differ from their first token on: with a causal mask, shared prefixes are computed once.
fn ragged(sequences: usize, length: usize) -> RaggedBatch {
    let (ids, types): (Vec<u32>, _) = ((1000..).take(sequences * length).collect(), vec![0; length]);
    RaggedBatch::new(ids.chunks(length).map(|ids| (ids, &types[..]))).expect("sequences have tokens")
}

fn encode(encoder: &Encoder, batch: &RaggedBatch) {
    black_box(encoder.forward(batch).expect("the batch is valid for the model"));
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Memory bandwidth of the current thread pool in bytes per second, for values that the caches cannot hold.
fn bandwidth(isa: Isa, values: &[f32]) -> f64 {
    let load = || values.par_chunks(1 << 16).for_each(|part| peak::load(isa, part));
    size_of_val(values) as f64 / seconds(load)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The sum of the rates of threads that run at the same time. They are busy before they measure: the
/// scheduler may start two of them on one core, and moves them apart after some milliseconds, or tenths of a
/// second if the process is new.
fn total_rate(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    static FIRST: Once = Once::new();
    let mut warm_up = Duration::from_millis(20);
    FIRST.call_once(|| warm_up = Duration::from_secs(1));
    let start = Instant::now();
    let measure = || {
        while start.elapsed() < warm_up {
            std::hint::spin_loop();
        }
        rate()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).sum()
    })
}

/// The sum of the peak rates of threads that run at the same time.
fn peak(isa: Isa, gemm_type: GemmType, threads: usize) -> f64 {
    total_rate(threads, || peak::rate(isa, gemm_type))
}

/// A GEMM to measure.
struct Bench {
    weights: PackedMatrix,
    x: Vec<f32>,
    rows: usize,
}

impl Bench {
    fn new(isa: Isa, gemm_type: GemmType, rows: usize, inputs: usize, outputs: usize) -> Self {
        let values =
            |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>();
        let weights = PackedMatrix::pack(isa, gemm_type, &values(inputs * outputs), outputs, inputs);
        Bench { weights, x: values(rows * inputs), rows }
    }

    /// 10⁹ operations per second, including the conversion of the rows.
    fn rate(&self) -> f64 {
        // The blocking of a linear layer.
        let mc = self.weights.mc();
        let (inputs, outputs) = (self.weights.inputs(), self.weights.outputs());
        let mut y = vec![0f32; self.rows * outputs];
        let mut buffer = LhsBuffer::default();
        let operations = 2 * self.rows * inputs * outputs;
        let times = (1_000_000_000 / operations).max(1);
        let mut start = Instant::now();
        // The first GEMM is not measured: its output has no memory pages yet.
        for time in 0..=times {
            if time == 1 {
                start = Instant::now();
            }
            let x = buffer.convert(&self.weights, &self.x, inputs, self.rows);
            let output = OutputMatrix::new(&mut y, outputs);
            for first in (0..self.rows).step_by(mc) {
                let rows = first..self.rows.min(first + mc);
                // SAFETY: one block is alive at a time.
                let mut block = unsafe { output.block(rows.clone(), 0..outputs) };
                gemm(
                    x.slice(rows),
                    &self.weights,
                    0..self.weights.panels(),
                    &Epilogue::default(),
                    &mut block,
                );
            }
        }
        black_box(&y);
        (times * operations) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}
