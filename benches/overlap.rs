//! Whether reading, tokenizing and writing hide behind the encoder: the time that a whole run takes after the model is
//! loaded, against the time that the encoder alone takes for the same batches of tokens.
//!
//! `cargo bench --bench overlap [-- FILE.txt [ROUNDS]]`: texts of FILE, one a line, through the default model, which has
//! to be in the cache; the prose of this repository if no file is given. Prints the median of the rounds' ratios.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use sconce::input::{Compression, Fields, Format, Place, Record, Source};
use sconce::model::Source as ModelSource;
use sconce::output::{self, Dtype, Target};
use sconce::run::embed::{EmbedOptions, Input, Limits, embed};
use sconce::run::{Choices, Console, Embedder, ModelOptions, OnLong, Tokens, Verbosity, load};
use sconce::text::plan;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let folder = tempfile::tempdir()?;
    let file = match args.first() {
        Some(file) => PathBuf::from(file),
        None => prose(folder.path())?,
    };
    let rounds: usize = args.get(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let texts: Vec<String> = fs::read_to_string(&file)?.lines().map(String::from).collect();
    let threads = thread::available_parallelism()?.get();
    sconce::run::use_threads(Some(threads))?;

    let console = Console::new(Verbosity::Quiet, false);
    let mut embedder = choices().embedder(load(&model(), &console)?, &console)?;
    let limits = Limits::new(&mut embedder, None)?;
    let batches = batches(&embedder, &limits, &texts)?;
    let tokens: usize = batches.iter().flatten().map(Tokens::count).sum();
    println!("{} texts, {tokens} tokens, {} batches, {threads} threads", texts.len(), batches.len());

    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let alone = encoder_alone(&embedder, &batches, threads)?;
        let stats = folder.path().join("stats.json");
        embed(EmbedOptions {
            model: model(),
            input: Input::Files(
                vec![Source {
                    place: Place::File(file.clone()),
                    format: Format::Lines,
                    compression: Compression::None,
                    is_lenient: false,
                    fault: None,
                }],
                Fields { text: "text".into(), pair: None, id: None, keep: vec![] },
            ),
            output: Target::File(folder.path().join("vectors.jsonl")),
            format: output::Format::Jsonl,
            choices: choices(),
            skip_unreadable: false,
            begin: Default::default(),
            selection: Default::default(),
            hints: false,
            stats: Some(stats.clone()),
            console,
        })?;
        let stats: serde_json::Value = serde_json::from_slice(&fs::read(stats)?)?;
        let number = |key: &str| stats[key].as_f64().unwrap_or(f64::NAN);
        let whole = number("seconds") - number("seconds_loading");
        ensure!(number("tokens") as usize == tokens, "the run had other tokens");
        println!(
            "round {round}: encoder alone {alone:.2} s, whole run {whole:.2} s, ratio {:.3}, idle {:.2} %",
            whole / alone,
            100.0 * number("idle")
        );
        ratios.push(whole / alone);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[ratios.len() / 2]);
    Ok(())
}

/// The prose of this repository, line by line, some times over.
fn prose(folder: &Path) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = String::new();
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "configs/README.md"] {
        for line in fs::read_to_string(root.join(name))?.lines().filter(|line| !line.trim().is_empty()) {
            lines += line;
            lines += "\n";
        }
    }
    let file = folder.join("prose.txt");
    fs::write(&file, lines.repeat(4))?;
    Ok(file)
}

fn model() -> ModelOptions {
    ModelOptions::of(ModelSource {
        model: "sentence-transformers/all-MiniLM-L6-v2".into(),
        revision: "main".into(),
        offline: true,
        progress: false,
    })
}

fn choices() -> Choices {
    Choices {
        normalize: None,
        dimensions: None,
        prompt: None,
        dtype: Dtype::F32,
        on_long: OnLong::Truncate,
        chunking: None,
        batch_tokens: None,
    }
}

/// The batches that a run deals the texts out to, tokenized.
fn batches(embedder: &Embedder, limits: &Limits, texts: &[String]) -> Result<Vec<Vec<Tokens>>> {
    let mut windows: Vec<Vec<Tokens>> = vec![Vec::new()];
    let mut tokens = 0;
    for text in texts {
        let place = sconce::input::Spot { source: "".into(), at: sconce::input::At::Whole };
        let record = Record { place, id: None, text: text.clone(), pair: None, kept: vec![] };
        let text = embedder.tokenize(&record).map_err(|unfit| anyhow::anyhow!("{unfit:?}"))?;
        tokens += text.count();
        windows.last_mut().expect("a window").push(text);
        if tokens >= limits.window_tokens {
            (tokens, windows) = (0, [windows, vec![Vec::new()]].concat());
        }
    }
    let deal = |window: Vec<Tokens>| {
        let lengths: Vec<usize> = window.iter().map(Tokens::count).collect();
        let batch = |texts: Vec<usize>| texts.into_iter().map(|text| window[text].clone()).collect();
        plan(&lengths, limits.batch_tokens, limits.threads).into_iter().map(batch).collect::<Vec<_>>()
    };
    Ok(windows.into_iter().flat_map(deal).collect())
}

/// Seconds that workers of one thread each take for the batches, with nothing else to do.
fn encoder_alone(embedder: &Embedder, batches: &[Vec<Tokens>], threads: usize) -> Result<f64> {
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
                    pool.install(|| {
                        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                            std::hint::black_box(embedder.embed(batch, &embedder.encoders[0])?);
                        }
                        Ok(())
                    })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
    })?;
    Ok(start.elapsed().as_secs_f64())
}
