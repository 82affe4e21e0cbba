//! Which head a model is loaded with: a table over what it is loaded for, what its files say that it is, and what the options choose.

use anyhow::{Error, Result, bail};

use super::options::ModelOptions;
use crate::error::UsageError;
use crate::model::modules::Modules;
use crate::model::purpose::{self, Purpose};
use crate::nn::HeadKind::{
    self, CausalLm, LexicalWeights, MaskedLm, NextSentence, QuestionAnswering, SequenceClassification,
    TokenClassification,
};
use crate::nn::{OutputKind, Pooling};

/// What a model is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// To be shown, whatever its purpose.
    Inspection,
    /// Vectors: an embedding model.
    Vectors,
    /// Its task head, of this kind.
    Head(HeadKind),
    /// Scores of pairs: a sequence-classification head, or vectors or sparse weights of a model without one.
    PairScores,
    /// Vectors, or the sparse weights of a model with a SpladePooling module or with `--pooling splade`.
    VectorsOrWeights,
    /// What its files say that it is for: its task head, or the masked-LM head of a checkpoint that has no Pooling module, else vectors
    /// or sparse weights.
    OwnTask,
}

/// What the files of a model say that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    /// Nothing: a checkpoint whose tensors decide.
    Bare,
    /// A checkpoint of the class of a masked language model.
    Masked,
    /// An embedding model.
    Embedding,
    /// A model for another purpose, with a head of this kind.
    Head(HeadKind),
    /// A model that predicts the next token.
    NextToken,
    /// A model for another purpose, whose head is not supported.
    Other,
}

/// What the options have to choose for a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Anything.
    Any,
    /// No other pooling than that of the model's own files.
    OwnPooling,
    /// The same, and no outputs.
    OwnOutput,
    /// No pooling.
    NoPooling,
    /// SPLADE, by the pooling or, without options, by the model's module.
    Splade,
    /// Lexical weights.
    Lexical,
    /// Lexical weights, from a layer in a file of its own.
    LexicalLayer,
    /// A pooling that gives sparse vectors.
    SparsePooling,
}

/// What follows from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The head of the model's purpose.
    OwnHead,
    /// The head that is wanted.
    WantedHead,
    /// A head of this kind.
    Head(HeadKind),
    /// The masked-LM head for the weights of SPLADE.
    Splade,
    /// The model is refused.
    Refuse(Refusal),
}

/// Why a model is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Its purpose has another head than the wanted one.
    OtherPurpose,
    /// It is an embedding model, without the wanted head.
    IsEmbedding,
    /// Its purpose gives no vectors.
    NoVectors,
    /// It has no lexical weights.
    NoLexicalWeights,
    /// The pooling gives sparse vectors where dense ones are wanted.
    SparsePooling,
}

/// A row of the table.
struct Row {
    wanted: &'static [Wanted],
    models: Models,
    choice: Choice,
    then: Then,
}

/// The models of a row.
enum Models {
    Any,
    Of(&'static [Model]),
    /// Those with the head that is wanted.
    WithWantedHead,
}

const fn row(wanted: &'static [Wanted], models: Models, choice: Choice, then: Then) -> Row {
    Row { wanted, models, choice, then }
}

const A_HEAD: &[Wanted] = &[
    Wanted::Head(SequenceClassification),
    Wanted::Head(TokenClassification),
    Wanted::Head(QuestionAnswering),
    Wanted::Head(MaskedLm),
    Wanted::Head(LexicalWeights),
    Wanted::Head(NextSentence),
    Wanted::Head(CausalLm),
];
const VECTORS: &[Wanted] = &[Wanted::Vectors, Wanted::VectorsOrWeights, Wanted::OwnTask];
/// What takes sparse weights in place of vectors.
const WEIGHTS: &[Wanted] = &[Wanted::PairScores, Wanted::VectorsOrWeights, Wanted::OwnTask];
const PAIRS: &[Wanted] = &[Wanted::PairScores];
const OWN_TASK: &[Wanted] = &[Wanted::OwnTask];

/// Models with a head that gives neither vectors nor weights; a command runs each of them.
const OF_A_COMMAND: Models = Models::Of(&[
    Model::Head(SequenceClassification),
    Model::Head(TokenClassification),
    Model::Head(QuestionAnswering),
    Model::Head(NextSentence),
    Model::Head(CausalLm),
]);
const OF_NO_COMMAND: Models = Models::Of(&[Model::Head(MaskedLm), Model::NextToken, Model::Other]);
const OF_PAIRS: Models = Models::Of(&[Model::Head(SequenceClassification), Model::Head(CausalLm)]);
const PREDICTS_ORDER: Models = Models::Of(&[Model::Head(NextSentence)]);
/// Models whose tensors decide whether there are lexical weights: a token classifier with one label may be one.
const MAY_WEIGH_TOKENS: Models =
    Models::Of(&[Model::Bare, Model::Masked, Model::Embedding, Model::Head(TokenClassification)]);
const BARE: Models = Models::Of(&[Model::Bare, Model::Masked]);

/// The first row that fits decides; without one, the model is loaded without a head.
static TABLE: &[Row] = &[
    row(OWN_TASK, Models::Of(&[Model::Masked]), Choice::OwnOutput, Then::Head(MaskedLm)),
    row(OWN_TASK, OF_A_COMMAND, Choice::OwnPooling, Then::OwnHead),
    row(WEIGHTS, Models::Any, Choice::Splade, Then::Splade),
    row(WEIGHTS, Models::Any, Choice::LexicalLayer, Then::Head(LexicalWeights)),
    row(WEIGHTS, MAY_WEIGH_TOKENS, Choice::Lexical, Then::Head(LexicalWeights)),
    row(WEIGHTS, Models::Any, Choice::Lexical, Then::Refuse(Refusal::NoLexicalWeights)),
    row(&[Wanted::Vectors], Models::Any, Choice::SparsePooling, Then::Refuse(Refusal::SparsePooling)),
    row(&[Wanted::Head(SequenceClassification)], PREDICTS_ORDER, Choice::Any, Then::OwnHead),
    row(A_HEAD, Models::WithWantedHead, Choice::Any, Then::OwnHead),
    row(A_HEAD, BARE, Choice::Any, Then::WantedHead),
    row(A_HEAD, Models::Of(&[Model::Embedding]), Choice::Any, Then::Refuse(Refusal::IsEmbedding)),
    row(A_HEAD, Models::Any, Choice::Any, Then::Refuse(Refusal::OtherPurpose)),
    row(PAIRS, OF_PAIRS, Choice::NoPooling, Then::OwnHead),
    row(PAIRS, Models::Of(&[Model::NextToken]), Choice::OwnPooling, Then::Head(CausalLm)),
    row(PAIRS, OF_A_COMMAND, Choice::OwnPooling, Then::Refuse(Refusal::NoVectors)),
    row(PAIRS, OF_NO_COMMAND, Choice::OwnPooling, Then::Refuse(Refusal::NoVectors)),
    row(VECTORS, OF_NO_COMMAND, Choice::OwnPooling, Then::Refuse(Refusal::NoVectors)),
];

/// The head that a model is loaded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// None.
    NoHead,
    /// A head of this kind.
    Head(HeadKind),
    /// The masked-LM head, whose logits become the weights of SPLADE.
    Splade,
}

impl Decision {
    /// The kind of the head.
    pub(super) fn head(self) -> Option<HeadKind> {
        match self {
            Decision::NoHead => None,
            Decision::Head(kind) => Some(kind),
            Decision::Splade => Some(MaskedLm),
        }
    }
}

/// What the decision depends on.
pub(super) struct Case<'a> {
    pub wanted: Wanted,
    pub options: &'a ModelOptions,
    pub modules: &'a Modules,
    /// The purpose of the model, if it is not embedding.
    pub purpose: Option<&'a Purpose>,
    /// Whether the config names the class of a model that predicts masked tokens and nothing else.
    pub is_masked_lm: bool,
}

impl Case<'_> {
    /// The head by the table.
    ///
    /// # Errors
    /// If the model does not give what is wanted.
    pub(super) fn decide(&self) -> Result<Decision> {
        let own_head = || self.purpose.and_then(|purpose| self.modules.head(purpose));
        let of_kind = |kind: Option<HeadKind>| kind.map_or(Decision::NoHead, Decision::Head);
        Ok(match self.row().map(|row| row.then) {
            None => Decision::NoHead,
            Some(Then::OwnHead) => of_kind(own_head()),
            Some(Then::WantedHead) => of_kind(self.wanted_head()),
            Some(Then::Head(kind)) => Decision::Head(kind),
            Some(Then::Splade) => Decision::Splade,
            Some(Then::Refuse(refusal)) => return Err(self.refusal(refusal)),
        })
    }

    fn row(&self) -> Option<&'static Row> {
        let model = self.model();
        TABLE.iter().find(|row| {
            let has_model = match row.models {
                Models::Any => true,
                Models::Of(models) => models.contains(&model),
                Models::WithWantedHead => self.wanted_head().map(Model::Head) == Some(model),
            };
            row.wanted.contains(&self.wanted) && has_model && self.chooses(row.choice)
        })
    }

    fn wanted_head(&self) -> Option<HeadKind> {
        match self.wanted {
            Wanted::Head(kind) => Some(kind),
            _ => None,
        }
    }

    fn model(&self) -> Model {
        match self.purpose.map(|purpose| (self.modules.head(purpose), purpose.is_causal_lm())) {
            Some((Some(kind), _)) => Model::Head(kind),
            Some((None, true)) => Model::NextToken,
            Some((None, false)) => Model::Other,
            None if self.modules.configures_pooling() => Model::Embedding,
            None if self.is_masked_lm => Model::Masked,
            None => Model::Bare,
        }
    }

    fn chooses(&self, choice: Choice) -> bool {
        let Case { options, modules, .. } = self;
        let is_lexical = options.gives(OutputKind::Lexical);
        match choice {
            Choice::Any => true,
            Choice::OwnPooling => options.uses_own_pooling(),
            Choice::OwnOutput => options.uses_own_pooling() && options.outputs.is_empty(),
            Choice::NoPooling => options.pooling.is_none(),
            Choice::Splade => match &options.pooling {
                Some(pooling) => *pooling == Pooling::Splade,
                None => modules.splade.is_some() && options.outputs.is_empty(),
            },
            Choice::Lexical => is_lexical,
            Choice::LexicalLayer => is_lexical && modules.lexical_layer.is_some(),
            Choice::SparsePooling => options.pooling.as_ref().is_some_and(Pooling::is_sparse),
        }
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        let Case { options, purpose, .. } = self;
        let model = &options.source.model;
        let is = purpose.map(Purpose::to_string).unwrap_or_default();
        let noun = self.wanted_head().map(purpose::noun).unwrap_or_default();
        let example = self.wanted_head().and_then(purpose::example);
        let such_as = example.map(|model| format!(" such as --model {model}")).unwrap_or_default();
        Error::msg(match refusal {
            Refusal::OtherPurpose => {
                let command = purpose.and_then(Purpose::command);
                let command = command.map(|command| format!("use {command}, or ")).unwrap_or_default();
                format!("{model} is {is}, not a {noun}; {command}choose a {noun}{such_as}")
            }
            Refusal::IsEmbedding => format!(
                "{model} is an embedding model, not a {noun}; use sconce embed, or choose a {noun}{such_as}"
            ),
            Refusal::NoVectors => purpose.map(|purpose| no_vectors(model, purpose)).unwrap_or_default(),
            Refusal::NoLexicalWeights => {
                format!("{model} is {is}, without lexical weights; choose a model such as BAAI/bge-m3")
            }
            Refusal::SparsePooling => {
                let pooling = options.pooling.as_ref().map(Pooling::to_string).unwrap_or_default();
                return Error::new(UsageError(format!(
                    "--pooling {pooling} gives sparse vectors, but this command needs dense ones; choose another --pooling"
                )));
            }
        })
    }
}

/// Checks a model that has been loaded without a head, and whose tensors may be those of a task head, of this `purpose`: pairs are not
/// compared by hidden states that the model pools for another purpose, unless the user chose to. Vectors of it are noted only.
pub(super) fn check_pairs(wanted: Wanted, options: &ModelOptions, purpose: &Purpose) -> Result<()> {
    if wanted != Wanted::PairScores || !options.uses_own_pooling() {
        return Ok(());
    }
    bail!("{}", no_vectors(&options.source.model, purpose))
}

/// The sentence about a model of this purpose where vectors are wanted.
fn no_vectors(model: &str, purpose: &Purpose) -> String {
    if purpose.is_undescribed_classifier() {
        return format!(
            "{model} is {purpose}, but its config.json names no labels; add \"id2label\" with one label for a cross-encoder, or pass \
             --pooling to compare its pooled hidden states"
        );
    }
    let command = purpose.command().map(|command| format!("use {command}, ")).unwrap_or_default();
    format!(
        "{model} is {purpose}, not an embedding model; {command}choose an embedding model, or pass --pooling to pool its hidden \
         states anyway"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::hub::Source;
    use crate::model::config::Config;
    use crate::model::modules::MultiVector;
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
            (
                Wanted::Vectors,
                embedding(),
                pooled(Pooling::Splade),
                Err("--pooling splade gives sparse vectors"),
            ),
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
            (
                Wanted::PairScores,
                class("BertForMultipleChoice"),
                own(),
                Err("MODEL is a multiple-choice model"),
            ),
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
}
