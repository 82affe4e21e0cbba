//! Variables of the environment, read as `huggingface_hub` reads them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A variable, unless it is empty or not UTF-8.
pub fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable has one of the values that `huggingface_hub` takes as true.
pub fn is_true(name: &str) -> bool {
    text(name).is_some_and(|value| is_true_value(&value))
}

/// Whether the network must not be used. As in huggingface_hub, the older variable counts if the other one is
/// not set.
pub fn is_offline() -> bool {
    let value = text("HF_HUB_OFFLINE").or_else(|| text("TRANSFORMERS_OFFLINE"));
    value.is_some_and(|value| is_true_value(&value))
}

/// Whether a value is one of those that `huggingface_hub` takes as true.
pub fn is_true_value(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}

/// The path in a variable, unless it is empty. A `~` at its beginning and the variables in it are expanded as
/// by `os.path.expanduser` and `os.path.expandvars` of Python, because no shell does that in a unit file or
/// an `.env` file.
pub fn path(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    Some(match value.into_string() {
        Ok(value) => expand_variables(&expand_home(&value, home_of), text_or_empty).into(),
        Err(value) => value.into(),
    })
}

/// A variable that exists, even an empty one.
fn text_or_empty(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// The home directory of a user; without a name, of the present one.
fn home_of(user: &str) -> Option<String> {
    if user.is_empty() {
        return env::home_dir()?.into_os_string().into_string().ok();
    }
    let users = fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let fields = users.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(user));
    fields?.nth(5).map(str::to_owned)
}

/// Replaces `~` or `~user` at the beginning of a path by the home directory; unchanged if there is none.
fn expand_home(path: &str, home_of: impl Fn(&str) -> Option<String>) -> String {
    let Some(rest) = path.strip_prefix('~') else { return path.to_owned() };
    let (user, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match home_of(user) {
        Some(home) if home.trim_end_matches('/').is_empty() && rest.is_empty() => "/".to_owned(),
        Some(home) => format!("{}{rest}", home.trim_end_matches('/')),
        None => path.to_owned(),
    }
}

/// Replaces `$NAME` and `${NAME}` by the values of variables; those that do not exist are unchanged, and
/// values are not expanded again.
fn expand_variables(path: &str, value_of: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, length) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let length = after.find(|c| !is_name(c)).unwrap_or(after.len());
                (&after[..length], length)
            }
        };
        expanded.push_str(&rest[..at]);
        match value_of(name).filter(|_| !name.is_empty()) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&rest[at..=at + length]),
        }
        rest = &after[length..];
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of `os.path.expandvars(os.path.expanduser(path))` of Python 3.11 with
    /// HOME=/home/me/, A=x, B=$A, EMPTY= and a user `you` with the home directory /srv/you.
    #[test]
    fn paths_are_expanded_as_by_python() {
        let home_of = |user: &str| match user {
            "" => Some("/home/me/".to_owned()),
            "you" => Some("/srv/you".to_owned()),
            _ => None,
        };
        let value_of = |name: &str| match name {
            "HOME" => Some("/home/me/".to_owned()),
            "A" => Some("x".to_owned()),
            "B" => Some("$A".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (path, expected) in [
            ("", ""),
            ("~", "/home/me"),
            ("~/hf", "/home/me/hf"),
            ("~you/hf", "/srv/you/hf"),
            ("~none/hf", "~none/hf"),
            ("a/~/hf", "a/~/hf"),
            ("$HOME/hf", "/home/me//hf"),
            ("${HOME}hf", "/home/me/hf"),
            ("~/$A/${A}y", "/home/me/x/xy"),
            ("$A$A-$Ab", "xx-$Ab"),
            ("$B", "$A"),
            ("$EMPTY/hf", "/hf"),
            ("$NONE/${NONE}/$", "$NONE/${NONE}/$"),
            ("${A", "${A"),
            ("${}$-$$A", "${}$-$x"),
            ("$\u{e4}/\u{e4}$A", "$\u{e4}/\u{e4}x"),
        ] {
            assert_eq!(expand_variables(&expand_home(path, home_of), value_of), expected, "{path}");
        }
        assert_eq!(expand_home("~", |_| Some("/".to_owned())), "/");
    }
}
