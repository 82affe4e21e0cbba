//! The Rust library: vectors, scores and neighbours have the bits of the command line, each kind of error can
//! be matched, nothing is printed, and the examples run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use sconce::{
    Classifier, ComputeDtype, Device, Embedder, EmbedderBuilder, Embedding, Error, ErrorKind, Metric, Model,
    OnLong, Pool, Pooling, Reranker, Role, SparseVector, TruncationSide, VectorFile,
};
use serde_json::{Value, json};

use crate::support::{
    assert_close, copy_folder, embed, embedding, fixture, goldens, numbers, rows, sconce, stderr,
};

#[path = "../../examples/rerank.rs"]
#[allow(dead_code)]
mod rerank;
#[path = "../../examples/search.rs"]
#[allow(dead_code)]
mod search;

/// Empty, short and long texts.
fn texts() -> Vec<String> {
    let words = ["lamp", "a candle", "burns", "Ünïcödé", "灯", "key,"];
    let text =
        |i: usize| (0..i * 7 % 61).map(|word| words[(i + word * word) % words.len()]).collect::<Vec<_>>();
    (0..40).map(|i| text(i).join(" ")).collect()
}

fn model(name: &str) -> Model {
    Model::from(fixture(name)).offline(true).device(Device::Cpu)
}

/// The rows of `sconce embed` for the texts.
fn embedded(model: &str, args: &[&str], texts: &[String]) -> Vec<Value> {
    let args = args.iter().chain(&["--quiet", "--"]).map(|arg| (*arg).to_owned());
    rows(&embed(model, args.chain(texts.iter().cloned())))
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

/// Checks what the library says about texts against the rows of the command line; `vector` reads the vector
/// of a row.
#[track_caller]
fn check<V: PartialEq + std::fmt::Debug>(
    case: &str,
    found: &[Embedding<V>],
    expected: &[Value],
    vector: impl Fn(&Value) -> V,
) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (found, row) in found.iter().zip(expected) {
        assert_eq!(found.vector, vector(row), "{case}: {row}");
        assert_eq!(found.tokens as u64, row["tokens"].as_u64().unwrap(), "{case}");
        assert_eq!(found.truncated_tokens > 0, row["truncated"].as_bool().unwrap(), "{case}");
    }
}

#[test]
fn vectors_have_the_bits_of_embed_whatever_is_chosen() {
    type Choose = fn(Model) -> EmbedderBuilder;
    let cases: [(&str, Choose, &[&str]); 9] = [
        ("bert-tiny", |model| Embedder::builder(model), &[]),
        ("pipelines/prompts", |model| Embedder::builder(model), &[]),
        ("pipelines/prompts", |model| Embedder::builder(model).role(Role::Document), &["--role", "document"]),
        (
            "pipelines/prompts",
            |model| Embedder::builder(model).prompt_name("passage"),
            &["--prompt-name", "passage"],
        ),
        (
            "pipelines/dense",
            |model| Embedder::builder(model).prompt("key: ").dimensions(7).normalize(true),
            &["--prompt", "key: ", "--dimensions", "7", "--normalize"],
        ),
        (
            "bert-tiny",
            |model| Embedder::builder(model).pooling(Pooling::Text(vec![Pool::Max])).normalize(false),
            &["--pooling", "max", "--no-normalize"],
        ),
        (
            "bert-tiny",
            |model| Embedder::builder(model.max_length(12).truncation_side(TruncationSide::Left).threads(1)),
            &["--max-length", "12", "--truncation-side", "left"],
        ),
        ("bert-tiny", |model| Embedder::builder(model.on_long(OnLong::Mean)), &["--on-long", "mean"]),
        ("modernbert", |model| Embedder::builder(model.dtype(ComputeDtype::Int8)), &["--dtype", "int8"]),
    ];
    let texts = texts();
    for (name, choose, args) in cases {
        let case = format!("{name} {args:?}");
        let expected = embedded(name, args, &texts);
        let embedder = choose(model(name)).open().unwrap_or_else(|error| panic!("{case}: {error}"));
        let vector = |row: &Value| embedding(row);
        check(&case, &embedder.embed(&texts).unwrap(), &expected, vector);
        check(&case, &embedder.embed(&texts[9..10]).unwrap(), &expected[9..10], vector);
        assert_eq!(embedder.dimensions(), embedding(&expected[0]).len(), "{case}");
        assert_eq!(embedder.warnings(), [""; 0], "{case}");
    }
    assert_eq!(Embedder::open(model("bert-tiny")).unwrap().embed::<&str>(&[]).unwrap(), []);
}

#[test]
fn queries_are_embedded_as_the_files_of_the_model_say() {
    let texts = texts();
    for name in ["pipelines/prompts", "bert-tiny"] {
        let embedder = Embedder::builder(model(name)).role(Role::Document).open().unwrap();
        let (queries, documents) = (embedder.embed_queries(&texts).unwrap(), embedder.embed(&texts).unwrap());
        check(name, &queries, &embedded(name, &["--role", "query"], &texts), embedding);
        check(name, &documents, &embedded(name, &["--role", "document"], &texts), embedding);
        assert_eq!(queries == documents, name == "bert-tiny");
    }
    let vectors = |row: &Value| row["embeddings"].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    for name in ["multi-vector/native", "multi-vector/pylate"] {
        let embedder = Embedder::open(model(name)).unwrap();
        check(name, &embedder.embed_tokens(&texts).unwrap(), &embedded(name, &[], &texts), vectors);
        let queries = embedder.embed_query_tokens(&texts).unwrap();
        check(name, &queries, &embedded(name, &["--role", "query"], &texts), vectors);
    }
    let hidden = Embedder::builder(model("bert-tiny")).pooling(Pooling::None).open().unwrap();
    let expected = embedded("bert-tiny", &["--pooling", "none"], &texts);
    check("no pooling", &hidden.embed_tokens(&texts).unwrap(), &expected, vectors);
    // A row has tokens and weights, by weight.
    let weights = |vector: &SparseVector| -> BTreeMap<String, u32> {
        vector.tokens.iter().cloned().zip(bits(&vector.values)).collect()
    };
    let of_row = |row: &Value| -> BTreeMap<String, u32> {
        let weights = row["weights"].as_object().unwrap().iter();
        weights.map(|(token, weight)| (token.clone(), (weight.as_f64().unwrap() as f32).to_bits())).collect()
    };
    for name in ["sparse/bert-max", "sparse-router/folders"] {
        let embedder = Embedder::open(model(name)).unwrap();
        for (found, args) in [
            (embedder.embed_sparse(&texts).unwrap(), &[][..]),
            (embedder.embed_sparse_queries(&texts).unwrap(), &["--role", "query"]),
        ] {
            let expected = embedded(name, args, &texts);
            let found: Vec<_> = found.iter().map(|embedding| weights(&embedding.vector)).collect();
            assert_eq!(found, expected.iter().map(of_row).collect::<Vec<_>>(), "{name} {args:?}");
        }
    }
}

#[test]
fn an_embedder_is_shared_by_threads() {
    let (embedder, texts) = (Embedder::open(model("bert-tiny")).unwrap(), texts());
    let expected = embedder.embed(&texts).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| embedder.embed(&texts).unwrap())).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), expected));
    });
    let [a, b] = [&expected[8].vector, &expected[9].vector];
    let cosine = a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!((embedder.similarity(a, b) - cosine).abs() < 1e-5, "unit vectors");
}

/// A copy of a fixture, one weight of which is NaN.
fn model_with_nan(folder: &Path) -> Model {
    copy_folder(&fixture("bert-tiny"), folder);
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("encoder.layer.0.attention.self.query.weight").unwrap();
    let at = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path, bytes).unwrap();
    Model::from(folder)
}

/// A copy of a fixture whose tokenizer adds no special tokens.
fn model_without_special_tokens(folder: &Path) -> Model {
    copy_folder(&fixture("bert-tiny"), folder);
    fs::write(folder.join("tokenizer_config.json"), r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#)
        .unwrap();
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = Value::Null;
    fs::write(path, tokenizer.to_string()).unwrap();
    Model::from(folder)
}

#[track_caller]
fn assert_error<T>(found: Result<T, Error>, kind: ErrorKind, parts: &[&str]) {
    let error = found.err().expect("an error");
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    assert!(!message.contains('\n') && !message.contains(" --"), "one sentence without options: {message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "no {part:?} in {message}"));
}

#[test]
fn every_kind_of_error_can_be_matched() {
    use ErrorKind::{
        Backend, InvalidModel, InvalidOption, InvalidQuery, InvalidText, ModelNotFound, NotFinite, TooLong,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Models.
    let cache = Model::new("org/name").offline(true).cache_dir(path("cache"));
    assert_error(
        Embedder::open(cache),
        ModelNotFound,
        &["org/name", path("cache").to_str().unwrap(), "offline"],
    );
    assert_error(Embedder::open(path("no/such/model")), ModelNotFound, &["neither a directory nor a hub id"]);
    fs::create_dir(path("empty")).unwrap();
    fs::write(path("empty/config.json"), "{").unwrap();
    assert_error(Embedder::open(path("empty")), InvalidModel, &["config.json"]);
    assert_error(Classifier::open(model("bert-tiny")), InvalidModel, &["bert-tiny"]);
    if cfg!(not(feature = "cuda")) {
        let gpu = model("bert-tiny").device(Device::Cuda(vec![0]));
        assert_error(Embedder::open(gpu), Backend, &["`device` cuda:0"]);
    }
    // Options.
    let tiny = || Embedder::builder(model("bert-tiny"));
    for (found, part) in [
        (tiny().dimensions(1 << 20).open(), "`dimensions` 1048576"),
        (tiny().dimensions(0).open(), "`dimensions` is 0"),
        (tiny().prompt_name("no such").open(), "`prompt_name` no such"),
        (tiny().token_pooling(2.0).open(), "`token_pooling` needs a multi-vector model"),
        (Embedder::open(model("bert-tiny").dtype(ComputeDtype::F16)), "`dtype` f16 needs a GPU"),
        (Embedder::open(model("bert-tiny").threads(0)), "`threads` is 0"),
        (Embedder::open(model("bert-tiny").max_length(0)), "`max_length` is 0"),
        (Embedder::open(model("bert-tiny").on_long(OnLong::Skip)), "`on_long` skip"),
        (Embedder::open(model("bert-tiny").revision("../x")), "`revision`"),
    ] {
        assert_error(found, InvalidOption, &[part]);
    }
    let embedder = tiny().open().unwrap();
    assert_error(embedder.embed_sparse(&["a"]), InvalidOption, &["one vector per text; call embed"]);
    assert_error(embedder.embed_tokens(&["a"]), InvalidOption, &["one vector per text; call embed"]);
    let mean = model("heads/bert").on_long(OnLong::Mean);
    assert_error(Classifier::open(mean.clone()), InvalidOption, &["`on_long` mean"]);
    assert_error(Reranker::open(mean), InvalidOption, &["`on_long` mean"]);
    let raw = Reranker::builder(model("bert-tiny")).raw(true).open();
    assert_error(raw, InvalidOption, &["`raw` needs a cross-encoder"]);
    // Texts.
    let long = "lamp ".repeat(100);
    let strict = || model("bert-tiny").max_length(20).on_long(OnLong::Error);
    let found = Embedder::open(strict()).unwrap().embed(&["a", &long, "b", &long]);
    assert_error(
        found,
        TooLong { index: 1, tokens: 102, limit: 20 },
        &["text 2 has 102 tokens", "limit of 20"],
    );
    let reranker = Reranker::open(strict()).unwrap();
    assert_error(reranker.score(&long, &["a"]), InvalidQuery, &["the query has 102 tokens"]);
    let found = reranker.score("a", &["b", &long]);
    assert_error(found, TooLong { index: 1, tokens: 102, limit: 20 }, &["text 2 has 102 tokens"]);
    let bare = Embedder::open(model_without_special_tokens(&path("bare"))).unwrap();
    assert_error(bare.embed(&["a", ""]), InvalidText { index: 1 }, &["text 2 has no tokens"]);
    let nan = Embedder::open(model_with_nan(&path("nan"))).unwrap();
    assert!(
        nan.warnings()[0].contains("encoder.layer.0.attention.self.query.weight"),
        "{:?}",
        nan.warnings()
    );
    assert_error(nan.embed(&["a"]), NotFinite { index: 0 }, &["text 1 has a vector with NaN"]);
}

#[test]
fn truncation_is_told_text_by_text() {
    let long = "lamp ".repeat(100);
    let short = |name: &str| model(name).max_length(32);
    let found = Embedder::open(short("bert-tiny")).unwrap().embed(&["lamp", &long]).unwrap();
    assert_eq!(
        found.iter().map(|it| (it.tokens, it.truncated_tokens)).collect::<Vec<_>>(),
        [(3, 0), (32, 70)]
    );
    let found = Classifier::open(short("heads/bert")).unwrap().classify(&["lamp", &long]).unwrap();
    assert_eq!(
        found.iter().map(|it| (it.tokens, it.truncated_tokens)).collect::<Vec<_>>(),
        [(3, 0), (32, 70)]
    );
    for (name, special_tokens) in [("heads/cross-encoder-bert", 3), ("bert-tiny", 2)] {
        let reranker = Reranker::open(short(name)).unwrap();
        let removed = |query: &str, texts: &[&str]| -> Vec<usize> {
            reranker.score(query, texts).unwrap().iter().map(|score| score.truncated_tokens).collect()
        };
        let together = if special_tokens == 3 { 1 } else { 0 };
        assert_eq!(removed("lamp", &["lamp", &long]), [0, 100 + special_tokens + together - 32], "{name}");
        assert_eq!(removed(&long, &["lamp"]), [100 + special_tokens + together - 32], "{name}");
    }
}

#[test]
fn scores_are_those_of_the_reference_and_of_rerank() {
    let name = "heads/cross-encoder-bert";
    let goldens = goldens(&fixture(name));
    let pairs = goldens["texts"].as_array().unwrap().iter().filter(|row| !row["pair"].is_null());
    let reranker = Reranker::open(model(name).max_length(40)).unwrap();
    let score = |row: &Value| {
        reranker.score(row["text"].as_str().unwrap(), &[row["pair"].as_str().unwrap()]).unwrap()[0].score
    };
    assert_close(&pairs.map(score).collect::<Vec<_>>(), &numbers(&goldens["scores"]), 1e-5, 0.0);

    let texts = texts();
    for (name, raw) in [
        (name, true),
        (name, false),
        ("causal-rerankers/qwen3", false),
        ("bert-tiny", false),
        ("pipelines/prompts", false),
        ("multi-vector/pylate", false),
        ("sparse/bert-max", false),
        ("sparse-router/folders", false),
    ] {
        let mut command = sconce();
        command.args(["rerank", "-q", "--query", "a lamp burns", "-m"]).arg(fixture(name));
        command.args(raw.then_some("--raw")).arg("--").args(&texts);
        let expected = rows(&command.output().unwrap());
        let expected: Vec<f32> = expected.iter().map(|row| row["score"].as_f64().unwrap() as f32).collect();
        let reranker = Reranker::builder(model(name)).raw(raw).open().unwrap();
        let found = reranker.score("a lamp burns", &texts).unwrap();
        let scores: Vec<f32> = found.iter().map(|score| score.score).collect();
        assert_eq!(bits(&scores), bits(&expected), "{name}");
        let ranked = reranker.rank("a lamp burns", &texts).unwrap();
        assert!(ranked.is_sorted_by(|a, b| a.score > b.score || a.score == b.score && a.index < b.index));
        assert!(ranked.iter().all(|score| scores[score.index].to_bits() == score.score.to_bits()), "{name}");
    }
}

#[test]
fn labels_are_those_of_the_reference() {
    let goldens = goldens(&fixture("heads/bert"));
    let texts = goldens["texts"].as_array().unwrap().iter().zip(goldens["labels"].as_array().unwrap());
    let (texts, expected): (Vec<_>, Vec<_>) = texts
        .filter(|(row, _)| row["pair"].is_null())
        .map(|(row, labels)| (row["text"].as_str().unwrap(), labels))
        .unzip();
    let found = Classifier::open(model("heads/bert").max_length(40)).unwrap().classify(&texts).unwrap();
    for (found, expected) in found.iter().zip(expected) {
        let expected = expected.as_array().unwrap().iter();
        let (names, scores): (Vec<_>, Vec<_>) = expected
            .map(|label| (label["label"].as_str().unwrap(), label["score"].as_f64().unwrap() as f32))
            .unzip();
        assert_eq!(found.labels.iter().map(|label| label.label.as_str()).collect::<Vec<_>>(), names);
        assert_close(&found.labels.iter().map(|label| label.score).collect::<Vec<_>>(), &scores, 1e-5, 0.0);
    }
    let raw = Classifier::open_raw(model("heads/bert")).unwrap().classify(&texts[..1]).unwrap();
    assert!(raw[0].labels.iter().any(|label| label.score < 0.0), "logits: {raw:?}");
}

/// The rows of `sconce search`, as `(query, index, id, score)`.
fn neighbours(files: &[PathBuf], args: &[&str]) -> Vec<(u64, u64, Value, u32)> {
    let mut command = sconce();
    command.args(["search", "-q", "--output-format", "jsonl"]).args(files).args(args);
    let neighbour = |row: Value| {
        let score = (row["score"].as_f64().unwrap() as f32).to_bits();
        (row["query"].as_u64().unwrap(), row["index"].as_u64().unwrap(), row["id"].clone(), score)
    };
    rows(&command.output().unwrap()).into_iter().map(neighbour).collect()
}

/// What the library found, in the same form.
fn found(found: Vec<Vec<sconce::Neighbour>>) -> Vec<(u64, u64, Value, u32)> {
    let of_query = |(query, found): (usize, Vec<sconce::Neighbour>)| {
        found.into_iter().map(move |it| (query as u64, it.index as u64, json!(it.id), it.score.to_bits()))
    };
    found.into_iter().enumerate().flat_map(of_query).collect()
}

#[test]
fn neighbours_are_those_of_search() {
    let stored = |name: &str| fixture("search").join(name);
    let read_npy = |path: &Path, dimensions: usize| -> Vec<Vec<f32>> {
        let bytes = fs::read(path).unwrap();
        let elements = bytes[10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))..].chunks_exact(4);
        let elements: Vec<f32> = elements.map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        elements.chunks_exact(dimensions).map(<[f32]>::to_vec).collect()
    };
    let query_file = stored("queries.npy");
    let query_vectors = ["--query-vectors", query_file.to_str().unwrap()];
    for name in ["f32.npy", "f16.npy", "int8.npy", "binary.npy", "f32.parquet", "list.arrow"] {
        let file = VectorFile::open(stored(name)).unwrap();
        let queries = read_npy(&query_file, file.dimensions());
        for (metric, option) in
            [(Metric::Cosine, "cosine"), (Metric::Dot, "dot"), (Metric::Euclidean, "euclidean")]
        {
            let args = [&query_vectors[..], &["-k", "7", "--metric", option]].concat();
            let expected = neighbours(&[stored(name)], &args);
            let file = VectorFile::open(stored(name)).unwrap().metric(metric);
            assert_eq!(found(file.search_all(&queries, 7).unwrap()), expected, "{name} {option}");
        }
        let one = file.search(&queries[1], 7).unwrap();
        assert_eq!(one, file.search_all(&queries, 7).unwrap()[1], "{name}: alone");
        let least = one[3].score;
        assert_eq!(file.threshold(least).search(&queries[1], 7).unwrap(), one[..4], "{name}");
    }

    // Rows with ids and columns, of every kind of vectors, made by the command line.
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let line = |(i, text): (usize, &String)| {
        json!({"id": format!("d{i}"), "text": text, "year": 1900 + i}).to_string()
    };
    let corpus: Vec<String> = texts().iter().filter(|text| !text.is_empty()).enumerate().map(line).collect();
    fs::write(path("corpus.jsonl"), corpus.join("\n")).unwrap();
    let queries = ["a candle", "lamp burns key,"];
    let embed_corpus = |name: &str, output: &str, keep: &[&str]| {
        let (input, output) = (path("corpus.jsonl"), path(output));
        let args = ["-i", input.to_str().unwrap(), "-o", output.to_str().unwrap(), "--quiet"];
        let run = embed(name, args.iter().chain(keep));
        assert!(run.status.success(), "{}", stderr(&run));
        output
    };
    let by_text = |name: &str, file: &Path| {
        let model = fixture(name);
        let args = ["-m", model.to_str().unwrap(), "-k", "5"];
        let mut all = Vec::new();
        for (index, query) in (0..).zip(queries) {
            let found = neighbours(&[file.to_owned()], &[&args[..], &["--keep", "id", "--", query]].concat());
            all.extend(found.into_iter().map(|(_, row, id, score)| (index, row, id, score)));
        }
        all
    };
    let name = "pipelines/prompts";
    let dense = embed_corpus(name, "dense.parquet", &["--role", "document", "--keep", "text", "year"]);
    let embedder = Embedder::open(model(name)).unwrap();
    let vectors = embedder.embed_queries(&queries).unwrap().into_iter().map(|query| query.vector);
    let file = VectorFile::open(&dense).unwrap();
    let hits = file.search_all(&vectors.collect::<Vec<_>>(), 5).unwrap();
    assert_eq!(hits[0][0].id, Some(format!("d{}", hits[0][0].index)));
    let indices: Vec<usize> = hits[0].iter().map(|hit| hit.index).collect();
    let years: Vec<_> = indices.iter().map(|row| Some((1900 + row).to_string())).collect();
    assert_eq!(file.values("year", &indices).unwrap(), years);
    assert_eq!(found(hits), by_text(name, &dense));

    let name = "sparse/bert-max";
    for output in ["sparse.parquet", "sparse.jsonl"] {
        let sparse = embed_corpus(name, output, &[]);
        let vectors = Embedder::open(model(name)).unwrap().embed_sparse_queries(&queries).unwrap();
        let vectors: Vec<SparseVector> = vectors.into_iter().map(|query| query.vector).collect();
        let hits = VectorFile::open(&sparse).unwrap().search_sparse(&vectors, 5).unwrap();
        assert_eq!(found(hits), by_text(name, &sparse), "{output}");
    }

    let name = "multi-vector/pylate";
    let tokens = embed_corpus(name, "tokens.arrow", &[]);
    let vectors = Embedder::open(model(name)).unwrap().embed_query_tokens(&queries).unwrap();
    let vectors: Vec<_> = vectors.into_iter().map(|query| query.vector).collect();
    let hits = VectorFile::open(&tokens).unwrap().search_tokens(&vectors, 5).unwrap();
    assert_eq!(found(hits), by_text(name, &tokens));

    // Several files are one.
    let both = VectorFile::open_all(&[&dense, &dense]).unwrap();
    assert_eq!(both.rows(), 2 * file.rows());

    // Errors.
    use ErrorKind::{File, InvalidOption, NotFinite};
    assert_error(VectorFile::open(path("none.npy")), File, &["none.npy"]);
    assert_error(VectorFile::open_all::<&Path>(&[]), InvalidOption, &["no vector file"]);
    fs::write(path("damaged.npy"), &fs::read(stored("f32.npy")).unwrap()[..900]).unwrap();
    assert_error(VectorFile::open(path("damaged.npy")), File, &["damaged.npy is truncated"]);
    let zeros = vec![0.0; file.dimensions()];
    assert_error(file.search(&zeros[1..], 3), InvalidOption, &["query 1 has", "dimensions"]);
    let nan = vec![f32::NAN; file.dimensions()];
    assert_error(file.search_all(&[zeros, nan], 3), NotFinite { index: 1 }, &["query 2 has a value"]);
    assert_error(file.search_sparse(&[], 3), InvalidOption, &["one vector, not a sparse vector"]);
    assert_error(file.search_tokens(&[], 3), InvalidOption, &["one vector, not one vector per token"]);
    assert_error(file.values("note", &[0]), InvalidOption, &["no column \"note\"", "text, year"]);
    assert_error(file.values("text", &[1000]), InvalidOption, &["no row 1000"]);
}

/// The library prints nothing, not even warnings, and leaves the global pool of rayon to the program. In a
/// process of its own, whose environment has an address where no hub is.
#[test]
fn a_program_keeps_its_standard_error_and_its_threads() {
    const CHILD: &str = "SCONCE_TEST_OF_THE_LIBRARY";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "library::a_program_keeps_its_standard_error_and_its_threads", "--nocapture"]);
        child.env(CHILD, "1").env("HF_ENDPOINT", "http://127.0.0.1:1").env_remove("HF_HUB_OFFLINE");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the test ran");
        assert_eq!(stderr(&output), "");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unreachable = Model::new("org/name").offline(false).cache_dir(folder.path().join("cache"));
    assert_error(Embedder::open(unreachable), ErrorKind::Download, &["org/name", "http://127.0.0.1:1"]);
    let nan = Embedder::open(model_with_nan(&folder.path().join("nan"))).unwrap();
    assert!(!nan.warnings().is_empty() && nan.embed(&["a"]).is_err());
    let reranker = Reranker::open(model("bert-tiny")).unwrap();
    reranker.score("lamp", &["lamp ".repeat(100)]).unwrap();
    Classifier::open(model("heads/bert")).unwrap().classify(&texts()).unwrap();
    let file = VectorFile::open(fixture("search").join("f32.npy")).unwrap();
    file.search(&vec![1.0; file.dimensions()], 3).unwrap();
    let global = rayon::ThreadPoolBuilder::new().num_threads(3).build_global();
    global.expect("the library has not built the global pool");
}

#[test]
fn the_examples_embed_search_and_rerank() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("texts.txt"), folder.path().join("texts.vectors.jsonl"));
    let texts = texts();
    fs::write(&input, texts.join("\n")).unwrap();
    let embedder = Embedder::open(model("bert-tiny").max_length(30)).unwrap();
    let truncated = search::embed_file::embed_file(&embedder, &input, &output).unwrap();
    let embeddings = embedder.embed(&texts).unwrap();
    assert_eq!(truncated, embeddings.iter().filter(|embedding| embedding.truncated_tokens > 0).count());
    let written = fs::read_to_string(&output).unwrap();
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written.iter().map(|row| row["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    let vectors: Vec<_> = embeddings.iter().map(|embedding| bits(&embedding.vector)).collect();
    assert_eq!(written.iter().map(|row| bits(&embedding(row))).collect::<Vec<_>>(), vectors);

    fs::remove_file(&output).unwrap();
    for _ in ["the first search embeds", "the second reads"] {
        let hits = search::search(&embedder, &input, &texts[9]).unwrap();
        assert_eq!((hits.len(), &hits[0].1), (5, &texts[9]));
        assert!((hits[0].0 - 1.0).abs() < 1e-6, "a text is nearest to itself: {hits:?}");
    }

    let reranker = Reranker::open(model("heads/cross-encoder-bert")).unwrap();
    let ranked = rerank::rerank(&reranker, "a lamp", &["the candle", "a key", "lamp"]).unwrap();
    let expected = reranker.rank("a lamp", &["the candle", "a key", "lamp"]).unwrap();
    assert!(ranked.iter().map(|(score, _)| *score).eq(expected.iter().map(|score| score.score)));
}

/// The front page of the library is small, and shows nothing that is internal.
#[test]
fn the_front_page_has_at_most_25_items() {
    let code = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let code: Vec<&str> = code.lines().filter(|line| !line.starts_with("//")).collect();
    for (i, line) in code.iter().enumerate().filter(|(_, line)| line.starts_with("pub mod")) {
        assert!(code[i.saturating_sub(2)..i].contains(&"#[doc(hidden)]"), "{line} is shown");
    }
    let shown = code.join("\n").split("#[doc(hidden)]\npub use sconce_kernels").next().unwrap().to_owned();
    let items = shown.split("pub use ").skip(1).map(|item| item.split(';').next().unwrap());
    let count = |item: &str| match item.split_once('{') {
        Some((_, names)) => {
            names.trim_end_matches('}').split(',').filter(|name| !name.trim().is_empty()).count()
        }
        None => 1,
    };
    let count: usize = items.map(count).sum();
    assert!((20..=25).contains(&count), "{count} items");
}
