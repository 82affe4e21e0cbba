//! What tasks share between a text and hidden states: tokenizing, and forward passes of the sequences of a
//! batch.

use anyhow::{Result, bail};
use candle_core::Tensor;

use crate::engine::TokenizeError;
use crate::nn::{Encoder, RaggedBatch, TokenHead, is_out_of_memory};
use crate::text::OnLong;
use crate::text::{Sequence, TokenIds, TokenizedText, Tokenizer, consecutive_runs};

/// Tokenizes a text or a pair, which `on_long` may refuse if it is over the limit; [`OnLong::Mean`] truncates
/// it.
pub(super) fn tokenize(
    tokenizer: &Tokenizer,
    on_long: OnLong,
    text: &str,
    pair: Option<&str>,
) -> Result<TokenIds, TokenizeError> {
    let tokens = tokenizer.encode(text, pair).map_err(tokenizer_failed)?;
    check_length(&tokens, tokenizer, on_long)?;
    Ok(tokens)
}

/// Refuses truncated tokens if `on_long` does.
pub(super) fn check_length(
    tokens: &TokenIds,
    tokenizer: &Tokenizer,
    on_long: OnLong,
) -> Result<(), TokenizeError> {
    if tokens.truncated_tokens > 0 && matches!(on_long, OnLong::Error | OnLong::Skip) {
        let (limit, tokens) = (tokenizer.max_length(), tokens.ids.len() + tokens.truncated_tokens);
        let reason = format!("has {tokens} tokens, over the limit of {limit}");
        return Err(TokenizeError::TooLong { tokens, reason });
    }
    Ok(())
}

pub(super) fn tokenizer_failed(error: anyhow::Error) -> TokenizeError {
    TokenizeError::Failed(format!("cannot be tokenized ({error}); correct the text"))
}

/// The `select` of [`forward`] for tasks that need the hidden states of all tokens.
pub(super) fn all_tokens(_: &RaggedBatch) -> Option<Vec<u32>> {
    None
}

/// Encodes sequences in batches of at most `batch_tokens` tokens, and calls `reduce` with the sequences of
/// each batch and their hidden states of `(T, H)`. If `select` returns tokens of a batch, `reduce` gets only
/// these, each as a sequence of its own, `(R, H)`. Returns its results in order.
pub(super) fn forward<T>(
    encoder: &Encoder,
    sequences: &[&Sequence],
    batch_tokens: usize,
    select: impl Fn(&RaggedBatch) -> Option<Vec<u32>>,
    reduce: impl Fn(&[&Sequence], &RaggedBatch, &Tensor) -> Result<T>,
) -> Result<Vec<T>> {
    let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.tokens.ids.len()).collect();
    let reduced = consecutive_runs(&lengths, batch_tokens).into_iter().map(|run| {
        halve_on_out_of_memory(&sequences[run], &|part| {
            let tokens = part.iter().map(|sequence| &sequence.tokens);
            let mut batch =
                RaggedBatch::new(tokens.clone().map(|tokens| (&tokens.ids[..], &tokens.token_type_ids[..])))?;
            if tokens.clone().any(|tokens| tokens.unattended_tokens > 0) {
                let key_lengths = tokens.map(|tokens| tokens.ids.len() - tokens.unattended_tokens);
                batch = batch.with_key_lengths(key_lengths.collect())?;
            }
            match select(&batch) {
                Some(tokens) => {
                    let hidden = encoder.forward_selected(&batch, &tokens)?;
                    reduce(part, &batch.select(&tokens), &hidden)
                }
                None => reduce(part, &batch, &encoder.forward(&batch)?),
            }
        })
    });
    Ok(reduced.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The logits of each sequence of each text, `(tokens, outputs)`.
pub(super) type TokenLogits = Vec<Vec<f32>>;

/// Encodes the sequences of texts as [`forward`], and applies the head to each token.
pub(super) fn token_logits(
    encoder: &Encoder,
    head: &TokenHead,
    texts: &[TokenizedText],
    batch_tokens: usize,
) -> Result<Vec<TokenLogits>> {
    let sequences: Vec<&Sequence> = texts.iter().flat_map(|text| &text.sequences).collect();
    let logits = forward(encoder, &sequences, batch_tokens, all_tokens, |part, _, hidden| {
        let logits = head.forward(hidden)?;
        let (_, outputs) = logits.dims2()?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut rest = &logits[..];
        let of_sequence = |sequence: &&Sequence| {
            let (first, others) = rest.split_at(sequence.tokens.ids.len() * outputs);
            rest = others;
            first.to_vec()
        };
        Ok(part.iter().map(of_sequence).collect::<TokenLogits>())
    })?;
    let mut logits = logits.into_iter().flatten();
    Ok(texts.iter().map(|text| logits.by_ref().take(text.sequences.len()).collect()).collect())
}

/// Whether all logits of a text are finite.
pub(super) fn all_finite(logits: &TokenLogits) -> bool {
    logits.iter().flatten().all(|logit| logit.is_finite())
}

/// Encodes sequences together. If the GPU has too little memory, encodes each half on its own, and so on.
fn halve_on_out_of_memory<T>(
    sequences: &[&Sequence],
    encode: &impl Fn(&[&Sequence]) -> Result<T>,
) -> Result<Vec<T>> {
    let error = match encode(sequences) {
        Ok(encoded) => return Ok(vec![encoded]),
        Err(error) if is_out_of_memory(error.as_ref()) => error,
        Err(error) => return Err(error),
    };
    match sequences {
        [] => Err(error),
        [one] => bail!(
            "the GPU does not have enough free memory for one text of {} tokens; pass a smaller --max-length, or --device cpu",
            one.tokens.ids.len()
        ),
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            let mut encoded = halve_on_out_of_memory(first, encode)?;
            encoded.extend(halve_on_out_of_memory(second, encode)?);
            Ok(encoded)
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Result, bail};

    use super::{Sequence, halve_on_out_of_memory};
    use crate::text::TokenIds;

    fn sequence(tokens: usize) -> Sequence {
        Sequence {
            tokens: TokenIds {
                ids: vec![1; tokens],
                token_type_ids: vec![0; tokens],
                truncated_tokens: 0,
                alignment: None,
                unattended_tokens: 0,
            },
            chunks: vec![],
        }
    }

    /// An encoder on a GPU with memory for `max_tokens` tokens.
    fn encode(max_tokens: usize) -> impl Fn(&[&Sequence]) -> Result<Vec<usize>> {
        move |sequences| {
            let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.tokens.ids.len()).collect();
            if lengths.iter().sum::<usize>() > max_tokens {
                return Err(anyhow::Error::new(crate::nn::OutOfMemory).context("alloc"));
            }
            Ok(lengths)
        }
    }

    #[test]
    fn a_batch_that_does_not_fit_is_halved_until_it_does() {
        let sequences: Vec<Sequence> = [5, 3, 8, 2, 2].map(sequence).into();
        let sequences: Vec<&Sequence> = sequences.iter().collect();
        assert_eq!(halve_on_out_of_memory(&sequences, &encode(20)).unwrap(), [[5, 3, 8, 2, 2]]);
        assert_eq!(
            halve_on_out_of_memory(&sequences, &encode(10)).unwrap(),
            [vec![5, 3], vec![8], vec![2, 2]]
        );
    }

    #[test]
    fn a_text_that_does_not_fit_alone_is_named() {
        let sequences = [sequence(5), sequence(30)];
        let error = halve_on_out_of_memory(&sequences.each_ref(), &encode(10)).unwrap_err().to_string();
        assert!(error.contains("one text of 30 tokens") && error.contains("--max-length"), "{error}");
    }

    #[test]
    fn another_error_is_returned_at_once() {
        let fails = |sequences: &[&Sequence]| -> Result<()> {
            assert_eq!(sequences.len(), 2, "not halved");
            bail!("another error")
        };
        let error = halve_on_out_of_memory(&[&sequence(1), &sequence(1)], &fails).unwrap_err();
        assert_eq!(error.to_string(), "another error");
    }
}
