use std::path::Path;

use serde_json::json;

use super::*;
use crate::hub::Source;
use crate::model::config::Config;
use crate::model::modules::MultiVector;
use crate::named::Named;
use crate::nn::{Pool, SpladeSpec};

/// What the files of a model say.
#[derive(Clone)]
struct Files {
    modules: Modules,
    purpose: Option<Purpose>,
    is_masked_lm: bool,
}

/// A checkpoint of a class, without modules.
fn class(class: &str) -> Files {
    let fields = json!({"architectures": [class], "id2label": {"0": "a", "1": "b"}});
    let config = Config::with_fields(Path::new("config.json"), fields.as_object().unwrap().clone());
    let purpose = Purpose::of_config(&config);
    Files { modules: Modules::default(), purpose, is_masked_lm: purpose::is_masked_lm(&config) }
}

/// A model with a module of a class.
fn module(class: &str, modules: Modules) -> Files {
    Files { modules, purpose: Purpose::of_module(class), is_masked_lm: false }
}

fn embedding() -> Files {
    let modules = Modules { multi_vector: Some(MultiVector::default()), ..Modules::default() };
    Files { modules, purpose: None, is_masked_lm: false }
}

fn splade() -> Files {
    let modules =
        Modules { splade: Some(SpladeSpec { sums: false, is_double_log: false }), ..Modules::default() };
    module("SpladePooling", modules)
}

fn with_lexical_layer(mut files: Files) -> Files {
    files.modules.lexical_layer = Some("sparse_linear.pt".into());
    files
}

fn options(pooling: Option<Pooling>, outputs: &[OutputKind]) -> ModelOptions {
    let source = Source {
        model: "MODEL".into(),
        revision: "main".into(),
        cache: None,
        dimensions: None,
        offline: true,
        progress: false,
        silent: true,
    };
    ModelOptions { pooling, outputs: outputs.into(), ..ModelOptions::of(source) }
}

fn case<'a>(wanted: Wanted, files: &'a Files, options: &'a ModelOptions) -> Case<'a> {
    let Files { modules, purpose, is_masked_lm } = files;
    Case { wanted, options, modules, purpose: purpose.as_ref(), is_masked_lm: *is_masked_lm }
}

/// For each row of the table, in order, a case that it decides: the head, or the beginning of the sentence.
#[test]
fn every_row_decides() {
    let own = || options(None, &[]);
    let pooled = |pooling| options(Some(pooling), &[]);
    let classifier = || class("BertForSequenceClassification");
    let generator = || class("GPT2LMHeadModel");
    let head = |kind| Ok(Decision::Head(kind));
    let cases = [
        (Wanted::OwnTask, class("BertForMaskedLM"), own(), head(MaskedLm)),
        (Wanted::OwnTask, classifier(), own(), head(SequenceClassification)),
        (Wanted::OwnTask, splade(), own(), Ok(Decision::Splade)),
        (
            Wanted::PairScores,
            with_lexical_layer(classifier()),
            pooled(Pooling::Lexical),
            head(LexicalWeights),
        ),
        (
            Wanted::VectorsOrWeights,
            class("BertForTokenClassification"),
            pooled(Pooling::Lexical),
            head(LexicalWeights),
        ),
        (
            Wanted::OwnTask,
            classifier(),
            pooled(Pooling::Lexical),
            Err("MODEL is a text classifier or cross-encoder, which gives scores"),
        ),
        (Wanted::Vectors, embedding(), pooled(Pooling::Splade), Err("--pooling splade gives sparse vectors")),
        (
            Wanted::Head(SequenceClassification),
            class("BertForNextSentencePrediction"),
            own(),
            head(NextSentence),
        ),
        (
            Wanted::Head(TokenClassification),
            class("BertForTokenClassification"),
            own(),
            head(TokenClassification),
        ),
        (Wanted::Head(QuestionAnswering), class("BertModel"), own(), head(QuestionAnswering)),
        (
            Wanted::Head(MaskedLm),
            embedding(),
            own(),
            Err("MODEL is an embedding model, not a masked language model; use sconce embed"),
        ),
        (
            Wanted::Head(TokenClassification),
            classifier(),
            own(),
            Err(
                "MODEL is a text classifier or cross-encoder, which gives scores (\"architectures\" has BertForSequenceClassification in config.json), not a token classifier; use sconce classify, or choose a token classifier such as",
            ),
        ),
        (Wanted::PairScores, classifier(), own(), head(SequenceClassification)),
        (Wanted::PairScores, generator(), own(), head(CausalLm)),
        (
            Wanted::PairScores,
            class("BertForQuestionAnswering"),
            own(),
            Err("MODEL is a question-answering model"),
        ),
        (Wanted::PairScores, class("BertForMultipleChoice"), own(), Err("MODEL is a multiple-choice model")),
        (
            Wanted::VectorsOrWeights,
            generator(),
            own(),
            Err(
                "MODEL is a text generator (\"architectures\" has GPT2LMHeadModel in config.json), not an embedding model; choose",
            ),
        ),
    ];
    assert_eq!(cases.len(), TABLE.len());
    for (i, (wanted, files, options, expected)) in cases.iter().enumerate() {
        let case = case(*wanted, files, options);
        let row = case.row().and_then(|row| TABLE.iter().position(|other| std::ptr::eq(row, other)));
        assert_eq!(row, Some(i), "{wanted:?}");
        match (case.decide(), expected) {
            (Ok(decision), Ok(expected)) => assert_eq!(decision, *expected, "row {i}"),
            (Err(error), Err(start)) => {
                let error = error.to_string();
                assert!(error.starts_with(start), "row {i}: {error}");
            }
            (found, _) => panic!("row {i}: {found:?}"),
        }
    }
}

#[test]
fn every_kind_of_head_can_be_wanted() {
    let is_missing = |kind: &&HeadKind| !A_HEAD.contains(&Wanted::Head(**kind));
    assert_eq!(HeadKind::ALL.iter().find(is_missing), None);
}

#[test]
fn a_model_that_no_row_fits_has_no_head() {
    let own = options(None, &[]);
    let mean = options(Some(Pooling::Text(vec![Pool::Mean])), &[]);
    for (wanted, files, options) in [
        (Wanted::Inspection, class("BertForSequenceClassification"), &own),
        (Wanted::Vectors, class("BertForSequenceClassification"), &own),
        (Wanted::VectorsOrWeights, class("BertForMaskedLM"), &own),
        (Wanted::OwnTask, embedding(), &own),
        (Wanted::OwnTask, class("BertForMaskedLM"), &mean),
        (Wanted::PairScores, class("BertForSequenceClassification"), &mean),
        (Wanted::PairScores, class("GPT2LMHeadModel"), &mean),
        (Wanted::Vectors, class("GPT2LMHeadModel"), &mean),
    ] {
        let decision = case(wanted, &files, options).decide().unwrap();
        assert_eq!(decision, Decision::NoHead, "{wanted:?}");
    }
}

#[test]
fn pairs_are_not_compared_by_the_hidden_states_of_a_classifier() {
    let own = options(None, &[]);
    let purpose = Purpose::of_tensors(&["classifier.weight".into()]).unwrap();
    assert!(check_pairs(Wanted::VectorsOrWeights, &own, &purpose).is_ok());
    assert!(check_pairs(Wanted::PairScores, &options(Some(Pooling::None), &[]), &purpose).is_ok());
    let error = check_pairs(Wanted::PairScores, &own, &purpose).unwrap_err().to_string();
    assert!(error.contains("its config.json names no labels"), "{error}");
}
