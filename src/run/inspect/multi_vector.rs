//! What `sconce inspect` shows of a multi-vector model: lengths, query expansion, skiplist and token pooling.

use serde_json::{Value, json};

use crate::model::modules::{MultiVector, QueryExpansion, Role};
use crate::named::Named;
use crate::sys::console::counted;

/// The lines of the page.
pub(super) fn lines(model: &MultiVector) -> Vec<(&'static str, String)> {
    let tokens = |count: usize| counted(count as u64, "token");
    let roles = |roles: &[Role]| {
        let names = roles.iter().map(|role| if *role == Role::Query { "queries" } else { "documents" });
        names.collect::<Vec<_>>().join(" and ")
    };
    let queries = match &model.expansion {
        Some(QueryExpansion { length, fixed, attend, token }) => {
            let least = if *fixed { "" } else { "at least " };
            let token = token.as_deref().unwrap_or("mask tokens");
            let attended = if *attend { "" } else { ", which no token attends to" };
            format!("expanded to {least}{} with {token}{attended}", tokens(length.tokens))
        }
        None => "not expanded".into(),
    };
    let limit = model.query_length.as_ref().map(|limit| format!(", at most {}", tokens(limit.tokens)));
    let mut lines = vec![("queries", queries + &limit.unwrap_or_default())];
    if let Some(limit) = &model.document_length {
        lines.push(("documents", format!("at most {}", tokens(limit.tokens))));
    }
    if !model.skiplist.is_empty() {
        let count = tokens(model.skiplist.len());
        lines.push(("skiplist", format!("{count} without a vector in {}", roles(&model.skiplist_roles))));
    }
    if let Some(pooling) = &model.token_pooling {
        lines.push((
            "token pooling",
            format!("means of clusters of {} in {}", pooling.factor, roles(&pooling.roles)),
        ));
    }
    lines.push(("score", if model.mean { "mean of maximum similarities" } else { "MaxSim" }.into()));
    lines
}

/// The object of `--json`.
pub(super) fn object(model: &MultiVector) -> Value {
    let names = |roles: &[Role]| roles.iter().map(|role| role.name()).collect::<Vec<_>>();
    let expansion = model.expansion.as_ref().map(|expansion| {
        json!({
            "length": expansion.length.tokens,
            "strategy": if expansion.fixed { "fixed" } else { "min" },
            "attend": expansion.attend,
            "token": expansion.token,
        })
    });
    json!({
        "query_length": model.query_length.as_ref().map(|limit| limit.tokens),
        "document_length": model.document_length.as_ref().map(|limit| limit.tokens),
        "query_expansion": expansion,
        "skiplist": model.skiplist,
        "skiplist_roles": names(&model.skiplist_roles),
        "token_pooling": model.token_pooling.as_ref().map(|pooling| pooling.factor),
        "similarity": model.similarity().name(),
    })
}
