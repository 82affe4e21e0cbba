//! Texts → vectors: dense, sparse, or one per token.

use super::engine::{self, Row, TextEngine, dense, inputs, sparse};
use super::error::{Error, ErrorKind};
use super::model::Model;
use crate::load::load_embedding_or_sparse;
use crate::model::modules::Role;
use crate::neighbours::SparseVector;
use crate::nn::Pooling;
use crate::rows::{Content, ContentType};
use crate::task::precision::warn_of_int8;
use crate::task::{ModelTask, PromptChoice, TextEncoder, VectorOptions};

/// A model that turns texts into vectors: one per text ([`embed`](Embedder::embed)), one per token
/// ([`embed_tokens`](Embedder::embed_tokens)) or a sparse one ([`embed_sparse`](Embedder::embed_sparse)), as
/// its files say.
///
/// It can be shared by threads. A vector does not depend on the texts that are embedded with it, and has the
/// same bits as that of `sconce embed`.
pub struct Embedder {
    engine: TextEngine,
    kind: Kind,
    warnings: Vec<String>,
}

/// What a text becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dense,
    PerToken,
    Sparse,
}

/// How texts become vectors: [`Embedder::builder`]. Whatever is not chosen is as the model's own files say.
#[derive(Debug, Clone)]
#[must_use]
pub struct EmbedderBuilder {
    model: Model,
    vectors: VectorOptions,
}

/// The vector of a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Embedding<V = Vec<f32>> {
    /// The vector.
    pub vector: V,
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// Tokens over the limit, which truncation removed: 0 for a text that is encoded as a whole.
    pub truncated_tokens: usize,
}

impl Embedder {
    /// Opens a model by its id on the Hugging Face Hub or by its directory, as `sconce embed --model` does.
    ///
    /// # Errors
    /// If there is no such model, it cannot be downloaded, is invalid or no embedding model, or a choice
    /// contradicts it.
    pub fn open(model: impl Into<Model>) -> Result<Self, Error> {
        Embedder::builder(model).open()
    }

    /// Chooses how texts become vectors.
    pub fn builder(model: impl Into<Model>) -> EmbedderBuilder {
        let model = model.into();
        let vectors = VectorOptions::new(model.on_long);
        EmbedderBuilder { model, vectors }
    }

    /// One vector per text, in the order of the texts. All CPU threads share the work, whether there is one
    /// text or many.
    ///
    /// # Errors
    /// For the first text that cannot be encoded, is too long while [`OnLong::Error`](crate::OnLong::Error)
    /// is chosen, or has a vector with NaN or infinite values; if the model gives other vectors; if the
    /// device fails.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.require(Kind::Dense)?;
        self.encode(texts, dense)
    }

    /// As [`embed`](Embedder::embed), for texts that are queries: with the prompt, the length and the weights
    /// that the model's files have for these, as `sconce search` embeds them.
    ///
    /// # Errors
    /// As [`embed`](Embedder::embed).
    pub fn embed_queries<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.require(Kind::Dense)?;
        self.encode_queries(texts, dense)
    }

    /// One vector per token of each text: those of a multi-vector model such as ColBERT, or hidden states
    /// with [`Pooling::None`].
    ///
    /// # Errors
    /// As [`embed`](Embedder::embed).
    pub fn embed_tokens<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Embedding<Vec<Vec<f32>>>>, Error> {
        self.require(Kind::PerToken)?;
        let dimensions = self.dimensions();
        self.encode(texts, |content| tokens_of(content, dimensions))
    }

    /// As [`embed_tokens`](Embedder::embed_tokens), for texts that are queries.
    ///
    /// # Errors
    /// As [`embed`](Embedder::embed).
    pub fn embed_query_tokens<T: AsRef<str>>(
        &self,
        texts: &[T],
    ) -> Result<Vec<Embedding<Vec<Vec<f32>>>>, Error> {
        self.require(Kind::PerToken)?;
        let dimensions = self.dimensions();
        self.encode_queries(texts, |content| tokens_of(content, dimensions))
    }

    /// One sparse vector per text: weights of the vocabulary, of a model such as SPLADE.
    ///
    /// # Errors
    /// As [`embed`](Embedder::embed).
    pub fn embed_sparse<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Embedding<SparseVector>>, Error> {
        self.require(Kind::Sparse)?;
        self.encode(texts, sparse)
    }

    /// As [`embed_sparse`](Embedder::embed_sparse), for texts that are queries.
    ///
    /// # Errors
    /// As [`embed`](Embedder::embed).
    pub fn embed_sparse_queries<T: AsRef<str>>(
        &self,
        texts: &[T],
    ) -> Result<Vec<Embedding<SparseVector>>, Error> {
        self.require(Kind::Sparse)?;
        self.encode_queries(texts, sparse)
    }

    /// The similarity of two dense vectors by the model's own function: cosine, dot product, or a distance as
    /// a negative number.
    ///
    /// # Panics
    /// If the vectors have different lengths.
    pub fn similarity(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "the vectors have the same dimensions");
        self.engine.own().task().similarity().of_vectors(a, b) as f32
    }

    /// Dimensions of a vector; of a sparse one, the size of the vocabulary.
    pub fn dimensions(&self) -> usize {
        self.engine.own().task().dimensions()
    }

    /// Maximum tokens of a text, including special tokens.
    pub fn max_length(&self) -> usize {
        self.engine.own().task().model().tokenizer.max_length()
    }

    /// The prompt before each text; empty for none.
    pub fn prompt(&self) -> &str {
        self.engine.own().task().prompt()
    }

    /// What the command line would warn of: sentences about what may make vectors differ from those that the
    /// model's authors intended.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The vectors of texts, which `vector` makes of the content of their rows.
    fn encode<T: AsRef<str>, V>(
        &self,
        texts: &[T],
        vector: impl Fn(Content) -> V,
    ) -> Result<Vec<Embedding<V>>, Error> {
        Ok(embeddings(self.engine.own().encode(&inputs(texts))?, vector))
    }

    /// As [`encode`](Embedder::encode), for texts that are queries.
    fn encode_queries<T: AsRef<str>, V>(
        &self,
        texts: &[T],
        vector: impl Fn(Content) -> V,
    ) -> Result<Vec<Embedding<V>>, Error> {
        Ok(embeddings(self.engine.encode_queries(texts)?, vector))
    }

    /// Checks that the model gives these vectors.
    fn require(&self, kind: Kind) -> Result<(), Error> {
        if self.kind == kind {
            return Ok(());
        }
        let (found, method) = match self.kind {
            Kind::Dense => ("one vector per text", "embed"),
            Kind::PerToken => ("one vector per token", "embed_tokens"),
            Kind::Sparse => ("sparse vectors", "embed_sparse"),
        };
        let message = format!("the model gives {found}; call {method}, or choose another model or pooling");
        Err(Error::new(ErrorKind::InvalidOption, &message))
    }
}

impl EmbedderBuilder {
    /// How the vectors of tokens become one vector. Default: as the model's files say.
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.model.options.pooling = Some(pooling);
        self
    }

    /// Whether vectors have unit length. Default: as the model's files say.
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.vectors.normalize = Some(normalize);
        self
    }

    /// Keeps the first dimensions of vectors, before they are normalized, of a model that was trained for it
    /// (Matryoshka).
    pub fn dimensions(mut self, dimensions: usize) -> Self {
        self.vectors.dimensions = Some(dimensions);
        self
    }

    /// What is put before each text. Default: the default prompt of the model's files, if they have one.
    pub fn prompt(mut self, text: impl Into<String>) -> Self {
        self.vectors.prompt = Some(PromptChoice::Text(text.into()));
        self
    }

    /// The name of a prompt in the model's files.
    pub fn prompt_name(mut self, name: impl Into<String>) -> Self {
        self.vectors.prompt = Some(PromptChoice::Name(name.into()));
        self
    }

    /// What the texts of [`embed`](Embedder::embed) are, as `encode_query` and `encode_document` of
    /// sentence-transformers: it chooses the prompt, and in a multi-vector model the length of texts and the
    /// expansion of queries.
    pub fn role(mut self, role: Role) -> Self {
        self.vectors.role = Some(role);
        self
    }

    /// Clusters the vectors of a text in a multi-vector model, about `factor` in a cluster, and keeps the
    /// mean of each. Default: as the model's files say.
    pub fn token_pooling(mut self, factor: f64) -> Self {
        self.vectors.token_pooling = Some(factor);
        self
    }

    /// Opens the model.
    ///
    /// # Errors
    /// As [`Embedder::open`].
    pub fn open(self) -> Result<Embedder, Error> {
        let EmbedderBuilder { mut model, vectors } = self;
        check(&vectors)?;
        model.options.source.dimensions = vectors.dimensions;
        model.options.only_queries = vectors.role == Some(Role::Query);
        let ((encoder, has_queries), context) =
            engine::open(&model, load_embedding_or_sparse, |loaded, console| {
                let has_queries = engine::has_queries(&loaded, vectors.role);
                warn_of_int8(&model.options, &loaded, console);
                Ok((TextEncoder::new(loaded, &vectors, console)?, has_queries))
            })?;
        let kind = match encoder.content() {
            ContentType::Sparse { .. } => Kind::Sparse,
            ContentType::Vectors(vectors) if vectors.per_token => Kind::PerToken,
            _ => Kind::Dense,
        };
        let engine = TextEngine::new(encoder, has_queries, &vectors, &context)?;
        Ok(Embedder { engine, kind, warnings: context.warnings })
    }
}

/// Refuses numbers that the command line refuses, too.
fn check(vectors: &VectorOptions) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::new(ErrorKind::InvalidOption, &message));
    match (vectors.dimensions, vectors.token_pooling) {
        (Some(0), _) => refuse("--dimensions is 0; pass a number from 1 on".into()),
        (_, Some(factor)) if !(1.0..=f64::from(u16::MAX)).contains(&factor) => {
            refuse(format!("--token-pooling is {factor}; pass a number from 1 on"))
        }
        _ => Ok(()),
    }
}

/// The embeddings of rows, which `vector` makes of their contents.
fn embeddings<V>(rows: Vec<Row>, vector: impl Fn(Content) -> V) -> Vec<Embedding<V>> {
    let embedding = |Row { content, tokens, truncated_tokens }| Embedding {
        vector: vector(content),
        tokens,
        truncated_tokens,
    };
    rows.into_iter().map(embedding).collect()
}

/// The vectors of the tokens of a text.
fn tokens_of(content: Content, dimensions: usize) -> Vec<Vec<f32>> {
    dense(content).chunks_exact(dimensions).map(<[f32]>::to_vec).collect()
}
