//! The encoder against the reference implementation, stage by stage, on the tiny models of
//! `scripts/fixtures/make_fixtures.py`.

use std::collections::HashMap;

use crate::support::operands::{bits, flat};
use crate::support::{MODELS, assert_close, embed, embedding, first_difference, fixture, rows};
use candle_core::{DType, Device, Tensor};
use sconce::checkpoint::Checkpoint;
use sconce::checkpoint::names::TensorNames;
use sconce::engine::{RowOptions, Task, TaskInput, TaskRow};
use sconce::hub::Source;
use sconce::input::{Location, Position, Record};
use sconce::kernels::gemm::GemmType;
use sconce::load::{Loaded, ModelOptions, load};
use sconce::model::config::Config;
use sconce::model::families::{FAMILIES, Family};
use sconce::nn::{
    Backend, Encoder, EncoderSpec, LayerSharing, Pool, PooledToken, Pooling, RaggedBatch, RandomWeights,
    ScoreBias,
};
use sconce::ops::activation::NAMES;
use sconce::ops::linear::{LinearWeights, Matrix, reference};
use sconce::rows::{Content, StoredVector, VectorValues};
use sconce::sys::console::{Console, Verbosity};
use sconce::task::{Embedder, OnLong, VectorOptions};
use sconce::text::TokenIds;
use serde_json::Value;

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

fn open(model: &str) -> Loaded {
    let options = ModelOptions::of(Source {
        model: fixture(model).display().to_string(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    });
    load(&options, &Console::new(Verbosity::Quiet, false)).expect("the fixture loads")
}

fn tensors(model: &str) -> HashMap<String, Tensor> {
    let path = fixture(model).join("goldens.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).expect("goldens load")
}

fn texts(model: &str) -> Vec<Value> {
    let json = std::fs::read(fixture(model).join("goldens.json")).expect("goldens are there");
    serde_json::from_slice(&json).expect("goldens are JSON")
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn golden_batch(model: &str) -> RaggedBatch {
    let texts: Vec<_> = texts(model).iter().map(|row| (ids(&row["ids"]), ids(&row["type_ids"]))).collect();
    RaggedBatch::new(texts.iter().map(|(ids, types)| (&ids[..], &types[..]))).expect("a batch")
}

#[test]
fn token_ids_and_token_type_ids_of_texts_and_pairs() {
    for model in MODELS {
        let tokenizer = open(model).tokenizer;
        let (mut pairs, mut truncated) = (0, 0);
        for row in texts(model) {
            let pair = row["pair"].as_str();
            let found: TokenIds = tokenizer.encode(row["text"].as_str().unwrap(), pair).unwrap();
            assert_eq!(found.ids, ids(&row["ids"]), "{model}: {row}");
            assert_eq!(found.token_type_ids, ids(&row["type_ids"]), "{model}: {row}");
            pairs += usize::from(pair.is_some());
            truncated += usize::from(found.truncated_tokens > 0);
        }
        assert!(pairs >= 3 && truncated >= 2, "the fixture has pairs and long texts");
    }
}

/// Every stage is compared; the failure names the first one that differs.
#[test]
fn hidden_states_after_every_stage() {
    for model in MODELS {
        let (loaded, goldens, batch) = (open(model), tensors(model), golden_batch(model));
        let mut stages = 0;
        let observe = |stage: sconce::nn::Stage, hidden: &Tensor| {
            let golden = goldens.get(&stage.to_string()).unwrap_or_else(|| panic!("no golden for {stage}"));
            assert_eq!(hidden.dims(), golden.dims(), "{model}: shape after {stage}");
            if let Some(difference) = first_difference(&flat(hidden), &flat(golden), ATOL, RTOL) {
                panic!("{model}: the first stage that differs is {stage}: {difference}");
            }
            stages += 1;
            Ok(())
        };
        loaded.encoders[0].forward_observed(&batch, observe).expect("the encoder runs");
        assert_eq!(stages, 1 + loaded.encoders[0].spec().layers, "{model}: every stage was shown");
    }
}

/// The reference path in candle's operations, which runs on devices without kernels of this crate: in f32
/// within the same bounds, in f16 within 2 % of the largest value.
#[test]
fn hidden_states_of_the_reference_path() {
    for model in MODELS {
        let (goldens, batch) = (tensors(model), golden_batch(model));
        let config = Config::read(&fixture(model).join("config.json")).unwrap();
        let family = Family::of(&config).unwrap();
        let spec = family.spec(&config).unwrap();
        let checkpoint = Checkpoint::open(&fixture(model).join("model.safetensors")).unwrap();
        for dtype in [DType::F32, DType::F16] {
            let mut reader = checkpoint.reader(family.names, spec.heads).unwrap();
            reader.set_backend(Backend::Device { device: Device::Cpu, dtype });
            let encoder = Encoder::load(&spec, &mut reader).unwrap();
            let observe = |stage: sconce::nn::Stage, hidden: &Tensor| {
                assert_eq!(hidden.dtype(), dtype, "{model}: {stage}");
                let golden = flat(&goldens[&stage.to_string()]);
                let largest = golden.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                let (atol, rtol) = if dtype == DType::F32 { (ATOL, RTOL) } else { (0.02 * largest, 0.0) };
                let found = flat(&hidden.to_dtype(DType::F32)?);
                if let Some(difference) = first_difference(&found, &golden, atol, rtol) {
                    panic!("{model} in {dtype:?}: the first stage that differs is {stage}: {difference}");
                }
                Ok(())
            };
            encoder.forward_observed(&batch, observe).expect("the encoder runs");
        }
    }
}

/// The hidden states of `tokens`, from a pass of all tokens and from one of these tokens.
fn selected(encoder: &Encoder, batch: &RaggedBatch, tokens: &[u32]) -> [Tensor; 2] {
    let index = Tensor::new(tokens, &Device::Cpu).unwrap();
    let all = encoder.forward(batch).unwrap().index_select(&index, 0).unwrap();
    let some = encoder.forward_selected(batch, tokens).unwrap();
    assert_eq!(some.dims(), [tokens.len(), encoder.spec().hidden_size]);
    [all, some]
}

/// What a task does not need is not computed in the last layer, which changes no bit of the rest.
#[test]
fn selected_tokens_have_the_hidden_states_of_the_whole_batch() {
    for model in MODELS {
        let batch = golden_batch(model);
        let config = Config::read(&fixture(model).join("config.json")).unwrap();
        let family = Family::of(&config).unwrap();
        let spec = family.spec(&config).unwrap();
        let checkpoint = Checkpoint::open(&fixture(model).join("model.safetensors")).unwrap();
        let first: Vec<u32> = batch.cu_seqlens().windows(2).map(|bounds| bounds[0] as u32).collect();
        let some: Vec<u32> = (0..batch.ids().len() as u32).rev().step_by(3).collect();
        for gemm_type in [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16, GemmType::Int8] {
            let mut reader = checkpoint.reader(family.names, spec.heads).unwrap();
            reader.set_backend(Backend::Cpu(gemm_type));
            let encoder = Encoder::load(&spec, &mut reader).unwrap();
            for tokens in [&first[..], &some, &some[..1]] {
                let [expected, found] = selected(&encoder, &batch, tokens).map(|hidden| bits(&hidden));
                assert!(found == expected, "{model} in {}: the tokens {tokens:?} differ", gemm_type.name());
            }
        }
        // Where candle computes matmuls, their bits depend on the number of rows.
        let mut reader = checkpoint.reader(family.names, spec.heads).unwrap();
        reader.set_backend(Backend::Device { device: Device::Cpu, dtype: DType::F32 });
        let encoder = Encoder::load(&spec, &mut reader).unwrap();
        let [expected, found] = selected(&encoder, &batch, &some);
        assert_close(&flat(&found), &flat(&expected), ATOL, RTOL);
    }
}

/// Where the last layer needs all tokens, or there is none, the tokens are selected after it.
#[test]
fn tokens_are_selected_after_a_convolution_and_without_layers() {
    for (model, layers) in [("deberta-v2-c2p", 1), ("bert-tiny", 0)] {
        let with_layers = |spec: &mut EncoderSpec| {
            (spec.layers, spec.layer_sharing) = (layers, LayerSharing { groups: layers, inner: 1 });
        };
        let encoder = random_encoder(model, Backend::Cpu(GemmType::F32), with_layers);
        assert_eq!(encoder.spec().convolution.is_some(), layers == 1, "{model}");
        let [expected, found] = selected(&encoder, &golden_batch(model), &[0, 7, 3]);
        assert_eq!(bits(&found), bits(&expected), "{model}");
    }
}

/// The encoder of a fixture's config with random weights, for sequences of up to 1,000 tokens.
fn random_encoder(model: &str, backend: Backend, change: impl Fn(&mut EncoderSpec)) -> Encoder {
    let config = Config::read(&fixture(model).join("config.json")).unwrap();
    let mut spec = Family::of(&config).unwrap().spec(&config).unwrap();
    spec.max_positions = 1002;
    change(&mut spec);
    Encoder::load(&spec, &mut RandomWeights::new(1, backend)).unwrap()
}

/// Sequences that have beginnings of different lengths in common, some of them twice.
fn sequences_with_common_prefixes() -> Vec<Vec<u32>> {
    let id = |seed: u32, token: u32| 5 + (token * 7 + seed * 11 + token * token) % 40;
    let common: Vec<u32> = (0..900).map(|token| id(0, token)).collect();
    let sequence = |seed: u32, kept: usize, own: u32| -> Vec<u32> {
        common[..kept].iter().copied().chain((0..own).map(|token| id(seed, token))).collect()
    };
    vec![
        sequence(1, 60, 5),
        sequence(2, 60, 30),
        sequence(3, 0, 20),
        sequence(1, 60, 5),
        sequence(4, 150, 60),
        sequence(5, 150, 0),
        sequence(6, 900, 60),
        sequence(7, 900, 1),
        sequence(8, 1, 7),
    ]
}

fn batch_of(sequences: &[Vec<u32>]) -> RaggedBatch {
    let types = vec![0; 1000];
    RaggedBatch::new(sequences.iter().map(|ids| (&ids[..], &types[..ids.len()]))).unwrap()
}

/// Hidden states of a batch whose sequences have prefixes in common have the bits of each sequence alone,
/// whether their common tokens are computed once, under a causal mask, or see what follows them.
#[test]
fn common_prefixes_have_the_hidden_states_of_each_sequence_alone() {
    let unchanged = |_: &mut EncoderSpec| {};
    let with_mask = |spec: &mut EncoderSpec| spec.mask.causal = true;
    let without_bias = |spec: &mut EncoderSpec| (spec.mask.causal, spec.score_bias) = (true, ScoreBias::None);
    let sequences = sequences_with_common_prefixes();
    let batch = batch_of(&sequences);
    let last: Vec<u32> = batch.cu_seqlens()[1..].iter().map(|end| *end as u32 - 1).collect();
    let some: Vec<u32> = (0..batch.ids().len() as u32).rev().step_by(11).collect();
    type Change<'a> = &'a dyn Fn(&mut EncoderSpec);
    let models: &[(&str, Change)] = &[
        ("causal", &unchanged),
        ("llama", &unchanged),
        ("mistral", &unchanged),
        ("qwen3", &unchanged),
        ("gemma3-causal", &unchanged),
        ("roformer-values", &with_mask),
        ("roberta", &with_mask),
        ("talking-heads-both", &with_mask),
        ("nomic-bert-moe", &with_mask),
        ("albert-groups", &with_mask),
        // Without a tree.
        ("alibi", &with_mask),
        ("mpnet", &with_mask),
        ("deberta-v2-c2p", &with_mask),
        ("deberta-v2-c2p", &without_bias),
        ("bert-tiny", &unchanged),
    ];
    for (model, change) in models {
        for gemm_type in [GemmType::F32, GemmType::Bf16x3, GemmType::Bf16, GemmType::Int8] {
            let encoder = random_encoder(model, Backend::Cpu(gemm_type), change);
            let alone: Vec<u32> = sequences
                .iter()
                .flat_map(|ids| bits(&encoder.forward(&batch_of(std::slice::from_ref(ids))).unwrap()))
                .collect();
            let what = format!("{model} in {}", gemm_type.name());
            assert!(bits(&encoder.forward(&batch).unwrap()) == alone, "{what}");
            let width = encoder.spec().hidden_size;
            for tokens in [&last, &some] {
                let rows = tokens.iter().flat_map(|token| alone[*token as usize * width..][..width].to_vec());
                let found = bits(&encoder.forward_selected(&batch, tokens).unwrap());
                assert!(found == rows.collect::<Vec<_>>(), "{what}: the tokens {tokens:?} differ");
            }
        }
        // Where candle computes matmuls, their bits depend on the number of rows.
        let backend = Backend::Device { device: Device::Cpu, dtype: DType::F32 };
        let encoder = random_encoder(model, backend, change);
        let [expected, found] = selected(&encoder, &batch, &some);
        let observed = encoder.forward_observed(&batch, |_, _| Ok(())).unwrap();
        assert_close(&flat(&encoder.forward(&batch).unwrap()), &flat(&observed), ATOL, RTOL);
        assert_close(&flat(&found), &flat(&expected), ATOL, RTOL);
    }
}

/// How far a head with ALiBi sees follows from the queries and keys of the whole sequence, so that tokens of
/// a common prefix may see different keys.
#[test]
fn sequences_with_a_bias_have_no_common_prefix() {
    let sequence = |own: u32| -> Vec<u32> {
        (0..800).map(|token| 5 + (token * 7 + token * token) % 40).chain([own]).collect()
    };
    let sequences: Vec<Vec<u32>> = (50..70).map(sequence).collect();
    // Random weights give small scores, which would not matter beside the bias.
    let large_scores = |spec: &mut EncoderSpec| (spec.mask.causal, spec.query_scalar) = (true, Some(1e-4));
    let encoder = random_encoder("alibi", Backend::Cpu(GemmType::F32), large_scores);
    let forward = |sequences: &[Vec<u32>]| bits(&encoder.forward(&batch_of(sequences)).unwrap());
    let alone: Vec<u32> = sequences.iter().flat_map(|ids| forward(std::slice::from_ref(ids))).collect();
    assert!(forward(&sequences) == alone);
}

/// Tokens that are no keys make the tokens before them differ, too: they see fewer keys in one sequence than
/// in another.
#[test]
fn tokens_without_keys_have_no_common_prefix() {
    let sequences = vec![(5..45).collect::<Vec<u32>>(), (5..50).collect()];
    let encoder = random_encoder("causal", Backend::Cpu(GemmType::F32), |_| {});
    let forward = |sequences: &[Vec<u32>], key_lengths: &[usize]| {
        let batch = batch_of(sequences).with_key_lengths(key_lengths.to_vec()).unwrap();
        bits(&encoder.forward(&batch).unwrap())
    };
    let alone = [forward(&sequences[..1], &[30]), forward(&sequences[1..], &[20])].concat();
    assert!(forward(&sequences, &[30, 20]) == alone);
}

/// Several threads share a GPU only if candle computes no matmul.
#[test]
fn encoders_whose_batches_overlap_on_a_gpu() {
    let overlaps = |config: &str, dtype| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
        let config = Config::read(&path).unwrap();
        let mut spec = Family::of(&config).unwrap().spec(&config).unwrap();
        // Small, since weights are allocated.
        spec.vocab_size = 8;
        let engine = Backend::Device { device: Device::Cpu, dtype };
        Encoder::load(&spec, &mut RandomWeights::new(1, engine)).unwrap().may_overlap()
    };
    assert!(
        overlaps("configs/bert-mini.json", DType::BF16) && overlaps("configs/bert-mini.json", DType::F16)
    );
    assert!(!overlaps("configs/bert-mini.json", DType::F32), "candle computes matmuls in f32");
    // Head dims without a kernel, and score biases.
    for model in ["bert-tiny", "mpnet", "deberta-v2", "talking-heads-after", "alibi"] {
        assert!(!overlaps(&format!("tests/fixtures/{model}/config.json"), DType::BF16), "{model}");
    }
}

#[test]
fn poolings_match_the_reference() {
    for model in MODELS {
        let (loaded, goldens, batch) = (open(model), tensors(model), golden_batch(model));
        let hidden = loaded.encoders[0].forward(&batch).unwrap();
        let pools = [Pool::Cls, Pool::Max, Pool::Mean, Pool::MeanSqrtLen, Pool::WeightedMean, Pool::Last];
        for pool in pools {
            let found =
                flat(&Pooling::Text(vec![pool]).forward(&hidden, &batch, 0, PooledToken::First).unwrap());
            if let Some(difference) =
                first_difference(&found, &flat(&goldens[&format!("pooled.{pool}")]), ATOL, RTOL)
            {
                panic!("{model}: {pool}: {difference}");
            }
        }
    }
}

/// As in sentence-transformers, also where a text is all prompt.
#[test]
fn one_token_is_pooled_without_the_prompt() {
    let lengths = [4, 2, 3];
    let ids = [1u32; 4];
    let batch = RaggedBatch::new(lengths.map(|length| (&ids[..length], &ids[..length]))).unwrap();
    let hidden = Tensor::arange(1f32, 10.0, &Device::Cpu).unwrap().reshape((9, 1)).unwrap();
    let vectors = |pool: Pool, prompt_tokens: usize| {
        let pooling = Pooling::Text(vec![pool]);
        flat(&pooling.forward(&hidden, &batch, prompt_tokens, PooledToken::First).unwrap())
    };
    assert_eq!(vectors(Pool::Cls, 0), [1.0, 5.0, 7.0]);
    assert_eq!(vectors(Pool::Cls, 2), [3.0, 5.0, 9.0]);
    assert_eq!(vectors(Pool::Last, 0), [4.0, 6.0, 9.0]);
    assert_eq!(vectors(Pool::Last, 2), [4.0, 0.0, 9.0]);
    assert_eq!(vectors(Pool::Pooler, 2), [1.0, 5.0, 7.0]);
}

/// Models of t5.rs and adapters.rs.
const OTHER_MODELS: &[&str] = &[
    "towers/clip",
    "towers/clip-text",
    "towers/siglip",
    "towers/siglip-text",
    "towers/siglip2",
    "t5/gtr-t5",
    "t5/mt5",
    "t5/embed-tokens",
    "t5/embed-tokens-plain",
    "t5/t5-v1-1",
    "t5/umt5",
    "t5/umt5-plain",
    "adapters/jina-v3",
];

/// Every row of the family table and each of its namings has a fixture, and every fixture is compared.
#[test]
fn every_row_of_the_table_has_a_fixture() {
    let mut folders: Vec<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists() && path.join("goldens.safetensors").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    folders.sort();
    let mut models: Vec<&str> = MODELS.to_vec();
    models.sort();
    assert_eq!(folders, models);

    let namings: Vec<*const TensorNames> = MODELS
        .iter()
        .chain(OTHER_MODELS)
        .map(|model| {
            let config = Config::read(&fixture(model).join("config.json")).unwrap();
            let tensors =
                candle_core::safetensors::load(fixture(model).join("model.safetensors"), &Device::Cpu);
            let tensors = tensors.unwrap();
            let names = Family::of(&config).unwrap().names;
            // A weight with an adapter beside it has a longer name.
            let has = |name: &str| {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let original = format!("{module}.parametrizations.weight.original");
                tensors.contains_key(name) || tensors.contains_key(&original)
            };
            std::ptr::from_ref(TensorNames::choose(names, has).unwrap().0)
        })
        .collect();
    for family in FAMILIES {
        for (i, names) in family.names.iter().enumerate() {
            assert!(namings.contains(&std::ptr::from_ref(names)), "{:?}, naming {i}", family.model_types);
        }
    }
}

/// The command against sentence-transformers' `encode`, with the modules of the model's files.
#[test]
fn sentence_vectors_of_the_command() {
    for model in MODELS {
        let texts = texts(model);
        let singles: Vec<_> =
            texts.iter().filter(|r| r["pair"].is_null()).map(|r| r["text"].as_str().unwrap()).collect();
        let mut args = vec!["--"];
        args.extend(&singles);
        let found: Vec<f32> = rows(&embed(model, args)).iter().flat_map(embedding).collect();
        assert_close(&found, &flat(&tensors(model)["sentence"]), ATOL, RTOL);
    }
}

/// The second text of a pair has token type 1 in the encoder.
#[test]
fn pairs_reach_the_encoder() {
    let (mut loaded, goldens) = (open("bert-tiny"), tensors("bert-tiny"));
    let records: Vec<Record> = texts("bert-tiny")
        .iter()
        .map(|row| Record {
            location: Location { source: "golden".into(), position: Position::File },
            id: None,
            text: row["text"].as_str().unwrap().into(),
            pair: row["pair"].as_str().map(String::from),
            is_null: false,
            kept: Vec::new(),
        })
        .collect();
    loaded.steps.pooling = Pooling::Text(vec![Pool::Mean]);
    let options = VectorOptions { normalize: Some(false), ..VectorOptions::new(OnLong::Truncate) };
    let embedder = Embedder::new(loaded, &options, &Console::silent()).unwrap();
    let tokens: Vec<_> = records
        .iter()
        .map(|record| {
            let pair = record.pair.as_deref();
            embedder.tokenize(&TaskInput { pair, ..TaskInput::new(&record.text) }).unwrap()
        })
        .collect();
    let values = |row: TaskRow| match row.content {
        Content::Vector(StoredVector { values: VectorValues::F32(values), .. }) => values,
        other => panic!("{other:?}"),
    };
    let outputs = embedder.encode(&tokens, 30, 0).unwrap();
    let rows = |(text, output)| embedder.finish(text, output, &RowOptions::default());
    let vectors: Vec<Vec<f32>> = tokens.iter().zip(outputs).flat_map(rows).map(values).collect();
    assert_close(&vectors.concat(), &flat(&goldens["pooled.mean"]), ATOL, RTOL);
}

#[test]
fn activations_match_the_reference() {
    let goldens = candle_core::safetensors::load(fixture("activations.safetensors"), &Device::Cpu).unwrap();
    let x = &goldens["x"];
    let n = x.elem_count();
    // As the epilogue of a linear layer with weight 1 and bias 0.
    let column = x.reshape((n, 1)).unwrap();
    let one = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
    let zero = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let layer =
        LinearWeights::new(Matrix::new(one.clone(), &Backend::default()).unwrap(), Some(zero.clone()))
            .unwrap();
    for (name, activation) in NAMES {
        for (path, found) in [
            ("CPU", layer.forward(&column, *activation, None).unwrap()),
            ("reference", reference(&column, &one, Some(&zero), *activation, None).unwrap()),
        ] {
            if let Some(difference) = first_difference(&flat(&found), &flat(&goldens[*name]), 2e-6, 1e-6) {
                panic!("{name} ({path}): {difference}");
            }
        }
    }
}
