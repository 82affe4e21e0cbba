//! Several outputs of one forward pass: a vector, lexical weights and the projected vectors of the tokens of
//! a text, as BGE-M3 gives them (Chen et al. 2024, "BGE M3-Embedding", §3.2).

use anyhow::{Result, bail};
use candle_core::Tensor;

use super::embedding::Embedder;
use super::lexical::LexicalHead;
use super::model_task::{HeadMemory, ModelTask};
use super::options::VectorOptions;
use super::sequences::all_tokens;
use super::sparse::{Weights, sparse_vector, sparse_vector_bytes};
use super::text_model::TextModel;
use crate::engine::{RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::Loaded;
use crate::named::Named;
use crate::nn::{
    OutputKind, PooledToken, Pooling, PostPooling, RaggedBatch, apply_to_tokens, is_normalized, keep_memory,
};
use crate::rows::{Content, ContentType, OutputDtype, OutputTypes, VectorType};
use crate::sys::console::Console;
use crate::text::{OnLong, TokenizedText};

/// A model with several outputs.
pub struct OutputsEncoder {
    /// Tokenizes texts and gives their vectors.
    embedder: Embedder,
    /// Whether the vectors are an output.
    has_dense: bool,
    lexical: Option<LexicalHead>,
    /// The projection of token vectors, and their dimensions.
    projection: Option<(Vec<PostPooling>, usize)>,
}

impl OutputsEncoder {
    /// Resolves the options against a model that was loaded for these outputs.
    ///
    /// # Errors
    /// If an option contradicts the model or the outputs: a usage error.
    pub fn new(
        mut loaded: Loaded,
        outputs: &[OutputKind],
        options: &VectorOptions,
        console: &Console,
    ) -> Result<Self> {
        check_options(options)?;
        let lexical = match outputs.contains(&OutputKind::Lexical) {
            true => Some(LexicalHead::new(loaded.head.take().map(|head| head.layers), &loaded.tokenizer)?),
            false => None,
        };
        let projection = loaded.steps.token_projection.take();
        let embedder = Embedder::new(loaded, options, console)?;
        Ok(OutputsEncoder { embedder, has_dense: outputs.contains(&OutputKind::Dense), lexical, projection })
    }

    /// What gives the vectors of texts.
    pub fn embedder(&self) -> &Embedder {
        &self.embedder
    }

    /// The types of the outputs.
    fn types(&self) -> OutputTypes {
        let Embedder { dtype, dimensions, .. } = self.embedder;
        let normalized = self.embedder.is_normalized();
        OutputTypes {
            dense: self.has_dense.then_some(VectorType {
                dtype,
                dimensions,
                per_token: false,
                normalized,
                nullable: false,
            }),
            sparse: self.lexical.as_ref().map(|_| self.embedder.spec().vocab_size),
            tokens: self.projection.as_ref().map(|(modules, dimensions)| VectorType {
                dtype,
                dimensions: *dimensions,
                per_token: true,
                normalized: is_normalized(modules),
                nullable: false,
            }),
        }
    }

    /// The outputs of each sequence of a batch, from hidden states of `(T, H)`.
    fn outputs(&self, batch: &RaggedBatch, hidden: &Tensor) -> Result<Vec<TextOutputs>> {
        let mut dense = self.dense(batch, hidden)?.into_iter();
        let lexical = self.lexical.as_ref().map(|lexical| lexical.weights(batch, hidden)).transpose()?;
        let mut lexical = lexical.into_iter().flatten();
        let projected = match &self.projection {
            Some((modules, _)) => {
                apply(modules, Pooling::MultiVector.forward(hidden, batch, 0, PooledToken::First)?)?
            }
            None => Vec::new(),
        };
        let outputs = batch.cu_seqlens().windows(2).map(|bounds| TextOutputs {
            dense: dense.next(),
            lexical: lexical.next(),
            // The first token, [CLS], has no vector.
            tokens: self.projection.as_ref().map(|(_, dimensions)| {
                projected[(bounds[0] + 1) * dimensions..bounds[1] * dimensions].to_vec()
            }),
        });
        Ok(outputs.collect())
    }

    /// The vector of each sequence, if it is an output.
    fn dense(&self, batch: &RaggedBatch, hidden: &Tensor) -> Result<Vec<Vec<f32>>> {
        let Embedder { pooling, token_modules, post_pooling, readings, .. } = &self.embedder;
        if !self.has_dense {
            return Ok(Vec::new());
        }
        let token = self.embedder.spec().pooler.token;
        let hidden = apply_to_tokens(token_modules, hidden)?;
        let vectors = pooling.forward(&hidden, batch, readings.prompt_tokens, token)?;
        let vectors = post_pooling.iter().try_fold(vectors, |x, module| module.forward(x))?;
        Ok(vectors.to_vec2()?)
    }
}

/// The rows of `x` after these modules, concatenated.
fn apply(modules: &[PostPooling], x: Tensor) -> Result<Vec<f32>> {
    let x = modules.iter().try_fold(x, |x, module| module.forward(x))?;
    Ok(x.flatten_all()?.to_vec1()?)
}

/// Refuses options that have no meaning for several outputs.
fn check_options(options: &VectorOptions) -> Result<()> {
    let VectorOptions { dtype, on_long, chunking, token_pooling, .. } = options;
    let given = [
        ("--on-long mean", *on_long == OnLong::Mean),
        ("--chunk", chunking.is_some()),
        ("--token-pooling", token_pooling.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
        bail!(UsageError(format!("{option} does not support --outputs; remove one of them")));
    }
    match dtype {
        OutputDtype::F32 | OutputDtype::F16 => Ok(()),
        OutputDtype::Int8 | OutputDtype::Binary | OutputDtype::Ubinary => bail!(UsageError(format!(
            "--output-dtype {} does not support --outputs; choose f32 or f16",
            dtype.name()
        ))),
    }
}

/// The outputs of a text.
pub struct TextOutputs {
    dense: Option<Vec<f32>>,
    lexical: Option<Weights>,
    /// The vectors of its tokens, concatenated.
    tokens: Option<Vec<f32>>,
}

impl Task for OutputsEncoder {
    type Output = TextOutputs;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        self.embedder.tokenize(input)
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<TextOutputs>> {
        let outputs = |batch: &RaggedBatch, hidden: &Tensor| self.outputs(batch, hidden);
        Ok(self.embedder.model.forward(texts, batch_tokens, worker, all_tokens, outputs)?.collect())
    }

    fn finish(&self, text: &TokenizedText, outputs: TextOutputs, options: &RowOptions) -> Vec<TaskRow> {
        let Embedder { dtype, dimensions, model, .. } = &self.embedder;
        let vector = outputs.dense.map(|vector| {
            Content::Vector(dtype.quantize(self.embedder.finished(vector, options), *dimensions))
        });
        let weights =
            outputs.lexical.map(|weights| Content::Sparse(sparse_vector(weights, &model.tokenizer).into()));
        let tokens = outputs.tokens.zip(self.projection.as_ref());
        let tokens =
            tokens.map(|(vectors, (_, dimensions))| Content::Vector(dtype.quantize(vectors, *dimensions)));
        let content = Content::Outputs([vector, weights, tokens].into_iter().flatten().collect());
        vec![TaskRow::of(text, content)]
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for OutputsEncoder {
    fn model(&self) -> &TextModel {
        self.embedder.model()
    }

    fn content(&self) -> ContentType {
        ContentType::Outputs(self.types())
    }

    fn head_memory(&self) -> HeadMemory {
        // The hidden states in f32, projected, normalized, and as a row.
        let projected = self.projection.as_ref().map_or(0, |(_, dimensions)| 3 * dimensions);
        HeadMemory { token_bytes: size_of::<f32>() * projected, ..HeadMemory::default() }
    }

    fn vector_bytes(&self) -> usize {
        let OutputTypes { dense, sparse, tokens } = self.types();
        let bytes = |vectors: Option<VectorType>| vectors.map_or(0, |it| size_of::<f32>() * it.dimensions);
        match tokens {
            // Per token; a token has one lexical weight at most.
            Some(_) => bytes(tokens) + sparse_vector_bytes(1) + bytes(dense),
            None => bytes(dense) + sparse.map_or(0, sparse_vector_bytes),
        }
    }
}
