//! What a model costs: parameters, multiply-adds and memory.

use anyhow::Result;

use crate::load::Examined;
use crate::nn::cost::{
    ComponentParameters, Growth, Work, attention_overtakes, encoder_parameters, encoder_work,
    module_parameters, module_work, pooler_parameters, pooler_work, windowed_pairs,
};
use crate::nn::{Pooling, Symbol};
use crate::task::{MemoryUse, memory_use};

/// The cost of a model, and of one text of `tokens` tokens.
pub(super) struct Cost {
    /// Tokens of the text.
    pub tokens: usize,
    /// The parameters of each component.
    pub components: Vec<ComponentParameters>,
    /// The multiply-adds of each part.
    pub work: Vec<Work>,
    /// Multiply-adds of attention for the pairs of tokens within sliding windows; `None` if no layer has a
    /// window.
    pub windowed_attention: Option<usize>,
    /// The number of tokens from which on attention takes more multiply-adds than the linear part.
    pub attention_overtakes: Option<usize>,
    /// Memory by compute type, with batches of at least `tokens` tokens.
    pub memory: Vec<MemoryUse>,
}

impl Cost {
    /// The cost of a model for a text of `tokens` tokens.
    pub(super) fn of(examined: &Examined, tokens: usize) -> Result<Self> {
        let Examined { spec, pooling, .. } = examined;
        let modules = examined.applied_modules();
        let mut components = encoder_parameters(spec);
        let mut work = encoder_work(spec, tokens);
        if pooling.needs_pooler() {
            components.push(pooler_parameters(spec));
            work.push(pooler_work(spec));
        }
        components.extend(modules.iter().map(|module| module_parameters(&module.spec)));
        let of_tokens = (*pooling == Pooling::MultiVector).then_some(tokens);
        work.extend(modules.iter().map(|module| module_work(&module.spec, of_tokens)));
        components.retain(|component| component.total() > 0);
        work.retain(|part| part.total() > 0);
        let quadratic = sum(&work, Growth::Quadratic);
        let (within, all) = windowed_pairs(spec, tokens);
        let share = within as f64 / all.max(1) as f64;
        let windowed_attention =
            spec.mask.sliding_window.as_ref().map(|_| (quadratic as f64 * share).round() as usize);
        let backend = examined.backends.first().cloned().unwrap_or_default();
        Ok(Cost {
            tokens,
            components,
            windowed_attention,
            attention_overtakes: attention_overtakes(spec),
            memory: memory_use(&backend, spec, pooling, modules, examined.count.significand_bits, tokens)?,
            work,
        })
    }

    /// The multiply-adds of the parts that grow like this.
    pub(super) fn multiply_adds(&self, growth: Growth) -> usize {
        sum(&self.work, growth)
    }

    /// The multiply-adds of one text.
    pub(super) fn total(&self) -> usize {
        [Growth::PerText, Growth::Linear, Growth::Quadratic]
            .into_iter()
            .fold(0, |total, growth| self.multiply_adds(growth).saturating_add(total))
    }

    /// The letters of all formulas of the encoder, each once. Those of post-pooling modules differ from
    /// module to module.
    pub(super) fn symbols(&self) -> Vec<Symbol> {
        let formulas = self.components.iter().map(|component| &component.each);
        let mut found: Vec<Symbol> = Vec::new();
        for symbol in formulas.chain(self.work.iter().map(|part| &part.each)).flat_map(|each| each.symbols())
        {
            if !found.iter().any(|known| known.letter == symbol.letter) {
                found.push(symbol);
            }
        }
        found.retain(|symbol| !MODULE_LETTERS.contains(&symbol.letter));
        found
    }
}

/// The letters for inputs and outputs of a post-pooling module.
const MODULE_LETTERS: [char; 2] = ['i', 'o'];

fn sum(work: &[Work], growth: Growth) -> usize {
    work.iter().filter(|part| part.growth == growth).map(Work::total).fold(0, usize::saturating_add)
}
