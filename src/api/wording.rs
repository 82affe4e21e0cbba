//! Messages name options as the command line does; here they have the names of methods.

/// A message with the name of a method, `` `max_length` ``, in place of each option, `--max-length`.
pub(super) fn in_words_of_the_library(message: &str) -> String {
    let (mut words, mut rest) = (String::new(), message);
    while let Some(at) = rest.find("--") {
        let (before, option) = (&rest[..at], &rest[at + 2..]);
        let length = option.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(option.len());
        let name = option[..length].trim_end_matches('-');
        let is_first = before.chars().next_back().is_none_or(|c| c.is_whitespace() || c == '(' || c == '`');
        words.push_str(before);
        if is_first && !name.is_empty() {
            words.push_str(&format!("`{}`", name.replace('-', "_")));
        } else {
            words.push_str("--");
            words.push_str(name);
        }
        rest = &option[name.len()..];
    }
    words + rest
}

#[cfg(test)]
mod tests {
    use super::in_words_of_the_library;

    #[test]
    fn options_become_methods_and_paths_stay() {
        for (message, expected) in [
            (
                "--dimensions 9 exceeds; pass a smaller number",
                "`dimensions` 9 exceeds; pass a smaller number",
            ),
            ("shorten it, or pass a larger --max-length", "shorten it, or pass a larger `max_length`"),
            ("offline mode (--offline, HF_HUB_OFFLINE)", "offline mode (`offline`, HF_HUB_OFFLINE)"),
            ("in /cache/models--org--name-x is", "in /cache/models--org--name-x is"),
            ("ends in -- and --", "ends in -- and --"),
            ("灯--x --on-long灯", "灯--x `on_long`灯"),
        ] {
            assert_eq!(in_words_of_the_library(message), expected);
        }
    }
}
