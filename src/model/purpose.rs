//! What a checkpoint is for, where its files say that it is no embedding model.

use std::fmt;

use serde_json::{Map, Value};

use super::config::Config;

/// A checkpoint that gives something other than one embedding per text, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    task: Task,
    evidence: String,
}

/// What such a checkpoint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    CrossEncoder,
    Classification,
    TokenClassification,
    QuestionAnswering,
    MultipleChoice,
    NextSentence,
    Generation,
    Sparse,
    MultiVector,
    Static,
    Images,
    SeveralEncoders,
    Other,
}

use Task::{
    Classification, CrossEncoder, Generation, Images, MultiVector, MultipleChoice, NextSentence, Other,
    QuestionAnswering, SeveralEncoders, Sparse, Static, TokenClassification,
};

/// How the class of a model with a task head ends. Checkpoints of the pretraining heads (`ForMaskedLM`, `ForPreTraining`)
/// are encoders that anyone may pool.
const CLASSES: &[(&str, Task)] = &[
    ("ForSequenceClassification", Classification),
    ("ForTokenClassification", TokenClassification),
    ("ForQuestionAnswering", QuestionAnswering),
    ("ForMultipleChoice", MultipleChoice),
    ("ForNextSentencePrediction", NextSentence),
    ("ForCausalLM", Generation),
    ("LMHeadModel", Generation),
    ("ForConditionalGeneration", Generation),
    ("ForRetrieval", MultiVector),
    ("ColBERT", MultiVector),
    ("ForSparseEmbedding", Sparse),
];

/// Modules of `modules.json` that only such models have.
const MODULES: &[(&str, Task)] = &[
    ("SpladePooling", Sparse),
    ("MLMTransformer", Sparse),
    ("SparseAutoEncoder", Sparse),
    ("CSRSparsity", Sparse),
    ("SparseStaticEmbedding", Sparse),
    ("IDF", Sparse),
    ("LogitScore", CrossEncoder),
    ("CausalScoreHead", CrossEncoder),
    ("MultiVectorMask", MultiVector),
    ("TokenPooling", MultiVector),
    ("StaticEmbedding", Static),
    ("WordEmbeddings", Static),
    ("BoW", Static),
    ("CLIPModel", Images),
    ("Router", SeveralEncoders),
    ("Asym", SeveralEncoders),
];

/// Tensors of task heads, by the beginning of their names.
const HEADS: &[(&str, Task)] = &[
    ("classifier.", Classification),
    ("classification_head.", Classification),
    ("score.", Classification),
    ("qa_outputs.", QuestionAnswering),
];

impl Purpose {
    /// From `config_sentence_transformers.json`.
    pub fn of_settings(fields: &Map<String, Value>) -> Option<Self> {
        // PyLate writes these for ColBERT models.
        if let Some(key) =
            ["query_length", "skiplist_words"].into_iter().find(|key| fields.contains_key(*key))
        {
            return Some(Self::new(MultiVector, format!("config_sentence_transformers.json has {key:?}")));
        }
        let kind = fields.get("model_type")?.as_str()?;
        let task = match kind {
            "SentenceTransformer" => return None,
            "CrossEncoder" => CrossEncoder,
            "SparseEncoder" => Sparse,
            "MultiVectorEncoder" | "ColBERT" => MultiVector,
            _ => Other,
        };
        Some(Self::new(task, format!("\"model_type\" is {kind:?} in config_sentence_transformers.json")))
    }

    /// From an entry of `modules.json`, by the type as it is written there.
    pub fn of_module(kind: &str) -> Option<Self> {
        let name = kind.rsplit('.').next().unwrap_or(kind);
        let task = match MODULES.iter().find(|(known, _)| *known == name) {
            Some((_, task)) => *task,
            None if kind.starts_with("pylate.") => MultiVector,
            None => return None,
        };
        Some(Self::new(task, format!("modules.json has the module {kind}")))
    }

    /// From the configuration of the Transformer module.
    pub fn of_transformer(config: &Config) -> Option<Self> {
        let name = config.path().file_name().unwrap_or_default().to_string_lossy();
        let many = ["query_expansion", "query_length", "document_length"];
        if let Some(key) = many.into_iter().find(|key| config.has(key)) {
            return Some(Self::new(MultiVector, format!("{name} has {key:?}")));
        }
        let said = config.get("transformer_task")?.as_str()?;
        let task = match said {
            "feature-extraction" => return None,
            "sequence-classification" => CrossEncoder,
            "fill-mask" => Sparse,
            "text-generation" | "any-to-any" => Generation,
            "retrieval" => MultiVector,
            _ => Other,
        };
        Some(Self::new(task, format!("\"transformer_task\" is {said:?} in {name}")))
    }

    /// From `config.json`, for a model without a Pooling module: one that has it is an embedding model by its own files.
    pub fn of_config(config: &Config) -> Option<Self> {
        let classes = config.get("architectures").and_then(Value::as_array);
        let mut classes = classes.into_iter().flatten().filter_map(Value::as_str).peekable();
        let nameless = classes.peek().is_none();
        let labels = config.get("id2label").and_then(Value::as_object).map(Map::len);
        let labels = config.get("num_labels").and_then(Value::as_u64).map(|n| n as usize).or(labels);
        let scores = if labels == Some(1) { CrossEncoder } else { Classification };
        // As sentence-transformers notes the activation of a cross-encoder, now and in its first releases.
        let activation =
            config.get("sentence_transformers").is_some_and(|own| own.get("activation_fn").is_some());
        if activation || config.has("sbert_ce_default_activation_function") {
            let evidence = "config.json has the activation function of a cross-encoder".into();
            return Some(Self::new(CrossEncoder, evidence));
        }
        for class in classes {
            let Some((end, task)) = CLASSES.iter().find(|(end, _)| class.contains(end)) else { continue };
            let task = if *end == "ForSequenceClassification" { scores } else { *task };
            return Some(Self::new(task, format!("\"architectures\" has {class} in config.json")));
        }
        let labels = labels.filter(|_| nameless)?;
        Some(Self::new(
            scores,
            format!("config.json has {labels} {}", if labels == 1 { "label" } else { "labels" }),
        ))
    }

    /// From the tensors that the encoder has no use for, for a model without a Pooling module.
    pub fn of_tensors(unused: &[String]) -> Option<Self> {
        unused.iter().find_map(|name| {
            // bert.classifier.weight: what a wrapper puts before it does not matter.
            let head = |start: &str| name.starts_with(start) || name.contains(&format!(".{start}"));
            let (_, task) = HEADS.iter().find(|(start, _)| head(start))?;
            Some(Self::new(*task, format!("the checkpoint has the tensor {name}")))
        })
    }

    fn new(task: Task, evidence: String) -> Self {
        Purpose { task, evidence }
    }
}

/// `a cross-encoder, which scores pairs of texts ("model_type" is …)`.
impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.task {
            CrossEncoder => "a cross-encoder, which scores pairs of texts",
            Classification => "a text classifier or cross-encoder, which gives scores",
            TokenClassification => "a token classifier, which labels the words of a text",
            QuestionAnswering => "a question-answering model, which finds answers in texts",
            MultipleChoice => "a multiple-choice model, which chooses between texts",
            NextSentence => "a next-sentence predictor, which scores pairs of texts",
            Generation => "a text generator",
            Sparse => "a sparse encoder like SPLADE, which gives weights of vocabulary words",
            MultiVector => "a multi-vector model like ColBERT, which gives a projected vector for each token",
            Static => "a model of static word embeddings, which has no encoder",
            Images => "a model of images and texts",
            SeveralEncoders => "a model with different encoders for queries and documents",
            Other => "no embedding model",
        };
        write!(f, "{what} ({})", self.evidence)
    }
}
