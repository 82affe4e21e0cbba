//! How well reading, tokenizing and writing overlap with the encoder: the time of a whole run after the model
//! is loaded, relative to the time of the encoder alone for the same batches.
//!
//! `cargo bench --bench overlap [-- FILE.txt [ROUNDS]]` embeds the lines of FILE, by default the prose of
//! this repository, with the default model, which must be in the cache. Prints the median ratio.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use sconce::engine::{MemoryBudget, Task, TaskInput, balanced_batches};
use sconce::hub::Source as ModelSource;
use sconce::input::{Fields, Format, InputPath, Source};
use sconce::load::{ModelOptions, load};
use sconce::rows::OutputFormat;
use sconce::run::embed::{EmbedOptions, embed};
use sconce::run::records::{Input, RecordOptions};
use sconce::store::Target;
use sconce::sys::console::{Console, Verbosity};
use sconce::sys::threads::{build_global_pool, single_thread_pool};
use sconce::task::{Embedder, OnLong, VectorOptions, workload};
use sconce::text::TokenizedText;

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
    build_global_pool(Some(threads))?;

    let console = Console::new(Verbosity::Quiet, false);
    let embedder = Embedder::new(load(&model(), &console)?, &vector_options(), &console)?;
    let budget = MemoryBudget::new(&workload(&embedder, None), None)?;
    let batches = batches(&embedder, &budget, &texts)?;
    let tokens: usize = batches.iter().flatten().map(TokenizedText::token_count).sum();
    println!("{} texts, {tokens} tokens, {} batches, {threads} threads", texts.len(), batches.len());

    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let alone = encoder_alone(&embedder, &batches, &budget)?;
        let stats = folder.path().join("stats.json");
        let input = Input::Files(
            vec![Source {
                path: InputPath::File(file.clone()),
                format: Format::Lines,
                compression: None,
                syntax: Format::Lines.syntax(),
                is_lenient: false,
                fault: None,
            }],
            Fields::default(),
        );
        let records = RecordOptions {
            model: model(),
            input,
            output: Target::File(folder.path().join("vectors.jsonl")),
            format: OutputFormat::Jsonl,
            chunks: false,
            batch_tokens: None,
            skip_unreadable: false,
            start: Default::default(),
            selection: Default::default(),
            append: None,
            cache: None,
            vector_column: None,
            id_column: None,
            dry_run: false,
            on_null: Default::default(),
            hints: false,
            stats: Some(stats.clone()),
            console: console.clone(),
        };
        embed(EmbedOptions { records, task: vector_options() })?;
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

/// The prose of this repository, line by line, some times over, each time with another word: equal texts are
/// encoded once.
fn prose(folder: &Path) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut prose = String::new();
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/files.md", "docs/models.md"] {
        prose += &fs::read_to_string(root.join(name))?;
    }
    let lines = prose.lines().filter(|line| !line.trim().is_empty()).zip(0..);
    let times = ["lamp", "candle", "wick", "flame"];
    let lines =
        times.iter().flat_map(|word| lines.clone().map(move |(line, i)| format!("{line} {word} {i}\n")));
    let file = folder.join("prose.txt");
    fs::write(&file, lines.collect::<String>())?;
    Ok(file)
}

fn model() -> ModelOptions {
    ModelOptions::of(ModelSource {
        model: "sentence-transformers/all-MiniLM-L6-v2".into(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    })
}

fn vector_options() -> VectorOptions {
    VectorOptions::new(OnLong::Truncate)
}

/// The batches of a run, tokenized.
fn batches(embedder: &Embedder, budget: &MemoryBudget, texts: &[String]) -> Result<Vec<Vec<TokenizedText>>> {
    let mut waves: Vec<Vec<TokenizedText>> = vec![Vec::new()];
    let mut tokens = 0;
    for text in texts {
        let text = embedder.tokenize(&TaskInput::new(text)).map_err(|error| anyhow!("{error:?}"))?;
        tokens += text.token_count();
        waves.last_mut().expect("a wave").push(text);
        if tokens >= budget.wave_tokens {
            tokens = 0;
            waves.push(Vec::new());
        }
    }
    let batches = |wave: Vec<TokenizedText>| {
        let lengths: Vec<usize> = wave.iter().map(TokenizedText::token_count).collect();
        let batch = |texts: Vec<usize>| texts.into_iter().map(|text| wave[text].clone()).collect();
        balanced_batches(&lengths, budget.batch_tokens, budget.threads)
            .into_iter()
            .map(batch)
            .collect::<Vec<_>>()
    };
    Ok(waves.into_iter().flat_map(batches).collect())
}

/// Seconds that the worker threads take for the batches without any other stage.
fn encoder_alone(embedder: &Embedder, batches: &[Vec<TokenizedText>], budget: &MemoryBudget) -> Result<f64> {
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..budget.threads)
            .map(|worker| {
                let next = &next;
                scope.spawn(move || -> Result<()> {
                    single_thread_pool(format!("encode-{worker}"))?.install(|| {
                        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                            std::hint::black_box(embedder.encode(batch, budget.batch_tokens, worker)?);
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
