//! Usage errors, which have an exit code of their own, and wording that the errors of all rooms share.

use std::fmt::Display;

use thiserror::Error;

/// Options contradict each other, the input or the model. The exit code is 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// An error as one line: each run of white space becomes one space.
pub fn one_line(error: &dyn Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn errors_are_one_line() {
        assert_eq!(one_line(&" a\n\tb  c\r\n"), "a b c");
    }
}
