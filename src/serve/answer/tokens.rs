//! Answers of the tokenizer alone: `/tokenize` and `/decode`.

use std::ops::Range;

use super::Response;
use crate::engine::TOKENIZER_BYTES_PER_TEXT_BYTE;
use crate::serve::admission::Admitted;
use crate::serve::models::Capability;
use crate::serve::schema::{Decode, Fault, FaultKind, Tokenize, tei};
use crate::serve::service::Service;
use crate::task::PromptChoice;
use crate::text::{TokenIds, Tokenizer};

impl Service {
    pub(super) async fn answer_tokenize(
        &self,
        admitted: &mut Admitted,
        call: Tokenize,
    ) -> Result<Response, Fault> {
        let Tokenize { inputs, model, prompt_name, add_special_tokens, ignored } = call;
        // Whole texts are tokenized at once, and each token is an object of the answer.
        let bytes: usize = inputs.values.iter().map(String::len).sum();
        admitted.grow((bytes * TOKENIZER_BYTES_PER_TEXT_BYTE) as u64)?;
        let model = self.models.select(model.as_deref(), Capability::Any)?;
        let prompt = model.prompt(prompt_name.map(PromptChoice::Name).as_ref())?;
        let kind = model.kind.clone();
        let body = self.run(move || {
            let task = kind.task();
            let tokenizer = task.tokenizer();
            let mut texts = Vec::with_capacity(inputs.values.len());
            for (index, text) in inputs.values.iter().enumerate() {
                let text = format!("{}{text}", prompt.as_deref().unwrap_or_default());
                let tokens = tokenizer.encode_with_offsets(&text).map_err(|error| {
                    let name = inputs.name(index);
                    Fault::of(FaultKind::Text, name.clone(), format!("{name} cannot be tokenized ({error})"))
                })?;
                texts.push(tokens_of(tokenizer, &text, &tokens, add_special_tokens));
            }
            Ok(tei::tokenize_answer(&texts))
        });
        Ok(Response { ignored, ..Response::plain(body.await?) })
    }

    pub(super) async fn answer_decode(&self, call: Decode) -> Result<Response, Fault> {
        let Decode { ids, model, skip_special_tokens, ignored } = call;
        let kind = self.models.select(model.as_deref(), Capability::Any)?.kind.clone();
        let body = self.run(move || {
            let task = kind.task();
            let tokenizer = task.tokenizer();
            let mut texts = Vec::with_capacity(ids.values.len());
            for (index, list) in ids.values.iter().enumerate() {
                if let Some(place) = list.iter().position(|id| tokenizer.token(*id).is_none()) {
                    let (name, size) = (format!("{}[{place}]", ids.name(index)), tokenizer.vocab_size());
                    let message = format!(
                        "{name} is {}, which is not in the vocabulary of {size} tokens; send ids that /tokenize gives",
                        list[place]
                    );
                    return Err(Fault::of(FaultKind::Invalid, name, message));
                }
                texts.push(tokenizer.decode_all(list, skip_special_tokens));
            }
            Ok(tei::decode_answer(&texts))
        });
        Ok(Response { ignored, ..Response::plain(body.await?) })
    }
}

/// The tokens of a text for `/tokenize`.
fn tokens_of(
    tokenizer: &Tokenizer,
    text: &str,
    (tokens, offsets): &(TokenIds, Vec<Option<Range<usize>>>),
    special: bool,
) -> Vec<tei::TextToken> {
    let token = |(&id, range): (&u32, &Option<Range<usize>>)| match range {
        Some(range) => Some(tei::TextToken {
            id,
            text: text.get(range.clone()).unwrap_or_default().to_owned(),
            special: false,
            start: Some(range.start),
            stop: Some(range.end),
        }),
        None => special.then(|| tei::TextToken {
            id,
            text: tokenizer.token(id).unwrap_or_default(),
            special: true,
            start: None,
            stop: None,
        }),
    };
    tokens.ids.iter().zip(offsets).filter_map(token).collect()
}
