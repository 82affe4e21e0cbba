//! URLs of a hub: parsing, joining and comparing them.

use ureq::http::Uri;

/// Scheme, host and port of a URL.
pub(super) type Origin = (String, String, u16);

/// A URL without user and password, and those (`user:password`).
pub(super) fn without_userinfo(address: &str) -> (String, Option<String>) {
    let start = address.find("://").map_or(0, |at| at + 3);
    let end = address[start..].find(['/', '?', '#']).map_or(address.len(), |at| start + at);
    match address[start..end].rsplit_once('@') {
        Some((userinfo, host)) => {
            (format!("{}{host}{}", &address[..start], &address[end..]), Some(userinfo.into()))
        }
        None => (address.into(), None),
    }
}

/// The origin of an http or https URL; `None` for another scheme or a malformed URL.
pub(super) fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_lowercase();
    let default_port = default_port(&scheme)?;
    Some((scheme, uri.host()?.to_lowercase(), uri.port_u16().unwrap_or(default_port)))
}

/// The port of a URL that has none, by its scheme.
pub(super) fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// The URL that a `Location` header in the answer to `url` means.
pub(super) fn join(url: &str, location: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://")?;
    let is_absolute = location.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    if is_absolute {
        return Some(location.into());
    }
    if location.starts_with("//") {
        return Some(format!("{scheme}:{location}"));
    }
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    if location.starts_with('/') {
        return Some(format!("{scheme}://{host}{location}"));
    }
    let path = path.split('?').next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    (!location.is_empty()).then(|| format!("{scheme}://{host}{folder}{location}"))
}

/// A path of a repository, percent-encoded for a URL.
pub(super) fn encode_path(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined_as_in_a_browser() {
        let base = "http://hub:1/a/b?c";
        for (location, expected) in [
            ("https://elsewhere/x", Some("https://elsewhere/x")),
            ("//elsewhere/x", Some("http://elsewhere/x")),
            ("/x?y=http://z", Some("http://hub:1/x?y=http://z")),
            ("x#y", Some("http://hub:1/a/x")),
            ("", None),
        ] {
            assert_eq!(join(base, location).as_deref(), expected, "{location}");
        }
        assert_eq!(join("http://hub", "x").as_deref(), Some("http://hub/x"));
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/x"), origin("https://u:p@hub.example:443"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.org"] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        for none in ["hub.example", "ftp://hub.example", "http://a b", "file:///etc/passwd", ""] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn user_and_password_are_split_from_a_url() {
        for (address, shown, secret) in [
            ("https://u:p@hub/x", "https://hub/x", Some("u:p")),
            ("https://u:p@w@hub", "https://hub", Some("u:p@w")),
            ("u:p@hub", "hub", Some("u:p")),
            ("https://hub/a@b", "https://hub/a@b", None),
        ] {
            assert_eq!(without_userinfo(address), (shown.into(), secret.map(String::from)));
        }
    }
}
