//! Entities from the logits of tokens, with the arithmetic of `TokenClassificationPipeline` of
//! `transformers`.

use std::ops::Range;

use crate::model::classification::ScoreFunction;
use crate::named::names;
use crate::text::TokenSpan;

/// How tokens are joined to entities, by the names of `transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregation {
    /// They are not: each token is an entity.
    None,
    /// Consecutive tokens with the same label, after the prefixes `B-` and `I-`, are an entity.
    #[default]
    Simple,
    /// Words have the label of their first token, and are joined.
    First,
    /// Words have the label with the highest mean score of their tokens, and are joined.
    Average,
    /// Words have the label of their token with the highest score, and are joined.
    Max,
}

names!(Aggregation {
    None => "none",
    Simple => "simple",
    First => "first",
    Average => "average",
    Max => "max",
});

/// The label of tokens that belong to no entity.
const OUTSIDE: &str = "O";

/// A labelled part of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Labelled {
    /// The label.
    pub label: String,
    /// Its probability, or its logit.
    pub score: f32,
    /// Its characters in the text.
    pub characters: Range<usize>,
}

/// The probabilities of a token's labels, or their logits.
struct Token<'a> {
    span: &'a TokenSpan,
    scores: Vec<f32>,
}

/// The entities of a sequence from its logits, `(tokens, labels)`, by the scores that `function` makes of
/// those of a token.
pub(super) fn entities(
    spans: &[Option<TokenSpan>],
    logits: &[f32],
    labels: &[String],
    function: ScoreFunction,
    aggregation: Aggregation,
) -> Vec<Labelled> {
    let tokens = spans.iter().zip(logits.chunks_exact(labels.len()));
    let tokens = tokens
        .filter_map(|(span, logits)| Some(Token { span: span.as_ref()?, scores: function.apply(logits) }));
    let tokens: Vec<Token> = tokens.collect();
    let labelled = match aggregation {
        Aggregation::None => tokens.chunks(1).map(|token| first(token, labels)).collect(),
        Aggregation::Simple => join(tokens.chunks(1).map(|token| first(token, labels)).collect()),
        Aggregation::First => join(words(&tokens).map(|word| first(word, labels)).collect()),
        Aggregation::Average => join(words(&tokens).map(|word| average(word, labels)).collect()),
        Aggregation::Max => join(words(&tokens).map(|word| highest(word, labels)).collect()),
    };
    labelled.into_iter().filter(|entity| entity.label != OUTSIDE).collect()
}

/// The tokens of each word.
fn words<'a>(tokens: &'a [Token<'a>]) -> impl Iterator<Item = &'a [Token<'a>]> {
    tokens.chunk_by(|_, next| next.span.is_subword)
}

/// A word with the best label of these scores.
fn labelled(word: &[Token], scores: &[f32], labels: &[String]) -> Labelled {
    let best = best(scores);
    let (first, last) = (&word[0].span.characters, &word[word.len() - 1].span.characters);
    Labelled { label: labels[best].clone(), score: scores[best], characters: first.start..last.end }
}

fn first(word: &[Token], labels: &[String]) -> Labelled {
    labelled(word, &word[0].scores, labels)
}

fn average(word: &[Token], labels: &[String]) -> Labelled {
    let mean = |label: usize| {
        let sum: f64 = word.iter().map(|token| f64::from(token.scores[label])).sum();
        (sum / word.len() as f64) as f32
    };
    labelled(word, &(0..labels.len()).map(mean).collect::<Vec<f32>>(), labels)
}

fn highest(word: &[Token], labels: &[String]) -> Labelled {
    let scores: Vec<f32> = word.iter().map(|token| token.scores[best(&token.scores)]).collect();
    labelled(word, &word[best(&scores)].scores, labels)
}

/// The index of the first of the highest scores.
fn best(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// Whether a label has the prefix of the beginning of an entity, and the label without `B-` and `I-`.
fn tag(label: &str) -> (bool, &str) {
    match label.strip_prefix("B-") {
        Some(tag) => (true, tag),
        None => (false, label.strip_prefix("I-").unwrap_or(label)),
    }
}

/// Joins consecutive parts with the same label to one entity. Its score is their mean.
fn join(parts: Vec<Labelled>) -> Vec<Labelled> {
    let continues = |last: &Labelled, next: &Labelled| {
        let (begins, next) = tag(&next.label);
        !begins && next == tag(&last.label).1
    };
    let entity = |parts: &[Labelled]| {
        let label = &parts[0].label;
        let sum: f64 = parts.iter().map(|part| f64::from(part.score)).sum();
        Labelled {
            // Whatever stands before the first hyphen is a prefix here.
            label: label.split_once('-').map_or(&**label, |(_, label)| label).to_owned(),
            score: (sum / parts.len() as f64) as f32,
            characters: parts[0].characters.start..parts[parts.len() - 1].characters.end,
        }
    };
    parts.chunk_by(continues).map(entity).collect()
}

/// The entities of a text from those of its overlapping windows: of those that overlap, the longest, then the
/// one with the highest score.
pub(super) fn merge(mut windows: Vec<Vec<Labelled>>) -> Vec<Labelled> {
    if windows.len() == 1 {
        return windows.remove(0);
    }
    let mut all: Vec<Labelled> = windows.into_iter().flatten().collect();
    all.sort_by_key(|entity| entity.characters.start);
    let mut merged: Vec<Labelled> = Vec::new();
    for entity in all {
        match merged.last_mut() {
            Some(last) if last.characters.contains(&entity.characters.start) => {
                let rank = |entity: &Labelled| (entity.characters.len(), entity.score);
                if rank(&entity) > rank(last) {
                    *last = entity;
                }
            }
            _ => merged.push(entity),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(label: &str, score: f32, characters: Range<usize>) -> Labelled {
        Labelled { label: label.into(), score, characters }
    }

    #[test]
    fn parts_are_joined_by_their_prefixes() {
        let parts = vec![
            part("B-PER", 0.5, 0..2),
            part("I-PER", 1.0, 2..4),
            part("B-PER", 0.25, 5..6),
            part("PER", 0.75, 7..8),
            part("O", 0.5, 8..9),
            part("I-A-B", 0.5, 9..10),
            part("X-Y", 0.5, 10..11),
        ];
        let expected = [
            part("PER", 0.75, 0..4),
            part("PER", 0.5, 5..8),
            part("O", 0.5, 8..9),
            part("A-B", 0.5, 9..10),
            part("Y", 0.5, 10..11),
        ];
        assert_eq!(join(parts), expected);
    }

    #[test]
    fn of_overlapping_entities_the_longest_is_kept() {
        let windows = vec![
            vec![part("PER", 0.5, 0..4), part("LOC", 0.5, 10..14)],
            vec![part("PER", 0.9, 2..4), part("ORG", 0.6, 10..14), part("LOC", 0.1, 14..15)],
        ];
        let expected = [part("PER", 0.5, 0..4), part("ORG", 0.6, 10..14), part("LOC", 0.1, 14..15)];
        assert_eq!(merge(windows), expected);
        // One window is left as it is.
        let one = vec![part("PER", 0.5, 0..4), part("PER", 0.5, 2..4)];
        assert_eq!(merge(vec![one.clone()]), one);
    }
}
