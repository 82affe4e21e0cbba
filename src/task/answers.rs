//! Answers from the logits of their starts and ends, with the arithmetic of `QuestionAnsweringPipeline` of
//! `transformers` 4, the last major release that has it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::text::{Characters, TokenIds, TokenSpan};

/// The best spans of a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidates {
    /// The characters of spans and their scores, best first.
    pub spans: Vec<(Range<usize>, f64)>,
    /// The score of the window having no answer.
    pub no_answer: f64,
}

/// Pairs of start and end above which only the best ones are kept: a long answer in a long text has too many.
const MAX_PAIRS: usize = 1 << 16;

/// The best `count` spans of at most `max_tokens` tokens of a window, from its logits of `(tokens, 2)`. A
/// score is the product of the probabilities of start and end, or if `raw` the sum of their logits.
pub(super) fn candidates(
    tokens: &TokenIds,
    logits: &[f32],
    count: usize,
    max_tokens: usize,
    raw: bool,
) -> Candidates {
    let spans = tokens.alignment.as_ref().map_or(&[][..], |alignment| &alignment.spans);
    // An answer is in the text, or it is the first special token: the model's prediction of no answer.
    let allowed: Vec<bool> = (spans.iter().zip(&tokens.ids))
        .map(|(span, id)| span.is_some() || spans[0].is_none() && *id == tokens.ids[0])
        .collect();
    let mut starts = probabilities(logits.iter().step_by(2), &allowed);
    let mut ends = probabilities(logits.iter().skip(1).step_by(2), &allowed);
    let raw_score =
        |first: usize, last: usize| f64::from(logits[2 * first]) + f64::from(logits[2 * last + 1]);
    let no_answer = match starts.first().zip(ends.first()) {
        Some(_) if raw => raw_score(0, 0),
        Some((start, end)) => start * end,
        None => 0.0,
    };
    for probabilities in [&mut starts, &mut ends] {
        probabilities.first_mut().into_iter().for_each(|first| *first = 0.0);
    }
    let mut pairs: Vec<(usize, usize, f64)> = Vec::new();
    // Stable: equal scores stay in the order of the text.
    let keep_best = |pairs: &mut Vec<(usize, usize, f64)>| {
        pairs.sort_by(|a, b| b.2.total_cmp(&a.2));
        pairs.truncate(count);
    };
    for (first, start) in starts.iter().enumerate().filter(|(_, start)| **start > 0.0) {
        let within = ends.iter().enumerate().skip(first).take(max_tokens);
        pairs.extend(within.map(|(last, end)| (first, last, start * end)).filter(|pair| pair.2 > 0.0));
        if pairs.len() > MAX_PAIRS.max(2 * count) {
            keep_best(&mut pairs);
        }
    }
    keep_best(&mut pairs);
    let best = pairs.into_iter().filter_map(|(first, last, score)| {
        let score = if raw { raw_score(first, last) } else { score };
        let (first, last) = (spans[first].as_ref()?, spans[last].as_ref()?);
        Some((whole_words(spans, first, last), score))
    });
    Candidates { spans: best.collect(), no_answer }
}

/// The softmax over the allowed tokens; 0 for others.
fn probabilities<'a>(logits: impl Iterator<Item = &'a f32>, allowed: &[bool]) -> Vec<f64> {
    let logits: Vec<f32> =
        logits.zip(allowed).map(|(x, allowed)| if *allowed { *x } else { f32::NEG_INFINITY }).collect();
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
    if max == f32::NEG_INFINITY {
        return vec![0.0; logits.len()];
    }
    let powers: Vec<f64> = logits.iter().map(|x| f64::from(x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The characters from the first word to the last one, as far as they are in the window; of the tokens if the
/// tokenizer knows no words.
fn whole_words(spans: &[Option<TokenSpan>], first: &TokenSpan, last: &TokenSpan) -> Range<usize> {
    let (Some(start), Some(end)) = (first.word, last.word) else {
        return first.characters.start..last.characters.end;
    };
    let of_word = |word: u32| spans.iter().flatten().filter(move |span| span.word == Some(word));
    let start = of_word(start).next().map_or(first.characters.start, |span| span.characters.start);
    let end = of_word(end).next_back().map_or(last.characters.end, |span| span.characters.end);
    start..end
}

/// The best `top_k` answers of a text, from the candidates of its windows, and the score of no answer: the
/// lowest of a window. Of candidates with the same text, in any letter case, probabilities are added; of
/// `raw` scores, the highest counts.
pub(super) fn merge(
    text: &Characters,
    windows: Vec<Candidates>,
    top_k: usize,
    raw: bool,
) -> (Vec<(Range<usize>, f64)>, f64) {
    let no_answer = windows.iter().map(|window| window.no_answer).fold(f64::INFINITY, f64::min);
    let mut answers: Vec<(Range<usize>, f64)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (characters, score) in windows.into_iter().flat_map(|window| window.spans) {
        match known.entry(text.slice(&characters).to_lowercase()) {
            Entry::Occupied(answer) => {
                let known = &mut answers[*answer.get()].1;
                *known = if raw { known.max(score) } else { *known + score };
            }
            Entry::Vacant(answer) => {
                answer.insert(answers.len());
                answers.push((characters, score));
            }
        }
    }
    // Stable: equal scores stay in the order in which they were found.
    answers.sort_by(|a, b| b.1.total_cmp(&a.1));
    answers.truncate(top_k);
    (answers, no_answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Alignment;

    fn tokens(spans: &[Option<(Range<usize>, u32)>]) -> TokenIds {
        let spans: Vec<Option<TokenSpan>> = (spans.iter().cloned())
            .map(|span| {
                let (characters, word) = span?;
                Some(TokenSpan { characters, word: Some(word), is_subword: false })
            })
            .collect();
        TokenIds {
            ids: (0..spans.len() as u32).collect(),
            token_type_ids: vec![0; spans.len()],
            truncated_tokens: 0,
            alignment: Some(Alignment { text: "a lamp Lamp".into(), spans }.into()),
            unattended_tokens: 0,
        }
    }

    #[test]
    fn an_answer_has_whole_words_within_the_text() {
        // [CLS] question a la ##mp lamp
        let tokens =
            tokens(&[None, None, Some((0..1, 0)), Some((2..4, 1)), Some((4..6, 1)), Some((7..11, 2))]);
        let logits = [0.0, 0.0, 90.0, 90.0, -9.0, -9.0, -9.0, -9.0, 5.0, 5.0, 1.0, 1.0];
        let found = candidates(&tokens, &logits, 2, 15, false);
        // The start inside of a word, and the question's own logits have no effect.
        assert_eq!(found.spans[0].0, 2..6);
        assert!(found.spans[0].1 > 0.9 && found.no_answer < 0.01);
        assert_eq!(candidates(&tokens, &logits, 30, 1, false).spans.len(), 4, "one token each");
        let raw = candidates(&tokens, &logits, 2, 15, true);
        assert_eq!(
            (raw.spans[0].1, raw.no_answer),
            (10.0, 0.0),
            "start and end of the best span, and of the first token"
        );
    }

    #[test]
    fn the_scores_of_the_same_text_are_added() {
        let text = Characters::new("a lamp Lamp");
        let window = |spans: &[(Range<usize>, f64)], no_answer| Candidates { spans: spans.into(), no_answer };
        let windows = vec![window(&[(0..1, 0.5), (2..6, 0.25)], 0.5), window(&[(7..11, 0.5)], 0.125)];
        assert_eq!(merge(&text, windows.clone(), 2, false), (vec![(2..6, 0.75), (0..1, 0.5)], 0.125));
        assert_eq!(merge(&text, windows.clone(), 1, false).0, [(2..6, 0.75)]);
        assert_eq!(merge(&text, windows, 2, true).0, [(0..1, 0.5), (2..6, 0.5)]);
    }
}
