//! The error of the library.

use std::fmt;

use super::wording::in_words_of_the_library;

/// Why a model, a text or a file cannot be used: one sentence that says what was found and what to do, with a
/// kind that can be matched.
///
/// ```
/// use sconce::{Embedder, ErrorKind, Model};
///
/// let error = Embedder::open(Model::new("no/such-model").offline(true)).err().expect("there is no such model");
/// assert_eq!(error.kind(), ErrorKind::ModelNotFound);
/// println!("{error}");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`]. Texts and queries are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such model: it is no directory, and neither the cache nor the hub has it, or the hub must
    /// not be asked.
    ModelNotFound,
    /// The model cannot be downloaded: the hub cannot be reached or refuses, or the cache cannot store its
    /// files.
    Download,
    /// The files of the model are malformed, contradict each other, or are those of a model for another task.
    InvalidModel,
    /// A choice or an argument contradicts the model or the file.
    InvalidOption,
    /// A text cannot be encoded.
    InvalidText {
        /// The index of the text.
        index: usize,
    },
    /// A text is over the limit, and [`OnLong::Error`](crate::OnLong::Error) was chosen.
    TooLong {
        /// The index of the text.
        index: usize,
        /// Its tokens, including special tokens.
        tokens: usize,
        /// The maximum number of tokens.
        limit: usize,
    },
    /// The query of a reranker cannot be encoded.
    InvalidQuery,
    /// What a text has become, or a query of a search, has NaN or infinite values.
    NotFinite {
        /// The index of the text or query.
        index: usize,
    },
    /// The device is not available, or fails.
    Backend,
    /// A vector file cannot be read or is malformed.
    File,
}

impl Error {
    /// An error with a message of any room, in whose words options are those of the command line.
    pub(super) fn new(kind: ErrorKind, message: &dyn fmt::Display) -> Self {
        Error { kind, message: in_words_of_the_library(&message.to_string()) }
    }

    /// The error of the only text of a call, which is a query.
    pub(super) fn of_query(self) -> Self {
        use ErrorKind::{InvalidText, NotFinite, TooLong};
        match self.kind {
            InvalidText { .. } | TooLong { .. } | NotFinite { .. } => {
                let message = self.message.replacen("text 1", "the query", 1);
                Error { kind: ErrorKind::InvalidQuery, message }
            }
            _ => self,
        }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
