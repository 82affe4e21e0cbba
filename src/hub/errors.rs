//! The sentences for a model that the cache does not have and that cannot be downloaded.

use std::io::{self, ErrorKind};

use anyhow::Error;

use super::client::RequestError;
use super::snapshot::Hub;
use super::{NoSuchModel, Source, ids};

/// Maximum number of ids or files that a message lists.
const MAX_LISTED: usize = 5;

impl Hub<'_> {
    /// The error for a failed request for `what`.
    pub(super) fn request_error(&self, what: &str, error: RequestError) -> Error {
        match error {
            RequestError::Unreachable(reason) => self.unreachable(&reason),
            RequestError::Refused { status, .. } => self.refusal(status, what),
            RequestError::Malformed(reason) => self.malformed_answer(what, &reason),
            RequestError::Certificate(fault) => Error::msg(format!("{}, and {fault}", self.absence())),
            RequestError::Setting(fault) => {
                Error::msg(format!("cannot download {what} of {}: {fault}", self.source.model))
            }
        }
    }

    /// The beginning of a sentence about a model that has to be downloaded.
    fn absence(&self) -> String {
        let state = if self.folder.exists() { "incomplete in the cache" } else { "not in the cache" };
        let Source { model, revision, .. } = self.source;
        format!("model {model} (revision {revision}) is {state} at {}", self.cache.path().display())
    }

    /// What to do about a model that is not in the cache, if it may be a slip, and whether that is likely:
    /// the ids in the cache.
    fn check_of_id(&self) -> Option<(String, bool)> {
        let (ids, is_slip) = ids::similar(&self.source.model, self.cache.path());
        let has_others = !self.folder.exists() && !ids.is_empty();
        has_others.then(|| (format!("check the id (the cache has {})", listed(&ids)), is_slip))
    }

    /// How to get the model without the network.
    fn remedy_without_network(&self) -> String {
        let folder = ids::folder_name(&self.source.model);
        let cache = self.cache.path().display();
        format!(
            "copy the directory {folder} from the cache of another machine into {cache}, or pass --model DIR"
        )
    }

    /// The error for a model that would have to be downloaded in offline mode.
    pub(super) fn forbidden(&self, missing: &[String]) -> Error {
        let Source { model, revision, .. } = self.source;
        let option = if revision == "main" { String::new() } else { format!(" --revision {revision}") };
        let what = if missing.is_empty() { String::new() } else { format!(" of {}", listed(missing)) };
        let check = self.check_of_id().map(|(check, _)| format!("{check}, ")).unwrap_or_default();
        Error::new(NoSuchModel(format!(
            "{}, and offline mode (--offline, HF_HUB_OFFLINE) forbids a download{what}: {check}run `sconce download \
             {model}{option}` once with network access, {}",
            self.absence(),
            self.remedy_without_network()
        )))
    }

    fn unreachable(&self, reason: &str) -> Error {
        let (absence, endpoint) = (self.absence(), self.client.endpoint());
        let remedy = format!("check the network and HF_ENDPOINT, {}", self.remedy_without_network());
        Error::msg(match self.check_of_id() {
            Some((check, true)) => format!(
                "{absence}: {check}; if it is right, the hub at {endpoint} may have it but cannot be reached ({reason}): {remedy}"
            ),
            Some((check, false)) => {
                format!(
                    "{absence}, and the hub at {endpoint} cannot be reached ({reason}); {check}, {remedy}"
                )
            }
            None => format!("{absence}, and the hub at {endpoint} cannot be reached ({reason}); {remedy}"),
        })
    }

    pub(super) fn cache_error(&self, error: &io::Error) -> Error {
        let cache = self.cache.path().display();
        Error::msg(match error.kind() {
            ErrorKind::StorageFull => format!("the disk of the cache at {cache} is full; free some space"),
            _ => format!("cannot use the cache at {cache} ({error}); set HF_HOME to a writable directory"),
        })
    }

    pub(super) fn malformed_answer(&self, what: &str, reason: &str) -> Error {
        Error::msg(format!(
            "the answer of {} for {what} of {} is not that of a Hugging Face hub ({reason}); check HF_ENDPOINT",
            self.client.endpoint(),
            self.source.model
        ))
    }

    fn refusal(&self, status: u16, what: &str) -> Error {
        let endpoint = self.client.endpoint();
        let model = &self.source.model;
        let check = match self.check_of_id() {
            Some((check, true)) => check,
            _ => "check the id".to_owned(),
        };
        Error::msg(match (status, self.client.has_token()) {
            (401 | 403, true) => format!(
                "the hub at {endpoint} refuses {what} of {model} to your token (status {status}); check HF_TOKEN, \
                 and that its account has been given access at {endpoint}/{model}"
            ),
            (401 | 403, false) => format!(
                "the hub at {endpoint} refuses {what} of {model} (status {status}): there is no such model, or it \
                 is private or gated; {check}, or set HF_TOKEN"
            ),
            (404, _) => {
                format!("{what} of {model} not found on the hub at {endpoint}; {check} and --revision")
            }
            _ => format!(
                "the hub at {endpoint} answered {what} of {model} with status {status}; try again later"
            ),
        })
    }
}

/// Up to [`MAX_LISTED`] names, and the number of the others.
pub(super) fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_LISTED)].join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}
