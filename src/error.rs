//! Usage errors, which have an exit code of their own, and wording that the errors of all rooms share.

use std::fmt::{self, Display};

/// Options contradict each other, the input or the model. The exit code is 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

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
