//! What `config.json` says about a sequence-classification head: its computation, its labels, and the
//! function from logits to scores.

use std::fmt;

use anyhow::{Result, bail};
use serde_json::Value;

use super::config::{Config, MAX_SIZE};
use super::layout::MODEL_SETTINGS;
use super::modules::post_pooling::torch_activation;
use super::token_head::prediction_transform;
use super::unsupported::unsupported_head;
use crate::nn::{Activation, ClassificationSpec, EncoderSpec, Pool, TorchActivation, TransformSpec};

/// Reads the head of a family from its config, for this number of labels.
pub type ReadHead = fn(&Config, &EncoderSpec, labels: usize) -> Result<ClassificationSpec>;

/// The function from logits to scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScoreFunction {
    /// Probabilities of labels that exclude one another.
    Softmax,
    /// The sigmoid, the identity or another activation.
    Each(TorchActivation),
}

impl fmt::Display for ScoreFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScoreFunction::Softmax => f.write_str("softmax"),
            ScoreFunction::Each(TorchActivation::Fused(Activation::Identity)) => f.write_str("logits"),
            ScoreFunction::Each(activation) => write!(f, "{activation}"),
        }
    }
}

/// The field of sentence-transformers in `config.json` for the activation of a cross-encoder, in releases
/// before 4.0.
const FORMER_ACTIVATION: &str = "sbert_ce_default_activation_function";

impl ScoreFunction {
    /// The logits themselves.
    pub const LOGITS: ScoreFunction = ScoreFunction::Each(TorchActivation::Fused(Activation::Identity));
    /// The sigmoid of each logit.
    const SIGMOID: ScoreFunction = ScoreFunction::Each(TorchActivation::Fused(Activation::Sigmoid));

    /// The scores of one sequence's logits, `(labels)`.
    pub fn apply(self, logits: &[f32]) -> Vec<f32> {
        match self {
            ScoreFunction::Softmax => {
                let max = logits.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
                let powers = logits.iter().map(|x| f64::from(x - max).exp());
                let powers: Vec<f64> = powers.collect();
                let sum: f64 = powers.iter().sum();
                powers.into_iter().map(|power| (power / sum) as f32).collect()
            }
            ScoreFunction::Each(activation) => {
                let mut scores = logits.to_vec();
                activation.apply(&mut scores);
                scores
            }
        }
    }
}

/// The refusal of a head that the family does not have.
pub(super) fn unsupported(config: &Config, _: &EncoderSpec, _: usize) -> Result<ClassificationSpec> {
    Err(unsupported_head(config))
}

/// The labels of next-sentence prediction, by the order of its logits (Devlin et al. 2019, §3.1). Configs do
/// not name them.
pub(super) const NEXT_SENTENCE_LABELS: [&str; 2] = ["is_next", "not_next"];
/// The labels of sentence-order prediction, ALBERT's (Lan et al. 2020, §3.1).
const SENTENCE_ORDER_LABELS: [&str; 2] = ["in_order", "swapped"];

/// The labels of a classifier, in the order of its logits: `id2label`, else `LABEL_0`, `LABEL_1` and so on.
/// There are `num_labels` of them, which an `id2label` of another length does not name, or as many as
/// `id2label` has, or two, as in `transformers`.
pub fn labels(config: &Config) -> Result<Vec<String>> {
    let count = if config.has("num_labels") { Some(config.size("num_labels", 1..=MAX_SIZE)?) } else { None };
    let named = config.object("id2label")?;
    let named = named.filter(|named| count.is_none_or(|count| count == named.fields().len()));
    let Some(named) = named else {
        return Ok((0..count.unwrap_or(2)).map(|i| format!("LABEL_{i}")).collect());
    };
    let label = |i: usize| match named.get(&i.to_string()) {
        Some(Value::String(label)) => Ok(label.clone()),
        Some(Value::Number(label)) => Ok(label.to_string()),
        Some(found) => bail!("{}", named.invalid(&i.to_string(), found, "a label")),
        None => bail!(
            "{}: \"id2label\" has {} labels, but none with the number {i}; fix the file",
            config.path().display(),
            named.fields().len()
        ),
    };
    match named.fields().len() {
        0 => bail!("{}: \"id2label\" has no labels; fix the file", config.path().display()),
        count => (0..count).map(label).collect(),
    }
}

/// The labels of next-sentence prediction, or those of sentence-order prediction for ALBERT.
pub fn next_sentence_labels(config: &Config) -> Result<Vec<String>> {
    let is_albert = config.string("model_type")? == Some("albert");
    let labels = if is_albert { SENTENCE_ORDER_LABELS } else { NEXT_SENTENCE_LABELS };
    Ok(labels.map(str::to_owned).into())
}

/// The function from the logits of a classifier to its scores, as the pipeline `text-classification` of
/// `transformers` chooses it.
pub fn label_function(config: &Config, labels: usize) -> Result<ScoreFunction> {
    Ok(match config.string("problem_type")? {
        Some("regression") => ScoreFunction::LOGITS,
        Some("multi_label_classification") => ScoreFunction::SIGMOID,
        Some("single_label_classification") | None if labels == 1 => ScoreFunction::SIGMOID,
        Some("single_label_classification") | None => ScoreFunction::Softmax,
        Some(other) => {
            let known = "regression, single_label_classification or multi_label_classification";
            bail!("{}", config.invalid("problem_type", format!("{other:?}"), known))
        }
    })
}

/// The function from the logit of a cross-encoder to its score, as `CrossEncoder` of sentence-transformers
/// chooses it: the one that `config_sentence_transformers.json` (`of_settings`) or `config.json` name, else
/// the sigmoid.
pub fn pair_function(config: &Config, of_settings: Option<&str>) -> Result<ScoreFunction> {
    let own = config.object("sentence_transformers")?;
    let present = own.as_ref().map(|own| own.string("activation_fn")).transpose()?.flatten();
    let former = config.string(FORMER_ACTIVATION)?;
    // Code of the model's own is not run: sentence-transformers takes the sigmoid then, unless it is told to
    // trust it.
    let path = of_settings.or(present).or(former).filter(|path| path.starts_with("torch."));
    let Some(path) = path else { return Ok(ScoreFunction::SIGMOID) };
    match torch_activation(path) {
        Ok(activation) => Ok(ScoreFunction::Each(activation)),
        Err(known) => bail!(
            "{} or {MODEL_SETTINGS} beside it names the activation {path}, expected {known}; pass --raw for logits",
            config.path().display()
        ),
    }
}

/// BERT's head: the pooler, if it has a dense layer, then the classifier.
pub(super) fn pooler(_: &Config, spec: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    Ok(ClassificationSpec {
        pool: Pool::Cls,
        pad_token: None,
        pools_logits: false,
        dense_is_pooler: true,
        transform: (spec.pooler.dense).map(|_| TransformSpec {
            bias: true,
            activation: Activation::Tanh,
            norm: None,
        }),
        bias: true,
        labels,
    })
}

/// A head with another activation of the dense layer.
fn with_activation(activation: Activation, head: ClassificationSpec) -> ClassificationSpec {
    let transform = head.transform.map(|transform| TransformSpec { activation, ..transform });
    ClassificationSpec { transform, ..head }
}

/// The head of decoder language models (`GenericForSequenceClassification`): a linear layer without bias at
/// the last token that is not the padding token.
pub(super) fn last_token(config: &Config, _: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    Ok(ClassificationSpec {
        pool: Pool::Last,
        pad_token: config.token_id("pad_token_id")?,
        pools_logits: false,
        dense_is_pooler: false,
        transform: None,
        bias: false,
        labels,
    })
}

/// RoBERTa's head, whose dense layer is its own.
pub(super) fn dense(config: &Config, spec: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    Ok(ClassificationSpec { dense_is_pooler: false, ..pooler(config, spec, labels)? })
}

/// DistilBERT's head: ReLU.
pub(super) fn dense_relu(config: &Config, spec: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    Ok(with_activation(Activation::Relu, dense(config, spec, labels)?))
}

/// ELECTRA's head: GELU.
pub(super) fn dense_gelu(config: &Config, spec: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    Ok(with_activation(Activation::Gelu, dense(config, spec, labels)?))
}

/// RoFormer's head: the activation of the feed-forward network.
pub(super) fn dense_hidden_act(
    config: &Config,
    spec: &EncoderSpec,
    labels: usize,
) -> Result<ClassificationSpec> {
    Ok(with_activation(spec.activation, dense(config, spec, labels)?))
}

/// DeBERTa's head: the context pooler.
pub(super) fn context_pooler(
    config: &Config,
    spec: &EncoderSpec,
    labels: usize,
) -> Result<ClassificationSpec> {
    if config.has("pooler_hidden_size") && config.width("pooler_hidden_size")? != spec.hidden_size {
        let expected = format!("the hidden size {}", spec.hidden_size);
        bail!("{}", config.invalid("pooler_hidden_size", config.width("pooler_hidden_size")?, &expected));
    }
    let activation = config.activation("pooler_hidden_act")?.unwrap_or(Activation::Gelu);
    Ok(with_activation(activation, dense(config, spec, labels)?))
}

/// ModernBERT's head: pooling, dense layer and norm as the config describes them.
pub(super) fn prediction_head(
    config: &Config,
    spec: &EncoderSpec,
    labels: usize,
) -> Result<ClassificationSpec> {
    let (pool, pools_logits) = classifier_pooling(config, "cls", &[("cls", Pool::Cls, false)])?;
    let transform = Some(prediction_transform(config, spec)?);
    Ok(ClassificationSpec { pool, pools_logits, transform, ..dense(config, spec, labels)? })
}

/// EuroBERT's head: GELU, and pooling as the config describes it.
pub(super) fn eurobert(config: &Config, spec: &EncoderSpec, labels: usize) -> Result<ClassificationSpec> {
    let own = [("bos", Pool::Cls, false), ("late", Pool::Mean, true)];
    let (pool, pools_logits) = classifier_pooling(config, "late", &own)?;
    Ok(ClassificationSpec { pool, pools_logits, ..dense_gelu(config, spec, labels)? })
}

/// The pooling that `classifier_pooling` names, and whether logits are pooled: `mean`, or one of the family's
/// `own`.
fn classifier_pooling(config: &Config, default: &str, own: &[(&str, Pool, bool)]) -> Result<(Pool, bool)> {
    let known = [own, &[("mean", Pool::Mean, false)]].concat();
    let name = config.string("classifier_pooling")?.unwrap_or(default);
    match known.iter().find(|(known, ..)| *known == name) {
        Some((_, pool, pools_logits)) => Ok((*pool, *pools_logits)),
        None => {
            let known: Vec<&str> = known.iter().map(|(name, ..)| *name).collect();
            let expected = format!("one of {}", known.join(", "));
            bail!("{}", config.invalid("classifier_pooling", format!("{name:?}"), &expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ScoreFunction;

    #[test]
    fn scores_do_not_overflow() {
        let softmax = ScoreFunction::Softmax.apply(&[1000.0, 0.0, 1000.0]);
        assert_eq!(softmax, [0.5, 0.0, 0.5]);
        let sigmoid = ScoreFunction::SIGMOID.apply(&[-1000.0, 0.0, 1000.0]);
        assert!(sigmoid.iter().zip([0.0, 0.5, 1.0]).all(|(found, score)| (found - score).abs() < 1e-7));
        assert!(ScoreFunction::Softmax.apply(&[f32::NAN, 0.0]).iter().all(|score| score.is_nan()));
    }
}
