//! Answers about the models of a server, in each schema.

use std::sync::Arc;

use chrono::DateTime;

use super::{Limits, Response};
use crate::named::Named;
use crate::serve::kind::Kind;
use crate::serve::models::{Facts, Model};
use crate::serve::schema::{Fault, ollama, openai, tei};
use crate::serve::service::Service;
use crate::text::OnLong;

impl Service {
    pub(super) fn info(&self, limits: &Limits) -> Vec<u8> {
        let model = self.models.first();
        let labels = model.kind.labels();
        let encoder = model.encoder();
        let model_type = match &model.kind {
            Kind::Vectors(_) => tei::InfoModelType::Embedding { pooling: &model.facts.pooling },
            Kind::CrossEncoder(_) => tei::InfoModelType::Reranker(&labels),
            Kind::Classifier(_) => tei::InfoModelType::Classifier(&labels),
            Kind::Tagger(_) => tei::InfoModelType::Tagger(&labels),
            Kind::MaskFiller(_) => tei::InfoModelType::MaskFiller {},
            Kind::Answerer(_) => tei::InfoModelType::Answerer {},
        };
        let info = tei::Info {
            model_id: &model.id,
            model_sha: None,
            model_dtype: model.facts.dtype,
            served_model_name: &model.name,
            model_type,
            max_concurrent_requests: limits.concurrent_requests,
            max_input_length: model.facts.max_length,
            max_batch_tokens: model.workload.batch_tokens,
            max_batch_requests: None,
            max_client_batch_size: limits.client_batch_size,
            auto_truncate: self.defaults.on_long == OnLong::Truncate,
            tokenization_workers: limits.threads,
            version: env!("CARGO_PKG_VERSION"),
            sha: Some(env!("SCONCE_COMMIT")),
            docker_label: None,
            dimensions: encoder.as_ref().map(|encoder| encoder.dimensions()),
            similarity: encoder.as_ref().map(|encoder| encoder.similarity().name()),
            truncation_side: model.kind.task().tokenizer().truncation_side().name(),
        };
        info.body()
    }

    pub(super) fn openai_models(&self) -> Vec<u8> {
        let models: Vec<openai::ListedModel> = self.models.all.iter().map(listed).collect();
        openai::models_answer(&models)
    }

    pub(super) fn openai_model(&self, name: &str) -> Result<Response, Fault> {
        let model = self.models.named(name).ok_or_else(|| self.models.unknown(name))?;
        Ok(Response::plain(openai::model_answer(&listed(model))))
    }

    pub(super) fn ollama_tags(&self) -> Vec<u8> {
        let described: Vec<Described> = self.models.all.iter().map(Described::of).collect();
        let models: Vec<ollama::TaggedModel> = described.iter().map(Described::tagged).collect();
        ollama::tags_answer(&models)
    }

    pub(super) async fn ollama_show(&self, body: &Arc<Vec<u8>>) -> Result<Response, Fault> {
        let model = match self.parse(body, ollama::show).await? {
            Some(name) => self.models.named(&name).ok_or_else(|| self.models.unknown(&name))?,
            None => self.models.first(),
        };
        Ok(Response::plain(ollama::show_answer(&Described::of(model).tagged())))
    }
}

fn listed(model: &Model) -> openai::ListedModel<'_> {
    openai::ListedModel { id: &model.name, created: model.facts.loaded_at }
}

/// What Ollama says of a model, as strings.
struct Described<'a> {
    model: &'a Model,
    modified_at: String,
    parameter_size: String,
    quantization_level: String,
}

impl<'a> Described<'a> {
    fn of(model: &'a Model) -> Self {
        let Facts { dtype, parameters, loaded_at, .. } = &model.facts;
        Described {
            model,
            modified_at: DateTime::from_timestamp(*loaded_at as i64, 0).unwrap_or_default().to_rfc3339(),
            parameter_size: format!("{:.1}M", *parameters as f64 / 1e6),
            quantization_level: dtype.to_uppercase(),
        }
    }

    fn tagged(&self) -> ollama::TaggedModel<'_> {
        let facts = &self.model.facts;
        ollama::TaggedModel {
            name: &self.model.name,
            modified_at: &self.modified_at,
            size: 4 * facts.parameters as u64,
            digest: "",
            family: &facts.family,
            parameter_size: &self.parameter_size,
            quantization_level: &self.quantization_level,
            dimensions: facts.dimensions,
            max_length: facts.max_length,
        }
    }
}
