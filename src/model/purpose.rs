//! The purpose of a checkpoint, if its files identify one other than embedding: cross-encoders, classifiers
//! and others.

use std::fmt;

use anyhow::Result;
use serde_json::{Map, Value};

use super::config::Config;
use crate::nn::HeadKind;

/// A purpose other than text embeddings, with the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    kind: ModelKind,
    /// The file, field or tensor that identifies the kind.
    evidence: String,
}

/// Kinds of models that give something other than one embedding per text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelKind {
    CrossEncoder,
    Classification,
    TokenClassification,
    QuestionAnswering,
    MultipleChoice,
    NextSentence,
    Generation,
    Sparse,
    SparseAutoEncoder,
    MultiVector,
    Static,
    Images,
    SeveralEncoders,
    ListwiseReranker,
    Other,
}

use ModelKind::{
    Classification, CrossEncoder, Generation, Images, ListwiseReranker, MultiVector, MultipleChoice,
    NextSentence, Other, QuestionAnswering, SeveralEncoders, Sparse, SparseAutoEncoder, Static,
    TokenClassification,
};

/// Classes with a task head, by a part of their names. Classes with a pretraining head (`ForMaskedLM`,
/// `ForPreTraining`) are not among them: their encoders are commonly used for embeddings.
const CLASSES: &[(&str, ModelKind)] = &[
    ("ForSequenceClassification", Classification),
    ("ForTokenClassification", TokenClassification),
    ("ForQuestionAnswering", QuestionAnswering),
    ("ForMultipleChoice", MultipleChoice),
    ("ForNextSentencePrediction", NextSentence),
    ("ForCausalLM", Generation),
    ("LMHeadModel", Generation),
    ("ForConditionalGeneration", Generation),
    ("ForRetrieval", Images),
    ("ColBERT", MultiVector),
    ("ForSparseEmbedding", Sparse),
    ("ForRanking", ListwiseReranker),
];

/// Classes in `modules.json` that only such models have.
const MODULE_CLASSES: &[(&str, ModelKind)] = &[
    ("SpladePooling", Sparse),
    ("MLMTransformer", Sparse),
    ("SparseAutoEncoder", SparseAutoEncoder),
    ("CSRSparsity", SparseAutoEncoder),
    ("SparseStaticEmbedding", Sparse),
    ("IDF", Sparse),
    ("LogitScore", CrossEncoder),
    ("CausalScoreHead", CrossEncoder),
    ("MultiVectorMask", MultiVector),
    ("HierarchicalTokenPooling", MultiVector),
    ("WordEmbeddings", Static),
    ("BoW", Static),
    ("Router", SeveralEncoders),
    ("Asym", SeveralEncoders),
];

/// Tensors of task heads, by the beginning of their names.
const TASK_HEADS: &[(&str, ModelKind)] = &[
    ("classifier.", Classification),
    ("classification_head.", Classification),
    ("score.", Classification),
    ("qa_outputs.", QuestionAnswering),
];

/// The beginning of the evidence of a tensor.
const TENSOR_EVIDENCE: &str = "the checkpoint has the tensor";

impl Purpose {
    /// The purpose by `config_sentence_transformers.json`. `pools`: the model has a Pooling module.
    pub fn of_settings(fields: &Map<String, Value>, pools: bool) -> Option<Self> {
        let model_type = fields.get("model_type").and_then(Value::as_str);
        if model_type == Some("SentenceTransformer") {
            return None;
        }
        // PyLate writes these for ColBERT models, which do not pool.
        let mut keys = ["query_length", "skiplist_words"].into_iter().filter(|_| !pools);
        if let Some(key) = keys.find(|key| fields.contains_key(*key)) {
            return Some(Self::new(MultiVector, format!("config_sentence_transformers.json has {key:?}")));
        }
        let model_type = model_type?;
        let kind = match model_type {
            "CrossEncoder" => CrossEncoder,
            "SparseEncoder" => Sparse,
            "MultiVectorEncoder" | "ColBERT" => MultiVector,
            _ => Other,
        };
        Some(Self::new(
            kind,
            format!("\"model_type\" is {model_type:?} in config_sentence_transformers.json"),
        ))
    }

    /// The purpose by the `type` of an entry of `modules.json`.
    pub fn of_module(module_type: &str) -> Option<Self> {
        let class = module_type.rsplit('.').next().unwrap_or(module_type);
        let kind = match MODULE_CLASSES.iter().find(|(known, _)| *known == class) {
            Some((_, kind)) => *kind,
            None if module_type.starts_with("pylate.") => MultiVector,
            None => return None,
        };
        Some(Self::new(kind, format!("modules.json has the module {module_type}")))
    }

    /// The purpose by the lengths of queries and documents in the configuration of the Transformer module;
    /// only for a model without a Pooling module.
    pub fn of_lengths(config: &Config) -> Option<Self> {
        let name = config.path().file_name().unwrap_or_default().to_string_lossy();
        let key =
            ["query_expansion", "query_length", "document_length"].into_iter().find(|key| config.has(key))?;
        Some(Self::new(MultiVector, format!("{name} has {key:?}")))
    }

    /// The purpose by the configuration of the Transformer module.
    pub fn of_transformer(config: &Config) -> Result<Option<Self>> {
        let name = config.path().file_name().unwrap_or_default().to_string_lossy();
        let Some(task) = config.string("transformer_task")? else { return Ok(None) };
        let kind = match task {
            "feature-extraction" => return Ok(None),
            "sequence-classification" => CrossEncoder,
            "fill-mask" => Sparse,
            "text-generation" | "any-to-any" => Generation,
            "retrieval" => Images,
            _ => Other,
        };
        Ok(Some(Self::new(kind, format!("\"transformer_task\" is {task:?} in {name}"))))
    }

    /// The purpose by `config.json`; only for a model without a Pooling module, which makes it an embedding
    /// model.
    pub fn of_config(config: &Config) -> Option<Self> {
        let mut classes = classes(config).peekable();
        let has_no_class = classes.peek().is_none();
        let labels = label_count(config);
        let classifier = if labels == Some(1) { CrossEncoder } else { Classification };
        // The fields in which current and first releases of sentence-transformers store the activation of a
        // cross-encoder.
        let has_activation =
            config.get("sentence_transformers").is_some_and(|own| own.get("activation_fn").is_some());
        if has_activation || config.has("sbert_ce_default_activation_function") {
            let evidence = "config.json has the activation function of a cross-encoder".into();
            return Some(Self::new(CrossEncoder, evidence));
        }
        for class in classes {
            let Some((end, kind)) = CLASSES.iter().find(|(end, _)| class.contains(end)) else { continue };
            let kind = if *end == "ForSequenceClassification" { classifier } else { *kind };
            return Some(Self::new(kind, format!("\"architectures\" has {class} in config.json")));
        }
        let labels = labels.filter(|_| has_no_class)?;
        Some(Self::new(
            classifier,
            format!("config.json has {labels} {}", if labels == 1 { "label" } else { "labels" }),
        ))
    }

    /// The purpose by the `task_type` of an adapter's config, which tells the head that it was trained with.
    pub fn of_adapter(task_type: &str) -> Option<Self> {
        let kind = match task_type {
            "SEQ_CLS" => Classification,
            "TOKEN_CLS" => TokenClassification,
            "QUESTION_ANS" => QuestionAnswering,
            _ => return None,
        };
        Some(Self::new(kind, format!("\"task_type\" is {task_type:?} in adapter_config.json")))
    }

    /// The purpose by the tensors that the encoder does not use; only for a model without a Pooling module.
    pub fn of_tensors(unused: &[String]) -> Option<Self> {
        unused.iter().find_map(|name| {
            // With any prefix: bert.classifier.weight.
            let is_head = |start: &str| name.starts_with(start) || name.contains(&format!(".{start}"));
            let (_, kind) = TASK_HEADS.iter().find(|(start, _)| is_head(start))?;
            Some(Self::new(*kind, format!("{TENSOR_EVIDENCE} {name}")))
        })
    }

    /// Whether the purpose is that of a module that tells more than the type of the model.
    pub fn is_special(&self) -> bool {
        matches!(self.kind, SeveralEncoders | SparseAutoEncoder)
    }

    /// Whether the model gives sparse vectors.
    pub fn is_sparse(&self) -> bool {
        self.kind == Sparse
    }

    /// Whether the model gives a projected vector for each token.
    pub fn is_multi_vector(&self) -> bool {
        self.kind == MultiVector
    }

    /// Whether only a tensor tells that the model is a classifier: the config does not describe its labels.
    pub fn is_undescribed_classifier(&self) -> bool {
        self.kind == Classification && self.evidence.starts_with(TENSOR_EVIDENCE)
    }

    /// Whether the model predicts the next token.
    pub fn is_causal_lm(&self) -> bool {
        self.kind == Generation
    }

    /// The kind of the model's task head, if it has one that is supported.
    pub fn head(&self) -> Option<HeadKind> {
        match self.kind {
            CrossEncoder | Classification => Some(HeadKind::SequenceClassification),
            TokenClassification => Some(HeadKind::TokenClassification),
            QuestionAnswering => Some(HeadKind::QuestionAnswering),
            NextSentence => Some(HeadKind::NextSentence),
            Sparse => Some(HeadKind::MaskedLm),
            _ => None,
        }
    }

    /// The command for models of this kind.
    pub fn command(&self) -> Option<&'static str> {
        match self.kind {
            CrossEncoder => Some("sconce rerank"),
            Classification | NextSentence => Some("sconce classify"),
            TokenClassification => Some("sconce tag"),
            QuestionAnswering => Some("sconce answer"),
            _ => None,
        }
    }

    fn new(kind: ModelKind, evidence: String) -> Self {
        Purpose { kind, evidence }
    }
}

/// Whether the model was saved with the heads of BERT's pretraining, by its class in `config.json`.
pub fn is_pretrained(config: &Config) -> bool {
    classes(config).any(|class| class.ends_with("ForPreTraining"))
}

/// Whether the class of the model in `config.json` predicts masked tokens and nothing else.
pub fn is_masked_lm(config: &Config) -> bool {
    classes(config).any(|class| class.ends_with("ForMaskedLM"))
}

/// Whether the class of the model in `config.json` has a masked-LM head.
pub fn has_masked_lm(config: &Config) -> bool {
    is_masked_lm(config) || is_pretrained(config)
}

/// Whether the class of the model in `config.json` labels tokens with a single label, which is a weight.
pub fn has_token_weights(config: &Config) -> bool {
    label_count(config) == Some(1) && classes(config).any(|class| class.ends_with("ForTokenClassification"))
}

/// The number of labels that `config.json` states: `num_labels` where it contradicts `id2label`.
fn label_count(config: &Config) -> Option<usize> {
    let named = config.get("id2label").and_then(Value::as_object).map(Map::len);
    config.get("num_labels").and_then(Value::as_u64).map(|n| n as usize).or(named)
}

/// The classes of the model in `config.json`.
fn classes(config: &Config) -> impl Iterator<Item = &str> {
    let classes = config.get("architectures").and_then(Value::as_array);
    classes.into_iter().flatten().filter_map(Value::as_str)
}

/// What a model with a head of this kind is called, after its article "a".
pub fn noun(head: HeadKind) -> &'static str {
    match head {
        HeadKind::SequenceClassification => "text classifier",
        HeadKind::TokenClassification => "token classifier",
        HeadKind::QuestionAnswering => "question-answering model",
        HeadKind::MaskedLm => "masked language model",
        HeadKind::LexicalWeights => "model with lexical weights",
        HeadKind::NextSentence => "next-sentence predictor",
        HeadKind::CausalLm => "causal language model",
    }
}

/// A well-known model with a head of this kind; `None` for kinds that no command needs.
pub fn example(head: HeadKind) -> Option<&'static str> {
    match head {
        HeadKind::SequenceClassification => {
            Some("distilbert/distilbert-base-uncased-finetuned-sst-2-english")
        }
        HeadKind::TokenClassification => Some("dslim/bert-base-NER"),
        HeadKind::QuestionAnswering => Some("deepset/roberta-base-squad2"),
        HeadKind::MaskedLm => Some("google-bert/bert-base-uncased"),
        HeadKind::LexicalWeights => Some("BAAI/bge-m3"),
        HeadKind::NextSentence | HeadKind::CausalLm => None,
    }
}

/// Continues "the model is": `a cross-encoder, which scores pairs of texts ("model_type" is …)`.
impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            CrossEncoder => "a cross-encoder, which scores pairs of texts",
            Classification => "a text classifier or cross-encoder, which gives scores",
            TokenClassification => "a token classifier, which labels the words of a text",
            QuestionAnswering => "a question-answering model, which finds answers in texts",
            MultipleChoice => "a multiple-choice model, which chooses between texts",
            NextSentence => "a next-sentence predictor, which scores pairs of texts",
            Generation => "a text generator",
            Sparse => "a sparse encoder like SPLADE, which gives weights of vocabulary words",
            SparseAutoEncoder => {
                "a sparse encoder like CSR, which gives the features of a sparse autoencoder"
            }
            MultiVector => "a multi-vector model like ColBERT, which gives a projected vector for each token",
            Static => "a model of static word embeddings, which has no encoder",
            Images => "a model of images and texts",
            SeveralEncoders => "a model with different encoders for queries and documents",
            ListwiseReranker => "a listwise reranker, whose score of a text depends on the other texts",
            Other => "no embedding model",
        };
        write!(f, "{kind} ({})", self.evidence)
    }
}
