//! From texts to vectors: tokenize, encode, pool, finish, narrow.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Result, bail};

use crate::input::Record;
use crate::nn::{Encoder, EncoderSpec, Head, Pooling, RaggedBatch, is_out_of_memory};
use crate::output::{Dtype, Vector};
use crate::text::{self, Chunking, TokenIds, Tokenizer, runs};

/// A model with every choice made.
pub struct Embedder {
    /// Text → token ids.
    pub tokenizer: Tokenizer,
    /// Token ids → hidden states: the same stack, once for each device.
    pub encoders: Vec<Encoder>,
    /// Hidden states → vectors.
    pub pooling: Pooling,
    /// What is done to the vectors then, in this order.
    pub heads: Vec<Head>,
    /// Numbers in a vector after the last head.
    pub dimensions: usize,
    /// How vectors are stored.
    pub dtype: Dtype,
    /// What stands before each text.
    pub prompt: String,
    /// Tokens at the beginning of each text that are not pooled: those of the prompt, where the model says so.
    pub left_out: usize,
    /// What becomes of texts over the limit.
    pub on_long: OnLong,
    /// How texts are cut into chunks, a row each; none: a text is a row.
    pub chunking: Option<Chunking>,
    /// Tokens of all texts of a batch together.
    pub batch_tokens: usize,
}

/// What becomes of texts over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLong {
    /// They are cut.
    Truncate,
    /// They end the run.
    Error,
    /// They are left out.
    Skip,
    /// They are encoded in windows, and their vector is the mean over those.
    Mean,
}

impl OnLong {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            OnLong::Truncate => "truncate",
            OnLong::Error => "error",
            OnLong::Skip => "skip",
            OnLong::Mean => "mean",
        }
    }
}

/// The tokens of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// One sequence, or several of a long text.
    pub windows: Vec<Window>,
}

/// A sequence that is encoded at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Its tokens, special ones included.
    pub tokens: TokenIds,
    /// The chunks in it, each of which is a row; none where all windows of the text are one row.
    pub chunks: Vec<Chunk>,
}

/// A chunk of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its number in the text, from 0.
    pub number: u64,
    /// Its characters in the text.
    pub characters: Range<u64>,
    /// Its tokens in its window.
    pub tokens: Range<usize>,
}

impl Tokens {
    /// How many are encoded, special ones included.
    pub fn count(&self) -> usize {
        self.windows.iter().map(|window| window.tokens.ids.len()).sum()
    }

    /// How many the limit cut off.
    pub fn cut(&self) -> usize {
        self.windows.iter().map(|window| window.tokens.cut).sum()
    }

    /// The chunks of the text, each of which is a row; none where the text is one row.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.windows.iter().flat_map(|window| &window.chunks)
    }

    /// How many rows it becomes.
    pub fn rows(&self) -> usize {
        self.chunks().count().max(1)
    }

    /// The text in parts of at most `tokens` tokens each, or of one window that has more, if its windows are rows of their own.
    pub fn parts(self, tokens: usize) -> Vec<Tokens> {
        if self.chunks().next().is_none() {
            return vec![self];
        }
        let lengths: Vec<usize> = self.windows.iter().map(|window| window.tokens.ids.len()).collect();
        let mut windows = self.windows.into_iter();
        runs(&lengths, tokens)
            .into_iter()
            .map(|run| Tokens { windows: windows.by_ref().take(run.len()).collect() })
            .collect()
    }
}

/// What one text becomes.
#[derive(Debug, Clone)]
pub struct Embedded {
    /// Its vector, or those of its tokens.
    pub vector: Vector,
    /// Whether it is free of NaN and infinite numbers, and was before it was narrowed.
    pub finite: bool,
}

/// Why a text has no vector. The reasons continue a sentence that begins with the text's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// It has more tokens than the limit, and that is not wanted.
    Long {
        /// How many.
        tokens: usize,
        /// The reason.
        reason: String,
    },
    /// The tokenizer fails on it, or gives what the model has no embeddings for.
    Tokens(String),
    /// It has no tokens at all: it is empty, and the tokenizer adds no special ones.
    Empty,
}

impl Embedder {
    /// What the encoder computes.
    pub fn spec(&self) -> &EncoderSpec {
        self.encoders[0].spec()
    }

    /// The tokens of a record.
    ///
    /// # Errors
    /// If the tokenizer fails, yields a token that the model has no embedding for, or more than the limit where that is
    /// not wanted.
    pub fn tokenize(&self, record: &Record) -> Result<Tokens, Unfit> {
        let fails = |error| Unfit::Tokens(format!("cannot be tokenized ({error}); mend the text"));
        if let Some(chunking) = self.chunking {
            let tokens = self.chunks(&record.text, chunking).map_err(|error| match error.downcast() {
                Ok::<text::LongCharacter, _>(long) => Unfit::Tokens(long.to_string()),
                Err(error) => fails(error),
            })?;
            tokens.windows.iter().try_for_each(|window| self.check(&window.tokens))?;
            return Ok(tokens);
        }
        let text = match self.prompt.as_str() {
            "" => Cow::Borrowed(&record.text),
            prompt => Cow::Owned(format!("{prompt}{}", record.text)),
        };
        let tokens = self.tokenizer.encode(&text, record.pair.as_deref()).map_err(fails)?;
        let windows = match self.on_long {
            _ if tokens.cut == 0 => vec![tokens],
            OnLong::Truncate => vec![tokens],
            OnLong::Mean => self.tokenizer.encode_windows(&self.prompt, &record.text).map_err(fails)?,
            OnLong::Error | OnLong::Skip => {
                let (limit, tokens) = (self.tokenizer.max_length(), tokens.ids.len() + tokens.cut);
                let reason = format!("has {tokens} tokens, over the limit of {limit}");
                return Err(Unfit::Long { tokens, reason });
            }
        };
        windows.iter().try_for_each(|window| self.check(window))?;
        let window = |tokens| Window { tokens, chunks: Vec::new() };
        Ok(Tokens { windows: windows.into_iter().map(window).collect() })
    }

    /// The chunks of a text: each in a window of its own, or late ones together.
    fn chunks(&self, text: &str, chunking: Chunking) -> Result<Tokens> {
        let pieces = text::split(&self.tokenizer, &self.prompt, text, chunking)?;
        let (mut byte, mut character) = (0, 0);
        let mut chunks = pieces.iter().zip(0..).map(|(piece, number)| {
            let Range { start, end } = piece.range;
            // Chunks are in the order of their first characters, and may overlap.
            character += text[byte..start].chars().count() as u64;
            byte = start;
            let characters = character..character + text[start..end].chars().count() as u64;
            Chunk { number, characters, tokens: 0..piece.tokens.ids.len() }
        });
        if !chunking.late {
            let chunks: Vec<Chunk> = chunks.collect();
            let windows = pieces.into_iter().zip(chunks);
            let window =
                |(piece, chunk): (text::Piece, Chunk)| Window { tokens: piece.tokens, chunks: vec![chunk] };
            return Ok(Tokens { windows: windows.map(window).collect() });
        }
        let ranges: Vec<Range<usize>> = pieces.iter().map(|piece| piece.range.clone()).collect();
        let windows =
            text::late_windows(&self.tokenizer, &self.prompt, text, &ranges)?.into_iter().map(|window| {
                let spans = window.chunks.into_iter();
                let chunks =
                    spans.zip(&mut chunks).map(|(tokens, chunk)| Chunk { tokens, ..chunk }).collect();
                Window { tokens: window.tokens, chunks }
            });
        Ok(Tokens { windows: windows.collect() })
    }

    /// Refuses tokens that the model has no embeddings for.
    fn check(&self, tokens: &TokenIds) -> Result<(), Unfit> {
        let spec = self.spec();
        if let Some(id) = tokens.ids.iter().find(|id| **id as usize >= spec.vocab_size) {
            return Err(Unfit::Tokens(format!(
                "has token {:?} with id {id}, but the model has embeddings for {} only; the tokenizer is not the \
                 model's own",
                self.tokenizer.token(*id).unwrap_or_default(),
                spec.vocab_size
            )));
        }
        let segments = spec.token_types.unwrap_or(usize::MAX);
        if let Some(id) = tokens.type_ids.iter().find(|id| **id as usize >= segments) {
            return Err(Unfit::Tokens(format!(
                "has a token that the tokenizer puts into segment {id}, but the model has {segments}; the tokenizer \
                 is not the model's own"
            )));
        }
        if tokens.ids.is_empty() {
            return Err(Unfit::Empty);
        }
        Ok(())
    }

    /// The rows of a batch of texts, in their order: one a text or a chunk; without pooling it has a vector for each token. Windows of
    /// one text may be more than a batch holds; they are encoded one batch after another. `encoder` is one of the embedder's own.
    ///
    /// # Errors
    /// If the encoder fails.
    pub fn embed(&self, texts: &[Tokens], encoder: &Encoder) -> Result<Vec<Vec<Embedded>>> {
        let windows: Vec<&Window> = texts.iter().flat_map(|text| &text.windows).collect();
        let lengths: Vec<usize> = windows.iter().map(|window| window.tokens.ids.len()).collect();
        let pooled = runs(&lengths, self.batch_tokens)
            .into_iter()
            .map(|run| {
                in_halves(&windows[run], &|part| {
                    let tokens = part.iter().map(|window| &window.tokens);
                    let batch =
                        RaggedBatch::new(tokens.map(|tokens| (&tokens.ids[..], &tokens.type_ids[..])))?;
                    let hidden = encoder.forward(&batch)?;
                    match self.chunking {
                        Some(Chunking { late: true, .. }) => {
                            self.pooling.forward_spans(&hidden, &self.spans(part, batch.offsets()))
                        }
                        _ => self.pooling.forward(&hidden, &batch, self.left_out),
                    }
                })
            })
            .collect::<Result<Vec<_>>>()?
            .concat();
        let counts: Vec<usize> = match self.chunking {
            // Nothing is joined.
            Some(_) => texts.iter().flat_map(Tokens::chunks).map(|_| 1).collect(),
            None => texts.iter().map(|text| text.windows.len()).collect(),
        };
        // What is not pooled has no weight.
        let weights: Vec<usize> =
            lengths.iter().map(|length| length.saturating_sub(self.left_out).max(1)).collect();
        let vectors = self.pooling.join(&pooled, &counts, &weights)?;
        let vectors = self.heads.iter().try_fold(vectors, |vectors, head| head.forward(vectors))?;
        let mut vectors = vectors.to_vec2::<f32>()?.into_iter();
        let store = |values: Vec<f32>| {
            let finite = values.iter().all(|x| x.is_finite());
            let vector = self.dtype.store(values, self.dimensions);
            // A number may be too large for a narrower type.
            Embedded { finite: finite && vector.is_finite(), vector }
        };
        let rows = texts.iter().map(|text| match self.pooling {
            Pooling::Text(_) => vectors.by_ref().take(text.rows()).map(store).collect(),
            Pooling::None => vec![store(vectors.by_ref().take(text.count()).flatten().collect())],
        });
        Ok(rows.collect())
    }

    /// The tokens of all chunks in a batch, where each window begins at its offset. Tokens that are not pooled are left out, but for
    /// the last of a chunk that has no others.
    fn spans(&self, windows: &[&Window], offsets: &[usize]) -> Vec<Range<usize>> {
        let windows = windows.iter().zip(offsets);
        let spans = windows.flat_map(|(window, offset)| {
            window.chunks.iter().map(move |Chunk { tokens: Range { start, end }, .. }| {
                let start = (*start).max(self.left_out).min(end - 1);
                offset + start..offset + end
            })
        });
        spans.collect()
    }
}

/// What `encode` makes of all windows, or where a GPU's memory does not suffice for them, of one half after the other.
fn in_halves<T>(windows: &[&Window], encode: &impl Fn(&[&Window]) -> Result<T>) -> Result<Vec<T>> {
    let error = match encode(windows) {
        Ok(encoded) => return Ok(vec![encoded]),
        Err(error) if is_out_of_memory(&error) => error,
        Err(error) => return Err(error),
    };
    match windows {
        [] => Err(error),
        [one] => bail!(
            "the GPU has not enough free memory for one text of {} tokens; pass a smaller --max-length, or --device cpu",
            one.tokens.ids.len()
        ),
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            let mut encoded = in_halves(first, encode)?;
            encoded.extend(in_halves(second, encode)?);
            Ok(encoded)
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Result, anyhow, bail};

    use super::{Window, in_halves};
    use crate::text::TokenIds;

    fn window(tokens: usize) -> Window {
        Window {
            tokens: TokenIds { ids: vec![1; tokens], type_ids: vec![0; tokens], cut: 0 },
            chunks: vec![],
        }
    }

    /// Encodes up to so many tokens, as a GPU with little memory does it.
    fn encode(most: usize) -> impl Fn(&[&Window]) -> Result<Vec<usize>> {
        move |windows| {
            let lengths: Vec<usize> = windows.iter().map(|window| window.tokens.ids.len()).collect();
            match lengths.iter().sum::<usize>() > most {
                true => {
                    Err(anyhow!("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")").context("alloc"))
                }
                false => Ok(lengths),
            }
        }
    }

    #[test]
    fn a_batch_that_does_not_fit_is_halved_until_it_does() {
        let windows: Vec<Window> = [5, 3, 8, 2, 2].map(window).into();
        let windows: Vec<&Window> = windows.iter().collect();
        assert_eq!(in_halves(&windows, &encode(20)).unwrap(), [[5, 3, 8, 2, 2]]);
        assert_eq!(in_halves(&windows, &encode(10)).unwrap(), [vec![5, 3], vec![8], vec![2, 2]]);
    }

    #[test]
    fn a_text_that_does_not_fit_alone_is_named() {
        let windows = [window(5), window(30)];
        let error = in_halves(&windows.each_ref(), &encode(10)).unwrap_err().to_string();
        assert!(error.contains("one text of 30 tokens") && error.contains("--max-length"), "{error}");
    }

    #[test]
    fn another_error_is_not_tried_again() {
        let fails = |windows: &[&Window]| -> Result<()> {
            assert_eq!(windows.len(), 2, "not halved");
            bail!("another error")
        };
        let error = in_halves(&[&window(1), &window(1)], &fails).unwrap_err();
        assert_eq!(error.to_string(), "another error");
    }
}
