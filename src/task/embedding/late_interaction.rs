//! What a multi-vector model does beside its modules: the length and the expansion of a text by its role, the
//! tokens without a vector, and token pooling.

use anyhow::{Result, bail};

use crate::error::UsageError;
use crate::load::Loaded;
use crate::model::modules::{MultiVector, QueryExpansion, Role, TokenPooling};
use crate::nn::pool_hierarchically;
use crate::task::options::VectorOptions;
use crate::text::{OnLong, TokenIds};

/// A multi-vector model with every option resolved for one role of the texts.
#[derive(Debug, Clone)]
pub struct LateInteraction {
    config: MultiVector,
    /// What the texts are.
    role: Role,
    /// The maximum tokens of a query and of a document, in the order of [`Role`].
    max_length: [usize; 2],
    /// How queries are expanded, with the id of the token.
    expansion: Option<(QueryExpansion, u32)>,
    /// The ids of the skiplist, ascending.
    skiplist: Vec<u32>,
}

impl LateInteraction {
    /// Resolves the options against the model, for documents unless they say otherwise.
    ///
    /// # Errors
    /// If the model has no token for the expansion of queries, or an option does not apply to multi-vector
    /// models: a usage error.
    pub(super) fn new(loaded: &Loaded, config: &MultiVector, options: &VectorOptions) -> Result<Self> {
        if options.on_long == OnLong::Mean {
            bail!(UsageError(
                "--on-long mean averages the vectors of a text, but a multi-vector model has one per token; pass --on-long \
                 truncate, skip or error"
                    .into()
            ));
        }
        let role = options.role.unwrap_or(Role::Document);
        if options.chunking.is_some() && role == Role::Query {
            bail!(UsageError("--chunk splits documents; remove it, or --role query".into()));
        }
        let mut config = config.clone();
        if let Some(factor) = options.token_pooling {
            if role == Role::Query {
                bail!(UsageError("--token-pooling applies to documents; remove it, or --role query".into()));
            }
            config.token_pooling = Some(TokenPooling::with_factor(factor));
        }
        let mut skiplist: Vec<u32> =
            config.skiplist.iter().filter_map(|word| loaded.tokenizer.token_id(word)).collect();
        skiplist.sort_unstable();
        let expansion = match &config.expansion {
            Some(expansion) => Some((expansion.clone(), expansion_token(loaded, expansion)?)),
            None => None,
        };
        let max_length =
            [max_length(loaded, &config, Role::Query)?, max_length(loaded, &config, Role::Document)?];
        Ok(LateInteraction { config, role, max_length, expansion, skiplist })
    }

    /// What the texts are.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The maximum tokens of a query and of a document, in the order of [`Role`].
    pub(super) fn max_lengths(&self) -> [usize; 2] {
        self.max_length
    }

    /// Vectors per cluster of token pooling; 1 without it.
    pub fn pooling_factor(&self) -> f64 {
        self.token_pooling(self.role).map_or(1.0, |pooling| pooling.factor)
    }

    /// Whether the vectors of a text have unit length, if those of the modules have.
    pub(super) fn keeps_unit_length(&self) -> bool {
        self.token_pooling(self.role).is_none_or(|pooling| pooling.normalize || pooling.factor <= 1.0)
    }

    /// Expands a text of this role to its length, if it is a query and queries are expanded.
    pub(super) fn expand(&self, role: Role, tokens: &mut TokenIds) {
        let Some((expansion, token)) = self.expansion.as_ref().filter(|_| role == Role::Query) else {
            return;
        };
        let length = match expansion.fixed {
            // The limit, which --max-length sets.
            true => self.max_length[Role::Query as usize],
            false => expansion.length.tokens.min(self.max_length[Role::Query as usize]),
        };
        let added = length.saturating_sub(tokens.ids.len());
        tokens.ids.extend(std::iter::repeat_n(*token, added));
        tokens.token_type_ids.extend(std::iter::repeat_n(0, added));
        tokens.unattended_tokens = if expansion.attend { 0 } else { added };
    }

    /// The vectors of a text, concatenated: those of the tokens `ids`, `(ids.len(), dimensions)`, without
    /// those on the skiplist, pooled.
    pub(super) fn select<'a>(
        &self,
        role: Role,
        tokens: impl Iterator<Item = (u32, &'a [f32])>,
        dimensions: usize,
    ) -> Vec<f32> {
        let kept = self.kept(role, tokens);
        let vectors = kept.flat_map(|(_, vector)| vector.iter().copied()).collect();
        match self.token_pooling(role) {
            Some(TokenPooling { factor, protected, normalize, .. }) => {
                pool_hierarchically(vectors, dimensions, *factor, *protected, *normalize)
            }
            None => vectors,
        }
    }

    /// Whether a text of the tokens `ids` has any vector.
    pub(super) fn keeps_any(&self, role: Role, ids: &[u32]) -> bool {
        self.kept(role, ids.iter().map(|id| (*id, ()))).next().is_some()
    }

    /// The tokens that have vectors.
    fn kept<T>(&self, role: Role, tokens: impl Iterator<Item = (u32, T)>) -> impl Iterator<Item = (u32, T)> {
        let skips = self.config.skiplist_roles.contains(&role);
        let tokens = tokens.skip(usize::from(self.config.skips_first_token));
        tokens.filter(move |(id, _)| !skips || self.skiplist.binary_search(id).is_err())
    }

    /// The token pooling of texts of a role.
    fn token_pooling(&self, role: Role) -> Option<&TokenPooling> {
        self.config.token_pooling.as_ref().filter(|pooling| pooling.roles.contains(&role))
    }
}

/// The id of the token that expands queries: that of the model's files, else the mask token.
fn expansion_token(loaded: &Loaded, expansion: &QueryExpansion) -> Result<u32> {
    let (tokenizer, file) = (&loaded.tokenizer, expansion.length.file.display());
    match &expansion.token {
        Some(token) => match tokenizer.token_id(token) {
            Some(id) => Ok(id),
            None => bail!(
                "{file} expands queries with {token:?}, which the vocabulary does not have; fix the file"
            ),
        },
        None => match tokenizer.mask_token() {
            Some((id, _)) => Ok(id),
            None => bail!(
                "{file} expands queries, but the vocabulary has no mask token; name a token in \"query_expansion\""
            ),
        },
    }
}

/// The maximum tokens of a text of this role: `--max-length`, else the model's own, at most the number of
/// positions that have a table.
pub(super) fn max_length(loaded: &Loaded, config: &MultiVector, role: Role) -> Result<usize> {
    let (limit, positions) = (&loaded.max_length, loaded.encoders[0].spec().position_limit());
    if limit.file.is_none() {
        return Ok(limit.tokens);
    }
    let positions = positions.unwrap_or(usize::MAX);
    Ok(match (role, &config.expansion) {
        (Role::Document, _) => loaded.role_length(config.document_length.as_ref()),
        (Role::Query, None) => loaded.role_length(config.query_length.as_ref()),
        (Role::Query, Some(QueryExpansion { length, .. })) if length.tokens > positions => bail!(
            "{}: {} is {}, but the model has {positions} positions; fix the file",
            length.file.display(),
            length.key,
            length.tokens
        ),
        (Role::Query, Some(QueryExpansion { length, fixed: true, .. })) => length.tokens,
        (Role::Query, Some(QueryExpansion { length, .. })) => {
            loaded.role_length(config.query_length.as_ref()).max(length.tokens)
        }
    })
}
