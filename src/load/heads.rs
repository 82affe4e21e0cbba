//! Which head a model is loaded with: a table over what it is loaded for, what its files say that it is, and
//! what the options choose.

#[cfg(test)]
mod tests;

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
    /// What its files say that it is for: its task head, or the masked-LM head of a checkpoint that has no
    /// Pooling module, else vectors or sparse weights.
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
/// Models whose tensors decide whether there are lexical weights: a token classifier with one label may be
/// one.
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
    row(A_HEAD, Models::WithWantedHead, Choice::Any, Then::WantedHead),
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

/// Checks a model that has been loaded without a head, and whose tensors may be those of a task head, of this
/// `purpose`: pairs are not compared by hidden states that the model pools for another purpose, unless the
/// user chose to. Vectors of it are noted only.
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
