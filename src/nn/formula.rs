//! Polynomials in the sizes of a config, such as `4·d² + 4·d`: printed as formulas, evaluated to counts.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul};

/// A size of a config, and the letter that formulas have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// The letter.
    pub letter: char,
    /// The size.
    pub size: usize,
    /// What it is the size of.
    pub meaning: &'static str,
}

/// A sum of products of a number and of symbols. Like terms are merged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Formula {
    /// The factor of each product, and its symbols in the order of their letters.
    terms: Vec<(usize, Vec<Symbol>)>,
}

impl Formula {
    /// A number.
    pub fn number(number: usize) -> Self {
        Formula { terms: vec![(number, Vec::new())] }.without_zeros()
    }

    /// The formula if `is_present`, else 0.
    pub fn when(self, is_present: bool) -> Self {
        if is_present { self } else { Formula::default() }
    }

    /// The formula, `factor` times.
    pub fn times(mut self, factor: usize) -> Self {
        self.terms.iter_mut().for_each(|(number, _)| *number = number.saturating_mul(factor));
        self.without_zeros()
    }

    /// Whether the formula is 0.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value; saturates.
    pub fn value(&self) -> usize {
        let product = |(number, symbols): &(usize, Vec<Symbol>)| {
            symbols.iter().fold(*number, |product, symbol| product.saturating_mul(symbol.size))
        };
        self.terms.iter().map(product).fold(0, usize::saturating_add)
    }

    /// The symbols in the formula, each once, in the order of their first use.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut found: Vec<Symbol> = Vec::new();
        for symbol in self.terms.iter().flat_map(|(_, symbols)| symbols) {
            if !found.contains(symbol) {
                found.push(*symbol);
            }
        }
        found
    }

    fn without_zeros(mut self) -> Self {
        self.terms.retain(|(number, symbols)| *number > 0 && symbols.iter().all(|symbol| symbol.size > 0));
        self
    }
}

impl From<Symbol> for Formula {
    fn from(symbol: Symbol) -> Self {
        Formula { terms: vec![(1, vec![symbol])] }.without_zeros()
    }
}

impl Add for Formula {
    type Output = Formula;

    fn add(mut self, other: Formula) -> Formula {
        for (number, symbols) in other.terms {
            match self.terms.iter_mut().find(|(_, known)| *known == symbols) {
                Some((sum, _)) => *sum = sum.saturating_add(number),
                None => self.terms.push((number, symbols)),
            }
        }
        self
    }
}

impl Mul for &Formula {
    type Output = Formula;

    fn mul(self, other: &Formula) -> Formula {
        let product = |(a, left): &(usize, Vec<Symbol>), (b, right): &(usize, Vec<Symbol>)| {
            let mut symbols = [&left[..], right].concat();
            symbols.sort();
            Formula { terms: vec![(a.saturating_mul(*b), symbols)] }
        };
        self.terms.iter().flat_map(|left| other.terms.iter().map(move |right| product(left, right))).sum()
    }
}

impl Sum for Formula {
    fn sum<I: Iterator<Item = Formula>>(formulas: I) -> Formula {
        formulas.fold(Formula::default(), Add::add)
    }
}

/// As in `2·d·f + f + d`; `0` without a term.
impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.terms.iter().map(|(number, symbols)| term(*number, symbols)).collect();
        f.write_str(if terms.is_empty() { "0".into() } else { terms.join(" + ") }.as_str())
    }
}

/// A product: the number, unless it is 1, and the letters with their powers.
fn term(number: usize, symbols: &[Symbol]) -> String {
    let mut factors = Vec::new();
    if number != 1 || symbols.is_empty() {
        factors.push(number.to_string());
    }
    for power in symbols.chunk_by(|a, b| a.letter == b.letter) {
        let letter = power[0].letter;
        factors.push(match power.len() {
            1 => letter.to_string(),
            2 => format!("{letter}²"),
            3 => format!("{letter}³"),
            n => format!("{letter}^{n}"),
        });
    }
    factors.join("·")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(letter: char, size: usize) -> Formula {
        Symbol { letter, size, meaning: "a size" }.into()
    }

    #[test]
    fn like_terms_are_merged() {
        let (d, f) = (symbol('d', 3), symbol('f', 5));
        let formula = &f * &d + &d * &f + &(&d * &d) * &d + f.clone() + d.clone().when(false) + d.clone();
        assert_eq!(formula.to_string(), "2·d·f + d³ + f + d");
        assert_eq!(formula.value(), 2 * 15 + 27 + 5 + 3);
        assert_eq!(formula.symbols().iter().map(|symbol| symbol.letter).collect::<String>(), "df");
        assert_eq!((&(d + f) * &Formula::number(2)).to_string(), "2·d + 2·f");
    }

    #[test]
    fn zeros_are_left_out_and_values_saturate() {
        let (zero, large) = (symbol('z', 0), symbol('l', usize::MAX / 2));
        assert!((&zero * &large + Formula::number(0)).is_zero() && large.clone().times(0).is_zero());
        assert_eq!(Formula::default().to_string(), "0");
        assert_eq!(large.times(3).value(), usize::MAX);
    }
}
