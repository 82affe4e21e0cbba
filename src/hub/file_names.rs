//! Checks of names before they become paths.

use std::path::{Component, Path};

/// Whether a path stays inside the directory that it is relative to, on any system.
pub(super) fn is_relative(path: &str) -> bool {
    let is_normal = |part: Component| matches!(part, Component::Normal(_));
    let has_parts = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    has_parts && !path.contains(['\\', '\0']) && Path::new(path).components().all(is_normal)
}

/// Whether a name can be a component of a path in the cache: letters, digits, `-`, `_` and `.`, but not `.`
/// or `..`.
pub(super) fn is_component(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !matches!(name, "" | "." | "..") && name.bytes().all(is_allowed)
}

/// Whether a name is a plain file name: letters, digits, `-` and `_`.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_directory_are_refused() {
        for path in ["config.json", "1_Pooling/config.json", "a/b/c", "..a"] {
            assert!(is_relative(path), "{path}");
        }
        for path in ["", "/etc/passwd", "../config.json", "a/../../b", "a//b", "a/./b", "a\\b", "a\0", "a/"] {
            assert!(!is_relative(path), "{path}");
        }
    }

    #[test]
    fn plain_names_have_no_separators() {
        assert!(is_plain("0123abc-_Z"));
        for name in ["", "a/b", "a.b", "ä", ".."] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
